"""Is the interface that `yoked init` chooses the right one, in random networks?

    python benchmarks/interfaces/bench.py [--cases 30] [--first-seed 0]

Needs a machine on which `yoked lab list` finds all that a lab needs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from random_topology import Case, make_case

from yoked.fleet.discover import survey
from yoked.fleet.model import Host
from yoked.lab.lab import Lab
from yoked.lab.topology_file import read
from yoked.remote.connect import connect_all

RESULTS = Path(__file__).parent / "results" / "results.json"


@dataclass(frozen=True)
class Verdict:
    """What was chosen in one network. wrong: hosts that got another interface than they should."""

    case: Case
    chosen: dict[str, dict[str, Any]]
    wrong: list[str]
    took_s: float

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "seed": self.case.seed,
            "traits": self.case.traits,
            "expected": {name: list(each) for name, each in self.case.expected.items()},
            "chosen": self.chosen,
            "wrong": self.wrong,
            "took_s": round(self.took_s, 2),
        }


def bring_up(case: Case) -> Lab:
    """The case's network, which ends with this process."""
    topology = read(case.toml.encode(), name=f"interfaces-{case.seed}", source="random_topology")
    lab = Lab.up(topology, name=topology.name, tethered=True)
    try:
        for name, programs in case.after.items():
            for argv in programs:
                lab.host(name).tool(argv)
    except BaseException:
        lab.down()
        raise
    return lab


def judge(case: Case, lab: Lab) -> Verdict:
    """Choose as `yoked init` does, over ssh, and compare with what is known."""
    hosts = [Host(name) for name in case.expected]
    clients, failures = connect_all(hosts, lab.ssh_config)
    with ExitStack() as stack:
        for client in clients.values():
            stack.enter_context(client)
        assert not failures, failures
        began_s = time.perf_counter()
        choices = survey(hosts, clients).choices
        took_s = time.perf_counter() - began_s
    wrong = [
        name
        for name, (interface, family) in case.expected.items()
        if (choices[name].interface, ip_address(choices[name].address).version)
        != (interface, family)
    ]
    chosen = {
        name: {
            "interface": each.interface,
            "address": each.address,
            "goodput_mbit_per_s": round(8e-6 * (each.goodput_bytes_per_s or 0), 1),
        }
        for name, each in choices.items()
    }
    return Verdict(case, chosen, wrong, took_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=30)
    parser.add_argument("--first-seed", type=int, default=0)
    args = parser.parse_args()
    verdicts = []
    for seed in range(args.first_seed, args.first_seed + args.cases):
        case = make_case(seed)
        with bring_up(case) as lab:
            verdict = judge(case, lab)
        verdicts.append(verdict)
        word = f"WRONG for {', '.join(verdict.wrong)}" if verdict.wrong else "right"
        print(f"{seed:3} {word}, {verdict.took_s:.1f} s: {', '.join(case.traits)}", flush=True)
    right = sum(not verdict.wrong for verdict in verdicts)
    print(f"{right} of {len(verdicts)} right")
    RESULTS.parent.mkdir(exist_ok=True)
    summary = {"right": right, "cases": [verdict.to_json() for verdict in verdicts]}
    RESULTS.write_text(json.dumps(summary, indent=1) + "\n")
    return 0 if right == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
