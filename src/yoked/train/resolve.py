"""Fill in what the configuration leaves to the device, each choice with its reason.

Two pure steps, because the second needs the model's size, which needs the vocabulary that
the data gave: `resolve` fixes shapes and rows, `resolve_schedule` fixes batch, steps and
evaluation. Nothing here imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from yoked.costmodel.memory import tables_memory
from yoked.costmodel.model_shape import (
    SMEAR_CHANNELS,
    ModelShape,
    count_parameters,
    flops_per_token,
)
from yoked.costmodel.work import DENSE_BYTES, compression_of, delays_of
from yoked.errors import UsageError
from yoked.train.config import TrainConfig
from yoked.train.gpu_fit import DEPTHS, TYPICAL_BYTES, fit_gpu
from yoked.train.limits import require_whole_rows
from yoked.train.optim.schedule import REFERENCE_BATCH_TOKENS
from yoked.units import format_bytes

# Reference point of nanochat's hyperparameters: its depth-12 model.
REFERENCE_DEPTH = 12
# Optimal batch grows with the training tokens to this power (arXiv 2505.13738).
BATCH_EXPONENT = 0.383
DEFAULT_DATA_RATIO = 12.0
NANOCHAT_EVAL_EVERY = 250
NANOCHAT_EVAL_TOKENS = 80 * REFERENCE_BATCH_TOKENS
SMALL_DEVICE_STEPS = 500
SMALL_DEVICE_BATCH_TOKENS = 4096
# A token costs at most half as much to evaluate as to train (forward alone, against forward
# and backward at twice its price), so a tenth of the tokens is a twentieth of the time.
EVAL_TOKEN_FRACTION = 0.1
FEWEST_STEPS_BETWEEN_SAVES = 50
GPU_HEAD_DIM = 128


class _Defaults(NamedTuple):
    depth: int
    head_dim: int
    max_seq_len: int
    window_pattern: str
    device_batch_size: int


_SMALL = _Defaults(4, 64, 512, "L", 2)
_DEFAULTS = {
    "cpu": _SMALL,
    "mps": _SMALL._replace(device_batch_size=8),
    "cuda": _Defaults(20, GPU_HEAD_DIM, 2048, "SSSL", 32),
}


@dataclass(frozen=True)
class ResolvedConfig:
    """Shapes and rows of a run, concrete; reasons: by field, why it is what it is.

    fits: whether a GPU has the memory for it, as far as that is known.
    gpu_need_bytes: that a rank needs of a GPU at most, one with all of a step and of Muon; None:
    for another device.
    """

    config: TrainConfig
    device_type: str
    depth: int
    aspect_ratio: int
    head_dim: int
    max_seq_len: int
    window_pattern: str
    device_batch_size: int
    tables: str
    reasons: dict[str, str]
    gpu_need_bytes: float | None = None
    fits: bool = True

    @property
    def memory_notes(self) -> tuple[str, ...]:
        """What a plan says of a GPU's memory: where tables are not on it, and that it is little."""
        told = {"tables": self.tables == "host", "device_batch_size": not self.fits}
        return tuple(
            f"{name}: {getattr(self, name)} ({self.reasons[name]})"
            for name, worth in told.items()
            if worth
        )

    @property
    def model_tag(self) -> str:
        """Name of the checkpoints' folder."""
        return self.config.model_tag or f"d{self.depth}"

    def model_shape(self, vocab_size: int, depth: int | None = None) -> ModelShape:
        """The model that reads such a vocabulary; depth: another one than the run's."""
        return ModelShape.from_depth(
            self.depth if depth is None else depth,
            aspect_ratio=self.aspect_ratio,
            head_dim=self.head_dim,
            sequence_len=self.max_seq_len,
            vocab_size=vocab_size,
            window_pattern=self.window_pattern,
        )

    def scaling_parameters(self, vocab_size: int, depth: int | None = None) -> int:
        """Those of that model that nanochat's rules count (`ParameterCounts.dense`)."""
        return count_parameters(self.model_shape(vocab_size, depth)).dense


@dataclass(frozen=True)
class TrainSchedule:
    """How long a run is and how often it stops to look. eval_every and save_every: None never
    (but a checkpoint is always saved at the end); reasons as in ResolvedConfig.
    """

    total_batch_size: int
    num_iterations: int
    eval_every: int | None
    eval_tokens: int
    save_every: int | None
    reasons: dict[str, str]


def common_device_type(device_types: Collection[str]) -> str:
    """The type whose defaults a run takes: its ranks'; where they differ that of the GPUs from
    NVIDIA, which do nearly all of the work, or else cpu's, which fit all.

    Each rank of a run must come to the same shapes and rows, whatever it computes on.
    """
    kinds = set(device_types)
    if len(kinds) == 1:
        return kinds.pop()
    return "cuda" if "cuda" in kinds else "cpu"


