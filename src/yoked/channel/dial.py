"""The other nodes' end: dial node 0, and serve its store on loopback."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time

from yoked.channel.hub import send_at_once
from yoked.channel.names import LOOPBACK
from yoked.channel.peer import Peer

_RETRY_S = 0.1
_KNOCK_S = 5.0
_NO_ANSWER = "no answer"
# Source: sslerr.h of OpenSSL: what it says before it sends anything, and a peer's alert.
_OWN_SETTINGS = ("NO_PROTOCOLS_AVAILABLE", "NO_CIPHERS_AVAILABLE", "NO_CIPHER_MATCH")
_PEER_SETTINGS = ("TLSV1_ALERT_PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL")


class UnreachedError(Exception):
    """Node 0 was not reached in time. Its text is the reason of the last attempt."""


async def dial(
    address: str, port: int, name: str, context: ssl.SSLContext, patience_s: float
) -> Peer:
    """Connect to node 0, which may start later than this host. name: in its certificate.

    Raises UnreachedError after patience_s.
    """
    until_s = time.monotonic() + patience_s
    reason = ""
    while (left_s := until_s - time.monotonic()) > 0:
        try:
            reader, writer = await asyncio.wait_for(
                _connect(address, port, name, context, left_s), left_s
            )
        except TimeoutError:
            # The last attempt is cut short: what the one before it met is the reason.
            if not reason or left_s > _KNOCK_S:
                reason = _NO_ANSWER
        except ssl.SSLCertVerificationError as problem:
            reason = f"another program answered: {problem.verify_message}"
        except ssl.SSLError as problem:
            reason = _refused(problem.reason or str(problem))
        except OSError as problem:
            # asyncio puts words of its own in the place of the system's.
            reason = os.strerror(problem.errno) if problem.errno else str(problem)
        else:
            return Peer(0, reader, writer)
        await asyncio.sleep(_RETRY_S)
    raise UnreachedError(reason or _NO_ANSWER)


def _refused(reason: str) -> str:
    """Why a handshake failed, by OpenSSL's word for it."""
    if reason in _OWN_SETTINGS:
        return f"the settings of OpenSSL on this host (openssl.cnf) allow no TLS 1.3: {reason}"
    if reason in _PEER_SETTINGS:
        return f"its OpenSSL allows no TLS 1.3 (openssl.cnf there): {reason}"
    return f"another program answered: {reason}"


async def _connect(
    address: str, port: int, name: str, context: ssl.SSLContext, left_s: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    # Of the connection alone: node 0 answers the handshake when its program has started.
    plain = await asyncio.wait_for(_knock(loop, address, port), min(left_s, _KNOCK_S))
    return await asyncio.open_connection(
        sock=plain, ssl=context, server_hostname=name, ssl_handshake_timeout=left_s
    )


async def serve_store(peer: Peer) -> asyncio.AbstractServer:
    """Listen on loopback; what connects there reaches node 0's store."""
    return await asyncio.start_server(peer.streams.begin, LOOPBACK, 0)


def port_of(server: asyncio.AbstractServer) -> int:
    """The port at which a server listens."""
    assert isinstance(server, asyncio.base_events.Server)
    return int(server.sockets[0].getsockname()[1])


async def _knock(loop: asyncio.AbstractEventLoop, address: str, port: int) -> socket.socket:
    """A TCP connection. Raises OSError."""
    ((family, *_, target), *_) = await loop.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    plain = socket.socket(family, socket.SOCK_STREAM)
    try:
        plain.setblocking(False)
        send_at_once(plain)
        await loop.sock_connect(plain, target)
    except BaseException:
        plain.close()
        raise
    return plain
