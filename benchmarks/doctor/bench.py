"""What the doctor promises, in labs with real ssh: each misconfiguration named, and its fix heals.

usage: bench.py [--only PART ...] [--case TEXT ...] [--seed 1] [--count N] [--out FOLDER]

Parts: truth, table, healthy, combinations, times, lessons. As root. Each lasts minutes; --case
takes those whose name has the text, and keeps the other rows of the last result.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cases import CASES, LESSONS, Case, case_named
from healthy import healthy
from stage import Verdict, stage
from topologies import entries, topology
from trial import Row, blocked, broken, examine, is_named

HERE = Path(__file__).parent
# Longer than any launch takes that trains in the end.
TRUTH_S = 30.0


def chosen(options: argparse.Namespace) -> list[Case]:
    wanted = options.case
    return [case for case in CASES if not wanted or any(text in case.name for text in wanted)]


def kept(options: argparse.Namespace, part: str) -> dict[str, Any]:
    """The last result's rows by case, when only some are run anew."""
    path = options.out / f"{part}.json"
    if not options.case or not path.exists():
        return {}
    return {row["case"]: row for row in json.loads(path.read_text())["rows"]}


def in_order(rows: dict[str, Any]) -> list[Any]:
    return [rows[case.name] for case in CASES if case.name in rows]


def truth(options: argparse.Namespace) -> dict[str, Any]:
    """Which of the cases really keep a launch from training: no doctor is asked."""
    rows = kept(options, "truth")
    for case in chosen(options):
        began_s = time.monotonic()
        with broken(case) as own:
            reason = blocked([case], own)
            said = None if reason else own.launch("--no-doctor", limit_s=TRUTH_S)
        took_s = round(time.monotonic() - began_s, 1)
        rows[case.name] = {
            "case": case.name,
            "skipped": reason or "",
            "trained": said is None,
            "said": said or "",
            "took_s": took_s,
        }
        print(f"{case.name}: {reason or said or 'trains'} ({took_s} s)", flush=True)
    return {"rows": in_order(rows)}


def table(options: argparse.Namespace) -> dict[str, Any]:
    """Every case: injected, named, fixed, seconds."""
    rows = kept(options, "table")
    for case in chosen(options):
        row = examine(case)
        rows[case.name] = row.to_json()
        print(line_of(row), flush=True)
    done = [row for row in in_order(rows) if not row["skipped"]]
    fine = sum(row["fine"] for row in done)
    print(f"{fine} of {len(done)} named and healed")
    (options.out / "table.md").write_text(as_markdown(in_order(rows)))
    return {"fine": fine, "of": len(done), "rows": in_order(rows)}


