"""`yoked probe` over two hosts with real ssh and a shaped link, and what it leaves: nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.schemas import conforms

from yoked.cli.commands import probe
from yoked.cli.commands.probe import ModelFlags
from yoked.errors import HostError
from yoked.fleet.file import load_fleet, read_fleet
from yoked.fleet.trust import remember
from yoked.lab.lab import Lab
from yoked.lab.pytest_plugin import new_lab
from yoked.probe.store import load_newest

pytest.importorskip("torch")

SMALL = ModelFlags(depth=1, max_seq_len=32, vocab_size=512, device_batch_size=1)
WIRE_BYTES_PER_S = 125e6
DEADLINE_S = 240.0
PROGRAM = """
import sys
from pathlib import Path
from yoked.cli.commands import probe
probe.command(fleet=Path(sys.argv[1]), collectives_limit="600 s")
"""
# ssh comes in, nothing else does.
ONLY_SSH = """
table inet person {
    chain input {
        type filter hook input priority 0; policy drop;
        ct state established,related accept
        iif lo accept
        tcp dport 22 accept
    }
}
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with new_lab("two-hosts-1gbe") as lab:
        yield lab


def left_behind(lab: Lab) -> list[str]:
    """Processes of launches, and folders of jobs, on all hosts."""
    found = []
    for named in lab.topology.hosts:
        host = lab.host(named.name)
        for process in host.processes():
            try:
                environ = Path(f"/proc/{process.outer_pid}/environ").read_bytes()
            except OSError:
                continue
            if b"YOKED_LAUNCH_ID=" in environ:
                found.append(f"{named.name}: {' '.join(process.command)}")
        jobs = host.run(["sh", "-c", "ls -d ~/.local/state/yoked/jobs/*"], check=False)
        found += [f"{named.name}: {line}" for line in jobs.stdout.splitlines()]
    return found


@pytest.mark.slow
def test_links_collectives_and_steps_are_measured_and_kept(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    # A program that the probe did not start: its end is waited for by the shell alone.
    with lab.host("beta").popen(["sh", "-c", "while :; do :; done"]) as other:
        try:
            status = probe.command(model=SMALL, fleet=lab.fleet_file, quick=True, json_output=True)
        finally:
            other.kill()

    told = conforms("probe", json.loads(capsys.readouterr().out))
    assert status == 0, told
    links = {(each["from"], each["to"]): each for each in told["links"]}
    assert links.keys() == {("alpha", "beta"), ("beta", "alpha")}
    for each in links.values():
        # What the bucket of the shaped link lets through at once is not taken for its rate.
        assert 0 < each["goodput_bytes_per_s"] < WIRE_BYTES_PER_S
        assert 0 < each["both_ways_bytes_per_s"] < WIRE_BYTES_PER_S
        assert (each["interface"], each["mtu_bytes"]) == ("eth0", 1500)
    assert {each["op"] for each in told["collectives"]} == {
        *("all_reduce", "all_gather", "reduce_scatter")
    }
    assert {each["host"] for each in told["compute"]} == {"alpha", "beta"}
    assert {each["host"] for each in told["step_costs"]} == {"alpha", "beta"}
    assert told["busy_cores"].keys() == {"beta"}
    kept = load_newest(load_fleet(lab.fleet_file))
    assert kept is not None
    assert kept.busy_cores == told["busy_cores"]
    assert kept.taken_s == told["taken_s"]
    assert kept.ranks == {"alpha": 1, "beta": 1}
    assert left_behind(lab) == []


def test_a_host_without_torch_is_named_and_the_links_are_there(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "yoked.toml"
    text = lab.fleet_file.read_text()
    first, second = text.split('name = "beta"')
    file.write_text(f'{first}name = "beta"{second.replace(sys.executable, "/usr/bin/python3")}')
    remember(read_fleet(file))

    status = probe.command(model=SMALL, fleet=file, quick=True)

    said = capsys.readouterr().out
    assert status == 1
    assert "beta: /usr/bin/python3 " in said
    assert "next: " in said
    assert "install" in said.partition("next: ")[2]
    assert "beta   alpha  eth0, ipv4" in said
    assert "not kept" in said


def test_a_firewall_between_hosts_is_named_with_the_pair(
    lab: Lab, snapshot: SnapshotAssertion
) -> None:
    beta = lab.host("beta")
    beta.tool(["nft", "-f", "-"], input=ONLY_SSH)
    try:
        with pytest.raises(HostError) as caught:
            probe.command(model=SMALL, fleet=lab.fleet_file, quick=True)
    finally:
        beta.tool(["nft", "delete", "table", "inet", "person"])
    assert str(caught.value) == snapshot


@pytest.mark.slow
def test_ctrl_c_leaves_nothing_on_the_hosts(lab: Lab) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(lab.fleet_file)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        until_s = time.monotonic() + DEADLINE_S
        while not any("yoked.launch.bootstrap.rank" in line for line in left_behind(lab)):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < until_s, left_behind(lab)
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
        process.wait()

    assert b"KeyboardInterrupt" in said
    assert left_behind(lab) == []
