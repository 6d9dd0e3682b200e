"""Addresses, routes and rules that are wrong: what a program meets that dials."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest

RENDEZVOUS, HIGH = 29500, 40213
SOON_S = 0.7
NO_NETWORK, NO_HOST = f"errno {errno.ENETUNREACH}", f"errno {errno.EHOSTUNREACH}"


@pytest.mark.parametrize(
    ("line", "met"),
    [
        ("interface-down alpha", NO_NETWORK),
        ("no-address alpha", NO_NETWORK),
        ("wrong-netmask alpha 32", NO_NETWORK),
        ("foreign-address alpha", NO_NETWORK),
        ("no-route alpha beta", NO_HOST),
        ("no-route alpha beta blackhole", f"errno {errno.EINVAL}"),
        ("no-route alpha beta prohibit", f"errno {errno.EACCES}"),
        ("kill-switch alpha", f"errno {errno.EACCES}"),
        ("wrong-neighbour alpha beta", "timeout"),
    ],
)
def test_a_way_that_is_wrong_fails_as_on_a_real_machine(acts: Any, line: str, met: str) -> None:
    before = acts.call("alpha", "beta")

    acts.fault(*line.split())
    during = acts.call("alpha", "beta", patience_s=SOON_S)
    acts.heal("alpha")

    assert (before, during) == ("passed", met)
    assert acts.call("alpha", "beta") == "passed"


@pytest.mark.parametrize("healed_first", [0, 1, 2])
def test_healing_one_fault_of_an_interface_leaves_the_others(acts: Any, healed_first: int) -> None:
    def addresses() -> tuple[bool, list[str]]:
        shown = acts.lab.host("alpha").tool(["ip", "-j", "address", "show", "dev", "eth0"]).stdout
        seen = json.loads(shown)[0]
        found = [f"{each['local']}/{each['prefixlen']}" for each in seen["addr_info"]]
        return "UP" in seen["flags"], found

    before = addresses()
    lines = ("interface-down alpha", "wrong-netmask alpha 32", "no-address alpha")
    ids = [acts.fault(*line.split()).id for line in lines]
    acts.heal(ids.pop(healed_first))
    with_two = addresses()
    acts.heal(*ids)

    assert with_two == (
        healed_first == 0,
        ["192.168.77.1/32"] if healed_first == 2 else [],
    )
    assert addresses() == before


@pytest.mark.slow
def test_a_kill_switch_leaves_the_controller_its_way(acts: Any) -> None:
    acts.fault("kill-switch", "alpha")

    alpha = acts.lab.host("alpha")
    assert alpha.run(["ping", "-c1", "-W5", "192.168.77.254"], check=False).returncode == 0


def test_an_isolated_client_reaches_the_router_and_no_other_host(acts: Any) -> None:
    acts.fault("client-isolation", "alpha")

    calls = [
        acts.call(*pair, patience_s=SOON_S)
        for pair in (("alpha", "beta"), ("beta", "alpha"), ("beta", "gamma"))
    ]
    router = acts.lab.host("alpha").run(["ping", "-c1", "-W5", "192.168.77.254"], check=False)
    acts.heal("alpha")

    assert calls[0] != "passed"
    assert calls[1] != "passed"
    assert calls[2] == "passed"
    assert router.returncode == 0
    assert acts.call("alpha", "beta") == "passed"


@pytest.mark.slow
def test_the_address_of_another_host_is_taken_and_given_back(acts: Any) -> None:
    acts.fault("same-address", "alpha", "beta")
    shown = acts.lab.host("alpha").tool(["ip", "-brief", "address", "show", "eth0"]).stdout

    acts.heal("alpha")

    assert "192.168.77.2/24" in shown
    assert acts.call("gamma", "beta") == "passed"
    assert acts.call("gamma", "alpha") == "passed"


@pytest.mark.parametrize(("flags", "met"), [([], "timeout"), (["--reject"], NO_HOST)])
def test_nothing_goes_out_and_others_still_come_in(acts: Any, flags: list[str], met: str) -> None:
    acts.fault("firewall-out", "alpha", *flags)

    assert acts.call("alpha", "beta", patience_s=SOON_S) == met
    assert acts.call("beta", "alpha") == "passed"


def test_a_range_of_ports_is_closed_and_others_are_open(acts: Any) -> None:
    acts.fault("closed-ports", "alpha", "40000-41000")

    assert acts.call("beta", "alpha", HIGH, patience_s=SOON_S) == "timeout"
    assert acts.call("beta", "alpha", RENDEZVOUS) == "passed"


def test_the_first_connections_pass_and_those_after_do_not(acts: Any) -> None:
    acts.fault("connection-limit", "alpha", 2)

    calls = [acts.call("beta", "alpha", patience_s=SOON_S) for _ in range(3)]

    assert calls == ["passed", "passed", "timeout"]


def test_a_kernel_with_two_ports_to_give_runs_out(acts: Any) -> None:
    take = (
        "import socket, contextlib\n"
        "held = []\n"
        "with contextlib.suppress(OSError):\n"
        "    while len(held) < 9:\n"
        "        held.append(socket.create_server(('', 0)))\n"
        "print([each.getsockname()[1] for each in held])"
    )

    acts.fault("port-range", "alpha", 45000, 45001)
    given = acts.python("alpha", take)
    acts.heal("alpha")

    assert sorted(eval(given)) == [45000, 45001]
    assert len(eval(acts.python("alpha", take))) == 9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "met"), [("ufw", "timeout"), ("iptables", "timeout"), ("firewalld", NO_HOST)]
)
def test_a_distributions_own_firewall_closes_high_ports(acts: Any, kind: str, met: str) -> None:
    acts.fault(kind, "alpha")
    high = acts.call("beta", "alpha", HIGH, patience_s=SOON_S)
    rendezvous = acts.call("beta", "alpha", RENDEZVOUS)
    acts.heal("alpha")

    assert (high, rendezvous) == (met, "passed")
    assert acts.call("beta", "alpha", HIGH) == "passed"
