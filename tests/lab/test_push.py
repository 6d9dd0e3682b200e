"""Data reaches a host whole, once, and goes on after the link was cut."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.failures import raises_fault

from yoked.cli.commands import data
from yoked.errors import DataError, HostError, UsageError
from yoked.lab import faults
from yoked.lab.lab import Lab
from yoked.lab.pytest_plugin import new_lab
from yoked.launch.datapush import push_data, push_kernels
from yoked.launch.trees import Tree, push_tree
from yoked.remote.client import AgentClient
from yoked.remote.transport import connect_ssh

ROWS_BYTES = 3_000_000


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with new_lab("two-hosts-1gbe") as lab:
        yield lab


@pytest.fixture
def beta(lab: Lab) -> Iterator[AgentClient]:
    with connect(lab) as agent:
        yield agent


def connect(lab: Lab) -> AgentClient:
    return connect_ssh("beta", str(lab.ssh_config))


def make_data(folder: Path) -> Path:
    """A folder like that of a prepared data set, with a name and rows of its own."""
    rows = os.urandom(ROWS_BYTES)
    folder = folder / f"tiny-{hashlib.sha256(rows).hexdigest()[:12]}"
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "train.rows").write_bytes(rows)
    (folder / "val.rows").write_bytes(rows[:1000])
    (folder / "tokenizer" / "tokenizer.json").write_text("{}\n")
    manifest = {
        split: {"sha256": hashlib.sha256((folder / f"{split}.rows").read_bytes()).hexdigest()}
        for split in ("train", "val")
    }
    (folder / "dataset.json").write_text(json.dumps(manifest))
    return folder


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def there(agent: AgentClient, folder: Path) -> str | None:
    found = agent.call("folder_here", place="data", label=folder.name)
    return None if found is None else str(found)


def said(agent: AgentClient, *argv: str) -> str:
    outcome = agent.call("run", argv=list(argv))
    assert outcome["exit_status"] == 0, outcome
    return str(outcome["stdout"])


def test_data_is_sent_once_and_arrives_as_it_is(beta: AgentClient, tmp_path: Path) -> None:
    folder = make_data(tmp_path)
    # A host sees what the person's own cache has.
    blobs = ("sh", "-c", f"find {Path.home()}/.cache/yoked/blobs -type f; true")
    before = said(beta, *blobs)

    sent = [push_data(beta, folder), push_data(beta, folder)]

    assert sent == [size_of(folder), 0]
    copy = there(beta, folder)
    assert copy is not None
    digests = said(beta, "sha256sum", f"{copy}/train.rows", f"{copy}/tokenizer/tokenizer.json")
    for path in (folder / "train.rows", folder / "tokenizer" / "tokenizer.json"):
        assert hashlib.sha256(path.read_bytes()).hexdigest() in digests
    # The data lies there once: no copy of it is kept beside.
    assert said(beta, *blobs) == before


def test_a_push_that_was_cut_off_goes_on(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yoked.launch.blobs.PIECE_BYTES", 500_000)
    folder = make_data(tmp_path)
    first = connect(lab)

    class CutInTheMiddle:
        def update(self, stage: str, done: int, total: int | None, unit: str) -> None:
            if done > ROWS_BYTES / 2:
                first._process.kill()

    with first, pytest.raises(HostError) as caught:
        push_data(first, folder, CutInTheMiddle())
    assert "beta" in caught.value.what

    with connect(lab) as second:
        assert there(second, folder) is None
        sent = push_data(second, folder)
        assert there(second, folder) is not None
    assert 0 < sent <= ROWS_BYTES / 2


def test_rows_that_are_damaged_here_do_not_arrive(
    beta: AgentClient, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    folder = make_data(tmp_path)
    with (folder / "train.rows").open("r+b") as file:
        file.write(b"damage")

    with pytest.raises(HostError) as caught:
        push_data(beta, folder)
    assert re.sub(r"[0-9a-f]{12,}", "DIGEST", str(caught.value)) == snapshot

    assert there(beta, folder) is None


def test_a_full_disk_is_told_in_bytes_and_left_as_it_was(lab: Lab, tmp_path: Path) -> None:
    folder, program = make_data(tmp_path), tmp_path / "program"
    program.mkdir()
    (program / "weights").write_bytes(os.urandom(1_500_000))
    with connect(lab) as agent:
        before = said(agent, "find", f"{Path.home()}/.cache/yoked")
    faults.apply(lab, "disk-full", ["beta"])
    try:
        with connect(lab) as agent:
            with raises_fault("disk-full") as rows:
                push_data(agent, folder)
            with raises_fault("disk-full") as files:
                push_tree(agent, Tree.scan(program))
            after = said(agent, "find", f"{Path.home()}/.cache/yoked")
    finally:
        faults.heal(lab)

    assert after == before
    assert " 1,500,000 bytes " in files.value.what
    assert "beta" in rows.value.what


def test_two_controllers_send_the_same_data_at_once(lab: Lab, tmp_path: Path) -> None:
    folder = make_data(tmp_path)

    def push(_: int) -> int:
        with connect(lab) as agent:
            return push_data(agent, folder)

    with ThreadPoolExecutor() as pool:
        sent = list(pool.map(push, range(3)))

    assert max(sent) >= ROWS_BYTES
    with connect(lab) as agent:
        copy = there(agent, folder)
        digest = hashlib.sha256((folder / "train.rows").read_bytes()).hexdigest()
        assert said(agent, "sha256sum", f"{copy}/train.rows").startswith(digest)


def test_compiled_kernels_go_to_hosts_of_the_same_cpu(
    beta: AgentClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "cache" / "kernels" / "0123456789abcdef" / "elementwise.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"machine code")

    first, second = push_kernels(beta), push_kernels(beta)
    monkeypatch.setattr("yoked.launch.datapush.cpu_type", lambda: "another machine")
    library.parent.rename(library.parent.with_name("fedcba9876543210"))
    other = push_kernels(beta)

    assert (first, second, other) == (12, 0, 0)
    assert "0123456789abcdef" in beta.call("kernels_here")["keys"]


def test_what_is_no_prepared_data_is_named(
    beta: AgentClient, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(DataError) as caught:
        push_data(beta, tmp_path)
    assert str(caught.value) == snapshot


def test_a_name_that_hosts_cannot_keep_is_refused(
    beta: AgentClient, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    folder = make_data(tmp_path)

    with pytest.raises(UsageError) as caught:
        push_data(beta, folder.rename(tmp_path / "my data"))
    assert str(caught.value) == snapshot


@pytest.mark.slow
def test_one_command_prepares_and_sends_to_the_fleet(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "text" / name).write_text(f"this is the text of {name}. " * 2000)

    def push() -> dict[str, int]:
        data.push(
            str(tmp_path / "text"),
            fleet=lab.fleet_file,
            max_seq_len=32,
            vocab_size=300,
            json_output=True,
        )
        hosts = json.loads(capsys.readouterr().out)["hosts"]
        return {host["name"]: host["sent_bytes"] for host in hosts}

    first, second = push(), push()

    assert set(first) == {"alpha", "beta"}
    assert min(first.values()) > 1000
    assert second == {"alpha": 0, "beta": 0}
