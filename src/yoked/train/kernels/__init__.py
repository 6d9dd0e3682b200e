"""Fused elementwise passes in C, compiled at first use; without a compiler, plain PyTorch.

On a CPU an elementwise chain over tensors larger than the cache reads and writes memory once a
step of the chain. `elementwise.c` and `codecs.c` have the chains of a training step as single
passes. A C compiler builds them in a second or two (torch.compile takes 17 s for one block). The
library is kept under the cache folder, named by the hash of its sources, the compiler and the
CPU's features, so ranks and hosts of one CPU type share it.

Shape legend: R rows, W width of a row, B batch rows, T tokens a row, H heads, D head_dim; n
numbers of a flat tensor.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from yoked.agent.processors import cpu_type
from yoked.core.fs import locked
from yoked.paths import cache_root, private_folder

SOURCE = Path(__file__).with_name("elementwise.c")
CODECS_SOURCE = SOURCE.with_name("codecs.c")
FLAGS = (
    "-O3",
    "-shared",
    "-fPIC",
    "-fopenmp-simd",  # OpenMP's simd pragmas alone; the threads are `_pool`'s
    "-fno-math-errno",  # a root is one instruction: nobody reads errno (gcc(1))
    "-fno-trapping-math",
    # The optimizer's bits must not depend on whether this CPU has fused multiply-add.
    "-ffp-contract=off",
)
COMPILE_TIMEOUT_S = 120


@dataclass(frozen=True)
class Kernels:
    """Where the fused passes come from: a library, or None and the reason why not."""

    library: ctypes.CDLL | None
    reason: str

    @property
    def available(self) -> bool:
        """Whether there is a library."""
        return self.library is not None


@dataclass
class _Switch:
    off_because: str | None = None


_switch = _Switch()


def switch_off(reason: str) -> None:
    """Use plain PyTorch from now on (`--compile off`, and tests that compare the two)."""
    _switch.off_because = reason


def switch_on() -> None:
    """Undo `switch_off`."""
    _switch.off_because = None


def kernels() -> Kernels:
    """The compiled passes, or the reason for their absence."""
    return _load() if _switch.off_because is None else Kernels(None, _switch.off_because)


@functools.cache
def _load() -> Kernels:
    candidates = (os.environ.get("CC", ""), "cc", "gcc", "clang")
    # $CC may have arguments after the program.
    found = (command for command in candidates if shutil.which((command.split() or [""])[0]))
    compiler = next(found, None)
    if compiler is None:
        return Kernels(None, "no C compiler (cc, gcc or clang) on this host")
    try:
        path, fresh = _build(compiler)
        try:
            library = _declared(ctypes.CDLL(str(path)))
        except OSError:
            if fresh:
                raise
            # A loss of power can leave an empty file under its name.
            path.unlink(missing_ok=True)
            path, fresh = _build(compiler)
            library = _declared(ctypes.CDLL(str(path)))
    except (OSError, subprocess.SubprocessError) as error:
        return Kernels(None, f"{compiler} could not build them: {_last_line(error)}")
    return Kernels(library, f"{'compiled now' if fresh else 'compiled before'} with {compiler}")


def _last_line(error: Exception) -> str:
    output = str(getattr(error, "stderr", None) or error).strip()
    return output.rpartition("\n")[2] or type(error).__name__


def _build(compiler: str) -> tuple[Path, bool]:
    """Compile unless an equal artefact is there; returns its path and whether it is new."""
    flags = [*FLAGS, *_architecture_flags()]
    version = subprocess.run(
        [*compiler.split(), "--version"], capture_output=True, text=True, check=True, timeout=20
    ).stdout
    sources = (SOURCE, CODECS_SOURCE)
    texts = [source.read_text() for source in sources]
    identity = "\0".join([*texts, version, cpu_type(), *flags])
    folder = cache_root() / "kernels" / hashlib.sha256(identity.encode()).hexdigest()[:16]
    target = folder / "elementwise.so"
    if target.exists():
        return target, False
    private_folder(folder)
    with locked(folder / ".lock"):  # ranks of a host start together
        if target.exists():  # another rank has built it meanwhile
            return target, False
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            built = Path(scratch) / target.name
            subprocess.run(
                [*compiler.split(), *flags, "-o", str(built), *map(str, sources), "-lm"],
                capture_output=True,
                text=True,
                check=True,
                timeout=COMPILE_TIMEOUT_S,
            )
            built.replace(target)  # one rename: nobody loads half a library
    return target, True


def _architecture_flags() -> list[str]:
    # A host held to fewer CPU features (as in tests of older CPUs) holds the passes to them too.
    if platform.machine() in ("x86_64", "AMD64"):
        held = os.environ.get("ATEN_CPU_CAPABILITY", "")
        if held == "avx2":
            return ["-march=haswell"]
        if held == "default":
            return []
        if "avx512f" in cpu_type():
            return ["-march=native", "-mprefer-vector-width=512"]  # gcc prefers 256 on many CPUs
    return ["-mcpu=native" if platform.machine() == "arm64" else "-march=native"]


# C functions by name: number of tensors, and types of the numbers (i int64, f float). Each is
#     void yoked_NAME(tensor addresses..., int64 start, int64 stop, numbers...)
# and works on rows [start, stop) of its tensors; {} is the dtype, or the codec.
_FUNCTIONS = {
    "softcap_block_{}": (5, "iii"),
    "adamw_{}_rows": (6, "i"),
    "adamw_{}_idle_rows": (7, "iii"),
    "relu_square_{}": (2, ""),
    "relu_square_backward_{}": (3, ""),
    "rms_norm_{}": (2, "if"),
    "rms_norm_backward_{}": (3, "if"),
    "rotate_norm_{}": (5, "ff"),
    "rotate_norm_backward_{}": (6, "ff"),
    "mix_{}": (3, "ff"),
    "mix_backward_{}": (6, "iff"),
    "encode_{}": (3, "i"),
    "decode_{}": (2, "ii"),
}
_SUFFIX = {torch.float32: "f32", torch.bfloat16: "bf16"}
CODECS = ("fp32", "bf16", "int8", "int4")
_TAKE_STRIDES = ("rotate_norm_{}", "rotate_norm_backward_{}")
_TYPES = {"i": ctypes.c_int64, "f": ctypes.c_float}
# Numbers that are worth a thread: for fewer, waking it costs more than it saves.
GRAIN = 65_536


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """Set the argument types of the library's functions; ctypes then converts and checks."""
    for name, (tensors, numbers) in _FUNCTIONS.items():
        of_codecs = name in ("encode_{}", "decode_{}")
        for variant in CODECS if of_codecs else _SUFFIX.values():
            function = getattr(library, "yoked_" + name.format(variant))
            span = [ctypes.c_int64] * 2
            types = [_TYPES[letter] for letter in numbers]
            function.argtypes = [*[ctypes.c_void_p] * tensors, *span, *types]
            function.restype = None
    return library


