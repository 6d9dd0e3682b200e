"""`yoked probe`: what it refuses before any host is asked, and what it says of what it found."""

from __future__ import annotations

import dataclasses
import io
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.failures import raises_fault
from tests.schemas import conforms
from tests.unit.probe.made_up import step_cost, two_hosts

from yoked.cli.commands import probe
from yoked.cli.commands.probe import ModelFlags
from yoked.cli.commands.probe_text import report
from yoked.cli.output import Output
from yoked.errors import HostError, UsageError
from yoked.fleet.model import Fleet, Host
from yoked.probe.links import LinkMeasurement
from yoked.records.measurement import Measurement
from yoked.workflows.probe_job import ProbeResult, RankListener, ResultReceivedError

SKIPPED = {"op": "all_reduce", "payload_bytes": 256_000_000, "expected_s": 43.0}


def found(measurement: Measurement, **changes: Any) -> ProbeResult:
    whole: dict[str, Any] = {
        "fleet": Fleet("home", (Host("alpha"), Host("beta")), Path("nowhere/yoked.toml")),
        "measurement": measurement,
        "links": [LinkMeasurement(link, 1500) for link in measurement.links],
        "skipped_sizes": [],
        "choices": {},
        "problem": None,
        "saved_to": Path("/state/probe/home.json"),
        "took_s": 24.0,
    }
    return ProbeResult(**{**whole, **changes})


def said(what: ProbeResult, *, json_mode: bool = False) -> tuple[int, str]:
    stream = io.StringIO()
    status = report(what, Output(json_mode=json_mode, stdout=stream))
    return status, stream.getvalue()


def test_the_verdict_is_the_slowest_link_and_the_next_step_a_plan(
    snapshot: SnapshotAssertion,
) -> None:
    status, text = said(found(two_hosts()))

    assert status == 0
    assert text == snapshot


def test_each_part_has_its_table(snapshot: SnapshotAssertion) -> None:
    _, text = said(found(two_hosts(), skipped_sizes=[SKIPPED]))

    rows = [line.split() for line in text.splitlines()]
    reduced = next(row for row in rows if row[:1] == ["all_reduce"])
    assert reduced[1:3] == ["64.0", "MB"]
    assert reduced[-1] == "99%"
    assert text == snapshot
    assert "268 GFLOP/s" in text
    # 1,024 tokens in 0.66 s of micro-batch and 0.12 s of optimizer.
    assert "1,313 tokens/s" in text
    assert "alpha, float32: held by arithmetic" in text


def test_a_dtype_that_took_no_step_is_said_to_be_too_slow(snapshot: SnapshotAssertion) -> None:
    measurement = two_hosts()
    slow = dataclasses.replace(measurement.compute[0], dtype="bfloat16", flops_per_s=2e9)

    _, text = said(found(dataclasses.replace(measurement, compute=(*measurement.compute, slow))))

    assert text == snapshot


def test_a_tunnel_on_the_way_is_told(snapshot: SnapshotAssertion) -> None:
    measurement = two_hosts()
    link = dataclasses.replace(measurement.links[0], mtu_bytes=1420)

    _, text = said(found(measurement, links=[LinkMeasurement(link, 1500)]))

    assert text == snapshot


def test_a_host_that_other_programs_slowed_is_named() -> None:
    measurement = dataclasses.replace(two_hosts(), busy_cores={"beta": 1.26})

    _, text = said(found(measurement))
    _, as_json = said(found(measurement), json_mode=True)

    assert "beta: other programs used 1.3 of its cores meanwhile" in text
    assert conforms("probe", json.loads(as_json))["busy_cores"] == {"beta": 1.26}


def test_a_link_that_gave_less_than_a_collective_carried_is_named() -> None:
    whole = two_hosts()
    large = dataclasses.replace(whole.collectives[0], fraction_of_wire=2.54)
    measurement = dataclasses.replace(whole, collectives=(large, *whole.collectives[1:]))

    _, text = said(found(measurement))
    _, as_json = said(found(measurement), json_mode=True)

    assert "beta to alpha was measured while it or its hosts were busy" in text
    assert "all_reduce of 64.0 MB had 254% of it" in text
    beyond = conforms("probe", json.loads(as_json))["beyond_wire"]
    assert (beyond["from"], beyond["to"], beyond["fraction_of_wire"]) == ("beta", "alpha", 2.54)


