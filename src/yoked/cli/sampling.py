"""The flags and the output that `yoked sample` and `yoked chat` share. Light: torch comes later."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from yoked.cli.completers import run_names
from yoked.cli.copies import with_newest_checkpoint
from yoked.cli.flags import check_checkpoint, flag
from yoked.cli.output import Output
from yoked.errors import UsageError
from yoked.units import format_duration

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


def load_model(
    run: str | None, runs_dir: Path, checkpoint: str, output: Output
) -> tuple[Path, TrainedModel]:
    """The folder that was named and the model in it; notes which one it is, and which was better.

    Raises UsageError, CheckpointError or DataError.
    """
    check_checkpoint(checkpoint)
    folder = with_newest_checkpoint(run, runs_dir, checkpoint, output)
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
