"""nanochat's environment, set by what its version reads and what its hosts can do.

nanochat (checked with its commits of 2025 to 2026) reads its settings from the environment while
it is imported, so they are set before the program starts; what a person has set is kept. On CPUs
it starts no process group, and asks whether there is one to know whether it is to share
gradients: so it finds one started.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.machinery import PathFinder
from pathlib import Path

import torch

from yoked.errors import YokedError
from yoked.launch.bootstrap.group import Ranks, Starter, has_cuda
from yoked.launch.bootstrap.job import Job
from yoked.launch.bootstrap.substitutions import log_substitution

_SETTING = re.compile(rb"NANOCHAT_[A-Z_]+")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Rows, columns and depth of the product that is timed: a layer of a small model.
_ROWS, _WIDTH = 512, 768
_TIMED_S = 0.05
# Two timings of one product differ by less.
_WORTH_IT = 1.1


@dataclass(frozen=True)
class Compute:
    """What one rank says before all settle on a dtype.

    set_dtype: NANOCHAT_DTYPE as it found it, or None.
    product_s: seconds of a matrix product by dtype; empty where the GPU does the work.
    """

    set_dtype: str | None
    product_s: dict[str, float]


def prepare(job: Job, args: Sequence[str], ranks: Ranks, starter: Starter) -> None:
    """Set the environment and start the group, if the program is nanochat's.

    Collective: every rank must call it, with the program's arguments.
    """
    package = _package((Path(sys.path[0]), job.cwd))
    if package is None:
        return
    reads = _settings(package)
    on_cpu = _computes_on_cpu(args)
    _set_base_dir(job)
    if "NANOCHAT_DATA_DIR" in reads:
        _set_data_dir()
    if "NANOCHAT_FORCE_SDPA" in reads and on_cpu:
        _set("NANOCHAT_FORCE_SDPA", "1", "flash attention is for GPUs")
    mine = Compute(os.environ.get("NANOCHAT_DTYPE"), _measure() if on_cpu else {})
    said = [Compute(**json.loads(text)) for text in ranks.gather("dtype", json.dumps(asdict(mine)))]
    if chosen := choose_dtype(said):
        _set("NANOCHAT_DTYPE", *chosen)
    if ranks.count > 1 and any(rank.product_s for rank in said):
        starter.start("nanochat starts none on CPUs and its ranks would share nothing")


def choose_dtype(said: Sequence[Compute]) -> tuple[str, str] | None:
    """The dtype of all ranks, and why; None leaves the choice to nanochat.

    All ranks wait for the slowest in every step, so its time decides. Raises YokedError if
    ranks found different settings.
    """
    found = {rank.set_dtype: number for number, rank in enumerate(said) if rank.set_dtype}
    if len(found) > 1:
        which = " and ".join(f"{dtype} on rank {number}" for dtype, number in found.items())
        raise YokedError(
            f"NANOCHAT_DTYPE is {which}: ranks of unlike dtypes cannot share gradients.",
            fix="set it alike on all hosts, or on none",
        )
    for dtype, number in found.items():
        return dtype, f"rank {number} has it set, and it must be one for all"
    times = [rank.product_s for rank in said if rank.product_s]
    if not times:
        return None
    worst_s = {dtype: max(rank[dtype] for rank in times) for dtype in _DTYPES}
    best, other = sorted(worst_s, key=lambda dtype: worst_s[dtype])
    gain = worst_s[other] / worst_s[best]
    where = "this CPU" if len(times) == 1 else "the slowest of the CPUs"
    if gain < _WORTH_IT:
        # By chance it would be this one now and that one then, and all compiled anew.
        return "float32", f"bfloat16 multiplies about as fast on {where}"
    return best, f"it multiplies {gain:.1f}x as fast as {other} on {where}"


def _package(folders: Sequence[Path]) -> Path | None:
    """The folder of a nanochat package that lies beside the program."""
    spec = PathFinder.find_spec("nanochat", [str(folder) for folder in folders])
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _settings(package: Path) -> set[str]:
    """The environment variables that this version's sources name."""
    texts = (source.read_bytes() for source in sorted(package.glob("*.py")))
    return {name.decode() for text in texts for name in _SETTING.findall(text)}


def _computes_on_cpu(args: Sequence[str]) -> bool:
    """Whether nanochat's scripts would take the CPU: by --device-type, else what is there."""
    asked = ""
    for number, arg in enumerate(args):
        flag, has_value, value = arg.partition("=")
        if flag == "--device-type":
            asked = value if has_value else "".join(args[number + 1 : number + 2])
    return asked == "cpu" or (
        not asked and not has_cuda() and not torch.backends.mps.is_available()
    )


def _set(name: str, value: str, because: str, *, on_each_host: bool = False) -> None:
    if name not in os.environ:
        os.environ[name] = value
        log_substitution(f"{name}={value}", because, on_each_host=on_each_host)


def _set_base_dir(job: Job) -> None:
    """Where nanochat's own choice cannot be written: a folder beside all jobs of this host."""
    usual = Path("~/.cache/nanochat").expanduser()
    if not _can_write(usual):
        beside = job.folder.parent.parent / "nanochat"
        _set("NANOCHAT_BASE_DIR", str(beside), f"{usual} cannot be written", on_each_host=True)


def _can_write(folder: Path) -> bool:
    """Whether a folder, or the one that it would be made in, takes new files."""
    # Path.exists raises where a home may not be entered.
    there = next(parent for parent in (folder, *folder.parents) if os.path.exists(parent))  # noqa: PTH110
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _set_data_dir() -> None:
    """The folder of shards, where the base folder has but one."""
    base = Path(os.environ.get("NANOCHAT_BASE_DIR") or Path("~/.cache/nanochat").expanduser())
    folders = sorted({shard.parent for shard in base.glob("base_data*/*.parquet")})
    if len(folders) == 1:
        why = f"it is the only folder of shards in {base}"
        _set("NANOCHAT_DATA_DIR", str(folders[0]), why, on_each_host=True)


def _measure() -> dict[str, float]:
    """Seconds of a matrix product in each dtype, on this rank's threads. Takes about 0.2 s."""
    return {name: _product_s(dtype) for name, dtype in _DTYPES.items()}


def _product_s(dtype: torch.dtype) -> float:
    rows = torch.ones(_ROWS, _WIDTH, dtype=dtype)
    weights = torch.ones(_WIDTH, _WIDTH, dtype=dtype)
    # The first product also builds the library's kernels.
    torch.nn.functional.linear(rows, weights)
    times_s: list[float] = []
    while sum(times_s) < _TIMED_S or len(times_s) < 2:
        start_s = time.perf_counter()
        torch.nn.functional.linear(rows, weights)
        times_s.append(time.perf_counter() - start_s)
    # Whatever else runs on the host can only add to it.
    return min(times_s)
