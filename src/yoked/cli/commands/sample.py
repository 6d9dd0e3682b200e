"""`yoked sample`: text from a trained model, as it is made."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from yoked.cli.flags import CheckpointFlag, RunsDir
from yoked.cli.output import Output
from yoked.cli.sampling import RunOrFolder, SamplingFlags, load_model, show


def command(
    run: RunOrFolder = None,
    *,
    prompt: Annotated[str, Parameter(help="Text to go on from.")] = "",
    checkpoint: CheckpointFlag = "latest",
    flags: Annotated[SamplingFlags, Parameter(name="*")] = SamplingFlags(),  # noqa: B008
    runs_dir: RunsDir = Path("runs"),
    json_output: Annotated[
        bool,
        Parameter(name="--json", negative="", help="Print one JSON object at the end."),
    ] = False,
) -> int:
    """Write text with a trained model, as it is made.

    Of a run on a fleet it is the newest model, which is fetched first; a folder that is named, such
    as runs/NAME, is taken as it is.
    """
    output = Output(json_mode=json_output)
    flags.check()
    folder, trained = load_model(run, runs_dir, checkpoint, output)
    pieces = trained.write(prompt, flags.sampling())
    write(pieces, folder, trained.step, trained.saved_s, prompt, output)
    return 0


def write(
    pieces: Iterator[str], folder: Path, step: int, saved_s: float, prompt: str, output: Output
) -> None:
    """Print pieces of text as they come; in JSON, all of them at the end."""
    started_s = time.monotonic()
    if not output.json_mode:
        show(prompt, pieces, output)
        return
    text = "".join(pieces)
    payload = {
        "dir": str(folder),
        "step": step,
        "saved_s": saved_s,
        "prompt": prompt,
        "text": text,
        "took_s": round(time.monotonic() - started_s, 3),
    }
    output.result(payload, verdict=text)
