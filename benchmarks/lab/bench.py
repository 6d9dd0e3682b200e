"""What the lab promises: speeds of links and hosts, how soon it is up, and that it leaves nothing.

usage: bench.py [--only links|cost|speeds|up|cycles] [--cycles 100] [--seed 1] [--out FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import census

from yoked.core.proc import ProcessId
from yoked.lab import shaping, tools
from yoked.lab.host import LabHost
from yoked.lab.lab import Lab, labs_folder
from yoked.lab.topology_load import load

HERE = Path(__file__).parent
COMMAND = "import sys; from yoked.cli.main import main; sys.exit(main(sys.argv[1:]))"
YOKED_LAB = [sys.executable, "-c", COMMAND, "lab"]
LIMIT_S = 120.0
# Of TCP payload, each way, while the other way is as busy.
LINKS_BIT_PER_S = {"two-hosts-1gbe": (940e6, 960e6), "two-hosts-100mbit": (94e6, 96e6)}
PING_S = 1e-3
SPEED_RATIO, SPEED_TOLERANCE = 4.0, 0.05
TURNS = 9
COST_TURNS = 3
UP_S = {"two-hosts-1gbe": 2.0, "four-hosts": 3.0}
KILLED_SHARE = 0.2
# Prints how many products of two matrices a second of wall time had.
PRODUCTS = """
import os, sys, time
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"
import numpy
a = numpy.random.default_rng(0).standard_normal((384, 384), dtype=numpy.float32)
for _ in range(10):
    a @ a
print("ready", flush=True)
sys.stdin.readline()
duration_s, began_s, count = float(sys.argv[1]), time.perf_counter(), 0
while (took_s := time.perf_counter() - began_s) < duration_s:
    a @ a
    count += 1
print(count / took_s)
"""


def iperf_both_ways(lab: Lab, duration_s: int) -> dict[str, float]:
    """Payload in bit/s that arrived at each host, both ways at once."""
    one, other = lab.topology.hosts
    servers = [lab.host(host.name).popen(["iperf3", "-s", "-1"]) for host in (one, other)]
    for host in (one, other):
        wait_for_listener(lab.host(host.name), ":5201 ")
    # The first second is left out: windows grow in it.
    command = ["iperf3", "-J", "-O", "1", "-t", str(duration_s), "-c"]
    clients = {
        target.name: lab.host(source.name).popen([*command, target.address])
        for source, target in ((one, other), (other, one))
    }
    said = {name: client.communicate(timeout=LIMIT_S)[0] for name, client in clients.items()}
    for server in servers:
        server.communicate(timeout=LIMIT_S)
    return {
        name: json.loads(text)["end"]["sum_received"]["bits_per_second"]
        for name, text in said.items()
    }


def wait_for_listener(host: LabHost, port: str) -> None:
    end = time.monotonic() + LIMIT_S
    while port not in host.tool(["ss", "-Hltn"]).stdout:
        if time.monotonic() > end:
            raise RuntimeError(f"nobody listens at {port} of {host.name}")
        time.sleep(0.02)


def ping_s(lab: Lab) -> dict[str, float]:
    """Mean and worst round trip on an idle link."""
    one, other = lab.topology.hosts
    said = lab.host(one.name).run(["ping", "-q", "-c", "50", "-i", "0.05", other.address]).stdout
    _, mean_ms, worst_ms, _ = map(float, re.findall(r"[\d.]+", said.rpartition("=")[2]))
    return {"mean": mean_ms / 1e3, "worst": worst_ms / 1e3}


def links(options: argparse.Namespace) -> dict[str, Any]:
    """Rates both ways at once, and round trips, of links of two speeds."""
    results: dict[str, Any] = {}
    for topology, (least, most) in LINKS_BIT_PER_S.items():
        with Lab.up(load(topology), name=f"bench-{topology}", tethered=True) as lab:
            trip_s = ping_s(lab)
            arrived = iperf_both_ways(lab, options.seconds)
        results[topology] = {
            "arrived_bit_per_s": {name: round(rate) for name, rate in arrived.items()},
            "ping_s": trip_s,
            "fine": all(least <= rate <= most for rate in arrived.values())
            and trip_s["mean"] < PING_S,
        }
        rates = ", ".join(f"{rate / 1e6:.1f}" for rate in arrived.values())
        print(f"{topology}: {rates} Mbit/s both ways at once, ping {trip_s['mean'] * 1e3:.3f} ms")
    return results


def cost(options: argparse.Namespace) -> dict[str, Any]:
    """What a link that is busy both ways takes from its hosts' cores, by what TCP hands to it.

    By turns: as the lab has it; and in pieces of a quarter of a millisecond, for each of which
    both ends of the link set a timer, as it had it before.
    """
    with Lab.up(load("two-hosts-1gbe"), name="bench-cost", tethered=True) as lab:
        taken: dict[str, list[list[float]]] = {"now": [], "quarter": []}
        for _ in range(COST_TURNS):
            for name, found in taken.items():
                _cut(lab, quarter=name == "quarter")
                found.append(_taken_by_traffic(lab, options.seconds))
    results: dict[str, Any] = {}
    for name, found in taken.items():
        shares = [share for turn in found for share in turn]
        results[name] = {
            "taken": [[round(share, 3) for share in turn] for turn in found],
            "median": round(statistics.median(shares), 3),
        }
    words = ", ".join(f"{name} {result['median']:.1%}" for name, result in results.items())
    print(f"1 Gbit/s both ways takes from a core: {words}")
    return results


def _cut(lab: Lab, *, quarter: bool) -> None:
    """Have TCP hand over pieces of a quarter of a millisecond, or those of the lab."""
    for host in lab.topology.hosts:
        (interface,) = host.joined
        shape, name, port = interface.shape, interface.name, interface.port
        assert shape.rate_bit_per_s is not None
        if quarter:
            piece = round(shape.rate_bit_per_s / 8 * 0.25e-3)
            queue = f"root tbf rate {round(shape.rate_bit_per_s)}bit burst {2 * piece} limit 262144"
            batches = [f"link set dev {name} gso_max_size {piece}"]
            own, switchs = ([f"qdisc replace dev {each} {queue}"] for each in (name, port))
        else:
            batches = shaping.batching(name, shape, one_by_one=False)
            own, switchs = shaping.shape_ends(interface, shape, lab.features)
        tools.run_ip(lab.host(host.name), batches)
        tools.run_tc(lab.host(host.name), own)
        tools.run_tc(lab.switch, switchs)


def _taken_by_traffic(lab: Lab, duration_s: int) -> list[float]:
    """The part of each host's matrix products that iperf3, both ways at once, leaves undone."""
    hosts = [lab.host(host.name) for host in lab.topology.hosts]
    idle = products_per_s(hosts, duration_s)
    with ThreadPoolExecutor(1) as beside:
        traffic = beside.submit(iperf_both_ways, lab, duration_s + 4)
        time.sleep(2)
        busy = products_per_s(hosts, duration_s)
        traffic.result()
    return [1 - less / all_ for less, all_ in zip(busy, idle, strict=True)]