def resolve(
    config: TrainConfig,
    device_type: str,
    gpu_bytes: float | None = None,
    no_windows: str | None = None,
) -> ResolvedConfig:
    """Shapes and rows for a device type: cpu, cuda or mps. What is given is used as it is.

    gpu_bytes: that each rank may use of its GPU; None: not known. no_windows: why attention windows
    save nothing on some rank's GPU; None: they do on all, or nobody has looked.
    """
    values: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for name, default in _DEFAULTS[device_type]._asdict().items():
        given = getattr(config, name)
        values[name] = default if given is None else given
        reasons[name] = f"fits a {device_type} device" if given is None else "given"
    if device_type == "cuda" and config.window_pattern is None:
        reasons["window_pattern"] = "windows by PyTorch's flash kernel"
        if no_windows is not None:
            # By a mask, PyTorch computes all scores of all layers.
            values["window_pattern"], reasons["window_pattern"] = "L", no_windows
    values["tables"] = "device" if config.tables == "auto" else config.tables
    if values["tables"] == "host":
        reasons["tables"] = "given"
    if device_type == "cuda":
        _fit_gpu(config, TYPICAL_BYTES if gpu_bytes is None else gpu_bytes, values, reasons)
    _require_width(config.aspect_ratio, **{key: values[key] for key in ("depth", "head_dim")})
    if config.total_batch_size is not None:
        require_whole_rows(config.total_batch_size, values["max_seq_len"])
    reasons["aspect_ratio"] = "given" if "aspect_ratio" in config.given() else "nanochat's default"
    return ResolvedConfig(
        config=config,
        device_type=device_type,
        aspect_ratio=config.aspect_ratio,
        reasons=reasons,
        **values,
    )


def rows_at_once(resolved: ResolvedConfig, device_type: str, gpu_bytes: float | None) -> int:
    """The most rows of a micro-batch on a rank's own device, in the run's model.

    Of `resolved`, all GPUs have room for them; a larger one has for more, and a CPU needs fewer.
    """
    shapes = ("depth", "head_dim", "max_seq_len", "window_pattern", "tables")
    model = {name: getattr(resolved, name) for name in shapes}
    return resolve(replace(resolved.config, **model), device_type, gpu_bytes).device_batch_size


def _fit_gpu(
    config: TrainConfig, usable_bytes: float, values: dict[str, Any], reasons: dict[str, str]
) -> None:
    """Set depth, rows and where tables are, if left open, to what the memory of a GPU allows."""
    most, batch = values["device_batch_size"], config.total_batch_size or REFERENCE_BATCH_TOKENS
    dtype = "float32" if config.dtype == "float32" else "bfloat16"
    step_rows = batch // values["max_seq_len"]

    def shape_of(depth: int) -> ModelShape:
        return ModelShape.from_depth(
            depth,
            aspect_ratio=config.aspect_ratio,
            head_dim=values["head_dim"],
            sequence_len=values["max_seq_len"],
            vocab_size=config.vocab_size,
            window_pattern=values["window_pattern"],
        )

    compression = compression_of(config.sync)
    fit = fit_gpu(
        shape_of,
        DEPTHS if config.depth is None else [config.depth],
        # 32, 16, ... 1
        [most] if config.device_batch_size else [most >> n for n in range(most.bit_length())],
        usable_bytes,
        dtype=dtype,
        step_rows=step_rows,
        checkpointed=config.checkpoint_activations,
        tables=config.tables,
        # What encoding loses is kept on the GPU. Left to the network (auto), it takes of the rest.
        payload_bytes=0.0 if compression in ("auto", "exact") else DENSE_BYTES[compression],
        late=delays_of(config.sync),
    )
    values.update(depth=fit.depth, device_batch_size=fit.rows, tables=fit.tables, fits=fit.fits)
    values["gpu_need_bytes"] = fit.need_bytes
    if fit.tables == "host":
        theirs = tables_memory(shape_of(fit.depth), dtype=dtype, rows=step_rows)
        why = "given" if config.tables == "host" else "fits only so"
        reasons["tables"] = (
            f"{why}: {format_bytes(theirs)} of the host's memory; with them the GPU would need "
            f"{format_bytes(fit.device_bytes)}"
        )
    if config.depth is None:
        reasons["depth"] = f"the deepest that trains well there: {fit.reason}"
    if config.device_batch_size is None:
        reasons["device_batch_size"] = f"the most that fit: {fit.reason}"
    elif not fit.fits:
        reasons["device_batch_size"] = f"given; it {fit.reason}"


def _require_width(aspect_ratio: int, depth: int, head_dim: int) -> None:
    width = math.ceil(depth * aspect_ratio / head_dim) * head_dim
    if width < SMEAR_CHANNELS:
        raise UsageError(
            f"--depth {depth}, --aspect-ratio {aspect_ratio} and --head-dim {head_dim} make a "
            f"model {width} wide; its gates read {SMEAR_CHANNELS} channels",
            fix=f"give a --head-dim or an --aspect-ratio of {SMEAR_CHANNELS} or more",
        )


