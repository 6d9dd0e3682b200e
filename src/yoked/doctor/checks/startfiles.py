"""Lines of the shell's start files, which every program that comes in by ssh obeys."""

from __future__ import annotations

import shlex

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
    kept = f".yoked-{mark}"
    return Fix(
        host,
        f"sed -i{kept} -E {change} $(grep -lsE {found} {_FILES})",
        undo=f'for f in {_FILES}; do if [ -e "$f{kept}" ]; then mv "$f{kept}" "$f"; fi; done',
    )


def quiet(host: str) -> Fix:
    """Have the start files end at once where nobody sits at a terminal."""
    kept, files = ".yoked-quiet", "~/.bashrc ~/.zshenv"
    guard = "case $- in *i*) ;; *) return ;; esac"
    return Fix(
        host,
        f'for f in {files}; do if [ -e "$f" ]; then cp -p "$f" "$f{kept}" && '
        f'{{ echo {shlex.quote(guard)}; cat "$f{kept}"; }} > "$f"; fi; done',
        undo=f'for f in {files}; do if [ -e "$f{kept}" ]; then mv "$f{kept}" "$f"; fi; done',
    )
