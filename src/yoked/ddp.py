"""Our sync for other people's programs, as a communication hook of DistributedDataParallel.

    from yoked.ddp import SyncState, sync_hook

    model = DistributedDataParallel(model)
    model.register_comm_hook(SyncState(payload="int8"), sync_hook)

See docs/ddp-hook.md.
"""

from yoked.train.sync.hook import SyncState, sync_hook

__all__ = ["SyncState", "sync_hook"]
