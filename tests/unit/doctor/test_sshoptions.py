"""A setting of ssh here is to blame where a command runs without it alone; the ssh is made up."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.unit.doctor.builders import only
from tests.unit.doctor.troubles import no_agents

from yoked.doctor import sshoptions
from yoked.doctor.sshoptions import of_options
from yoked.records.examination import SshFailure, SshKind

REAL = shutil.which("ssh")
pytestmark = pytest.mark.skipif(REAL is None, reason="there is no ssh here")
# ssh's own words of its settings; a command runs where none of these words is among them.
SSH = """\
#!/bin/sh
case " $* " in *" -G "*) exec {real} "$@" ;; esac
[ "$1" != -V ] || exec {real} -V
while [ $# -gt 2 ]; do [ "$1" != -F ] || config=$2; shift; done
! {real} -F "$config" -G attic | grep -qE '{harms}' || exec sleep 9
cat; echo yoked-is-in
"""
TOLD = SshFailure("other", "attic closed the agent's connection")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of a person, whose ssh hangs by one setting."""
    folder = tmp_path / ".ssh"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sshoptions, "LIMIT_S", 0.7)
    return folder


def harms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(SSH.format(real=REAL, harms=words))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("config", "words", "about"),
    [
        ("Host attic\n  Port 22\nHost *\n  Compression yes\n  StdinNull yes\n", "stdinnull yes",
         ":5"),
        ("SetEnv BASH_ENV=/x\nCompression yes\n", "setenv", ":1"),
        # The second would count where the first is gone.
        ("Host attic\n  StdinNull yes\nHost *\n  StdinNull yes\n", "stdinnull yes", ":2,4"),
        # That of another host changes nothing.
        ("Host shed\n  StdinNull yes\nHost *\n  StdinNull=yes\n", "stdinnull yes", ":4"),
        # Two together.
        ("Compression yes\nCheckHostIP yes\nStdinNull yes\n", "stdinnull yes|^compression yes",
         ":1,3"),
    ],
)  # fmt: skip
def test_the_setting_without_which_it_works_is_named_with_its_line(
    home: Path, monkeypatch: pytest.MonkeyPatch, config: str, words: str, about: str
) -> None:
    harms(home.parent, monkeypatch, words)
    own = home / "own"
    own.write_text(config)

    found = of_options(TOLD, "attic", own)

    assert (found.kind, found.cause, found.about) == ("other", "option", about)


def test_a_setting_in_a_file_that_another_includes_is_found_there(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harms(home.parent, monkeypatch, "stdinnull yes")
    (home / "more").mkdir()
    (home / "more" / "b.conf").write_text("Host *\n  StdinNull yes\n")
    (home / "config").write_text("Host attic\n  Include more/*.conf\n  User ada\n")

    found = of_options(TOLD, "attic", None)

    assert found.about == f"{home}/more/b.conf:2"
    assert f"`StdinNull yes` ({home}/more/b.conf, line 2)" in found.text


@pytest.mark.parametrize(
    ("words", "kind"),
    [("nothing", "other"), ("^user ", "other"), ("stdinnull yes", "timeout")],
    ids=["works", "never-works", "before-any-session"],
)
def test_no_setting_is_blamed_that_was_not_proved(
    home: Path, monkeypatch: pytest.MonkeyPatch, words: str, kind: SshKind
) -> None:
    harms(home.parent, monkeypatch, words)
    own = home / "own"
    own.write_text("User ada\nStdinNull yes\n")
    told = SshFailure(kind, "it failed")

    assert of_options(told, "attic", own) == told


def test_hosts_that_one_setting_keeps_away_are_one_finding_of_this_machine() -> None:
    more = {"cause": "option", "about": ":7,9"}

    found = only(no_agents("garage", "study", kind="other", text="without `x`", **more)())

    assert (found.check, found.hosts) == ("ssh-other", ())
    assert "sed '7s/^/# /; 9s/^/# /'" in found.fix[0].command
