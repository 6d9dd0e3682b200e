"""The flags and the output that `yoked sample` and `yoked chat` share. Light: torch comes later."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from yoked.cli.completers import run_names
from yoked.cli.flags import check_checkpoint, flag, named_checkpoint, same_fleet
from yoked.cli.output import Output
from yoked.errors import CheckpointError, UsageError, YokedError
from yoked.fleet.file import FILE_NAME
from yoked.runs import copied_from, find_run
from yoked.units import format_bytes, format_duration

if TYPE_CHECKING:
    from yoked.train.sample import Sampling, TrainedModel

SAMPLING = Group("Sampling", sort_key=1)
RunOrFolder = Annotated[
    str | None,
    Parameter(help="Run, or folder of checkpoints. Default: the latest run.", completer=run_names),
]


@dataclass(frozen=True)
class SamplingFlags:
    """How a text is drawn."""

    max_tokens: Annotated[int, flag(SAMPLING, "Tokens to write.")] = 200
    temperature: Annotated[
        float, flag(SAMPLING, "0 takes the likeliest token, 1 samples as the model predicts.")
    ] = 0.8
    top_k: Annotated[int | None, flag(SAMPLING, "Sample among the likeliest only.")] = 50
    seed: Annotated[int, flag(SAMPLING, "The same seed writes the same text.")] = 42

    def check(self) -> None:
        """Raise UsageError for flags that cannot be meant, before torch is loaded."""
        if self.max_tokens < 1:
            raise UsageError(f"--max-tokens {self.max_tokens} writes nothing", fix="give 1 or more")
        if not self.temperature >= 0:
            raise UsageError(f"--temperature {self.temperature} is below 0", fix="give 0 or more")
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"--top-k {self.top_k} leaves no token", fix="give 1 or more")

    def sampling(self, number: int = 0) -> Sampling:
        """For the trainer's side. number: of a text in a session, each of which is another."""
        from yoked.train.sample import Sampling

        return Sampling(self.max_tokens, self.temperature, self.top_k, self.seed + number)


def find_folder(run: str | None, runs_dir: Path) -> Path:
    """The folder of a run, or of checkpoints, that was named. Raises UsageError."""
    return Path(run) if run and Path(run).is_dir() else find_run(run, runs_dir)


def newest_folder(run: str | None, runs_dir: Path, checkpoint: str, output: Output) -> Path:
    """The folder of a run, or of checkpoints, that was named: with what is asked for of it now.

    Of a fleet's run the checkpoint is fetched, if the hosts have another one than is here; where
    they cannot be asked, it is said that this one may be older. A folder that is named as such is
    taken as it is. Raises UsageError, and CheckpointError where nothing is here and none comes.
    """
    folder = find_folder(run, runs_dir)
    fleet_file = None if run and Path(run).is_dir() else copied_from(folder)
    if fleet_file is None:
        return folder
    try:
        _fetch(folder, checkpoint, fleet_file, output)
    except YokedError as problem:
        if not any(folder.glob("checkpoints/base_checkpoints/*/model_*.pt")):
            flag = same_fleet(None if fleet_file == Path(FILE_NAME).absolute() else fleet_file)
            raise CheckpointError(
                f"no checkpoint of run {folder.name} is here, and none came: {problem.what}",
                fix=(*problem.fix, f"yoked fetch {folder.name}{flag}    tries again"),
            ) from problem
        output.note(
            f"run {folder.name} may have a newer checkpoint than this one: its hosts could not be "
            f"asked: {problem.what}"
        )
    return folder


def _fetch(folder: Path, checkpoint: str, fleet_file: Path, output: Output) -> None:
    """Bring what the hosts have, if it is another one than is here. Raises YokedError."""
    from yoked.console import StageProgress
    from yoked.fleet.file import load_fleet
    from yoked.launch.hosts import reach_hosts, require_all
    from yoked.workflows.fetching import fetch_run

    fleet = load_fleet(fleet_file)
    with closing(StageProgress(output.console)) as progress:
        progress.doing(f"asking for {named_checkpoint(checkpoint)} of {folder.name}")
        with reach_hosts(fleet, lambda _: None) as hosts:
            try:
                fetched = fetch_run(
                    hosts.clients,
                    folder,
                    checkpoint,
                    fleet_file=fleet_file,
                    note=output.note,
                    progress=lambda host, done, total: progress.update(
                        f"from {host}", done, total, "bytes"
                    ),
                )
            except UsageError:
                # Of those that answer none has it.
                require_all(hosts.unreachable)
                raise
    if fetched.checkpoint_bytes:
        size = format_bytes(fetched.checkpoint_bytes)
        output.note(f"fetched {named_checkpoint(checkpoint)} from {fetched.host}: {size}")


def load_model(
    run: str | None, runs_dir: Path, checkpoint: str, output: Output
) -> tuple[Path, TrainedModel]:
    """The folder that was named and the model in it; notes which one it is, and which was better.

    Raises UsageError, CheckpointError or DataError.
    """
    check_checkpoint(checkpoint)
    folder = newest_folder(run, runs_dir, checkpoint, output)
    from yoked.train.sample import load_trained

    trained = load_trained(folder, checkpoint)
    output.note(f"{folder.name}, step {trained.step:,}, saved {_when(trained.saved_s)}")
    if trained.better is not None:
        step, val_bpb = trained.better
        output.note(
            f"this is step {trained.step:,}, the latest; validation was best at step {step:,} "
            f"({val_bpb:.4f} bits per byte): --checkpoint best"
        )
    return folder, trained


def _when(saved_s: float) -> str:
    """Such as `2026-11-26 18:02 (12 min 05 s ago)`."""
    ago_s = time.time() - saved_s
    # The clock of the host that saved it may be ahead.
    ago = f" ({format_duration(ago_s)} ago)" if ago_s > 0 else ""
    return f"{datetime.fromtimestamp(saved_s).astimezone():%Y-%m-%d %H:%M}{ago}"


def show(prompt: str, pieces: Iterator[str], output: Output) -> str:
    """Print a prompt and what follows it, as it comes; returns what followed."""
    followed: list[str] = []
    # A model says what it was taught, and its data is anybody's.
    output.text(output.followed("model", prompt))
    try:
        for piece in pieces:
            followed.append(piece)
            output.text(output.followed("model", piece))
    finally:
        output.end_colours()
        output.text("\n")
    return "".join(followed)
