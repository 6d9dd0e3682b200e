"""The doctor's quick form beside a launch: its verdict comes before the ranks meet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from yoked.doctor.render import errors_of, payload, problem_lines, typed
from yoked.errors import FleetError, HostError, YokedError
from yoked.units import format_duration, plural

if TYPE_CHECKING:
    from yoked.doctor.host_probes import Lend
    from yoked.fleet.model import Fleet
    from yoked.records.examination import Examination, Finding, Need

# It has deadlines of its own, far below. What passes this one is held up by something else.
PATIENCE_S = 20.0
_ASK_EVERY_S = 0.3
_SSH = "ssh-"


class StoppedError(HostError):
    """The doctor's own verdict: this launch cannot work."""


class Preflight:
    """A quick examination of a fleet that goes on while something else is done."""

    def __init__(self, fleet: Fleet, need: Need, lend: Lend | None) -> None:
        self._fleet, self._need, self._lend = fleet, need, lend
        self._seen: tuple[Examination, tuple[Finding, ...]] | None = None
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._look, name="doctor", daemon=True)
        self._thread.start()

    def require_health(
        self, note: Callable[[str], None], *, unless: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait for the verdict, say it in a line, and raise HostError where a run cannot work.

        An examination that could not be made stops nobody: it is said. unless: asked again and
        again; once it is true, nobody waits for a verdict any more.
        """
        until_s = time.monotonic() + PATIENCE_S
        while self._thread.is_alive() and time.monotonic() < until_s:
            self._thread.join(_ASK_EVERY_S)
            if self._thread.is_alive() and unless():
                return
        if isinstance(self._problem, YokedError):
            note(f"doctor: {self._problem.what}")
            return
        if self._problem is not None:
            raise self._problem
        if self._seen is None:
            note(f"doctor: no answer in {PATIENCE_S:g} s")
            return
        examination, findings = self._seen
        if wrong := errors_of(findings):
            raise _stopped(self._fleet, examination, wrong)
        note(_all_well(examination, findings))

    @property
    def said(self) -> dict[str, Any]:
        """What is kept of it with the run: `yoked doctor --json`, and why that says nothing."""
        told: dict[str, Any] = {"asked": True, "why": None, "findings": []}
        if isinstance(self._problem, YokedError):
            return {**told, "why": self._problem.what}
        if self._seen is None:
            return {**told, "why": "the launch did not wait for it any longer"}
        return {**told, **payload(*self._seen)}

    def explained(self, problem: YokedError) -> YokedError:
        """What a launch ends with that came to grief meanwhile: with all that the doctor knows.

        Why ssh does not come in, the launch has said as well.
        """
        self._thread.join(PATIENCE_S)
        if self._seen is None:
            return problem
        examination, findings = self._seen
        rest = [each for each in errors_of(findings) if not each.check.startswith(_SSH)]
        if not rest:
            return problem
        found = _stopped(self._fleet, examination, rest)
        if len(examination.up) == len(examination.hosts):
            return found
        return HostError(f"{problem.what}\n{found.what}", fix=(*problem.fix, *found.fix))

    def _look(self) -> None:
        from yoked.doctor.causes import findings_of
        from yoked.doctor.examine import look

        try:
            examination = look(
                self._fleet,
                self._need,
                quick=True,
                bandwidth=False,
                say=lambda _: None,
                lend=self._lend,
            )
            self._seen = examination, findings_of(examination)
        except BaseException as problem:  # noqa: BLE001 - raised where it is waited for
            self._problem = problem


def _stopped(fleet: Fleet, examination: Examination, wrong: Sequence[Finding]) -> StoppedError:
    """The error that ends a launch: all that is wrong, and the lines that mend it."""
    lines = [f"the doctor stopped this launch: {plural(len(wrong), 'error')}"]
    for finding in wrong:
        lines += problem_lines(finding)
    fixes = [
        f"{typed(fix, examination)}    on {fix.host or 'this machine'}"
        for finding in wrong
        for fix in finding.fix
    ]
    closer = f"yoked doctor{fleet.flag}    looks closer"
    more = [closer, "--no-doctor    starts it all the same"]
    error = StoppedError("\n".join(lines), fix=[*fixes, *more])
    error.code = wrong[0].check
    error.params = {"checks": ", ".join(dict.fromkeys(finding.check for finding in wrong))}
    return error


def _all_well(examination: Examination, findings: tuple[Finding, ...]) -> str:
    """One line; warnings are named, and told by the whole doctor."""
    took = format_duration(examination.took_s)
    names = list(dict.fromkeys(finding.check for finding in findings))
    if not names:
        return f"doctor: nothing is in the way ({took})"
    warnings = f"{plural(len(findings), 'warning')} ({', '.join(names)})"
    return f"doctor: nothing is in the way, {warnings}; `yoked doctor` says more ({took})"


@contextmanager
def run_preflight(
    fleet: Fleet, need: Need, *, wanted: bool, lend: Lend | None = None
) -> Iterator[Preflight | None]:
    """A quick examination beside what is done in this context; None where there is no link.

    lend: gives the agent of a host by its name: those of the launch serve the doctor too.

    A host that fails in the meantime is what the doctor knows best: its errors are raised with it.
    """
    if not wanted or len(fleet.hosts) < 2:
        yield None
        return
    quick = Preflight(fleet, need, lend)
    try:
        yield quick
    except StoppedError:
        raise
    except (HostError, FleetError) as problem:
        if (found := quick.explained(problem)) is problem:
            raise
        raise found from problem
