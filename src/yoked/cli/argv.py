"""The words of a command line, before the parser sees them: which are ours, which a program's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from yoked.core.names import path_word
from yoked.errors import UsageError

# Flags of `manifest` and `run` that stand alone; every other takes the word behind it.
BARE_FLAGS = (
    *("--json", "--help", "-h", "--version", "--detach", "--beside"),
    *("--bootstrap", "--no-bootstrap", "--doctor", "--no-doctor"),
)

# Commands about the hosts of --fleet; and flags with which a line of theirs is about no others.
_OF_A_FLEET = frozenset(
    (
        *("up", "init", "install", "hosts", "doctor", "probe", "plan", "bench", "train", "run"),
        *("runs", "watch", "attach", "logs", "diagnose", "trace", "save", "stop", "fetch"),
        *("clean", "push"),
        "data push",
    )
)
_OF_A_LAB = frozenset(f"lab {name}" for name in ("status", "exec", "shell", "fault", "heal"))
_OTHER_SUBJECT = frozenset(
    ("--fleet", "--lab", "--help", "--explain", "--params", "--simulate", "--from")
)


def split_program(tokens: Sequence[str]) -> list[str]:
    """A command line of `manifest` or `run` with `--` before the program, where it is left out.

    All that follows the program's name is the program's. Anything else is unchanged.
    """
    place = 1
    is_ours = bool(tokens) and tokens[0] in ("manifest", "run")
    while is_ours and place < len(tokens) and tokens[place] != "--":
        token = tokens[place]
        if not token.startswith("--") and token not in BARE_FLAGS:
            return [*tokens[:place], "--", *tokens[place:]]
        place += 1 if "=" in token or token in BARE_FLAGS else 2
    return list(tokens)


def split_command(tokens: Sequence[str]) -> list[str]:
    """A command line of `lab exec` with `--` before the program, where it is left out.

    As with ssh, all that follows the host's name is the program's. Anything else is unchanged.
    """
    if list(tokens[:2]) != ["lab", "exec"]:
        return list(tokens)
    place = 2
    has_host = False
    while place < len(tokens) and tokens[place] != "--":
        if tokens[place].startswith("-"):
            place += 2 if tokens[place] == "--lab" else 1
        elif has_host:
            return [*tokens[:place], "--", *tokens[place:]]
        else:
            has_host = True
            place += 1
    return list(tokens)


def own_flags(tokens: Sequence[str]) -> list[str]:
    """The part of a command line that is ours: what a program of the user's takes is not."""
    return list(tokens[: tokens.index("--")]) if "--" in tokens else list(tokens)


def flag_of(name: str, own: Sequence[str]) -> str:
    """` --fleet FILE` or the like as a command line has it, for another one; "" without it."""
    joined = [each.partition("=")[2] for each in own if each.startswith(f"{name}=")]
    value = own[own.index(name) + 1] if name in own[:-1] else "".join(joined[:1])
    return f" {name} {path_word(value)}" if value else ""


def about_fleet(line: str, flag: str) -> str:
    """A line to run with ` --fleet FILE`, where it takes one and has none. flag: that, or ""."""
    return _with_flag(line, flag, _OF_A_FLEET)


def about_lab(line: str, flag: str) -> str:
    """The same of ` --lab NAME`."""
    return _with_flag(line, flag, _OF_A_LAB)


def _with_flag(line: str, flag: str, takes_it: frozenset[str]) -> str:
    call, gap, remark = line.partition("    ")
    words = call.split(" ")
    commands = {" ".join(words[1:2]), " ".join(words[1:3])}
    is_ours = words[0] == "yoked" and not takes_it.isdisjoint(commands)
    if not is_ours or not _OTHER_SUBJECT.isdisjoint(words):
        return line
    call, program, rest = call.partition(" -- ")
    return f"{call}{flag}{program}{rest}{gap}{remark}"


def unknown_flag(name: str, command: Callable[..., object], flag: str) -> UsageError:
    """What is said of a flag that stands where a program should, and is none of the command's."""
    import difflib

    from cyclopts import App

    arguments = App(default_command=command).assemble_argument_collection()
    known = [each for argument in arguments for each in argument.names if each.startswith("--")]
    flag = flag.partition("=")[0]
    near = difflib.get_close_matches(flag, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return UsageError(f"unknown flag {flag} before the program{hint}", fix=f"yoked {name} --help")
