"""Which lines of diagnosis.jsonl follow from one look after another."""

from __future__ import annotations

from typing import Any

from yoked.diagnosis.gate import RankShare, Shares
from yoked.diagnosis.timeline import MOST_BYTES, Timeline

EPOCH_S = 1_700_000_000.0
SHARES = Shares(
    0.123456,
    (RankShare(0, 0.98765, 0.0, 0.01235, 0.0, False), RankShare(1, None, 0.0, None, 0.0, True)),
    "rank",
    (0,),
    0.4,
    30.0,
    "its cores are shared",
    ("ps",),
)


def cause(code: str = "rank-stopped", certainty: str = "sure", **more: Any) -> dict[str, Any]:
    return {
        "cause": code, "hosts": ["alpha"], "rank": 0, "certainty": certainty, "since_s": 1.0,
        "what": "rank 0 on alpha is stopped", "fix": ["kill -CONT 1"], **more,
    }  # fmt: skip


class Looks:
    """A run that is looked at twice a second."""

    def __init__(self) -> None:
        self.timeline = Timeline(2)
        self.now_s = 100.0

    def look(self, *causes: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
        """The lines of the next look."""
        self.now_s += 0.5
        warnings, shares = more.pop("warnings", []), more.pop("shares", None)
        return self.timeline.look(
            list(causes), warnings, shares, now_s=self.now_s, time_s=EPOCH_S + self.now_s, **more
        )

    def end(self, ranks_over_s: float | None = None) -> list[dict[str, Any]]:
        """The lines of the end."""
        return self.timeline.end(
            finished=False,
            now_s=self.now_s,
            time_s=EPOCH_S + self.now_s,
            ranks_over_s=ranks_over_s,
        )


def test_a_cause_is_told_when_it_is_new_when_it_is_sure_and_when_it_is_gone() -> None:
    looks = Looks()
    likely, sure = cause(certainty="likely"), cause(since_s=3.0)

    first = looks.look(likely)
    rest = [looks.look(likely), looks.look(sure), looks.look(sure)]
    gone = [looks.look() for _ in range(11)]

    assert first == [{"time_s": EPOCH_S + 100.5, "attempt": 2, "event": "cause", **likely}]
    assert [len(each) for each in rest] == [0, 1, 0]
    assert (rest[1][0]["event"], rest[1][0]["certainty"]) == ("cause", "sure")
    assert gone[:10] == [[]] * 10
    # It held from a second before the first look until the first without it.
    assert gone[10] == [
        {
            "time_s": EPOCH_S + 102.5, "attempt": 2, "event": "over", "cause": "rank-stopped",
            "hosts": ["alpha"], "rank": 0, "lasted_s": 3.0,
        }
    ]  # fmt: skip


def test_a_cause_that_flaps_is_one_cause() -> None:
    looks = Looks()

    lines = [line for _ in range(20) for line in [*looks.look(cause()), *looks.look()]]
    lines += [line for _ in range(11) for line in looks.look()]

    assert [line["event"] for line in lines] == ["cause", "over"]
    assert lines[1]["lasted_s"] == 20.5


def test_a_cause_that_is_less_sure_again_and_then_sure_is_told_once_as_sure() -> None:
    looks = Looks()

    told = [*looks.look(cause()), *looks.look(cause(certainty="likely")), *looks.look(cause())]

    assert [line["certainty"] for line in told] == ["sure"]


def test_the_same_cause_of_another_rank_is_another() -> None:
    looks = Looks()
    looks.look(cause())

    (second,) = looks.look(cause(), cause(rank=1, hosts=["beta"]))

    assert (second["rank"], second["hosts"]) == (1, ["beta"])


def test_the_end_closes_what_was_gone_and_leaves_what_held_until_then() -> None:
    looks = Looks()
    looks.look(cause(), cause("link-slow"))
    looks.look(cause())

    lines = looks.end()

    assert [(line["event"], line.get("cause")) for line in lines] == [
        ("over", "link-slow"),
        ("end", None),
    ]
    assert lines[-1]["finished"] is False


def test_what_is_gone_as_the_ranks_are_ended_is_not_over() -> None:
    looks = Looks()
    looks.look(cause(), cause("link-slow"))
    looks.look(cause())

    looks.timeline.hold()
    ending = [line for _ in range(12) for line in looks.look()]

    # The link was gone before.
    assert [(line["event"], line["cause"]) for line in ending] == [("over", "link-slow")]
    assert [line["event"] for line in looks.end()] == ["end"]


def test_what_is_gone_with_ranks_that_ended_by_themselves_held_until_the_end() -> None:
    looks = Looks()
    looks.look(cause(), cause("link-slow"))
    looks.look(cause())
    looks.look()

    lines = looks.end(ranks_over_s=looks.now_s)

    assert [line.get("cause") for line in lines] == ["link-slow", None]


def test_a_warning_is_told_once_though_its_words_change() -> None:
    looks = Looks()
    warning = {key: value for key, value in cause("ranks-alone").items() if key != "since_s"}

    first = looks.look(warnings=[warning])
    again = looks.look(warnings=[{**warning, "what": "after step 2 ..."}])
    withdrawn = [line for _ in range(11) for line in looks.look()]

    assert [line["event"] for line in first] == ["warning"]
    assert again == []
    assert [(line["event"], line["lasted_s"]) for line in withdrawn] == [("over", 1.0)]


def test_shares_are_told_every_20_s_while_they_are_known() -> None:
    looks = Looks()

    told = [line for _ in range(81) for line in looks.look(shares=SHARES)]
    unknown = [line for _ in range(81) for line in looks.look()]
    again = looks.look(shares=SHARES)

    assert len(told) == 3
    assert told[0]["ranks"][0] == {
        "rank": 0, "computes": 0.988, "waits_for_core": 0.0, "waits": 0.012, "loads_data": 0.0,
        "gpu": False,
    }  # fmt: skip
    assert (told[0]["step_s"], told[0]["gate"], told[0]["gating"]) == (0.123, "rank", [0])
    assert told[0]["ranks"][1]["computes"] is None
    assert (unknown, len(again)) == ([], 1)


def test_a_long_journal_has_rarer_shares_and_a_full_one_ends_what_it_began() -> None:
    looks = Looks()
    looks.look(cause(), shares=SHARES, kept_bytes=2 << 20)
    rare = [line for _ in range(159) for line in looks.look(cause(), shares=SHARES)]
    next_one = looks.look(cause(), shares=SHARES)

    full = looks.look(cause("link-slow"), shares=SHARES, kept_bytes=MOST_BYTES)
    over = [line for _ in range(10) for line in looks.look(kept_bytes=MOST_BYTES)]

    assert (rare, [line["event"] for line in next_one]) == ([], ["shares"])
    assert full == []
    assert [(line["event"], line["cause"]) for line in over] == [("over", "rank-stopped")]
