"""How a rank computes: threads, dtype, libraries, attention; measured, each with its reason."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from yoked.core.packages import install_line, this_distribution
from yoked.costmodel.model_shape import ModelShape
from yoked.errors import DeviceError
from yoked.ranks.exchange import read_list, read_number, read_table_of, read_text
from yoked.train import kernels
from yoked.train.comm.communicator import Communicator
from yoked.train.comm.control import run_on_all_ranks
from yoked.train.config import TrainConfig
from yoked.train.decisions.decision import Decision
from yoked.train.decisions.products import (
    ProductChoice,
    choose_dtype,
    choose_products,
    measure_dtypes,
    products_name,
    rank_dtypes,
)
from yoked.train.decisions.timing import thread_time_clock, time_interleaved
from yoked.train.device import DTYPES, device_name
from yoked.train.model.attention import (
    ATTENTION_PATHS,
    BLOCKED_MAX_TOKENS,
    CPU_PATHS,
    AttentionPath,
    attend,
)
from yoked.train.model.gpt import GPT, Block, Linear
from yoked.train.model.linear import MatmulBackend, MatmulBackends
from yoked.train.resolve import GPU_HEAD_DIM

# PyTorch's flash kernel is for these and later.
FLASH_CAPABILITY = (8, 0)
# Several times what bfloat16 rounds here; a window that is off by one is off by more.
FLASH_TOLERANCE = 0.1
RECORDED = "as recorded with the run"


@dataclass(frozen=True)
class ComputeChoices:
    """How this rank computes.

    tables_dtype: of the embedding tables, the same on all ranks. choices: everything that was
    chosen, for people and run.json. product_s_per_token: of the model's products, forward and
    backward; None: not measured.
    """

    dtype: str
    tables_dtype: str
    layers: MatmulBackends
    head: MatmulBackends
    attention: AttentionPath
    compile_blocks: bool
    threads: int
    choices: tuple[Decision, ...]
    product_s_per_token: float | None = None

    @property
    def libraries(self) -> tuple[MatmulBackend, MatmulBackend]:
        """That multiply forward in the layers, and in the head."""
        return self.layers.forward, self.head.forward


def choose_compute(
    config: TrainConfig,
    model_config: ModelShape,
    device: torch.device,
    comm: Communicator,
    threads: Decision,
    recorded: Sequence[dict[str, Any]],
) -> ComputeChoices:
    """Choose on this rank, by measuring unless an earlier attempt of the run did. Collective.

    The dtype of the embedding tables is one for all ranks, and that of the computation where no
    rank is much faster in another.
    """
    earlier = _earlier_compute(recorded, comm, device, config)
    measured = run_on_all_ranks(
        comm,
        lambda: (
            None
            if earlier is not None
            else measure_dtypes(model_config, device, dtype=config.dtype, matmul=config.matmul)
        ),
    )
    dtype, tables_dtype = _agree_dtype(comm, config.dtype, recorded, measured)

    def rest() -> ComputeChoices:
        if measured is not None:
            own = measured_compute(config, model_config, device, dtype, measured, threads)
            return dataclasses.replace(own, tables_dtype=tables_dtype)
        assert earlier is not None
        layers, head = MatmulBackends(**earlier["layers"]), MatmulBackends(**earlier["head"])
        return _computing(
            (layers, head, Decision("matmul", products_name(layers, head), RECORDED)),
            Decision("attention", earlier["attention"], RECORDED),
            dtype,
            threads,
            choose_compile(config.compile, device),
            tables_dtype,
        )

    took_s = None if earlier is None else earlier.get("product_s_per_token")
    if measured is not None:
        took_s = measured.best_s.get(dtype.value)
    return dataclasses.replace(run_on_all_ranks(comm, rest), product_s_per_token=took_s)


def _agree_dtype(
    comm: Communicator,
    asked: str,
    recorded: Sequence[dict[str, Any]],
    measured: ProductChoice | None,
) -> tuple[Decision, str]:
    """This rank's dtype, and that of all ranks' tables. Collective.

    measured: None: this rank computes as it did in an earlier attempt of the run.
    """
    kept = str(recorded[comm.rank]["dtype"]) if measured is None else ""
    told = comm.all_gather_json([socket.gethostname(), kept], read_list(read_text))
    best_s = comm.all_gather_json(
        {} if measured is None else measured.best_s, read_table_of(read_number)
    )
    if recorded:
        common = Decision("dtype", str(recorded[0]["tables_dtype"]), RECORDED)
    else:
        common = choose_dtype(best_s, asked)
    if measured is None:
        return Decision("dtype", kept, RECORDED), common.value
    if asked != "auto":
        return common, common.value
    # Those that keep theirs do not count.
    open_ranks = [rank for rank, (_, kept) in enumerate(told) if not kept]
    names, times_s = [told[rank][0] for rank in open_ranks], [best_s[rank] for rank in open_ranks]
    return rank_dtypes(names, times_s, common)[open_ranks.index(comm.rank)], common.value


def measured_compute(
    config: TrainConfig,
    model_config: ModelShape,
    device: torch.device,
    dtype: Decision,
    measured: ProductChoice,
    threads: Decision,
) -> ComputeChoices:
    """How this rank computes in that dtype, by what its products took."""
    # First: it says whether the passes that attention is timed with are compiled.
    compiled = choose_compile(config.compile, device)
    times = measured.times.get(dtype.value)
    if times is None:
        # Too slow here to be looked at, and yet the best for the slowest of all ranks.
        times = measure_dtypes(model_config, device, dtype=dtype.value, matmul=config.matmul).times[
            dtype.value
        ]
    # Which library multiplies is a question on CPUs alone: oneDNN's products take no GPU's tensors.
    asked = config.matmul if device.type == "cpu" else "auto"
    layers, head, matmul = choose_products(times, asked)
    if device.type == "cuda" and dtype.value == "float32":
        reason = "TF32, as nanochat has it: 10 bits of mantissa, where a CPU's float32 has 23"
        matmul = dataclasses.replace(matmul, reason=reason)
    return _computing(
        (layers, head, matmul),
        choose_attention(model_config, device, DTYPES[dtype.value], config.attention),
        dtype,
        threads,
        compiled,
    )


def choose_attention(
    config: ModelShape,
    device: torch.device,
    dtype: torch.dtype,
    asked: AttentionPath | Literal["auto"] = "auto",
) -> Decision:
    """The faster attention path, forward and backward, for one row of the model's length."""
    if asked != "auto":
        return Decision("attention", asked, "asked for with --attention")
    if device.type == "cuda" and config.has_windows:
        lacking = why_no_flash(device, dtype, config.head_dim, (config.n_head, config.n_kv_head))
        if lacking is None:
            return Decision("attention", "flash", "PyTorch's flash kernel, which skips by windows")
        return Decision("attention", "sdpa", f"windows by a mask, over all scores: {lacking}")
    if device.type != "cpu":
        return Decision("attention", "sdpa", f"PyTorch's kernels for {device.type}")
    tokens = config.sequence_len
    if tokens > BLOCKED_MAX_TOKENS:
        reason = f"the blocked path keeps T^2/2 numbers a head, too many for {tokens} tokens"
        return Decision("attention", "sdpa", reason)
    shape = (1, tokens, config.n_head, config.head_dim)
    q, k, v = (torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3))

    def run(path: AttentionPath) -> None:
        y = attend(q, k, v, config.window(0), path)
        # A sum, because torch imports sympy for a gradient that is given: 0.7 s of a dry run.
        torch.autograd.grad((y * y.detach()).sum(), (q, k, v))

    runs = {path: functools.partial(run, path) for path in CPU_PATHS}
    times = time_interleaved(runs, device, thread_time_clock(device))
    best = min(times, key=lambda path: times[path])
    other = max(times, key=lambda path: times[path])
    reason = f"{times[other] / times[best]:.2f}x {other} here"
    measured = {f"{path}_s_per_row": took for path, took in times.items()}
    return Decision("attention", best, reason, measured)


