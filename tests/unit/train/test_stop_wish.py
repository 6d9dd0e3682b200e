"""A wish to stop is acknowledged when it is heard, and granted later."""

from __future__ import annotations

import os
import signal

import pytest

from yoked.train.stop_wish import StopWish


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_wish_to_stop_is_acknowledged_at_once_and_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], number: int
) -> None:
    monkeypatch.delenv("YOKED_LAUNCH_DIR", raising=False)
    monkeypatch.delenv("RANK", raising=False)
    wish = StopWish()

    with wish.listening():
        os.kill(os.getpid(), number)
        said = capfd.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)

    assert wish.asked
    assert said.startswith("asked to stop: ")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("name", "value"), [("RANK", "1"), ("YOKED_LAUNCH_DIR", "/jobs/night")])
def test_what_another_has_said_is_not_said_again(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    wish = StopWish()

    with wish.listening():
        os.kill(os.getpid(), signal.SIGINT)

    assert wish.asked
    assert capfd.readouterr().err == ""
