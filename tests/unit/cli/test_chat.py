"""`yoked chat`: lines that a model completes; the model here is a list of words."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.terminal import Terminal

from yoked.cli.commands import chat

# The command with a model that takes no time: it writes `<prompt>` and, told to, never ends.
PROGRAM = """
import fcntl, sys, termios, time
from pathlib import Path
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # Ctrl-C is the terminal's to send
from yoked.cli.commands import chat
class Model:
    step, saved_s, better = 5, 0.0, None
    def write(self, prompt, sampling):
        yield f" [{prompt}]"
        while prompt.startswith("endless"):
            time.sleep(0.01)
            yield "."
chat.load_model = lambda *_: (Path("runs/night"), Model())
sys.exit(chat.command())
"""


@dataclass
class FakeModel:
    step: int = 5
    saved_s: float = 60.0
    better: None = None
    seeds: list[int] = field(default_factory=list)

    def write(self, prompt: str, sampling: Any) -> Iterator[str]:
        self.seeds.append(sampling.seed)
        yield f" [{prompt}]"


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> FakeModel:
    found = FakeModel()
    monkeypatch.setattr(chat, "load_model", lambda *_: (Path("runs/night"), found))
    return found


def type_in(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_without_a_terminal_each_line_is_completed_and_nothing_else_is_said(
    model: FakeModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(monkeypatch, b"Once upon\r\nThe end")

    assert chat.command() == 0

    said = capsys.readouterr()
    assert said.out == "Once upon [Once upon]\nThe end [The end]\n"
    assert said.err == ""


def test_each_text_of_a_session_is_drawn_by_another_seed(
    model: FakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    type_in(monkeypatch, b"a\na\n")
    chat.command()
    assert model.seeds == [42, 43]


def test_in_json_all_texts_are_one_object(
    model: FakeModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(monkeypatch, b"one\n\xff\n/quit\nafter\n")

    assert chat.command(json_output=True) == 0

    found = json.loads(capsys.readouterr().out)
    assert (found["step"], found["saved_s"]) == (5, 60.0)
    assert [(each["prompt"], each["text"]) for each in found["texts"]] == [
        ("one", " [one]"),
        ("\ufffd", " [\ufffd]"),
    ]


def test_what_a_prompt_has_for_the_terminal_is_not_passed_on(
    model: FakeModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(monkeypatch, b"red\x1b]0;title\x07\n")
    chat.command()
    assert "\x1b" not in capsys.readouterr().out


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    started = Terminal([sys.executable, "-c", PROGRAM])
    yield started
    started.close()


def test_at_a_terminal_ctrl_c_stops_a_text_enter_goes_on_and_ctrl_d_ends(
    terminal: Terminal,
) -> None:
    assert "does not answer" in terminal.until("> ")
    terminal.type("endless night\n")
    terminal.until("...")
    terminal.type("\x03")
    terminal.until("> ")
    terminal.type("and then\n")
    assert "and then [and then]" in terminal.until("[and then]\r\n> ")
    terminal.type("\n")
    terminal.until("[and then [and then]]\r\n> ")
    terminal.type("\x04")
    assert terminal.process.wait(timeout=60) == 0


def test_quit_ends_too(terminal: Terminal) -> None:
    terminal.until("> ")
    terminal.type("/quit\n")
    assert terminal.process.wait(timeout=60) == 0
