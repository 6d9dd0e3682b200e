"""Which program is called ssh here is tried, not guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from yoked.doctor import sshprogram
from yoked.doctor.sshfailure import told_failure
from yoked.errors import YokedError
from yoked.records.examination import SshFailure
from yoked.remote import ssh
from yoked.remote.ssh import NoAgentError, explain_end
from yoked.remote.transport import BOOT, FLAGS, NO_INPUT, start_agent

TOLD = SshFailure("python", "ValueError", cause="died")
# In a host's place: what a login runs is run here.
SYSTEM = """\
#!/bin/sh
for last; do :; done
[ "$1" = -V ] && { echo OpenSSH_9.2p1 >&2; exit; }
%s exec sh -c "$last"
"""


@pytest.fixture
def usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's ssh, which is no script to who looks at it."""
    folder = tmp_path / "usual"
    folder.mkdir()
    made(folder, SYSTEM % "")
    monkeypatch.setattr(sshprogram, "_USUAL", (str(folder),))
    monkeypatch.setattr(sshprogram, "_is_script", lambda path: path.parent != folder)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    # It would remember what a script answers.
    monkeypatch.setattr(ssh, "_knows_remote_command", lambda: True)
    return folder


def made(folder: Path, text: str, first: str = "") -> Path:
    path = folder / "ssh"
    path.write_text(f"{first}{text}")
    path.chmod(0o755)
    return path


def in_front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{tmp_path}/usual:/usr/bin:/bin")
    return made(folder, text, "#!/bin/sh\n")


@pytest.mark.parametrize(
    "words",
    [
        # -n, -f and -N; -tt; another's configuration; through a program that leads nowhere.
        'exec {system} -n "$@" < /dev/null',
        '{system} -f "$@" < /dev/null > /dev/null &',
        'exec script -qfc "{system} $*" /dev/null | tr x y',
        '{system} -F /home/bob/config "$@" > /dev/null; exit 255',
        'exec torsocks-that-is-gone {system} "$@"',
        '{system} "$@" | sed s/a/b/',
    ],
)
def test_a_script_in_the_place_of_ssh_is_named_where_the_systems_own_works(
    words: str, usual: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = words.format(system=usual / "ssh")
    script = in_front(tmp_path, monkeypatch, f"# for loops\n{line}\n")

    found = sshprogram.of_program(TOLD, "attic", None)

    assert (found.kind, found.cause, found.about) == ("other", "program", str(script))
    assert f"ssh here is {script}, line 3, runs `" in found.text
    assert f"with {usual / 'ssh'} in its place one does" in found.text


@pytest.mark.parametrize("words", ['exec {system} "$@"', 'echo hello >&2; exec {system} -q "$@"'])
def test_a_script_that_hands_all_on_is_not_blamed(
    words: str, usual: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_front(tmp_path, monkeypatch, words.format(system=usual / "ssh"))

    assert sshprogram.of_program(TOLD, "attic", None) == TOLD


def test_nobody_is_blamed_where_the_systems_own_fails_too(
    usual: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(usual, SYSTEM % "exit 255;")
    in_front(tmp_path, monkeypatch, f'exec {usual / "ssh"} -n "$@"')

    assert sshprogram.of_program(TOLD, "attic", None) == TOLD


def test_the_systems_own_ssh_is_not_tried_against_itself(
    usual: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tries(*_: object) -> bool:
        raise AssertionError

    monkeypatch.setattr(sshprogram, "comes_in", tries)

    assert sshprogram.of_program(TOLD, "attic", None) == TOLD


@pytest.mark.parametrize(
    ("sent", "says"),
    [("< /dev/null", "its input ended at once"), ("", "other bytes came")],
    ids=["nothing", "other bytes"],
)
def test_an_agent_without_its_input_says_so(tmp_path: Path, sent: str, says: str) -> None:
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\n{"tr 0-9 a-j |" if not sent else ""} python3 "$@" {sent}\n')
    path.chmod(0o755)

    with pytest.raises(YokedError) as caught:
        start_agent("attic", [str(path), *FLAGS, "-c", BOOT], deadline_s=10.0)

    assert isinstance(caught.value, NoAgentError)
    told = told_failure(caught.value)
    assert (told.kind, told.cause) == ("shell", "no-input")
    assert told.text == f"{NO_INPUT}: {says}"


def test_a_line_of_the_boot_stands_in_single_quotes() -> None:
    assert not set(BOOT) & set("'!`\\\n")
    assert explain_end("attic", 1, f"{NO_INPUT}: other bytes came", ssh=True).what
