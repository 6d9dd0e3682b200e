"""The tab key: in a real bash, with the script that yoked writes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.cli.terminal import Terminal

from yoked.cli.main import build_app, main

YOKED = "import sys; from yoked.cli.main import main; sys.exit(main(sys.argv[1:]))"
FLEET = """\
[[host]]
name = "attic"
interface = "eth0"

[[host]]
name = "barn"
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with `yoked` on the PATH, two runs, a job and a fleet; it is the current folder."""
    for run in ("evening", "night", "no name; rm -rf"):
        (tmp_path / "runs" / run).mkdir(parents=True)
        (tmp_path / "runs" / run / "run.json").write_text("{}")
    (tmp_path / "state/jobs/night.2").mkdir(parents=True)
    (tmp_path / "yoked.toml").write_text(FLEET)
    program = tmp_path / "bin" / "yoked"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{YOKED}\n")
    program.chmod(0o755)
    source = str(Path(__file__).parents[3] / "src")
    for name, value in {
        "HOME": str(tmp_path),
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": source,
        "YOKED_STATE": str(tmp_path / "state"),
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("ZSH", "ZSH_CUSTOM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def script() -> str:
    return build_app().generate_completion(shell="bash")


def completed(words: list[str], script: str) -> list[str]:
    """What bash proposes for the last of these words."""
    typed = " ".join(f"'{word}'" for word in words)
    program = (
        f"{script}\nCOMP_WORDS=({typed})\nCOMP_CWORD={len(words) - 1}\n_yoked\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "--noprofile"], input=program, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize(
    ("words", "proposed"),
    [
        (["yoked", "tra"], {"train", "trace"}),
        (["yoked", "data", "pre"], {"prepare"}),
        (["yoked", "train", "--max-s"], {"--max-seq-len"}),
        (["yoked", "train", "--sync", "int"], {"int8", "int4"}),
        (["yoked", "export", "--to", ""], {"safetensors", "nanochat"}),
        (["yoked", "sample", ""], {"evening", "night", "night.2"}),
        (["yoked", "attach", "ni"], {"night", "night.2"}),
        (["yoked", "chat", "--checkpoint", ""], {"latest", "best"}),
        (["yoked", "install", "--host", "b"], {"barn"}),
        (["yoked", "logs", "--host", ""], {"attic", "barn"}),
        (["yoked", "doctor", "--explain", "mt"], {"mtu"}),
        (["yoked", "plan", "--simulate", "two"], {"two-laptops"}),
        (["yoked", "lab", "up", "two-hosts-1g"], {"two-hosts-1gbe"}),
        (["yoked", "lab", "fault", "slow-l"], {"slow-link"}),
        (["yoked", "lab", "exec", ""], set()),
    ],
)
def test_bash_completes_commands_flags_values_runs_and_hosts(
    home: Path, script: str, words: list[str], proposed: set[str]
) -> None:
    assert set(completed(words, script)) == proposed


def test_a_fleet_that_cannot_be_read_proposes_nothing(home: Path, script: str) -> None:
    (home / "yoked.toml").write_text("no fleet")
    assert completed(["yoked", "install", "--host", ""], script) == []


def test_runs_of_another_folder_are_proposed_once_it_was_named(home: Path, script: str) -> None:
    (home / "runs").rename(home / "elsewhere")
    words = ["yoked", "sample", "--runs-dir", "elsewhere", "ev"]
    assert completed(words, script) == ["evening"]


@pytest.fixture
def bash() -> Iterator[Callable[[], Terminal]]:
    """Starts an interactive bash with the home's ~/.bashrc."""
    started: list[Terminal] = []

    def start() -> Terminal:
        started.append(Terminal(["bash", "--noprofile", "-i"], INPUTRC="/dev/null"))
        return started[-1]

    yield start
    for each in started:
        each.close()


def test_what_was_installed_works_at_the_next_start_of_bash(
    home: Path, bash: Callable[[], Terminal], capsys: pytest.CaptureFixture[str]
) -> None:
    (home / ".bashrc").write_text("PS1='ready> '\n")

    assert main(["--install-completion", "--shell", "bash", "--json"]) == 0
    script = json.loads(capsys.readouterr().out)["path"]
    assert main(["--install-completion", "--shell", "bash"]) == 0

    # The one line names the script twice.
    assert (home / ".bashrc").read_text().count(script) == 2
    terminal = bash()
    terminal.until("ready> ")
    terminal.type("yoked exp\t")
    terminal.until("export ")
    terminal.type("even\t")
    terminal.until("evening")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh")
@pytest.mark.parametrize("before", ["", "autoload -Uz compinit && compinit -i\n"])
def test_what_was_installed_works_at_the_next_start_of_zsh(home: Path, before: str) -> None:
    (home / ".zshrc").write_text(f"PS1='ready> '\n{before}")
    for _ in range(2):
        assert main(["--install-completion", "--shell", "zsh"]) == 0

    assert (home / ".zshrc").read_text().count("compinit -i") == 1
    terminal = Terminal(["zsh", "-i"], ZDOTDIR=str(home))
    try:
        terminal.until("ready> ")
        terminal.type("yoked exp\t")
        terminal.until("export ")
    finally:
        terminal.close()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shells_script_is_printed_and_one_that_it_reads(
    home: Path, capsys: pytest.CaptureFixture[str], shell: str
) -> None:
    assert main(["--install-completion", "--print", "--shell", shell]) == 0

    said = capsys.readouterr().out
    assert "__complete" in said
    assert not (home / ".bashrc").exists()
    if (program := shutil.which(shell)) is not None:
        subprocess.run([program, "-n"], input=said, text=True, check=True)


def test_a_home_that_cannot_be_written_to_is_told(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / ".local").write_text("a file")
    assert main(["--install-completion", "--shell", "bash"]) == 1
    assert "--print" in capsys.readouterr().err


def test_a_shell_asks_without_loading_other_commands(home: Path) -> None:
    program = (
        "import sys; from yoked.cli.main import main\nmain(['__complete', 'sample', ''])\n"
        "print(sorted(m for m in sys.modules if m.startswith('yoked.cli.commands.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "['yoked.cli.commands.sample']"
