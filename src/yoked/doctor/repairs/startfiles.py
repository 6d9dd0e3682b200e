"""Lines of the shell's start files, which every program that comes in by ssh obeys."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from yoked.doctor.repairs.base import repair
from yoked.doctor.repairs.files import change_file
from yoked.records.examination import Fix
from yoked.records.shell import Line, command_line, shell_line

# Those that bash, zsh and sshd read where ssh runs a program.
_FILES = shell_line("~/.bashrc ~/.zshenv ~/.ssh/environment ~/.pam_environment")


@repair
def take_out_variable(host: str, name: str) -> Fix:
    """Have no start file set a variable."""
    # It stands in a program of sed's.
    name = re.sub(r"\W", "", name, flags=re.ASCII)
    return _comment_out(host, f"(export[[:space:]]+|declare -x +)?{name}=", name)


@repair
def take_out_limit(host: str, flag: str) -> Fix:
    """Have no start file call `ulimit` with a flag."""
    return _comment_out(host, f"ulimit[[:space:]](.*[[:space:]])?-[HS]*{flag}", f"ulimit-{flag}")


def _comment_out(host: str, pattern: str, mark: str) -> Fix:
    """Lines that begin with a pattern become comments; `FILE.yoked-MARK` is the file as it was.

    It fails where no file has such a line: then it is set somewhere else.
    """
    begin = shell_line(
        "set -- $(grep -lsE {found} {files}); "
        "[ $# -gt 0 ] || {{ echo no start file has it >&2; exit 1; }}",
        found=f"^[[:space:]]*{pattern}",
        files=_FILES,
    )
    change = f"s/^[[:space:]]*{pattern}/# &/"
    return _change_each(host, begin, mark, lambda old: command_line("sed", "-E", change, old))


def _change_each(host: str, begin: Line, mark: str, change: Callable[[Line], Line]) -> Fix:
    """Change start files, each as `change_file` does. begin: sets them as arguments."""
    each = change_file(host, shell_line('"$f"'), mark, change)
    # In a subshell, for `exit` may not end that of who types it.
    line = shell_line(
        "({begin}; for f; do {change} || exit 1; done)", begin=begin, change=each.command
    )
    undo = shell_line("(for f in {files}; do {undo} || exit 1; done)", files=_FILES, undo=each.undo)
    return dataclasses.replace(each, command=line, undo=undo)


@repair
def quiet(host: str) -> Fix:
    """Have the start files end at once where nobody sits at a terminal: those that print, exit or
    wait, which is tried. It fails where none does: then something else speaks.
    """
    guard = "case $- in *i*) ;; *) return ;; esac"
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
        lambda old: shell_line("{{ echo {guard}; cat {old}; }}", guard=guard, old=old),
    )