def why_no_windows(config: TrainConfig, device: torch.device) -> str | None:
    """Why attention windows would save nothing on a GPU; None: they do, or nothing hangs on it."""
    if device.type != "cuda" or config.window_pattern is not None:
        return None
    if config.attention != "auto":
        return f"--attention {config.attention} has none"
    dtype = DTYPES["float32" if config.dtype == "float32" else "bfloat16"]
    return why_no_flash(device, dtype, config.head_dim or GPU_HEAD_DIM)


def why_no_flash(
    device: torch.device, dtype: torch.dtype, head_dim: int, heads: tuple[int, int] = (1, 1)
) -> str | None:
    """Why windows cannot be left to PyTorch's flash kernel; None: here it gave what a mask gives.

    heads: of queries, and of keys.
    """
    if dtype != torch.bfloat16:
        return "PyTorch's flash kernel is for bfloat16"
    capability = torch.cuda.get_device_capability(device)
    if capability < FLASH_CAPABILITY:
        least, found = (".".join(map(str, each)) for each in (FLASH_CAPABILITY, capability))
        return f"PyTorch's flash kernel needs compute capability {least}; this GPU has {found}"
    try:
        alike = _flash_is_as_a_mask(device, dtype, head_dim, heads)
    except (ImportError, TypeError, RuntimeError) as problem:
        # Not there, without windows, or not for this GPU: versions and builds of torch differ.
        return f"PyTorch's flash kernel failed here: {_first_line(problem)}"
    return None if alike else "PyTorch's flash kernel computed wrongly here"


