"""The folders that a run writes to on each host: room, rights, and what lies below them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from yoked.doctor.check import Check, page
from yoked.doctor.checks.reading import at, by_hand, finding, listed, mapping, part
from yoked.doctor.checks.startfiles import take_out_variable
from yoked.records.examination import Examination, Finding, Fix, HostSeen, Severity
from yoked.records.shell import Line, shell_line
from yoked.units import format_bytes

# Source: NEEDED_BYTES of yoked.agent.jobs.
_JOB_BYTES = 64 << 20
_FEW_INODES = 2000
# Docker gives a container 64 MiB.
_SHM_BYTES = 128 << 20
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "9p", "afs")
_WRITTEN = ("state", "cache", "tmp")
_SET_BY = {"state": "YOKED_STATE", "cache": "YOKED_CACHE", "tmp": "TMPDIR"}
# Python and compilers find another folder for temporary files.
_MUST = ("state", "cache")

_Folder = Mapping[str, Any]


def _folders(host: HostSeen, *names: str) -> dict[str, _Folder]:
    """What a host says of some folders, as far as it says anything."""
    told = mapping(part(host, "folders"))
    return {name: told[name] for name in names if isinstance(told.get(name), Mapping)}


def _failed(folder: _Folder, *symbols: str) -> bool:
    """Whether writing a file there ended with one of some symbols."""
    return str(folder.get("error") or "").partition(":")[0] in symbols


def _shown(folders: Mapping[str, _Folder]) -> str:
    return listed(dict.fromkeys(str(each.get("path")) for each in folders.values()))


def _severity(folders: Mapping[str, _Folder]) -> Severity:
    return "error" if any(name in _MUST for name in folders) else "warning"


def _needed_bytes(seen: Examination, host: HostSeen) -> int:
    """Rank 0's host keeps the checkpoints, and the second one a copy of the newest."""
    names = [each.name for each in seen.hosts]
    one = seen.need.checkpoint_bytes or 0
    # A new one is whole before an old one goes.
    keeps = {0: seen.need.keep + 1, 1: 2}.get(names.index(host.name), 0)
    return _JOB_BYTES + one * keeps


