"""`yoked export`: a trained model in a folder for other programs."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from yoked.cli.copies import with_newest_checkpoint
from yoked.cli.flags import CheckpointFlag, JsonFlag, RunsDir, check_checkpoint
from yoked.cli.output import Output
from yoked.cli.sampling import RunOrFolder
from yoked.core.names import path_word
from yoked.errors import UsageError
from yoked.units import format_bytes, format_count


def command(
    run: RunOrFolder = None,
    *,
    to: Annotated[
        Literal["safetensors", "nanochat"],
        Parameter(
            help="safetensors: weights, config and tokenizer for any program, with a model in "
            "plain PyTorch; nanochat: a base directory of its tools, with the optimizer's state."
        ),
    ],
    out: Annotated[
        Path | None, Parameter(help="The folder to make. Default: the run's name and the format.")
    ] = None,
    checkpoint: CheckpointFlag = "latest",
    ranks: Annotated[
        int | None,
        Parameter(
            help="How many ranks of nanochat are to read the optimizer's state: each has a file of "
            "its own. Default: 1."
        ),
    ] = None,
    force: Annotated[
        bool, Parameter(negative="", help="Replace an earlier export in that folder.")
    ] = False,
    runs_dir: RunsDir = Path("runs"),
    json_output: JsonFlag = False,
) -> int:
    """Write a trained model into a folder for other programs, with how to load it.

    The folder is complete or absent, whatever interrupts this.
    """
    output = Output(json_mode=json_output)
    check_checkpoint(checkpoint)
    if ranks is not None and to != "nanochat":
        raise UsageError(
            f"--ranks is for --to nanochat: {to} has no optimizer's state", fix="leave --ranks out"
        )
    if ranks is not None and ranks < 1:
        raise UsageError(f"--ranks {ranks} is too small", fix="give 1 or more")
    source = with_newest_checkpoint(run, runs_dir, checkpoint, output)
    target = out or Path(f"{source.resolve().name}-{to}")
    from yoked.train.export import export

    done = export(source, target, to, checkpoint=checkpoint, force=force, ranks=ranks or 1)
    folder = path_word(target)
    loads = f"{_python()} {folder}/model.py 'The'"
    if to == "nanochat":
        loads = f"NANOCHAT_BASE_DIR={folder} python -m scripts.base_eval"
    size = f"{format_count(done.parameters)} parameters, {format_bytes(done.size_bytes)}"
    if done.val_bpb is not None:
        size += f", {done.val_bpb:.4f} bits per byte"
    evidence = [size, "README.md there says how to load it"]
    if to == "nanochat" and done.ranks:
        files = "file for 1 rank" if done.ranks == 1 else f"files for {done.ranks} ranks"
        evidence.insert(1, f"the optimizer's state has the {files} of nanochat (--ranks)")
    output.result(
        {
            "dir": str(target),
            "format": to,
            "source": str(source),
            "step": done.step,
            "val_bpb": done.val_bpb,
            "parameters": done.parameters,
            "bytes": done.size_bytes,
            **({"ranks": done.ranks} if to == "nanochat" else {}),
        },
        verdict=f"exported step {done.step:,} of {source.name} to {target}",
        evidence=evidence,
        next_commands=[loads],
    )
    return 0


def _python() -> str:
    """The Python that runs this, and so has torch, as it is called in this terminal."""
    found = shutil.which("python")
    here = Path(sys.executable)
    same = found is not None and Path(found).parent == here.parent
    return "python" if same else shlex.quote(str(here))
