"""Whether every host has the program, and the modules that it imports, as they are here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from yoked.doctor.check import Match, check
from yoked.doctor.checks.content import described, hosts_with
from yoked.doctor.checks.query import at, mapping
from yoked.doctor.checks.wanted_query import odd_among
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.fleet import fleet_flag
from yoked.records.examination import Examination
from yoked.records.shell import command_line, shell_line
from yoked.units import listed


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
    for host, flaws in hosts_with(seen, "code", seen.need.code):
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
            described=described(flaws),
        )
    yield from _in_other_modules(seen)
    yield from _before_a_folder(seen)


def _in_other_modules(seen: Examination) -> Iterator[Match]:
    """Modules that a program here imports, from elsewhere, and of which hosts have others."""
    for name in at(seen.controller, "modules") or ():
        told = _told_of(seen, name)
        # What has many sources is known by its version alone; without one it is not compared.
        kinds = {host: kind for host, module in told.items() if (kind := _kind(module)) is not None}
        odd = odd_among(kinds)
        if not odd:
            continue
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


CHECKS = (code_differs,)
