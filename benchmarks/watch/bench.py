"""What looking on takes: of the hosts that train, and to open a journal of a million steps.

usage: bench.py [--only journal|page|cost] [--steps 1000000] [--seconds 120] [--results FOLDER]

journal: a metrics.jsonl of 4 ranks is made once, in /var/tmp, and shown by `yoked watch`'s own
reading: the first view, then one after each added step. page: the same, shown by Chromium. cost:
two hosts of a lab train, and CPU time of all that runs there for whoever looks on is read before
and after; as root, in a quiet hour. Results go into results/; --only leaves the others as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

import nanochat_side as side  # noqa: E402
from tests.browser import chromium, open_browser  # noqa: E402
from tests.unit.watch.web.driving import STEPS, wait_for  # noqa: E402
from tests.unit.watch.web.served import served  # noqa: E402

from yoked.fleet.file import load_fleet  # noqa: E402
from yoked.lab.lab import Lab  # noqa: E402
from yoked.lab.topology_load import load  # noqa: E402
from yoked.launch.hosts import reach_hosts  # noqa: E402
from yoked.report.growing import Reading  # noqa: E402
from yoked.watch.files import FolderFiles  # noqa: E402
from yoked.watch.running import WatchedRun  # noqa: E402
from yoked.watch.view import RunRow, View  # noqa: E402
from yoked.watch.watched import Watching  # noqa: E402

RANKS, EVAL_EVERY, UPDATES = 4, 250, 50
FIRST_VIEW_S, UPDATE_S, MOST_BYTES, MOST_SHARE = 2.0, 0.1, 300 << 20, 0.005
COMMAND = [sys.executable, "-c", "import sys; from yoked.cli.main import main; sys.exit(main())"]
MODEL = (
    *("--depth", "2", "--vocab-size", "1024", "--max-seq-len", "128", "--device-batch-size", "4"),
    *("--total-batch-size", "1024", "--num-iterations", "100000", "--eval-every", "100"),
)


# ---- a journal of a million steps


def make_journal(folder: Path, steps: int) -> Path:
    """The folder of a run; one that is there is taken."""
    journal = folder / "metrics.jsonl"
    if journal.exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    config = {"config": {"eval_every": EVAL_EVERY}, "horizon": {"num_iterations": steps}}
    (folder / "run.json").write_text(json.dumps({"run": "long", "started_s": 1.0, **config}))
    rng = random.Random(1)
    new = journal.with_suffix(".new")
    with new.open("w") as file:
        for step in range(steps):
            file.write(line_of(rng, step))
            if (step + 1) % EVAL_EVERY == 0:
                file.write(f'{{"attempt":0,"step":{step + 1},"val_bpb":{2.0 - step / steps}}}\n')
    new.replace(journal)
    return folder


def line_of(rng: random.Random, step: int) -> str:
    """A step's line, as the trainer writes it."""
    compute = [round(0.1 + rng.random() * 0.01, 6) for _ in range(RANKS)]
    slowest = max(compute)
    line = {
        "attempt": 0,
        "step": step,
        "loss": round(10.0 / (1 + step / 1e5) + rng.random() * 0.1, 6),
        "dt_s": round(slowest + 0.03, 6),
        "tokens": [4096] * RANKS,
        "compute_s": compute,
        "comm_s": [round(0.02 + rng.random() * 0.005, 6) for _ in compute],
        "wait_s": [round(slowest - each, 6) for each in compute],
        "head_s": [0.01] * RANKS,
        "bytes_sent": [12_345_678] * RANKS,
    }
    return json.dumps(line, separators=(",", ":")) + "\n"


