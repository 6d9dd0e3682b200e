"""Data and code: whether every host has what the controller has."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from yoked.doctor.check import Match, check
from yoked.doctor.checks.query import at, mapping, part
from yoked.doctor.repairs.base import by_hand, by_hand_later
from yoked.doctor.repairs.fleet import fleet_flag
from yoked.records.examination import Examination, Fix, HostSeen
from yoked.records.shell import Line, command_line, joined, path_word, shell_line
from yoked.units import listed, plural

_SHOWN = 3
# Of a FUSE mount whose program has died, and of NFS whose server has forgotten it.
_DEAD_MOUNTS = ("Transport endpoint is not connected", "Stale file handle")
_BAD_DISK = ("Input/output error", "Structure needs cleaning", "Bad message",
             "Remote I/O error")  # fmt: skip
# /dev/sda1 is a part of /dev/sda, /dev/nvme0n1p2 of /dev/nvme0n1.
_WHOLE_DISK = re.compile(r"^(/dev/(?:sd|vd|hd|xvd)[a-z]+)\d+$|^(/dev/(?:nvme|mmcblk)\w*\d)p\d+$")
# In the place of the hash of a file whose content was another a moment later.
CHANGING = "changing: written anew while it was looked at"
# In the place of the hash, as yoked.agent.folders has it.
A_FOLDER = "a folder"
_WORDS = {
    CHANGING: "changing by itself: something wrote it anew while it was looked at",
    "missing": "missing",
    "other": "of other content",
    "extra": "extra",
    "hidden": "beside it, which macOS left (AppleDouble)",
    "folder": "extra, a folder with the name of a file",
    "spelled": "spelled otherwise there (capitals, or forms of Unicode that look alike)",
}


def differing(wanted: Mapping[str, str], there: Mapping[str, object]) -> dict[str, str]:
    """{name: flaw} of what is not as wanted: one of `_WORDS`, or why it cannot be read.

    Extra is what a run would read too, as far as names tell: none that is hidden, or of a kind
    that is not wanted at all (a log, a note).
    """
    files = {name: digest for name, digest in wanted.items() if digest != A_FOLDER}
    flaws = {
        name: _flaw(there.get(name)) for name, digest in files.items() if there.get(name) != digest
    }
    kinds = {PurePosixPath(name).suffix for name in files}
    more = (PurePosixPath(name) for name in there if name not in wanted)
    for path in more:
        is_hidden = any(part.startswith(".") for part in path.parts)
        if path.suffix in kinds and not is_hidden:
            flaws[str(path)] = "folder" if there[str(path)] == A_FOLDER else "extra"
        elif path.suffix in kinds and is_shadow(str(path), there):
            flaws[str(path)] = "hidden"
    for name, other in _other_spellings(flaws).items():
        if there[other] == files[name]:
            flaws[name] = "spelled"
            del flaws[other]
    return flaws


def _other_spellings(flaws: Mapping[str, str]) -> dict[str, str]:
    """{name that is missing: extra name that is the same to a person}."""
    extra = {_spoken(name): name for name, flaw in flaws.items() if flaw == "extra"}
    return {name: extra[_spoken(name)] for name, flaw in flaws.items()
            if flaw == "missing" and _spoken(name) in extra}  # fmt: skip


def _spoken(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _flaw(there: object) -> str:
    if there is None:
        return "missing"
    # Words, and no hash.
    return str(there) if " " in str(there) else "other"


def is_shadow(name: str, there: Mapping[str, object]) -> bool:
    """Whether it is what macOS writes beside a file on other systems' disks: AppleDouble."""
    path = PurePosixPath(name)
    beside = path.with_name(path.name.removeprefix("._"))
    return path.name.startswith("._") and str(beside) in there


def _described(flaws: Mapping[str, str]) -> str:
    parts = []
    for flaw in dict.fromkeys((*_WORDS, *flaws.values())):
        if names := [name for name, own in flaws.items() if own == flaw]:
            more = f" and {plural(len(names) - _SHOWN, 'other')}" if len(names) > _SHOWN else ""
            word = _WORDS.get(flaw, f"no file that can be read: {flaw}")
            parts.append(f"{', '.join(map(shown_name, names[:_SHOWN]))}{more} {word}")
    return listed(parts)


