"""What keeps an interpreter from working: a variable, or a file that Python reads as it starts.

Found by trying: what fails is started again without some of what it finds, until it works.
Source: site of Python's library (.pth files, sitecustomize), and `python -v`, which names them.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from yoked.agent.programs import Outcome, run_program
from yoked.agent.server import Call
from yoked.agent.startfiles import places_of
from yoked.core.unusable import other_home
from yoked.errors import HostError

_START = "pass"
_IMPORT = "import ssl, asyncio, torch, torch.distributed"
_START_S, _IMPORT_S = 3.0, 30.0
# Without these a program is not what it was; torch and Python take no orders from them.
_KEPT = re.compile(
    r"HOME|PATH|USER|LOGNAME|SHELL|LANG|LC_\w+|TERM|TZ|PWD|OLDPWD|SHLVL|_|MAIL|SSH_\w+|XDG_\w+"
)
# As ranks find it: see yoked.doctor.rank_probes.
_OF_A_RANK = {"PYTHONPATH": None, "OMP_NUM_THREADS": "1"}
_READ_AT_START = re.compile(
    r"Processing \.pth file: '([^'\n]+)'"
    r"|(?:matches |code object from )'?(/[^'\n]*/(?:site|user)customize\.py)"
)
_LONG_ENOUGH = 4


def answer_culprits(call: Call) -> dict[str, Any]:
    """What keeps `python` from starting, or from importing what a rank needs.

    args: python; said, what it said against it; limit_s for all tries.
    Gives: what, "start" or "import", null where neither fails; late, whether it was given up;
    variables without which it works, each with the `places` of its start files; files that Python
    reads as it starts, without which it works; home, as `other_home` tells it.
    """
    python = str(call.args["python"])
    tries = _Tries(python, float(call.args["limit_s"]), call.cancelled)
    found: dict[str, Any] = {
        "what": None, "late": False, "variables": [], "files": [], "home": None,
    }  # fmt: skip
    for what, program in (("start", _START), ("import", _IMPORT)):
        outcome = tries.run(program)
        if outcome is None or outcome.ok:
            continue
        found.update(what=what, late=outcome.late, home=other_home(python))
        if what == "start" and tries.works(program, flags=("-S",)):
            found["files"] = tries.files_read_last()
        if not found["files"]:
            said = f"{call.args.get('said') or ''}\n{outcome.stderr.decode(errors='replace')}"
            names = guilty_variables(partial(tries.works, program), said)
            places = places_of(names)
            found["variables"] = [{"name": name, "places": places[name]} for name in names]
        break
    return found


class _Tries:
    """Starts of one interpreter, with less and less. limit_s: for all of them."""

    def __init__(self, python: str, limit_s: float, cancelled: threading.Event) -> None:
        self._python, self._cancelled = python, cancelled
        self._until_s = time.monotonic() + limit_s

    def run(
        self, program: str, without: Collection[str] = (), flags: Sequence[str] = ()
    ) -> Outcome | None:
        """How a program ends without some variables; None: it cannot be started, or time is up."""
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            return None
        try:
            return run_program(
                [self._python, *flags, "-c", program],
                env={**_OF_A_RANK, **dict.fromkeys(without)},
                cwd="/",
                limit_s=min(left_s, _START_S if program == _START else _IMPORT_S),
                cancelled=self._cancelled,
            )
        except HostError:
            return None

    def works(self, program: str, without: Collection[str] = (), flags: Sequence[str] = ()) -> bool:
        """Whether it ends well in time."""
        outcome = self.run(program, without, flags)
        return outcome is not None and outcome.ok

    def files_read_last(self) -> list[str]:
        """The file that Python was at, of those that it runs as it starts, when it failed."""
        outcome = self.run(_START, flags=("-v",))
        # By chance it was late before, on a busy host, where it works now.
        if outcome is None or outcome.ok:
            return []
        read = _READ_AT_START.findall(outcome.stderr.decode(errors="replace"))
        return ["".join(each) for each in read[-1:]]


def guilty_variables(works: Callable[[Collection[str]], bool], said: str) -> list[str]:
    """The fewest variables without which a program works; none where they are not to blame.

    works: whether it does without some; said: what it said with all of them.
    """
    names = sorted(name for name in os.environ if not _KEPT.fullmatch(name))
    # Mostly the failure names the variable, or has its value.
    for name in names:
        value = os.environ[name]
        named = name in said or (len(value) >= _LONG_ENOUGH and value in said)
        if named and works([name]):
            return [name]
    if not names or not works(names):
        return []
    while len(names) > 1:
        middle = len(names) // 2
        half = next((part for part in (names[:middle], names[middle:]) if works(part)), None)
        if half is None:
            # Several of them, in both halves.
            return [name for name in names if not works([each for each in names if each != name])]
        names = half
    return names
