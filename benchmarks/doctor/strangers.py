"""Faults that somebody thought of who knew README and docs alone: what the doctor says of each.

usage: strangers.py [--list FILE] [--ids ID,ID] [--results FOLDER] [--run-limit SECONDS]
                    [--no-console]

As root. A fault that has a result in the folder is told again, not run again: remove its file to
run it anew. Whether the doctor was right is for a person to judge: its words are printed beside
the truth. strangers/first.json has what was seen, and judged, the first time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stage import FINE, Stage, stage
from topologies import entries

from yoked.errors import YokedError
from yoked.lab.topology_load import load

HERE = Path(__file__).parent
LIST = HERE / "strangers" / "faults.json"
# Longer than stage.py's: a fault may make every connection slow.
DOCTOR_S = 120.0
TRIES = 3
INTERFACE = "eth0"
# A step this much longer than in a healthy lab is harm; so is a run that takes twice as long.
SLOW_STEP, SLOW_STEP_MS, SLOW_RUN, SLOW_RUN_S = 2.5, 20.0, 2.0, 12.0
SPREAD = 1e-9
_RESULT = re.compile(r"RESULT rows (-?\d+) loader \d+ spread (\S+) step (\S+)")

Row = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """Where the files of a fault lie. data: seen by hosts too; work: the controller's own."""

    data: Path
    work: Path

    def fill(self, text: str) -> str:
        """A line of the list with this machine's paths in it."""
        values = {
            "data": str(self.data),
            "python": sys.executable,
            "venv": sys.prefix,
            "prefix": sys.base_prefix,
            "site_packages": sysconfig.get_path("purelib"),
            "home": str(Path.home()),
        }
        for name, value in values.items():
            text = text.replace(f"{{{name}}}", value)
        return text


@contextmanager
def place(whole: Mapping[str, Any]) -> Iterator[Place]:
    """Folders with the data. Below /var: /tmp of a lab's host is its own, and empty."""
    with (
        tempfile.TemporaryDirectory(prefix="yd-", dir="/var/tmp") as shared,
        tempfile.TemporaryDirectory(prefix="yw-") as work,
    ):
        # Programs of ordinary users read it too.
        Path(shared).chmod(0o755)
        own = Place(Path(shared) / "data", Path(work))
        own.data.mkdir()
        for name, numbers in whole["data"].items():
            (own.data / name).write_text("\n".join(numbers.split()) + "\n")
        yield own


