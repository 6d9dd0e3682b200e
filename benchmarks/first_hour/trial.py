"""One trial: two bare hosts, faults, a wheel; typed lines up to a trained step and a speed-up."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from person import Person

from yoked.errors import YokedError
from yoked.lab import faults
from yoked.lab.lab import Lab
from yoked.lab.topology_load import load

HOSTS = ("alpha", "beta")
BENCH_STEPS = 6
UP_S, TRAIN_S, BENCH_S, QUICK_S = 1800.0, 900.0, 900.0, 240.0
# A host as it comes from its installer: ssh and a Python, no caches, no index, no start files.
BARE = (
    ": > ~/.bashrc; rm -f ~/.profile ~/.bash_profile ~/.bash_login;"
    "rm -rf ~/.cache ~/.local ~/.config/pip ~/.pip ~/.cargo /opt/* /etc/xdg/pip /etc/pip.conf"
)
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# A step that was taken, however wide the count is and however little room the line has.
_STEP = re.compile(r"(?<![\d,/])[1-9][\d,]*/[\d,]+ +loss ")
_NEXT = re.compile(r"^next: (.*)$", re.MULTILINE)
_MEASURED = re.compile(r"([\d.]+)x the fastest alone")


@dataclass
class Trial:
    """What came of a trial. faults, hands: lines of the lab. typed: lines; answers: to questions.

    times_s: from the first typed line on. planned, measured: the speed-up over the fastest host.
    load: of this machine, at the beginning and at the end.
    """

    seed: int
    mode: str
    faults: list[str]
    hands: list[str]
    ok: bool = False
    why: str = ""
    typed: list[str] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    times_s: dict[str, float] = field(default_factory=dict)
    planned: float | None = None
    measured: float | None = None
    load: list[float] = field(default_factory=list)
    transcript: str = ""


@dataclass(frozen=True)
class Stage:
    """A lab of two bare hosts, and a folder of a person's own. wheels: where pip finds packages."""

    lab: Lab
    folder: Path
    wheel: Path
    wheels: Path
    python: str

    @property
    def env(self) -> dict[str, str]:
        own = {name: str(self.folder / name) for name in ("state", "cache", "data", "run")}
        return {
            "HOME": str(Path.home()),
            "TERM": "xterm",
            "LANG": "C.UTF-8",
            "PS1": "<$?>> ",
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "YOKED_STATE": own["state"],
            "YOKED_CACHE": own["cache"],
            "YOKED_DATA_HOME": own["data"],
            "XDG_RUNTIME_DIR": own["run"],
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }

    @property
    def install_line(self) -> str:
        venv = f"{shlex.quote(self.python)} -m venv venv && . venv/bin/activate"
        return f"{venv} && pip install -q {shlex.quote(str(self.wheel))}"

    @property
    def up(self) -> list[str]:
        return ["yoked", "up", *HOSTS, "--ssh-config", str(self.lab.ssh_config)]

    def inject(self, lines: Sequence[str]) -> None:
        for line in lines:
            kind, *words = shlex.split(line)
            faults.apply(self.lab, kind, words, seed=1)

    def lend_hands(self, said: str, hands: Sequence[str]) -> None:
        """Do what is said: the printed line at its host, else what the fault itself is about."""
        for line in hands:
            kind, host, *_ = line.split()
            if kind == "no-ssh":
                # The line starts Debian's server, with this machine's key; a lab's is another one.
                continue
            with contextlib.suppress(YokedError):
                if printed := _printed(said, host):
                    self.lab.host(host).run(["sh", "-c", printed])
        faults.heal(self.lab)


def _printed(said: str, host: str) -> str | None:
    """The first line under `on HOST:`, without sudo, which hosts of a lab have not."""
    found = re.search(rf"on {host}:\s*\n\s+(\S[^\n]*)", said)
    return None if found is None else found[1].strip().removeprefix("sudo ")


@contextlib.contextmanager
def stage(wheel: Path, wheels: Path, python: str) -> Iterator[Stage]:
    """Two bare hosts; all is gone at the end."""
    name = f"first-{secrets.token_hex(3)}"
    with (
        tempfile.TemporaryDirectory(prefix="yf-") as folder,
        Lab.up(load("two-hosts-1gbe"), name=name, tethered=True) as lab,
    ):
        own = Stage(lab, Path(folder), wheel, wheels, python)
        for host in HOSTS:
            lab.host(host).run(["sh", "-ec", BARE])
        (own.folder / "run").mkdir(mode=0o700)
        (own.folder / "here").mkdir()
        yield own


def run(own: Stage, trial: Trial) -> None:
    """All of a trial; what went wrong is in it."""
    trial.load.append(os.getloadavg()[0])
    began_s = time.monotonic()
    try:
        own.inject([*trial.faults, *trial.hands])
        (_typed if trial.mode in ("typed", "asked") else _program)(own, trial)
        trial.ok = True
    except (AssertionError, TimeoutError, YokedError, subprocess.SubprocessError) as problem:
        trial.why = f"{type(problem).__name__}: {problem}"[:2000]
    trial.times_s["total"] = round(time.monotonic() - began_s, 1)
    trial.load.append(os.getloadavg()[0])


def _plain(text: str) -> str:
    return _ESCAPES.sub("", text).replace("\r\n", "\n")


