from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.browser import Browser, Page, chromium, open_browser
from tests.unit.report.run_folders import HOSTILE, bare_figures
from tests.unit.watch.web.driving import (
    CONNECTION,
    LOSS,
    STEPS,
    VERDICT,
    require_moving,
    require_own_requests,
    shown,
    text_of,
    wait_for,
)
from tests.unit.watch.web.moving import Moving, Nothing
from tests.unit.watch.web.served import Served, served

from yoked.errors import HostError
from yoked.watch.view import RankNow, RecentSteps, Verdict, View
from yoked.watch.web.changes import sendable

AXE = Path(__file__).parents[3] / "vendor" / "axe-core" / "axe.min.js"
ROOT = Path(__file__).parents[4]
WIDE, NARROW = 1440, 390
# Words that a page says when a figure is missing and nobody thought of it.
ACCIDENTS = ("null", "undefined", "NaN", "Infinity", "[object")
FAULT = Verdict(
    "bad",
    "network-lost on beta: no packet came from it",
    ("for 4.2 s", "its own address answers no ping"),
    ("yoked doctor    looks at the link", "pull the cable, and put it in again"),
)
Opened = Callable[..., Page]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = chromium()
    if program is None:
        pytest.skip("neither Chromium nor Chrome is on this machine")
    with open_browser(program, tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def opened(browser: Browser) -> Iterator[Opened]:
    """Open the page of a server, or of what is watched."""
    pages: list[Page] = []

    def open_page(server: Served, width: int = WIDE, *, dark: bool = False) -> Page:
        page = browser.page(width, dark=dark)
        pages.append(page)
        shown(page, server.url)
        return page

    yield open_page
    for each in pages:
        each.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(Moving(3, 300)) as found:
        yield found


class Bare(Moving):
    """A program that tells of no steps, of which a host is silent."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.figures = bare_figures(folder)

    def look(self) -> View:
        ranks = (
            RankNow(0, "alpha", {"computes": 0.5, "waits": 0.5}, (1,), "saves"),
            RankNow(1, "", {}, (), "host-gone", "bad"),
        )
        return replace(
            super().look(),
            figures=self.figures,
            recent=RecentSteps(),
            ranks=ranks,
            links=(),
            cost=None,
            verdict=FAULT,
            silent={"beta": "no answer in 5 s"},
            sampled=True,
        )


def test_the_page_draws_the_run_and_asks_nobody_else(opened: Opened, server: Served) -> None:
    page = opened(server)

    assert page.complaints == []
    require_own_requests(page, server.url)
    assert page.run("location.href") == server.url
    assert page.run("document.cookie") == ""
    titles = page.run("[...document.querySelectorAll('main h2')].map(each => each.textContent)")
    assert titles[:3] == [
        "Who waits for whom",
        "Loss, validation and speed",
        "Where each second went",
    ]
    assert page.run("document.querySelectorAll('main .bars')[0].children.length") == 3
    assert page.run("document.querySelectorAll('figure.line canvas').length") == 3
    assert not [word for word in ACCIDENTS if word in text_of(page)]


def test_charts_move_while_what_a_reader_did_stays(opened: Opened, server: Served) -> None:
    page = opened(server)
    page.run("document.querySelector('.learning button').click()")
    page.run("document.querySelector('.learning details').open = true")
    page.run("document.getElementById('plot-loss').focus()")
    page.run("window.canvas = document.querySelector('#plot-loss canvas')")

    require_moving(page)
    require_moving(page)

    assert page.run("document.activeElement.id") == "plot-loss"
    assert page.run("document.querySelector('.learning details').open") is True
    assert page.run("document.querySelector('.learning button').ariaPressed") == "true"
    assert page.run("canvas === document.querySelector('#plot-loss canvas')") is True
    assert page.run("document.getElementById('steps-shown').textContent") == "Whole run"


def test_what_the_page_puts_together_is_what_the_server_has(opened: Opened, server: Served) -> None:
    page = opened(server)
    for _ in range(3):
        require_moving(page)

    deadline = time.monotonic() + 20
    while json.loads(page.run("JSON.stringify(live.state())")) != sendable(
        server.server.looker._state
    ):
        assert time.monotonic() < deadline


def test_a_fault_is_on_top_within_three_seconds_of_its_verdict(opened: Opened) -> None:
    watched = Moving()
    with served(watched) as server:
        page = opened(server)
        before = page.run(VERDICT)
        watched.verdict = FAULT
        wait_for(page, f"{VERDICT}.includes('network-lost on beta')", within_s=3)
        said = page.run("document.querySelector('header .card').textContent")
        title = page.run("document.title")

    assert "run night gets on" in before
    assert "its own address answers no ping" in said
    assert "yoked doctor" in said
    assert title == "✕ night — yoked watch"


def test_a_look_that_fails_is_told_while_the_last_figures_stay(opened: Opened) -> None:
    watched = Moving()
    with served(watched) as server:
        page = opened(server)
        watched.failure = HostError("alpha does not answer", fix="yoked doctor")
        told = wait_for(page, "document.querySelector('[role=alert]')?.textContent")
        is_old = page.run("document.documentElement.classList.contains('stale')")
        has_chart = page.run("document.querySelectorAll('#plot-loss canvas').length")
        watched.failure = None
        wait_for(page, "document.querySelector('[role=alert]') === null")

    assert "alpha does not answer" in told
    assert "yoked doctor" in told
    assert (is_old, has_chart) == (True, 1)


def test_a_part_that_is_zoomed_into_is_read_in_full(opened: Opened) -> None:
    watched = Moving(2, 5000)
    with served(watched) as server:
        page = opened(server)
        coarse = page.run("document.getElementById('reading-loss').textContent")
        page.run("charts.show({min: 1000, max: 1200})")
        wait_for(
            page, "document.getElementById('reading-loss').textContent === 'Of each step, in nats.'"
        )
        page.run("document.querySelector('.learning button').click()")
        steps = page.run(STEPS)
        wait_for(page, f"{STEPS} > {steps}")
        fine = page.run("document.getElementById('reading-loss').textContent")
        page.run("document.getElementById('plot-loss').focus()")
        page.key("0")
        whole = wait_for(
            page, "document.getElementById('reading-loss').textContent.startsWith('Mean')"
        )

    assert coarse == "Mean of 8 steps; the band goes from the least to the greatest."
    assert fine == "Of each step, in nats."
    assert whole is True
    assert watched.asked == [(999, 1200, 600)]


def test_the_last_steps_are_read_with_keys_and_with_the_pointer(
    opened: Opened, server: Served
) -> None:
    page = opened(server)
    page.run("document.getElementById('plot-recent').focus()")
    said = []
    for key in ("ArrowLeft", "ArrowLeft", "ArrowDown"):
        page.key(key)
        said.append(page.run("document.getElementById('reading-recent').textContent"))
    place, step = page.run(
        """(() => {
            const step = Number(/step ([\\d,]+)/.exec(
                document.getElementById('reading-recent').textContent)[1].replace(',', ''));
            return [live.state().view.recent.step.indexOf(step - 1), step];
        })()"""
    )
    recent = page.run("live.state().view.recent")
    page.run("document.getElementById('plot-recent').scrollIntoView({block: 'center'})")
    box = page.run("document.getElementById('plot-recent').getBoundingClientRect().toJSON()")
    at = (box["x"] + box["width"] - 20, box["y"] + 75)
    page.drag(at, at)
    pointed = page.run("document.getElementById('reading-recent').textContent")

    assert [each.split(", ")[1].split(":")[0] for each in said] == [
        "0 alpha",
        "0 alpha",
        "1 alpha1",
    ]
    assert place >= 0
    assert f"step {step}, 1 alpha1: computing {recent['compute_s'][1][place]:.2f} s" in said[-1]
    assert ", 2 alpha2: computing" in pointed


def test_a_look_that_takes_long_is_told(opened: Opened) -> None:
    watched, answers = Moving(), threading.Event()
    with served(watched) as server:
        page = opened(server)
        watched.on_look = lambda: answers.wait(30)
        # Its clock goes fast, so that ten seconds are soon over.
        page.run(
            "(() => { const now = performance.now.bind(performance), since = now();"
            " performance.now = () => since + 8 * (now() - since); })()"
        )
        said = wait_for(page, f"{CONNECTION}.includes('takes long') && {CONNECTION}")
        answers.set()
        wait_for(page, f"{CONNECTION} === '● Connected, live'")

    assert "The figures are those of" in said


def test_another_run_is_chosen_from_the_list(opened: Opened) -> None:
    with served(Moving()) as server:
        page = opened(server)
        page.run("document.querySelector('.runs summary').click()")
        wait_for(page, "document.querySelectorAll('.runs tbody tr').length === 2")
        page.run("charts.show({min: 10, max: 50})")
        page.run("document.querySelectorAll('.runs tbody button')[1].click()")
        wait_for(page, "live.state().view.run === 'day' && document.title.includes('day')")
        page.settle()

        pressed = page.run("document.querySelector('.runs [aria-pressed=true]').textContent")
        zoomed = page.run("charts.shown().min")

    assert (pressed, zoomed) == ("day", 0)


def test_a_run_is_chosen_where_none_goes_on(opened: Opened) -> None:
    with served(Moving(), chosen=False) as server:
        page = opened(server)
        wait_for(page, "document.querySelectorAll('.runs tbody tr').length === 2")
        before = text_of(page)
        page.run("document.querySelectorAll('.runs tbody button')[1].click()")
        wait_for(page, "live.state().view?.run === 'day' && document.title.includes('day')")
        page.settle()
        after = text_of(page)
        complaints = page.complaints

    assert "Choose a run to look at" in before
    assert "failed" not in before
    assert "Looking for the first time" not in before
    assert "Choose a run to look at" not in after
    assert "Other runs" in after
    assert complaints == []


def test_where_no_run_is_there_to_choose_the_page_says_what_to_do(opened: Opened) -> None:
    with served(Nothing(), chosen=False) as server:
        text = text_of(opened(server))

    assert "There is no run to look at" in text
    assert "yoked train" in text


def test_foreign_words_are_only_ever_text(opened: Opened) -> None:
    watched = Moving(host=HOSTILE)
    watched.run = HOSTILE
    watched.verdict = Verdict("bad", HOSTILE, (HOSTILE,), (HOSTILE,))
    with served(watched) as server:
        page = opened(server)
        page.run("document.querySelector('.runs summary').click()")
        wait_for(page, "document.querySelectorAll('.runs tbody tr').length === 2")
        watched.failure = HostError(HOSTILE, fix=HOSTILE)
        wait_for(page, "document.querySelector('[role=alert]')")

        assert page.run("document.querySelectorAll('img').length") == 0
        assert "onerror=alert(1)" in text_of(page)
        assert page.complaints == []
        require_own_requests(page, server.url)


def test_what_is_missing_is_left_out_or_said(opened: Opened, tmp_path: Path) -> None:
    with served(Bare(tmp_path / "run")) as server:
        page = opened(server)
        text = text_of(page)
        complaints = page.complaints

    assert complaints == []
    assert not [word for word in ACCIDENTS if word in text]
    assert "50% computing and 50% waiting for rank 1" in text
    assert "not known yet" in text
    assert "beta: no answer in 5 s" in text


def test_where_there_is_no_run_the_page_says_what_to_do(opened: Opened) -> None:
    with served(Nothing()) as server:
        page = opened(server)
        text = text_of(page)
        complaints = page.complaints

    assert "there is no run to look at yet" in text
    assert "yoked train" in text
    assert complaints == []


@pytest.mark.parametrize("is_dark", [False, True])
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_axe_finds_nothing_that_keeps_people_out(
    opened: Opened, server: Served, width: int, is_dark: bool
) -> None:
    page = opened(server, width, dark=is_dark)
    page.run("document.querySelector('.runs summary').click()")
    wait_for(page, "document.querySelectorAll('.runs tbody tr').length === 2")
    page.run("document.querySelectorAll('details').forEach(each => each.open = true)")
    page.run(AXE.read_text(encoding="utf-8"))

    found = page.run("axe.run().then(result => result.violations)")

    assert page.run("document.documentElement.scrollWidth") <= width
    assert serious(found) == []


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_axe_finds_nothing_while_something_is_wrong(
    opened: Opened, tmp_path: Path, width: int
) -> None:
    watched = Bare(tmp_path / "run")
    with served(watched) as server:
        page = opened(server, width)
        watched.failure = HostError("alpha does not answer", fix="yoked doctor")
        wait_for(page, "document.querySelector('[role=alert]')")
    wait_for(page, f"{CONNECTION}.includes('Not connected')")
    page.run(AXE.read_text(encoding="utf-8"))

    found = page.run("axe.run().then(result => result.violations)")

    assert page.run("document.documentElement.scrollWidth") <= width
    assert serious(found) == []


def serious(violations: list[dict[str, object]]) -> list[tuple[object, ...]]:
    return [
        (each["id"], each["impact"], str(each["nodes"])[:400])
        for each in violations
        if each["impact"] in ("serious", "critical")
    ]


SERVER = """
import sys
from tests.unit.watch.web.moving import Moving
from yoked.watch.web import serve
port = int(sys.argv[1]) or None
serve(Moving(), chosen=True, port=port, note=lambda line: print(line, flush=True))
print("left")
"""


def start(port: int) -> tuple[subprocess.Popen[str], str]:
    """`serve` in a process of its own, and the address that it said."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(port)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert process.stdout is not None
    while True:
        line = process.stdout.readline()
        assert line, "it ended"
        if line.startswith("the page is at "):
            break
    tunnel = process.stdout.readline()
    url = line.split()[-1]
    number = url.split(":")[2].split("/")[0]
    assert f"ssh -L {number}:127.0.0.1:{number} " in tunnel
    return process, url


def test_a_page_goes_on_by_itself_after_its_server_was_killed_and_started_again(
    browser: Browser,
) -> None:
    first, url = start(0)
    page = browser.page()
    try:
        shown(page, url)
        require_moving(page)
        first.kill()
        said = wait_for(page, f"{CONNECTION}.includes('Not connected') && {CONNECTION}")
        is_old = page.run("document.documentElement.classList.contains('stale')")
        loss = page.run(LOSS)
    finally:
        first.kill()
        first.communicate()
    second, again = start(int(url.split(":")[2].split("/")[0]))
    try:
        wait_for(page, f"{CONNECTION} === '● Connected, live'")
        require_moving(page)
        steps = page.run(STEPS)

        # Ctrl-C, while the page is open.
        second.send_signal(signal.SIGINT)
        left, _ = second.communicate(timeout=20)
    finally:
        second.kill()
        second.communicate()
        page.close()

    assert again == url
    assert "The figures are those of" in said
    assert is_old is True
    assert loss
    assert steps > 200
    assert (left, second.returncode) == ("left\n", 0)
