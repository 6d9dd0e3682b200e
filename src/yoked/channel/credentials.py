"""What hosts of a launch know each other by: an authority, a certificate each, and a secret.

Made anew for every launch, by the openssl program; the authority's own key is not kept.
Source: openssl-req(1), openssl-x509(1), RFC 5280 for the extensions.
"""

from __future__ import annotations

import secrets
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from yoked.channel.names import AUTHORITY, CERTIFICATE, KEY, SECRET
from yoked.channel.tls import node_name
from yoked.core.faults import fault
from yoked.core.fs import expected_failure, scratch_folder
from yoked.core.packages import install_line, this_distribution
from yoked.core.parallel import at_once
from yoked.errors import YokedError

# Hosts ignore dates, because their clocks may be off: openssl wants some.
_DAYS = "3650"
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def make_credentials(launch_id: str, nodes: int) -> list[dict[str, str]]:
    """The private files of each node, as text by file name. Raises YokedError.

    A node alone meets no other: it gets the secret of its ranks, and needs no openssl.
    """
    shared = {SECRET: secrets.token_hex(32)}
    if nodes == 1:
        return [shared]
    if shutil.which("openssl") is None:
        raise fault("openssl-missing", install=install_line("openssl", this_distribution()))
    try:
        with scratch_folder("authority") as folder:
            _make_authority(folder)
            shared[AUTHORITY] = (folder / AUTHORITY).read_text()
            own = at_once(lambda node: _certify(folder, launch_id, node), range(nodes))
    except OSError as problem:
        if (expected := expected_failure(problem)) is None:
            raise
        raise expected from problem
    return [{**shared, **files} for files in own]


def _make_authority(folder: Path) -> None:
    (folder / "authority.ext").write_text(
        "[req]\ndistinguished_name = name\nx509_extensions = authority\n[name]\n[authority]\n"
        "basicConstraints = critical, CA:true, pathlen:0\nkeyUsage = critical, keyCertSign\n"
        "subjectKeyIdentifier = hash\n"
    )
    _openssl(
        folder,
        [
            *("req", "-x509", *_NEW_KEY, "-keyout", "authority.key", "-out", AUTHORITY),
            *("-days", _DAYS, "-subj", "/CN=yoked launch", "-config", "authority.ext"),
        ],
    )


def _certify(authority: Path, launch_id: str, node: int) -> dict[str, str]:
    """The key and certificate of a node."""
    folder = authority / str(node)
    folder.mkdir()
    (folder / "node.ext").write_text(
        "[req]\ndistinguished_name = name\n[name]\n[node]\n"
        "basicConstraints = critical, CA:false\nkeyUsage = critical, digitalSignature\n"
        "extendedKeyUsage = serverAuth, clientAuth\n"
        f"subjectAltName = DNS:{node_name(launch_id, node)}\n"
        "subjectKeyIdentifier = hash\nauthorityKeyIdentifier = keyid\n"
    )
    request = ["req", *_NEW_KEY, "-keyout", KEY, "-out", "request.pem", "-config", "node.ext"]
    _openssl(folder, [*request, "-subj", f"/CN=node {node}"])
    _openssl(
        folder,
        [
            *("x509", "-req", "-in", "request.pem", "-out", CERTIFICATE, "-days", _DAYS),
            *("-CA", f"../{AUTHORITY}", "-CAkey", "../authority.key"),
            *("-set_serial", f"0x{secrets.token_hex(16)}"),
            *("-extfile", "node.ext", "-extensions", "node"),
        ],
    )
    return {name: (folder / name).read_text() for name in (CERTIFICATE, KEY)}


def _openssl(folder: Path, words: Sequence[str]) -> None:
    argv = ["openssl", *words]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise YokedError(
            f"openssl {words[0]} failed: {last}",
            fix=(
                f"{shutil.which('openssl')} version    shows whether it starts; PATH leads to it",
                "env -u OPENSSL_CONF -u LD_LIBRARY_PATH openssl version    tells if these matter",
            ),
        )
