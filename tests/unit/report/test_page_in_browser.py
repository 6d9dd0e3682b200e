from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browser import Browser, Page, chromium, open_browser
from tests.unit.report.run_folders import HOSTILE, bare_figures, run_figures, write_run

from yoked import units
from yoked.report.against import compare
from yoked.report.figures import figures_of
from yoked.report.page import write_page
from yoked.report.run_record import read_run

AXE = Path(__file__).parents[2] / "vendor" / "axe-core" / "axe.min.js"
WIDE, NARROW = 1440, 390
# Words that a page says when a figure is missing and nobody thought of it.
ACCIDENTS = ("null", "undefined", "NaN", "Infinity", "[object")
DRAWN = "[...document.querySelectorAll('canvas')].map(each => each.toDataURL())"
Opened = Callable[..., Page]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = chromium()
    if program is None:
        pytest.skip("neither Chromium nor Chrome is on this machine")
    with open_browser(program, tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Opened]:
    """Open the page of these figures."""
    pages: list[Page] = []

    def open_page(figures: dict[str, Any], width: int = WIDE, *, dark: bool = False) -> Page:
        place = tmp_path / "report.html"
        write_page(figures, place)
        page = browser.page(width, dark=dark)
        pages.append(page)
        page.open(place)
        return page

    yield open_page
    for each in pages:
        each.close()


def text_of(page: Page) -> str:
    """All text, that of folded parts too."""
    found: str = page.run(
        "['header', 'main'].map(n => document.querySelector(n).textContent).join()"
    )
    return found


