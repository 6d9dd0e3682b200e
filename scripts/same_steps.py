"""Do two checkouts of yoked take the same steps? Compares every loss and every saved number.

    python scripts/same_steps.py OLD NEW [--all] [--only CASE ...] [--list] [--keep FOLDER]

OLD and NEW are checkouts, each with its own .venv. Each case trains the same run with both, by
their command line, on this machine, every choice fixed by a flag that would otherwise be measured.
Then it compares what the run folders hold: the loss of each step, each evaluation, and each tensor
of each checkpoint, to the bit. Nothing of yoked is imported: inside, everything may have another
name. Where a flag was renamed, EARLIER says how a checkout of before spells it.

The cases without --all take a few minutes. Exit status: 0 the same, 1 not, 2 a run failed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PARALLEL = "vocab-parallel"
# (flag, value) -> how a checkout spells both that does not know the value yet.
EARLIER: dict[tuple[str, str], tuple[str, str]] = {
    ("lm-head", "replicated"): ("lm-head", "whole"),
    ("lm-head", PARALLEL): ("lm-head", "divided"),
}
LIMIT_S = 600
# Lines of a case that differs.
SHOWN = 8
COMMAND = "import sys; from yoked.cli.main import main; sys.exit(main(sys.argv[1:]))"
TINY = {
    "depth": "2",
    "max-seq-len": "64",
    "vocab-size": "512",
    "total-batch-size": "512",
    "device-batch-size": "2",
}
# A model whose matrices are of several shapes and take several messages each.
SMALL = {
    "depth": "4",
    "max-seq-len": "128",
    "vocab-size": "2048",
    "total-batch-size": "2048",
    "device-batch-size": "2",
}
FIXED = {
    "num-iterations": "12",
    "eval-every": "6",
    "save-every": "6",
    "dtype": "float32",
    "matmul": "mkl",
    "attention": "sdpa",
    "compile": "on",
    "threads": "1",
    "balance": "off",
    "sync": "exact",
    "lm-head": "replicated",
}
# Prints a line for each tensor and number of a file that torch wrote.
READ = """
import hashlib, sys, torch
def show(name, value):
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            show(f"{name}/{key}", value[key])
    elif isinstance(value, (list, tuple)):
        for at, inner in enumerate(value):
            show(f"{name}/{at}", inner)
    elif isinstance(value, torch.Tensor):
        raw = value.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
        print(name, str(value.dtype), tuple(value.shape), hashlib.sha256(raw).hexdigest()[:16])
    else:
        print(name, repr(value))
for path in sys.argv[1:]:
    name = path.rsplit("/", 1)[1]
    show(name, torch.load(path, weights_only=True, map_location="cpu"))
"""


@dataclass(frozen=True)
class Case:
    """A run. resume_at: once it is done, a second command goes on from that step's checkpoint."""

    name: str
    flags: dict[str, str]
    resume_at: int | None = None

    def commands(self) -> list[dict[str, str]]:
        """Flags of each command, in turn."""
        if self.resume_at is None:
            return [self.flags]
        return [self.flags, {**self.flags, "resume-from-step": str(self.resume_at)}]


def case(
    name: str,
    ranks: int,
    *,
    shape: dict[str, str] = TINY,
    resume_at: int | None = None,
    **more: str,
) -> Case:
    """A case. more: flags with _ for -; shares are equal unless they are given."""
    flags = {**shape, **FIXED, "shares": ":".join("1" * ranks)}
    flags |= {key.replace("_", "-"): value for key, value in more.items()}
    if flags["lm-head"] == PARALLEL:
        # It is for steps of few tokens, against the ids of the vocabulary.
        flags["vocab-size"] = str(16 * int(flags["total-batch-size"]))
    return Case(name, flags, resume_at)


def quick_cases() -> list[Case]:
    """One case for each thing that a step may do otherwise: for every commit."""
    return [
        case("1 rank", 1),
        case("2 ranks", 2),
        case("3 ranks", 3),
        case("2 ranks, 3:1", 2, shares="3:1"),
        case("3 ranks, one without rows", 3, shares="1:0:1"),
        case("vocabulary parallel", 2, lm_head=PARALLEL),
        case("vocabulary parallel, 3 ranks, 2:1:1", 3, lm_head=PARALLEL, shares="2:1:1"),
        case("bf16 gradients", 2, sync="bf16"),
        case("int8 gradients", 2, sync="int8"),
        case("int4 gradients, 3 ranks", 3, sync="int4"),
        case("bfloat16", 2, dtype="bfloat16"),
        case("all at once", 2, dtype="bfloat16", lm_head=PARALLEL, sync="int8", shares="3:1"),
        case("resumed", 2, resume_at=6),
        case("depth 4", 2, shape=SMALL),
    ]  # fmt: skip


