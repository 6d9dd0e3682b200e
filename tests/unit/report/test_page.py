from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.unit.report.run_folders import HOSTILE, bare_figures, run_figures

from yoked.report.page import page_of, write_page


class Parsed(HTMLParser):
    """The elements of a page, with their attributes and the text in each that is no markup."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.comments: list[str] = []
        self._open = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = tag
        if tag in ("script", "style", "title"):
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open in self.texts:
            self.texts[self._open][-1] += data

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    @property
    def policy(self) -> dict[str, list[str]]:
        """The sources of each directive."""
        [content] = [
            attributes["content"] or ""
            for tag, attributes in self.elements
            if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
        ]
        return {each.split()[0]: each.split()[1:] for each in content.split("; ")}

    @property
    def figures(self) -> dict[str, Any]:
        """What the script of the page will read."""
        [place] = [
            place
            for place, attributes in enumerate(
                attributes for tag, attributes in self.elements if tag == "script"
            )
            if attributes.get("type") == "application/json"
        ]
        found: dict[str, Any] = json.loads(self.texts["script"][place])
        return found


def hashed(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@pytest.mark.parametrize(("ranks", "steps"), [(1, 60), (2, 1), (4, 60)])
def test_a_page_has_all_figures_of_its_run(tmp_path: Path, ranks: int, steps: int) -> None:
    figures = run_figures(tmp_path / "run", ranks, steps)

    assert Parsed(page_of(figures)).figures == json.loads(json.dumps(figures))


def test_a_run_of_which_nothing_is_on_record_has_a_page(tmp_path: Path) -> None:
    figures = bare_figures(tmp_path / "run")

    assert Parsed(page_of(figures)).figures == json.loads(json.dumps(figures))


def test_the_policy_allows_what_stands_in_the_page_and_nothing_else(tmp_path: Path) -> None:
    page = Parsed(page_of(run_figures(tmp_path / "run")))

    scripts = [each for each in page.texts["script"] if not each.startswith("{")]
    assert len(scripts) == len(page.texts["script"]) - 1
    assert page.policy == {
        "default-src": ["'none'"],
        "style-src": [*map(hashed, page.texts["style"])],
        "script-src": [*map(hashed, scripts)],
        "base-uri": ["'none'"],
        "form-action": ["'none'"],
    }


def test_nothing_in_a_page_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    page = Parsed(page_of(run_figures(tmp_path / "run")))

    loading = {"src", "srcset", "data", "poster", "background", "action", "style"}
    assert not [each for each in page.elements if loading & set(each[1])]
    assert {each[1]["href"] for each in page.elements if "href" in each[1]} == {"#main"}
    assert not {"link", "iframe", "object", "embed", "img", "base"} & {
        tag for tag, _ in page.elements
    }
    assert not re.search(r"@import|url\(", "".join(page.texts["style"]))


def test_hostile_words_neither_end_their_element_nor_become_one(tmp_path: Path) -> None:
    plain = page_of(run_figures(tmp_path / "plain"))
    hostile = page_of(run_figures(tmp_path / "hostile", name=HOSTILE, host=HOSTILE))

    assert "<img" not in hostile
    assert "\u202e" not in hostile
    assert [tag for tag, _ in Parsed(hostile).elements] == [
        tag for tag, _ in Parsed(plain).elements
    ]
    assert Parsed(hostile).comments == Parsed(plain).comments
    assert Parsed(hostile).policy == Parsed(plain).policy
    # What would turn text around is shown instead.
    shown = HOSTILE.replace("\u2028", "\\u2028").replace("\u202e", "\\u202e")
    assert Parsed(hostile).figures["run"] == shown
    assert Parsed(hostile).texts["title"] == [f"{shown} — yoked report"]


def test_figures_that_json_lacks_are_words(tmp_path: Path) -> None:
    figures = run_figures(tmp_path / "run")
    figures["config"] = {"duration": float("inf"), "half": "\ud800"}

    assert Parsed(page_of(figures)).figures["config"] == {"duration": "inf", "half": "\\ud800"}


def test_a_page_is_written_in_the_place_of_the_one_before(tmp_path: Path) -> None:
    figures = run_figures(tmp_path / "run")
    place = tmp_path / "report.html"
    place.write_text("before")

    write_page(figures, place)

    assert place.read_text(encoding="utf-8") == page_of(figures)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["report.html", "run"]