def as_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table for people: what was injected, what the doctor named, how it went away."""
    lines = ["| case | injected | named | on | gravity | fixed | then trained | doctor, s |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for row in rows:
        injected = "; ".join(row["injected"]).replace("|", "\\|")
        cells = [
            row["case"],
            f"`{injected}`",
            row["named"] or row["skipped"] or "**not named**",
            ", ".join(row["hosts"]),
            row["severity"],
            row["mended"] or "-",
            "yes" if row["trained"] else "-" if row["skipped"] else "**no**",
            f"{row['doctor_s']:.1f}",
        ]
        if row["invented"]:
            cells[2] += f" (**and {', '.join(row['invented'])}**)"
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def line_of(row: Row) -> str:
    if row.skipped:
        return f"  -   {row.case}: {row.skipped}"
    word = "fine " if row.fine else "WRONG"
    named = f"{row.named or 'not named'} {row.severity} {','.join(row.hosts)}"
    line = f"{word} {row.case}: {named}, {row.mended or 'not mended'}, {row.took_s} s"
    extra = [f"      invented: {each}" for each in row.invented]
    extra += [f"      warned: {each}" for each in row.warned]
    extra += [f"      fix: {each}" for each in row.fix]
    extra += [f"      trouble: {each}" for each in row.trouble]
    return "\n".join([line, *extra])


def healthy_labs(options: argparse.Namespace) -> dict[str, Any]:
    """Fleets that are in order, of random networks: no finding of severity error."""
    rows = []
    for seed in range(options.seed, options.seed + (options.count or 50)):
        with healthy(seed) as (own, traits):
            verdict = own.doctor()
        errors = [told(each) for each in verdict.findings("error")]
        warnings = [told(each) for each in verdict.findings("warning")]
        rows.append(
            {
                "seed": seed,
                "traits": traits,
                "errors": errors,
                "warnings": warnings,
                "took_s": round(verdict.took_s, 2),
            }
        )
        print(f"{seed:3} {errors or 'no error'}, {warnings}, {verdict.took_s:.1f} s", flush=True)
    wrong = sum(bool(row["errors"]) for row in rows)
    print(f"{len(rows) - wrong} of {len(rows)} without an error")
    return {"fine": len(rows) - wrong, "of": len(rows), "rows": rows}


def told(finding: Mapping[str, Any]) -> str:
    return f"{finding['check']} ({', '.join(finding['hosts'])}): {finding['saw']}"


def combinations(options: argparse.Namespace) -> dict[str, Any]:
    """Two and three faults at once: all named, none invented."""
    draw = random.Random(options.seed)
    rows: list[dict[str, Any]] = []
    while len(rows) < (options.count or 30):
        cases = draw_together(draw, 2 + len(rows) % 2)
        with broken(*(replace(case, network="apart") for case in cases)) as own:
            if blocked(cases, own):
                continue
            verdict = own.doctor()
        found = verdict.findings()
        named = {case.name: any(is_named(case, each) for each in found) for case in cases}
        invented = [
            told(each)
            for each in verdict.findings("error")
            if not any(is_named(case, each) for case in cases)
        ]
        rows.append({"cases": named, "invented": invented, "took_s": round(verdict.took_s, 2)})
        word = "fine " if all(named.values()) and not invented else "WRONG"
        print(f"{word} {named} {invented}", flush=True)
    fine = sum(all(row["cases"].values()) and not row["invented"] for row in rows)
    print(f"{fine} of {len(rows)}: all named, none invented")
    return {"fine": fine, "of": len(rows), "rows": rows}


def draw_together(draw: random.Random, count: int) -> list[Case]:
    """Cases that do not hide each other: of different groups."""
    fitting = [case for case in CASES if case.group]
    while True:
        cases = draw.sample(fitting, count)
        if len({case.group for case in cases}) == count:
            return cases


def times(options: argparse.Namespace) -> dict[str, Any]:
    """How long the doctor takes: four hosts without root, two hosts in its quick form."""
    rounds = options.count or 10
    wanted, interface = topology("four")
    with stage(wanted, entries(wanted, interface)) as own:
        for host in wanted.hosts:
            own.add_user(host.name, "ada")
        own.doctor("--quick")
        full = [own.doctor() for _ in range(rounds)]
        wide = [own.doctor("--bandwidth") for _ in range(3)]
    wanted, interface = topology("one")
    with stage(wanted, entries(wanted, interface)) as own:
        own.doctor("--quick")
        quick = [own.doctor("--quick") for _ in range(rounds)]
    with broken(case_named("high ports dropped")) as own:
        dropped = [own.doctor() for _ in range(3)]
    results = {
        "four hosts, full": (full, 5.0),
        "four hosts, with bandwidth": (wide, 30.0),
        "two hosts, quick": (quick, 2.0),
        "high ports dropped": (dropped, 4.0),
    }
    rows = [row_of_times(name, verdicts, most) for name, (verdicts, most) in results.items()]
    return {"fine": sum(row["fine"] for row in rows), "of": len(rows), "rows": rows}


def row_of_times(name: str, verdicts: Sequence[Verdict], most_s: float) -> dict[str, Any]:
    """The doctor's own time decides; that of the whole command is told beside it."""
    own_s = [float(each.report["took_s"]) for each in verdicts]
    median_s = statistics.median(own_s)
    command_s = statistics.median(each.took_s for each in verdicts)
    print(f"{name}: {median_s:.2f} s (at most {most_s:g}); the command {command_s:.2f} s")
    return {
        "what": name,
        "median_s": round(median_s, 2),
        "at_most_s": most_s,
        "all_s": [round(each, 2) for each in own_s],
        "command_s": round(command_s, 2),
        "fine": median_s <= most_s,
    }


def lessons(options: argparse.Namespace) -> dict[str, Any]:
    """The lessons of docs/tutorial/lab.md that are visible before a launch, each with its fix."""
    rows = []
    for lesson, name in LESSONS.items():
        row = examine(case_named(name))
        rows.append({"lesson": lesson, **row.to_json()})
        print(lesson, line_of(row), flush=True)
    fine = sum(row["fine"] for row in rows)
    print(f"{fine} of {len(rows)} lessons named and healed")
    return {"fine": fine, "of": len(rows), "rows": rows}


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "truth": truth,
    "table": table,
    "healthy": healthy_labs,
    "combinations": combinations,
    "times": times,
    "lessons": lessons,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--case", action="append", default=[])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    # python3 of a host is the one that runs this, with its torch.
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with tempfile.TemporaryDirectory(prefix="yb-") as state:
        # The person's own labs and runs go on.
        os.environ["YOKED_STATE"] = state
        for part in options.only or PARTS:
            result = PARTS[part](options)
            path = options.out / f"{part}.json"
            path.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
