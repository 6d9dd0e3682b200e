"""The terminal's view, on a screen that no terminal has: what it shows, and what keys do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.unit.cli.terminal import Terminal
from tests.unit.watch import views
from tests.unit.watch.views import Fake
from textual.events import MouseEvent, MouseScrollDown, MouseScrollUp, Resize
from textual.geometry import Size

from yoked.errors import HostError
from yoked.text import one_line
from yoked.watch.terminal import farewell, show
from yoked.watch.terminal.app import WatchApp
from yoked.watch.view import View

SMALL, LARGE = (80, 24), (160, 50)
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("TERM", "xterm-256color")
    time.tzset()


class Seen:
    """The view on its screen."""

    def __init__(self, app: WatchApp, pilot: Any) -> None:
        self._app, self._pilot = app, pilot

    def text(self) -> str:
        strips = self._app.screen._compositor.render_strips()
        return "\n".join(strip.text.rstrip() for strip in strips) + "\n"

    async def press(self, *keys: str) -> str:
        await self._pilot.press(*keys)
        return await self.settled()

    async def click(self, text: str) -> str:
        row, line = next(
            (row, line) for row, line in enumerate(self.text().splitlines()) if text in line
        )
        await self._pilot.click(offset=(line.index(text) + 1, row))
        return await self.settled()

    async def wheel(self, event: type[MouseEvent]) -> str:
        await self._pilot._post_mouse_events([event], offset=(5, 5), button=0)
        return await self.settled()

    async def resized(self, width: int, height: int) -> str:
        await self._pilot.resize_terminal(width, height)
        return await self.settled()

    async def until(self, text: str) -> str:
        for _ in range(1000):
            if text in (seen := self.text()):
                return seen
            await asyncio.sleep(0.01)
        raise AssertionError(f"{text!r} is not seen:\n{self.text()}")

    async def look(self) -> str:
        """Look once more, without waiting until it is due."""
        self._app.look_now()
        return await self.settled()

    async def settled(self) -> str:
        """All calls that were asked for are answered, and drawn."""
        while self._app._asked:
            await asyncio.sleep(0.001)
        await self._pilot.pause()
        return self.text()


@contextlib.asynccontextmanager
async def watching(
    watched: Fake, *, chosen: bool = True, size: tuple[int, int] = SMALL
) -> AsyncIterator[Seen]:
    app = WatchApp(watched, chosen=chosen, now=lambda: watched.now_s)
    async with app.run_test(size=size) as pilot:
        seen = Seen(app, pilot)
        await seen.settled()
        yield seen


def in_view(
    watched: Fake, *, chosen: bool = True, size: tuple[int, int] = SMALL
) -> Callable[[Callable[[Seen], Coroutine[Any, Any, None]]], None]:
    """Run a test's body while the view is open."""

    def run(body: Callable[[Seen], Coroutine[Any, Any, None]]) -> None:
        async def opened() -> None:
            async with watching(watched, chosen=chosen, size=size) as seen:
                await body(seen)

        asyncio.run(opened())

    return run


# --- what is seen


@pytest.mark.parametrize("name", ["HEALTHY", "FAULT", "OVER", "PROGRAM", "EIGHT"])
def test_a_run_is_seen_on_a_small_and_on_a_large_screen(
    name: str, snapshot: SnapshotAssertion
) -> None:
    watched = Fake(getattr(views, name))

    @in_view(watched)
    async def body(seen: Seen) -> None:
        assert seen.text() == snapshot(name="80x24")
        assert await seen.resized(*LARGE) == snapshot(name="160x50")


def test_where_there_is_no_run_it_says_how_to_start_one(snapshot: SnapshotAssertion) -> None:
    watched = Fake(None, rows=[])

    @in_view(watched, chosen=False)
    async def body(seen: Seen) -> None:
        assert seen.text() == snapshot(name="80x24")
        assert await seen.resized(*LARGE) == snapshot(name="160x50")


