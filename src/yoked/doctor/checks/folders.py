"""The folders that a run writes to on each host: room, rights, and what lies below them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from yoked.doctor.check import Match, check
from yoked.doctor.checks.query import at, mapping, part
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.files import (
    give_folder,
    grow_shared_memory,
    make_shared_folder,
    remount_executable,
    remount_writable,
    share_folder,
)
from yoked.doctor.repairs.startfiles import take_out_variable
from yoked.records.examination import Examination, Fix, HostSeen, Severity
from yoked.units import listed

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


def _hosts_with(
    seen: Examination, names: Iterable[str], flaw: Callable[[_Folder], object]
) -> Iterator[tuple[HostSeen, dict[str, _Folder]]]:
    """Hosts that have folders with a flaw, and these folders. names: of those that count."""
    for host in seen.up:
        if found := {name: each for name, each in _folders(host, *names).items() if flaw(each)}:
            yield host, found


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


@check(
    "disk-full",
    question="Is there room for logs and checkpoints?",
    reads=("health.folders",),
    severity="error",
    saw="{least:bytes} are free for {paths} on {host}; a run needs {wanted:bytes}",
    why="the first log line or checkpoint that does not fit ends the run",
    symptom="`OSError: [Errno 28] No space left on device` at the first checkpoint.",
    cause="The disk, or the user's quota, is full. A checkpoint has weights and the "
    "optimizer's state, and a new one is whole before an old one goes.",
    fix="By hand: only you know what can go.",
    explains=("world-failed", "folder-denied"),
)
def disk_full(seen: Examination) -> Iterator[Match]:
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
            yield Match(
                host.name,
                by_hand(
                    host.name,
                    "make room: `du -xh -d1 {place} | sort -h`; `yoked clean` "
                    "removes runs that are over",
                    place=_place(full),
                ),
                severity=_severity(full),
                least=least,
                paths=_shown(full),
                wanted=needed if "state" in full else _JOB_BYTES,
            )


def _is_full(folder: _Folder, needed_bytes: int) -> bool:
    if folder.get("read_only") or folder.get("free_inodes") == 0:
        return False
    free = folder.get("free_bytes")
    return _failed(folder, "ENOSPC", "EDQUOT") or (free is not None and free < needed_bytes)


def _place(folders: Mapping[str, _Folder]) -> str:
    return str(next(iter(folders.values())).get("path"))


@check(
    "no-inodes",
    question="Can more files be made?",
    reads=("health.folders",),
    severity="error",
    saw="{paths} on {host} can take {least:,} more files, however small",
    why="the run ends with `No space left on device`, although df shows room",
    symptom="`No space left on device`, although `df` shows room; `df -i` shows none.",
    cause="Millions of small files: caches, mails, container layers.",
    fix="By hand.",
    explains=("disk-full", "folder-denied", "world-failed"),
)
def no_inodes(seen: Examination) -> Iterator[Match]:
    def is_empty(folder: _Folder) -> bool:
        left = folder.get("free_inodes")
        return left is not None and left < _FEW_INODES

    for host, empty in _hosts_with(seen, _WRITTEN, is_empty):
        yield Match(
            host.name,
            by_hand(
                host.name,
                "find the folder with the most files, and remove what is not "
                "needed: `du --inodes -x -d2 {place} | sort -n`",
                place=_place(empty),
            ),
            severity=_severity(empty),
            paths=_shown(empty),
            least=min(each["free_inodes"] for each in empty.values()),
        )


@check(
    "read-only",
    question="Can the folders of a run be written to?",
    reads=("health.folders",),
    severity="error",
    saw="the file system of {paths} on {host} is mounted read-only",
    why="nothing can be written there; the kernel does this after errors of a disk: see "
    "`dmesg` first",
    symptom="`OSError: [Errno 30] Read-only file system`.",
    cause="The kernel mounted it so after errors, or somebody did.",
    fix="Mounts it for writing again. After errors of a disk, save your files first.",
    explains=("world-failed", "folder-denied", "disk-full"),
)
def read_only(seen: Examination) -> Iterator[Match]:
    def is_locked(folder: _Folder) -> bool:
        return folder.get("read_only") or _failed(folder, "EROFS")

    for host, locked in _hosts_with(seen, _WRITTEN, is_locked):
        paths = dict.fromkeys(str(each["path"]) for each in locked.values())
        yield Match(
            host.name,
            *(remount_writable(host.name, path) for path in paths),
            severity=_severity(locked),
            paths=_shown(locked),
        )


@check(
    "folder-denied",
    question="Do the folders of a run belong to its user?",
    reads=("health.folders",),
    severity="error",
    saw="nothing can be written to {paths} on {host}: {said}{owned}",
    why="a run keeps its job, its logs and its caches there",
    symptom="`PermissionError: [Errno 13] Permission denied: '/home/ada/.cache/...'`.",
    cause="A program that was once started with sudo made ~/.cache or ~/.local its own.",
    fix="Gives the folder to the user, where it lies in the home. By hand elsewhere: "
    "others may have files there.",
    on_cluster="Kubernetes: a volume without fsGroup.",
    explains=("world-failed",),
)
def folder_denied(seen: Examination) -> Iterator[Match]:
    def is_closed(folder: _Folder) -> bool:
        full_or_locked = folder.get("read_only") or _failed(folder, "EROFS", "ENOSPC", "EDQUOT")
        return folder.get("writable") is False and not full_or_locked

    for host, closed in _hosts_with(seen, _WRITTEN, is_closed):
        said = str(next(iter(closed.values())).get("error"))
        uid = host.facts.get("uid")
        owners = {int(each.get("owner_uid", uid)) for each in closed.values()} - {uid}
        owned = f"; it belongs to user number {listed(map(str, sorted(owners)))}" if owners else ""
        yield Match(
            host.name,
            *(_hand_over(host, name, str(each["path"]), uid) for name, each in closed.items()),
            severity=_severity(closed),
            paths=_shown(closed),
            said=said,
            owned=owned,
        )


def _hand_over(host: HostSeen, name: str, path: str, uid: object) -> Fix:
    if path in ("/tmp", "/var/tmp"):  # noqa: S108 - as it is on the host
        return share_folder(host.name, path)
    if not _is_below(path, str(part(host, "folders", "home", "path") or "/")):
        # It may be everybody's: what lies there is not handed over.
        return by_hand(
            host.name,
            "set {variable} to a folder of yours, or have {path} made writable for you",
            variable=_SET_BY[name],
            path=path,
        )
    return give_folder(host.name, path, uid)


def _is_below(path: str, home: str) -> bool:
    """Whether a folder is a user's own; a home that is all there is has nothing of its own."""
    own, place = PurePosixPath(home), PurePosixPath(path)
    return len(own.parts) > 1 and own in place.parents and ".." not in place.parts


