"""Small packages that the program imports ask hosts for settings too, and hosts are compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from yoked.doctor.package_asks import asks_of, with_asks, with_places
from yoked.doctor.rank_probes import RankProbe

AT = "/opt/venv/lib/python3.11/site-packages/rowscale.py"
# The package of a lab, as it was found.
ROWSCALE = (
    "import json, os\nSCALE = 1.0\n"
    "at = os.path.expanduser('~/.config/rowscale.json')\n"
    "if os.path.exists(at):\n    SCALE = float(json.load(open(at))['scale'])\n"
)


class Told:
    """A rank that tells these sources."""

    def __init__(self, sources: Any) -> None:
        self.sources = sources

    def await_any(self, *_: str, **__: float) -> Mapping[str, Any]:
        return {"asking": self.sources}


def rank(sources: Any) -> RankProbe:
    return cast(RankProbe, Told(sources))


def test_a_settings_file_of_a_package_is_asked_for_with_its_line() -> None:
    assert asks_of({AT: ROWSCALE})["reads"] == {"~/.config/rowscale.json": f"{AT}:4"}


@pytest.mark.parametrize(
    ("line", "settings", "reads"),
    [
        ("os.environ['ROWS_SCALE']", ["ROWS_SCALE"], []),
        ("os.getenv('ROWS_SCALE', '1')", ["ROWS_SCALE"], []),
        ("os.path.exists('/etc/rowscale/settings.toml')", [], ["/etc/rowscale/settings.toml"]),
        ("open(Path.home() / '.rowscalerc')", [], ["~/.rowscalerc"]),
        ("open(os.path.expanduser('~/.rowscale/config.yaml'))", [], ["~/.rowscale/config.yaml"]),
        # What is each host's own, a login's or the system's.
        ("os.getenv('https_proxy', os.getenv('NO_COLOR'))", [], []),
        ("open(os.path.expanduser('~/.netrc'))", [], []),
        ("open(os.path.expanduser('~/.cache/rowscale/index'))", [], []),
        ("open('/etc/os-release')", [], []),
        ("open('/srv/big/rows.txt')", [], []),
        # What it makes itself.
        ("open(os.path.expanduser('~/.rowscale'), 'w')", [], []),
    ],
)
def test_of_a_package_counts_what_somebody_may_have_set(
    line: str, settings: list[str], reads: list[str]
) -> None:
    found = asks_of({AT: f"import os\nfrom pathlib import Path\n{line}\n"})

    assert (list(found["settings"]), list(found["reads"])) == (settings, reads)


@pytest.mark.parametrize(
    "sources",
    [None, ["x"], {"rowscale.py": ROWSCALE}, {AT: 3}, {f"{AT}\n": ROWSCALE}, {AT: "(" * 100_000},
     {AT: "x" * 300_000}],
)  # fmt: skip
def test_what_is_no_source_asks_for_nothing(sources: Any) -> None:
    assert not any(asks_of(sources).values())


def test_a_host_is_asked_for_the_program_first_and_its_places_stay() -> None:
    own = {"reads": {"~/.config/rowscale.json": "train.py:3"}, "settings": {"ROWS": "train.py:4"}}
    more = {AT: ROWSCALE + "os.getenv('ROWS', '1')\nos.getenv('SCALE', '1')\n"}

    asked = with_asks({"files": ["/rows"], "ports": ["8000"]}, rank(more))
    places = with_places(own, [rank(more), None])

    assert asked == {
        "files": ["/rows", "~/.config/rowscale.json"],
        "ports": ["8000"],
        "variables": ["ROWS", "SCALE"],
    }
    assert places["reads"] == own["reads"]
    assert places["settings"] == {"ROWS": "train.py:4", "SCALE": f"{AT}:7"}
