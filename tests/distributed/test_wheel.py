"""The wheel, in an environment of its own: it looks on without torch, and trains with its extra.

One environment for all: tests with torch come after those without.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.unit.test_dist import build, the_wheel

from yoked.lab.pytest_plugin import why_not

pytestmark = pytest.mark.distributed

TINY = (
    *("--depth=1", "--max-seq-len=64", "--device-batch-size=1", "--total-batch-size=128"),
    *("--vocab-size=512", "--num-iterations=3", "--eval-every=-1", "--dtype=float32"),
    *("--data=text", "--ranks=2"),
)
LIMIT_S = 300
UNREACHABLE = re.compile(r"connection broken|NameResolutionError|Network is unreachable")


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and the folder in which its `yoked` is called."""

    folder: Path
    wheel: Path

    def pip(self, line: str) -> None:
        """Carry out a line of pip's. Bytecode would take a third of the time."""
        done = subprocess.run(
            [*shlex.split(line), "--quiet", "--no-compile"],
            capture_output=True,
            text=True,
            check=False,
        )
        if UNREACHABLE.search(done.stderr):
            pytest.skip("pip reaches no index")
        assert done.returncode == 0, done.stderr

    def yoked(self, *argv: str, status: int = 0, cwd: Path | None = None) -> str:
        """Call it as a person does; returns stdout."""
        done = subprocess.run(
            [self.folder / "bin" / "yoked", *argv],
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
            cwd=cwd,
            env=self._surroundings(),
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    def _surroundings(self) -> dict[str, str]:
        # Nothing of the checkout may help.
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        own = {name: str(self.folder / name) for name in ("YOKED_CACHE", "YOKED_DATA_HOME")}
        return {**kept, **own}


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel alone."""
    folder = tmp_path_factory.mktemp("env")
    wheel = the_wheel(build(Path(__file__).parents[2], tmp_path_factory.mktemp("dist")))
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    environment = Environment(folder, wheel)
    environment.pip(f"{folder}/bin/python -m pip install {shlex.quote(str(wheel))}")
    return environment


@pytest.fixture(scope="module")
def trainer(controller: Environment) -> Environment:
    """The same with the extra, by the very line that an error names."""
    problem = json.loads(controller.yoked("data", "list", "--json", status=1))["error"]
    controller.pip(problem["fix"][0])
    return controller


def test_a_wheel_without_torch_runs_what_needs_none(
    controller: Environment, tmp_path: Path
) -> None:
    assert not list(controller.folder.glob("lib/*/site-packages/torch"))
    assert "Usage: yoked" in controller.yoked("--help")

    controller.yoked("init", ".", cwd=tmp_path)
    planned = json.loads(controller.yoked("plan", "--simulate", "two-laptops", "--json"))

    assert (tmp_path / "yoked.toml").exists()
    assert planned["chosen"]


@pytest.mark.parametrize("argv", [["data", "list"], ["data", "prepare"]])
def test_a_command_that_needs_torch_names_the_line_that_brings_it(
    controller: Environment, argv: list[str], tmp_path: Path
) -> None:
    said = controller.yoked(*argv, "--json", status=1, cwd=tmp_path)

    error = json.loads(said)["error"]
    assert error["code"] == "extra-missing"
    assert error["fix"][0] == (
        f"{controller.folder}/bin/python -m pip install '{controller.wheel}[train]'"
    )


def test_training_without_torch_names_the_environment_to_make(
    controller: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In who tests, there may be a python3 that has torch.
    monkeypatch.setenv("PATH", os.defpath)
    error = json.loads(controller.yoked("train", "--json", status=1, cwd=tmp_path))["error"]

    assert (error["code"], error["fix"]) == ("torch-missing", ["yoked install --host ."])


def test_a_wheel_without_torch_brings_a_lab_up_and_finds_its_hosts(
    controller: Environment,
) -> None:
    if (reason := why_not()) is not None:
        pytest.skip(f"no lab on this machine: {reason}")
    up = json.loads(controller.yoked("lab", "up", "two-hosts-1gbe", "--json"))
    try:
        looked = json.loads(controller.yoked("hosts", "--fleet", up["fleet"], "--json"))
    finally:
        controller.yoked("lab", "down")

    assert [(host["name"], host["up"]) for host in looked["hosts"]] == [
        ("alpha", True),
        ("beta", True),
    ]


def test_a_wheel_with_its_extra_trains_and_writes(trainer: Environment, tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    for number in range(20):
        words = " ".join(f"w{number * word % 97}" for word in range(2000))
        (tmp_path / "text" / f"{number}.txt").write_text(words)

    result = json.loads(trainer.yoked("train", *TINY, "--json", cwd=tmp_path))
    trainer.yoked("sample", "--max-tokens=4", cwd=tmp_path)

    assert result["steps"] == 3
    assert len(result["hosts"]) == 1
    assert (tmp_path / result["plot"]).exists()
