"""A measurement is found again for the very fleet that it was made of."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.failures import raises_fault

from yoked.errors import YokedError
from yoked.fleet.model import Fleet, Host
from yoked.probe.store import load_newest, path_for, save
from yoked.records.measurement import Measurement

FLEET = Fleet(
    "home", (Host("alpha", interface="eth0"), Host("beta", interface="eth0")), Path("yoked.toml")
)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("YOKED_STATE", str(tmp_path))
    return tmp_path


def test_what_is_kept_is_found_and_the_newest_wins(measurement: Measurement) -> None:
    later = dataclasses.replace(measurement, taken_s=measurement.taken_s + 60)

    save(FLEET, measurement)
    path = save(FLEET, later)

    assert load_newest(FLEET) == later
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_fleet_that_was_never_measured_has_none() -> None:
    assert load_newest(FLEET) is None


def test_another_interface_is_another_fleet(measurement: Measurement) -> None:
    wireless = dataclasses.replace(
        FLEET, hosts=(Host("alpha", interface="wlan0"), Host("beta", interface="eth0"))
    )

    save(FLEET, measurement)

    assert load_newest(wireless) is None


def test_a_damaged_file_is_named_with_what_to_do(
    measurement: Measurement, snapshot: SnapshotAssertion
) -> None:
    path = save(FLEET, measurement)
    path.write_text(path.read_text()[:100])

    with pytest.raises(YokedError) as caught:
        load_newest(FLEET)
    assert str(caught.value) == snapshot

    assert str(path) in caught.value.what
    assert caught.value.fix[0].startswith("yoked probe")


def test_a_fleets_name_leads_nowhere_else(state: Path) -> None:
    odd = dataclasses.replace(FLEET, name="../../my home")

    assert path_for(odd).parent == state / "probe"


def test_a_state_folder_that_cannot_be_written_is_an_error(
    measurement: Measurement, state: Path
) -> None:
    (state / "probe").write_text("a file is in the way")

    with raises_fault("measurement-unwritable"):
        save(FLEET, measurement)