def products_per_s(hosts: list[LabHost], duration_s: float) -> list[float]:
    """Matrix products a second in each host, all at the same time."""
    running = [
        host.popen([sys.executable, "-c", PRODUCTS, str(duration_s)], stdin=subprocess.PIPE)
        for host in hosts
    ]
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return [float(process.communicate(timeout=LIMIT_S)[0]) for process in running]


def speeds(options: argparse.Namespace) -> dict[str, Any]:
    """Matrix products in the hosts of `unequal`, one after the other and at the same time."""
    with Lab.up(load("unequal"), name="bench-unequal", tethered=True) as lab:
        fast, slow = lab.host("fast"), lab.host("slow")
        # By turns, so that a noisy machine is as noisy for both.
        by_turns = [
            (
                products_per_s([fast], options.seconds)[0],
                products_per_s([slow], options.seconds)[0],
            )
            for _ in range(TURNS)
        ]
        together = [products_per_s([fast, slow], options.seconds) for _ in range(TURNS)]
    results: dict[str, Any] = {}
    for name, pairs in (("by_turns", by_turns), ("at_once", together)):
        ratios = [one / other for one, other in pairs]
        ratio = statistics.median(ratios)
        results[name] = {
            "products_per_s": [[round(one, 1), round(other, 1)] for one, other in pairs],
            "ratios": [round(each, 3) for each in ratios],
            "ratio": round(ratio, 3),
            "fine": abs(ratio / SPEED_RATIO - 1) <= SPEED_TOLERANCE,
        }
        print(f"unequal, {name}: {ratio:.3f} to 1")
    return results


def timed(act: Callable[..., Any], *arguments: Any, **named: Any) -> tuple[Any, float]:
    """What it returns, and how many seconds it took."""
    began_s = time.perf_counter()
    result = act(*arguments, **named)
    return result, time.perf_counter() - began_s


def lab_command(*words: str) -> None:
    subprocess.run([*YOKED_LAB, *words], check=True, capture_output=True, timeout=LIMIT_S)


