"""Certificates of a launch: by openssl itself, and read again by it."""

from __future__ import annotations

import errno
import os
import ssl
import subprocess
from pathlib import Path

import pytest
from tests.failures import raises_fault

from yoked.channel import credentials
from yoked.channel.credentials import make_credentials
from yoked.channel.names import AUTHORITY, CERTIFICATE, KEY, SECRET
from yoked.channel.tls import client_context, server_context
from yoked.errors import YokedError

LAUNCH = "0123456789ab"


def write(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def test_each_host_gets_a_certificate_that_names_it(tmp_path: Path) -> None:
    for node, files in enumerate(make_credentials(LAUNCH, 3)):
        folder = write(tmp_path / str(node), files)

        shown = subprocess.run(
            ["openssl", "x509", "-in", folder / CERTIFICATE, "-noout", "-ext", "subjectAltName"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout

        assert f"DNS:node-{node}.{LAUNCH}.yoked.internal" in shown
        assert client_context(folder).minimum_version == ssl.TLSVersion.TLSv1_3
        assert server_context(folder).verify_mode == ssl.CERT_REQUIRED


def test_no_host_gets_the_key_of_another_or_of_the_authority() -> None:
    one, other = make_credentials(LAUNCH, 2)

    assert set(one) == set(other) == {AUTHORITY, CERTIFICATE, KEY, SECRET}
    assert one[KEY] != other[KEY]
    assert one[AUTHORITY] == other[AUTHORITY]
    assert "PRIVATE KEY" not in one[AUTHORITY] + one[CERTIFICATE]


def test_every_launch_has_an_authority_and_a_secret_of_its_own() -> None:
    one, other = make_credentials(LAUNCH, 2)[0], make_credentials(LAUNCH, 2)[0]

    assert one[AUTHORITY] != other[AUTHORITY]
    assert one[SECRET] != other[SECRET]
    assert len(bytes.fromhex(one[SECRET])) == 32


def test_a_machine_without_openssl_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with raises_fault("openssl-missing") as caught:
        make_credentials(LAUNCH, 2)

    assert "apt install openssl" in caught.value.fix[0]


def test_a_host_alone_needs_no_openssl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert set(make_credentials(LAUNCH, 1)[0]) == {SECRET}


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, YokedError), (errno.EINVAL, OSError)])
def test_a_full_disk_is_told_as_one_and_a_bug_is_not(
    number: int, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(credentials, "_make_authority", full)

    with pytest.raises(kind):
        make_credentials(LAUNCH, 2)
