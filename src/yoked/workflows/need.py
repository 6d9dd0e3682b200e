"""What a run needs, as far as it is known before it starts: for the doctor to compare with."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import TYPE_CHECKING

from yoked import __version__
from yoked.costmodel.schedule import max_deferred_backwards, schedule_rows
from yoked.errors import YokedError
from yoked.launch.requirements import requirements_digest, train_requirements
from yoked.records.examination import Need

if TYPE_CHECKING:
    from yoked.costmodel.model_shape import ModelShape, ParameterCounts
    from yoked.train.config import TrainConfig
    from yoked.train.resolve import ResolvedConfig

_COMPARED = ("torch", "numpy")
_FLOAT32_BYTES = 4
# AdamW keeps two moments of a number, Muon one and a few factors of rows.
_ADAMW_COPIES = 3
_MUON_COPIES = 2


def need_of(config: TrainConfig | None = None) -> Need:
    """What a run of that configuration needs; None: of an unknown program.

    Sizes are for one rank with all of Muon's work: what is needed at most, in float32 on the CPU
    and in bfloat16 on a GPU. Raises UsageError for a configuration that no device could compute.
    """
    versions, environment = _versions(), _environment()
    if config is None:
        return Need(versions=versions, environment=environment)
    from yoked.costmodel.model_shape import count_parameters

    device = config.device_type
    shape, rows, deferred_rows = _shape(config, "cpu" if device == "auto" else device)
    return Need(
        versions=versions,
        environment=environment,
        checkpoint_bytes=checkpoint_bytes(count_parameters(shape)),
        memory_bytes=_memory_bytes(shape, rows, deferred_rows, "float32"),
        gpu_memory_bytes=None
        if device in ("cpu", "mps")
        else _memory_bytes(*_shape(config, "cuda"), "bfloat16"),
        device=device,
        keep=config.keep_last,
    )


def _memory_bytes(shape: ModelShape, rows: int, deferred_rows: int, dtype: str) -> int:
    from yoked.costmodel.memory import rank_memory

    need = rank_memory(
        shape,
        dtype=dtype,
        rows=rows,
        deferred_rows=deferred_rows,
        owned_fraction=1.0,
        payload_bytes=_FLOAT32_BYTES,
    )
    return round(need)


def checkpoint_bytes(counts: ParameterCounts) -> int:
    """Bytes of one checkpoint: weights and the optimizer's state."""
    adamw = counts.adamw + counts.scalars
    numbers = _ADAMW_COPIES * adamw + _MUON_COPIES * counts.transformer_matrices
    return _FLOAT32_BYTES * numbers


def _shape(config: TrainConfig, device_type: str) -> tuple[ModelShape, int, int]:
    """The model, the rows of a micro-batch and those that are held back, by default."""
    from yoked.train.resolve import resolve

    resolved = resolve(config, device_type)
    shape = resolved.model_shape(config.vocab_size)
    return shape, resolved.device_batch_size, _waiting_rows(shape, resolved)


def _waiting_rows(shape: ModelShape, resolved: ResolvedConfig) -> int:
    """Rows whose backward passes are deferred, at most: one rank may have all of a step."""
    rows, given = resolved.device_batch_size, resolved.config.total_batch_size
    deferred = max_deferred_backwards(rows * shape.sequence_len, shape.n_embd, shape.n_layer)
    step_rows = rows * deferred if given is None else given // shape.sequence_len
    return sum(schedule_rows(step_rows, rows, deferred).deferred)


def _environment() -> str | None:
    try:
        return requirements_digest(train_requirements())
    except YokedError:
        # Hosts may have environments all the same; they are looked at as far as they are named.
        return None


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "yoked": __version__}
    for name in _COMPARED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            # A controller need not train.
            continue
    return found
