"""What a line does to a file that it changes, so that the file comes back as it was.

A shell empties a file before it starts what writes to it. So nothing is written over a file until
a whole copy of it is there, and nothing is put back where there is none: the line never ran.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from yoked.doctor.repairs.base import as_root, by_hand, repair
from yoked.records.examination import Fix
from yoked.records.shell import Line, command_line, joined, path_word, quoted, shell_line


def _keep(file: Line, kept: Line) -> Line:
    """Copy a file, as words of a shell; it fails where the copy's name is taken."""
    # Renamed when it is whole: a full disk leaves no half of a copy to be put back.
    return shell_line(
        "{free} && cp -p {file} {kept}.new && mv {kept}.new {kept}",
        free=is_free(kept),
        file=file,
        kept=kept,
    )


def is_free(kept: Line) -> Line:
    """Whether the name of a copy is free, as words of a shell; says so where it is not."""
    return shell_line("{{ [ ! -e {kept} ] || ! echo {kept} is there already >&2; }}", kept=kept)


def _put_back(file: Line, kept: Line) -> Line:
    """Give a file what its copy has, and remove the copy; without one nothing is done."""
    return shell_line(
        "[ ! -e {kept} ] || {{ cat {kept} > {file} && rm {kept}; }}", file=file, kept=kept
    )


def change_file(
    host: str, file: Line, mark: str, change: Callable[[Line], Line], *, root: bool = False
) -> Fix:
    """A line that changes a file, which is kept as `FILE.yoked-MARK`.

    file: as a word of a shell. change: gives the line that prints the new content, from the copy.
    """
    old = joined("", (file, _kept(mark)))
    program = shell_line("{change} > {file}", change=change(old), file=file)
    return rewrite_file(host, file, mark, program, root=root)


def rewrite_file(host: str, file: Line, mark: str, program: Line, *, root: bool = False) -> Fix:
    """A program that writes a file anew by itself; it is kept as `FILE.yoked-MARK`."""
    kept = _kept(mark)
    old = joined("", (file, kept))
    line = joined(" && ", (_keep(file, old), program))
    return Fix(host, line, root=root, undo=_put_back(file, old), kept=kept)


def _kept(mark: str) -> Line:
    return quoted(f".yoked-{mark}")


@repair
def move_package_aside(host: str, path: str) -> Fix:
    """Give a module, or the folder of a package, another name."""
    # A package is found by its folder.
    place = path.removesuffix("/__init__.py")
    moved = f"{place}.yoked-moved"
    return Fix(host, command_line("mv", place, moved), undo=command_line("mv", moved, place))


@repair
def remove_files(host: str, files: Sequence[str]) -> Fix:
    """Remove files that whoever needs them writes anew."""
    return Fix(host, command_line("rm", "-f", *files))


@repair
def drop_dead_links(host: str, folder: str) -> Fix:
    """Remove links to what is gone: pip would write through them, to where nothing is."""
    return Fix(host, command_line("find", "-L", folder, "-type", "l", "-exec", "rm", "{}", "+"))


@repair
def close_environment(host: str, settings: str) -> Fix:
    """Have an environment no longer take packages of the system and of the user along."""
    return change_file(
        host,
        quoted(settings),
        "packages",
        lambda old: command_line(
            "sed", "-E", "s/^(include-system-site-packages *= *).*/\\1false/", old
        ),
    )


@repair
def name_home(host: str, python: str) -> Fix:
    """Have an environment take the library of the Python that its own link leads to."""
    home = shell_line(
        '"s|^home *=.*|home = $(dirname "$(readlink -f {python})")|"', python=path_word(python)
    )
    return change_file(
        host,
        path_word(f"{PurePosixPath(python).parent.parent}/pyvenv.cfg"),
        "home",
        lambda old: shell_line("sed {home} {old}", home=home, old=old),
    )


def let_use(host: str, told: Mapping[str, Any]) -> Fix:
    """Let all use a place, and of packages the others that came with it. told: place, lacks and
    user, as `barred` of yoked.core.unusable tells them.
    """
    place = str(told["place"])
    folder, packages, _ = place.partition("-packages/")
    what = (
        shell_line("-R a+rX {place}", place=f"{folder}{packages}")
        if packages
        else shell_line("{mode} {place}", mode=f"a+{told['lacks']}", place=place)
    )
    return by_hand(
        host,
        "sudo chmod {what}    where {user} may not use sudo, its owner does it; or take another "
        "Python (`yoked install`, once no `python` stands for this host in the fleet's file)",
        what=what,
        user=told["user"],
    )


@repair
def drop_library_folder(host: str, file: str, folder: str) -> Fix:
    """Have the loader no longer look into a folder. file: of ld.so.conf(5), which has its line."""
    path = quoted(file)
    fix = change_file(
        host,
        path,
        "libraries",
        # grep gives 1 where no other line is left.
        lambda old: shell_line("{{ grep -vxF {folder} {old} || :; }}", folder=folder, old=old),
        root=True,
    )
    line = shell_line("{change} && ldconfig", change=fix.command)
    undo = shell_line("{{ {undo}; }} && ldconfig", undo=fix.undo)
    return replace(fix, command=line, undo=undo)


@repair
def move_aside(host: str, file: str) -> Fix:
    """Give a file another name, so that nothing reads it."""
    old, new = path_word(file), path_word(f"{file}.yoked-moved")
    line, back = command_line("mv", old, new), command_line("mv", new, old)
    return Fix(host, line, root=file.startswith("/etc/"), undo=back)


