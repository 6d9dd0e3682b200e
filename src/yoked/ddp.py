"""Our sync for other people's programs, as a communication hook of DistributedDataParallel.

    from yoked.ddp import CompressionState, compression_hook

    model = DistributedDataParallel(model)
    model.register_comm_hook(CompressionState(payload="int8"), compression_hook)

See docs/guides/ddp-hook.md.
"""

from yoked.train.sync.ddp_hook import CompressionState, compression_hook

__all__ = ["CompressionState", "compression_hook"]
