"""Certificates for one run; and a torch that cannot use them is told before it starts."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from yoked.errors import HostError, YokedError
from yoked.launch.tls import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    make_certificates,
    require_tls,
    tls_environment,
)
from yoked.remote.transport import Here

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here")


@needs_openssl
def test_the_certificate_is_signed_by_the_runs_own_authority(tmp_path: Path) -> None:
    for name, text in make_certificates("night").items():
        (tmp_path / name).write_text(text)

    verified = subprocess.run(
        ["openssl", "verify", "-CAfile", AUTHORITY, CERTIFICATE],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert verified.returncode == 0, verified.stderr
    # Raises where key and certificate are not a pair.
    ssl.create_default_context().load_cert_chain(tmp_path / CERTIFICATE, tmp_path / KEY)


@needs_openssl
def test_two_runs_do_not_share_an_authority() -> None:
    assert make_certificates("one")[AUTHORITY] != make_certificates("two")[AUTHORITY]


def test_without_openssl_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)

    with pytest.raises(YokedError, match="apt install openssl"):
        make_certificates("night")


def test_a_torch_without_tls_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YOKED_CACHE", str(tmp_path))
    wheel_without_tls = tmp_path / "python"
    wheel_without_tls.write_text(
        "#!/bin/sh\necho 'RuntimeError: unsupported gloo device' >&2; exit 1\n"
    )
    wheel_without_tls.chmod(0o755)

    with Here("attic").connect() as agent, pytest.raises(HostError, match=r"attic(.|\n)*WireGuard"):
        require_tls(agent, str(wheel_without_tls), "lo")


def test_this_machines_torch_is_refused_just_when_it_lacks_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("YOKED_CACHE", str(tmp_path))
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if not library.exists():
        pytest.skip("this torch keeps Gloo elsewhere")
    has_tls = b"GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY" in library.read_bytes()

    with Here().connect() as agent:
        refusal = None
        try:
            require_tls(agent, sys.executable, "lo")
        except HostError as problem:
            refusal = problem

    assert (refusal is None) == has_tls


def test_gloo_is_told_where_the_files_are() -> None:
    env = tls_environment("/jobs/night")

    assert env["GLOO_DEVICE_TRANSPORT"] == "TCP_TLS"
    assert env["GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY"] == "/jobs/night/tls-key.pem"