def _flash_is_as_a_mask(
    device: torch.device, dtype: torch.dtype, head_dim: int, heads: tuple[int, int]
) -> bool:
    """Whether both give about the same on two short rows, forward and backward."""
    q, k, v = (
        torch.randn(2, 64, count, head_dim, device=device).to(dtype).requires_grad_()
        for count in (heads[0], heads[1], heads[1])
    )

    def by(path: AttentionPath) -> list[Tensor]:
        y = attend(q, k, v, 4, path)
        return [y, *torch.autograd.grad(y, (q, k, v), torch.ones_like(y))]

    return all(
        torch.allclose(one, other, rtol=FLASH_TOLERANCE, atol=FLASH_TOLERANCE)
        for one, other in zip(by("flash"), by("sdpa"), strict=True)
    )


def choose_compile(asked: str, device: torch.device) -> Decision:
    """Fused passes on the CPU, torch.compile of a block on CUDA; raises if asked for in vain."""
    if asked == "off":
        kernels.switch_off("switched off with --compile off")
        return Decision("compile", "off", "asked for with --compile off")
    if device.type == "cuda":
        return _choose_inductor(asked, device)
    if device.type == "mps":
        if asked == "on":
            raise DeviceError("--compile on: nothing is compiled for Metal", fix="--compile auto")
        return Decision("compile", "off", "eager on Metal")
    state = kernels.kernels()
    if state.available:
        return Decision("compile", "fused passes", state.reason)
    if asked == "on":
        raise DeviceError(
            f"--compile on: {state.reason}",
            fix=f"{install_line('gcc', this_distribution())}, or --compile auto",
        )
    return Decision("compile", "off", f"eager: {state.reason}")


