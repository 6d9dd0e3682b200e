"""What travels is what git would take, once, and it is on the host as it was here."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.failures import raises_fault

import yoked
from yoked.agent import files
from yoked.agent.folders import FOLDER, LINK, PROGRAM, answer_folder_put, pack_entries
from yoked.agent.server import Call
from yoked.errors import UsageError
from yoked.launch import gitignore, trees, walk
from yoked.launch.blobs import push_blobs
from yoked.launch.trees import Tree, package_tree, push_tree
from yoked.remote.client import AgentClient
from yoked.remote.transport import connect_here


def put(folder: Path, name: str, content: str = "x\n") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def names(folder: Path) -> set[str]:
    return {entry.path for entry in Tree.scan(folder).entries}


def git(folder: Path, *words: str) -> str:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout


def what_git_takes(folder: Path) -> set[str]:
    said = git(folder, "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    return set(said.split("\0")) - {""}


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not on this machine")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    folder = tmp_path / "program"
    put(folder, "train.py", "print('hello')\n")
    put(folder, "pkg/model.py", "WIDTH = 64\n")
    return folder


@pytest.fixture
def agent() -> Iterator[AgentClient]:
    with connect_here(host="attic") as client:
        yield client


@needs_git
def test_what_git_ignores_stays(tmp_path: Path) -> None:
    put(tmp_path, ".gitignore", "*.log\n!keep.log\n/build\ndata/**\n!data/keep\ncache/\n\\#odd\n")
    put(tmp_path, "deep/.gitignore", "!important.log\nlocal.*\n*.tmp \n")
    put(tmp_path, ".git/info/exclude", "secret\n")
    for name in (
        *("a.log", "keep.log", "build/x", "src/build/x", "data/keep", "data/x", "cache/keep"),
        *("deep/a.log", "deep/important.log", "deep/local.cfg", "deep/er/local.x", "deep/x.tmp"),
        *("secret", "sub/secret", "#odd", "ordinary file", "ünïcode"),
    ):
        put(tmp_path, name)
    shutil.rmtree(tmp_path / ".git")
    git(tmp_path, "init", "--quiet")
    put(tmp_path, ".git/info/exclude", "secret\n")

    assert names(tmp_path) == what_git_takes(tmp_path)


@needs_git
def test_nothing_of_the_folders_repository_runs(tmp_path: Path) -> None:
    folder = tmp_path / "program"
    put(folder, "train.py")
    git(folder, "init", "--quiet")
    trap = put(tmp_path, "trap", f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    trap.chmod(0o755)
    for key in ("core.fsmonitor", "core.pager", "core.sshCommand", "filter.x.clean"):
        git(folder, "config", key, str(trap))
    put(folder, ".gitattributes", "* filter=x\n")
    hooks = folder / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for hook in ("post-index-change", "fsmonitor-watchman"):
        shutil.copy(trap, hooks / hook)

    assert names(folder) == {"train.py", ".gitattributes"}
    assert not (tmp_path / "ran").exists()


@needs_git
def test_variables_of_another_repository_do_not_count(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "elsewhere"))

    assert names(program) == {"train.py", "pkg/model.py"}


@needs_git
def test_a_folder_may_be_named_by_a_link_in_another_repository(
    program: Path, tmp_path: Path
) -> None:
    put(program, ".gitignore", "*.log\n")
    put(program, "a.log")
    (tmp_path / "repository").mkdir()
    git(tmp_path / "repository", "init", "--quiet")
    (tmp_path / "repository" / "link").symlink_to(program)

    assert names(tmp_path / "repository" / "link") == {"train.py", "pkg/model.py", ".gitignore"}


@needs_git
def test_a_repository_inside_travels_by_its_own_rules(program: Path) -> None:
    put(program, ".gitignore", "*.log\n")
    put(program, "nanochat/base.py")
    put(program, "nanochat/.gitignore", "*.bin\n")
    put(program, "nanochat/weights.bin")
    git(program / "nanochat", "init", "--quiet")

    found = names(program)

    assert {name for name in found if name.startswith("nanochat/")} == {
        "nanochat/base.py",
        "nanochat/.gitignore",
    }


@needs_git
@pytest.mark.skipif(os.getuid() == 0, reason="root reads every folder")
def test_a_folder_that_cannot_be_read_is_named(program: Path) -> None:
    put(program, "closed/file")
    (program / "closed").chmod(0)

    with pytest.raises(UsageError) as caught:
        Tree.scan(program)
    assert "closed" in caught.value.what


def test_without_git_all_travels_but_what_no_program_needs(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(program, ".gitignore", "*.log\n")
    put(program, "a.log")
    put(program, "node_modules/x/index.js")
    put(program, "env/pyvenv.cfg")
    put(program, ".git/config")
    (program / "link").symlink_to("pkg")
    monkeypatch.setattr(gitignore.shutil, "which", lambda name: None)

    assert names(program) == {"train.py", "pkg/model.py", ".gitignore", "a.log", "link"}


@needs_git
def test_rules_of_the_repository_hold_in_a_folder_of_it(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    put(tmp_path, ".gitignore", "*.bin\n/project/left\n")
    for name in ("train.py", "weights.bin", "left"):
        put(tmp_path / "project", name)

    assert names(tmp_path / "project") == {"train.py"}


def test_what_belongs_to_this_machine_stays(program: Path) -> None:
    put(program, ".git/config")
    put(program, "pkg/__pycache__/model.pyc")
    put(program, "env/pyvenv.cfg")
    put(program, "env/lib/x.py")
    put(program, "runs/first/metrics.jsonl", "{}\n")
    os.mkfifo(program / "pipe")

    assert names(program) == {"train.py", "pkg/model.py"}


def test_what_yoked_keeps_stays(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The key to a lab's hosts, for one.
    put(program, "state/lab/home/id")
    put(program, "cache/blobs/00")
    monkeypatch.setenv("YOKED_STATE", str(program / "state"))
    monkeypatch.setenv("YOKED_CACHE", str(program / "cache"))

    assert names(program) == {"train.py", "pkg/model.py"}


def test_a_folder_called_runs_that_holds_none_travels(program: Path) -> None:
    put(program, "runs/config.toml")

    assert "runs/config.toml" in names(program)


def test_links_inside_stay_links_and_others_are_followed(program: Path, tmp_path: Path) -> None:
    put(tmp_path, "outside/sub/data.txt", "data\n")
    (program / "inside").symlink_to("pkg/model.py")
    (program / "pkg" / "up").symlink_to("../train.py")
    (program / "nowhere").symlink_to("/no/such/file")
    (program / "file").symlink_to("../outside/sub/data.txt")
    (program / "folder").symlink_to(tmp_path / "outside")
    (program / "outside-up").symlink_to(tmp_path)

    found = {entry.path: entry for entry in Tree.scan(program).entries}

    kept = {name: entry.content for name, entry in found.items() if entry.kind == LINK}
    assert kept == {
        "inside": "pkg/model.py",
        "pkg/up": "../train.py",
        "nowhere": "/no/such/file",
    }
    assert found["file"].content == found["folder/sub/data.txt"].content
    # What leads up is followed, but not round.
    assert {name for name in found if name.startswith("outside-up/")} == {
        "outside-up/outside/sub/data.txt"
    }


def test_a_link_to_an_empty_folder_elsewhere_is_an_empty_folder_there(
    program: Path, tmp_path: Path
) -> None:
    (tmp_path / "disk" / "logs").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    (program / "out").symlink_to(tmp_path / "empty")
    (program / "more").symlink_to(tmp_path / "disk")

    folders = {each.path for each in Tree.scan(program).entries if each.kind == FOLDER}

    assert folders == {"out", "more/logs"}


def test_a_link_to_the_folder_itself_is_not_followed(program: Path) -> None:
    (program / "pkg" / "round").symlink_to(program.absolute())

    assert names(program) == {"train.py", "pkg/model.py"}


@needs_git
def test_an_empty_folder_travels_unless_gits_rules_leave_it_out(
    program: Path, agent: AgentClient
) -> None:
    for name in ("out", "plots/deep", "pkg/logs", "cache", ".git", "node_modules/x", "venv/lib"):
        (program / name).mkdir(parents=True)
    put(program, "venv/pyvenv.cfg")
    put(program, ".gitignore", "cache/\n")
    tree = Tree.scan(program)

    remote = push_tree(agent, tree)

    folders = {each.path for each in tree.entries if each.kind == FOLDER}
    assert folders == {"out", "plots/deep", "pkg/logs"}
    assert list(Path(remote, "plots", "deep").iterdir()) == []
    assert "3 files" in tree.lines()[0]
    assert tree.to_dict()["files"] == 3


def test_without_git_an_empty_folder_travels_too(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gitignore, "has_git", lambda: False)
    (program / "out").mkdir()
    (program / ".cache" / "x").mkdir(parents=True)

    assert "out" in names(program)
    assert ".cache/x" not in names(program)


def test_a_program_keeps_its_mode(program: Path) -> None:
    (program / "train.py").chmod(0o755)

    kinds = {entry.path: entry.kind for entry in Tree.scan(program).entries}

    assert [name for name, kind in kinds.items() if kind == PROGRAM] == ["train.py"]


def test_a_tree_is_known_by_content_path_and_mode_alone(program: Path, tmp_path: Path) -> None:
    first = Tree.scan(program).digest
    copy = shutil.copytree(program, tmp_path / "copy", copy_function=shutil.copyfile)

    assert Tree.scan(copy).digest == first
    (copy / "train.py").chmod(0o755)
    with_mode = Tree.scan(copy).digest
    (copy / "train.py").rename(copy / "test.py")
    with_name = Tree.scan(copy).digest
    put(copy, "test.py", "changed\n")
    with_content = Tree.scan(copy).digest
    assert len({first, with_mode, with_name, with_content}) == 4


def test_a_folder_with_too_much_in_it_names_the_largest(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "LIMIT_BYTES", 10_000)
    put(program, "checkpoints/step1/weights", "w" * 8_000)
    put(program, "shards.bin", "s" * 3_000)

    with pytest.raises(UsageError) as problem:
        Tree.scan(program)

    assert "checkpoints/ (8.00 kB), shards.bin (3.00 kB)" in problem.value.what
    assert str(program / ".gitignore") in problem.value.fix[0]


def test_a_folder_with_too_many_files_is_refused(
    program: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr(trees, "LIMIT_FILES", 1)

    with pytest.raises(UsageError) as caught:
        Tree.scan(program)
    assert str(caught.value) == snapshot


@needs_git
def test_a_folder_of_which_nothing_would_travel_is_named(
    program: Path, snapshot: SnapshotAssertion
) -> None:
    put(program, ".gitignore", "*\n")

    with pytest.raises(UsageError) as caught:
        Tree.scan(program)
    assert str(caught.value) == snapshot


def test_what_is_no_folder_is_named(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(UsageError) as caught:
        Tree.scan(tmp_path / "nothing")
    assert str(caught.value) == snapshot


class Watched:
    """An agent whose calls are written down."""

    def __init__(self, agent: AgentClient) -> None:
        self.host = agent.host
        self.calls: list[str] = []
        self.sent_files = 0
        self._agent = agent

    def call(self, name: str, **more: Any) -> Any:
        self.calls.append(name)
        self.sent_files += len(more.get("files", ()))
        return self._agent.call(name, **more)


def test_a_tree_is_sent_once(program: Path, agent: AgentClient) -> None:
    watched: Any = Watched(agent)
    tree = Tree.scan(program)

    first = push_tree(watched, tree)
    watched.calls.clear()
    second = push_tree(watched, Tree.scan(program))

    assert first == second
    assert watched.calls == ["folder_here"]
    assert (Path(first) / "pkg" / "model.py").read_text() == "WIDTH = 64\n"


def test_of_a_tree_that_changed_only_the_change_is_sent(program: Path, agent: AgentClient) -> None:
    push_tree(agent, Tree.scan(program))
    put(program, "train.py", "print('changed')\n")
    watched: Any = Watched(agent)

    folder = push_tree(watched, Tree.scan(program))

    assert watched.sent_files == 1
    assert (Path(folder) / "train.py").read_text() == "print('changed')\n"


def test_large_files_travel_in_pieces_with_progress(
    program: Path, agent: AgentClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yoked.launch.blobs.LARGE_BYTES", 1000)
    monkeypatch.setattr("yoked.launch.blobs.PIECE_BYTES", 2500)
    (program / "weights").write_bytes(os.urandom(10_000))
    told: list[tuple[int, int | None]] = []

    class Recorder:
        def update(self, stage: str, done: int, total: int | None, unit: str) -> None:
            told.append((done, total))

    tree = Tree.scan(program)
    folder = push_tree(agent, tree, Recorder())

    assert (Path(folder) / "weights").read_bytes() == (program / "weights").read_bytes()
    assert told[-1] == (tree.size_bytes, tree.size_bytes)
    assert len(told) == 5


def test_a_large_file_that_has_arrived_and_has_no_name_yet_gets_it(
    program: Path, agent: AgentClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yoked.launch.blobs.LARGE_BYTES", 1000)
    (program / "weights").write_bytes(os.urandom(10_000))
    tree = Tree.scan(program)
    digest = next(each.content for each in tree.entries if each.path == "weights")
    # Another controller's agent still hashes it, or was killed while it did.
    part = files.blob_path(digest).with_name(f".{digest}.part")
    part.parent.mkdir(parents=True)
    shutil.copyfile(program / "weights", part)

    folder = push_tree(agent, tree)

    assert (Path(folder) / "weights").read_bytes() == (program / "weights").read_bytes()


def test_a_file_that_changes_while_it_is_sent_is_refused(program: Path, agent: AgentClient) -> None:
    tree = Tree.scan(program)
    put(program, "train.py", "another program\n")

    with raises_fault("transfer-damaged"):
        push_tree(agent, tree)


def test_a_file_that_is_gone_when_it_is_sent_is_named(
    program: Path, agent: AgentClient, snapshot: SnapshotAssertion
) -> None:
    tree = Tree.scan(program)
    (program / "train.py").unlink()

    with pytest.raises(UsageError) as caught:
        push_tree(agent, tree)
    assert str(caught.value) == snapshot


def test_two_controllers_send_the_same_tree_at_once(program: Path) -> None:
    for number in range(40):
        put(program, f"file{number}", f"{number}\n" * 1000)
    tree = Tree.scan(program)
    folders: list[str] = []

    def push() -> None:
        with connect_here() as client:
            folders.append(push_tree(client, tree))

    threads = [threading.Thread(target=push) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(folders) == 4
    assert len(set(folders)) == 1
    assert names(Path(folders[0])) == names(program)


def test_a_blob_that_is_replaced_while_it_is_linked_is_no_lost_one(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replaced(source: Path, target: Path) -> None:
        # link(2) on an inode that has no name any more, although another one has it.
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", source)

    tree = Tree.scan(program)
    with connect_here() as client:
        push_blobs(client, tree.files())
    monkeypatch.setattr(os, "link", replaced)
    asked = {"place": "trees", "label": tree.digest, "keep_blobs": True}
    entries = pack_entries([entry.to_list() for entry in tree.entries])

    folder = answer_folder_put(Call(1, asked, entries, SimpleNamespace()))  # type: ignore[arg-type]

    assert names(Path(folder)) == names(program)


def test_the_oldest_python_takes_and_copies_a_tree(
    program: Path, tmp_path: Path, old_python: Callable[[], str]
) -> None:
    (program / "link").symlink_to("train.py")
    (program / "out").mkdir()
    tree = Tree.scan(program)

    python, work = old_python(), tmp_path / "work"
    with connect_here(python=python) as client:
        push_tree(client, tree)
    copy = (
        "import sys; from pathlib import Path; from yoked.agent.folders import checkout_tree; "
        "checkout_tree(sys.argv[1], Path(sys.argv[2]))"
    )
    source = str(Path(yoked.__file__).parents[1])
    subprocess.run(
        [python, "-c", copy, tree.digest, str(work)],
        env={**os.environ, "PYTHONPATH": source},
        check=True,
    )

    assert Tree.scan(work).digest == tree.digest
    assert (work / "train.py").read_text() == "print('hello')\n"


@pytest.fixture
def old_python() -> Callable[[], str]:
    def find() -> str:
        candidates = [
            shutil.which("python3.9"),
            *Path.home().glob(".pyenv/versions/3.9*/bin/python3.9"),
        ]
        for path in filter(None, candidates):
            if (
                subprocess.run([path, "--version"], capture_output=True, check=False).returncode
                == 0
            ):
                return str(path)
        pytest.skip("python3.9 is not on this machine")

    return find


def test_hosts_run_the_yoked_that_is_here(agent: AgentClient) -> None:
    folder = push_tree(agent, package_tree())

    found = subprocess.run(
        [sys.executable, "-c", "import yoked.journal; print(yoked.__file__)"],
        env={**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert found.stdout.strip() == f"{folder}/yoked/__init__.py"
    assert (
        Path(folder, "yoked/train/kernels/elementwise.c").read_bytes()
        == (Path(yoked.__file__).parent / "train/kernels/elementwise.c").read_bytes()
    )
    assert Path(folder, "yoked/report/figures.py").is_file()
    assert not Path(folder, "yoked/report/page").exists()


def test_a_folder_that_yoked_made_may_be_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr(trees, "LIMIT_BYTES", 10)
    put(tmp_path, "model.pt", "more than ten bytes")

    with pytest.raises(UsageError) as caught:
        Tree.scan(tmp_path)
    assert str(caught.value) == snapshot
    assert [entry.path for entry in Tree.scan(tmp_path, is_limited=False).entries] == ["model.pt"]


@needs_git
def test_what_stays_here_is_counted_with_the_largest_of_it(
    program: Path, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    put(program, ".gitignore", "*.bin\ndata\n")
    put(program, "weights.bin", "w" * 5000)
    put(tmp_path, "shelf/a/rows", "r" * 9000)
    (program / "data").symlink_to(tmp_path / "shelf")
    put(program, "nanochat/.gitignore", "cache/\n")
    put(program, "nanochat/cache/x", "c" * 70)
    git(program / "nanochat", "init", "--quiet")
    # Nobody misses these.
    for name in ("pkg/__pycache__/m.bin", "env/pyvenv.cfg", "env/x.bin", ".tox/x.bin"):
        put(program, name)
    put(program, "runs/first/metrics.jsonl", "{}\n")

    tree = Tree.scan(program)

    assert tree.left.largest == (("data/", 9000), ("weights.bin", 5000), ("nanochat/", 70))
    assert (tree.left.files, tree.left.size_bytes) == (3, 14_070)
    assert "\n".join(tree.lines()) == snapshot


@needs_git
def test_a_file_that_hides_a_module_of_pythons_is_told(program: Path) -> None:
    put(program, "queue.py", "class Waiting: pass")
    put(program, "deep/random.py", "")

    said = [line for line in Tree.scan(program).lines() if "hides the installed" in line]

    assert [line.split()[0] for line in said] == ["queue.py"]


@needs_git
def test_a_pointer_of_git_lfs_is_told_before_it_travels(program: Path) -> None:
    before = Tree.scan(program).lines()
    for name in ("scales.txt", "table.npy"):
        (program / name).write_text("version https://git-lfs.github.com/spec/v1\nsize 16\n")

    said = [line for line in Tree.scan(program).lines() if "git-lfs" in line]

    assert not any("git-lfs" in line for line in before)
    (line,) = said
    assert line.startswith("scales.txt and 1 other file: a pointer of git-lfs travels")


def test_what_is_included_travels_though_it_is_ignored(program: Path, tmp_path: Path) -> None:
    put(program, ".gitignore", "*.bin\ndata\nbuild/\n")
    for name in ("weights.bin", "pkg/other.bin", "build/deep/x.so", "build/.git/config"):
        put(program, name)
    put(tmp_path, "shelf/rows")
    (program / "data").symlink_to(tmp_path / "shelf")

    tree = Tree.scan(program, include=("weights.bin", "data/", "build/**/*.so", "no/such", "*.py"))

    always = {"train.py", "pkg/model.py", ".gitignore"}
    assert {entry.path for entry in tree.entries} == always | {
        "weights.bin",
        "data/rows",
        "build/deep/x.so",
    }
    assert tree.left.largest == (("pkg/", 2),)
    assert tree.unmatched == ("no/such",)


@needs_git
def test_a_folder_of_which_only_what_is_included_travels_is_one(program: Path) -> None:
    put(program, ".gitignore", "*\n")

    assert [entry.path for entry in Tree.scan(program, include=["*.py"]).entries] == [
        "pkg/model.py",
        "train.py",
    ]


@needs_git
def test_what_is_included_counts_towards_the_limit(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "LIMIT_BYTES", 10_000)
    put(program, ".gitignore", "*.bin\n")
    put(program, "weights.bin", "w" * 11_000)

    assert Tree.scan(program).left.size_bytes == 11_000
    with pytest.raises(UsageError) as problem:
        Tree.scan(program, include=["*.bin"])
    assert "weights.bin (11.0 kB)" in problem.value.what


@needs_git
def test_a_count_of_what_stays_comes_to_an_end(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "_COUNTED_LEFT", 3)
    put(program, ".gitignore", "*.bin\n")
    for number in range(5):
        put(program, f"{number}.bin")

    tree = Tree.scan(program)

    assert (tree.left.files, tree.left.is_all) == (3, False)
    assert "more than 3 files" in tree.lines()[1]


def test_what_was_brought_here_of_a_run_does_not_travel_with_the_next(program: Path) -> None:
    put(program, "runs/night/.yoked-run", "")
    put(program, "runs/night/outputs/attic/model.pt")

    assert names(program) == {"train.py", "pkg/model.py"}


@needs_git
def test_a_folder_on_another_disk_is_named_and_not_walked(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(program, ".gitignore", "data\nmount/\n")
    put(tmp_path, "server/rows")
    (program / "data").symlink_to(tmp_path / "server")
    put(program, "mount/rows")
    far = {tmp_path / "server", program / "mount", program / "data"}
    monkeypatch.setattr(
        walk, "_is_far", lambda folder, device: device is not None and folder in far
    )

    tree = Tree.scan(program)

    assert set(tree.left.far) == {"data/", "mount/"}
    assert tree.left.files == 0
    assert "not counted: data/ and mount/" in tree.lines()[1].replace(
        "mount/ and data/", "data/ and mount/"
    )
    # Whoever names something there has it looked for.
    assert "data/rows" in {entry.path for entry in Tree.scan(program, include=["rows"]).entries}


def test_a_link_that_goes_while_the_folder_is_read_is_named(tmp_path: Path) -> None:
    lock = tmp_path / ".#train.py"

    with pytest.raises(UsageError, match=r"\.#train\.py cannot be read: No such file"):
        trees._entry(walk.Found(lock.name, lock, is_link=True))
