"""What torch.compile made stays from job to job, for this CPU and torch, within a limit."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

import pytest
from tests.unit.agent.fake_call import FakeCall

from yoked.agent import compiled
from yoked.agent.compiled import VARIABLE, kept_for_ranks, prune
from yoked.errors import HostError


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(compiled, "torch_version", lambda: "2.13.0+cpu")


def folder_of_a_job() -> Path:
    """Where the ranks of a job keep what they compile."""
    with kept_for_ranks():
        return Path(os.environ[VARIABLE])


def filled(name: str, size_bytes: int, used_s: float) -> Path:
    folder = compiled.compiled_root() / name
    folder.mkdir(parents=True)
    (folder / "kernel.so").write_bytes(bytes(size_bytes))
    os.utime(folder, (used_s, used_s))
    return folder


def test_each_job_finds_the_folder_of_the_one_before_and_nobody_else_reads_it() -> None:
    first = folder_of_a_job()
    (first / "kernel.so").write_bytes(b"machine code")

    second = folder_of_a_job()

    assert second == first
    assert (second / "kernel.so").read_bytes() == b"machine code"
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
    assert VARIABLE not in os.environ


@pytest.mark.parametrize(
    ("name", "value"),
    [("cpu_type", lambda: "another CPU"), ("torch_version", lambda: "2.14.0+cpu")],
)
def test_what_was_compiled_for_another_cpu_or_torch_is_not_found(
    monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    before = folder_of_a_job()
    monkeypatch.setattr(compiled, name, value)

    assert folder_of_a_job() != before


def test_a_folder_that_a_person_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/mine")

    assert folder_of_a_job() == Path("/mine")
    assert os.environ[VARIABLE] == "/mine"
    assert not compiled.compiled_root().exists()


def test_where_nothing_can_be_kept_torch_takes_its_own_place(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")

    with kept_for_ranks():
        assert VARIABLE not in os.environ


def test_too_much_is_cut_to_what_was_used_last() -> None:
    oldest, old, new = (
        filled(name, 1000, used_s) for name, used_s in zip("cab", (1, 2, 3), strict=True)
    )

    prune(2500)

    assert [folder.exists() for folder in (oldest, old, new)] == [False, True, True]
    assert not list(compiled.compiled_root().glob(".*"))


def test_what_a_job_uses_is_not_removed() -> None:
    filled("other", 1000, 1)
    with kept_for_ranks():
        used = Path(os.environ[VARIABLE])
        (used / "kernel.so").write_bytes(bytes(1000))

        prune(0)
        assert compiled.answer_compiled_remove(FakeCall(label=used.name)) is False
        listed = compiled.answer_compiled_list(FakeCall())

    assert [(each["label"], each["unused_s"]) for each in listed] == [(used.name, 0.0)]
    assert (used / "kernel.so").exists()
    assert compiled.answer_compiled_remove(FakeCall(label=used.name)) is True
    assert not used.exists()


def test_a_job_that_comes_while_the_folder_goes_has_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = folder_of_a_job()
    (before / "kernel.so").write_bytes(b"old")
    flock = fcntl.flock

    def late(held: int, how: int) -> None:
        # Another job's end removes it between our open and our lock.
        monkeypatch.setattr(fcntl, "flock", flock)
        before.rename(before.with_name("gone"))
        flock(held, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with kept_for_ranks():
        now = Path(os.environ[VARIABLE])

        assert now == before
        assert not (now / "kernel.so").exists()
        # It is this one that is held.
        assert compiled.answer_compiled_remove(FakeCall(label=now.name)) is False


def test_code_for_another_cpu_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    label = folder_of_a_job().name
    monkeypatch.setattr(compiled, "cpu_type", lambda: "another CPU")

    assert compiled.answer_compiled_here(FakeCall(label=label)) is None
    with pytest.raises(HostError, match="another CPU"):
        compiled.answer_compiled_put(FakeCall(label=label))


@pytest.mark.parametrize("label", ["../data", ".making-0", "a/b", ""])
def test_a_label_leads_nowhere_else(label: str) -> None:
    with pytest.raises(HostError, match="a folder"):
        compiled.answer_compiled_remove(FakeCall(label=label))
