"""What the launch promises, in a lab of two hosts with real ssh: how soon, and what survives.

usage: bench.py [--only PART ...] [--rounds 4] [--launches 100] [--seed 1] [--out FILE]

Parts: overhead, first_step, controller, agent, rank, soak. As root, in a quiet hour.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from yoked.lab.lab import Lab
from yoked.lab.topology_load import load

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
COMMAND = "import sys; from yoked.cli.main import main; sys.exit(main(sys.argv[1:]))"
YOKED = [sys.executable, "-c", COMMAND]
LIMIT_S = 300.0
OVERHEAD_S = 1.0
FIRST_STEP_S = 60.0
FREE_S = 5.0
REATTACH_S = 1.0
CUT_S = 120.0
PORT = 29_500
BUG_STATUS = 3


class Bench:
    """A lab, and `yoked` typed in the folder of the programs."""

    def __init__(self, lab: Lab, options: argparse.Namespace) -> None:
        self.lab = lab
        self.options = options
        self.hosts = [host.name for host in lab.topology.hosts]

    def start(self, *words: str, cwd: Path = PROGRAMS) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*YOKED, *words],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def type(self, *words: str, cwd: Path = PROGRAMS) -> str:
        """Run a command to its end; its output."""
        process = self.start(*words, cwd=cwd)
        said, _ = process.communicate(timeout=LIMIT_S)
        if process.returncode != 0:
            raise RuntimeError(f"yoked {' '.join(words)}: {process.returncode}\n{said}")
        return said

    @property
    def fleet(self) -> list[str]:
        return ["--fleet", str(self.lab.fleet_file)]

    def ranks(self, run: str | None = None) -> list[tuple[str, int, str]]:
        """(host, PID as this machine sees it, command line) of what a run left or has."""
        found = []
        for name in self.hosts:
            for process in self.lab.host(name).processes():
                environ = Path(f"/proc/{process.outer_pid}/environ")
                try:
                    text = environ.read_bytes()
                except OSError:
                    continue
                wanted = b"YOKED_LAUNCH_ID=" if run is None else f"YOKED_RUN={run}\0".encode()
                if wanted in text:
                    found.append((name, process.outer_pid, " ".join(process.command)))
        return found

    def wait_for(self, said: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> float:
        """Seconds until it is so."""
        began_s = time.monotonic()
        while not said():
            if time.monotonic() - began_s > limit_s:
                raise RuntimeError(f"{what}: not within {limit_s} s")
            time.sleep(0.05)
        return time.monotonic() - began_s

    def logs(self, run: str) -> str:
        return self.type("logs", run, *self.fleet)


def first_of(text: str) -> tuple[float, float]:
    """(time of the first step, time when torch was imported) of first_step.py's output."""
    found = re.search(r"FIRST ([\d.]+) IMPORTED ([\d.]+) WORLD 2", text)
    if found is None:
        raise RuntimeError(f"no first step:\n{text}")
    return float(found[1]), float(found[2])


