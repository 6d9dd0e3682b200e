"""Steps are taken in order, repaired, agreed to and helped by hand: with made-up steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from yoked.errors import HostError, UsageError, YokedError
from yoked.workflows.steps import Ask, Command, Report, Standing, Step, climb

DONE = Standing("done", "it is there")
DUE = Standing("due", "it is missing")
HANDS = Standing("hands", "plug it in", commands=(Command("beta", "plug it in", by_hand=True),))


@dataclass
class MadeUp:
    """A step that stands as told, look by look; the last stays. An error is raised instead."""

    looks: list[Standing | YokedError]
    fails: list[YokedError] = field(default_factory=list)
    name: str = "made-up"
    purpose: str = "be made up"
    acts: int = 0

    def check(self) -> Standing:
        seen = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if isinstance(seen, YokedError):
            raise seen
        return seen

    def act(self, ask: Ask) -> bool:
        self.acts += 1
        if self.fails:
            raise self.fails.pop(0)
        return ask([f"do {self.name}"])


@dataclass
class MadeUpPerson:
    """Says yes or no, and helps so many times."""

    may_agree: bool = True
    says: bool = True
    help_times: int = 0
    asked: list[str] = field(default_factory=list)
    helped_with: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    def agrees(self, lines: Sequence[str]) -> bool:
        self.asked += lines
        return self.says

    def helps(self, step: Step, standing: Standing, *, look: bool) -> bool:
        self.helped_with.append(standing.said)
        self.help_times -= 1
        return self.help_times >= 0

    def begins(self, step: Step) -> None: ...

    def ends(self, report: Report) -> None:
        self.ended.append(report.state)


def states(reports: Sequence[Report]) -> list[str]:
    return [each.state for each in reports]


def test_what_is_done_is_not_done_again() -> None:
    step, person = MadeUp([DONE]), MadeUpPerson()

    (report,) = climb([step], None, person)

    assert (report.state, report.changed, step.acts, person.asked) == ("done", False, 0, [])


def test_what_is_due_is_done_after_a_yes_and_looked_at_again() -> None:
    step, person = MadeUp([DUE, DONE]), MadeUpPerson()

    (report,) = climb([step], None, person)

    assert (report.state, report.changed, step.acts) == ("done", True, 1)
    assert person.asked == ["do made-up"]


def test_nothing_is_done_where_nobody_can_agree() -> None:
    step, later = MadeUp([DUE]), MadeUp([DONE])

    reports = climb([step, later], None, MadeUpPerson(may_agree=False))

    assert states(reports) == ["consent", "waiting"]
    assert step.acts == 0


def test_what_changes_nothing_needs_no_consent() -> None:
    step = MadeUp([Standing("due", "measure", consent=False), DONE])

    (report,) = climb([step], None, MadeUpPerson(may_agree=False))

    assert report.state == "done"


def test_a_no_ends_the_climb() -> None:
    step, later = MadeUp([DUE]), MadeUp([DONE])

    assert states(climb([step, later], None, MadeUpPerson(says=False))) == ["declined", "waiting"]


def test_hands_are_waited_for_and_what_they_did_is_seen() -> None:
    person = MadeUpPerson(help_times=2)

    (report,) = climb([MadeUp([HANDS, HANDS, DONE])], None, person)

    assert report.state == "done"
    assert person.helped_with == ["plug it in", "plug it in"]


def test_without_hands_the_step_says_what_they_would_do() -> None:
    (report,) = climb([MadeUp([HANDS])], None, MadeUpPerson())

    assert report.state == "hands"
    assert report.standing.commands == HANDS.commands


def test_a_failure_is_repaired_and_the_step_tried_again() -> None:
    step = MadeUp([DUE, DUE, DONE], fails=[HostError("no answer on a high port")])
    repair = MadeUp([DUE, DONE], name="repair")

    (report,) = climb([step], repair, MadeUpPerson())

    assert report.state == "done"
    assert (step.acts, repair.acts) == (2, 1)


def test_a_failure_that_needs_hands_waits_for_them_by_the_words_of_the_repair() -> None:
    step = MadeUp([HostError("beta: it did not answer"), DONE])
    person = MadeUpPerson(help_times=1)

    (report,) = climb([step], MadeUp([HANDS, DONE]), person)

    assert report.state == "done"
    assert person.helped_with == ["plug it in"]


def test_a_failure_whose_repair_needs_hands_that_are_not_there_has_its_findings() -> None:
    problem = HostError("beta: it did not answer")

    (report,) = climb([MadeUp([problem])], MadeUp([HANDS]), MadeUpPerson())

    assert (report.state, report.problem) == ("hands", problem)
    assert report.standing.commands == HANDS.commands


@pytest.mark.parametrize("repair", [None, MadeUp([DONE]), MadeUp([HostError("nor this")])])
def test_a_failure_that_nothing_repairs_stays_with_its_fix(repair: Step | None) -> None:
    problem = HostError("no Python is new enough", fix="install one")

    (report,) = climb([MadeUp([problem])], repair, MadeUpPerson())

    assert (report.state, report.problem) == ("failed", problem)
    assert [each.command for each in report.standing.commands] == ["install one"]


def test_a_failure_is_tried_again_when_the_person_has_followed_its_fix() -> None:
    step = MadeUp([HostError("no Python", fix="install one"), DONE])

    (report,) = climb([step], None, MadeUpPerson(help_times=1))

    assert report.state == "done"


def test_a_step_that_stays_due_ends() -> None:
    step = MadeUp([DUE])

    (report,) = climb([step], None, MadeUpPerson())

    assert report.state == "failed"
    assert step.acts == 3


def test_a_repair_that_repairs_nothing_ends() -> None:
    step, repair = MadeUp([HostError("no answer")]), MadeUp([DUE])

    (report,) = climb([step], repair, MadeUpPerson())

    assert report.state == "failed"


def test_wrong_usage_is_nobodys_to_repair() -> None:
    with pytest.raises(UsageError):
        climb([MadeUp([UsageError("no host is named")])], MadeUp([DUE]), MadeUpPerson())
