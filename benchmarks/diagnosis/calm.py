"""Runs in which nothing is wrong, for hours: is anything told that is not so?

usage: calm.py [--minutes 180] [--part-minutes 12] [--seed 1] [--kinds a,b] [--results FOLDER]
               [--summary]

A part is a run on two hosts of a lab, with evaluations, saves and compiles of its own. Now and then
somebody else's program takes half of a core for 20 s, a debugger stops a rank, or a host sleeps for
a minute under `--on-fault wait`. Each part has a file in results/calm/; one that is there is not
made again. As root.

A slow processor that is told is so where somebody's program was started on that host, where a
witness on the rank's core (on any, where it waits for one) needs longer for its own work, too
(witness.py), or where programs of no lab take the cores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from inject import trigger  # noqa: E402
from stage import ACTS, MODEL, Run, Stage, own_state, stage  # noqa: E402
from told import Told, told_by  # noqa: E402
from witness import Witness  # noqa: E402

RESULTS = HERE / "results" / "calm"
_LOOK_S = 0.1
_STARTED_S = 180.0
# From the end of one to the begin of the next.
_BETWEEN_S = (15.0, 40.0)
_BUSY_S, _DEBUG_S, _SLEEP_S = 20.0, (5.0, 25.0), 60.0
# What was so is told of for so long after it: a slow-down is one of the last 3 s, or of 4 steps.
_AFTER_S = 6.0
# A host that wakes has old packets and a cold cache.
_AFTER_SLEEP_S = 20.0
# The same work takes so many times as long, or others take so many cores: this machine is slow.
_SLOWER, _OTHERS = 1.25, 0.3
# A telling is judged for so long after it.
_JUDGED_S = 3.0
_HALF_A_CORE = (
    "import time\n"
    "while True:\n"
    "    until = time.monotonic() + 0.05\n"
    "    while time.monotonic() < until: pass\n"
    "    time.sleep(0.05)\n"
)


@dataclass
class Event:
    """Something that happened to a host. Times since the epoch."""

    name: str
    host: str
    from_s: float
    until_s: float | None = None


@dataclass
class Saying:
    """A cause that was told, and whether it is so. slower: by what a witness on the rank's core
    needed longer then; others: cores that programs of no lab took; busiest: programs, and theirs.
    """

    told: Told
    busiest: list[tuple[str, float]]
    slower: float = 1.0
    others: float = 0.0
    true: bool = False


@dataclass
class Part:
    """A run. ended: by itself, which none may. looks: at the machine; slow, taken: in how many of
    them a witness was slow on some core, or programs of no lab took cores.
    """

    kind: str
    seed: int
    began_s: float = 0.0
    seconds: float = 0.0
    steps: int = 0
    ended: bool = False
    events: list[Event] = field(default_factory=list)
    said: list[Saying] = field(default_factory=list)
    looks: int = 0
    slow: int = 0
    taken: int = 0
    load: list[float] = field(default_factory=list)
    trouble: str = ""


@dataclass(frozen=True)
class Kind:
    """A kind of part. words: of `yoked`, its command first."""

    name: str
    words: tuple[str, ...]
    on_fault: str
    happens: tuple[str, ...]


def _trainer(compiled: str) -> tuple[str, ...]:
    flags = list(MODEL)
    flags[flags.index("--compile") + 1] = compiled
    own = ("--num-iterations", "100000", "--eval-every", "60", "--eval-tokens", "8192")
    return ("train", *flags, *own, "--save-every", "80")


KINDS = (
    Kind("script", ("run", "--", "usual.py"), "stop", ("busy", "gdb", "pdb")),
    Kind("trainer", _trainer("off"), "stop", ("busy", "gdb")),
    Kind("script-sleeps", ("run", "--", "usual.py"), "wait", ("busy", "sleep", "pdb")),
    Kind("script-compiled", ("run", "--", "usual.py", "--compile"), "stop", ("busy", "pdb")),
    Kind("trainer-sleeps", _trainer("off"), "wait", ("busy", "sleep")),
    Kind("trainer-compiled", _trainer("on"), "stop", ("busy", "gdb")),
)


# ---- what happens


@contextlib.contextmanager
def busy(own: Stage, run: Run, rank: int) -> Iterator[None]:
    process = own.host(own.hosts[rank]).popen([sys.executable, "-c", _HALF_A_CORE])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def gdb(own: Stage, run: Run, rank: int) -> Iterator[None]:
    """A debugger of machine code is attached, as a person does who looks where a program is."""
    words = ["gdb", "-q", "-nx", "-iex", "set auto-solib-add off", "-p"]
    process = subprocess.Popen(
        [*words, str(run.ranks[rank].pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield
    finally:
        process.communicate("detach\nquit\n", timeout=60)


@contextlib.contextmanager
def debug(own: Stage, run: Run, rank: int) -> Iterator[None]:
    """The program calls pdb, as with breakpoint() in it, and somebody types."""
    trigger(own, rank, "debug")
    try:
        yield
    finally:
        typed = Path(f"/proc/{own.host(own.hosts[rank]).pid}/root{ACTS}/typed")
        until_s = time.monotonic() + 30.0
        while not typed.exists() and time.monotonic() < until_s:
            time.sleep(0.1)
        with open(typed, "r+b", buffering=0) as pipe:
            pipe.write(b"continue\n")
            # The program opens it only at its next step.
            time.sleep(2.0)


@contextlib.contextmanager
def sleep(own: Stage, run: Run, rank: int) -> Iterator[None]:
    group = own.host(own.hosts[rank]).group
    assert group is not None
    group.freeze()
    try:
        yield
    finally:
        group.thaw()


_HAPPEN: dict[str, Callable[[Stage, Run, int], contextlib.AbstractContextManager[None]]] = {
    "busy": busy,
    "gdb": gdb,
    "pdb": debug,
    "sleep": sleep,
}


def _lasts_s(name: str, dice: Random) -> float:
    if name == "busy":
        return _BUSY_S
    return _SLEEP_S if name == "sleep" else dice.uniform(*_DEBUG_S)


# ---- a part


def make(kind: Kind, seed: int, minutes: float) -> Part:
    part = Part(kind.name, seed, load=[round(os.getloadavg()[0], 2)])
    dice = Random(f"calm {kind.name} {seed}")
    try:
        with stage() as own:
            own.prepare("ddp")
            _follow(own, kind, part, dice, minutes)
    except (RuntimeError, OSError, subprocess.SubprocessError) as problem:
        part.trouble = f"{type(problem).__name__}: {problem}"[:2000]
    part.load.append(round(os.getloadavg()[0], 2))
    return part


def _follow(own: Stage, kind: Kind, part: Part, dice: Random, minutes: float) -> None:
    run = own.launch(kind.words[0], kind.words[1:], on_fault=kind.on_fault)
    part.began_s = time.time()
    with Witness() as witness:
        watch = _Watch(run, part, witness)
        # From the very start: a compile is in it.
        watch.until(lambda: run.least_steps >= 10, _STARTED_S)
        own.await_steps(run, 10)
        until_s = part.began_s + 60.0 * minutes
        while time.time() < until_s and not part.ended:
            watch.for_s(dice.uniform(*_BETWEEN_S))
            name, rank = dice.choice(kind.happens), dice.randrange(len(own.hosts))
            lasts_s = _lasts_s(name, dice)
            if time.time() + lasts_s > until_s or part.ended:
                break
            event = Event(name, own.hosts[rank], time.time())
            part.events.append(event)
            with _HAPPEN[name](own, run, rank):
                watch.for_s(lasts_s)
            event.until_s = time.time()
        watch.for_s(_AFTER_S)
    part.seconds = round(time.time() - part.began_s, 1)
    part.steps = run.least_steps
    own.clear(run)


class _Watch:
    """Looks at what is told all the time, and judges it by what happens."""

    def __init__(self, run: Run, part: Part, witness: Witness) -> None:
        self._run, self._part, self._witness = run, part, witness
        self._told = set[object]()

    def for_s(self, seconds: float) -> None:
        self.until(lambda: False, seconds)

    def until(self, over: Callable[[], bool], limit_s: float) -> None:
        until_s = time.monotonic() + limit_s
        while time.monotonic() < until_s and not over() and not self._part.ended:
            self._look()
            time.sleep(_LOOK_S)

    def _look(self) -> None:
        part, witness = self._part, self._witness
        witness.look({rank: process.pid for rank, process in self._run.ranks.items()})
        part.looks += 1
        part.slow += witness.slower() >= _SLOWER
        part.taken += witness.others >= _OTHERS
        now = set[object]()
        for host in self._run.hosts:
            for told in told_by(host, self._run.read(host, "diagnosis.json")):
                key = (told.by, told.code, told.rank, *told.hosts, told.certainty)
                now.add(key)
                # One that passes and comes again is told again.
                if key not in self._told:
                    part.said.append(Saying(told, witness.busiest))
            if self._run.read(host, "outcome.json"):
                part.ended = True
        self._told = now
        for saying in part.said:
            if time.time() - saying.told.at_s <= _JUDGED_S:
                self._judge(saying)

    def _judge(self, saying: Saying) -> None:
        """By what is so at the time of telling, and for a moment after it: what has just begun is
        a small part of the last seconds.
        """
        told = saying.told
        # Both hosts' ranks wait for both cores, and each needs more of the one that it is on.
        rank = None if "waits for a core" in told.what else told.rank
        slower, others = self._witness.slower(rank), self._witness.others
        is_slow = told.code == "cpu-slow" and (slower >= _SLOWER or others >= _OTHERS)
        saying.slower, saying.others = max(saying.slower, slower), max(saying.others, others)
        saying.true = saying.true or is_slow or _is_true(told, self._part.events)


def _is_true(told: Told, events: Sequence[Event]) -> bool:
    """Whether something that happens, or did a moment ago, is what is told."""
    for event in events:
        after_s = _AFTER_SLEEP_S if event.name == "sleep" else _AFTER_S
        if event.until_s is not None and told.at_s > event.until_s + after_s:
            continue
        if told.hosts != [event.host]:
            continue
        if (event.name, told.code) in (("busy", "cpu-slow"), ("sleep", "host-asleep")):
            return True
    return False


def summary(results: Path) -> str:
    head = ["part", "minutes", "steps", "happened", "machine slow", "cores taken"]
    head += ["told, and so", "told, and not so", "ended"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    minutes = 0.0
    for path in sorted(results.glob("*.json")):
        part = json.loads(path.read_text())
        minutes += part["seconds"] / 60
        names = [event["name"] for event in part["events"]]
        happened = ", ".join(f"{names.count(name)} {name}" for name in sorted(set(names)))
        told = [[each["told"]["code"] for each in part["said"] if each["true"] is true]
                for true in (True, False)]  # fmt: skip
        cells = [path.stem, f"{part['seconds'] / 60:.1f}", str(part["steps"]), happened]
        cells += [f"{part[name] / max(1, part['looks']):.0%}" for name in ("slow", "taken")]
        cells += [", ".join(f"{codes.count(code)} {code}" for code in sorted(set(codes)))
                  for codes in told]  # fmt: skip
        lines.append(f"| {' | '.join([*cells, 'yes' if part['ended'] else ''])} |")
    return "\n".join([*lines, "", f"{minutes:.0f} minutes in all"])


def to_json(part: Part) -> str:
    return json.dumps(part, default=vars, indent=1) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=180.0)
    parser.add_argument("--part-minutes", type=float, default=12.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(each.name for each in KINDS))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--summary", action="store_true")
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    if not options.summary:
        with own_state():
            parts(options)
    print(summary(options.results))
    return 0


def parts(options: argparse.Namespace) -> None:
    """The kinds in their turn, until there are enough minutes."""
    chosen = [each for each in KINDS if each.name in options.kinds.split(",")]
    seed, done = options.seed, 0.0
    while done < options.minutes:
        for kind in chosen:
            path = options.results / f"{kind.name}-{seed:03}.json"
            if not path.exists() and done < options.minutes:
                part = make(kind, seed, options.part_minutes)
                print(line_of(part), flush=True)
                path.write_text(to_json(part))
            done += options.part_minutes
        seed += 1


def line_of(part: Part) -> str:
    wrong = [each for each in part.said if not each.true]
    line = f"{part.kind} {part.seed}: {part.seconds:.0f} s, {part.steps} steps, "
    line += f"{len(part.events)} events, {len(part.said)} told, {len(wrong)} not so"
    for each in wrong:
        at_s = each.told.at_s - part.began_s
        line += f"\n  after {at_s:.0f} s: {each.told}, slower {each.slower}, {each.busiest}"
    return line + (" ENDED" if part.ended else "") + (f" {part.trouble}" if part.trouble else "")


if __name__ == "__main__":
    sys.exit(main())
