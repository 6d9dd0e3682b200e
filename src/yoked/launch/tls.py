"""Gloo's TLS between ranks: a certificate authority and one certificate, made for one run.

torch must have been built with it (USE_GLOO_WITH_OPENSSL); the wheels of PyPI are not, so every
host is asked before anything starts. Source: torch/csrc/distributed/c10d/GlooDeviceFactory.cpp
for the variables; openssl-req(1), openssl-x509(1).
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from yoked.errors import HostError, YokedError
from yoked.remote.client import AgentClient

# A run may last weeks; its certificate goes with its folder.
_DAYS = 365
_PROBE_S = 120.0
AUTHORITY, CERTIFICATE, KEY = "tls-authority.pem", "tls-certificate.pem", "tls-key.pem"
# Making a device is what fails where TLS is not built in; no address is needed for it.
_PROBE = """
import sys, torch.distributed as dist
dist.ProcessGroupGloo.create_device(interface=sys.argv[1])
"""


def tls_environment(folder: str) -> dict[str, str]:
    """What makes Gloo speak TLS with the files in a host's folder."""
    return {
        "GLOO_DEVICE_TRANSPORT": "TCP_TLS",
        "GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY": f"{folder}/{KEY}",
        "GLOO_DEVICE_TRANSPORT_TCP_TLS_CERT": f"{folder}/{CERTIFICATE}",
        "GLOO_DEVICE_TRANSPORT_TCP_TLS_CA_FILE": f"{folder}/{AUTHORITY}",
    }


def make_certificates(run: str) -> dict[str, str]:
    """Authority, certificate and key of a run, as text by file name. Raises YokedError."""
    if shutil.which("openssl") is None:
        raise YokedError("--tls needs the program openssl here", fix="sudo apt install openssl")
    with tempfile.TemporaryDirectory(prefix="yoked-tls-") as name:
        folder = Path(name)
        new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        _openssl(
            folder,
            [
                *("req", "-x509", *new_key, "-keyout", "authority.key", "-out", AUTHORITY),
                *("-days", str(_DAYS), "-subj", "/CN=yoked"),
            ],
        )
        subject = ["-subj", f"/CN={run}"]
        _openssl(folder, ["req", *new_key, "-keyout", KEY, "-out", "request.pem", *subject])
        _openssl(
            folder,
            [
                *("x509", "-req", "-in", "request.pem", "-CA", AUTHORITY),
                *("-CAkey", "authority.key", "-CAcreateserial", "-out", CERTIFICATE),
                *("-days", str(_DAYS)),
            ],
        )
        return {name: (folder / name).read_text() for name in (AUTHORITY, CERTIFICATE, KEY)}


def require_tls(client: AgentClient, python: str, interface: str) -> None:
    """Raise HostError when the torch of a host has no TLS in its Gloo."""
    done = client.call(
        "run",
        argv=[python, "-c", _PROBE, interface],
        env=tls_environment("/nonexistent"),
        limit_s=_PROBE_S,
        timeout_s=2 * _PROBE_S,
    )
    said = done["stderr"]
    # With TLS it fails too, of the files that are not there.
    if "unsupported gloo device" in said:
        raise HostError(
            f"{client.host}: the torch of {python} has no TLS in its Gloo; the wheels of PyPI are "
            "built without it",
            fix=(
                "leave --tls out in a network that you trust: docs/fleet.md says what is in clear",
                "or train through WireGuard: name its interface in yoked.toml",
                "or build torch with USE_GLOO_WITH_OPENSSL=1",
            ),
        )


def _openssl(folder: Path, words: Sequence[str]) -> None:
    argv = ["openssl", *words]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise YokedError(f"openssl {words[0]} failed: {last}", fix="openssl version")
