"""`yoked --install-completion`: the tab key of bash, zsh and fish."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from yoked.cli.flags import JsonFlag
from yoked.cli.output import Output
from yoked.errors import UsageError, YokedError

Shell = Literal["bash", "zsh", "fish"]
_STARTUP = {"bash": ".bashrc", "zsh": ".zshrc"}


def command(
    *,
    shell: Annotated[
        Shell | None, Parameter(help="The shell. Default: that in which this is typed.")
    ] = None,
    show: Annotated[
        bool,
        Parameter(name="--print", negative="", help="Print the script, and install nothing."),
    ] = False,
    json_output: JsonFlag = False,
) -> int:
    """Have the shell complete commands, flags, runs and hosts with the tab key.

    It writes the script into the shell's folder for such, and for bash and zsh what loads it into
    `~/.bashrc` or `~/.zshrc`. Do it again after an update of yoked.
    """
    from yoked.cli.main import build_app

    output = Output(json_mode=json_output)
    shell = shell or _shell_here()
    app = build_app()
    if show:
        script = app.generate_completion(shell=shell)
        if json_output:
            output.result({"shell": shell, "script": script}, verdict="")
        else:
            output.text(script)
        return 0
    try:
        path = app.install_completion(shell=shell)
        if shell == "zsh":
            _have_zsh_look(path.parent)
    except OSError as problem:
        raise YokedError(
            f"{problem.filename or Path.home()} cannot be written: {problem.strerror}",
            fix=f"yoked --install-completion --shell {shell} --print > FILE    then load FILE",
        ) from problem
    startup = _STARTUP.get(shell)
    output.result(
        {"shell": shell, "path": str(path)},
        verdict=f"{shell} completes yoked's command lines from its next start on",
        evidence=[
            f"script  {path}",
            *([f"loaded  by ~/{startup}"] if startup is not None else []),
        ],
        next_commands=[f"exec {shell}"],
    )
    return 0


def _have_zsh_look(folder: Path) -> None:
    """Have zsh look for scripts once its path has this folder: a bare ~/.zshrc never does."""
    path = Path.home() / ".zshrc"
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    # A folder of oh-my-zsh is none of ours to name.
    if str(folder) in text and "compinit" not in text.rpartition(str(folder))[2]:
        with path.open("a", encoding="utf-8") as file:
            file.write("autoload -Uz compinit && compinit -i\n")


def _shell_here() -> Shell:
    from cyclopts.completion.detect import ShellDetectionError, detect_shell

    try:
        found = detect_shell()
    except ShellDetectionError:
        found = "powershell"
    if found == "powershell":
        raise UsageError(
            "which shell this is cannot be told, or it is none of bash, zsh and fish",
            fix="yoked --install-completion --shell bash",
        )
    return found