def shown_name(name: str) -> str:
    """A name as a person can read it, where it is no UTF-8 too."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _hosts_with(
    seen: Examination, name: str, wanted: Mapping[str, str] | None
) -> Iterator[tuple[HostSeen, dict[str, str]]]:
    """Hosts that told their digests, and those have flaws."""
    for host in seen.up if wanted else ():
        there = part(host, name)
        if there is None or wanted is None:
            continue
        flaws = differing(wanted, mapping(there))
        if name == "code":
            # No program imports what macOS leaves.
            flaws = {file: flaw for file, flaw in flaws.items() if flaw != "hidden"}
        if flaws:
            yield host, flaws


@check(
    "data-differs",
    question="Does every host have the same data?",
    reads=("need.data", "health.data"),
    severity="error",
    saw={
        **dict.fromkeys(("", "hidden"), "the data on {host} is not the controller's: {described}"),
        "untold": "the data on {host} could not be compared: {described}",
        "disk": "the data on {host} is not the controller's: {described}; it lies on {mount}",
        "locks": "no file of the data on {host} can be locked ({described}){mount}",
        "maps": "no file of the data on {host} can be mapped into memory ({described}){mount}",
    },
    why={
        "": "ranks read other rows than they think: the loss is of something else, or an epoch "
        "ends early on one host and all hang",
        "hidden": "a program that takes all names of the folder (os.listdir) reads these as rows "
        "too; `yoked train` does not",
        "disk": "a rank that comes to that file ends with an OSError; a disk, or what stands "
        "behind that mount, that cannot read what it has will lose more",
        "untold": "whoever trains there cannot read it either, or reads something else",
        "locks": "a program that locks what it reads, as HDF5 does by itself, ends there, and "
        "nowhere else, with an OSError",
        "maps": "`yoked train`, numpy.memmap, safetensors and Arrow map what they read: they end "
        "there, and nowhere else, with an OSError",
    },
    symptom="The loss is garbage, the run hangs at the end of an epoch, or a rank stands in "
    "open(). `Transport endpoint is not connected`; `No locks available`; `No such device` where a "
    "file is mapped; `Input/output error`.",
    cause="Shards are missing on a host, were prepared there with another tokenizer, or "
    "are left from an earlier set, which a program that takes all files reads too. A file that is "
    "a pipe, or that may not be read; a program that writes a file anew again and again. Of files "
    "that macOS left beside the data it is a warning, and of a mount that gives no locks, where "
    "another host has some. A FUSE mount whose program is gone; a share that is mounted without a "
    "page cache (sshfs -o direct_io, 9p with cache=none), of whose files none can be mapped; a "
    "disk that can no longer read a file.",
    fix="By hand, or by `yoked train`, which sends what is missing by content hash; nothing is "
    "sent onto a disk that gives errors. A dead mount is taken away, to be mounted again.",
    on_cluster="On a cluster the data lies on one shared file system, so it cannot differ; "
    "a stale cache of it can.",
)
def data_differs(seen: Examination) -> Iterator[Match]:
    for host in seen.up if seen.need.data else ():
        if why := mapping(part(host, "untold")).get("data"):
            yield Match(
                host.name,
                _read_again(seen, host, str(why)),
                how="untold",
                described=why,
            )
    yield from _of_no_use(seen)
    for host, flaws in _hosts_with(seen, "data", seen.need.data):
        if set(flaws.values()) == {"hidden"}:
            folder = place_of(seen)
            yield Match(
                host.name,
                by_hand(host.name, "find {folder} -name '._*' -delete", folder=folder),
                severity="warning",
                how="hidden",
                described=_described(flaws),
            )
            continue
        if broken := [name for name, flaw in flaws.items() if flaw.endswith(_BAD_DISK)]:
            yield Match(
                host.name,
                *_from_bad_disk(seen, host, broken[0]),
                how="disk",
                described=_described(flaws),
                mount=_mount_words(host) or "a disk of which nothing is known",
            )
            continue
        changing = [name for name, flaw in flaws.items() if flaw == CHANGING]
        yield Match(
            host.name,
            *(
                by_hand(
                    host.name,
                    "first stop what writes it: `fuser -v {file}` there, a few times, shows it",
                    file=place_of(seen, name),
                )
                for name in changing[:_SHOWN]
            ),
            *_brought(seen, host, flaws),
            described=_described(flaws),
        )


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


def on_first_files(seen: Examination, word: str, names: Sequence[str]) -> Line:
    """A command on the first of some files of the data; three dots stand for the others."""
    line = joined(" ", (word, *(place_of(seen, each) for each in names[:_SHOWN])))
    return joined("", (line, shell_line(" ..."))) if len(names) > _SHOWN else line


def place_of(seen: Examination, name: str = "") -> Line:
    """The folder of the data, or what lies in it, as a word of a shell on a host, or here."""
    folder = seen.need.folders.get("data")
    place = path_word(folder) if folder else shell_line("DATA-FOLDER")
    return joined("/", (place, name)) if name else place


def rsync(seen: Examination, host: HostSeen) -> Line:
    """A line for the controller that copies the data to a host, with the times of its files."""
    config = at(seen.controller, "ssh_config")
    folder = seen.need.folders.get("data") or "DATA-FOLDER"
    return shell_line(
        "rsync -a {ssh}{here}/ {there}",
        ssh=shell_line("-e {ssh} ", ssh=f"ssh -F {config}") if config else shell_line(""),
        here=place_of(seen),
        # A path that is not absolute begins at the home folder there.
        there=f"{host.name}:{folder.removeprefix('~/')}/",
    )


def _brought(seen: Examination, host: HostSeen, flaws: Mapping[str, str]) -> Iterator[Fix]:
    """What makes the data of a host that which is here."""
    wanted, there = seen.need.data or {}, mapping(part(host, "data"))
    spoken = {_spoken(each): each for each in there if each not in wanted}
    for name in [name for name, flaw in flaws.items() if flaw == "spelled"][:_SHOWN]:
        old, new = place_of(seen, spoken[_spoken(name)]), place_of(seen, name)
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


def _in_other_modules(seen: Examination) -> Iterator[Match]:
    """Modules that a program here imports, from elsewhere, and of which hosts have others."""
    for name in at(seen.controller, "modules") or ():
        told = _told_of(seen, name)
        # What has many sources is known by its version alone; without one it is not compared.
        kinds = {host: kind for host, module in told.items() if (kind := _kind(module)) is not None}
        counts = Counter(kinds.values())
        if len(counts) < 2:
            continue
        most = max(counts.values())
        usual = [kind for kind, count in counts.items() if count == most]
        # Of two that differ nobody knows which is meant.
        odd = [host for host, kind in kinds.items() if len(usual) > 1 or kind != usual[0]]
        shown = [f"{_as_found(told[host])} on {host}" for host in kinds]
        yield Match(
            odd,
            by_hand(
                "",
                "install the one that is meant on all hosts: `yoked install -r FILE`, or copy it "
                "from the host that has it",
            ),
            how="module",
            severity="warning",
            described=f"module {name}, which a program here imports, is {listed(shown)}",
        )


def _told_of(seen: Examination, name: str) -> dict[str, Mapping[str, Any] | None]:
    """What hosts tell of a module, by host; None: it is missing there."""
    return {
        host.name: found[name]
        for host in seen.up
        if name in (found := mapping(mapping(host.torch).get("modules")))
    }


def _before_a_folder(seen: Examination) -> Iterator[Match]:
    """Packages that Python takes on some hosts in place of a folder that travels."""
    for name in at(seen.controller, "plain") or ():
        told = _told_of(seen, name)
        found = {host: _as_found(module) for host, module in told.items() if module is not None}
        if found:
            shown = [f"{module} on {host}" for host, module in found.items()]
            yield Match(
                list(found),
                by_hand("", "make the folder a package: {line}",
                        line=shell_line("touch {file}", file=f"{name}/__init__.py")),
                how="before",
                described=f"module {name}, which a program here imports, is {listed(shown)}",
                folder=name,
            )  # fmt: skip


def _kind(module: Mapping[str, Any] | None) -> str | None:
    """By what equal modules are known: digest, version, or "missing"; None: by nothing."""
    if module is None:
        return "missing"
    return module.get("digest") or module.get("version")


def _as_found(module: Mapping[str, Any] | None) -> str:
    if module is None:
        return "missing"
    content = f"content {str(module['digest'])[:8]}" if module.get("digest") else ""
    words = " of ".join(filter(None, (str(module.get("version") or ""), content)))
    return f"{words} ({module['path']})"


@check(
    "code-differs",
    question="Does every host have the same program?",
    reads=("need.code", "health.code", "torch", "controller"),
    severity="error",
    saw={
        "": "the program's folder on {host} is not the one here: {described}",
        "module": "{described}",
        "before": "{described}, and not the folder {folder} of the program, which has no "
        "__init__.py: Python takes a package before such a folder",
    },
    why={
        "": "yoked sends the folder that is here, whatever lies there; torchrun by hand would "
        "run two programs: `different tensors`, or a deadlock",
        "module": "it does not travel with the program's folder: ranks of one run compute with "
        "different code, and nobody says so",
        "before": "ranks there import other code than the program's, and end with `cannot import "
        "name ... from '{folder}'`, though its files have arrived",
    },
    symptom="`different tensors`, shapes that do not match, or a deadlock at the first collective.",
    cause="The program was changed on one host, or has files there that are gone here. Or it "
    "imports a module of your own, or a package, that hosts have in different versions: asked for "
    "are those that programs import in the folder where this was typed. Or a package that somebody "
    "installed on a host has the name of a folder of the program that is none.",
    fix="By hand; `yoked run` sends the folder that is here to all hosts.",
)
def code_differs(seen: Examination) -> Iterator[Match]:
    for host, flaws in _hosts_with(seen, "code", seen.need.code):
        words = ["yoked", "run", *fleet_flag(seen), "--", "PROGRAM"]
        yield Match(
            host.name,
            by_hand(
                "",
                "start it with `{line}`, or copy the folder to {host}",
                line=command_line(*words),
                host=host.name,
            ),
            severity="warning",
            described=_described(flaws),
        )
    yield from _in_other_modules(seen)
    yield from _before_a_folder(seen)


CHECKS = (data_differs, code_differs)
