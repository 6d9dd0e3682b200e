from __future__ import annotations

import ast
import hashlib
import os
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.failures import raises_fault

from yoked.errors import YokedError
from yoked.paths import cache_root, own_folder, private_folder, state_root
from yoked.remote.ssh import control_folder
from yoked.remote.transport import connect_here
from yoked.remote.zipapp import boot_script

ROOTS = pytest.mark.parametrize(
    ("root", "own", "xdg", "below_home"),
    [
        (cache_root, "YOKED_CACHE", "XDG_CACHE_HOME", ".cache"),
        (state_root, "YOKED_STATE", "XDG_STATE_HOME", ".local/state"),
    ],
)
Root = Callable[[], Path]


@ROOTS
def test_a_home_that_nobody_knows_is_no_bug(
    monkeypatch: pytest.MonkeyPatch, root: Root, own: str, xdg: str, below_home: str
) -> None:
    monkeypatch.setenv(own, "~nobody-of-this-name/yoked")
    with pytest.raises(YokedError, match=f"{own} is ~nobody-of-this-name/yoked"):
        root()

    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)
    monkeypatch.delenv(own)
    monkeypatch.delenv(xdg, raising=False)
    with pytest.raises(YokedError, match="nothing says where the home folder") as caught:
        root()
    assert "export HOME=" in caught.value.fix[0]


@ROOTS
def test_our_own_variable_wins_over_everything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, root: Root, own: str, xdg: str, below_home: str
) -> None:
    monkeypatch.setenv(own, str(tmp_path / "mine"))
    monkeypatch.setenv(xdg, str(tmp_path / "theirs"))

    assert root() == tmp_path / "mine"


@ROOTS
def test_the_xdg_variable_is_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, root: Root, own: str, xdg: str, below_home: str
) -> None:
    monkeypatch.delenv(own, raising=False)
    monkeypatch.setenv(xdg, str(tmp_path))

    assert root() == tmp_path / "yoked"


@ROOTS
@pytest.mark.parametrize("value", ["", "relative/folder"])
def test_an_unset_or_relative_xdg_variable_gives_the_folder_at_home(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    root: Root,
    own: str,
    xdg: str,
    below_home: str,
    value: str,
) -> None:
    monkeypatch.delenv(own, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(xdg, value)

    assert root() == tmp_path / below_home / "yoked"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_what_is_made_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs").chmod(0o755)

    private_folder(tmp_path / "theirs" / "yoked" / "data")
    private_folder(tmp_path / "theirs" / "yoked" / "data")

    assert mode(tmp_path / "theirs") == 0o755
    assert mode(tmp_path / "theirs" / "yoked") == 0o700
    assert mode(tmp_path / "theirs" / "yoked" / "data") == 0o700


def test_a_file_in_the_place_of_a_folder_is_an_error_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(OSError, match="file"):
        private_folder(tmp_path / "file")


def test_a_folder_among_others_is_ours_alone(tmp_path: Path, umask: int) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there").chmod(0o777)

    made, taken = own_folder(tmp_path / "made"), own_folder(tmp_path / "there")

    assert (mode(made), mode(taken)) == (0o700, 0o700)


def plant(place: Path, what: str) -> None:
    """What another user has put where ours should be."""
    aim = place.parent / "aim"
    aim.mkdir(exist_ok=True)
    aim.chmod(0o755)
    if what == "link":
        place.symlink_to(aim)
    elif what == "dangling link":
        place.symlink_to(place.parent / "nothing")
    elif what == "file":
        place.touch()
    else:
        place.mkdir()
        os.chown(place, 12345, 12345)


PLANTED = pytest.mark.parametrize(
    "what",
    [
        "link",
        "dangling link",
        "file",
        pytest.param(
            "folder", marks=pytest.mark.skipif(os.getuid() != 0, reason="only root gives away")
        ),
    ],
)


@PLANTED
def test_what_another_user_put_there_is_refused_and_left_alone(tmp_path: Path, what: str) -> None:
    place = tmp_path / "yoked-1"
    plant(place, what)

    with raises_fault("folder-foreign"):
        own_folder(place)

    assert mode(tmp_path / "aim") == 0o755
    assert list((tmp_path / "aim").iterdir()) == []
    assert not (tmp_path / "nothing").exists()


@PLANTED
def test_sockets_of_shared_connections_go_where_nobody_was_before(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    name = f"yoked-{os.getuid()}"
    plant(short_tmp / name, what)
    monkeypatch.setattr(tempfile, "tempdir", str(short_tmp))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)

    assert control_folder() == Path("/tmp", name)


@PLANTED
def test_the_agent_is_not_unpacked_where_another_user_was_before(tmp_path: Path, what: str) -> None:
    place = tmp_path / "yoked-1"
    plant(place, what)

    with pytest.raises(OSError, match="another user's, or a link"):
        boot_functions()["make_among_others"](str(place))

    assert list((tmp_path / "aim").iterdir()) == []


def test_the_agents_folder_among_others_is_ours_alone(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir(0o777)
    make = boot_functions()["make_among_others"]

    make(str(tmp_path / "made"))
    make(str(tmp_path / "there"))

    assert (mode(tmp_path / "made"), mode(tmp_path / "there")) == (0o700, 0o700)


@pytest.mark.parametrize(
    ("own", "xdg"),
    [(None, None), ("~/own", None), ("own", None), (None, "/xdg"), (None, "xdg"), ("", "")],
)
def test_the_agents_folder_is_where_yoked_looks_for_it(
    monkeypatch: pytest.MonkeyPatch, own: str | None, xdg: str | None
) -> None:
    for name, value in (("YOKED_CACHE", own), ("XDG_CACHE_HOME", xdg)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)

    assert boot_functions()["cache_folder"]() == str(cache_root())


def test_an_agent_makes_no_folder_that_is_called_after_the_home_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(OSError, match="where the home folder is"):
        boot_functions()["make_below_home"]("~/.cache/yoked/agent")

    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A socket's path is short, and a test's folder has a long one."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="y") as name:
        yield Path(name)


def boot_functions() -> dict[str, Any]:
    """Those of the agent's boot file, which begins when it is imported."""
    tree = ast.parse(boot_script())
    body = [each for each in tree.body if isinstance(each, (ast.FunctionDef, ast.Import))]
    found: dict[str, Any] = {}
    exec(compile(ast.Module(body, []), "boot.py", "exec"), found)
    return found


def test_the_caches_that_an_agent_makes_are_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    monkeypatch.setenv("YOKED_CACHE", str(tmp_path / "cache"))

    with connect_here() as agent:
        agent.call("blobs_missing", sizes={})
        digest = hashlib.sha256(b"a").hexdigest()
        agent.call("blobs_put", files=[[digest, 1]], data=zlib.compress(b"a"))

    # What lies deeper is out of others' reach.
    folders = [tmp_path / "cache", tmp_path / "cache/agent", tmp_path / "cache/blobs"]
    assert [mode(path) for path in folders] == [0o700] * 3