def middle_of(page: Page, selector: str) -> tuple[float, float, float]:
    """Left and right end of the inner three fifths, and the height, of an element in view."""
    page.run(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
    page.settle()
    box = page.run(f"document.querySelector({selector!r}).getBoundingClientRect().toJSON()")
    return (
        box["x"] + 0.2 * box["width"],
        box["x"] + 0.8 * box["width"],
        box["y"] + box["height"] / 2,
    )


def require_quiet(page: Page) -> None:
    assert page.complaints == []
    assert len(page.requests) == 1, page.requests
    assert page.requests[0].startswith("file://")


def test_the_page_of_a_run_draws_all_charts_and_asks_for_nothing(
    opened: Opened, tmp_path: Path
) -> None:
    page = opened(run_figures(tmp_path / "run", ranks=3))

    require_quiet(page)
    assert page.run("document.querySelectorAll('figure.stack canvas').length") == 3
    assert page.run("document.querySelectorAll('figure.line canvas').length") == 3
    inked = page.run(
        """[...document.querySelectorAll('canvas')].map(each => {
            const data = each.getContext('2d').getImageData(0, 0, each.width, each.height).data;
            return data.filter((value, place) => place % 4 === 3 && value > 0).length;
        })"""
    )
    assert min(inked) > 500, inked


def test_a_stack_has_the_colour_of_each_of_its_parts(opened: Opened, tmp_path: Path) -> None:
    page = opened(run_figures(tmp_path / "run"))

    counts = page.run(
        """(() => {
            const {width, height} = document.querySelector('figure.stack canvas');
            const context = document.querySelector('figure.stack canvas').getContext('2d');
            const {data} = context.getImageData(0, 0, width, height);
            const style = getComputedStyle(document.documentElement);
            return ['compute', 'comm', 'wait'].map(name => {
                const ink = parseInt(style.getPropertyValue('--' + name).trim().slice(1), 16);
                let count = 0;
                for (let at = 0; at < data.length; at += 4)
                    count += (data[at] << 16 | data[at + 1] << 8 | data[at + 2]) === ink;
                return count;
            });
        })()"""
    )

    compute, comm, wait = counts
    assert compute > comm > wait > 0


def test_a_drag_zooms_all_charts_and_a_double_click_goes_back(
    opened: Opened, tmp_path: Path
) -> None:
    page = opened(run_figures(tmp_path / "run"))
    before = page.run(DRAWN)

    left, right, height = middle_of(page, "#plot-loss .u-over")
    page.drag((left, height), (right, height))
    shown = page.run("charts.shown()")
    zoomed = page.run(DRAWN)
    said = page.run("document.getElementById('steps-shown').textContent")
    page.double_click(((left + right) / 2, height))

    assert shown["min"] == pytest.approx(12, abs=1)
    assert shown["max"] == pytest.approx(48, abs=1)
    assert re.fullmatch("Steps 1[123] to 4[789] of 60", said), said
    assert not [at for at, picture in enumerate(zoomed) if picture == before[at]]
    assert page.run("charts.shown()") == {"min": 0, "max": 60}


def test_a_chart_that_has_the_focus_is_zoomed_with_keys(opened: Opened, tmp_path: Path) -> None:
    page = opened(run_figures(tmp_path / "run"))
    page.run("document.getElementById('plot-rank-0').focus()")
    seen = []

    for key in ("+", "ArrowRight", "ArrowLeft", "ArrowLeft", "-", "+", "0"):
        page.key(key)
        seen.append(page.run("(({min, max}) => [min, max])(charts.shown())"))

    assert seen == [[15, 45], [22.5, 52.5], [15, 45], [7.5, 37.5], [0, 60], [15, 45], [0, 60]]


def test_newer_figures_leave_zoom_focus_scroll_and_what_is_open(
    opened: Opened, tmp_path: Path
) -> None:
    page = opened(run_figures(tmp_path / "run", steps=60))
    newer = run_figures(tmp_path / "newer", ranks=3, steps=80)
    page.run("charts.show({min: 10, max: 20})")
    page.run("document.querySelector('.configuration details').open = true")
    page.run("document.querySelector('.learning button').focus({preventScroll: true})")
    page.run("scrollTo(0, 700)")
    place = "document.activeElement.textContent + ' ' + scrollY"
    before = page.run(place)
    page.run("window.kept = document.querySelector('#plot-loss canvas')")

    page.run(f"page.render({json.dumps(newer)})")
    page.settle()

    assert page.run("charts.shown()") == {"min": 10, "max": 20}
    assert page.run(place).split(" ")[:2] == before.split(" ")[:2] == ["log", "axis"]
    assert page.run("document.querySelector('.configuration details').open") is True
    assert page.run("window.kept === document.querySelector('#plot-loss canvas')") is True
    assert page.run("document.querySelectorAll('figure.stack canvas').length") == 3
    assert "80 steps" in page.run("document.querySelector('h1').textContent")
    assert page.run("charts.show(null) ?? charts.shown()") == {"min": 0, "max": 80}
    require_quiet(page)


def test_the_same_figures_again_change_nothing(opened: Opened, tmp_path: Path) -> None:
    page = opened(run_figures(tmp_path / "run"))
    page.run("scrollTo(0, 700)")
    page.run(
        """new MutationObserver(all => { window.changes = all.length; })
        .observe(document.body, {subtree: true, childList: true, attributes: true})"""
    )

    page.run("page.render(JSON.parse(document.getElementById('figures').textContent))")
    page.settle()

    assert page.run("window.changes ?? 0") == 0
    assert page.run("scrollY") == 700


def test_the_loss_has_a_log_axis_when_asked(opened: Opened, tmp_path: Path) -> None:
    page = opened(run_figures(tmp_path / "run"))
    before = page.run(DRAWN)

    page.run("document.querySelector('.learning button').click()")
    page.settle()

    after = page.run(DRAWN)
    assert page.run("document.querySelector('.learning button').ariaPressed") == "true"
    changed = [at for at, picture in enumerate(after) if picture != before[at]]
    assert changed == [2]
    require_quiet(page)


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_hostile_words_are_shown_and_do_nothing(opened: Opened, tmp_path: Path, width: int) -> None:
    figures = run_figures(tmp_path / "run", name=HOSTILE, host=HOSTILE)
    for event, kind in zip(figures["events"], ("__proto__", "constructor", HOSTILE), strict=True):
        event["kind"] = kind
    figures["events"][0]["time_s"] = 1e300
    figures["state"] = "constructor"
    figures["config"] |= {HOSTILE: [HOSTILE], "__proto__": "x", "n": float("nan")}
    figures["command"] = HOSTILE * 9

    page = opened(figures, width)

    require_quiet(page)
    assert page.run("document.querySelectorAll('img').length") == 0
    assert "<img src=x onerror=alert(1)>" in text_of(page)
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run("document.querySelectorAll('figure canvas').length") == 5


def few(figures: dict[str, Any]) -> dict[str, Any]:
    """Without evaluations, facts and times of ranks, as an older run."""
    curve = {**figures["curve"], "ranks": [], "loss": [None] * len(figures["curve"]["step"])}
    none: dict[str, Any] = dict.fromkeys(("val_bpb", "best", "command", "loss", "started_s"))
    empty: dict[str, Any] = {
        name: [] for name in ("ranks", "evaluations", "events", "foreseen", "choices", "hosts")
    }
    return {**figures, **none, **empty, "curve": curve, "config": {}, "model": {}, "params": {}}


def without_waiting(figures: dict[str, Any]) -> dict[str, Any]:
    """Ranks that do not tell how long they waited."""
    for times in figures["curve"]["ranks"]:
        times["wait_s"] = [None] * len(times["wait_s"])
    return figures


def nothing_known(folder: Path) -> dict[str, Any]:
    """As much of a run's figures as possible is missing, while it has steps."""
    figures = run_figures(folder)
    for name in ("step_s", "first_step_s", "tokens_per_second"):
        figures[name] = None
    for host in figures["hosts"]:
        host.update(dict.fromkeys(("rank", "device", "dtype", "threads", "torch", "python")))
    for event in figures["events"]:
        event.update(step=None, attempt=None)
    for times in figures["curve"]["ranks"]:
        # A rank that came with a later attempt.
        for values in times.values():
            values[:30] = [None] * 30
    return figures


FIGURES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "four ranks": lambda folder: run_figures(folder, ranks=4),
    "many steps": lambda folder: run_figures(folder, steps=2500),
    "one rank": lambda folder: run_figures(folder, ranks=1),
    "one step": lambda folder: run_figures(folder, steps=1),
    "no step": bare_figures,
    "few": lambda folder: few(run_figures(folder)),
    "no waiting": lambda folder: without_waiting(run_figures(folder)),
    "nothing known": nothing_known,
}


