"""Files of hosts beside the controller's, by their hashes; and lines that name such files."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from yoked.core.names import NOT_UTF8
from yoked.doctor.checks.query import at, mapping, part
from yoked.records.examination import Examination, HostSeen
from yoked.records.shell import Line, joined, path_word, quoted, shell_line
from yoked.units import listed, plural

SHOWN = 3
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
    extra = {spoken(name): name for name, flaw in flaws.items() if flaw == "extra"}
    return {name: extra[spoken(name)] for name, flaw in flaws.items()
            if flaw == "missing" and spoken(name) in extra}  # fmt: skip


def spoken(name: str) -> str:
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


def described(flaws: Mapping[str, str]) -> str:
    parts = []
    for flaw in dict.fromkeys((*_WORDS, *flaws.values())):
        if names := [name for name, own in flaws.items() if own == flaw]:
            more = f" and {plural(len(names) - SHOWN, 'other')}" if len(names) > SHOWN else ""
            word = _WORDS.get(flaw, f"no file that can be read: {flaw}")
            parts.append(f"{', '.join(map(shown_name, names[:SHOWN]))}{more} {word}")
    return listed(parts)


def shown_name(name: str) -> str:
    """A name as a person can read it, where it is no UTF-8 too."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def hosts_with(
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


def on_first_files(seen: Examination, word: str, names: Sequence[str]) -> Line:
    """A command on the first of some files of the data; three dots stand for the others."""
    line = joined(" ", (word, *(place_of(seen, each) for each in names[:SHOWN])))
    return joined("", (line, shell_line(" ..."))) if len(names) > SHOWN else line


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


def renamed_to_utf8(folder: Line | None, name: str) -> Line:
    """A line that gives a file with a name that is no UTF-8 the name that was meant, in Latin-1."""
    # Such a byte is none that can be pasted: any one stands for it.
    pieces = [shell_line("?") if NOT_UTF8.match(each) else quoted(each)
              for each in NOT_UTF8.split(name) if each]  # fmt: skip
    bytes_of = name.encode(errors="surrogateescape")
    before = [] if folder is None else [folder, shell_line("/")]
    old = joined("", (*before, *pieces))
    new = joined("", (*before, quoted(bytes_of.decode("cp1252", errors="replace"))))
    return shell_line("mv {old} {new}", old=old, new=new)