def _choose_inductor(asked: str, device: torch.device) -> Decision:
    """torch.compile, once it has compiled something here: Triton needs more than to be installed,
    such as a C compiler and Python's headers.
    """
    if importlib.util.find_spec("triton") is None:
        reason, fix = "triton is not installed", "pip install triton"
    elif problem := why_not_compiled(device):
        headers = "with the headers of this Python (python3-dev)"
        reason = problem
        fix = f"{install_line('gcc', this_distribution())}, {headers}, or --compile auto"
    else:
        return Decision("compile", "blocks", "torch.compile of one block, shared by all layers")
    if asked == "on":
        raise DeviceError(f"--compile on: {reason}", fix=fix)
    return Decision("compile", "off", f"eager: {reason}")


def why_not_compiled(device: torch.device) -> str | None:
    """Why torch.compile cannot be relied upon on a device; None: it compiled a few lines there."""
    x = torch.linspace(-1, 1, 64, device=device)
    try:
        compiled = torch.compile(_a_few_lines)(x)
    except Exception as problem:  # noqa: BLE001 - Dynamo, Inductor, Triton and gcc have their own
        return f"torch.compile failed here: {_first_line(problem)}"
    return None if torch.allclose(compiled, _a_few_lines(x)) else "torch.compile computed wrongly"


def _a_few_lines(x: Tensor) -> Tensor:
    y = torch.tanh(x) * 2
    return y + y.square().mean()


def _first_line(problem: Exception) -> str:
    """What an error says at first, for one line of text."""
    return str(problem).strip().partition("\n")[0] or type(problem).__name__


def configure_model(
    model: GPT,
    layers: MatmulBackends,
    attention: AttentionPath,
    *,
    compile_blocks: bool,
    checkpoint_blocks: bool = False,
) -> None:
    """Set what was chosen, or asked for, on the model's layers."""
    model.checkpoints_blocks = checkpoint_blocks
    for block in model.blocks:
        configure_block(block, layers, attention)
    if compile_blocks:
        model.compile_blocks()


def configure_block(block: Block, layers: MatmulBackends, attention: AttentionPath) -> None:
    """Set what was chosen on one layer."""
    block.attn.path = attention
    for module in block.modules():
        # The gate is too small for the choice of a library to matter: it was not measured.
        if isinstance(module, Linear) and module is not block.attn.ve_gate:
            module.backends = layers


def _computing(
    backends: tuple[MatmulBackends, MatmulBackends, Decision],
    attention: Decision,
    dtype: Decision,
    threads: Decision,
    compiled: Decision,
    tables_dtype: str | None = None,
) -> ComputeChoices:
    return ComputeChoices(
        dtype=dtype.value,
        tables_dtype=tables_dtype or dtype.value,
        layers=backends[0],
        head=backends[1],
        attention=next((path for path in ATTENTION_PATHS if path == attention.value), "sdpa"),
        compile_blocks=compiled.value == "blocks",
        threads=int(threads.value),
        choices=(dtype, backends[2], threads, attention, compiled),
    )


def _earlier_compute(
    recorded: Sequence[dict[str, Any]],
    comm: Communicator,
    device: torch.device,
    config: TrainConfig,
) -> dict[str, Any] | None:
    """What this rank chose in an earlier attempt, where host, device and PyTorch are the same.

    config: what is asked for now; another wish than then means to choose anew.

    Taken over, a resumed run computes the very bits that it would have without the stop, with
    exact sync.
    """
    if len(recorded) != comm.world_size:
        return None
    entry = recorded[comm.rank]
    same = all(entry.get(key) == value for key, value in device_identity(device).items())
    compute: dict[str, Any] = entry.get("compute", {})
    wishes = compute.get("asked_matmul"), compute.get("asked_attention", "auto")
    as_asked = wishes == (config.matmul, config.attention)
    return compute if same and as_asked and config.dtype in ("auto", entry["dtype"]) else None


def device_identity(device: torch.device) -> dict[str, Any]:
    """What must be the same for an earlier choice to hold: host, device, PyTorch."""
    return {
        "name": socket.gethostname(),
        "device": str(device),
        "device_name": device_name(device),
        "torch": torch.__version__,
    }
