"""Fused elementwise passes in C, compiled at first use; without a compiler, plain PyTorch.

Where the CPU trains, an elementwise chain over tensors larger than the cache costs as many
trips to memory as it has steps. A handful of such chains is written as single passes in
`elementwise.c` and `codecs.c`, which a C compiler turns into a shared library in a second or
two (against 17 s for one block with torch.compile). The library is kept under the cache
folder, addressed by the hash of its sources, the compiler and the CPU's features, so ranks and
hosts of one CPU type share it. Matrix products stay with the libraries that PyTorch brings.
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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from filelock import FileLock
from torch import Tensor

from yoked.paths import cache_root, private_folder

SOURCE = Path(__file__).with_name("elementwise.c")
CODECS_SOURCE = SOURCE.with_name("codecs.c")
FLAGS = (
    "-O3",
    "-shared",
    "-fPIC",
    "-fopenmp-simd",
    "-fno-math-errno",
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
    compiler = next((command for command in candidates if _found(command)), None)
    if compiler is None:
        return Kernels(None, "no C compiler (cc, gcc or clang) on this host")
    try:
        path, fresh = _build(compiler)
        library = ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError) as error:
        return Kernels(None, f"{compiler} could not build them: {_last_line(error)}")
    return Kernels(library, f"{'compiled now' if fresh else 'compiled before'} with {compiler}")


def _found(command: str) -> bool:
    words = command.split()
    return bool(words) and shutil.which(words[0]) is not None


def _last_line(error: Exception) -> str:
    output = str(getattr(error, "stderr", None) or error).strip()
    return output.rpartition("\n")[2] or type(error).__name__


def cpu_identity() -> str:
    """What a compiled artefact depends on: architecture and CPU features, as one string."""
    if platform.system() == "Linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return platform.machine() + " " + line.partition(":")[2].strip()
    return f"{platform.machine()} {platform.processor()} {platform.platform()}"


def _build(compiler: str) -> tuple[Path, bool]:
    """Compile unless an equal artefact is there; returns its path and whether it is new."""
    flags = [*FLAGS, *_architecture_flags()]
    version = subprocess.run(
        [*compiler.split(), "--version"], capture_output=True, text=True, check=True, timeout=20
    ).stdout
    sources = (SOURCE, CODECS_SOURCE)
    texts = [source.read_text() for source in sources]
    identity = "\0".join([*texts, version, cpu_identity(), *flags])
    folder = cache_root() / "kernels" / hashlib.sha256(identity.encode()).hexdigest()[:16]
    target = folder / "elementwise.so"
    if target.exists():
        return target, False
    private_folder(folder)
    with FileLock(folder / ".lock"):
        if target.exists():
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
            built.replace(target)
    return target, True


def _architecture_flags() -> list[str]:
    # A host held to fewer CPU features (as in tests of older CPUs) holds the passes to them too.
    if platform.machine() in ("x86_64", "AMD64"):
        held = os.environ.get("ATEN_CPU_CAPABILITY", "")
        if held == "avx2":
            return ["-march=haswell"]
        if held == "default":
            return []
        if "avx512f" in cpu_identity():
            return ["-march=native", "-mprefer-vector-width=512"]
    return ["-mcpu=native" if platform.machine() == "arm64" else "-march=native"]


_SUFFIX = {torch.float32: "f32", torch.bfloat16: "bf16"}


def usable(*tensors: Tensor) -> bool:
    """Whether the compiled passes can work on these tensors."""
    return kernels().available and all(
        t.device.type == "cpu" and t.is_contiguous() and t.dtype in _SUFFIX for t in tensors
    )


def _function(name: str, dtype: torch.dtype) -> ctypes._NamedFuncPointer:
    library = kernels().library
    assert library is not None, "call usable() first"
    return library[name.format(_SUFFIX[dtype])]


def _pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="yoked-kernel")


def _parallel(rows: int, run: Callable[[int, int], None], grain: int) -> None:
    """Call run(start, stop) over [0, rows), on as many threads as PyTorch may use."""
    threads = min(torch.get_num_threads(), max(1, rows // max(grain, 1)))
    if threads <= 1:
        run(0, rows)
        return
    edges = [rows * i // threads for i in range(threads + 1)]
    # ctypes releases the interpreter's lock during the call, so threads do run side by side.
    futures = [_pool(threads).submit(run, a, b) for a, b in pairwise(edges[1:])]
    run(edges[0], edges[1])
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
    function = _function("yoked_softcap_block_{}", logits.dtype)

    def run(start: int, stop: int) -> None:
        function(
            _pointer(logits[start:]),
            _pointer(None if gradient is None else gradient[start:]),
            _pointer(row_sum[start:]),
            _pointer(target_logit[start:]),
            _pointer(targets[start:]),
            ctypes.c_int64(first_column),
            ctypes.c_int64(stop - start),
            ctypes.c_int64(width),
            ctypes.c_int64(valid_columns),
        )

    _parallel(rows, run, grain=16)


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
    place in it, -1 for a gradient of zero, -2 for a row to leave alone.
    coefficients: fp32 (6,): 1 - lr*decay, 1 - beta1, 1 - beta2, 1 - beta2^t, eps,
    lr / (1 - beta1^t).
    """
    rows, width = parameter.shape
    function = _function("yoked_adamw_{}_rows", parameter.dtype)

    def run(start: int, stop: int) -> None:
        function(
            _pointer(parameter),
            _pointer(gradient),
            _pointer(first),
            _pointer(second),
            _pointer(slot),
            ctypes.c_int64(start),
            ctypes.c_int64(stop),
            ctypes.c_int64(width),
            _pointer(coefficients),
        )

    _parallel(rows, run, grain=65_536 // width)


def relu_square(x: Tensor) -> Tensor:
    """relu(x)^2 in one pass; x contiguous."""
    y = torch.empty_like(x)
    function = _function("yoked_relu_square_{}", x.dtype)
    flat_x, flat_y = x.view(-1), y.view(-1)

    def run(start: int, stop: int) -> None:
        function(_pointer(flat_x[start:]), _pointer(flat_y[start:]), ctypes.c_int64(stop - start))

    _parallel(x.numel(), run, grain=65_536)
    return y


def relu_square_backward(x: Tensor, dy: Tensor) -> Tensor:
    """2 relu(x) dy in one pass; x and dy contiguous and of one dtype."""
    dx = torch.empty_like(x)
    function = _function("yoked_relu_square_backward_{}", x.dtype)
    flat_x, flat_dy, flat_dx = x.view(-1), dy.view(-1), dx.view(-1)

    def run(start: int, stop: int) -> None:
        function(
            _pointer(flat_x[start:]),
            _pointer(flat_dy[start:]),
            _pointer(flat_dx[start:]),
            ctypes.c_int64(stop - start),
        )

    _parallel(x.numel(), run, grain=65_536)
    return dx


def rms_norm(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) over the last dimension; x contiguous."""
    y, width = torch.empty_like(x), x.size(-1)
    function = _function("yoked_rms_norm_{}", x.dtype)
    rows_x, rows_y = x.view(-1, width), y.view(-1, width)

    def run(start: int, stop: int) -> None:
        function(
            _pointer(rows_x[start:]),
            _pointer(rows_y[start:]),
            ctypes.c_int64(stop - start),
            ctypes.c_int64(width),
            ctypes.c_float(eps),
        )

    _parallel(len(rows_x), run, grain=65_536 // width)
    return y


def rms_norm_backward(x: Tensor, dy: Tensor, eps: float) -> Tensor:
    """The gradient of rms_norm's input; x and dy contiguous and of one dtype."""
    dx, width = torch.empty_like(x), x.size(-1)
    function = _function("yoked_rms_norm_backward_{}", x.dtype)
    rows_x, rows_dy, rows_dx = (t.view(-1, width) for t in (x, dy, dx))

    def run(start: int, stop: int) -> None:
        function(
            _pointer(rows_x[start:]),
            _pointer(rows_dy[start:]),
            _pointer(rows_dx[start:]),
            ctypes.c_int64(stop - start),
            ctypes.c_int64(width),
            ctypes.c_float(eps),
        )

    _parallel(len(rows_x), run, grain=65_536 // width)
    return dx


def _rotation_shape(x: Tensor, y: Tensor) -> ctypes.Array[ctypes.c_int64]:
    _, tokens, heads, head_dim = x.shape
    sizes = (tokens, heads, head_dim // 2, x.stride(1), y.stride(0), y.stride(1), y.stride(2))
    return (ctypes.c_int64 * len(sizes))(*sizes)


def rotate_norm(x: Tensor, cos: Tensor, sin: Tensor, eps: float, scale: float) -> Tensor:
    """Rotary embedding, then RMS norm, times scale, of (B, T, H, D) queries or keys.

    x: heads contiguous, tokens at one distance through the batch; cos, sin: (T, 1, D/2).
    Returns (B, T, H, D) with the memory of a (B, H, T, D) tensor, as attention reads it.
    """
    B, T, H, D = x.shape
    y = torch.empty(B, H, T, D, dtype=x.dtype).transpose(1, 2)
    function = _function("yoked_rotate_norm_{}", x.dtype)
    shape = _rotation_shape(x, y)

    def run(start: int, stop: int) -> None:
        function(
            _pointer(x),
            _pointer(cos),
            _pointer(sin),
            _pointer(y),
            shape,
            ctypes.c_int64(start),
            ctypes.c_int64(stop),
            ctypes.c_float(eps),
            ctypes.c_float(scale),
        )

    _parallel(B * T, run, grain=65_536 // (H * D))
    return y


def rotate_norm_backward(
    x: Tensor, cos: Tensor, sin: Tensor, dy: Tensor, eps: float, scale: float
) -> Tensor:
    """The gradient of rotate_norm's input, contiguous; dy (B, T, H, D) with contiguous D."""
    dx = torch.empty(x.shape, dtype=x.dtype)
    function = _function("yoked_rotate_norm_backward_{}", x.dtype)
    shape = _rotation_shape(x, dy)

    def run(start: int, stop: int) -> None:
        function(
            _pointer(x),
            _pointer(cos),
            _pointer(sin),
            _pointer(dy),
            _pointer(dx),
            shape,
            ctypes.c_int64(start),
            ctypes.c_int64(stop),
            ctypes.c_float(eps),
            ctypes.c_float(scale),
        )

    _parallel(x.size(0) * x.size(1), run, grain=65_536 // (x.size(2) * x.size(3)))
    return dx


def mix(x: Tensor, z: Tensor, a: float, b: float) -> Tensor:
    """a x + b z in one pass; x and z contiguous, of one shape and dtype."""
    y = torch.empty_like(x)
    function = _function("yoked_mix_{}", x.dtype)
    flat_x, flat_z, flat_y = x.view(-1), z.view(-1), y.view(-1)

    def run(start: int, stop: int) -> None:
        function(
            _pointer(flat_x[start:]),
            _pointer(flat_z[start:]),
            _pointer(flat_y[start:]),
            ctypes.c_int64(stop - start),
            ctypes.c_float(a),
            ctypes.c_float(b),
        )

    _parallel(x.numel(), run, grain=65_536)
    return y


def mix_backward(
    x: Tensor, z: Tensor, dy: Tensor, a: float, b: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of mix: a dy, b dy, and (2,) fp64 those of a and b."""
    dx, dz, width = torch.empty_like(x), torch.empty_like(z), x.size(-1)
    rows = [t.view(-1, width) for t in (x, z, dy, dx, dz)]
    # One pair of sums a row, so that the totals do not depend on the number of threads.
    sums = torch.empty(len(rows[0]), 2)
    function = _function("yoked_mix_backward_{}", x.dtype)

    def run(start: int, stop: int) -> None:
        function(
            *(_pointer(t[start:]) for t in (*rows, sums)),
            ctypes.c_int64(stop - start),
            ctypes.c_int64(width),
            ctypes.c_float(a),
            ctypes.c_float(b),
        )

    _parallel(len(sums), run, grain=65_536 // width)
    return dx, dz, sums.double().sum(dim=0)


def encode(codec: str, block: int, values: Tensor, out: Tensor, lost: Tensor | None) -> None:
    """One of `yoked.train.sync.codecs`, compiled: values (+ lost) to bytes; lost is updated.

    values, lost: (n,) fp32; out: uint8, as many as the codec says. block: numbers of one scale.
    All contiguous and in host memory.
    """
    library = kernels().library
    assert library is not None, "ask whether kernels() are available first"
    function = library[f"yoked_encode_{codec}"]
    count = values.numel()

    def run(start: int, stop: int) -> None:
        function(
            _pointer(values),
            _pointer(lost),
            _pointer(out),
            *(ctypes.c_int64(number) for number in (count, start, stop)),
        )

    _parallel(-(-count // block), run, grain=65_536 // block)


def decode(codec: str, block: int, encoded: Tensor, out: Tensor, add: bool) -> None:
    """The way back: bytes to out (n,) fp32, overwritten or added to."""
    library = kernels().library
    assert library is not None, "ask whether kernels() are available first"
    function = library[f"yoked_decode_{codec}"]
    count = out.numel()

    def run(start: int, stop: int) -> None:
        function(
            _pointer(encoded),
            _pointer(out),
            *(ctypes.c_int64(number) for number in (count, start, stop)),
            ctypes.c_int(add),
        )

    _parallel(-(-count // block), run, grain=65_536 // block)
