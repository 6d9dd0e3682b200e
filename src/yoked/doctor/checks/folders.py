"""The folders that a run writes to on each host: room, rights, and what lies below them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from yoked.doctor.check import Match, check
from yoked.doctor.checks.environment import take_out
from yoked.doctor.checks.folder_query import (
    MUST,
    WRITTEN,
    Folder,
    failed,
    folders_of,
    hosts_with,
    is_below,
    place_of,
    severity_of,
    shown,
)
from yoked.doctor.checks.query import at, mapping, part
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.files import (
    give_folder,
    grow_shared_memory,
    make_mutable,
    make_shared_folder,
    remount_executable,
    remount_writable,
    share_folder,
)
from yoked.records.examination import Examination, Fix, HostSeen
from yoked.units import format_duration, listed

# Source: NEEDED_BYTES of yoked.agent.jobs.
_JOB_BYTES = 64 << 20
_FEW_INODES = 2000
# sun_path of unix(7), less what multiprocessing adds: /pymp-abcdefgh/listener-abcdefgh.
_LONGEST_TMP = 107 - 32
# Docker gives a container 64 MiB.
_SHM_BYTES = 128 << 20
_NEVER_WRITTEN = ("squashfs", "iso9660", "erofs", "cramfs", "romfs", "fuse.squashfuse")
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "9p", "afs")
_SET_BY = {"state": "YOKED_STATE", "cache": "YOKED_CACHE", "tmp": "TMPDIR"}
# What most of these checks have in common.
_check = partial(check, reads=("health.folders",), severity="error")


def _needed_bytes(seen: Examination, host: HostSeen) -> int:
    """Rank 0's host keeps the checkpoints, and the second one a copy of the newest."""
    names = [each.name for each in seen.hosts]
    one = seen.need.checkpoint_bytes or 0
    # A new one is whole before an old one goes.
    keeps = {0: seen.need.keep + 1, 1: 2}.get(names.index(host.name), 0)
    return _JOB_BYTES + one * keeps


@_check(
    "disk-full",
    question="Is there room for logs and checkpoints?",
    saw="{least:bytes} are free for {paths} on {host}; a run needs {wanted:bytes}",
    why="the first log line or checkpoint that does not fit ends the run",
    symptom="`OSError: [Errno 28] No space left on device` at the first checkpoint.",
    cause="The disk, or the user's quota, is full. A checkpoint has weights and the "
    "optimizer's state, and a new one is whole before an old one goes.",
    fix="By hand: only you know what can go.",
    explains=("program-acts", "world-failed", "folder-denied"),
)
def disk_full(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        needed = _needed_bytes(seen, host)
        folders = folders_of(host, *WRITTEN) or {
            name: {"path": host.facts.get(name), "free_bytes": free}
            for name, free in mapping(host.facts.get("free_bytes")).items()
            if name in MUST
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
                    place=place_of(full),
                ),
                severity=severity_of(full),
                least=least,
                paths=shown(full),
                wanted=needed if "state" in full else _JOB_BYTES,
            )


def _is_full(folder: Folder, needed_bytes: int) -> bool:
    if folder.get("read_only") or folder.get("free_inodes") == 0:
        return False
    free = folder.get("free_bytes")
    return failed(folder, "ENOSPC", "EDQUOT") or (free is not None and free < needed_bytes)


@_check(
    "no-inodes",
    question="Can more files be made?",
    saw="{paths} on {host} can take {least:,} more files, however small",
    why="the run ends with `No space left on device`, although df shows room",
    symptom="`No space left on device`, although `df` shows room; `df -i` shows none.",
    cause="Millions of small files: caches, mails, container layers.",
    fix="By hand.",
    explains=("program-acts", "disk-full", "folder-denied", "world-failed"),
)
def no_inodes(seen: Examination) -> Iterator[Match]:
    def is_empty(folder: Folder) -> bool:
        left = folder.get("free_inodes")
        return left is not None and left < _FEW_INODES

    for host, empty in hosts_with(seen, WRITTEN, is_empty):
        yield Match(
            host.name,
            by_hand(
                host.name,
                "find the folder with the most files, and remove what is not "
                "needed: `du --inodes -x -d2 {place} | sort -n`",
                place=place_of(empty),
            ),
            severity=severity_of(empty),
            paths=shown(empty),
            least=min(each["free_inodes"] for each in empty.values()),
        )


@_check(
    "read-only",
    question="Can the folders of a run be written to?",
    saw="the file system of {paths} on {host} is mounted read-only",
    why="nothing can be written there; the kernel does this after errors of a disk: see "
    "`dmesg` first",
    symptom="`OSError: [Errno 30] Read-only file system`.",
    cause="The kernel mounted it so after errors, or somebody did.",
    fix="Mounts it for writing again. After errors of a disk, save your files first. An image that "
    "nobody can write (squashfs, a CD) stays as it is: yoked's folders go elsewhere.",
    explains=("world-failed", "folder-denied", "disk-full"),
)
def read_only(seen: Examination) -> Iterator[Match]:
    def is_locked(folder: Folder) -> bool:
        return folder.get("read_only") or failed(folder, "EROFS")

    for host, locked in hosts_with(seen, WRITTEN, is_locked):
        kinds = {str(each["path"]): each.get("filesystem") for each in locked.values()}
        yield Match(
            host.name,
            *(
                by_hand(
                    host.name,
                    "export YOKED_STATE and YOKED_CACHE with folders of another disk, in a start "
                    "file of the shell",
                )
                if kinds[path] in _NEVER_WRITTEN
                else remount_writable(host.name, path)
                for path in kinds
            ),
            severity=severity_of(locked),
            paths=shown(locked),
        )


