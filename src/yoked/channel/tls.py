"""Whom a host of a launch trusts: what the authority of that very launch has signed.

The files lie in the job's folder, mode 0600. A certificate names a node of a launch, so that one
of another launch, or of another host, is refused. Source: RFC 8446 (TLS 1.3), RFC 6125.
"""

from __future__ import annotations

import re
import ssl
from pathlib import Path

from yoked.channel.names import AUTHORITY, CERTIFICATE, KEY

_NODE = re.compile(r"node-(\d{1,4})\.([0-9a-z]{1,63})\.yoked\.internal")
# X509_V_FLAG_NO_CHECK_TIME of openssl/x509_vfy.h. The clock of a host at home may be off by
# years, and an authority that signs for one launch alone has nothing to expire.
_NO_CHECK_TIME = 0x200000


def node_name(launch_id: str, node: int) -> str:
    """The name in the certificate of a node."""
    return f"node-{node}.{launch_id}.yoked.internal"


def server_context(folder: Path) -> ssl.SSLContext:
    """TLS for node 0, with the files of a job's folder. Raises OSError (ssl.SSLError is one)."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, folder)
    context.verify_mode = ssl.CERT_REQUIRED
    # Each host connects once: a ticket to resume with would be a secret to keep for nothing.
    context.num_tickets = 0
    return context


def client_context(folder: Path) -> ssl.SSLContext:
    """TLS for the other nodes, with the files of a job's folder. Raises OSError."""
    # Asks for a certificate and compares its name, by default.
    return _context(ssl.PROTOCOL_TLS_CLIENT, folder)


def peer_node(connection: ssl.SSLObject, launch_id: str) -> int | None:
    """The node that a peer's certificate names; None: it is of no node of this launch."""
    certificate = connection.getpeercert() or {}
    for entry in certificate.get("subjectAltName", ()):
        found = _NODE.fullmatch(str(entry[1]))
        if found and found[2] == launch_id:
            return int(found[1])
    return None


def _context(protocol: int, folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VerifyFlags(_NO_CHECK_TIME)
    context.load_verify_locations(folder / AUTHORITY)
    context.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    return context
