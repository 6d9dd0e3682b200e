"""`yoked install` says of every host how it stands, and what to do about it."""

from __future__ import annotations

import json
import signal
import threading
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from cyclopts import App
from syrupy.assertion import SnapshotAssertion

from yoked.cli.commands import install
from yoked.cli.main import main
from yoked.cli.output import Output
from yoked.errors import HostError, UsageError, YokedError
from yoked.fleet.model import Fleet, Host
from yoked.launch.environment import Difference
from yoked.launch.install import HostEnvironment
from yoked.remote.client import AgentClient
from yoked.workflows.environments import Found, unlike_versions
from yoked.workflows.looks import ask_all, reach_quietly

GOOD = HostEnvironment("desk", "/envs/1/bin/python", "3.12.4", "made", ())
NAMED = HostEnvironment(
    "laptop", "/venv/bin/python", "3.11.2", "named", (Difference("torch", "2.13.0", "2.12.1"),)
)
DOWN = HostError("attic: it did not answer\nssh: timed out", fix="ping attic")
FLEET = Fleet("home", (Host("desk"), Host("laptop"), Host("attic")), Path("yoked.toml"))


def told(
    found: dict[str, HostEnvironment | YokedError], *, json_mode: bool = False
) -> tuple[int, str]:
    stream = StringIO()
    return install.report(found, Output(json_mode=json_mode, stdout=stream)), stream.getvalue()


def test_hosts_that_are_as_they_should_be_are_no_finding(snapshot: SnapshotAssertion) -> None:
    status, text = told({"desk": GOOD})

    assert status == 0
    assert text == snapshot
    assert "desk         made     Python 3.12.4 at /envs/1/bin/python" in text


def test_each_host_that_cannot_train_has_its_reason_and_fix(snapshot: SnapshotAssertion) -> None:
    status, text = told({"desk": GOOD, "laptop": NAMED, "attic": DOWN})

    assert status == 1
    assert text == snapshot
    assert "torch is 2.12.1, should be 2.13.0" in text
    assert "fix: ping attic" in text


def test_json_has_the_same() -> None:
    _, text = told({"desk": GOOD, "laptop": NAMED, "attic": DOWN}, json_mode=True)

    payload = json.loads(text)
    assert payload["ok"] is False
    assert [host["state"] for host in payload["hosts"]] == ["made", "named", "failed"]
    assert payload["hosts"][1]["differences"] == [
        {"package": "torch", "wanted": "2.13.0", "found": "2.12.1"}
    ]
    assert payload["hosts"][2]["fix"] == ["ping attic"]


def test_hosts_are_taken_by_name_in_the_order_of_the_fleet() -> None:
    chosen = install.selected(FLEET, ("attic", "desk"))

    assert [host.name for host in chosen.hosts] == ["desk", "attic"]
    assert install.selected(FLEET, ()) == FLEET


def test_a_host_that_is_not_in_the_fleet_is_named(snapshot: SnapshotAssertion) -> None:
    with pytest.raises(UsageError) as problem:
        install.selected(FLEET, ("attick",))
    assert str(problem.value) == snapshot

    assert problem.value.fix == ("there are: desk, laptop, attic",)


def test_an_interrupt_ends_what_is_being_made_on_the_hosts(tmp_path: Path) -> None:
    main = threading.main_thread().ident
    assert main is not None
    ended = threading.Event()

    def act(host: Host, client: AgentClient) -> HostEnvironment:
        # All have begun, and are waited for.
        time.sleep(0.1)
        signal.pthread_kill(main, signal.SIGINT)
        try:
            client.call("run", argv=["sleep", "20"], limit_s=60.0)
        except YokedError:
            ended.set()
            raise
        return GOOD

    fleet = Fleet("here", (Host("."),), tmp_path / "yoked.toml")
    with pytest.raises(KeyboardInterrupt), reach_quietly(fleet) as hosts:
        ask_all(hosts, act)

    assert ended.wait(10.0)


def test_what_a_file_asks_for_besides_is_brought_by_the_same_file() -> None:
    missing = (Difference("peft", ">=0.14", None),)
    both = (*missing, *NAMED.differences)
    made = replace(GOOD, state="present", differences=missing)
    here = replace(made, host=".", python="/own/bin/python")
    stream, file = StringIO(), Path("my needs.txt")

    install.report(
        {"desk": made, "laptop": replace(made, state="named", differences=both), ".": here},
        Output(json_mode=True, stdout=stream),
        " --fleet home.toml",
        (file,),
    )

    fixes = [host["fix"] for host in json.loads(stream.getvalue())["hosts"]]
    again = "yoked install -r 'my needs.txt' --host"
    assert fixes == [
        [f"{again} desk --fleet home.toml"],
        [
            "/envs/1/bin/python -m pip install 'peft>=0.14' torch==2.13.0    on laptop",
            (
                f"or remove `python` of laptop from the fleet's file, then {again} laptop "
                "--fleet home.toml"
            ),
        ],
        ["/own/bin/python -m pip install -r 'my needs.txt'"],
    ]


def test_hosts_whose_pips_chose_unlike_versions_are_told() -> None:
    found: Found = {
        "desk": replace(GOOD, packages={"peft": "0.15", "trl": "0.9"}),
        "laptop": replace(GOOD, packages={"peft": "0.14", "trl": "0.9"}),
        "attic": DOWN,
    }

    assert unlike_versions(found, ("peft>=0.14", "trl")) == [
        "peft is 0.15 on desk, 0.14 on laptop: a line peft==VERSION makes it one"
    ]


@pytest.mark.parametrize(
    "flags", [("--cuda", "--cpu"), ("--check", "--anew"), ("--undo", "-r", "needs.txt")]
)
def test_what_cannot_be_done_at_once_is_refused(
    flags: tuple[str, ...], snapshot: SnapshotAssertion
) -> None:
    app = App(result_action="return_value")
    app.command(install.command, name="install")

    with pytest.raises(UsageError) as caught:
        app(["install", *flags, "--host", "a", "--host", "b"], exit_on_error=False)
    assert str(caught.value) == snapshot


@pytest.mark.parametrize(
    "words", ["--anew", "--cuda", "--cpu", "--offline", "--python p", "--torch-index https://x/cpu"]
)
@pytest.mark.parametrize("looks", ["--check", "--undo"])
def test_a_flag_that_would_be_passed_over_is_refused(looks: str, words: str) -> None:
    app = App(result_action="return_value")
    app.command(install.command, name="install")
    flag = words.partition(" ")[0]

    with pytest.raises(UsageError, match=f"{looks} and {flag} exclude each other"):
        app(["install", looks, *words.split()], exit_on_error=False)


def test_undo_shows_what_install_made_and_removes_it_after_a_yes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("YOKED_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("YOKED_STATE", str(tmp_path / "state"))
    made = tmp_path / "data" / "envs" / "0123456789abcdef"
    made.mkdir(parents=True)
    (made / "file").write_text("x" * 1000)

    shown = main(["install", "--undo", "--host", "."])
    before = capsys.readouterr().out
    removed = main(["install", "--undo", "--yes", "--json"])
    payload = json.loads(capsys.readouterr().out)
    nothing = main(["install", "--undo", "--yes"])

    assert (shown, removed, nothing) == (0, 0, 0)
    assert f"would remove:\n  .: {made}, 1.00 kB\n" in before
    assert "next: yoked install --undo --host . --yes" in before
    assert [each["removed"] for each in payload["hosts"][0]["environments"]] == [True]
    assert not made.exists()
    assert capsys.readouterr().out.startswith("nothing that install made is there")
