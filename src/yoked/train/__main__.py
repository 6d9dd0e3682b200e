"""One rank: what torchrun starts, ours or the user's own.

    torchrun --standalone --nproc-per-node=2 -m yoked.train --depth=4 ...

takes the flags of `yoked train`. A launch of ours starts it with `--config-file` instead, and
reads back a result or an error by rank from the folder in YOKED_LAUNCH_DIR.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from yoked.collector import without_collector
from yoked.console import stderr_console
from yoked.core.fs import write_bytes
from yoked.errors import UsageError, YokedError
from yoked.parent_death import die_with_parent
from yoked.ranks.recorder import RECORDER
from yoked.streams import outlive_full_disk
from yoked.train.config import TrainConfig
from yoked.units import listed

BUG_STATUS = 3
INTERRUPTED_STATUS = 130


def parse(argv: list[str]) -> TrainConfig:
    """The configuration that a command line means; raises UsageError."""
    # torchrun hands on the `--` with which its users part its flags from the program's.
    if argv[:1] == ["--"]:
        argv = argv[1:]
    if argv[:1] == ["--config-file"]:
        # Written by a launch of ours; one that starts the ranks anew says so behind it.
        _, file, *resume = argv
        launched = TrainConfig.from_file(Path(file))
        return _again(launched, Path(file)) if resume == ["--resume"] else launched
    from yoked.train.flags import parse_flags

    return parse_flags(argv, help_text=__doc__)


def _again(launched: TrainConfig, config_file: Path) -> TrainConfig:
    """What a later attempt of a launch trains: the run goes on, if an earlier one has begun it.

    Where it begins is a matter of the attempt that begins it. Only rank 0's host has the run,
    and rank 0 alone decides.
    """
    record = launched.runs_dir / (launched.run or "") / "run.json"
    try:
        # One that is older than the launch is of a run that no attempt of this launch has opened.
        begun = record.stat().st_mtime_ns >= config_file.stat().st_mtime_ns
    except FileNotFoundError:
        begun = False
    if not begun:
        return launched
    return launched.going_on()


def run_loop(config: TrainConfig) -> dict[str, Any]:
    """Train with the real loop; returns its result as plain data, empty of a rank that sat out."""
    # Memory of a GPU that grows in place, as nanochat has it; torch reads it when it is imported.
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    with without_collector():
        from yoked.train.parts import train

    result = train(config, console=stderr_console())
    return {} if result is None else result.to_dict()


def main(argv: list[str], train: Callable[[TrainConfig], dict[str, Any]] = run_loop) -> int:
    """Train as one rank; returns the exit status."""
    rank = int(os.environ.get("RANK", "0"))
    launch_dir = os.environ.get("YOKED_LAUNCH_DIR")
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent(os.getppid())
    RECORDER.starting()
    try:
        config = parse(argv)
        config.check_world(int(os.environ.get("WORLD_SIZE", "1")))
        result = train(config)
    except (Exception, KeyboardInterrupt) as problem:  # noqa: BLE001 - the last resort
        return _fail(problem, rank, Path(launch_dir) if launch_dir else None)
    if rank == 0:
        _hand_over(result, config, Path(launch_dir) if launch_dir else None)
    interrupted = result.get("state") == "interrupted"
    if interrupted and rank == 0 and launch_dir is None:
        sys.stderr.write(f"stopped and saved after step {result['steps']}\n{_go_on(result)}\n")
    # Under our own launch the result says so; torchrun would end the other ranks' saving
    # at the first status that is not 0.
    return INTERRUPTED_STATUS if interrupted and launch_dir is None else 0


def _go_on(result: dict[str, Any]) -> str:
    """How to resume what torchrun, or a person, started with this module."""
    run_dir = Path(result["dir"])
    flags = shlex.join(["--resume", "--run", run_dir.name, "--runs-dir", str(run_dir.parent)])
    # Without the `--`, torchrun would take --run for an option of its own.
    return f"to go on: torchrun ... -m yoked.train -- {flags}"


def _hand_over(result: dict[str, Any], config: TrainConfig, launch_dir: Path | None) -> None:
    if launch_dir is not None:
        _write_for_launch(launch_dir / "result.json", result)
    elif config.json_output:
        sys.stdout.write(json.dumps(result) + "\n")


def _fail(problem: BaseException, rank: int, launch_dir: Path | None) -> int:
    if isinstance(problem, KeyboardInterrupt):
        return INTERRUPTED_STATUS
    expected = isinstance(problem, YokedError)
    status = problem.exit_status if isinstance(problem, YokedError) else BUG_STATUS
    trace = "".join(traceback.format_exception(problem))
    if launch_dir is not None and _told(problem, rank, trace, launch_dir):
        return status
    # All ranks read the same command line: one complaint is enough.
    if not isinstance(problem, UsageError) or rank == 0:
        ranks = problem.of_ranks if isinstance(problem, YokedError) else ()
        whose = f"rank{'s' * (len(ranks) > 1)} {listed(map(str, ranks or (rank,)))}"
        named = f"{whose}: " if "RANK" in os.environ else ""
        sys.stderr.write(f"{named}{problem if expected else trace}\n")
    return status


def _told(problem: BaseException, rank: int, trace: str, launch_dir: Path) -> bool:
    """Leave word of what ended this rank; False: not even that can be written."""
    content = {
        "rank": rank,
        "time_s": time.time(),
        "kind": type(problem).__name__,
        "what": problem.what if isinstance(problem, YokedError) else repr(problem),
        "fix": problem.fix if isinstance(problem, YokedError) else (),
        "traceback": trace,
        "of_ranks": problem.of_ranks if isinstance(problem, YokedError) else (),
    }
    try:
        _write_for_launch(launch_dir / f"error.{rank}.json", content)
    except OSError:
        return False
    return True


def _write_for_launch(path: Path, content: dict[str, Any]) -> None:
    # The launch reads it on this machine at once. A busy disk can take longer for an fsync than
    # the grace that a rank has after another one failed.
    write_bytes(path, json.dumps(content).encode(), durable=False)


def end_process(status: int) -> NoReturn:
    """Exit; after a failure at once.

    An orderly exit joins Gloo's threads, which wait for the collective that was in flight: for a
    peer that stands still (a closed lid) until its deadline.
    """
    if status == 0:
        sys.exit()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    outlive_full_disk()
    end_process(main(sys.argv[1:]))