def by_hand(bench: Bench) -> tuple[float, float]:
    """torchrun typed on both hosts; seconds to the first step, and to the import before it."""
    hosts = bench.lab.topology.hosts
    began_s = time.time()
    running = [
        subprocess.Popen(
            [
                *("ssh", "-F", str(bench.lab.ssh_config), host.name),
                *("GLOO_SOCKET_IFNAME=eth0", "OMP_NUM_THREADS=1", sys.executable, "-m"),
                *("torch.distributed.run", "--nnodes=2", f"--node-rank={number}"),
                *(f"--master-addr={hosts[0].address}", f"--master-port={PORT}"),
                *("--nproc-per-node=1", str(PROGRAMS / "first_step.py")),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number, host in enumerate(hosts)
    ]
    said = "".join(process.communicate(timeout=LIMIT_S)[0] for process in running)
    first_s, imported_s = first_of(said)
    return first_s - began_s, imported_s - began_s


def by_yoked(bench: Bench, run: str) -> tuple[float, float]:
    began_s = time.time()
    said = bench.type("run", *bench.fleet, "--run", run, "--", "first_step.py")
    first_s, imported_s = first_of(said)
    return first_s - began_s, imported_s - began_s


def overhead(bench: Bench) -> dict[str, Any]:
    """A launch against torchrun typed by hand, by turns."""
    by_yoked(bench, "warm-up")
    by_hand(bench)
    pairs = []
    for number in range(bench.options.rounds):
        hand, ours = by_hand(bench), by_yoked(bench, f"overhead-{number}")
        pairs.append((hand, ours))
        print(f"torchrun by hand {hand[0]:.2f} s, yoked run {ours[0]:.2f} s")
    hand_s = statistics.median(hand[0] for hand, _ in pairs)
    ours_s = statistics.median(ours[0] for _, ours in pairs)
    print(f"overhead {ours_s - hand_s:.2f} s, ratio {ours_s / hand_s:.2f}")
    return {
        "by_hand_s": [round(hand[0], 3) for hand, _ in pairs],
        "by_hand_imported_s": [round(hand[1], 3) for hand, _ in pairs],
        "yoked_s": [round(ours[0], 3) for _, ours in pairs],
        "yoked_imported_s": [round(ours[1], 3) for _, ours in pairs],
        "overhead_s": round(ours_s - hand_s, 3),
        "fine": ours_s - hand_s <= OVERHEAD_S,
    }


def first_step(bench: Bench) -> dict[str, Any]:
    """From the names of hosts alone to the first training step: `yoked init`, `yoked train`."""
    with tempfile.TemporaryDirectory() as folder:
        config = ["--ssh-config", str(bench.lab.ssh_config)]
        began_s = time.time()
        for name in bench.hosts:
            # An environment is present: python3 of a login there has torch.
            path = f"export PATH={Path(sys.executable).parent}:$PATH\n"
            bench.lab.host(name).write_text("/root/.bashrc", path)
        bench.type("init", *bench.hosts, *config, cwd=Path(folder))
        init_s = time.time() - began_s
        said = bench.type(
            *("train", "--depth=4", "--num-iterations=2", "--eval-every=-1"),
            *("--run=first", "--json"),
            cwd=Path(folder),
        )
        result = json.loads(said[said.index('{"') :])
        lines = (Path(folder) / "runs" / "first" / "events.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        print(json.dumps(events)[:500])
        ended_s = time.time() - began_s
    print(f"init {init_s:.1f} s; two steps done after {ended_s:.1f} s")
    return {
        "init_s": round(init_s, 2),
        "two_steps_and_checkpoint_s": round(ended_s, 2),
        "steps": result["steps"],
        "fine": ended_s < FIRST_STEP_S,
    }


def numbered(text: str, word: str) -> list[int]:
    return [int(each) for each in re.findall(rf"rank 0 {word} (\d+)", text)]


class Follower:
    """`yoked attach` of a run, and when each of its lines came."""

    def __init__(self, bench: Bench, run: str) -> None:
        self.process = bench.start("attach", run, *bench.fleet)
        self.lines: list[tuple[float, str]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def first_s(self, since_s: float) -> float | None:
        """When rank 0 was first heard after a time; None: not yet."""
        came = [at_s for at_s, line in list(self.lines) if line.startswith("rank 0")]
        return next((at_s for at_s in came if at_s > since_s), None)

    def leave(self) -> str:
        """Ctrl-C; what it said."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGINT)
        return self.end()

    def end(self) -> str:
        self.process.wait(timeout=LIMIT_S)
        self._thread.join(LIMIT_S)
        return "".join(line for _, line in self.lines)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line))


def cut_ssh(bench: Bench) -> float:
    """Drop every packet of ssh for a while; the time at which that ended."""
    for name in bench.hosts:
        # The whole cable of the controller: every server process of ssh, new ones too.
        bench.lab.host(name).tool(["nft", "-f", "-"], input=CUT_SSH)
    time.sleep(bench.options.cut_s)
    for name in bench.hosts:
        bench.lab.host(name).tool(["nft", "delete", "table", "inet", "cutssh"])
    return time.monotonic()


def controller(bench: Bench) -> dict[str, Any]:
    """The controller is killed with -9, and all ssh connections are cut for minutes, twice: once
    an attach is waiting, once it is typed when the network is back."""
    pause_s = 0.25
    steps = int((2 * bench.options.cut_s + 60) / pause_s)
    run = "controller"
    program = ["steps.py", str(steps), str(pause_s)]
    launch = bench.start("run", *bench.fleet, "--run", run, "--", *program)
    bench.wait_for(lambda: len(bench.ranks(run)) >= 4, "ranks")
    waiting = Follower(bench, run)
    bench.wait_for(lambda: waiting.first_s(0) is not None, "output")
    time.sleep(4)
    os.killpg(launch.pid, signal.SIGKILL)
    launch.communicate()
    back_s = cut_ssh(bench)
    bench.wait_for(lambda: waiting.first_s(back_s) is not None, "output of the one that waited")
    waited_s = (waiting.first_s(back_s) or 0.0) - back_s
    time.sleep(4)
    seen = numbered(waiting.leave(), "step")
    back_s = cut_ssh(bench)
    attach = Follower(bench, run)
    bench.wait_for(lambda: attach.first_s(back_s) is not None, "output of the one that was typed")
    reattach_s = (attach.first_s(back_s) or 0.0) - back_s
    attach.end()
    log = bench.logs(run)
    lost = sorted(set(range(steps)) - set(numbered(log, "step")))
    lost += sorted(set(range(seen[0], seen[-1] + 1)) - set(seen))
    twice = sum(len(found) - len(set(found)) for found in (numbered(log, "step"), seen))
    errors = sorted(set(range(steps)) - set(numbered(log, "error stream")))
    print(f"typed: output after {reattach_s:.2f} s; waiting: after {waited_s:.2f} s")
    print(f"lost {lost + errors}, twice {twice}")
    slowest_s = max(reattach_s, waited_s)
    return {
        "cut_s": bench.options.cut_s,
        "reattach_s": round(reattach_s, 3),
        "waiting_s": round(waited_s, 3),
        "steps_lost": len(lost),
        "lines_lost": len(lost) + len(errors),
        "lines_doubled": twice,
        "status": attach.process.returncode,
        "fine": not lost and not errors and not twice and slowest_s < REATTACH_S,
    }


# Its command line looks like a rank's.
DECOY = "import time; time.sleep(100000)"
CUT_SSH = """
table inet cutssh {
  chain in { type filter hook input priority -5; tcp dport 22 drop; }
  chain out { type filter hook output priority -5; tcp sport 22 drop; }
}
"""


def killed(bench: Bench, part: str) -> list[tuple[str, int, str]]:
    return [each for each in bench.ranks() if part in each[2]]


def agent(bench: Bench) -> dict[str, Any]:
    """The agent's supervisor is killed with -9 on both hosts; the next command finds the job."""
    run = "agent"
    program = ["steps.py", "60", "0.2"]
    launch = bench.start("run", *bench.fleet, "--run", run, "--detach", "--", *program)
    launch.communicate(timeout=LIMIT_S)
    bench.wait_for(lambda: len(killed(bench, "bootstrap.rank")) >= 2, "ranks")
    supervisors = supervisor_pids(bench)
    for pid in supervisors:
        os.kill(pid, signal.SIGKILL)
    runs = bench.type("runs", *bench.fleet)
    said = bench.type("attach", run, *bench.fleet)
    steps = set(numbered(bench.logs(run), "step"))
    print(f"{len(supervisors)} supervisors killed; steps {len(steps)} of 60")
    return {
        "supervisors_killed": len(supervisors),
        "found": run in runs,
        "steps": len(steps),
        "attached_to_the_end": "finished" in said,
        "fine": len(supervisors) == 2 and steps == set(range(60)) and run in runs,
    }


def supervisor_pids(bench: Bench) -> list[int]:
    return [
        process.outer_pid
        for name in bench.hosts
        for process in bench.lab.host(name).processes()
        if "supervise" in process.command
    ]


def rank(bench: Bench) -> dict[str, Any]:
    """A rank is killed with -9: all hosts free, the right cause, and on from the checkpoint."""
    results: dict[str, Any] = {"free_s": []}
    fine = True
    for number in range(bench.options.rounds):
        for victim in bench.hosts:
            run = f"rank-{number}-{victim}"
            launch = bench.start("run", *bench.fleet, "--run", run, "--", "steps.py", "900", "0.1")
            bench.wait_for(lambda: len(killed(bench, "bootstrap.rank")) >= 2, "ranks")
            time.sleep(4)
            pid = next(p for h, p, c in killed(bench, "bootstrap.rank") if h == victim)
            os.kill(pid, signal.SIGKILL)
            free_s = bench.wait_for(lambda: not killed(bench, "bootstrap.rank"), "free hosts", 60)
            said, _ = launch.communicate(timeout=LIMIT_S)
            named = f"rank {bench.hosts.index(victim)}" in said and victim in said
            named = named and "SIGKILL" in said
            results["free_s"].append(round(free_s, 2))
            fine = fine and named and free_s < FREE_S and launch.returncode == 1
            print(f"{run}: free after {free_s:.2f} s, status {launch.returncode}, named {named}")
    run = "again"
    words = ["--restarts", "1", "--resume-args=--resume", "--", "steps.py", "60", "0.1"]
    launch = bench.start("run", *bench.fleet, "--run", run, *words)
    bench.wait_for(lambda: len(killed(bench, "bootstrap.rank")) >= 2, "ranks")
    time.sleep(4)
    os.kill(killed(bench, "bootstrap.rank")[1][1], signal.SIGKILL)
    said, _ = launch.communicate(timeout=LIMIT_S)
    resumed = [int(each) for each in re.findall(r"rank 0 done from (\d+)", said)]
    print(f"restart: status {launch.returncode}, went on from {resumed}")
    results["resumed_from"] = resumed
    results["fine"] = fine and launch.returncode == 0 and bool(resumed) and resumed[0] > 0
    return results


def soak(bench: Bench) -> dict[str, Any]:
    """Launches that are stopped at random: nothing of them may stay, nothing else may be hit."""
    draw = random.Random(bench.options.seed)
    decoys = [
        bench.lab.host(name).popen(
            [sys.executable, "-c", DECOY, "-m", "yoked.launch.bootstrap.rank"]
        )
        for name in bench.hosts
    ]
    ports, files = listeners(bench), files_there(bench)
    history = [broken_launch(bench, draw, n) for n in range(bench.options.launches)]
    # A prepared job whose controller was killed waits this long for the word.
    bench.wait_for(lambda: not bench.ranks(), "no processes", 160)
    bench.type("clean", "--yes", "--older-than", "0 s", *bench.fleet)
    left = {
        "processes": bench.ranks(),
        "ports": sorted(listeners(bench) - ports),
        "files": sorted(files_there(bench) - files),
    }
    alive = all(decoy.poll() is None for decoy in decoys)
    for decoy in decoys:
        decoy.kill()
        decoy.wait()
    print(json.dumps(left)[:2000], "decoys alive:", alive)
    return {
        "launches": len(history),
        "ends": {f"{how}: {status}": n for (how, status), n in sorted(Counter(history).items())},
        "left": left,
        "decoys_alive": alive,
        "fine": not any(left.values()) and alive,
    }


def broken_launch(bench: Bench, draw: random.Random, number: int) -> tuple[str, int]:
    """A launch that is stopped, killed, left alone or waited for; how, and its exit status."""
    run = f"soak-{number}"
    how = draw.choice(["stop", "stop --now", "kill", "ctrl-c", "end"])
    launch = bench.start("run", *bench.fleet, "--run", run, "--", "steps.py", "4", "0.1")
    if how != "end":
        time.sleep(draw.uniform(0.05, 9))
    if how == "ctrl-c":
        launch.send_signal(signal.SIGINT)
    if how == "kill":
        os.killpg(launch.pid, signal.SIGKILL)
    if how.startswith("stop"):
        stop = bench.start("stop", run, *bench.fleet, *how.split()[1:])
        stop.communicate(timeout=LIMIT_S)
    said, _ = launch.communicate(timeout=LIMIT_S)
    if how in ("kill", "ctrl-c"):
        bench.start("stop", run, "--now", *bench.fleet).communicate(timeout=LIMIT_S)
    print(number, how, launch.returncode, said.strip().splitlines()[-1:], flush=True)
    if launch.returncode == BUG_STATUS:
        raise RuntimeError(f"{run} met a bug:\n{said}")
    return how, launch.returncode


def listeners(bench: Bench) -> set[str]:
    """Listening TCP sockets of all hosts."""
    return {
        f"{name} {line.split()[3]}"
        for name in bench.hosts
        for line in bench.lab.host(name).tool(["ss", "-Hltn"]).stdout.splitlines()
    }


def files_there(bench: Bench) -> set[str]:
    """Jobs, shared memory and temporary files of all hosts, and what is temporary here."""
    places = "for p in ~/.local/state/yoked/jobs /dev/shm /tmp; do find $p -maxdepth 1; done"
    found = {f"here {path}" for path in Path(tempfile.gettempdir()).iterdir()}
    for name in bench.hosts:
        said = bench.lab.host(name).run(["sh", "-c", f"{places} 2>/dev/null"], check=False).stdout
        found |= {f"{name} {line}" for line in said.splitlines()}
    # The folders themselves, of the connections' sockets and of jobs, may stay.
    return {each for each in found if not each.endswith(("/jobs", f"/yoked-{os.getuid()}"))}


PARTS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "overhead": overhead,
    "first_step": first_step,
    "controller": controller,
    "agent": agent,
    "rank": rank,
    "soak": soak,
}


def machine() -> str:
    models = re.findall(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{os.cpu_count()} cores {models[0] if models else 'of unknown make'}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--launches", type=int, default=100)
    parser.add_argument("--cut-s", type=float, default=CUT_S)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "results.json")
    options = parser.parse_args()
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    results["machine"] = machine()
    with tempfile.TemporaryDirectory(prefix="yoked-bench-") as state:
        # The person's own labs and runs go on.
        os.environ["YOKED_STATE"] = state
        tempfile.tempdir = os.environ["TMPDIR"] = str(Path(state, "t"))
        Path(tempfile.tempdir).mkdir()
        with Lab.up(load("two-hosts-1gbe"), name="bench", tethered=True) as lab:
            bench = Bench(lab, options)
            for part in options.only or PARTS:
                results[part] = PARTS[part](bench)
                options.out.parent.mkdir(exist_ok=True)
                options.out.write_text(json.dumps(results, indent=1) + "\n")
    verdict = {part: results[part]["fine"] for part in PARTS if part in results}
    print(json.dumps(verdict))
    return 0 if all(verdict.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
