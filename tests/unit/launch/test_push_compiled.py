"""Code that was compiled here spares hosts of the same type the compiling."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from yoked.agent import compiled
from yoked.core.torchbuild import torch_version
from yoked.launch import datapush
from yoked.launch.datapush import push_compiled
from yoked.remote.client import AgentClient
from yoked.remote.transport import connect_here


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of the host."""
    monkeypatch.setenv("YOKED_CACHE", str(tmp_path / "there"))
    return tmp_path / "there"


@pytest.fixture
def host(there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentClient]:
    with connect_here() as agent:
        monkeypatch.setenv("YOKED_CACHE", str(tmp_path / "here"))
        yield agent


def compile_here(**files: bytes) -> Path:
    """The folder that a run on this machine would have left."""
    label = compiled.compiled_label(platform.python_version(), torch_version() or "")
    folder = compiled.compiled_root() / label
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def test_a_host_gets_what_it_lacks_and_only_once(host: AgentClient, there: Path) -> None:
    folder = compile_here(fxgraph__ab=b"graph", k__lib=b"machine code", locks__ab=b"")
    (folder / "k" / "lib.lock").write_bytes(b"")

    first, second = push_compiled(host, sys.executable), push_compiled(host, sys.executable)

    arrived = there / "compiled" / folder.name
    assert (first, second) == (len(b"graphmachine code"), 0)
    files = {str(path.relative_to(arrived)) for path in arrived.rglob("*") if path.is_file()}
    assert files == {"fxgraph/ab", "k/lib"}
    assert (arrived / "k" / "lib").read_bytes() == b"machine code"
    assert arrived.stat().st_mode & 0o777 == 0o700
    # Nothing is kept twice.
    assert not [path for path in (there / "blobs").rglob("*") if path.is_file()]
    assert not list((there / "compiled").glob(".*"))


def test_a_host_keeps_what_it_compiled_itself(host: AgentClient, there: Path) -> None:
    folder = compile_here(k__lib=b"of here", k__more=b"more")
    own = there / "compiled" / folder.name / "k" / "lib"
    own.parent.mkdir(parents=True)
    own.write_bytes(b"of there")

    push_compiled(host, sys.executable)

    assert own.read_bytes() == b"of there"
    assert own.with_name("more").read_bytes() == b"more"


def test_another_torch_gets_nothing(host: AgentClient, there: Path) -> None:
    folder = compile_here(k__lib=b"machine code")
    folder.rename(folder.with_name(f"{folder.name}-other"))

    assert push_compiled(host, sys.executable) == 0
    assert not (there / "compiled").exists()


def test_a_host_with_another_cpu_gets_nothing(
    host: AgentClient, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "cpu_type", lambda: "another CPU")
    compile_here(k__lib=b"machine code")

    assert push_compiled(host, sys.executable) == 0
    assert not (there / "compiled").exists()


def test_what_was_compiled_last_goes_first_and_not_without_end(
    host: AgentClient, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = compile_here(old=b"0123456789", new=b"abcdefghij")
    os.utime(folder / "old", (1, 1))
    monkeypatch.setattr(datapush, "_MOST_COMPILED_BYTES", 15)

    assert push_compiled(host, sys.executable) == 10
    assert [path.name for path in (there / "compiled" / folder.name).iterdir()] == ["new"]