@check(
    "folder-hangs",
    question="Do the folders of a run answer?",
    reads=("health.folders",),
    severity="error",
    saw="{paths} on {host} gave no answer: {error}",
    why="a file server that is gone stops every process that looks there",
    symptom="A process that cannot be killed, state D; `ls` hangs.",
    cause="A network folder whose server is gone.",
    fix="By hand.",
    explains=("world-failed",),
)
def folder_hangs(seen: Examination) -> Iterator[Match]:
    def is_hung(folder: _Folder) -> bool:
        return bool(folder.get("error")) and "writable" not in folder

    for host, hung in _hosts_with(seen, ("home", *_WRITTEN), is_hung):
        yield Match(
            host.name,
            by_hand(host.name, "see `mount`: bring the file server up, or unmount the folder"),
            paths=_shown(hung),
            error=next(iter(hung.values()))["error"],
        )


@check(
    "tmp-missing",
    question="Is there a folder for temporary files?",
    reads=("health.folders",),
    severity="warning",
    saw={
        "": "there is no folder {path} on {host}, where temporary files go",
        "set": "there is no folder {path} on {host}, where temporary files go (TMPDIR)",
    },
    why="compilers and programs that do not look elsewhere fail",
    symptom="`FileNotFoundError: No usable temporary directory found`, or a compiler that "
    "cannot create its files.",
    cause="TMPDIR names a folder that is not there: one of a job that is over.",
    fix="Takes TMPDIR out of the shell's start file.",
    on_cluster="Slurm jobs on other nodes inherit TMPDIR of the login node.",
    explains=("noexec", "folder-denied", "disk-full"),
)
def tmp_missing(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        folder = _folders(host, "tmp").get("tmp", {})
        if folder.get("exists") is False:
            path = str(folder.get("path"))
            set_by = part(host, "environment", "TMPDIR")
            yield Match(
                host.name,
                take_out_variable(host.name, "TMPDIR")
                if set_by
                else make_shared_folder(host.name, path),
                how="set" if set_by else "",
                path=path,
            )


@check(
    "noexec",
    question="Can libraries be loaded where they lie, and where they are compiled?",
    reads=("health.folders", "torch"),
    severity="error",
    saw="the file system of {paths} on {host} is mounted noexec",
    why={
        "torch": "torch lies there, and none of its libraries can be loaded: `failed to map "
        "segment from shared object`",
        "compiled": "what is compiled there cannot be loaded: `failed to map segment from shared "
        "object`; torch.compile and yoked's kernels fall back to slower ways",
    },
    symptom="`ImportError: ... failed to map segment from shared object`, by torch itself, by "
    "torch.compile or an extension.",
    cause="The folder for temporary files, or the home, is mounted noexec.",
    fix="Lets programs run there, until the next start. Where noexec is meant: `YOKED_DATA_HOME` "
    "puts the environment elsewhere than in the home; for temporary files, `export "
    "TMPDIR=/var/tmp` in the shell's start file does as well.",
    explains=("world-failed", "torch-import", "gloo-missing", "numpy-missing"),
)
def noexec(seen: Examination) -> Iterator[Match]:
    for host, closed in _hosts_with(seen, ("home", *_WRITTEN), lambda each: each.get("noexec")):
        told = mapping(host.torch)
        home, place = at(closed, "home", "path"), str(told.get("torch_path") or "")
        shut = told.get("imported") is not True and home and _is_below(place, str(home))
        yield Match(
            host.name,
            remount_executable(host.name, _place(closed)),
            severity="error" if shut else "warning",
            how="torch" if shut else "compiled",
            paths=_shown(closed),
        )


@check(
    "shared-memory",
    question="Is there shared memory?",
    reads=("health.folders",),
    severity="warning",
    saw={
        "closed": "{host} has no shared memory that can be written: {error}",
        "small": "{host} has {free:bytes} of shared memory left (/dev/shm)",
    },
    why="workers of a DataLoader die with `Bus error`, and NCCL between the GPUs of a host "
    "fails; in a container, start it with --shm-size=2g",
    symptom="`Bus error (core dumped)`; `RuntimeError: unable to write to file </torch_...>`.",
    cause="Docker gives a container 64 MiB of /dev/shm.",
    fix="Makes it larger, until the next start; a container is started with --shm-size.",
    on_cluster="Kubernetes: mount an emptyDir of medium Memory at /dev/shm. NCCL: "
    "`NCCL WARN ... failed to extend /dev/shm`.",
)
def shared_memory(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        folder = _folders(host, "shm").get("shm")
        free = at(folder, "free_bytes")
        if folder is None or (free is None and folder.get("writable") is None):
            continue
        closed = folder.get("exists") is False or folder.get("writable") is False
        if not closed and (free is None or free >= _SHM_BYTES):
            continue
        yield Match(
            host.name,
            grow_shared_memory(host.name),
            how="closed" if closed else "small",
            error=folder.get("error"),
            free=free,
        )


@check(
    "remote-folder",
    question="Are logs and caches on a local disk?",
    reads=("health.folders",),
    severity="warning",
    saw="a network file system ({kind}) holds {paths} on {host}",
    why="logs and checkpoints wait for the server, and share the wire with the gradients",
    symptom="Now and then a step takes seconds.",
    cause="The home folder is on a file server.",
    fix="By hand: folders of a local disk for state and cache.",
)
def remote_folder(seen: Examination) -> Iterator[Match]:
    for host, far in _hosts_with(seen, _MUST, lambda each: each.get("filesystem") in _REMOTE):
        yield Match(
            host.name,
            by_hand(
                host.name,
                "set XDG_STATE_HOME and XDG_CACHE_HOME to folders of a local disk, in the "
                "shell's start file",
            ),
            kind=next(iter(far.values()))["filesystem"],
            paths=_shown(far),
        )


CHECKS = (
    folder_hangs,
    read_only,
    folder_denied,
    disk_full,
    no_inodes,
    tmp_missing,
    noexec,
    shared_memory,
    remote_folder,
)
