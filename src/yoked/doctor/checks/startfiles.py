"""Lines of the shell's start files, which every program that comes in by ssh obeys."""

from __future__ import annotations

import dataclasses
import shlex

from yoked.doctor.checks.keeping import change_file
from yoked.records.examination import Fix

# Those that bash, zsh and sshd read where ssh runs a program.
_FILES = "~/.bashrc ~/.zshenv ~/.ssh/environment ~/.pam_environment"


def take_out_variable(host: str, name: str) -> Fix:
    """Have no start file set a variable."""
    return _comment_out(host, f"(export[[:space:]]+|declare -x +)?{name}=", name)


def take_out_limit(host: str, flag: str) -> Fix:
    """Have no start file call `ulimit` with a flag."""
    return _comment_out(host, f"ulimit[[:space:]](.*[[:space:]])?-[HS]*{flag}", f"ulimit-{flag}")


def _comment_out(host: str, pattern: str, mark: str) -> Fix:
    """Lines that begin with a pattern become comments; `FILE.yoked-MARK` is the file as it was.

    It fails where no file has such a line: then it is set somewhere else.
    """
    found = shlex.quote(f"^[[:space:]]*{pattern}")
    change = shlex.quote(f"s/^[[:space:]]*{pattern}/# &/")
    none = "[ $# -gt 0 ] || { echo no start file has it >&2; exit 1; }"
    begin = f"set -- $(grep -lsE {found} {_FILES}); {none}"
    return _change_each(host, begin, mark, f"sed -E {change} {{old}}")


def _change_each(host: str, begin: str, mark: str, change: str) -> Fix:
    """Change start files, each as `change_file` does. begin: sets them as arguments."""
    each = change_file(host, '"$f"', mark, change)
    # In a subshell, for `exit` may not end that of who types it.
    line = f"({begin}; for f; do {each.command} || exit 1; done)"
    undo = f"(for f in {_FILES}; do {each.undo} || exit 1; done)"
    return dataclasses.replace(each, command=line, undo=undo)


def quiet(host: str) -> Fix:
    """Have the start files end at once where nobody sits at a terminal."""
    guard = "case $- in *i*) ;; *) return ;; esac"
    change = f"{{ echo {shlex.quote(guard)}; cat {{old}}; }}"
    return _change_each(host, "set -- $(ls -d ~/.bashrc ~/.zshenv 2>/dev/null)", "quiet", change)