@repair
def remount_writable(host: str, path: str) -> Fix:
    """Mount the file system of a folder for writing again; it fails where that changes nothing."""

    def remount(how: str) -> Line:
        # The folder may not be there yet; then it is that above it which counts.
        return shell_line(
            'p={path}; while [ ! -e "$p" ]; do p=$(dirname "$p"); done; '
            'p=$(findmnt -no TARGET --target "$p" | tail -n 1); '
            '{{ mount -o remount,{how} "$p" || mount -o remount,bind,{how} "$p"; }}',
            path=path,
            how=how,
        )

    # A disk, and a bind mount above it, can each be read-only by itself.
    is_done = shell_line(
        '! findmnt -no OPTIONS --target "$p" | tail -n 1 | grep -qE {ro}', ro="(^|,)ro(,|$)"
    )
    line = joined(" && ", (remount("rw"), is_done))
    return Fix(host, line, root=True, undo=remount("ro"))


@repair
def remount_executable(host: str, path: str) -> Fix:
    """Let programs of a folder's file system run, until the next start."""

    return as_root(
        host,
        'mount -o remount,exec "$(findmnt -no TARGET --target {path})"',
        'mount -o remount,noexec "$(findmnt -no TARGET --target {path})"',
        path=path,
    )


@repair
def give_folder(host: str, path: str, uid: object) -> Fix:
    """Give a folder, and all below it, to a user."""
    return as_root(
        host, "mkdir -p {path} && chown -R {uid} {path} && chmod u+rwx {path}", path=path, uid=uid
    )


@repair
def make_mutable(host: str, path: str, marks: str) -> Fix:
    """Let a folder be changed that was marked so that nobody may, root included.

    marks: "i", "a" or "ia", as chattr(1) has them.
    """
    values = {"less": f"-{marks}", "more": f"+{marks}", "path": path}
    return as_root(host, "chattr {less} {path}", "chattr {more} {path}", **values)


@repair
def share_folder(host: str, path: str) -> Fix:
    """Let everybody write to a folder for temporary files, and remove his own alone."""
    return as_root(host, "chmod 1777 {path}", path=path)


@repair
def make_shared_folder(host: str, path: str) -> Fix:
    """Make a folder for everybody's temporary files."""
    return as_root(host, "mkdir -m 1777 {path}", path=path)


@repair
def grow_shared_memory(host: str) -> Fix:
    """Make /dev/shm larger, 2 GiB or twice of what it is, until the next start."""
    return as_root(
        host,
        "mount -o remount,rw,size=$(df -Pk /dev/shm | awk 'NR == 2 {{ s = 2 * $2; "
        "print (s > 2097152 ? s : 2097152) }}')k /dev/shm",
    )


@repair
def close_ssh_folder(host: str) -> Fix:
    """Give the user's ssh files the modes that sshd wants (StrictModes of sshd_config(5)), where
    they have others; those are printed.
    """
    line = shell_line(
        "find ~ ~/.ssh ~/.ssh/authorized_keys -prune '(' -perm -020 -o -perm -002 ')' "
        "-print -exec chmod go-w {{}} + && chmod u+rwx ~/.ssh"
    )
    return Fix(host, line)


@repair
def close_key(path: str) -> Fix:
    """Keep others from reading a key of this machine, which ssh passes over otherwise."""
    return Fix("", command_line("chmod", "go=", path))


@repair
def renew_pub(key: str) -> Fix:
    """Have the .pub beside a key of this machine be of that key."""
    public = shell_line("{path}", path=f"{key}.pub")
    return change_file("", public, "renewed", lambda _: command_line("ssh-keygen", "-y", "-f", key))


@repair
def pass_over_block(path: str, line: int, *, root: bool) -> Fix:
    """Make a block of ssh's settings here a comment: from its `Match` or `Host` to the next."""
    program = shell_line(
        "awk -v from={line} {program}",
        line=line,
        program="NR == from { on = 1 } NR > from && tolower($1) ~ /^(host|match)$/ { on = 0 } "
        '{ print (on ? "# " : "") $0 }',
    )
    return change_file(
        "",
        path_word(path),
        f"block{line}",
        lambda old: shell_line("{program} {old}", program=program, old=old),
        root=root,
    )


@repair
def leave_lines_out(path: str, lines: Sequence[int], *, root: bool) -> Fix:
    """Make lines of ssh's settings here comments."""
    program = "; ".join(f"{line}s/^/# /" for line in lines)
    return change_file(
        "",
        path_word(path),
        f"line{lines[0]}",
        lambda old: shell_line("sed {program} {old}", program=program, old=old),
        root=root,
    )


@repair
def make_executable(host: str, path: str) -> Fix:
    """Let a program run. It fails where a file system forbids it, or the file is no program."""
    return Fix(host, shell_line("chmod a+x {path} && {path} --version", path=path_word(path)))


@repair
def name_for_ssh(config: str, name: str, address: str) -> Fix:
    """Have ssh take a name for an address, on the controller."""
    # ssh takes the first that it finds, so it must stand before `Host *`. Quoted for printf, which
    # would take a % for its own.
    entry = f"Host {name}\\n  HostName {address}\\n\\n".replace("%", "%%")
    path = path_word(config)
    mark = f"{zlib.crc32(entry.encode()):08x}"
    fix = change_file(
        "",
        path,
        mark,
        lambda old: shell_line("{{ printf {entry}; cat {old}; }}", entry=entry, old=old),
    )
    line = shell_line("touch {path} && {line}", path=path, line=fix.command)
    return replace(fix, command=line)
