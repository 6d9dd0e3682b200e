"""The results of programs.py as tables in Markdown, one for each version of torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_HEAD = ("program", "with", "it", "weights of both ranks", "what yoked said")


def table(results: Path, titles: Mapping[str, str]) -> str:
    """All tables. titles: of the programs, in the order of their rows, by name."""
    folders = sorted(results.glob("torch-*")) or [results / "torch"]
    return "\n\n".join("\n".join(_lines(folder, titles)) for folder in folders)


def _lines(folder: Path, titles: Mapping[str, str]) -> Iterator[str]:
    yield f"**{folder.name.replace('-', ' ')}**"
    yield ""
    yield _row(*_HEAD)
    yield "|---" * len(_HEAD) + "|"
    for name, title in titles.items():
        file = folder / f"{name}.json"
        if file.exists():
            yield _row(title, *_cells(json.loads(file.read_text(encoding="utf-8"))))
        else:
            yield _row(title, "", "not run yet", "", "")


def _cells(found: Mapping[str, Any]) -> tuple[str, ...]:
    """What stands in the row of a program behind its title."""
    used = [f"{name} {has}" for name, has in found["versions"].items() if has and name != "torch"]
    state = found["state"] if found["as_expected"] else f"**{found['state']}, not as expected**"
    said = "<br>".join(_escaped(line.removeprefix("yoked: ")) for line in found["said"])
    return ", ".join(used), state, _weights(found), said


def _weights(found: Mapping[str, Any]) -> str:
    if calls := found.get("calls"):
        failed = sorted({name for each in calls for name in each["failed"]})
        right = f"none to compare: {calls[0]['tried'] - len(failed)} of {calls[0]['tried']} calls"
        return f"{right} are right" + (f"; wrong: {', '.join(failed)}" if failed else "")
    weights = found.get("weights")
    if weights is None:
        return ""
    if weights["equal"]:
        return f"equal after each of {weights['steps']} steps"
    return str(weights["verdict"].removeprefix("weights "))


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