def resolve_schedule(resolved: ResolvedConfig, vocab_size: int) -> TrainSchedule:
    """Batch, steps, evaluation and saving of a run whose vocabulary is known."""
    reasons: dict[str, str] = {}
    batch = _total_batch(resolved, vocab_size, reasons)
    steps = _steps(resolved, vocab_size, batch, reasons)
    eval_every, eval_tokens = _evaluation(resolved, batch, steps, reasons)
    return TrainSchedule(
        total_batch_size=batch,
        num_iterations=steps,
        eval_every=eval_every,
        eval_tokens=eval_tokens,
        save_every=_save_every(resolved.config, steps, reasons),
        reasons=reasons,
    )


def _total_batch(resolved: ResolvedConfig, vocab_size: int, reasons: dict[str, str]) -> int:
    """Tokens of a step."""
    given, row = resolved.config.total_batch_size, resolved.max_seq_len
    if given is not None:
        reasons["total_batch_size"] = "given"
        return given
    if resolved.device_type == "cuda":
        parameters = resolved.scaling_parameters(vocab_size)
        ratio = parameters / resolved.scaling_parameters(vocab_size, REFERENCE_DEPTH)
        wanted = 1 << round(math.log2(REFERENCE_BATCH_TOKENS * ratio**BATCH_EXPONENT))
        reasons["total_batch_size"] = "grows with the model: 524288 * (D/D_ref)^0.383"
    else:
        wanted = SMALL_DEVICE_BATCH_TOKENS
        reasons["total_batch_size"] = f"fits a {resolved.device_type} device"
    return math.ceil(wanted / row) * row


def _steps(resolved: ResolvedConfig, vocab_size: int, batch: int, reasons: dict[str, str]) -> int:
    config, ratio = resolved.config, resolved.config.target_param_data_ratio
    if config.num_iterations is not None:
        reasons["num_iterations"] = "given"
        return config.num_iterations
    if config.target_flops is not None:
        reasons["num_iterations"] = f"--target-flops {config.target_flops:g}"
        flops = batch * flops_per_token(resolved.model_shape(vocab_size))
        steps = round(config.target_flops / flops)
    elif config.duration is not None:
        # `duration.fit_duration` has another number, once a step was taken.
        reasons["num_iterations"] = f"until a step is measured for --for {config.duration}"
        return SMALL_DEVICE_STEPS
    elif ratio is None and resolved.device_type != "cuda":
        reasons["num_iterations"] = f"a first look on a {resolved.device_type} device"
        return SMALL_DEVICE_STEPS
    else:
        ratio = DEFAULT_DATA_RATIO if ratio is None else ratio
        if not ratio > 0:
            raise UsageError(
                "no length of the run is given: --target-param-data-ratio is switched off",
                fix="give --num-iterations, --target-flops or a ratio above 0",
            )
        parameters = resolved.scaling_parameters(vocab_size)
        reasons["num_iterations"] = f"{ratio:g} tokens for each of {parameters:,} parameters"
        steps = int(ratio * parameters) // batch
    if steps < 1:
        raise UsageError(
            f"the run would have no step: {reasons['num_iterations']} "
            f"is less than one step of {batch} tokens",
            fix="give a smaller --total-batch-size, or --num-iterations",
        )
    return steps


def evaluations(steps: int, eval_every: int) -> int:
    """How often a run evaluates: after every `eval_every` steps and at the end."""
    return math.ceil(steps / eval_every)


def evaluation_steps(steps: int, batch: int, eval_every: int | None, eval_tokens: int) -> float:
    """The steps that take as long as a run's evaluations; see EVAL_TOKEN_FRACTION."""
    return 0.0 if eval_every is None else evaluations(steps, eval_every) * eval_tokens / (2 * batch)


def _evaluation(
    resolved: ResolvedConfig, batch: int, steps: int, reasons: dict[str, str]
) -> tuple[int | None, int]:
    """Steps between evaluations, and tokens of one: whole rows, at least one row."""
    config, row = resolved.config, resolved.max_seq_len
    budget = int(steps * batch * EVAL_TOKEN_FRACTION)
    every = config.eval_every
    reasons["eval_every"] = "given"
    if every is None:
        # A short run shows four points of its curve, where the budget has a row for each.
        count = max(1, min(4, budget // (config.eval_tokens or row)))
        every = min(NANOCHAT_EVAL_EVERY, math.ceil(steps / count))
        reasons["eval_every"] = (
            "nanochat's default"
            if every == NANOCHAT_EVAL_EVERY
            else (f"{evaluations(steps, every)} in {steps} steps")
        )
    if every < 0:
        reasons["eval_tokens"] = "no evaluation"
        return None, config.eval_tokens or row
    if config.eval_tokens is not None:
        reasons["eval_tokens"] = "given"
        return every, config.eval_tokens
    tokens = min(NANOCHAT_EVAL_TOKENS, budget // evaluations(steps, every))
    reasons["eval_tokens"] = "at most a twentieth of the run's time"
    return every, max(tokens // row, 1) * row


def _save_every(config: TrainConfig, steps: int, reasons: dict[str, str]) -> int | None:
    if config.save_every is not None:
        reasons["save_every"] = "given"
        return config.save_every if config.save_every > 0 else None
    reasons["save_every"] = "a tenth of the run, and at the end"
    return max(FEWEST_STEPS_BETWEEN_SAVES, math.ceil(steps / 10))
