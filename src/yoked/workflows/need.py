"""What a run needs, as far as it is known before it starts: for the doctor to compare with."""

from __future__ import annotations

import dataclasses
import platform
from importlib import metadata

from yoked import __version__
from yoked.costmodel.memory import PROCESS_BYTES, checkpoint_bytes, rank_memory, tables_memory
from yoked.costmodel.model_shape import count_parameters
from yoked.costmodel.schedule import max_deferred_backwards, schedule_rows
from yoked.costmodel.work import delays_of
from yoked.errors import YokedError
from yoked.launch.requirements import requirements_digest, train_requirements
from yoked.records.examination import Need
from yoked.train.config import TrainConfig
from yoked.train.optim.schedule import REFERENCE_BATCH_TOKENS
from yoked.train.resolve import resolve

_COMPARED = ("torch", "numpy")
_FLOAT32_BYTES = 4


def need_of(config: TrainConfig | None = None) -> Need:
    """What a run of that configuration needs; None: of an unknown program.

    Sizes are for one rank with all of Muon's work: what is needed at most, in float32 on the CPU
    and in bfloat16 on a GPU. Raises UsageError for a configuration that no device could compute.
    """
    versions = _versions()
    try:
        environment = requirements_digest(train_requirements())
    except YokedError:
        # Hosts may have environments all the same; they are looked at as far as they are named.
        environment = None
    if config is None:
        return Need(versions=versions, environment=environment)
    device = config.device_type
    here = "cpu" if device == "auto" else device
    shape = resolve(config, here).model_shape(config.vocab_size)
    return Need(
        versions=versions,
        environment=environment,
        checkpoint_bytes=checkpoint_bytes(count_parameters(shape), late=delays_of(config.sync)),
        memory_bytes=_memory_bytes(config, here),
        gpu_memory_bytes=None if device in ("cpu", "mps") else _gpu_memory_bytes(config),
        host_bytes_beside_gpu=_host_bytes_beside_gpu(config),
        device=device,
        keep=config.keep_last + _keeps_best(config),
    )


def _keeps_best(config: TrainConfig) -> bool:
    """Whether the best checkpoint lies beside the newest ones."""
    return -1 not in (config.eval_every, config.save_every)


def _gpu_memory_bytes(config: TrainConfig) -> int | None:
    # What is left open is chosen by what a GPU has: so at least.
    least = config if config.tables == "device" else dataclasses.replace(config, tables="host")
    need = resolve(least, "cuda", gpu_bytes=0.0).gpu_need_bytes
    return None if need is None else round(need)


def _memory_bytes(config: TrainConfig, device_type: str) -> int:
    resolved = resolve(config, device_type, gpu_bytes=0.0)
    shape, rows = resolved.model_shape(config.vocab_size), resolved.device_batch_size
    deferred = max_deferred_backwards(rows * shape.sequence_len, shape.n_embd, shape.n_layer)
    # One rank may have all of a step.
    given = config.total_batch_size
    step_rows = rows * deferred if given is None else given // shape.sequence_len
    need = rank_memory(
        shape,
        dtype="float32",
        rows=rows,
        step_rows=step_rows,
        checkpointed=config.checkpoint_activations,
        tables_on_host=device_type == "cuda" and config.tables != "device",
        deferred_rows=sum(schedule_rows(step_rows, rows, deferred).deferred),
        owned_fraction=1.0,
        payload_bytes=_FLOAT32_BYTES,
        late=delays_of(config.sync),
    )
    return round(need)


def _host_bytes_beside_gpu(config: TrainConfig) -> int | None:
    """Of a rank on a GPU whose tables are to be in host memory; None: little."""
    if config.tables != "host":
        return None
    resolved = resolve(config, "cuda", gpu_bytes=0.0)
    shape = resolved.model_shape(config.vocab_size)
    rows = (config.total_batch_size or REFERENCE_BATCH_TOKENS) // shape.sequence_len
    return round(PROCESS_BYTES + tables_memory(shape, dtype="bfloat16", rows=rows))


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "yoked": __version__}
    for name in _COMPARED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            # A controller need not train.
            continue
    return found
