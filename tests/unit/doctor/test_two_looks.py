"""What changes on a host between two looks goes into its health."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.unit.doctor.builders import change, home, told

from yoked.doctor.causes import findings_of
from yoked.doctor.watch import Sight, look_at, with_changes
from yoked.errors import HostError

FIRST = Sight(
    here_s=10.0,
    error_s=0.1,
    offset_s=5.0,
    real_s=100.0,
    monotonic_s=7.0,
    limits={"as": [None, None], "nofile": [1024, 4096]},
    folders={},
)
LAST = replace(FIRST, here_s=13.0, error_s=0.0, real_s=103.0, monotonic_s=10.0)


def test_what_passed_by_each_clock_is_told_with_what_it_may_be_wrong_by() -> None:
    last = replace(LAST, error_s=0.2, offset_s=92.0, real_s=190.0, monotonic_s=97.0)

    told = with_changes({"clock": {"time_s": 100.0, "service": "ntp"}}, FIRST, last)

    assert told["clock"] == {
        "time_s": 100.0,
        "service": "ntp",
        "watched_s": 3.0,
        "error_s": 0.1 + 0.2,
        "real_s": 90.0,
        "monotonic_s": 90.0,
    }


def test_a_folder_has_what_became_of_its_file() -> None:
    health = {"folders": {"cache": {"path": "/c"}, "state": {"path": "/s"}, "tmp": None}}
    kept = {"kept": True, "now": None}
    folders = {"cache": {"kept": False, "now": "gone"}, "state": kept, "tmp": kept}

    told = with_changes(health, FIRST, replace(LAST, folders=folders))

    assert told["folders"] == {
        "cache": {"path": "/c", "kept": False, "now": "gone"},
        "state": {"path": "/s", "kept": True, "now": None},
        "tmp": None,
    }


def test_limits_are_those_of_the_last_look_with_the_names_of_those_that_were_others() -> None:
    health = {"limits": {"as": [None, None], "nofile": [1024, 4096], "umask": 18}}
    later = {"as": [8 << 20, 8 << 20], "nofile": [1024, 4096]}

    changed = with_changes(health, FIRST, replace(LAST, limits=later))
    same = with_changes(health, FIRST, LAST)

    assert changed["limits"] == {**later, "umask": 18, "later": ["as"]}
    assert same["limits"] == health["limits"]


def test_a_host_that_does_not_answer_is_not_seen() -> None:
    def silent(name: str, **args: Any) -> Any:
        raise HostError(f"{name}: no answer")

    assert look_at(silent, "look", 1.0) is None


def test_two_names_of_one_machine_do_not_share_a_home() -> None:
    seen = told(home(), "garage", "health/folders/state/mark", "0123456789ab")
    seen = told(seen, "attic", "health/folders/state/beside", ["0123456789ab"])
    facts = {**seen.host("attic").facts, "machine": seen.host("garage").facts["machine"]}
    one = change(seen, "attic", facts=facts)

    assert "small-launch" in {each.check for each in findings_of(seen)}
    assert "small-launch" not in {each.check for each in findings_of(one)}


def test_a_cache_that_hosts_share_is_no_trouble() -> None:
    seen = told(home(), "garage", "health/folders/cache/mark", "0123456789ab")
    seen = told(seen, "attic", "health/folders/cache/beside", ["0123456789ab"])

    assert findings_of(seen) == findings_of(home())


def test_a_start_file_that_is_slow_by_itself_waits_for_no_other_login() -> None:
    command = {"file": "/home/ada/.bashrc", "line": 1, "words": "sleep 5"}
    seen = told(home(), "garage", "health/launch", {"login": {"how": "waits", "command": command}})

    assert [each.check for each in findings_of(seen)] == ["small-launch"]
    assert findings_of(change(seen, "garage", connect_s=3.0)) == ()
