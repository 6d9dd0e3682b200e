"""The name of a start of the ranks; how they meet: tests/distributed/test_meeting.py."""

from __future__ import annotations

import pytest

from yoked.ranks.meeting import launch_id


def test_attempts_of_one_run_have_unlike_names_for_their_proofs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "0123")
    names = []
    for attempt in ("0", "1"):
        monkeypatch.setenv("YOKED_ATTEMPT", attempt)
        names.append(launch_id())

    assert names == ["0123-0", "0123-1"]


def test_under_torchrun_it_is_torchruns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.delenv("YOKED_ATTEMPT", raising=False)

    assert launch_id() == "none"