def test_json_has_the_promised_keys_and_one_object() -> None:
    status, text = said(found(two_hosts()), json_mode=True)

    told = conforms("probe", json.loads(text))
    assert status == 0
    assert {"from", "to", "interface", "family", "mtu_bytes", "rtt_s", "goodput_bytes_per_s"} <= (
        told["links"][0].keys()
    )
    assert {"op", "payload_bytes", "time_s", "busbw_bytes_per_s", "fraction_of_wire"} <= (
        told["collectives"][0].keys()
    )
    assert {"host", "device", "dtype", "flops_per_s", "copy_bytes_per_s"} <= (
        told["compute"][0].keys()
    )
    assert told["bounds"][0]["side"] == "arithmetic"
    assert told["beyond_wire"] is None


def test_what_a_host_lacks_is_named_beside_what_was_measured(snapshot: SnapshotAssertion) -> None:
    links_alone = dataclasses.replace(two_hosts(), collectives=(), compute=(), step_costs=())
    problem = HostError("beta: no Python there has torch", fix="yoked install --host beta")

    status, text = said(found(links_alone, problem=problem, saved_to=None))

    assert status == 1
    assert "936 Mbit/s" in text
    assert text == snapshot
    assert "not kept" in text
    assert text.splitlines()[-1] == snapshot


def test_one_machine_alone_is_told_by_its_speed() -> None:
    whole = two_hosts()
    alone = dataclasses.replace(
        whole, links=(), collectives=(), compute=whole.compute[:1], step_costs=(step_cost("alpha"),)
    )

    _, text = said(found(alone))

    assert text.startswith("fleet home: 268 GFLOP/s in float32 on alpha; measured in 24.0 s")


@pytest.mark.parametrize(
    ("flags", "about"),
    [
        ({"model": ModelFlags(depth=0)}, "--depth 0"),
        ({"model": ModelFlags(depth=1, aspect_ratio=8, head_dim=8)}, "wide"),
        ({"model": ModelFlags(device_type="tpu")}, "tpu"),
        ({"collectives_limit": "0 s"}, "no time"),
        ({"collectives_limit": "soon"}, "not a duration"),
        ({"links": False, "collectives": False, "compute": False}, "nothing is left"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_any_host_is_asked(
    flags: dict[str, Any], about: str
) -> None:
    with pytest.raises(UsageError) as caught:
        probe.command(fleet=Path("no/such/yoked.toml"), **flags)

    assert about in caught.value.what
    assert caught.value.fix


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminal_that_is_closed_ends_what_was_started(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: Any) -> None:
        signal.raise_signal(number)

    monkeypatch.setattr("yoked.workflows.probe_job.probe_fleet", closed)

    with pytest.raises(KeyboardInterrupt):
        probe.command(fleet=Path())


def test_a_fleet_file_that_is_not_there_is_named() -> None:
    with raises_fault("fleet-missing"):
        probe.command(fleet=Path("no/such/yoked.toml"))


def test_flags_reach_the_trainer_as_its_own() -> None:
    words = ModelFlags(depth=8, window_pattern="SSSL").to_args()

    assert "--depth=8" in words
    assert "--window-pattern=SSSL" in words
    assert not any("head-dim" in word for word in words)


def test_rank_0_is_heard_in_whole_lines_whatever_else_it_prints() -> None:
    doing: list[str] = []
    listener = RankListener(doing.append)

    for piece in ('{"doing": "all_re', 'duce"}\nsome library\n[1]\n', '{"result": '):
        listener.rank_output("out", piece)
    listener.rank_output("err", '{"result": "a warning"}\n')
    assert listener.result is None
    with pytest.raises(ResultReceivedError):
        listener.rank_output("out", '{"a": 1}}\n')

    assert doing == ["all_reduce"]
    assert listener.result == {"a": 1}