def all_cases() -> Iterator[Case]:
    """The quick ones, and all combinations: for every step of a refactoring."""
    yield from quick_cases()
    shares = ("1", "1:1", "3:1", "1:1:1", "2:1:0", "1:1:1:1", "3:2:2:1")
    for parts, sync, head, dtype in itertools.product(
        shares, ("exact", "bf16", "int8", "int4"), ("replicated", PARALLEL), ("float32", "bfloat16")
    ):
        ranks = parts.count(":") + 1
        if ranks == 1 and (sync, head) != ("exact", "replicated"):
            continue
        name = f"{parts} {sync} {head} {dtype}"
        yield case(name, ranks, shares=parts, sync=sync, lm_head=head, dtype=dtype)
    for sync, head in itertools.product(("exact", "int8"), ("replicated", PARALLEL)):
        name = f"3:1 {sync} {head}"
        yield case(f"resumed, {name}", 2, shares="3:1", sync=sync, lm_head=head, resume_at=6)
        yield case(f"depth 4, {name}", 2, shares="3:1", sync=sync, lm_head=head, shape=SMALL)


class Checkout:
    """One of the two."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self._python = self.path / ".venv" / "bin" / "python"
        if not self._python.exists():
            raise SystemExit(f"{self.path} has no .venv\nfix: cd {self.path} && make setup")
        sources = (self.path / "src" / "yoked" / "train").glob("*.py")
        known = "".join(path.read_text() for path in sources)
        self._earlier = {was: old for was, old in EARLIER.items() if f'"{was[1]}"' not in known}

    def train(self, one: Case, folder: Path) -> dict[str, list[str]]:
        """What a run came to: lines to compare, by what they are of. Raises RuntimeError."""
        folder.mkdir(parents=True)
        for flags in one.commands():
            self._run(flags, folder)
        run = folder / "runs" / "same"
        return {"steps": _steps(run), "checkpoints": self._checkpoints(run)}

    def _run(self, flags: dict[str, str], folder: Path) -> None:
        words = ["--run=same"]
        for flag in flags.items():
            name, value = self._earlier.get(flag, flag)
            words.append(f"--{name}={value}")
        log = folder / "log.txt"
        with log.open("a") as out:
            done = subprocess.run(
                [str(self._python), "-c", COMMAND, "train", *words],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=LIMIT_S,
                check=False,
            )
        if done.returncode != 0:
            raise RuntimeError(f"{self.path}: exit status {done.returncode}\n{log.read_text()}")

    def _checkpoints(self, run: Path) -> list[str]:
        files = sorted(str(path) for path in run.glob("checkpoints/base_checkpoints/*/*.pt"))
        done = subprocess.run(
            [str(self._python), "-c", READ, *files], capture_output=True, text=True, check=False
        )
        if done.returncode != 0 or not files:
            raise RuntimeError(f"no checkpoint to read in {run}\n{done.stderr[-2000:]}")
        return done.stdout.splitlines()


def _steps(run: Path) -> list[str]:
    """A line for each step and evaluation; a later attempt's stand for those it did again."""
    by_step: dict[tuple[int, str], str] = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        event: dict[str, Any] = json.loads(line)
        for name in ("loss", "val_bpb", "tokens"):
            if name in event and "step" in event:
                by_step[event["step"], name] = f"step {event['step']} {name} {event[name]!r}"
    return [by_step[key] for key in sorted(by_step)]


def differences(old: dict[str, list[str]], new: dict[str, list[str]]) -> list[str]:
    """The lines that only one of the two has, old before new."""
    found = []
    for what, lines in old.items():
        if lines == new[what]:
            continue
        others, ours = set(new[what]), set(lines)
        found += [f"  OLD {line}" for line in lines if line not in others]
        found += [f"  NEW {line}" for line in new[what] if line not in ours]
        found = found or [f"  the {what} come in another order"]
    return found


def compare(one: Case, old: Checkout, new: Checkout, folder: Path) -> tuple[int, str]:
    """(exit status, what to print of it)."""
    began_s = time.monotonic()
    try:
        seen = [side.train(one, folder / name) for side, name in ((old, "old"), (new, "new"))]
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as problem:
        return 2, f"FAILED  {one.name}\n{problem}"
    took = f"{time.monotonic() - began_s:.0f} s"
    found = differences(*seen)
    if found:
        more = f"\n  and {len(found) - SHOWN} more" * (len(found) > SHOWN)
        return 1, f"DIFFERS {one.name} ({took})\n" + "\n".join(found[:SHOWN]) + more
    count = {what: len(lines) for what, lines in seen[0].items()}
    figures = f"{count['steps']} figures of steps, {count['checkpoints']} saved values"
    return 0, f"same    {one.name}: {figures} ({took})"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--all", action="store_true", help="all combinations: about an hour")
    parser.add_argument("--only", action="append", default=[], help="a case by its name")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--keep", type=Path, help="a new folder for the runs, to look at")
    args = parser.parse_args()
    cases = list(all_cases()) if args.all or args.only else quick_cases()
    known = {one.name for one in cases}
    if unknown := [name for name in args.only if name not in known]:
        parser.error(f"no case {unknown[0]!r}; --list --all prints their names")
    chosen = [one for one in cases if not args.only or one.name in args.only]
    if args.list:
        sys.stdout.write("".join(f"{one.name}\n" for one in chosen))
        return 0
    old, new = Checkout(args.old), Checkout(args.new)
    statuses = []
    with tempfile.TemporaryDirectory(prefix="same-steps-") as temporary:
        folder = args.keep or Path(temporary)
        for number, one in enumerate(chosen):
            status, text = compare(one, old, new, folder / str(number))
            statuses.append(status)
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{statuses.count(0)} of {len(statuses)} cases: the same steps\n")
    return max(statuses)


if __name__ == "__main__":
    sys.exit(main())
