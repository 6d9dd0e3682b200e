"""Where the secret of a launch comes from, and what is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.errors import UsageError
from yoked.ranks.secret import FILE_VARIABLE, TEXT_VARIABLE, launch_secret

HEX = "0123456789abcdef" * 4


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(HEX + "\n")
    path.chmod(0o600)
    return path


def test_a_launch_without_one_has_none() -> None:
    assert launch_secret({}) is None


def test_the_file_of_a_job_holds_the_secret_in_hexadecimal(file: Path) -> None:
    assert launch_secret({FILE_VARIABLE: str(file)}) == bytes.fromhex(HEX)


def test_the_file_comes_before_the_text(file: Path) -> None:
    both = {FILE_VARIABLE: str(file), TEXT_VARIABLE: "x" * 40}

    assert launch_secret(both) == bytes.fromhex(HEX)


def test_text_of_the_environment_makes_a_key_of_32_bytes() -> None:
    one, same, other = (
        launch_secret({TEXT_VARIABLE: text}) for text in ("x" * 16, "x" * 16, "x" * 17)
    )

    assert one is not None
    assert len(one) == 32
    assert one == same != other


@pytest.mark.parametrize("text", ["", "x" * 15])
def test_text_that_can_be_guessed_is_refused_and_not_repeated(
    text: str, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(UsageError) as refused:
        launch_secret({TEXT_VARIABLE: text})
    assert str(refused.value) == snapshot

    assert not text or text not in str(refused.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o666])
def test_a_file_that_others_have_rights_to_is_refused(
    file: Path, mode: int, snapshot: SnapshotAssertion
) -> None:
    file.chmod(mode)

    with pytest.raises(UsageError) as caught:
        launch_secret({FILE_VARIABLE: str(file)})
    assert str(caught.value) == snapshot


def test_a_link_is_refused_wherever_it_leads(
    file: Path, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    link = tmp_path / "link"
    link.symlink_to(file)

    with pytest.raises(UsageError) as caught:
        launch_secret({FILE_VARIABLE: str(link)})
    assert str(caught.value) == snapshot


def test_a_pipe_is_refused_at_once(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)

    with pytest.raises(UsageError) as caught:
        launch_secret({FILE_VARIABLE: str(tmp_path / "pipe")})
    assert str(caught.value) == snapshot


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_refused(file: Path, snapshot: SnapshotAssertion) -> None:
    os.chown(file, 4321, 4321)

    with pytest.raises(UsageError) as caught:
        launch_secret({FILE_VARIABLE: str(file)})
    assert str(caught.value) == snapshot


@pytest.mark.parametrize("content", [b"", b"ab" * 31, b"ab" * 33, b"xy" * 32, b"\xff" * 64])
def test_a_file_of_anything_else_is_refused_and_not_repeated(
    file: Path, content: bytes, snapshot: SnapshotAssertion
) -> None:
    file.write_bytes(content)

    with pytest.raises(UsageError) as refused:
        launch_secret({FILE_VARIABLE: str(file)})
    assert str(refused.value) == snapshot

    assert not content or content.decode("latin-1") not in str(refused.value)


def test_a_file_that_is_not_there_is_no_launch_without_a_secret(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(UsageError) as caught:
        launch_secret({FILE_VARIABLE: str(tmp_path / "none")})
    assert str(caught.value) == snapshot
