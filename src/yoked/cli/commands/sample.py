"""`yoked sample`: text from a trained model, as it is made."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from yoked.cli.flags import RunsDir
from yoked.cli.output import Output
from yoked.errors import UsageError
from yoked.runs import find_run


def command(
    run: Annotated[
        str | None, Parameter(help="Run, or folder of checkpoints. Default: the latest run.")
    ] = None,
    *,
    prompt: Annotated[str, Parameter(help="Text to go on from.")] = "",
    max_tokens: Annotated[int, Parameter(help="Tokens to write.")] = 200,
    temperature: Annotated[
        float, Parameter(help="0 takes the likeliest token, 1 samples as the model predicts.")
    ] = 0.8,
    top_k: Annotated[int | None, Parameter(help="Sample among the likeliest only.")] = 50,
    seed: Annotated[int, Parameter(help="The same seed writes the same text.")] = 42,
    runs_dir: RunsDir = Path("runs"),
    json_output: Annotated[
        bool,
        Parameter(name="--json", negative="", help="Print one JSON object at the end."),
    ] = False,
) -> int:
    """Write text with a trained model, as it is made."""
    if max_tokens < 1:
        raise UsageError(f"--max-tokens {max_tokens} writes nothing", fix="give 1 or more")
    if not temperature >= 0:
        raise UsageError(f"--temperature {temperature} is below 0", fix="give 0 or more")
    if top_k is not None and top_k < 1:
        raise UsageError(f"--top-k {top_k} leaves no token", fix="give 1 or more")
    folder = Path(run) if run and Path(run).is_dir() else find_run(run, runs_dir)
    from yoked.train.sample import stream

    pieces = stream(
        folder,
        prompt,
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        seed=seed,
    )
    write(pieces, folder, prompt, Output(json_mode=json_output))
    return 0


def write(pieces: Iterator[str], folder: Path, prompt: str, output: Output) -> None:
    """Print pieces of text as they come; in JSON, all of them at the end."""
    started_s = time.monotonic()
    if not output.json_mode:
        output.text(prompt)
        for piece in pieces:
            # A model says what it was taught, and its data is anybody's.
            output.text(output.followed("model", piece))
        output.text("\n")
        return
    text = "".join(pieces)
    payload = {
        "dir": str(folder),
        "prompt": prompt,
        "text": text,
        "took_s": round(time.monotonic() - started_s, 3),
    }
    output.result(payload, verdict=text)