class Fault:
    """One entry of the list in a lab that is up."""

    def __init__(self, entry: Mapping[str, Any], whole: Mapping[str, Any], own: Stage, at: Place):
        self.entry, self.own, self.at = entry, own, at
        variables = {host.name.upper(): host.address for host in own.lab.topology.hosts} | {
            "FLEET": str(own.fleet_file),
            "CONFIG": str(own.lab.ssh_config),
            "WORK": str(at.work),
            "YOKED": "yoked",
            "ROOT_PIDNS": str(Path("/proc/self/ns/pid").readlink()),
        }
        self.variables = "".join(f"{key}={shlex.quote(each)}\n" for key, each in variables.items())
        self.prelude = at.fill("\n".join(whole["prelude"])) + "\n"
        for name, lines in whole["program"].items():
            (own.folder / name).write_text(at.fill("\n".join(lines)) + "\n")

    def do(self, lines: Sequence[Sequence[str]]) -> list[str]:
        """Carry out lines of the list, but those that each yoked command begins with.

        Returns what went wrong.
        """
        trouble = []
        for where, text in lines:
            if where == "controller":
                continue
            script = self.variables + self.at.fill(text)
            if where == "once":
                done = self.own.run_here(["bash", "-c", script], DOCTOR_S)
            else:
                words = ["bash", "-c", self.variables + self.prelude + self.at.fill(text)]
                done = self.own.lab.host(where).run(words, check=False)
            if done.returncode != FINE:
                said = (done.stdout + done.stderr).strip()[-600:]
                trouble.append(f"{where}: status {done.returncode}: {said}")
        return trouble

    def yoked(self, words: Sequence[str], limit_s: float) -> tuple[Row, str, str]:
        """A command as the person types it, with what is wrong at the controller.

        Returns its status (None: it did not end in time) and seconds, its stdout and its stderr.
        """
        argv = ["yoked", *words]
        wrong = [self.at.fill(text) for where, text in self.entry["break"] if where == "controller"]
        if wrong:
            # What they mount and export holds for this command alone.
            script = "\n".join([self.variables, *wrong, f"exec {shlex.join(argv)}"])
            argv = ["unshare", "--mount", "--propagation", "private", "bash", "-c", script]
        began_s = time.monotonic()
        done = self.own.run_here(argv, limit_s)
        took_s = round(time.monotonic() - began_s, 2)
        status = None if done.returncode == 124 else done.returncode
        return {"status": status, "seconds": took_s}, done.stdout, done.stderr

    def doctor(self) -> Row:
        """What the doctor says."""
        flags = [self.at.fill(word) for word in self.entry["doctor"]]
        row, out, err = self.yoked(["doctor", "--json", *flags], DOCTOR_S)
        try:
            report = json.loads(out)
        except ValueError:
            report = {}
        # A doctor that could not begin says why.
        if "findings" not in report:
            return {**row, "said": (out + err).strip()[-1500:]}
        findings = [
            {
                "check": each["check"],
                "severity": each["severity"],
                "hosts": each["hosts"],
                "saw": each["saw"],
                "fix": [f"{fix['host'] or 'here'}: {fix['command']}" for fix in each["fix"]],
            }
            for each in report["findings"]
        ]
        return {**row, "findings": findings, "not_looked_at": report["not_looked_at"]}

    def run(self, limit_s: float) -> Row:
        """A run without the doctor: the proof of harm."""
        name = re.sub("[^a-z0-9]", "", self.entry["id"])
        flags = [self.at.fill(word) for word in self.entry["run"]]
        words = ["run", "--no-doctor", "--run", name, "--", "train.py", *flags]
        row, out, err = self.yoked(words, limit_s)
        if found := _RESULT.search(out):
            row |= {"rows": int(found[1]), "spread": float(found[2]), "step_ms": float(found[3])}
        row["said"] = (out + err).strip().splitlines()[-5:]
        return row


def clean_before(own: Stage) -> str | None:
    """Why the lab is not in order although nothing is wrong yet; None: it is.

    With connections of its own: the doctor that is judged must open its own after the fault.
    """
    usual = own.environment["XDG_RUNTIME_DIR"]
    said = ""
    with tempfile.TemporaryDirectory(prefix="yr-") as runtime:
        own.environment["XDG_RUNTIME_DIR"] = runtime
        try:
            # On a busy machine an agent may come too late.
            for _ in range(TRIES):
                try:
                    found = own.doctor("--quick").findings("error")
                except RuntimeError as problem:
                    said = str(problem)
                    continue
                if not found:
                    return None
                said = "; ".join(f"{each['check']}: {each['saw']}" for each in found)
        finally:
            own.environment["XDG_RUNTIME_DIR"] = usual
    return f"not clean before: {said}"


def examine(
    entry: Mapping[str, Any],
    whole: Mapping[str, Any],
    run_limit_s: float,
    *,
    consoles: bool = True,
) -> Row:
    """A fault from beginning to end: lab up, clean, break, doctor, run, lab down."""
    row: Row = {"id": entry["id"], "load": round(os.getloadavg()[0], 1)}
    wanted = load(entry["lab"])
    try:
        up = stage(wanted, entries(wanted, INTERFACE), consoles=consoles)
        with place(whole) as at, up as own:
            fault = Fault(entry, whole, own, at)
            if trouble := fault.do(entry["setup"]):
                return row | {"trouble": trouble}
            if problem := clean_before(own):
                return row | {"trouble": [problem]}
            row["trouble"] = fault.do(entry["break"])
            try:
                row["doctor"] = fault.doctor()
                if run_limit_s > 0:
                    row["run"] = fault.run(run_limit_s)
            finally:
                # What could outlive the lab, or keep it from going down.
                if entry.get("must_heal"):
                    fault.do(entry["heal"])
    except (YokedError, OSError) as problem:
        row["trouble"] = [*row.get("trouble", []), str(problem)]
    return row


