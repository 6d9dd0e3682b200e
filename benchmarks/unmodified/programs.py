"""Programs of many frameworks over two hosts of a lab: equal weights, or which sentence?

usage: programs.py --python VENV [--only NAME,...] [--nanogpt CHECKOUT] [--results DIR]
       programs.py --summary [--results DIR]

VENV is a virtual environment with torch and the frameworks. As root. Each program has a file in
DIR/torch-VERSION; --summary prints all of them as the tables of the README. The exit status is 1
where a program did not come to what is expected of it, or its framework is not installed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import nanochat_side as side
import nanogpt
from bench import COMMAND, HERE, SUMS, weights
from bench import PROGRAMS as TESTED
from program_table import table

from yoked.errors import LabError
from yoked.fleet.file import read_fleet
from yoked.fleet.trust import remember
from yoked.lab.lab import Lab
from yoked.lab.topology_load import load
from yoked.launch.registry import fault_line, warning_lines

# DeepSpeed compiles a part of itself first.
LIMIT_S = 600.0
# Of what yoked run --json tells.
_KINDS = ("warnings", "faults")
_VERSIONS = """
import importlib.metadata, json, platform, sys
found = {"python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found[name] = None
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Case:
    """A program as its author starts it. needs: the packages that it imports beside torch.

    comes_to: `equal` weights; `calls` that mean what NCCL means; or the cause that yoked tells of
    it, as docs/reference/causes.md has it. says: what its fix is to say. is_watched: its weights
    are those of its optimizer, and checksums/ writes them. flags: of `yoked run`.
    """

    name: str
    title: str
    words: tuple[str, ...]
    needs: tuple[str, ...] = ()
    folder: Path = HERE / "programs"
    comes_to: str = "equal"
    says: str = ""
    is_watched: bool = True
    flags: tuple[str, ...] = ()


_LIGHTNING, _LM = "lightning_module.py", "causal_lm.py"
_NANOGPT_DATA = ("--include", f"{nanogpt.DATA}/*")
CASES = (
    Case("ddp", 'DistributedDataParallel on "nccl"', ("ddp.py",), folder=TESTED),
    Case("collectives", "calls that NCCL has and Gloo lacks", ("collectives.py",), folder=TESTED,
         comes_to="calls", is_watched=False),
    Case("fsdp2", "FSDP2", ("fsdp2.py",)),
    Case("accelerate", "accelerate", ("accelerate_loop.py",), ("accelerate",), folder=TESTED),
    Case("trainer", "Trainer of transformers", (_LM,), ("transformers", "accelerate")),
    Case("lora", "LoRA by that Trainer", (_LM, "lora"), ("peft", "transformers", "accelerate")),
    Case("lightning", "Lightning, `Trainer()`", (_LIGHTNING,), ("lightning",),
         comes_to="ranks-alone", says='num_nodes=2, strategy="ddp"'),
    Case("lightning-explicit", 'Lightning, `Trainer(devices=1, num_nodes=2, strategy="ddp")`',
         (_LIGHTNING, "explicit"), ("lightning",)),
    Case("zero1", "DeepSpeed, ZeRO-1", ("zero1.py",), ("deepspeed",), is_watched=False),
    Case("nanogpt", "nanoGPT as it is", ("train.py", nanogpt.CONFIG), ("numpy",),
         comes_to="gpu-missing", says="device_ids only with CUDA", flags=_NANOGPT_DATA),
    Case("nanogpt-edited", "nanoGPT, three lines edited",
         ("train.py", nanogpt.CONFIG, *nanogpt.SMALL), ("numpy",), flags=_NANOGPT_DATA),
)  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """Two hosts of a lab that train with an environment of the person's."""

    lab: Lab
    fleet: Path
    scratch: Path
    python: Path

    @classmethod
    @contextmanager
    def up(cls, python: Path) -> Iterator[Stage]:
        """Bring the lab up; it ends with this process."""
        with tempfile.TemporaryDirectory(prefix="yk-") as folder:
            # The person's own labs, runs and connections go on.
            os.environ["YOKED_STATE"] = f"{folder}/state"
            os.environ["XDG_RUNTIME_DIR"] = folder
            with Lab.up(load("two-hosts-1gbe"), name="programs", tethered=True) as lab:
                fleet = Path(folder) / "yoked.toml"
                hosts = (
                    f'[[host]]\nname = "{host.name}"\npython = "{python}"\n'
                    for host in lab.topology.hosts
                )
                head = f'[fleet]\nname = "programs"\nssh_config = "{lab.ssh_config}"\n'
                fleet.write_text(head + "".join(hosts))
                remember(read_fleet(fleet))
                yield cls(lab, fleet, Path(folder), python)

    def yoked(self, command: str, *words: str, cwd: Path = HERE) -> tuple[str, str]:
        """What a command prints, and what it says to stderr. Raises TimeoutExpired."""
        ended = subprocess.run(
            [sys.executable, "-c", COMMAND, command, "--fleet", str(self.fleet), *words],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        return ended.stdout, ended.stderr

    def run(self, case: Case, folder: Path) -> dict[str, Any]:
        """Run a program on both hosts: how it ended, what yoked said, and the weights."""
        began_s = time.monotonic()
        settings = [f"CHECKSUMS={SUMS}/{case.name}"]
        settings += [f"PYTHONPATH={HERE / 'checksums'}"] * case.is_watched
        words = ["--run", case.name, "--json", "--on-fault", "stop", *case.flags]
        words += [word for setting in settings for word in ("--env", setting)]
        try:
            printed, said = self.yoked("run", *words, "--", *case.words, cwd=folder)
        except subprocess.TimeoutExpired:
            self.yoked("stop", case.name)
            return {"state": "not ended", "said": [f"no end in {LIMIT_S:g} s"], "causes": []}
        if not printed:
            raise SystemExit(f"{case.name}: yoked run printed nothing, and said:\n{said}")
        told = json.loads(printed)
        found: dict[str, Any] = {
            "state": told.get("state", "refused"),
            "causes": [each["cause"] for kind in _KINDS for each in told.get(kind, ())],
            "said": [self._without_folders(line) for line in sentences(told, said)],
            "took_s": round(time.monotonic() - began_s, 1),
        }
        if found["state"] == "finished":
            found |= self._calls(case) if case.comes_to == "calls" else self._weights(case)
        elif found["state"] != "failed" or case.comes_to not in found["causes"]:
            # For the person who looks for the reason; a result has the sentences alone.
            print(said[-3000:], file=sys.stderr)
        return found

    def _weights(self, case: Case) -> dict[str, Any]:
        try:
            return {"weights": asdict(weights(self.lab, case.name))}
        except (LabError, SystemExit) as problem:
            return {"weights": {"equal": False, "verdict": f"no checksums: {problem}"}}

    def _calls(self, case: Case) -> dict[str, Any]:
        """What each rank printed of the calls that it tried."""
        found = []
        for rank in range(len(self.lab.hosts)):
            words = ("--rank", str(rank), "--stream", "out")
            printed, _ = self.yoked("logs", case.name, *words)
            found.append(json.loads(printed.splitlines()[-1]))
        return {"calls": found}

    def _without_folders(self, line: str) -> str:
        """A sentence without the folders of this machine."""
        line = re.sub(r"/[^\s:'\"]*/jobs/[^/\s]+/work/?", "", line)
        for folder, name in ((self.python.parents[1], "VENV"), (Path.home(), "~")):
            line = line.replace(str(folder), name)
        return line


def sentences(told: dict[str, Any], said: str) -> list[str]:
    """What a person reads of a run. told: as --json has it; said: on stderr."""
    lines = [line for line in said.splitlines() if line.startswith("yoked: ")]
    for warning in told.get("warnings", ()):
        lines += [line.strip() for line in warning_lines(warning)]
    for fault in told.get("faults", ()):
        lines += [fault_line(fault), *(f"fix: {line}" for line in fault["fix"])]
    if error := told.get("error"):
        lines += [error["what"], *(f"fix: {line}" for line in error["fix"])]
    return list(dict.fromkeys(lines))


def is_as_expected(case: Case, found: dict[str, Any]) -> bool:
    """Whether a program came to what it is to come to."""
    finished, causes = found["state"] == "finished", found["causes"]
    if case.comes_to == "calls":
        return finished and all(each["tried"] and not each["failed"] for each in found["calls"])
    if case.comes_to == "equal":
        sums = found.get("weights") or {}
        moved = sums.get("changed", 0) == sums.get("steps") and sums.get("steps", 0) > 1
        return finished and not causes and sums["equal"] and moved
    is_told = causes == [case.comes_to] and any(case.says in line for line in found["said"])
    return is_told and finished == (case.comes_to == "ranks-alone")


def versions(python: Path) -> dict[str, str | None]:
    """The version of each package in an environment; None: it is not installed there."""
    names = dict.fromkeys(("torch", *(name for case in CASES for name in case.needs)))
    said = subprocess.run([python, "-c", _VERSIONS, *names], stdout=subprocess.PIPE, check=True)
    found: dict[str, str | None] = json.loads(said.stdout)
    if found["torch"] is None:
        raise SystemExit(f"{python} has no torch")
    return found


def try_all(cases: list[Case], options: argparse.Namespace) -> bool:
    """Run them and write their results; whether all came to what is expected."""
    has = versions(options.python)
    results = options.results / f"torch-{str(has['torch']).partition('+')[0]}"
    results.mkdir(parents=True, exist_ok=True)
    machine = {**side.machine_facts(), "python": has["python"], "torch": has["torch"]}
    fine = True
    with Stage.up(options.python) as stage:
        for case in cases:
            folder = case.folder
            used = {name: has[name] for name in ("torch", *case.needs)}
            if case.name.startswith("nanogpt"):
                folder = stage.scratch / case.name
                nanogpt.copy(options.nanogpt, folder, edited=case.comes_to == "equal")
                used["nanoGPT"] = nanogpt.commit(options.nanogpt)
            if missing := [name for name in case.needs if has[name] is None]:
                said = [f"the environment has no {name}" for name in missing]
                found = {"state": "not installed", "said": said, "causes": []}
            else:
                found = stage.run(case, folder)
            as_expected = is_as_expected(case, found)
            fine &= as_expected
            told = {"program": case.name, "versions": used, "as_expected": as_expected, **found}
            text = json.dumps({**told, "machine": machine}, indent=1)
            (results / f"{case.name}.json").write_text(f"{text}\n")
            verdict = "" if as_expected else ", which was not expected"
            print(f"{case.name}: {found['state']}{verdict}", *found["said"], sep="\n  ", flush=True)
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", type=Path, help="a virtual environment with the frameworks")
    parser.add_argument("--only", default="", help=", ".join(case.name for case in CASES))
    parser.add_argument("--nanogpt", type=Path, help="a checkout of nanoGPT")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "programs")
    parser.add_argument("--summary", action="store_true", help="print the tables, and run nothing")
    options = parser.parse_args()
    if options.summary:
        print(table(options.results, {case.name: case.title for case in CASES}))
        return 0
    if options.python is None:
        parser.error("--python VENV: whose packages are used?")
    options.python = options.python.absolute() / "bin" / "python"
    named = [name for name in options.only.split(",") if name]
    if unknown := set(named) - {case.name for case in CASES}:
        parser.error(f"--only: there is no {', '.join(sorted(unknown))}")
    cases = [case for case in CASES if case.name in (named or [case.name])]
    if options.nanogpt is None and any(case.name.startswith("nanogpt") for case in cases):
        print("nanoGPT is left out: --nanogpt CHECKOUT", file=sys.stderr)
        cases = [case for case in cases if not case.name.startswith("nanogpt")]
    return 0 if try_all(cases, options) else 1


if __name__ == "__main__":
    sys.exit(main())