@_check(
    "folder-denied",
    question="Do the folders of a run belong to its user, and keep what is written?",
    reads=("health.folders", "health.clock"),
    saw={
        "emptied": "what is written to {paths} on {host} does not stay: {said}{more}",
        **dict.fromkeys(
            ("", "immutable"), "nothing can be written to {paths} on {host}: {said}{more}"
        ),
        "blocked": "{paths} cannot be made on {host}: {said}{more}",
    },
    why="a run keeps its job, its logs and its caches there",
    symptom="`PermissionError: [Errno 13] Permission denied: '/home/ada/.cache/...'`; or "
    "`[Errno 2] No such file or directory`, `[Errno 17] File exists`.",
    cause="A program that was once started with sudo made ~/.cache or ~/.local its own; or one of "
    "them is a link to a disk that is not mounted, a file, or immutable (chattr +i, +a). Or a "
    "program empties it, or keeps it alike on two machines: a file that the doctor left was gone a "
    "moment later, or had another name.",
    fix="Gives the folder to the user, where it lies in the home, and takes chattr's mark away. By "
    "hand elsewhere: others may have files there, and only you know which disk is missing, or "
    "which program removes files.",
    on_cluster="Kubernetes: a volume without fsGroup.",
    explains=("world-failed", "agent-failed"),
)
def folder_denied(seen: Examination) -> Iterator[Match]:
    def is_closed(folder: Folder) -> bool:
        full_or_locked = folder.get("read_only") or failed(folder, "EROFS", "ENOSPC", "EDQUOT")
        is_denied = folder.get("writable") is False and not full_or_locked
        return is_denied or folder.get("kept") is False

    for host, closed in hosts_with(seen, WRITTEN, is_closed):
        by_cause: dict[str, dict[str, Folder]] = {}
        for name, each in closed.items():
            by_cause.setdefault(_why_closed(each), {})[name] = each
        for how, folders in by_cause.items():
            uid = host.facts.get("uid")
            more, fixes = _opened(host, how, folders, uid)
            yield Match(
                host.name,
                *fixes,
                severity=severity_of(folders),
                how=how,
                paths=shown(folders),
                said=_said(host, how, folders),
                more=more,
            )


def _why_closed(folder: Folder) -> str:
    if folder.get("blocked"):
        return "blocked"
    if folder.get("writable") is False:
        return "immutable" if folder.get("marks") else ""
    return "emptied"


def _said(host: HostSeen, how: str, folders: Mapping[str, Folder]) -> str:
    if how != "emptied":
        return str(next(iter(folders.values())).get("error"))
    within = format_duration(part(host, "clock", "watched_s") or 0.0)
    now = next(iter(folders.values())).get("now") or "gone"
    became = now if now in ("gone", "another file") else f"called {now}"
    return f"a file of the doctor's was {became} within {within}"


def _opened(
    host: HostSeen, how: str, folders: Mapping[str, Folder], uid: object
) -> tuple[str, tuple[Fix, ...]]:
    """(more of what is wrong with folders, the lines that open them)."""
    if how == "immutable":
        marks = {str(each.get("place")): str(each.get("marks")) for each in folders.values()}
        fixes = tuple(make_mutable(host.name, *each) for each in marks.items())
        shown = listed(dict.fromkeys(marks.values()))
        return f"; {listed(marks)} is immutable (lsattr shows an {shown})", fixes
    if how == "emptied":
        return "", (
            by_hand(
                host.name,
                "find what does it, and have it leave {place} alone: a cleaner, a loop, or what "
                "keeps folders alike on two machines, as Syncthing does, which reads .stignore "
                "(`ps aux`), `systemctl list-timers`, `crontab -l`, /etc/tmpfiles.d",
                place=place_of(folders),
            ),
        )
    if how == "blocked":
        ways = {str(each["blocked"]): each.get("link_to") for each in folders.values()}
        told = [
            f"{way} is a link to {to}, which is not there" if to else f"{way} is no folder"
            for way, to in ways.items()
        ]
        return f"; {listed(told)}", tuple(_cleared(host, way, to) for way, to in ways.items())
    owners = {each.get("owner_uid") for each in folders.values()}
    foreign = sorted(each for each in owners if isinstance(each, int) and each != uid)
    owned = f"; it belongs to user number {listed(map(str, foreign))}" if foreign else ""
    return owned, tuple(
        _hand_over(host, name, str(each["path"]), uid) for name, each in folders.items()
    )


