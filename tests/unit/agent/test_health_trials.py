"""A program on trial is told later what to do, and never outlives who waits for it."""

from __future__ import annotations

import sys
import threading
import time

from tests.unit.agent.fake_call import FakeCall

from yoked.agent.trials import answer_trial, answer_trial_go

DEADLINE_S = 20.0
# Says what it was told; ends with its descriptor.
ECHO = """
import os, sys
print("here", flush=True)
with open(int(sys.argv[-1])) as source:
    for line in source:
        print("told", line.strip(), flush=True)
print("left", flush=True)
"""


class TrialCall(FakeCall):
    """A call of a trial, whose lines are waited for."""

    @property
    def lines(self) -> list[str]:
        return [part["line"] for part in self.parts if "line" in part]

    def await_line(self, line: str) -> None:
        until_s = time.monotonic() + DEADLINE_S
        while line not in self.lines:
            assert time.monotonic() < until_s, self.parts
            time.sleep(0.01)


def begin(script: str = ECHO, limit_s: float = DEADLINE_S) -> tuple[TrialCall, threading.Thread]:
    call = TrialCall(trial="t", argv=[sys.executable, "-c", script], env={}, limit_s=limit_s)
    thread = threading.Thread(target=answer_trial, args=(call,))
    thread.start()
    return call, thread


def test_it_hears_what_to_do_and_ends_when_it_is_let_go() -> None:
    call, thread = begin()
    call.await_line("here")

    went = answer_trial_go(FakeCall(trial="t", spec={"rank": 1}))
    call.await_line('told {"rank": 1}')
    ended = answer_trial_go(FakeCall(trial="t", spec=None))
    thread.join(DEADLINE_S)

    assert (went, ended) == (True, True)
    assert call.lines[-1] == "left"
    assert call.parts[-1]["end"]["exit_status"] == 0
    assert answer_trial_go(FakeCall(trial="t", spec=None)) is False


def test_it_ends_when_nobody_waits_for_its_call() -> None:
    call, thread = begin("import time; print('here', flush=True); time.sleep(60)")
    call.await_line("here")

    call.cancelled.set()
    thread.join(DEADLINE_S)

    assert not thread.is_alive()
    assert call.parts[-1]["end"]["signal"] == 9


def test_one_that_takes_too_long_is_late() -> None:
    call, thread = begin("import time; time.sleep(60)", limit_s=0.3)

    thread.join(DEADLINE_S)

    assert call.parts[-1]["end"]["late"] is True


def test_what_it_said_last_is_kept() -> None:
    call, thread = begin("import sys; sys.exit('no such module')")

    thread.join(DEADLINE_S)

    assert call.parts[-1]["end"]["exit_status"] == 1
    assert "no such module" in call.parts[-1]["end"]["stderr"]