def usable(*tensors: Tensor) -> bool:
    """Whether the compiled passes can work on these tensors."""
    # The device first: off the CPU torch.compile traces this, and what follows would break its
    # graph.
    return (
        all(t.device.type == "cpu" and t.is_contiguous() and t.dtype in _SUFFIX for t in tensors)
        and kernels().available
    )


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="yoked-kernel")


def _run(
    name: str, tensors: Sequence[Tensor | None], rows: int, *numbers: float, grain: int
) -> None:
    """Call a C function over rows [0, R), on as many threads as PyTorch may use.

    name: as in _FUNCTIONS, {} for the first tensor's dtype. grain: rows that are worth a thread.
    """
    library, first = kernels().library, tensors[0]
    assert library is not None, "ask usable() first"
    assert first is not None, name
    function = getattr(library, "yoked_" + name.format(_SUFFIX.get(first.dtype)))
    # C sees an address alone; the rotations are told strides.
    fits = all(t is None or t.is_contiguous() for t in tensors) or name in _TAKE_STRIDES
    assert fits, f"{name}: tensors are not contiguous"
    addresses = [None if t is None else t.data_ptr() for t in tensors]

    def call(start: int, stop: int) -> None:
        function(*addresses, start, stop, *numbers)

    threads = min(torch.get_num_threads(), max(1, rows // max(grain, 1)))
    edges = [rows * i // threads for i in range(threads + 1)]
    # ctypes releases the interpreter's lock during a call, so threads do run side by side.
    futures = [_pool(threads).submit(call, a, b) for a, b in pairwise(edges[1:])]
    call(edges[0], edges[1])  # the first part is this thread's
    for future in futures:
        future.result()


def softcap_block(
    logits: Tensor,
    gradient: Tensor | None,
    row_sum: Tensor,
    target_logit: Tensor,
    targets: Tensor,
    first_column: int,
    valid_columns: int,
) -> None:
    """One block of raw logits (R, W) towards softcapped cross-entropy.

    Adds sum_c exp(15 tanh(x_c/15)) to row_sum (R,) fp32; stores the raw logit of targets (R,)
    int64 that lie in [first_column, first_column + valid_columns) in target_logit (R,) fp32;
    writes exp(15t)(1 - t^2) into gradient (R, W), which may be the logits themselves.
    """
    rows, width = logits.shape
    tensors = (logits, gradient, row_sum, target_logit, targets)
    # grain: an exponential costs more than what the other passes do with a number.
    _run("softcap_block_{}", tensors, rows, width, first_column, valid_columns, grain=16)


def adamw_rows(
    parameter: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    slot: Tensor | None,
    coefficients: Tensor,
) -> None:
    """AdamW in place on a (rows, width) parameter.

    gradient: fp32, (rows, width), or (used, width) with slot (rows,) int32 giving each row's
    place in it, -1 for a gradient of zero.
    coefficients: fp32 (6,): 1 - lr*decay, 1 - beta1, 1 - beta2, 1 - beta2^t, eps,
    lr / (1 - beta1^t).
    """
    rows, width = parameter.shape
    tensors = (parameter, gradient, first, second, slot, coefficients)
    _run("adamw_{}_rows", tensors, rows, width, grain=GRAIN // width)


def adamw_idle_rows(
    parameter: Tensor,
    gradient: Tensor | None,
    first: Tensor,
    second: Tensor,
    rows: Tensor,
    behind: Tensor,
    ring: Tensor,
    newest: int,
) -> None:
    """Some steps of AdamW at once, in place, on rows of a (V, C) parameter; moments are like it.

    rows: (U,) int64, each once. behind: (V,) int32, steps that a row is behind, of which the
    newest has its gradient, the others none; gradient: (U, C) fp32; None: that one has none either.
    ring: (L, 6) fp32, the `coefficients` of the last L steps; newest: the place of the last.
    """
    width, length = parameter.size(1), len(ring)
    tensors = (parameter, gradient, first, second, rows, behind, ring)
    # grain: a row may have many steps to take.
    numbers = (width, newest, length)
    _run("adamw_{}_idle_rows", tensors, len(rows), *numbers, grain=GRAIN // width // 8)


def relu_square(x: Tensor) -> Tensor:
    """relu(x)^2; x contiguous."""
    y = torch.empty_like(x)
    _run("relu_square_{}", (x, y), x.numel(), grain=GRAIN)
    return y


def relu_square_backward(x: Tensor, dy: Tensor) -> Tensor:
    """2 relu(x) dy; x and dy contiguous and of one dtype."""
    dx = torch.empty_like(x)
    _run("relu_square_backward_{}", (x, dy, dx), x.numel(), grain=GRAIN)
    return dx


def rms_norm(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) over the last dimension; x contiguous."""
    y, width = torch.empty_like(x), x.size(-1)
    rows = x.numel() // width
    _run("rms_norm_{}", (x, y), rows, width, eps, grain=GRAIN // width)
    return y


def rms_norm_backward(x: Tensor, dy: Tensor, eps: float) -> Tensor:
    """The gradient of rms_norm's input; x and dy contiguous and of one dtype."""
    dx, width = torch.empty_like(x), x.size(-1)
    rows = x.numel() // width
    _run("rms_norm_backward_{}", (x, dy, dx), rows, width, eps, grain=GRAIN // width)
    return dx


def rotate_norm(x: Tensor, cos: Tensor, sin: Tensor, eps: float, scale: float) -> Tensor:
    """Rotary embedding, then RMS norm, times scale, of (B, T, H, D) queries or keys.

    x: heads contiguous, tokens at one distance through the batch; cos, sin: (T, 1, D/2).
    Returns (B, T, H, D) with the memory of a (B, H, T, D) tensor, as attention reads it.
    """
    B, T, H, D = x.shape
    y = torch.empty(B, H, T, D, dtype=x.dtype).transpose(1, 2)
    tensors = (x, cos, sin, y, _rotation_shape(x, y))
    _run("rotate_norm_{}", tensors, B * T, eps, scale, grain=GRAIN // (H * D))
    return y


def rotate_norm_backward(
    x: Tensor, cos: Tensor, sin: Tensor, dy: Tensor, eps: float, scale: float
) -> Tensor:
    """The gradient of rotate_norm's input, contiguous; dy (B, T, H, D) with contiguous D."""
    B, T, H, D = x.shape
    dx = torch.empty(x.shape, dtype=x.dtype)
    tensors = (x, cos, sin, dy, dx, _rotation_shape(x, dy))
    _run("rotate_norm_backward_{}", tensors, B * T, eps, scale, grain=GRAIN // (H * D))
    return dx


def _rotation_shape(x: Tensor, y: Tensor) -> Tensor:
    """(7,) int64: T, H, D/2, x's stride of a token, y's of a batch row, a token and a head."""
    _, T, H, D = x.shape
    return torch.tensor([T, H, D // 2, x.stride(1), *y.stride()[:3]], dtype=torch.int64)


def mix(x: Tensor, z: Tensor, a: float, b: float) -> Tensor:
    """a x + b z; x and z contiguous, of one shape and dtype."""
    y = torch.empty_like(x)
    _run("mix_{}", (x, z, y), x.numel(), a, b, grain=GRAIN)
    return y


def mix_backward(
    x: Tensor, z: Tensor, dy: Tensor, a: float, b: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of mix: a dy, b dy, and (2,) fp64 those of a and b."""
    dx, dz, width = torch.empty_like(x), torch.empty_like(z), x.size(-1)
    # One pair of sums a row, so that the totals do not depend on the number of threads.
    sums = torch.empty(x.numel() // width, 2)
    tensors = (x, z, dy, dx, dz, sums)
    _run("mix_backward_{}", tensors, len(sums), width, a, b, grain=GRAIN // width)
    return dx, dz, sums.double().sum(dim=0)


def encode(codec: str, block: int, values: Tensor, out: Tensor, lost: Tensor | None) -> None:
    """One of `yoked.train.sync.codecs`, compiled: values (+ lost) to bytes; lost is updated.

    values, lost: (n,) fp32; out: uint8, as many as the codec says. block: numbers of one scale.
    All contiguous and in host memory.
    """
    count, tensors = values.numel(), (values, lost, out)
    _run(f"encode_{codec}", tensors, -(-count // block), count, grain=GRAIN // block)


def decode(codec: str, block: int, encoded: Tensor, out: Tensor, add: bool) -> None:
    """The way back: bytes to out (n,) fp32, overwritten or added to."""
    count, tensors = out.numel(), (encoded, out)
    _run(f"decode_{codec}", tensors, -(-count // block), count, add, grain=GRAIN // block)
