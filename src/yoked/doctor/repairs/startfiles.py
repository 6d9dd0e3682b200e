"""Lines of the shell's start files, which every program that comes in by ssh obeys."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from yoked.doctor.repairs.base import by_hand, repair
from yoked.doctor.repairs.files import change_file
from yoked.records.examination import Fix
from yoked.records.shell import Line, command_line, joined, path_word, shell_line

# Those that bash, zsh and sshd read where ssh runs a program.
_FILES = shell_line("~/.bashrc ~/.zshenv ~/.ssh/environment ~/.pam_environment")
# Those of a home, and of a system, whose lines are assignments of sh, or as short.
_OF_USER = frozenset(
    {".bashrc", ".bash_profile", ".bash_login", ".bash_aliases", ".profile", ".zshenv", ".zprofile",
     ".zshrc", ".pam_environment", ".ssh/environment"}
)  # fmt: skip
_OF_SYSTEM = re.compile(
    r"/etc/(environment|profile|profile\.d/[^/]+\.sh|bash\.bashrc|bashrc|zsh/zshenv|zshenv)"
)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SSHD = re.compile(r".*/sshd_config(\.d/[^/]+)?")
# An assignment, with a value of one word or in double quotes; what else there is has the whole line
# made a comment.
_BEGIN = r"[[:space:]]*(export[[:space:]]+|declare -x +)?"
_VALUE = r'("[^"]*"|[^[:space:];"]*)'
_OTHERS = rf"([A-Za-z_][A-Za-z0-9_]*={_VALUE}[[:space:]]+)"


def unset_variable(
    host: str, home: object, name: str, places: Sequence[Mapping[str, Any]] | None
) -> Iterator[Fix]:
    """Have a host's start files no longer set a variable.

    places: the files and lines that do, as yoked.agent.startfiles tells them; None: it is not known
    which. home: the user's folder.
    """
    if places is None:
        yield take_out_variable(host, name)
        return
    yield from leave_out_lines(host, [each for each in places if each.get("traced")])
    files = list(dict.fromkeys(str(each["file"]) for each in places if not each.get("traced")))
    if not _NAME.fullmatch(name):
        # No program of sed's is made of what is no name.
        yield by_hand(host, "take {name} out of the shell's start files", name=name)
        return
    own = [each for each in files if each.removeprefix(f"{home}/") in _OF_USER]
    system = [each for each in files if _OF_SYSTEM.fullmatch(each)]
    if own:
        yield take_out_variable(host, name, own)
    if system:
        yield take_out_variable(host, name, system, root=True)
    for each in files:
        if each in own or each in system:
            continue
        if each.endswith("/fish/fish_variables"):
            # The file is fish's own: each of its shells may write it anew.
            yield by_hand(host, "fish -c {words}", words=f"set -e -U {name}")
        elif _SSHD.fullmatch(each):
            yield by_hand(
                host,
                "take {name} out of {file} (SetEnv), then: sudo systemctl reload ssh",
                name=name,
                file=each,
            )
        else:
            yield by_hand(host, "take {name} out of {file}", name=name, file=each)
    if not places:
        yield by_hand(
            host,
            "no start file that was read sets {name}: a unit, a container or PAM may; take it out "
            "there, or log in and try `env -u {name} PROGRAM`, which tells whether it is to blame",
            name=name,
        )


@repair
def take_out_variable(
    host: str, name: str, files: Sequence[str] | None = None, *, root: bool = False
) -> Fix:
    """Have no start file set a variable. files: those that do; None: whichever does."""
    # It stands in a program of sed's.
    name = re.sub(r"\W", "", name, flags=re.ASCII)
    sets = rf"{_BEGIN}{_OTHERS}*{name}="
    # First where others stand behind it, then in front of it, then alone.
    programs = (
        rf"s/^({_BEGIN}{_OTHERS}*){name}={_VALUE}[[:space:]]+([A-Za-z_][A-Za-z0-9_]*=)/\1\6/",
        rf"s/^({_BEGIN}{_OTHERS}+){name}={_VALUE}[[:space:]]*$/\1/",
        rf"s/^{_BEGIN}{name}=/# &/",
    )
    among = _FILES if files is None else joined(" ", files)
    return _comment_out(host, sets, programs, name, among, root=root)


_GUARD = "case $- in *i*) ;; *) return ;; esac"


@repair
def leave_out_line(host: str, file: str, line: int) -> Fix:
    """Make a line of a start file, or of PAM's settings, a comment.

    Where a start file is no program of bash without it, the line being a part of a longer command,
    all of the file is for those who sit at a terminal.
    """

    def change(old: Line) -> Line:
        less = shell_line("sed {program} {old}", program=f"{line}s/^/# /", old=old)
        if file.startswith("/etc/security/"):
            return less
        return shell_line(
            "{{ {less} | bash -n 2> /dev/null && {less} || {{ echo {guard}; cat {old}; }}; }}",
            less=less,
            guard=_GUARD,
            old=old,
        )

    root = file.startswith(("/etc/", "/usr/", "/opt/"))
    return change_file(host, path_word(file), f"line{line}", change, root=root)


def leave_out_lines(host: str, places: Sequence[Mapping[str, Any]]) -> tuple[Fix, ...]:
    """The same for several lines: file and line of each."""
    # Of one file the last first: a line that was taken out moves none, a guard in front does.
    last_first = sorted(places, key=lambda each: -int(each.get("line") or 0))
    return tuple(leave_out_line(host, str(p["file"]), int(p.get("line") or 0)) for p in last_first)


@repair
def unix_line_ends(host: str, file: str) -> Fix:
    """Take the carriage returns out of a start file that was written on Windows."""
    root = file.startswith("/etc/")
    return change_file(
        host, path_word(file), "crlf", lambda old: shell_line("tr -d '\\r' < {old}", old=old),
        root=root,
    )  # fmt: skip


@repair
def own_state_folder(host: str) -> Fix:
    """Have each host that reads this start file keep its jobs in a folder of its own."""
    line = "export YOKED_STATE=$HOME/.local/state/yoked-${HOSTNAME:-$(hostname)}"
    return change_file(
        host,
        shell_line("~/.bashrc"),
        "state",
        lambda old: shell_line("{{ echo {line}; cat {old}; }}", line=line, old=old),
    )


@repair
def take_out_limit(host: str, flag: str) -> Fix:
    """Have no start file call `ulimit` with a flag."""
    calls = f"[[:space:]]*ulimit[[:space:]](.*[[:space:]])?-[HS]*{flag}"
    return _comment_out(host, calls, (f"s/^{calls}/# &/",), f"ulimit-{flag}", _FILES)


def _comment_out(
    host: str, pattern: str, programs: Sequence[str], mark: str, files: Line, *, root: bool = False
) -> Fix:
    """Change lines that begin with a pattern; `FILE.yoked-MARK` is the file as it was.

    programs: of sed, one after the other. It fails where no file has such a line: then it is set
    somewhere else.
    """
    begin = shell_line(
        "set -- $(grep -lsE {found} {files}); "
        "[ $# -gt 0 ] || {{ echo no start file has it >&2; exit 1; }}",
        found=f"^{pattern}",
        files=files,
    )
    words = [word for program in programs for word in ("-e", program)]
    return _change_each(
        host, begin, mark, lambda old: command_line("sed", "-E", *words, old), files, root=root
    )


def _change_each(
    host: str,
    begin: Line,
    mark: str,
    change: Callable[[Line], Line],
    files: Line = _FILES,
    *,
    root: bool = False,
) -> Fix:
    """Change start files, each as `change_file` does. begin: sets them as arguments."""
    each = change_file(host, shell_line('"$f"'), mark, change, root=root)
    # In a subshell, for `exit` may not end that of who types it.
    line = shell_line(
        "({begin}; for f; do {change} || exit 1; done)", begin=begin, change=each.command
    )
    undo = shell_line("(for f in {files}; do {undo} || exit 1; done)", files=files, undo=each.undo)
    return dataclasses.replace(each, command=line, undo=undo)


@repair
def quiet(host: str) -> Fix:
    """Have the start files end at once where nobody sits at a terminal: those that print, exit or
    wait, which is tried. It fails where none does: then something else speaks.
    """
    # Each is read by its own shell, as over ssh, with a word behind it that must be all there is.
    # Within limits, where the host has the program for that.
    begin = shell_line(
        'set --; for f in ~/.bashrc ~/.zshenv; do s=bash; [ "$f" = ~/.bashrc ] || s=zsh; '
        '[ -e "$f" ] && command -v $s > /dev/null || continue; '
        '[ "$(SSH_CLIENT=tried SHLVL=9 $(command -v timeout > /dev/null && echo timeout 9) '
        '$s -c \'. "$0"; echo in\' "$f" < /dev/null 2> /dev/null)" = in ] || '
        'set -- "$@" "$f"; done; '
        "[ $# -gt 0 ] || {{ echo 'no start file prints, exits or waits: see ForceCommand of sshd, "
        "command= of the key, ~/.ssh/rc' >&2; exit 1; }}"
    )
    return _change_each(
        host,
        begin,
        "quiet",
        lambda old: shell_line("{{ echo {guard}; cat {old}; }}", guard=_GUARD, old=old),
    )
