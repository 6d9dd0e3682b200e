"""A requirements file of a person's: names and versions of packages, and nothing else.

pip's files can do more: they name other indexes, folders, addresses and repositories, from which
pip runs code to build a package. On another host a folder is not there, and what is fetched from an
address is not what was looked at here. So each line is a requirement (PEP 508) or it is refused,
with its number; every host asks the index that it is configured for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from yoked.errors import UsageError

_NESTED = ("-r", "--requirement")
_WHY = {
    "-e": "an editable package is a folder of this machine",
    "--editable": "an editable package is a folder of this machine",
    "-c": "yoked gives pip constraints of its own: the versions that train",
    "--constraint": "yoked gives pip constraints of its own: the versions that train",
    "-i": "each host asks the index that its pip is configured for (pip config, on the host)",
    "-f": "each host asks the index that its pip is configured for (pip config, on the host)",
}
_WHY_INDEX = ("--index-url", "--extra-index-url", "--no-index", "--find-links", "--trusted-host")
_MORE = (
    "leave it out of the file; in an environment of your own, which `python` of the fleet's file "
    "names, pip does as you say"
)


def read_requirements(path: Path, pinned: Sequence[str] = ()) -> tuple[str, ...]:
    """The requirements of a file, and of the files that it names by `-r`; in order, each once.

    pinned: lines such as `torch==2.13.0`, the versions that train and are not changed.
    Raises UsageError with file and number of a line that is no requirement, or does not fit those.
    """
    versions = _versions(pinned)
    found: dict[str, None] = {}
    for where, line in _lines(path, ()):
        if (wanted := _checked(line, where, versions)) is not None:
            found[wanted] = None
    if not found:
        raise UsageError(f"{path} names no package", fix="a line for each, such as peft>=0.14")
    return tuple(found)


def _lines(path: Path, above: tuple[Path, ...]) -> Iterator[tuple[str, str]]:
    """(file:number, line) of a file, without comments, and of the files that it names."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"{path} cannot be read: {problem}", fix="-r FILE, a text") from problem
    if path.resolve() in above:
        raise UsageError(f"{path} names itself by -r", fix="leave that line out")
    whole = ""
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        whole += _without_comment(line)
        if whole.endswith("\\"):
            whole = whole[:-1] + " "
            if number < len(lines):
                continue
        wanted, whole = whole.strip(), ""
        option, _, value = wanted.replace("=", " ", 1).partition(" ")
        if option in _NESTED:
            yield from _lines(path.parent / value.strip(), (*above, path.resolve()))
        elif wanted:
            yield f"{path}:{number}", wanted


def _without_comment(line: str) -> str:
    """As pip has it: a `#` begins one at the line's start, or behind white space."""
    if line.lstrip().startswith("#"):
        return ""
    return line.partition(" #")[0].partition("\t#")[0].rstrip()


def _checked(line: str, where: str, versions: dict[str, str]) -> str | None:
    """A line for pip; None: it is not for this kind of machine."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    option = line.partition("=")[0].partition(" ")[0]
    if option.startswith("-"):
        index = _WHY["-i"] if option in _WHY_INDEX else "yoked knows no options there but -r"
        raise UsageError(f"{where}: {option}: {_WHY.get(option, index)}", fix=_MORE)
    if " --hash" in line:
        raise UsageError(
            f"{where}: --hash: pip would ask it of all that trains too, which comes without",
            fix="a file without hashes, as pip-compile writes it without --generate-hashes",
        )
    try:
        requirement = Requirement(line)
    except InvalidRequirement as problem:
        said = str(problem).splitlines()[0]
        raise UsageError(
            f"{where}: {line!r} is no requirement: {said}", fix="name and version, as in peft>=0.14"
        ) from None
    if requirement.url is not None:
        raise UsageError(
            f"{where}: {requirement.name} comes from an address, {requirement.url}, not from an "
            "index: pip would run what it finds there",
            fix=_MORE,
        )
    trains = versions.get(canonicalize_name(requirement.name))
    if trains is not None and not requirement.specifier.contains(trains, prereleases=True):
        raise UsageError(
            f"{where}: {line}, and {requirement.name} {trains} is what trains on every host",
            fix=(
                f"leave {requirement.name} out of the file, or allow {trains}",
                f"or install that {requirement.name} beside yoked here: hosts get the same",
            ),
        )
    if requirement.marker is not None and not requirement.marker.evaluate():
        return None
    requirement.marker = None
    return str(requirement)


def constraints(pinned: Sequence[str]) -> tuple[str, ...]:
    """Lines for pip that keep what trains as it is. pinned: as of `read_requirements`."""
    return tuple(f"{name}=={version}" for name, version in _versions(pinned).items())


def _versions(pinned: Sequence[str]) -> dict[str, str]:
    """{name: version} of those lines that pin one."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    found: dict[str, str] = {}
    for line in pinned:
        requirement = Requirement(line)
        one = [each.version for each in requirement.specifier if each.operator == "=="]
        if one:
            found[canonicalize_name(requirement.name)] = one[0]
    return found