@pytest.mark.parametrize("kind", FIGURES)
def test_what_is_missing_is_left_out_or_said(opened: Opened, tmp_path: Path, kind: str) -> None:
    page = opened(FIGURES[kind](tmp_path / "run"))

    text = text_of(page)
    assert not [word for word in ACCIDENTS if word in text]
    require_quiet(page)
    assert page.run("document.querySelectorAll('main section').length") >= 2
    assert page.run("document.querySelectorAll('.plot:empty').length") == 0
    assert page.run("[...document.querySelectorAll('.reading')].every(e => e.textContent)") is True


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("kind", ["four ranks", "no step"])
def test_a_page_is_as_wide_as_its_window(
    opened: Opened, tmp_path: Path, width: int, kind: str
) -> None:
    page = opened(FIGURES[kind](tmp_path / "run"), width)

    assert page.run("document.documentElement.scrollWidth") <= page.run("innerWidth") == width


@pytest.mark.parametrize("is_dark", [False, True])
@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("kind", ["four ranks", "no step"])
def test_axe_finds_nothing_that_keeps_people_out(
    opened: Opened, tmp_path: Path, kind: str, width: int, is_dark: bool
) -> None:
    page = opened(FIGURES[kind](tmp_path / "run"), width, dark=is_dark)
    page.run("document.querySelectorAll('details').forEach(each => each.open = true)")
    page.run(AXE.read_text(encoding="utf-8"))

    found = page.run("axe.run().then(result => result.violations)")

    assert [
        (each["id"], each["impact"], [node["html"][:200] for node in each["nodes"]][:3])
        for each in found
        if each["impact"] in ("serious", "critical")
    ] == []


def test_charts_take_the_colours_of_the_system_while_the_page_is_open(
    opened: Opened, tmp_path: Path
) -> None:
    page = opened(run_figures(tmp_path / "run"))
    day = page.run(DRAWN)

    page.prefer("dark")
    page.settle()

    night = page.run(DRAWN)
    assert not set(day) & set(night)


def test_a_page_is_printed_in_the_colours_of_day(opened: Opened, tmp_path: Path) -> None:
    page = opened(run_figures(tmp_path / "run"), dark=True)
    night = page.run(DRAWN)

    page.run("dispatchEvent(new Event('beforeprint'))")
    page.settle()
    printed = page.run(DRAWN)
    paper = page.run("getComputedStyle(document.body).backgroundColor")
    page.run("dispatchEvent(new Event('afterprint'))")
    page.settle()

    assert not set(night) & set(printed)
    assert paper == "rgb(255, 255, 255)"
    assert page.run(DRAWN) == night


def test_the_command_is_copied_or_selected_to_be_copied(opened: Opened, tmp_path: Path) -> None:
    page = opened(run_figures(tmp_path / "run"))

    page.run("document.querySelector('.copied button').click()")
    # A browser without a window refuses its clipboard.
    said = page.run(
        """new Promise(done => {
            const node = document.getElementById('copy-said');
            if (node.textContent) done(node.textContent);
            new MutationObserver(() => done(node.textContent)).observe(node, {childList: true});
        })"""
    )

    selected = page.run("getSelection().toString().trim()")
    assert said == "copied" or (said.startswith("selected") and selected == "yoked train --depth=2")


def test_the_page_writes_quantities_as_the_commands_do(opened: Opened, tmp_path: Path) -> None:
    page = opened(bare_figures(tmp_path / "run"))
    values = [0, 1e-5, 0.00099, 0.05, 0.0999, 0.43, 7, 9.994, 9.996, 59.4, 59.6, 99.94, 125.3]
    values += [999.4, 999.6, 3599.6, 10_000, 36_700_290, 86_400 * 3 + 7000, 1.5e9, 2e13]

    for theirs, ours in (
        ("bytes", units.format_bytes),
        ("bytesPerS", units.format_bytes_per_s),
        ("count", units.format_count),
        ("duration", units.format_duration),
    ):
        found = page.run(f"{json.dumps(values)}.map(units.{theirs})")
        assert found == [ours(value) for value in values], theirs


def test_figures_that_cannot_be_compared_have_their_reasons(opened: Opened, tmp_path: Path) -> None:
    record = read_run(write_run(tmp_path / "night"))
    (tmp_path / "prog").mkdir()

    page = opened({**figures_of(record), "against": compare(record, read_run(tmp_path / "prog"))})

    require_quiet(page)
    told = text_of(page)
    assert "of prog it is not on record what it was told" in told
    assert "loss, validation and speed cannot be compared: prog has no steps on record" in told
