"""What of setting a fleet up has passed, in a file of this machine: `yoked` alone reads it.

It is a note and no proof: hosts change without a word, and `yoked up` looks at them again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yoked.core.fs import read_json, write_json
from yoked.fleet.model import Fleet
from yoked.paths import private_folder, state_root


@dataclass(frozen=True)
class Passed:
    """A step that passed. at_s: Unix time; said: in a few words what was found.

    then: the command lines that follow from a plan.
    """

    at_s: float
    said: str
    then: Sequence[str] = ()


def passed_of(fleet: Fleet) -> Mapping[str, Passed]:
    """The steps that passed on a fleet with its present hosts, by their names."""
    found = {}
    for name, each in _steps(_file(fleet)).items():
        if isinstance(each, dict) and isinstance(each.get("at_s"), (int, float)):
            then = tuple(map(str, each.get("then") or ()))
            found[name] = Passed(float(each["at_s"]), str(each.get("said")), then)
    return found


def note_passed(fleet: Fleet, step: str, said: str, then: Sequence[str] = ()) -> None:
    """Note that a step passed now. A disk that takes no note is no reason to fail."""
    file = _file(fleet)
    _write(file, {**_steps(file), step: {"at_s": time.time(), "said": said, "then": [*then]}})


def forget_passed(fleet: Fleet, step: str) -> None:
    """A step that passed once no longer holds."""
    file = _file(fleet)
    steps = _steps(file)
    if steps.pop(step, None) is not None:
        _write(file, steps)


def _steps(file: Path) -> dict[str, Any]:
    steps = (read_json(file) or {}).get("steps")
    return dict(steps) if isinstance(steps, dict) else {}


def _write(file: Path, steps: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):
        private_folder(file.parent)
        write_json(file, {"steps": steps})


def _file(fleet: Fleet) -> Path:
    # Of this file and these hosts: others have to pass by themselves.
    hosts = "\n".join([os.fspath(fleet.path.absolute()), *(host.name for host in fleet.hosts)])
    digest = hashlib.sha256(os.fsencode(hosts)).hexdigest()
    return state_root() / "passed" / f"{digest[:16]}.json"
