"""A fleet that talks over a VPN on purpose: yoked.toml names it, and all goes through it.

The VPN is a tun device of MTU 1280, as Tailscale's, whose packets travel as UDP between two hosts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.lab.commands import SOURCES, run

from yoked.fleet.file import read_fleet
from yoked.fleet.trust import remember
from yoked.lab.lab import Lab
from yoked.lab.pytest_plugin import new_lab

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="root enters a host's network with the machine's"),
    pytest.mark.skipif(
        not Path("/dev/net/tun").exists(), reason="the kernel gives no tun device (/dev/net/tun)"
    ),
]

LIMIT_S = 240
DEVICE, MTU_BYTES, PORT = "tailscale0", 1280, 41_641
ADDRESS = {"alpha": "100.64.0.1", "beta": "100.64.0.2"}
SMALL = (
    *("--depth=1", "--max-seq-len=64", "--vocab-size=512", "--total-batch-size=256"),
    *("--num-iterations=3", "--eval-every=-1", "--dtype=float32", "--data=text"),
)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Two hosts, each with its end of the tunnel."""
    with new_lab("two-hosts-1gbe") as lab, ExitStack() as tunnels:
        alpha, beta = lab.host("alpha"), lab.host("beta")
        for own, peer in ((alpha, beta), (beta, alpha)):
            ends = [str(each.spec.interfaces[0].addresses[0].ip) for each in (own, peer)]
            program = [sys.executable, str(Path(__file__).with_name("tunnel.py"))]
            end = subprocess.Popen(
                [*program, str(own.pid), DEVICE, *ends, str(PORT)],
                env={**os.environ, "PYTHONPATH": str(SOURCES)},
                stdout=subprocess.PIPE,
                text=True,
            )
            tunnels.enter_context(end)
            tunnels.callback(end.kill)
            assert end.stdout is not None
            assert end.stdout.readline() == "up\n"
            own.tool(["ip", "link", "set", DEVICE, "mtu", str(MTU_BYTES), "up"])
            own.tool(["ip", "address", "add", f"{ADDRESS[own.name]}/24", "dev", DEVICE])
        yield lab


@pytest.fixture
def fleet(lab: Lab, tmp_path: Path) -> Path:
    """The lab's yoked.toml with the VPN's interface in it, as a person writes it."""
    path = tmp_path / "yoked.toml"
    path.write_text(lab.fleet_file.read_text().replace('"eth0"', f'"{DEVICE}"'))
    remember(read_fleet(path))
    return path


def carried_bytes(lab: Lab, host: str) -> int:
    """What has left a host through the tunnel."""
    path = f"/sys/class/net/{DEVICE}/statistics/tx_bytes"
    return int(lab.host(host).run(["cat", path]).stdout)


def test_the_doctor_says_what_the_vpn_gives_and_does_not_warn_of_it(
    fleet: Path, tmp_path: Path
) -> None:
    done = run(tmp_path, "doctor", "--json", limit_s=LIMIT_S)

    told = json.loads(done.stdout)
    named = {each["check"] for each in told["findings"]}
    assert not named & {"slow-interface", "mtu", "bulk-stalls", "private-interface"}, told
    assert told["ok"], told["findings"]
    assert {(each["interface"], each["path_mtu_bytes"]) for each in told["links"]} == {
        (DEVICE, MTU_BYTES)
    }


def test_a_training_goes_through_the_vpn_from_end_to_end(
    lab: Lab, fleet: Path, tmp_path: Path
) -> None:
    (tmp_path / "text").mkdir()
    words = " ".join(f"w{number % 91}" for number in range(4000))
    lines = "".join(json.dumps({"text": f"{number} {words}"}) + "\n" for number in range(20))
    (tmp_path / "text" / "made-up.jsonl").write_text(lines)
    before = carried_bytes(lab, "beta")

    done = run(tmp_path, "train", *SMALL, "--run=tunnel", "--json", limit_s=LIMIT_S)

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["steps"] == 3
    assert [host["name"] for host in result["hosts"]] == ["alpha", "beta"]
    # Gradients went through it: more than what any rendezvous says.
    sent = carried_bytes(lab, "beta") - before
    assert sent > 3 * result["bytes_sent_per_step"] / 2
