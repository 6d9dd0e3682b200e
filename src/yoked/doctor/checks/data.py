"""Data: whether it is whole, each name in it is a file of its own, and every host has it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from yoked.core.names import NOT_UTF8
from yoked.doctor.check import Match, check
from yoked.doctor.checks.content import (
    A_FOLDER,
    CHANGING,
    SHOWN,
    described,
    hosts_with,
    is_shadow,
    on_first_files,
    place_of,
    renamed_to_utf8,
    rsync,
    shown_name,
    spoken,
)
from yoked.doctor.checks.query import at, mapping, part
from yoked.doctor.repairs.base import by_hand, by_hand_later
from yoked.records.examination import Examination, Fix, HostSeen
from yoked.records.shell import joined
from yoked.units import first_listed, listed

# Of a FUSE mount whose program has died, and of NFS whose server has forgotten it.
_DEAD_MOUNTS = ("Transport endpoint is not connected", "Stale file handle")
_BAD_DISK = ("Input/output error", "Structure needs cleaning", "Bad message",
             "Remote I/O error")  # fmt: skip
# /dev/sda1 is a part of /dev/sda, /dev/nvme0n1p2 of /dev/nvme0n1.
_WHOLE_DISK = re.compile(r"^(/dev/(?:sd|vd|hd|xvd)[a-z]+)\d+$|^(/dev/(?:nvme|mmcblk)\w*\d)p\d+$")
_EMPTY = hashlib.sha256(b"").hexdigest()


@check(
    "data",
    question="Is the data whole, each name in it a file of its own, and the same on every host?",
    reads=("need.data", "need.damaged", "controller", "health.data"),
    severity="error",
    saw={
        **dict.fromkeys(
            ("differs", "hidden-there"), "the data on {host} is not the controller's: {described}"
        ),
        "untold": "the data on {host} could not be compared: {described}",
        "disk": "the data on {host} is not the controller's: {described}; it lies on {mount}",
        "locks": "no file of the data on {host} can be locked ({described}){mount}",
        "maps": "no file of the data on {host} can be mapped into memory ({described}){mount}",
        "copies": "{described}, in the data here{there}",
        "empty": "{described} in the data here{there}: empty",
        "hidden": "{described} in the data here{there}, which macOS left (AppleDouble)",
        "folder": "{described} in the data here{there}: a folder with the name of a file",
        "name": "{described} in the data here{there}: a name that is no UTF-8",
        "damaged": "not whole in the data here{there}: {described}",
        "named": "not whole here, and read by the program: {described}",
    },
    why={
        "differs": "ranks read other rows than they think: the loss is of something else, or an "
        "epoch ends early on one host and all hang",
        **dict.fromkeys(
            ("hidden", "hidden-there"),
            "a program that takes all names of the folder (os.listdir) reads these as rows too; "
            "`yoked train` does not",
        ),
        "disk": "a rank that comes to that file ends with an OSError; a disk, or what stands "
        "behind that mount, that cannot read what it has will lose more",
        "untold": "whoever trains there cannot read it either, or reads something else",
        "locks": "a program that locks what it reads, as HDF5 does by itself, ends there, and "
        "nowhere else, with an OSError",
        "maps": "`yoked train`, numpy.memmap, safetensors and Arrow map what they read: they end "
        "there, and nowhere else, with an OSError",
        **dict.fromkeys(
            ("damaged", "named"),
            "rows are missing, or whichever rank reads it ends with an error; hosts that have the "
            "same content agree with each other, and nobody says so",
        ),
        "copies": "a program that reads all files of the folder counts these rows twice; hosts "
        "that have the same copies agree with each other, and nobody says so",
        "empty": "a rank that is dealt it has no rows: it stands still, or ends before the others",
        "folder": "a program that counts names deals out one file too many, and fails or reads "
        "nothing there",
        "name": "a program that prints or sorts names fails: `UnicodeEncodeError`",
    },
    symptom="The loss is garbage, or lower than elsewhere; the run hangs at the end of an epoch, "
    "an epoch has more rows than the data, or a rank stands in open(). `Transport endpoint is not "
    "connected`; `No locks available`; `No such device` where a file is mapped; `Input/output "
    "error`; `IsADirectoryError`, `UnicodeEncodeError`, `ValueError`, `EOFError`.",
    cause="Shards are missing on a host, were prepared there with another tokenizer, or are left "
    "from an earlier set, which a program that takes all files reads too. A file that is a pipe, "
    "or that may not be read; a program that writes a file anew again and again. Of files that "
    "macOS left beside the data it is a warning, and of a mount that gives no locks, where another "
    "host has some. A FUSE mount whose program is gone; a share that is mounted without a page "
    "cache (sshfs -o direct_io, 9p with cache=none), of whose files none can be mapped; a disk "
    "that can no longer read a file.\n\n"
    "The data here is looked at too, and what the program names: a download that was cut off after "
    "it was given its size, or a copy that was, is an error. Warnings: a browser or a file manager "
    "wrote `4 (1).txt` beside 4.txt; a download that was cut short left a folder; names came out "
    "of an archive of another system.",
    fix="By hand, on all hosts that have it; or by `yoked train`, which sends what is missing by "
    "content hash; nothing is sent onto a disk that gives errors. A dead mount is taken away, to "
    "be mounted again.",
    on_cluster="On a cluster the data lies on one shared file system, so it cannot differ; "
    "a stale cache of it can.",
)
def data(seen: Examination) -> Iterator[Match]:
    for host in seen.up if seen.need.data else ():
        if why := mapping(part(host, "untold")).get("data"):
            again = _read_again(seen, host, str(why))
            yield Match(host.name, again, how="untold", described=why)
    yield from _of_no_use(seen)
    for host, flaws in hosts_with(seen, "data", seen.need.data):
        shown = described(flaws)
        if set(flaws.values()) == {"hidden"}:
            delete = by_hand(host.name, "find {folder} -name '._*' -delete", folder=place_of(seen))
            yield Match(host.name, delete, severity="warning", how="hidden-there", described=shown)
        elif broken := [name for name, flaw in flaws.items() if flaw.endswith(_BAD_DISK)]:
            fixes = _from_bad_disk(seen, host, broken[0])
            mount = _mount_words(host) or "a disk of which nothing is known"
            yield Match(host.name, *fixes, how="disk", described=shown, mount=mount)
        else:
            yield Match(host.name, *_brought(seen, host, flaws), how="differs", described=shown)
    yield from _damaged(seen)
    yield from _odd_names(seen)


def _read_again(seen: Examination, host: HostSeen, why: str) -> Fix:
    if why.endswith(_DEAD_MOUNTS):
        return by_hand(
            host.name,
            "take the dead mount away, and mount it again: fusermount -uz {folder} || sudo umount "
            "-l {folder}    where it lies further up, `findmnt -T {folder}` tells",
            folder=place_of(seen),
        )
    return by_hand(host.name, "mend what is said there, and look again")


def _mount_words(host: HostSeen) -> str:
    """Where the data of a host lies; empty: nobody says."""
    found = mapping(part(host, "data_mount"))
    return "{source} ({filesystem}, mounted at {place})".format(**found) if found else ""


def _from_bad_disk(seen: Examination, host: HostSeen, name: str) -> Iterator[Fix]:
    """What can be done where a file cannot be read; nothing is sent onto the same disk."""
    source = str(mapping(part(host, "data_mount")).get("source") or "")
    if source.startswith("/dev/"):
        yield by_hand(
            host.name,
            "sudo smartctl -a {disk}    tells how that disk is; `sudo dmesg | grep -i error` has "
            "what the kernel says of it",
            disk=_WHOLE_DISK.sub(r"\1\2", source),
        )
    else:
        yield by_hand(
            host.name,
            "cat {file} > /dev/null; findmnt -T {file}; sudo dmesg | tail    show what fails",
            file=place_of(seen, name),
        )
    yield by_hand(
        host.name,
        "have the data there on another disk, and send it anew from here, not from that one: "
        "mount that disk at {folder}, and then (here): {line}",
        folder=place_of(seen),
        line=rsync(seen, host),
    )


_USE_MENDS = {
    "locks": by_hand_later(
        "turn the locks of that mount on (`findmnt -T {folder}`: lockd of NFS, -o flock of "
        "Lustre), or copy the data to a disk of the host; for HDF5 alone: export "
        "HDF5_USE_FILE_LOCKING=FALSE"
    ),
    "maps": by_hand_later(
        "mount it with a page cache (`findmnt -T {folder}` shows it: cache=mmap or loose of "
        "9p, sshfs and rclone without direct_io), or copy the data to a disk of the host"
    ),
}


def _of_no_use(seen: Examination) -> Iterator[Match]:
    """Hosts where no file of the data can be locked, or mapped."""
    for how, key in (("locks", "data_lock"), ("maps", "data_map")):
        told = {host.name: str(why) for host in seen.up if (why := part(host, key))}
        # Where nobody can, all is as usual; but what `yoked train` does as well, it cannot do.
        for name, why in told.items() if how == "maps" or len(told) < len(seen.up) else ():
            mount = _mount_words(seen.host(name))
            yield Match(
                name,
                _USE_MENDS[how](name, folder=place_of(seen)),
                severity="error" if how == "maps" else "warning",
                how=how,
                described=why,
                mount=f"; it lies on {mount}" if mount else "",
            )


def _brought(seen: Examination, host: HostSeen, flaws: Mapping[str, str]) -> Iterator[Fix]:
    """What makes the data of a host that which is here."""
    changing = [name for name, flaw in flaws.items() if flaw == CHANGING]
    for name in changing[:SHOWN]:
        yield by_hand(
            host.name,
            "first stop what writes it: `fuser -v {file}` there, a few times, shows it",
            file=place_of(seen, name),
        )
    wanted, there = seen.need.data or {}, mapping(part(host, "data"))
    heard = {spoken(each): each for each in there if each not in wanted}
    for name in [name for name, flaw in flaws.items() if flaw == "spelled"][:SHOWN]:
        old, new = place_of(seen, heard[spoken(name)]), place_of(seen, name)
        yield by_hand(host.name, "mv {old} {new}", old=old, new=new)
    if set(flaws.values()) - {"extra", "hidden", "folder", "spelled"}:
        yield by_hand(
            "",
            "`yoked train` sends the data that is here to {host}; for other programs: {line}",
            host=host.name,
            line=rsync(seen, host),
        )
    extra = [name for name, flaw in flaws.items() if flaw in ("extra", "hidden")]
    folders = [name for name, flaw in flaws.items() if flaw in ("folder", A_FOLDER)]
    for word, names in (("rm", extra), ("rmdir", folders)):
        if names:
            yield by_hand(
                host.name,
                "remove what is extra there, after a look at it: {line}",
                line=on_first_files(seen, word, names),
            )


def _odd_names(seen: Examination) -> Iterator[Match]:
    """Names in the data here that are no files of their own."""
    wanted = seen.need.data or {}
    first: dict[tuple[str, str], str] = {}
    copies: dict[str, str] = {}
    # What a copy is called is longer: `4 (1).txt`, `4 copy.txt`.
    for name in sorted(wanted, key=lambda each: (len(each), each)):
        content = wanted[name]
        if content not in (A_FOLDER, _EMPTY) and not is_shadow(name, wanted):
            original = first.setdefault((content, PurePosixPath(name).suffix), name)
            copies |= {name: original} if original != name else {}
    kinds = {suffix for _, suffix in first}
    of_a_kind = [name for name in wanted if PurePosixPath(name).suffix in kinds]
    hidden = [name for name in wanted if is_shadow(name, wanted)]
    found = {
        "copies": list(copies),
        "empty": [each for each in of_a_kind if wanted[each] == _EMPTY and each not in hidden],
        "hidden": hidden,
        "folder": [each for each in of_a_kind if wanted[each] == A_FOLDER],
        "name": [each for each in wanted if NOT_UTF8.search(each)],
    }
    for how, names in found.items():
        shown = [
            shown_name(each)
            + (f" has the content of {shown_name(copies[each])}" if how == "copies" else "")
            for each in names
        ]
        if names:
            fixes, there = _everywhere(seen, how, names), _also(seen, names)
            yield Match((), *fixes, severity="warning", how=how, described=first_listed(shown),
                        there=there)  # fmt: skip


def _damaged(seen: Examination) -> Iterator[Match]:
    """Files that a program would read and that are not whole here, and so nowhere."""
    named = mapping(at(seen.controller, "damaged"))
    for how, found in (("damaged", seen.need.damaged), ("named", {} if seen.need.data else named)):
        if found:
            places = [place_of(seen, each) if how == "damaged" else each for each in found]
            get = by_hand(
                "",
                "get {files} anew from where it comes, compare its sum with the one that is told "
                "there, and bring it to all hosts",
                files=joined(" ", places[:SHOWN]),
            )
            shown = first_listed(f"{shown_name(name)} ({why})" for name, why in found.items())
            yield Match((), get, how=how, described=shown, there=_also(seen, found))


def _holders(seen: Examination, names: Iterable[str]) -> list[str]:
    """The hosts that have all of these."""
    wanted = set(names)
    return [host.name for host in seen.up if wanted <= mapping(part(host, "data")).keys()]


def _also(seen: Examination, names: Iterable[str]) -> str:
    hosts = _holders(seen, names)
    return f" and on {listed(hosts)}" if hosts else ""


def _everywhere(seen: Examination, how: str, names: list[str]) -> Iterator[Fix]:
    """What takes these names away, or mends them: here first, then on each host that has them."""
    for host in ("", *_holders(seen, names)):
        if how == "empty":
            yield by_hand(host, "bring them back, or remove them")
        elif how == "name":
            for each in names[:SHOWN]:
                yield by_hand(host, "{line}", line=renamed_to_utf8(place_of(seen), each))
        else:
            word = "rmdir" if how == "folder" else "rm"
            yield by_hand(host, "{line}", line=on_first_files(seen, word, names))


CHECKS = (data,)