def _disk_full(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        needed = _needed_bytes(seen, host)
        folders = _folders(host, *_WRITTEN) or {
            name: {"path": host.facts.get(name), "free_bytes": free}
            for name, free in mapping(host.facts.get("free_bytes")).items()
            if name in _MUST
        }
        full = {
            name: each
            for name, each in folders.items()
            if _is_full(each, needed if name == "state" else _JOB_BYTES)
        }
        if full:
            least = min((each.get("free_bytes") or 0) for each in full.values())
            yield finding(
                "disk-full",
                _severity(full),
                host.name,
                f"{format_bytes(least)} are free for {_shown(full)} on {host.name}; a run needs "
                f"{format_bytes(needed if 'state' in full else _JOB_BYTES)}",
                "the first log line or checkpoint that does not fit ends the run",
                by_hand(host.name, "make room: `du -xh -d1 {place} | sort -h`; `yoked clean` "
                                   "removes runs that are over", place=_place(full)),
            )  # fmt: skip


def _is_full(folder: _Folder, needed_bytes: int) -> bool:
    if folder.get("read_only") or folder.get("free_inodes") == 0:
        return False
    free = folder.get("free_bytes")
    return _failed(folder, "ENOSPC", "EDQUOT") or (free is not None and free < needed_bytes)


def _place(folders: Mapping[str, _Folder]) -> str:
    return str(next(iter(folders.values())).get("path"))


def _no_inodes(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        empty = {
            name: each
            for name, each in _folders(host, *_WRITTEN).items()
            if each.get("free_inodes") is not None and each["free_inodes"] < _FEW_INODES
        }
        if empty:
            least = min(each["free_inodes"] for each in empty.values())
            yield finding(
                "no-inodes",
                _severity(empty),
                host.name,
                f"{_shown(empty)} on {host.name} can take {least:,} more files, however small",
                "the run ends with `No space left on device`, although df shows room",
                by_hand(host.name, "find the folder with the most files, and remove what is not "
                                   "needed: `du --inodes -x -d2 {place} | sort -n`",
                        place=_place(empty)),
            )  # fmt: skip


def _read_only(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        locked = {
            name: each
            for name, each in _folders(host, *_WRITTEN).items()
            if each.get("read_only") or _failed(each, "EROFS")
        }
        if locked:
            paths = dict.fromkeys(str(each["path"]) for each in locked.values())
            yield finding(
                "read-only",
                _severity(locked),
                host.name,
                f"the file system of {_shown(locked)} on {host.name} is mounted read-only",
                "nothing can be written there; the kernel does this after errors of a disk: see "
                "`dmesg` first",
                *dict.fromkeys(_remount(host, path) for path in paths),
            )


def _remount(host: HostSeen, path: str) -> Fix:
    def remount(how: str) -> Line:
        # The folder may not be there yet; then it is that above it which counts.
        return shell_line(
            'p={path}; while [ ! -e "$p" ]; do p=$(dirname "$p"); done; '
            'p=$(findmnt -no TARGET --target "$p" | tail -n 1); '
            'mount -o remount,{how} "$p" || mount -o remount,bind,{how} "$p"',
            path=path,
            how=how,
        )

    return Fix(host.name, remount("rw"), root=True, undo=remount("ro"))


def _denied(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        closed = {
            name: each
            for name, each in _folders(host, *_WRITTEN).items()
            if each.get("writable") is False
            and not each.get("read_only")
            and not _failed(each, "EROFS", "ENOSPC", "EDQUOT")
        }
        if not closed:
            continue
        said = str(next(iter(closed.values())).get("error"))
        uid = host.facts.get("uid")
        owners = {int(each.get("owner_uid", uid)) for each in closed.values()} - {uid}
        owned = f"; it belongs to user number {listed(map(str, sorted(owners)))}" if owners else ""
        yield finding(
            "folder-denied",
            _severity(closed),
            host.name,
            f"nothing can be written to {_shown(closed)} on {host.name}: {said}{owned}",
            "a run keeps its job, its logs and its caches there",
            *(_hand_over(host, name, str(each["path"]), uid) for name, each in closed.items()),
        )


def _hand_over(host: HostSeen, name: str, path: str, uid: object) -> Fix:
    if path in ("/tmp", "/var/tmp"):  # noqa: S108 - as it is on the host
        return Fix(host.name, shell_line("chmod 1777 {path}", path=path), root=True)
    if not _is_below(path, str(part(host, "folders", "home", "path") or "/")):
        # It may be everybody's: what lies there is not handed over.
        return by_hand(
            host.name,
            "set {variable} to a folder of yours, or have {path} made writable for you",
            variable=_SET_BY[name],
            path=path,
        )
    return Fix(
        host.name,
        shell_line(
            "mkdir -p {path} && chown -R {uid} {path} && chmod u+rwx {path}", path=path, uid=uid
        ),
        root=True,
    )


def _is_below(path: str, home: str) -> bool:
    """Whether a folder is a user's own; a home that is all there is has nothing of its own."""
    own, place = PurePosixPath(home), PurePosixPath(path)
    return len(own.parts) > 1 and own in place.parents and ".." not in place.parts


def _hangs(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        hung = {
            name: each
            for name, each in _folders(host, "home", *_WRITTEN).items()
            if each.get("error") and "writable" not in each
        }
        if hung:
            yield finding(
                "folder-hangs",
                "error",
                host.name,
                f"{_shown(hung)} on {host.name} gave no answer: "
                f"{next(iter(hung.values()))['error']}",
                "a file server that is gone stops every process that looks there",
                by_hand(host.name, "see `mount`: bring the file server up, or unmount the folder"),
            )


def _temporary(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        folder = _folders(host, "tmp").get("tmp", {})
        if folder.get("exists") is False:
            path = str(folder.get("path"))
            set_by = part(host, "environment", "TMPDIR")
            yield finding(
                "tmp-missing",
                "warning",
                host.name,
                f"there is no folder {path} on {host.name}, where temporary files go"
                + (" (TMPDIR)" if set_by else ""),
                "compilers and programs that do not look elsewhere fail",
                take_out_variable(host.name, "TMPDIR")
                if set_by
                else Fix(host.name, shell_line("mkdir -m 1777 {path}", path=path), root=True),
            )


def _no_exec(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        closed = {
            name: each
            for name, each in _folders(host, "home", *_WRITTEN).items()
            if each.get("noexec")
        }
        if closed:
            yield finding(
                "noexec",
                "warning",
                host.name,
                f"the file system of {_shown(closed)} on {host.name} is mounted noexec",
                "what is compiled there cannot be loaded: `failed to map segment from shared "
                "object`; torch.compile and yoked's kernels fall back to slower ways",
                _executable(host, closed),
            )


def _executable(host: HostSeen, folders: Mapping[str, _Folder]) -> Fix:
    def remount(how: str) -> Line:
        return shell_line(
            'mount -o remount,{how} "$(findmnt -no TARGET --target {place})"',
            how=how,
            place=_place(folders),
        )

    return Fix(host.name, remount("exec"), root=True, undo=remount("noexec"))


def _shared_memory(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        folder = _folders(host, "shm").get("shm")
        free = at(folder, "free_bytes")
        if folder is None or (free is None and folder.get("writable") is None):
            continue
        size = "--shm-size=2g"
        if folder.get("exists") is False or folder.get("writable") is False:
            saw = f"{host.name} has no shared memory that can be written: {folder.get('error')}"
        elif free is not None and free < _SHM_BYTES:
            saw = f"{host.name} has {format_bytes(free)} of shared memory left (/dev/shm)"
        else:
            continue
        yield finding(
            "shared-memory",
            "warning",
            host.name,
            saw,
            "workers of a DataLoader die with `Bus error`, and NCCL between the GPUs of a host "
            f"fails; in a container, start it with {size}",
            Fix(host.name, shell_line("mount -o remount,size=2g /dev/shm"), root=True),
        )


def _remote_folder(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        far = {
            name: each
            for name, each in _folders(host, *_MUST).items()
            if str(each.get("filesystem")) in _REMOTE
        }
        if far:
            kind = next(iter(far.values()))["filesystem"]
            yield finding(
                "remote-folder",
                "warning",
                host.name,
                f"a network file system ({kind}) holds {_shown(far)} on {host.name}",
                "logs and checkpoints wait for the server, and share the wire with the gradients",
                by_hand(
                    host.name,
                    "set XDG_STATE_HOME and XDG_CACHE_HOME to folders of a local disk, in the "
                    "shell's start file",
                ),
            )


_Run = Callable[[Examination], Iterator[Finding]]


def _check(name: str, severity: Severity, run: _Run, question: str, text: str,
           *explains: str) -> Check:  # fmt: skip
    return Check(name, question, ("health.folders",), severity, text, run, explains=explains)


CHECKS = (
    _check(
        "folder-hangs",
        "error",
        _hangs,
        "Do the folders of a run answer?",
        page(
            symptom="A process that cannot be killed, state D; `ls` hangs.",
            cause="A network folder whose server is gone.",
            fix="By hand.",
        ),
        "world-failed",
    ),
    _check(
        "read-only",
        "error",
        _read_only,
        "Can the folders of a run be written to?",
        page(
            symptom="`OSError: [Errno 30] Read-only file system`.",
            cause="The kernel mounted it so after errors, or somebody did.",
            fix="Mounts it for writing again. After errors of a disk, save your files first.",
        ),
        "world-failed",
        "folder-denied",
        "disk-full",
    ),
    _check(
        "folder-denied",
        "error",
        _denied,
        "Do the folders of a run belong to its user?",
        page(
            symptom="`PermissionError: [Errno 13] Permission denied: '/home/ada/.cache/...'`.",
            cause="A program that was once started with sudo made ~/.cache or ~/.local its own.",
            fix="Gives the folder to the user, where it lies in the home. By hand elsewhere: "
            "others may have files there.",
            elsewhere="Kubernetes: a volume without fsGroup.",
        ),
        "world-failed",
    ),
    _check(
        "disk-full",
        "error",
        _disk_full,
        "Is there room for logs and checkpoints?",
        page(
            symptom="`OSError: [Errno 28] No space left on device` at the first checkpoint.",
            cause="The disk, or the user's quota, is full. A checkpoint has weights and the "
            "optimizer's state, and a new one is whole before an old one goes.",
            fix="By hand: only you know what can go.",
        ),
        "world-failed",
        "folder-denied",
    ),
    _check(
        "no-inodes",
        "error",
        _no_inodes,
        "Can more files be made?",
        page(
            symptom="`No space left on device`, although `df` shows room; `df -i` shows none.",
            cause="Millions of small files: caches, mails, container layers.",
            fix="By hand.",
        ),
        "disk-full",
        "folder-denied",
        "world-failed",
    ),
    _check(
        "tmp-missing",
        "warning",
        _temporary,
        "Is there a folder for temporary files?",
        page(
            symptom="`FileNotFoundError: No usable temporary directory found`, or a compiler that "
            "cannot create its files.",
            cause="TMPDIR names a folder that is not there: one of a job that is over.",
            fix="Takes TMPDIR out of the shell's start file.",
            elsewhere="Slurm jobs on other nodes inherit TMPDIR of the login node.",
        ),
        "noexec",
        "folder-denied",
        "disk-full",
    ),
    _check(
        "noexec",
        "warning",
        _no_exec,
        "Can what is compiled be loaded where it is written?",
        page(
            symptom="`ImportError: ... failed to map segment from shared object`, by torch.compile "
            "or an extension.",
            cause="The folder for temporary files, or the home, is mounted noexec.",
            fix="Lets programs run there, until the next start. Where noexec is meant, `export "
            "TMPDIR=/var/tmp` in the shell's start file does as well.",
        ),
    ),
    _check(
        "shared-memory",
        "warning",
        _shared_memory,
        "Is there shared memory?",
        page(
            symptom="`Bus error (core dumped)`; `RuntimeError: unable to write to file "
            "</torch_...>`.",
            cause="Docker gives a container 64 MiB of /dev/shm.",
            fix="Makes it larger, until the next start; a container is started with --shm-size.",
            elsewhere="Kubernetes: mount an emptyDir of medium Memory at /dev/shm. NCCL: "
            "`NCCL WARN ... failed to extend /dev/shm`.",
        ),
    ),
    _check(
        "remote-folder",
        "warning",
        _remote_folder,
        "Are logs and caches on a local disk?",
        page(
            symptom="Now and then a step takes seconds.",
            cause="The home folder is on a file server.",
            fix="By hand: folders of a local disk for state and cache.",
        ),
    ),
)