def harm(row: Row, usual: Row, rows: int, flags: Sequence[str]) -> str | None:
    """Why a fault is harmful, by what its run did; None: the run went as in a healthy lab."""
    ran = row["run"]
    if ran["status"] is None:
        return f"no end in {ran['seconds']} s"
    if ran["status"] != FINE:
        return f"failed with status {ran['status']} after {ran['seconds']} s"
    if ran.get("rows") != rows:
        return f"silently wrong: rows {ran.get('rows')} instead of {rows}"
    if ran["spread"] > SPREAD:
        return f"silently wrong: numbers differ by {ran['spread']:.1e} between hosts"
    late_s = ran["seconds"] - usual["seconds"]
    # Flags of its own make a run longer by themselves.
    if not flags and late_s > max(SLOW_RUN_S, (SLOW_RUN - 1) * usual["seconds"]):
        return f"slow: {ran['seconds']} s instead of {usual['seconds']} s"
    if ran["step_ms"] > SLOW_STEP * usual["step_ms"] + SLOW_STEP_MS:
        return f"slow: a step of {ran['step_ms']} ms instead of {usual['step_ms']} ms"
    return None


def usual_run(lab: str, whole: Mapping[str, Any], options: argparse.Namespace) -> Row:
    """The run of a lab in which nothing is wrong, taken once for a folder of results."""
    path = options.results / f"healthy-{lab}.json"
    if not path.exists():
        nothing = {"id": f"healthy-{lab}", "lab": lab, "setup": [], "break": [], "heal": []}
        row = examine({**nothing, "doctor": [], "run": []}, whole, options.run_limit)
        if row["trouble"] or "step_ms" not in row["run"]:
            sys.exit(f"a healthy lab of {lab} does not train: {row}")
        keep(path, row)
    run: Row = json.loads(path.read_text())["run"]
    return run


def keep(path: Path, row: Row) -> None:
    """Whole or not at all: what is there is not run again."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(row, indent=1, ensure_ascii=False) + "\n")
    new.replace(path)


def told(entry: Mapping[str, Any], row: Row) -> str:
    """What the doctor said beside the truth."""
    lines = [f"{entry['id']}  ({entry['host']})", f"  truth   {entry['truth']}"]
    lines += [f"  fix     {entry['fix']}"]
    lines += [f"  trouble {each}" for each in row["trouble"]]
    if "doctor" in row:
        doctor = row["doctor"]
        lines.append(f"  doctor  status {doctor['status']}, {doctor['seconds']} s")
        for each in doctor.get("findings", []):
            hosts = ", ".join(each["hosts"])
            lines.append(f"    {each['severity']} {each['check']} ({hosts}): {each['saw']}")
            lines += [f"      {fix}" for fix in each["fix"]]
        if "said" in doctor:
            lines.append(f"    {doctor['said']}")
    if "harm" in row:
        lines.append(f"  harm    {row['harm'] or 'none'}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", type=Path, default=LIST, help="of faults, as JSON")
    parser.add_argument("--ids", default="", help="of these faults alone, with commas between")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "strangers")
    parser.add_argument("--run-limit", type=float, default=60.0, help="seconds; 0: no run")
    parser.add_argument(
        "--no-console", action="store_true", help="ssh is the only way to the hosts"
    )
    options = parser.parse_args()
    # Other lists have the program, its data and the shell's functions of the first.
    whole = json.loads(LIST.read_text()) | json.loads(options.list.read_text())
    faults = {entry["id"]: entry for entry in whole["faults"]}
    wanted = [each for each in options.ids.split(",") if each] or list(faults)
    if unknown := sorted(set(wanted) - set(faults)):
        parser.error(f"no such fault: {', '.join(unknown)}")
    options.results.mkdir(parents=True, exist_ok=True)
    # python3 of a host is the one that runs this, with its torch.
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with tempfile.TemporaryDirectory(prefix="yb-") as state:
        # The person's own labs and runs go on.
        os.environ["YOKED_STATE"] = state
        for name in wanted:
            entry, path = faults[name], options.results / f"{name}.json"
            if not path.exists():
                row = examine(entry, whole, options.run_limit, consoles=not options.no_console)
                if "run" in row:
                    usual = usual_run(entry["lab"], whole, options)
                    row["harm"] = harm(row, usual, whole["rows"], entry["run"])
                keep(path, row)
            print(told(entry, json.loads(path.read_text())), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