def up(options: argparse.Namespace) -> dict[str, Any]:
    """How long it takes until hosts answer by ssh, and until nothing is left."""
    results: dict[str, Any] = {}
    for topology, limit_s in UP_S.items():
        took: dict[str, list[float]] = {"api_up": [], "api_down": [], "cli_up": [], "cli_down": []}
        for _ in range(options.rounds):
            lab, api_up_s = timed(Lab.up, load(topology), name="bench")
            took["api_up"].append(api_up_s)
            took["api_down"].append(timed(lab.down)[1])
            took["cli_up"].append(timed(lab_command, "up", topology, "--name", "bench")[1])
            took["cli_down"].append(timed(lab_command, "down", "bench")[1])
        results[topology] = {
            **{f"{name}_s": [round(each, 3) for each in found] for name, found in took.items()},
            "worst_up_s": round(max(took["api_up"] + took["cli_up"]), 3),
            "fine": max(took["api_up"] + took["cli_up"]) < limit_s,
        }
        medians = {name: statistics.median(found) for name, found in took.items()}
        print(f"{topology}: " + ", ".join(f"{name} {s:.2f} s" for name, s in medians.items()))
    return results


def killed_cycle(dice: random.Random, typical_up_s: float) -> dict[str, Any]:
    """Bring a lab up, kill -9 what makes it at a random moment, clear up."""
    victim, wait_s = dice.choice(["up", "keeper", "init"]), dice.uniform(0, typical_up_s)
    folder = labs_folder() / "bench"
    making = subprocess.Popen(
        [*YOKED_LAB, "up", "two-hosts-1gbe", "--name", "bench"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    time.sleep(wait_s)
    found = {}
    with contextlib.suppress(OSError, ValueError):
        found = json.loads((folder / "keeper.json").read_text())
    reached = sorted(path.name for path in folder.glob("*")) if folder.exists() else []
    if victim == "keeper" and found:
        ProcessId.from_json(found).kill()
    elif victim == "init" and "init" in found:
        ProcessId.from_json(found["init"]).kill()
    else:
        victim = "up"
        making.kill()
    making.wait(LIMIT_S)
    lab_command("down", "--all")
    return {"victim": victim, "after_s": round(wait_s, 3), "files_by_then": len(reached)}


def cycles(options: argparse.Namespace) -> dict[str, Any]:
    """Up and down again and again, some of them killed; what is there that was not before."""
    dice = random.Random(options.seed)
    lab_command("up", "two-hosts-1gbe", "--name", "bench")
    lab_command("down", "bench")
    labs = labs_folder()
    before, objects_before = census.take(labs), census.kernel_objects()
    killed = set(dice.sample(range(options.cycles), round(options.cycles * KILLED_SHARE)))
    history, typical_up_s, took_s = [], 1.0, []
    for number in range(options.cycles):
        if number in killed:
            history.append({"cycle": number, **killed_cycle(dice, typical_up_s)})
            print(f"cycle {number}: {history[-1]}", flush=True)
            continue
        took_s.append(timed(lab_command, "up", "two-hosts-1gbe", "--name", "bench")[1])
        typical_up_s = statistics.median(took_s)
        lab_command("down", "bench")
    left = census.added(before, labs)
    print(f"{options.cycles} cycles, {len(killed)} killed; left: {left}")
    return {
        "cycles": options.cycles,
        "killed": len(killed),
        "seed": options.seed,
        "up_s": {"median": round(typical_up_s, 3), "worst": round(max(took_s), 3)},
        "kills": history,
        "left": left,
        "kernel_objects": {"before": objects_before, "after": census.kernel_objects()},
        "fine": not any(left.values()) and max(took_s) < UP_S["two-hosts-1gbe"],
    }


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "links": links,
    "cost": cost,
    "speeds": speeds,
    "up": up,
    "cycles": cycles,
}


def machine() -> str:
    models = re.findall(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{os.cpu_count()} cores {models[0] if models else 'of unknown make'}"


def is_fine(found: Any) -> bool:
    """Whether every verdict within is."""
    if not isinstance(found, dict):
        return True
    return bool(found.get("fine", True)) and all(is_fine(value) for value in found.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5, help="of up and down, for their times")
    parser.add_argument("--seconds", type=int, default=10, help="of each measurement")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "results.json")
    options = parser.parse_args()
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    results["machine"] = machine()
    with tempfile.TemporaryDirectory(prefix="yoked-bench-") as state:
        # The person's own labs go on.
        os.environ["YOKED_STATE"] = state
        for part in options.only or PARTS:
            results[part] = PARTS[part](options)
            options.out.parent.mkdir(exist_ok=True)
            options.out.write_text(json.dumps(results, indent=1) + "\n")
    verdict = {part: is_fine(results[part]) for part in PARTS if part in results}
    print(json.dumps(verdict))
    return 0 if all(verdict.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
