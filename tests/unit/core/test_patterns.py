"""Patterns match as .gitignore's do, and none that comes from a host takes long."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from yoked.core.patterns import any_matches, pattern_flaw

PATHS = (
    *("a.pt", "out/a.pt", "out/b/c.pt", "out", "x/out/a.pt", "data/y.bin", "x/data/y.bin"),
    *("outer/a", "a/b", "a/x/b", "a/x/y/b", "b", "a/b/c"),
)
PATTERNS = (
    *("*.pt", "out/", "out", "/out", "out/*.pt", "/a.pt", "**/data/", "a/**/b", "a/**", "d?ta"),
    *("[ab].pt", "out/*", "x/**/*.pt", "**/c.pt", "*"),
)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not on this machine")
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_matches_what_git_would_ignore_by_it(tmp_path: Path, pattern: str) -> None:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    subprocess.run(["git", "init", "--quiet", tmp_path], env=env, check=True)
    (tmp_path / ".gitignore").write_text(f"{pattern}\n")
    asked = ["git", "-C", str(tmp_path), "check-ignore", "--no-index", "--stdin"]
    said = subprocess.run(
        asked, env=env, input="\n".join(PATHS), capture_output=True, text=True, check=False
    )

    assert {path for path in PATHS if any_matches([pattern], path)} == set(said.stdout.split())


@pytest.mark.parametrize(
    "pattern", ["", "/", "../x", "a/../b", "./a", "a//b", "!a", "~/a", "a\nb", "a\\b", "x" * 201]
)
def test_what_is_no_pattern_has_a_flaw(pattern: str) -> None:
    assert pattern_flaw(pattern)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_has_no_flaw(pattern: str) -> None:
    assert pattern_flaw(pattern) is None


def test_a_pattern_made_to_take_for_ever_does_not() -> None:
    # Each `**` and `*` could stand for any number of things: tried one by one, for centuries.
    assert not any_matches(["**/" * 60 + "b"], "/".join("a" * 200))
    assert not any_matches(["*a" * 99 + "b"], "a" * 200)
