"""`yoked chat`: prompts at a terminal, each completed by a trained model."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from yoked.cli.flags import CheckpointFlag, JsonFlag, RunsDir
from yoked.cli.output import Output
from yoked.cli.sampling import RunOrFolder, SamplingFlags, load_model, show

if TYPE_CHECKING:
    from yoked.train.sample import TrainedModel

_PROMPT = "> "
_QUIT = ("/quit", "/exit")
_HELP = """\
A base model completes texts, it does not answer: write how a text begins.
Enter alone goes on with the last text, Ctrl-C stops one, /quit or Ctrl-D ends.
"""


def command(
    run: RunOrFolder = None,
    *,
    checkpoint: CheckpointFlag = "latest",
    flags: Annotated[SamplingFlags, Parameter(name="*")] = SamplingFlags(),  # noqa: B008
    runs_dir: RunsDir = Path("runs"),
    json_output: JsonFlag = False,
) -> int:
    """Complete the texts that you begin, one after the other, with a trained model.

    A base model completes and does not answer. Where the input is no terminal, each line of it is
    a beginning, and nothing but the texts is printed.
    """
    output = Output(json_mode=json_output)
    flags.check()
    folder, trained = load_model(run, runs_dir, checkpoint, output)
    if sys.stdin.isatty() and sys.stdout.isatty() and not json_output:
        output.text(_HELP)
        _converse(trained, flags, output)
        return 0
    texts = [*_complete_lines(trained, flags, output)]
    if json_output:
        payload = {
            "dir": str(folder),
            "step": trained.step,
            "saved_s": trained.saved_s,
            "texts": texts,
        }
        output.result(payload, verdict=f"{len(texts)} texts")
    return 0


def _converse(trained: TrainedModel, flags: SamplingFlags, output: Output) -> None:
    """Prompts of a person, until /quit or Ctrl-D."""
    # input() has line editing and the session's history once this is imported.
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401
    number, last = 0, ""
    while True:
        try:
            line = input(_PROMPT)
        except EOFError:
            output.text("\n")
            return
        except KeyboardInterrupt:
            output.text("\n")  # it gave up a line, as in a shell
            continue
        if line.strip() in _QUIT:
            return
        # What is no UTF-8 comes as surrogates, which no tokenizer takes.
        begun = line.encode(errors="surrogateescape").decode(errors="replace")
        came: list[str] = []
        pieces = trained.write(begun or last, flags.sampling(number))
        with contextlib.suppress(KeyboardInterrupt):
            show(begun, _noted(pieces, came), output)
        number, last = number + 1, (begun or last) + "".join(came)


def _noted(pieces: Iterator[str], came: list[str]) -> Iterator[str]:
    """The pieces; those that came before Ctrl-C are in the list."""
    for piece in pieces:
        came.append(piece)
        yield piece


def _complete_lines(
    trained: TrainedModel, flags: SamplingFlags, output: Output
) -> Iterator[dict[str, Any]]:
    """Complete each line of the input; print the texts, or yield them for JSON."""
    for number, line in enumerate(sys.stdin.buffer):
        prompt = line.decode(errors="replace").rstrip("\r\n")
        if prompt.strip() in _QUIT:
            return
        started_s = time.monotonic()
        pieces = trained.write(prompt, flags.sampling(number))
        text = "".join(pieces) if output.json_mode else show(prompt, pieces, output)
        took_s = round(time.monotonic() - started_s, 3)
        yield {"prompt": prompt, "text": text, "took_s": took_s}
