"""Look at all hosts and all ordered pairs at once, with a deadline on every wait.

`HostSeen.torch` is told by the very interpreter that would train, in the environment that ranks
get: python (its path), python_version, torch, torch_path, numpy, headers (whether it has Python.h),
build (cpu, cuda or rocm), cuda_build, gloo, nccl, cuda_available, imported (None: not tried, or not
through with it in time), error, took_s (of the import).
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
import shutil
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import yoked
from yoked.agent import netlink
from yoked.agent.watch import BEAT
from yoked.channel.credentials import make_credentials
from yoked.doctor.broadcasts import heard_by
from yoked.doctor.console import addresses_of
from yoked.doctor.dials import QUICK, THOROUGH, dial_all, endpoints_of, measure, resting
from yoked.doctor.host_probes import HostProbes, Lend
from yoked.doctor.package_asks import with_places
from yoked.doctor.profile import ProbeProfile
from yoked.doctor.program import ProgramHere, program_here, sources_of
from yoked.doctor.rank_probes import How
from yoked.doctor.sshtry import ssh_here, way_to
from yoked.doctor.wants import to_hosts
from yoked.doctor.world_check import check_world
from yoked.errors import YokedError
from yoked.fleet.model import HERE, Fleet, Host
from yoked.paths import state_root
from yoked.records.examination import Examination, HostSeen, Need
from yoked.units import plural

_VERSIONS_S = 1.5


def look(
    fleet: Fleet,
    need: Need,
    *,
    quick: bool,
    bandwidth: bool,
    say: Callable[[str], None],
    lend: Lend | None = None,
    sudo: bool = False,
) -> Examination:
    """What is to be seen of a fleet. Changes nothing, and leaves nothing behind but the agent.

    quick: what takes less than two seconds: no world, no addresses beside the chosen ones.
    bandwidth: measures each link too. say: told what goes on. lend: gives the agent of a host by
    its name, and keeps it; None: a look has agents of its own. sudo: whether `sudo -n` may be used
    on hosts, to read what only root reads. A host that is not reached, or
    falls silent, is part of what was seen.
    """
    began_s = time.monotonic()
    program = program_here(quick=quick)
    # Where this machine stands too, no host is said to.
    BEAT.begin()
    first: How = "versions" if quick else "connect" if len(fleet.hosts) > 1 else "train"
    modules = (*program.modules, *program.plain)
    profile = ProbeProfile(
        first,
        sudo=sudo,
        modules=modules,
        standard=program.standard,
        asks=to_hosts(program.asks),
        sources={} if quick else sources_of(program.own),
    )
    with closing(HostProbes(fleet, need, profile, say, lend)) as probes:
        probes.begin()
        # While ssh has just asked for them.
        silent = [each for each in fleet.hosts if each.name not in probes.here]
        lost = _addresses_of(silent, fleet.ssh_file)
        met = _cards_met(lost)
        probes.begin_training()
        agents = probes.here
        hosts = [probe.host for probe in probes.here.values()]
        interfaces = {name: probe.interfaces for name, probe in probes.here.items()}
        endpoints = endpoints_of(hosts, interfaces, agents)
        pairs = len(hosts) * (len(hosts) - 1)
        say(f"{plural(len(hosts), 'host')} answered; dialling between {pairs} ordered pairs")
        how = QUICK if quick else THOROUGH
        with resting(endpoints, agents, how) as rested:
            dials = dial_all(endpoints, agents, how)
            heard = {} if quick else heard_by(endpoints, interfaces, dials, agents)
            probes.begin_health(
                {
                    name: [endpoint.address for endpoint in endpoints if endpoint.host == name]
                    for name in probes.here
                }
                # At which card others find it.
                | lost
            )
            world = None if quick else check_world(probes, endpoints, dials, began_s, say)
            if quick:
                probes.await_versions(time.monotonic() + _VERSIONS_S)
            else:
                probes.await_suspects()
                probes.await_acts()
                probes.find_culprits()
            # What is still being imported would only hold up the rest.
            probes.end_trials()
            dials += rested()
        probes.look_again()
        if bandwidth and len(agents) > 1:
            say("measuring each link")
            dials = measure(dials, agents)
        seen = [_with_heard(probes.seen(each), heard) for each in fleet.hosts]
        ended = {each.name for each in seen if each.failure is not None} - {*lost}
        lost |= _addresses_of([each for each in fleet.hosts if each.name in ended], fleet.ssh_file)
        return Examination(
            hosts=tuple(seen),
            dials=tuple(dials),
            world=world,
            need=need,
            controller={
                **_controller(fleet, program),
                "stood": BEAT.stood(),
                "lost": lost,
                "met": {**met, **_cards_met(lost)},
                "asks": with_places(
                    program.asks, (each.trials.get("connect") for each in probes.here.values())
                ),
                # A launch makes its own, and says what is wrong with them.
                **(_certificates() if len(fleet.hosts) > 1 and not quick else {}),
            },
            quick=quick,
            took_s=time.monotonic() - began_s,
        )


def _with_heard(seen: HostSeen, heard: Mapping[str, Mapping[str, Any]]) -> HostSeen:
    """The same, with whom the host hears, where that was asked."""
    if seen.name not in heard:
        return seen
    return dataclasses.replace(seen, health={**seen.health, "broadcasts": heard[seen.name]})


def _addresses_of(lost: Collection[Host], config: Path | None) -> dict[str, list[str]]:
    """The addresses of hosts without an agent, by yoked.toml or by ssh's settings."""
    return {
        host.name: list(addresses_of(host.address or way_to(host.name, config).address))
        for host in lost
    }


def _cards_met(lost: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The network card at which this machine finds each of these hosts, as far as it knows."""
    if not lost or not netlink.can_ask():
        return {}
    try:
        known = {each.address: each.hardware for each in netlink.neighbours() if each.hardware}
    except OSError:
        return {}
    return {
        name: mac for name, own in lost.items() for address in own if (mac := known.get(address))
    }


def _controller(fleet: Fleet, program: ProgramHere) -> dict[str, Any]:
    """What this machine says of itself."""
    try:
        torch: str | None = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = None
    return {
        "hostname": socket.gethostname(),
        "python": platform.python_version(),
        "yoked": yoked.__version__,
        "torch": torch,
        **ssh_here(
            next((each.name for each in fleet.hosts if each.name != HERE), None), fleet.ssh_file
        ),
        "state": str(state_root()),
        # One machine alone needs none: then no line names it.
        "fleet": str(fleet.path) if fleet.path.is_file() else None,
        "ssh_config": None if fleet.ssh_config is None else str(fleet.ssh_config),
        **{
            name: told if isinstance(told, dict) else list(told)
            for name, told in dataclasses.asdict(program).items()
        },
        "time_s": time.time(),
    }


def _certificates() -> dict[str, Any]:
    """The program that makes certificates here, and why it makes none; None: it does."""
    problem: str | None = None
    try:
        make_credentials("doctor", 2)
    except YokedError as failed:
        problem = failed.what
    return {"openssl": shutil.which("openssl"), "certificates": problem}