def test_a_terminal_without_unicode_has_ascii_alone(
    monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setenv("TERM", "linux")
    watched = Fake(replace(views.HEALTHY, run="nächt-夜"))

    @in_view(watched)
    async def body(seen: Seen) -> None:
        assert seen.text().isascii()
        assert seen.text() == snapshot


def test_a_size_that_the_terminal_has_no_more_is_passed_over() -> None:
    watched = Fake(views.HEALTHY)

    @in_view(watched)
    async def body(seen: Seen) -> None:
        before = seen.text()
        screen = seen._app.screen
        for size in (Size(100, 30), Size(*SMALL), Size(60, 20)):
            screen.post_message(Resize(size, size))

        assert await seen.settled() == before
        assert screen.size == SMALL


def test_a_small_screen_shows_less() -> None:
    watched = Fake(views.FAULT)

    @in_view(watched)
    async def body(seen: Seen) -> None:
        for width, height in ((40, 24), (40, 10), (20, 5), (8, 2), (1, 1)):
            lines = (await seen.resized(width, height)).splitlines()

            assert len(lines) == height
            assert all(len(line) <= width for line in lines)
            assert width < 40 or "!!" in seen.text()


def test_no_text_of_a_run_acts_on_the_terminal_or_is_read_as_markup(
    snapshot: SnapshotAssertion,
) -> None:
    hostile = "\x1b]0;owned\x07[red]\u202eno[/red]\x9b2J"
    watched = Fake(
        views.HOSTILE,
        rows=[replace(views.RUNS[0], run=hostile, state=hostile, hosts=(hostile,))],
        written=[("out", f"{hostile} \x1b[31mcoloured\x1b[0m over\rdrawn"), (hostile, "odd")],
    )

    @in_view(watched)
    async def body(seen: Seen) -> None:
        screens = [seen.text(), await seen.press("l"), await seen.press("escape", "x")]
        screens += [await seen.press("escape", "a"), await seen.press("escape", "r")]
        for screen in screens:
            assert one_line(screen.replace("\n", "")) == screen.replace("\n", "")
        assert screens == snapshot


def test_a_look_that_fails_leaves_the_last_view_dimmed_and_says_its_age() -> None:
    watched = Fake(views.HEALTHY)

    @in_view(watched)
    async def body(seen: Seen) -> None:
        watched.view = HostError("garage does not answer within 10 s", fix="ssh garage")
        watched.now_s += 42

        lines = (await seen.look()).splitlines()

        assert "garage does not answer within 10 s. What follows was seen 42.0 s ago" in lines[0]
        assert "fix: ssh garage" in lines[1]
        assert "night-1  running" in lines[2]
        strips = seen._app.screen._compositor.render_strips()
        assert all(seg.style and seg.style.dim for seg in strips[2] if seg.text.strip())

        watched.view = views.HEALTHY
        watched.now_s = views.NOW_S
        assert (await seen.look()).startswith(" night-1  running")


def test_a_first_look_that_fails_says_why_and_the_list_of_runs_is_a_key_away() -> None:
    watched = Fake(HostError("no host answers", fix="yoked doctor"))

    @in_view(watched)
    async def body(seen: Seen) -> None:
        assert seen.text().splitlines()[:2] == [" !!   no host answers.", "      fix: yoked doctor"]
        assert "night-0" in await seen.press("r")


def test_an_old_view_says_how_old_it_is() -> None:
    watched = Fake(views.HEALTHY)

    @in_view(watched)
    async def body(seen: Seen) -> None:
        watched.now_s += 20

        await seen.until("! seen 20.0 s ago")


# --- what keys do


def test_a_log_is_read_searched_and_followed() -> None:
    watched = Fake(views.HEALTHY)
    watched.written = [("out", f"step {number}") for number in range(90)]
    watched.written[47] = ("err", "Warning: a wide word " + "x" * 100)

    @in_view(watched)
    async def body(seen: Seen) -> None:
        opened = await seen.press("down", "enter")
        assert opened.startswith(" log of rank 1 on garage  91 of 91 rows\n")
        assert "step 89\n" in opened

        found = await seen.press("slash", *"warning", "enter")
        assert "'warning': 1 of 1" in found
        assert "\ne> Warning: a wide word xxx" in found
        top = found.splitlines()[1]

        # Lines went from its beginning, and others came to its end.
        watched.written = [*watched.written[5:], ("out", "step 90"), ("err", "the last one")]
        later = await seen.look()
        assert later.splitlines()[1] == top
        assert "the last one" not in later

        assert "the last one" in await seen.press("G")
        assert "the last one" in await seen.resized(60, 10)
        watched.written = [*watched.written, ("out", "step 91")]
        assert "step 91" in await seen.look()
        assert (await seen.press("escape")).startswith(" night-1")


def test_the_next_line_that_is_found_comes_after_the_last_one() -> None:
    watched = Fake(views.HEALTHY)
    watched.written = [("out", f"line {number}") for number in range(200)]

    @in_view(watched)
    async def body(seen: Seen) -> None:
        places = [await seen.press("l", "slash", *"99", "enter")]
        places += [await seen.press("N"), await seen.press("n"), await seen.press("n")]

        marked = [next(row for row in each.splitlines() if ">" in row[:2]) for each in places]
        assert marked == [" > line 199", " > line 99", " > line 199", " > line 99"]


def test_a_run_is_saved_and_what_became_of_it_is_said() -> None:
    watched = Fake(views.HEALTHY)

    @in_view(watched)
    async def body(seen: Seen) -> None:
        free = threading.Event()
        watched.in_save = free.wait
        await seen._pilot.press("s")
        await seen.until("run night-1 is asked to save")
        free.set()

        assert "> run night-1 saved after 1,240 steps, and goes on" in await seen.settled()


def test_a_run_is_stopped_once_that_is_confirmed() -> None:
    watched = Fake(views.HEALTHY)

    @in_view(watched)
    async def body(seen: Seen) -> None:
        for no in ("escape", "enter", "c"):
            question = await seen.press("x")
            assert "Stop run night-1?" in question
            assert "Stop run" not in await seen.press(no)
        assert watched.asked == []

        answered = await seen.press("x", "s")
        assert "> run night-1 saved, and is stopped" in answered
        await seen.press("x", "e")
        assert watched.asked == ["stop False", "stop True"]


def test_a_wish_that_fails_says_why() -> None:
    watched = Fake(views.HEALTHY)

    def full() -> None:
        raise HostError("the disk of attic is full", fix="yoked clean")

    watched.in_save = full

    @in_view(watched)
    async def body(seen: Seen) -> None:
        told = await seen.press("s")

        assert "> the disk of attic is full" in told
        assert "> fix: yoked clean" in told


def test_a_run_that_is_over_is_neither_saved_nor_stopped() -> None:
    watched = Fake(views.OVER)

    @in_view(watched)
    async def body(seen: Seen) -> None:
        assert "run night-3 is over: there is nothing to save" in await seen.press("s")
        assert "run night-3 is over: there is nothing to stop" in await seen.press("x")
        assert watched.asked == []


def test_another_run_is_chosen_from_the_list(snapshot: SnapshotAssertion) -> None:
    watched = Fake(views.HEALTHY)

    @in_view(watched, chosen=False)
    async def body(seen: Seen) -> None:
        assert seen.text() == snapshot
        assert await seen.press("escape") == seen.text()
        assert (await seen.press("down", "enter")).startswith(" night-0  running")
        assert watched.asked == ["choose night-0"]
        await seen.press("escape")
        # The newest one came meanwhile: the chosen one stays chosen.
        watched.rows.insert(0, replace(views.RUNS[0], run="night-2"))
        assert "> night-1" in await seen.look()
        assert (await seen.press("escape")).startswith(" night-0")


def axis(screen: str) -> str:
    """What stands below the last curve."""
    line = next(line for line in screen.splitlines() if "└" in line)
    return " ".join(line.rpartition("└")[2].replace("─", "").split())


def test_zoom_help_and_all_that_is_known(snapshot: SnapshotAssertion) -> None:
    watched = Fake(views.HEALTHY)

    @in_view(watched)
    async def body(seen: Seen) -> None:
        axes = [axis(await seen.press("z")) for _ in range(4)]
        assert axes == [
            "617 step, last half 1,234",
            "1,111 step, last tenth 1,234",
            "1,195 step, one by one 1,234",
            "6 step 1,234",
        ]
        assert await seen.press("a") == snapshot(name="all")
        keys = await seen.press("escape", "question_mark")
        assert keys == snapshot(name="help")
        # It has keys that save and stop.
        assert "only looks on" not in keys


def test_a_mouse_does_what_keys_do() -> None:
    watched = Fake(views.HEALTHY)

    @in_view(watched)
    async def body(seen: Seen) -> None:
        assert ">  1 garage" in await seen.wheel(MouseScrollDown)
        assert ">  0 attic" in await seen.wheel(MouseScrollUp)
        watched.written = [("out", f"line {number}") for number in range(90)]
        assert (await seen.click("garage ")).startswith(" log of rank 1 on garage  90 of 90")
        assert "87 of 90 rows" in await seen.wheel(MouseScrollUp)
        await seen.click("back")
        assert "Stop run" in await seen.click("stop")
        await seen.click("save and stop")
        assert watched.asked == ["log 1", "stop False"]
        await seen.click("runs")
        assert "> night-0" in await seen.wheel(MouseScrollDown)
        assert (await seen.click("night-0")).startswith(" night-0")


def test_what_nobody_asks_for_any_more_is_not_shown() -> None:
    watched = Fake(views.HEALTHY)

    @in_view(watched)
    async def body(seen: Seen) -> None:
        free = threading.Event()
        look = watched.look

        def slow() -> View:
            before = look()
            free.wait()
            return before

        watched.look = slow  # type: ignore[method-assign]
        seen._app.look_now()
        watched.look = look  # type: ignore[method-assign]
        seen._app.choose("night-0")
        await asyncio.sleep(0.05)
        assert "night-1" not in seen.text()
        free.set()

        assert (await seen.settled()).startswith(" night-0")


def test_what_is_asked_is_not_asked_twice_and_may_come_when_nobody_looks() -> None:
    watched = Fake(views.HEALTHY)

    @in_view(watched)
    async def body(seen: Seen) -> None:
        free = threading.Event()
        watched.in_log = free.wait
        await seen._pilot.press("l", "escape", "l", "escape", "r", "escape")
        free.set()
        assert (await seen.settled()).startswith(" night-1")
        assert watched.asked == ["log 0"]

        free.clear()
        watched.in_save = free.wait
        await seen._pilot.press("s", "s", "s")
        free.set()
        await seen.settled()
        assert watched.asked == ["log 0", "save"]


def test_it_is_drawn_only_when_something_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Fake(views.HEALTHY)

    @in_view(watched)
    async def body(seen: Seen) -> None:
        drawn: list[object] = []
        lines = seen._app._board._lines
        monkeypatch.setattr(lines, "refresh", lambda *regions: drawn.extend(regions))

        await seen.look()
        assert drawn == []

        watched.view = replace(views.HEALTHY, progress=replace(views.HEALTHY.progress, step=1235))
        await seen.look()
        assert [region.y for region in drawn] == [0]  # type: ignore[attr-defined]


# --- its end


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
def test_leaving_leaves_the_run_as_it_is(key: str) -> None:
    watched = Fake(views.HEALTHY)

    @in_view(watched)
    async def body(seen: Seen) -> None:
        await seen._pilot.press(key)
        assert seen._app.return_code == 0
        assert watched.asked == []


def test_the_end_says_that_the_run_goes_on_and_how_to_see_it() -> None:
    assert farewell(replace(views.HEALTHY, run="a b"), " --fleet x.toml") == (
        "run a b goes on: `yoked attach 'a b' --fleet x.toml` shows it, "
        "`yoked stop 'a b' --fleet x.toml` ends it"
    )
    assert farewell(views.OVER) == "run night-3 is over: finished"


def test_a_bug_ends_the_view_and_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Fake(views.HEALTHY)
    monkeypatch.setattr(watched, "look", lambda: 1 // 0)

    def headless(app: WatchApp, size: tuple[int, int]) -> None:
        asyncio.run(app.run_async(headless=True, size=size))

    monkeypatch.setattr(WatchApp, "run", headless)

    with pytest.raises(ZeroDivisionError):
        show(watched, chosen=True)


_PROGRAM = """
from tests.unit.watch.views import Fake
from yoked.watch.terminal import show
show(Fake(), chosen=True, flag=" --fleet x.toml")
"""


@pytest.fixture
def real_terminal() -> Iterator[Terminal]:
    """With the view, which is drawn."""
    terminal = Terminal(
        [sys.executable, "-c", _PROGRAM],
        TERM="xterm-256color",
        LC_ALL="C",
        PYTHONPATH=f"{ROOT / 'src'}{os.pathsep}{ROOT}",
    )
    try:
        terminal.until("\x1b[?1049h")
        terminal.until("quit")
        yield terminal
    finally:
        # A test may have closed it.
        with contextlib.suppress(OSError):
            terminal.close()


@pytest.mark.parametrize("how", ["\x03", "terminated"])
def test_a_real_terminal_is_left_as_it_was(real_terminal: Terminal, how: str) -> None:
    if how == "terminated":
        real_terminal.process.terminate()
    else:
        real_terminal.type(how)

    told = real_terminal.until("run night-1 goes on: `yoked attach night-1 --fleet")
    assert "\x1b[?1049l" in told
    assert real_terminal.process.wait(20) == 0


def test_the_view_ends_with_its_terminal(real_terminal: Terminal) -> None:
    os.close(real_terminal.descriptor)

    assert real_terminal.process.wait(20) == 0


@pytest.mark.parametrize("stdin", ["<&-", "</dev/null", "<keys"])
def test_without_a_keyboard_it_is_printed(tmp_path: Path, stdin: str) -> None:
    folder = tmp_path / "runs" / "night"
    folder.mkdir(parents=True)
    line = {"attempt": 0, "step": 0, "loss": 2.5, "dt_s": 0.5, "tokens": [8]}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    # A key of the view that asks what to stop.
    (tmp_path / "keys").write_text("x")
    command = "import sys; from yoked.cli.main import main; sys.exit(main())"
    watches = f"exec {quote(sys.executable)} -c {quote(command)} watch night {stdin}"
    terminal = Terminal(
        ["bash", "-c", f"cd {quote(str(tmp_path))} && {watches}"],
        TERM="xterm-256color",
        PYTHONPATH=str(ROOT / "src"),
        YOKED_STATE=str(tmp_path / "state"),
    )
    try:
        told = terminal.until("seen at")
        assert terminal.process.wait(20) == 0
    finally:
        terminal.close()
    assert "loss 2.5000" in told
    assert "Traceback" not in told
    assert "\x1b[?1049h" not in told
