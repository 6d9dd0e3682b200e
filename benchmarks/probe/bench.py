"""Our own sender against iperf3, and all_reduce of 64 MB against both, over shaped links; and how
long a whole probe of four hosts takes.

    python benchmarks/probe/bench.py [--rounds 4] [--only two-hosts-1gbe] [--out FILE]

As root, in a quiet hour; needs iperf3. Takes turns: iperf3, ours, all_reduce, iperf3, ...
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from yoked.cli.commands import probe
from yoked.lab.lab import Lab
from yoked.lab.topology_load import load

RESULTS = Path(__file__).parent / "results" / "results.json"
# What the collectives may take: enough for several all_reduces of 64 MB, not for one of 256 MB.
LIMITS = {"two-hosts-1gbe": "20 s", "two-hosts-100mbit": "40 s"}
PAYLOAD_BYTES = 64_000_000
GOAL = 0.95
MANY = "four-hosts"
MANY_GOAL_S = 30.0
WHOLE_PROBES = 5
IPERF_S = 4
PORT = 5201


def iperf3_bytes_per_s(lab: Lab) -> float:
    """What beta receives from alpha, after a second that does not count."""
    server = lab.host("beta").popen(["iperf3", "-s", "-1", "-p", str(PORT)], tied=True)
    try:
        received = _received(lab)
    finally:
        server.terminate()
        server.communicate()
    return float(received["bits_per_second"]) / 8


def _received(lab: Lab) -> dict[str, Any]:
    """The receiver's sum, once the server listens. With -J, a refusal too is status 0."""
    address = next(host.address for host in lab.topology.hosts if host.name == "beta")
    argv = ["iperf3", "-c", address, "-p", str(PORT), "-t", str(IPERF_S), "-O", "1", "-J"]
    until_s = time.monotonic() + 10.0
    while True:
        said = lab.host("alpha").run(argv, check=False).stdout
        end: dict[str, Any] = json.loads(said).get("end", {}) if said else {}
        if "sum_received" in end:
            received: dict[str, Any] = end["sum_received"]
            return received
        if time.monotonic() > until_s:
            raise RuntimeError(f"iperf3 does not come through: {said}")
        time.sleep(0.2)


def probed(lab: Lab, **flags: Any) -> dict[str, Any]:
    """What `yoked probe --json` says with these flags."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        probe.command(fleet=lab.fleet_file, json_output=True, **flags)
    told: dict[str, Any] = json.loads(said.getvalue())
    if told["problem"] is not None:
        raise RuntimeError(told["problem"]["what"])
    return told


def whole_probes_s() -> list[float]:
    """Seconds of probes of four hosts with all their parts; before them one that compiles."""
    lab = Lab.up(load(MANY), name=f"probe-{MANY}", tethered=True)
    try:
        return [float(probed(lab)["took_s"]) for _ in range(1 + WHOLE_PROBES)][1:]
    finally:
        lab.down()


def one_round(lab: Lab, limit: str) -> dict[str, float]:
    """iperf3, our sender and the all_reduce, one after the other; bytes per second."""
    iperf3 = iperf3_bytes_per_s(lab)
    told = probed(lab, compute=False, collectives_limit=limit)
    forward = next(each for each in told["links"] if each["from"] == "alpha")
    reduced = next(
        each
        for each in told["collectives"]
        if (each["op"], each["payload_bytes"]) == ("all_reduce", PAYLOAD_BYTES)
    )
    return {
        "iperf3": iperf3,
        "ours": forward["goodput_bytes_per_s"],
        "both_ways": forward["both_ways_bytes_per_s"],
        "all_reduce_busbw": reduced["busbw_bytes_per_s"],
        "took_s": told["took_s"],
    }


def measure(name: str, rounds: int) -> dict[str, Any]:
    """All rounds over one topology, and their medians as ratios to iperf3."""
    taken = []
    lab = Lab.up(load(name), name=f"probe-{name}", tethered=True)
    try:
        for number in range(rounds):
            each = one_round(lab, LIMITS[name])
            taken.append(each)
            rates = {key: f"{8e-6 * value:.1f}" for key, value in each.items() if key != "took_s"}
            print(f"{name} {number + 1}: Mbit/s {rates}, probe {each['took_s']:.1f} s", flush=True)
    finally:
        lab.down()
    iperf3 = statistics.median(each["iperf3"] for each in taken)
    ratios = {
        key: statistics.median(each[key] for each in taken) / iperf3
        for key in ("ours", "both_ways", "all_reduce_busbw")
    }
    return {"topology": name, "rounds": taken, "iperf3_bytes_per_s": iperf3, "of_iperf3": ratios}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--only", choices=[*LIMITS, MANY], action="append")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if shutil.which("iperf3") is None:
        parser.error("there is no iperf3: sudo apt install iperf3")
    with tempfile.TemporaryDirectory(prefix="yk-") as folder:
        # Shared ssh connections of other labs, with hosts of the same names, are not ours.
        os.environ["XDG_RUNTIME_DIR"] = folder
        names = [name for name in options.only or [*LIMITS, MANY] if name != MANY]
        measured = [measure(name, options.rounds) for name in names]
        whole_s = whole_probes_s() if MANY in (options.only or [MANY]) else []
    good = True
    for each in measured:
        share = each["of_iperf3"]["all_reduce_busbw"]
        good = good and share >= GOAL
        rate, ours = 8e-6 * each["iperf3_bytes_per_s"], each["of_iperf3"]["ours"]
        print(
            f"{each['topology']}: iperf3 {rate:.1f} Mbit/s, our sender {100 * ours:.1f}% of it, "
            f"all_reduce of 64 MB {100 * share:.1f}% (goal {100 * GOAL:.0f}%)"
        )
    if whole_s:
        took_s = statistics.median(whole_s)
        good = good and took_s <= MANY_GOAL_S
        each_s = ", ".join(f"{one_s:.1f}" for one_s in whole_s)
        print(f"{MANY}: a whole probe took {took_s:.1f} s (goal {MANY_GOAL_S:.0f} s): {each_s} s")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    results = {"goal": GOAL, "measured": measured, "whole_probes_of_four_s": whole_s}
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
