"""A name that a jump host looks up is blamed where it is known to be wrong; the ssh is made up."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.doctor.builders import only
from tests.unit.doctor.troubles import no_agent

from yoked.doctor import sshnames
from yoked.doctor.sshnames import Known, asked, of_names
from yoked.doctor.sshway import Way
from yoked.records.examination import BrokenLink, SshFailure

TOLD = SshFailure("other", "the jump host gate lets ssh in", cause="jump-on", about="gate")
WAY = Way(address="garage-cellar", proxy="command", hops=("gate",))
WORDS = "channel 0: open failed: connect failed: No route to host\r\n"
STALE = Known(("192.168.1.52",), 9)


def known(monkeypatch: pytest.MonkeyPatch, there: Known | None, here: tuple[str, ...] = ()) -> None:
    monkeypatch.setattr(sshnames, "asked", lambda *args: there)
    monkeypatch.setattr(sshnames, "addresses_of", lambda name: here)


def test_what_a_jump_host_takes_a_name_for_is_read_of_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(
        "#!/bin/sh\necho '192.168.1.52 STREAM garage-cellar'\necho '192.168.1.52 DGRAM'\n"
        "echo rubbish\necho yoked-hosts\necho '4:10.0.0.1 garage-cellar.old'\n"
        "echo '9:192.168.1.52 garage-cellar'\n"
    )
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    assert asked("gate", "garage-cellar", None) == STALE


def test_another_address_than_the_fleets_file_has_is_the_jump_hosts_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known(monkeypatch, STALE)

    found = of_names(TOLD, WAY, None, words=WORDS, address="192.168.1.12")

    assert (found.cause, found.about) == ("jump-name", "gate")
    assert "gate takes garage-cellar for 192.168.1.52 (/etc/hosts there, line 9)" in found.text
    assert "No route to host; it is 192.168.1.12 by the fleet's file" in found.text


def test_a_name_that_it_does_not_know_is_its_fault_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, Known(()))

    found = of_names(TOLD, WAY, None, words=WORDS)

    assert found.cause == "jump-name"
    assert "gate does not know the name garage-cellar" in found.text


@pytest.mark.parametrize(
    ("here", "words"),
    [((), "gets no way there: No route"), (("192.168.1.12",), "this machine takes it for 192.")],
)
def test_where_nobody_knows_the_right_address_it_is_told_and_nobody_is_blamed(
    monkeypatch: pytest.MonkeyPatch, here: tuple[str, ...], words: str
) -> None:
    known(monkeypatch, STALE, here)

    found = of_names(TOLD, WAY, None, words=WORDS, address="192.168.1.52")

    assert found.cause == "jump-on"
    assert words in found.text


def test_a_console_that_has_another_address_tells_whose_fault_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known(monkeypatch, STALE)
    link = BrokenLink("new-address", "192.168.1.12", "192.168.1.52")
    monkeypatch.setattr(
        sshnames, "told_by",
        lambda console, told, *more: SshFailure(
            told.kind, told.text, cause=told.cause, about=told.about, link=link
        ),
    )  # fmt: skip

    found = of_names(TOLD, WAY, None, words=WORDS, console=("sh",))

    assert (found.cause, found.link) == ("jump-name", link)


@pytest.mark.parametrize("there", [None, STALE])
def test_an_address_or_a_jump_host_that_tells_nothing_leaves_all_as_it_was(
    monkeypatch: pytest.MonkeyPatch, there: Known | None
) -> None:
    known(monkeypatch, there)
    way = WAY if there is None else Way(address="192.168.1.12")

    assert of_names(TOLD, way, None, words=WORDS, address="10.0.0.1") == TOLD


def test_the_lines_are_for_the_jump_host_and_have_the_name_that_it_looks_up() -> None:
    text = "the jump host attic takes garage-cellar for 192.168.1.52, and gets no way there"

    found = only(no_agent("other", text, cause="jump-name", about="attic")())

    assert (found.check, found.hosts) == ("ssh-other", ("attic",))
    assert "getent hosts garage-cellar" in found.fix[0].command
