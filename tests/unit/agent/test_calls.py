"""Every call has its answer, and an agent that starts has loaded none of them."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import yoked
from yoked.agent.calls import MODULES

START = """
import sys
sys.path.insert(0, {!r})
import yoked.agent.__main__
print(sorted(set(sys.modules) & {{*sys.argv[1:]}}))
"""


@pytest.mark.parametrize("name", MODULES)
def test_a_call_is_answered_by_a_function_of_its_name(name: str) -> None:
    module = importlib.import_module(f"yoked.agent.{MODULES[name]}")

    assert callable(getattr(module, f"answer_{name}"))


def test_an_agent_starts_without_what_its_answers_need() -> None:
    root = str(Path(yoked.__file__).parent.parent)
    later = [f"yoked.agent.{module}" for module in MODULES.values()]

    done = subprocess.run(
        [sys.executable, "-E", "-s", "-S", "-c", START.format(root), *later, "dataclasses"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == "[]\n"