def journal(steps: int) -> dict[str, Any]:
    """In a process of its own, whose memory is that of this alone."""
    folder = make_journal(Path("/var/tmp/yoked-watch-journal") / str(steps), steps)
    words = [sys.executable, __file__, "--folder", str(folder), "--steps", str(steps)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    began_s = time.monotonic()
    words = [*COMMAND, "watch", "--once", "--json", str(folder)]
    subprocess.run(words, check=True, capture_output=True)
    return found | {"command_s": round(time.monotonic() - began_s, 3)}


@contextmanager
def growing(folder: Path, steps: int) -> Iterator[Iterator[int]]:
    """Each `next` writes one more step, and returns how many there are; then all is as it was."""
    path = folder / "metrics.jsonl"
    rng, size = random.Random(2), path.stat().st_size

    def more() -> Iterator[int]:
        for step in range(steps, steps + UPDATES):
            with path.open("a") as file:
                file.write(line_of(rng, step))
            yield step + 1

    try:
        yield more()
    finally:
        os.truncate(path, size)


def watched_run(folder: Path) -> WatchedRun:
    return WatchedRun("long", FolderFiles(folder), Reading(), most_bytes=4 << 20)


def look_at(folder: Path, steps: int) -> dict[str, Any]:
    began_s = time.perf_counter()
    run = watched_run(folder)
    run.update(active=True)
    view = run.view(None, {})
    first_s = time.perf_counter() - began_s
    assert view.sampled
    assert view.progress.step == steps, view.progress
    updates_s = []
    with growing(folder, steps) as written:
        for done in written:
            began_s = time.perf_counter()
            run.update(active=True)
            view = run.view(None, {})
            updates_s.append(time.perf_counter() - began_s)
            assert view.progress.step == done
    began_s = time.perf_counter()
    closer = run.curve(steps // 2, steps // 2 + 2_000, 1_000)
    return {
        "bytes": (folder / "metrics.jsonl").stat().st_size,
        "first_view_s": round(first_s, 4),
        "update_median_s": round(statistics.median(updates_s), 4),
        "update_worst_s": round(max(updates_s), 4),
        "closer_s": round(time.perf_counter() - began_s, 4),
        "closer_points": len(closer["step"]),
        "evaluations": len(view.figures["evaluations"]),
        "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


# ---- the same on the page


class OnPage:
    """The run as a page watches it. A `Watched`, without a host to ask."""

    def __init__(self, folder: Path) -> None:
        self._run = watched_run(folder)
        self.looks_s = list[float]()

    def look(self) -> View:
        began_s = time.perf_counter()
        self._run.update(active=True)
        view = self._run.view(None, {})
        self.looks_s.append(time.perf_counter() - began_s)
        return view

    def curve(self, first: int, last: int, points: int) -> dict[str, Any]:
        return self._run.curve(first, last, points)

    def runs(self) -> list[RunRow]:
        return []

    def choose(self, run: str) -> None: ...

    def log(self, rank: int, lines: int) -> list[tuple[str, str]]:
        return []

    def save(self) -> str:
        return ""

    def stop(self, *, now: bool = False) -> str:
        return ""


def page(steps: int) -> dict[str, Any]:
    """The first view is from the start of the server until the charts are drawn; an update is all
    work of the page's thread from one step to the next, and of it the longest that keeps it busy.
    """
    program = chromium()
    assert program is not None, "neither Chromium nor Chrome is here"
    folder = make_journal(Path("/var/tmp/yoked-watch-journal") / str(steps), steps)
    with (
        tempfile.TemporaryDirectory(prefix="yb-") as profile,
        open_browser(program, Path(profile)) as browser,
    ):
        return {str(width): page_of(browser.page(width), folder, steps) for width in (1440, 390)}


def page_of(page: Any, folder: Path, steps: int) -> dict[str, Any]:
    page.call("Performance.enable")

    def worked_s() -> float:
        metrics = page.call("Performance.getMetrics")["metrics"]
        return next(each["value"] for each in metrics if each["name"] == "TaskDuration")

    longest = (
        "new PerformanceObserver((list) => list.getEntries().forEach((each) => "
        "{ longest = Math.max(longest, each.duration); }))"
    )
    watched = OnPage(folder)
    began_s = time.perf_counter()
    with served(watched) as server, growing(folder, steps) as written:
        page.visit(server.url)
        wait_for(page, f"{STEPS} === {steps} && document.querySelector('#plot-loss canvas')")
        page.settle()
        first_s = time.perf_counter() - began_s
        page.run(f"window.longest = 0; {longest}.observe({{entryTypes: ['longtask']}})")
        watched.looks_s.clear()
        works_s, before_s = [], worked_s()
        for done in written:
            wait_for(page, f"{STEPS} === {done}")
            page.settle()
            after_s = worked_s()
            works_s.append(after_s - before_s)
            before_s = after_s
        found = {
            "first_view_s": round(first_s, 3),
            "look_worst_s": round(max(watched.looks_s), 4),
            "update_median_s": round(statistics.median(works_s), 4),
            "update_worst_s": round(max(works_s), 4),
            "longest_task_s": round(page.run("longest") / 1e3, 4),
            "heap_bytes": page.run("performance.memory.usedJSHeapSize"),
        }
    page.close()
    return found


# ---- what hosts pay


def own_processes() -> set[int]:
    """Processes of lab hosts: those of another process namespace than this one's."""
    here = Path("/proc/self/ns/pid").readlink()
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "ns/pid").readlink() != here:
                    found.add(int(entry.name))
            except OSError:
                continue
    return found


def is_sshd(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/comm").read_text().startswith("sshd")
    except OSError:
        return False


def cpu_s(processes: set[int]) -> float:
    """Seconds that their threads were on a core (/proc/PID/task/TID/schedstat)."""
    total_ns = 0
    for process in processes:
        try:
            for task in Path(f"/proc/{process}/task").iterdir():
                total_ns += int((task / "schedstat").read_text().split()[0])
        except OSError:
            continue
    return total_ns / 1e9


def cost(seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="yb-") as state:
        os.environ["YOKED_STATE"] = state
        topology = load("two-hosts-1gbe")
        with Lab.up(topology) as lab:
            return _cost(lab, Path(state), seconds)


def _cost(lab: Lab, state: Path, seconds: float) -> dict[str, Any]:
    words = ["train", "--run", "watched", "--no-doctor", *MODEL, "--fleet", str(lab.fleet_file)]
    process = subprocess.Popen(
        [*COMMAND, *words], cwd=state, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        with reach_hosts(load_fleet(lab.fleet_file), print) as hosts:
            hosts.connections.wait()
            time.sleep(30)
            before = own_processes()
            with reach_hosts(load_fleet(lab.fleet_file), print) as own:
                watched = Watching(own, state / "runs")
                watched.choose("watched")
                first = watched.look()
                now = own_processes()
                # Connections share what sshd has for them.
                theirs = (now - before) | {each for each in now if is_sshd(each)}
                began_s, began_cpu_s = time.monotonic(), cpu_s(theirs)
                looks = 0
                while time.monotonic() - began_s < seconds:
                    view = watched.look()
                    looks += 1
                took_s, took_cpu_s = time.monotonic() - began_s, cpu_s(theirs) - began_cpu_s
                watched.close()
    finally:
        process.kill()
        process.wait()
    assert view.progress.step > first.progress.step, "it did not train"
    cores = len(lab.topology.hosts)
    return {
        "seconds": round(took_s, 1),
        "looks": looks,
        "steps": view.progress.step - first.progress.step,
        "processes": len(theirs),
        "cpu_s": round(took_cpu_s, 3),
        "share": round(took_cpu_s / took_s / cores, 5),
        "bytes_per_s": round(view.cost.bytes_per_s) if view.cost else None,
        "opened_bytes": view.cost.opened_bytes if view.cost else None,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=("journal", "page", "cost"))
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder is not None:
        print(json.dumps(look_at(options.folder, options.steps)))
        return 0
    options.results.mkdir(exist_ok=True)
    fits = True
    if options.only in (None, "journal"):
        found = journal(options.steps)
        keep(options.results / "journal.json", found)
        fits = (
            max(found["first_view_s"], found["command_s"]) <= FIRST_VIEW_S
            and found["update_worst_s"] <= UPDATE_S
            and found["memory_bytes"] <= MOST_BYTES
        )
        print(json.dumps(found, indent=1))
    if options.only in (None, "page"):
        found = page(options.steps)
        keep(options.results / "page.json", found)
        fits = fits and all(
            each["first_view_s"] <= FIRST_VIEW_S
            and each["look_worst_s"] + each["update_worst_s"] <= UPDATE_S
            for each in found.values()
        )
        print(json.dumps(found, indent=1))
    if options.only in (None, "cost"):
        found = cost(options.seconds)
        keep(options.results / "cost.json", found)
        fits = fits and found["share"] <= MOST_SHARE
        print(json.dumps(found, indent=1))
    return 0 if fits else 1


def keep(path: Path, found: dict[str, Any]) -> None:
    content = {"machine": side.machine_facts(), **found}
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
