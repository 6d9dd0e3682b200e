"""The lines by which a host comes by what trains there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from yoked.doctor.checks.query import at, mapping
from yoked.doctor.repairs.base import repair
from yoked.doctor.repairs.fleet import edit_entry, fleet_flag
from yoked.fleet.model import HERE
from yoked.records.examination import Examination, Fix, HostSeen
from yoked.records.shell import Line, command_line, joined, path_word, shell_line


@repair
def install_torch(seen: Examination, host: HostSeen, *flags: str) -> Fix:
    """Make an environment on a host with the versions that are here."""
    words = ["yoked", "install", *flags, "--host", host.name, *fleet_flag(seen)]
    return Fix("", command_line(*words))


def make_environment(seen: Examination, host: HostSeen, *flags: str) -> Iterator[Fix]:
    """Have an environment of `yoked install` train, and no interpreter of yoked.toml."""
    if host.wanted.get("python"):
        yield edit_entry(seen, host.name, "/^python *=/d")
    yield install_torch(seen, host, *flags)


@repair
def mend_environment(host: str, python: str) -> Fix:
    """Write the pyvenv.cfg of an environment anew; all that is installed there stays."""
    folder = str(PurePosixPath(python).parent.parent)
    return Fix(
        host,
        # Its link leads to the Python that it was made with.
        shell_line(
            '"$(readlink -f {python})" -m venv --without-pip {folder}', python=python, folder=folder
        ),
        undo=shell_line("rm -f {file}", file=f"{folder}/pyvenv.cfg"),
    )


def get_package(
    seen: Examination,
    host: HostSeen,
    package: str,
    *,
    flags: tuple[str, ...] = (),
    index: str | None = None,
    alone: bool = False,
) -> tuple[Fix, ...]:
    """Have the interpreter that trains on a host come by a package.

    package: as pip takes it. flags: for `yoked install`, with which the package is made anew
    although it seems to be there. index: where pip looks too; `yoked install` knows by itself.
    alone: what it needs is there, and stays.
    """
    python = _own_python(seen, host)
    if python is None:
        return (install_torch(seen, host, *flags),)
    if python.startswith("/usr/"):
        # The system's packages are not pip's to change.
        return tuple(make_environment(seen, host, *flags))
    again = shell_line(" --force-reinstall") if flags else shell_line("")
    again = joined("", (again, shell_line(" --no-deps"))) if alone else again
    return (pip_install(host.name, python, package, again=again, index=index),)


@repair
def pip_install(
    host: str, python: str, package: str, *, again: Line, index: str | None = None
) -> Fix:
    """Have an interpreter's pip install a package. again: flags by which it does so although it
    seems to be there; index: where it looks too.
    """
    line = shell_line(
        # An environment of uv has no pip until it is asked for.
        "{path} -m pip --version || {path} -m ensurepip; "
        "{path} -m pip install{again}{also} {package}",
        path=path_word(python),
        again=again,
        also=shell_line(" --extra-index-url {index}", index=index) if index else shell_line(""),
        package=package,
    )
    return Fix(host, line)


def _own_python(seen: Examination, host: HostSeen) -> str | None:
    """The interpreter of the person's own environment, which `yoked install` leaves as it is."""
    python = host.wanted.get("python")
    if python is None and host.name == HERE and at(seen.controller, "torch"):
        python = mapping(host.torch).get("python")
    return None if python is None else str(python)


@repair
def remove_info(host: str, folder: str) -> Fix:
    """Remove what pip knows of a package that is there no more."""
    return Fix(host, command_line("rm", "-r", folder))


def get_torch(
    seen: Examination, host: HostSeen, version: str | None, *flags: str, index: str | None = None
) -> tuple[Fix, ...]:
    """Have a host come by torch. flags, index: as in `get_package`."""
    package = "torch" if version is None else f"torch=={public(version)}"
    return get_package(seen, host, package, flags=flags, index=index)


def public(version: str) -> str:
    """A version without its build: 2.13.0 of 2.13.0+cpu."""
    return version.partition("+")[0]