def _typed(own: Stage, trial: Trial) -> None:
    """As a person at a terminal."""
    person = Person(own.folder / "here", own.env)
    began_s = time.monotonic()

    def lap(name: str) -> None:
        trial.times_s[name] = round(time.monotonic() - began_s, 1)

    def at_up(text: str) -> bool:
        if "do this? [y/N]" in text:
            person.answer("y")
            return True
        if "waiting; Enter" in text:
            said = _plain(text)
            assert trial.hands, f"hands are wanted: {said[said.rfind('needs your hands') :]}"
            own.lend_hands(said, trial.hands)
            return True
        return False

    def at_train(text: str) -> bool:
        if "first step" not in trial.times_s and _STEP.search(text):
            lap("first step")
            person.interrupts()
            return True
        return False

    try:
        assert person.types(own.install_line, QUICK_S) == 0, "the wheel was not installed"
        lap("wheel")
        before = len(person.text)
        words = own.up if trial.mode == "asked" else [*own.up, "--yes"]
        status = person.types(shlex.join(words), UP_S, at_up)
        lap("up")
        said = _plain(person.text[before:])
        assert status == 0, f"up ended with status {status}"
        lines = _NEXT.findall(said)
        trial.planned = _planned(said)
        for line in lines[:-1]:
            assert person.types(line, QUICK_S) == 0, f"{line} failed"
        before = len(person.text)
        person.types(lines[-1], TRAIN_S, at_train)
        assert "first step" in trial.times_s, "no step was shown"
        said = _plain(person.text[before:])
        together = all(re.search(rf"ranks on .*{host} \(", said) for host in HOSTS)
        assert together or len(lines) > 1, "not all hosts trained"
        person.types("yoked stop", QUICK_S)
        before = len(person.text)
        assert person.types(f"yoked bench --steps {BENCH_STEPS}", BENCH_S) == 0, "bench failed"
        lap("bench")
        measured = _MEASURED.search(_plain(person.text[before:]))
        assert measured is not None, "bench gave no speed-up"
        trial.measured = float(measured[1])
    finally:
        trial.typed, trial.answers = person.typed, person.answers
        trial.transcript = _plain(person.text)
        person.leave()


def _planned(said: str) -> float | None:
    found = re.search(r"ready: .*?([\d.]+) times", said)
    return None if found is None else float(found[1])


def _program(own: Stage, trial: Trial) -> None:
    """As a script that reads nothing but --json."""
    began_s = time.monotonic()

    def lap(name: str) -> None:
        trial.times_s[name] = round(time.monotonic() - began_s, 1)

    def ask(argv: Sequence[str], limit_s: float) -> dict[str, Any]:
        trial.typed.append(shlex.join(argv))
        done = subprocess.run(
            ["bash", "-c", f". venv/bin/activate && exec {shlex.join(argv)}"],
            cwd=own.folder / "here",
            env=own.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
        trial.transcript += f"$ {shlex.join(argv)}\n{done.stdout}{done.stderr}"
        found: dict[str, Any] = json.loads(done.stdout)
        assert "error" not in found, f"{argv}: {found.get('error')}"
        return found

    subprocess.run(
        ["bash", "-ec", own.install_line],
        cwd=own.folder / "here",
        env=own.env,
        capture_output=True,
        timeout=QUICK_S,
        check=True,
    )
    trial.typed.append(own.install_line)
    lap("wheel")
    found = ask([*own.up, "--json"], UP_S)
    for _ in range(4):
        if found["ok"]:
            break
        if found["needs"] == "hands":
            assert trial.hands, f"hands are wanted: {_unfinished(found)}"
            _lend_as_told(own, found, trial.hands)
        assert found["needs"] is not None, f"it failed: {_unfinished(found)}"
        found = ask([*found["next"][0]["argv"], "--json"], UP_S)
    assert found["ok"], f"not ready: {_unfinished(found)}"
    lap("up")
    trial.planned = found["plan"]["speedup"]
    *before, train = (each["argv"] for each in found["next"])
    for argv in before:
        ask([*argv, "--json"], QUICK_S)
    steps = ["--num-iterations", "4", "--eval-every", "-1", "--json"]
    trained = ask([*train, *steps], TRAIN_S)
    lap("first step")
    together = {host["name"] for host in trained["hosts"]} == set(HOSTS)
    assert together or before, "not all hosts trained"
    assert trained["steps"] == 4
    bench = ask(["yoked", "bench", "--steps", str(BENCH_STEPS), "--json"], BENCH_S)
    lap("bench")
    trial.measured = bench["speedup"]


def _unfinished(found: Mapping[str, Any]) -> str:
    return json.dumps([each for each in found["steps"] if each["state"] not in ("done", "waiting")])


def _lend_as_told(own: Stage, found: Mapping[str, Any], hands: Sequence[str]) -> None:
    """Run the commands at their hosts that are lines of a shell; then what the fault is about."""
    for step in found["steps"]:
        for each in step["commands"]:
            if each["host"] and not each["by_hand"]:
                with contextlib.suppress(YokedError):
                    line = each["command"].removeprefix("sudo ")
                    own.lab.host(each["host"]).run(["sh", "-c", line])
    assert hands
    faults.heal(own.lab)


def build_wheel(folder: Path) -> Path:
    """The wheel of this checkout."""
    repository = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder)]
    subprocess.run([*command, str(repository)], check=True)
    return next(folder.glob("yoked-*.whl"))


def disk_free_bytes() -> int:
    return shutil.disk_usage(tempfile.gettempdir()).free