def _cleared(host: HostSeen, way: str, link_to: object) -> Fix:
    if link_to:
        return by_hand(
            host.name,
            "mount the disk that {to} lies on, or, where there is none any more: mkdir -p {to}",
            to=link_to,
        )
    return by_hand(host.name, "give the file another name: mv {way} {aside}", way=way,
                   aside=f"{way}.old")  # fmt: skip


def _hand_over(host: HostSeen, name: str, path: str, uid: object) -> Fix:
    if path in ("/tmp", "/var/tmp"):  # noqa: S108 - as it is on the host
        return share_folder(host.name, path)
    if not is_below(path, str(part(host, "folders", "home", "path") or "/")):
        # It may be everybody's: what lies there is not handed over.
        return by_hand(
            host.name,
            "set {variable} to a folder of yours, or have {path} made writable for you",
            variable=_SET_BY[name],
            path=path,
        )
    return give_folder(host.name, path, uid)


@_check(
    "folder-hangs",
    question="Do the folders of a run answer?",
    saw="{paths} on {host} gave no answer: {error}",
    why="a file server that is gone stops every process that looks there",
    symptom="A process that cannot be killed, state D; `ls` hangs.",
    cause="A network folder whose server is gone.",
    fix="By hand.",
    explains=("program-acts", "world-failed", "agent-failed"),
)
def folder_hangs(seen: Examination) -> Iterator[Match]:
    def is_hung(folder: Folder) -> bool:
        return bool(folder.get("error")) and "writable" not in folder

    for host, hung in hosts_with(seen, ("home", *WRITTEN), is_hung):
        yield Match(
            host.name,
            by_hand(host.name, "see `mount`: bring the file server up, or unmount the folder"),
            paths=shown(hung),
            error=next(iter(hung.values()))["error"],
        )


@_check(
    "tmp-missing",
    question="Is there a folder for temporary files?",
    severity="warning",
    saw={
        "": "there is no folder {path} on {host}, where temporary files go",
        "set": "there is no folder {path} on {host}, where temporary files go (TMPDIR)",
        "long": "{path}, where temporary files go on {host} (TMPDIR), is too long a name for a "
        "socket in it",
    },
    why={
        **dict.fromkeys(("", "set"), "compilers and programs that do not look elsewhere fail"),
        "long": "workers of a DataLoader cannot pass tensors: `AF_UNIX path too long`",
    },
    symptom="`FileNotFoundError: No usable temporary directory found`, or a compiler that "
    "cannot create its files.",
    cause="TMPDIR names a folder that is not there: one of a job that is over.",
    fix="Takes TMPDIR out of the shell's start file.",
    on_cluster="Slurm jobs on other nodes inherit TMPDIR of the login node.",
    explains=("noexec", "folder-denied", "disk-full"),
)
def tmp_missing(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        folder = folders_of(host, "tmp").get("tmp", {})
        path = str(folder.get("path"))
        set_by = part(host, "environment", "TMPDIR")
        if set_by and len(path.encode()) > _LONGEST_TMP and folder.get("exists") is not False:
            yield Match(host.name, *take_out(host, ["TMPDIR"]), how="long", path=path)
        if folder.get("exists") is False:
            yield Match(
                host.name,
                *(
                    (*take_out(host, ["TMPDIR"]),)
                    if set_by
                    else (make_shared_folder(host.name, path),)
                ),
                how="set" if set_by else "",
                path=path,
            )


@_check(
    "noexec",
    question="Can libraries be loaded where they lie, and where they are compiled?",
    reads=("health.folders", "torch"),
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
    for host, closed in hosts_with(seen, ("home", *WRITTEN), lambda each: each.get("noexec")):
        told = mapping(host.torch)
        home, place = at(closed, "home", "path"), str(told.get("torch_path") or "")
        shut = told.get("imported") is not True and home and is_below(place, str(home))
        yield Match(
            host.name,
            remount_executable(host.name, place_of(closed)),
            severity="error" if shut else "warning",
            how="torch" if shut else "compiled",
            paths=shown(closed),
        )


@_check(
    "shared-memory",
    question="Is there shared memory?",
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
        folder = folders_of(host, "shm").get("shm")
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


@_check(
    "remote-folder",
    question="Are logs and caches on a local disk?",
    severity="warning",
    saw="a network file system ({kind}) holds {paths} on {host}",
    why="logs and checkpoints wait for the server, and share the wire with the gradients",
    symptom="Now and then a step takes seconds.",
    cause="The home folder is on a file server.",
    fix="By hand: folders of a local disk for state and cache.",
)
def remote_folder(seen: Examination) -> Iterator[Match]:
    for host, far in hosts_with(seen, MUST, lambda each: each.get("filesystem") in _REMOTE):
        yield Match(
            host.name,
            by_hand(
                host.name,
                "set XDG_STATE_HOME and XDG_CACHE_HOME to folders of a local disk, in the "
                "shell's start file",
            ),
            kind=next(iter(far.values()))["filesystem"],
            paths=shown(far),
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
