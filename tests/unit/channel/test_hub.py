"""Strangers at node 0's door, and hosts of the launch beside them: real sockets on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.channel import dial as dial_module
from yoked.channel import hub as hub_module
from yoked.channel.carry import Ends
from yoked.channel.credentials import make_credentials
from yoked.channel.dial import UnreachedError, dial, port_of, serve_store
from yoked.channel.frames import BYTES_LIMIT_BYTES
from yoked.channel.hub import MOST_OF_ONE_ADDRESS, Hub
from yoked.channel.names import LOOPBACK
from yoked.channel.peer import Peer
from yoked.channel.tls import client_context, node_name, server_context

LAUNCH = "0123456789ab"
DEADLINE_S = 20.0


@functools.cache
def made(launch_id: str, authority: int = 0) -> list[dict[str, str]]:
    return make_credentials(launch_id, 3)


def files(folder: Path, node: int, launch_id: str = LAUNCH, authority: int = 0) -> Path:
    """The folder of a node. authority: another one for another number."""
    place = folder / f"{launch_id}-{authority}-{node}"
    place.mkdir(exist_ok=True)
    for name, text in made(launch_id, authority)[node].items():
        (place / name).write_text(text)
    return place


class Door:
    """A node of three that listens as node 0 does, with a store that answers with what it gets."""

    def __init__(self, folder: Path, node: int = 0) -> None:
        self.folder = folder
        self.words: list[tuple[int, dict[str, Any]]] = []
        self.ended: list[int] = []
        self.port = 0
        self.hub = Hub(
            server_context(files(folder, node)),
            LAUNCH,
            3,
            on_word=lambda node, word: self.words.append((node, word)),
            on_peer=lambda peer: None,
            on_end=self.ended.append,
            connect=self._to_store,
        )
        self._store_port = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Door]:
        store = await asyncio.start_server(_echo, LOOPBACK, 0)
        self._store_port = port_of(store)
        listener = socket.create_server((LOOPBACK, 0))
        self.port = listener.getsockname()[1]
        serving = asyncio.ensure_future(self.hub.serve(listener))
        try:
            yield self
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            await self.hub.close()
            store.close()

    async def host(self, node: int = 1) -> Peer:
        context = client_context(files(self.folder, node))
        return await dial(LOOPBACK, self.port, node_name(LAUNCH, 0), context, DEADLINE_S)

    async def _to_store(self) -> Ends:
        return await asyncio.open_connection(LOOPBACK, self._store_port)


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while content := await reader.read(BYTES_LIMIT_BYTES):
        writer.write(content)
        await writer.drain()
    writer.close()


async def until(condition: Callable[[], bool]) -> None:
    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(wait(), DEADLINE_S)


def with_door(folder: Path, act: Callable[[Door], Awaitable[None]], node: int = 0) -> None:
    async def run() -> None:
        async with Door(folder, node).open() as door:
            await act(door)

    asyncio.run(run())


async def still_serves(door: Door) -> None:
    """A host of the launch comes in and is heard."""
    peer = await door.host(2)
    peer.send_word({"hello": 2})
    await until(lambda: (2, {"hello": 2}) in door.words)
    await peer.close()


def test_hosts_of_the_launch_are_known_by_their_certificates(tmp_path: Path) -> None:
    async def act(door: Door) -> None:
        one, other = await door.host(1), await door.host(2)
        one.send_word({"i am": 2})
        other.send_word({"i am": 2})
        await until(lambda: len(door.words) == 2)

        assert sorted(node for node, _ in door.words) == [1, 2]
        await one.close()
        await until(lambda: door.ended == [1])
        await other.close()

    with_door(tmp_path, act)


@pytest.mark.parametrize(
    "said",
    [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + b"\xff" * 2000, bytes(100_000)],
    ids=["nothing", "http", "a broken hello", "zeros"],
)
def test_garbage_is_refused_and_counted(tmp_path: Path, said: bytes) -> None:
    async def act(door: Door) -> None:
        reader, writer = await asyncio.open_connection(LOOPBACK, door.port)
        writer.write(said)
        with contextlib.suppress(OSError):
            writer.write_eof()
            await reader.read()
        writer.close()
        await until(lambda: door.hub.refused[LOOPBACK] == 1)

        assert not door.words
        await still_serves(door)

    with_door(tmp_path, act)


def test_whoever_shows_no_certificate_is_refused(tmp_path: Path) -> None:
    async def act(door: Door) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        reader, writer = await asyncio.open_connection(LOOPBACK, door.port, ssl=context)

        with contextlib.suppress(OSError):
            assert await reader.read() == b""
        writer.close()
        await until(lambda: door.hub.refused[LOOPBACK] == 1)

        assert door.hub.peers == {}
        await still_serves(door)

    with_door(tmp_path, act)


def test_a_certificate_of_another_launch_is_refused(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    async def act(door: Door) -> None:
        context = client_context(files(tmp_path, 1, authority=1))
        with pytest.raises(UnreachedError) as caught:
            await dial(LOOPBACK, door.port, node_name(LAUNCH, 0), context, 0.5)
        assert str(caught.value) == snapshot

        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        before = door.hub.refused[LOOPBACK]
        peer = await dial(LOOPBACK, door.port, node_name(LAUNCH, 0), context, DEADLINE_S)
        peer.send_word({"let": "me in"})
        await until(lambda: door.hub.refused[LOOPBACK] > before)

        assert not door.words
        await peer.close()
        await still_serves(door)

    with_door(tmp_path, act)


def test_settings_that_allow_no_tls_1_3_are_named_and_no_other_program(tmp_path: Path) -> None:
    async def act(door: Door) -> None:
        context = client_context(files(tmp_path, 1))
        # As MaxProtocol of openssl.cnf does it.
        context.maximum_version = ssl.TLSVersion.TLSv1_2

        with pytest.raises(UnreachedError, match=r"openssl\.cnf") as caught:
            await dial(LOOPBACK, door.port, node_name(LAUNCH, 0), context, 0.5)
        assert "another program" not in str(caught.value)

    with_door(tmp_path, act)


@pytest.mark.parametrize(("node", "launch_id"), [(0, LAUNCH), (1, "ba9876543210")])
def test_a_certificate_that_names_no_other_host_of_this_launch_is_refused(
    tmp_path: Path, node: int, launch_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Signed by the very authority, for other names.
    monkeypatch.setattr(
        "yoked.channel.credentials.node_name",
        lambda made_for, number: node_name(launch_id if number == 1 else made_for, node),
    )
    signed = make_credentials(LAUNCH, 3)

    async def act(door: Door) -> None:
        for name, text in signed[0].items():
            (tmp_path / name).write_text(text)
        folder = tmp_path / "stranger"
        folder.mkdir()
        for name, text in signed[1].items():
            (folder / name).write_text(text)
        door.hub._context = server_context(tmp_path)
        context = client_context(folder)
        context.check_hostname = False

        peer = await dial(LOOPBACK, door.port, "any", context, DEADLINE_S)
        await until(lambda: "names no other host" in door.hub.last_refusal)

        assert door.hub.peers == {}
        await peer.close()

    with_door(tmp_path, act)


def test_a_host_does_not_speak_to_another_host_in_the_place_of_node_0(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    async def act(impostor: Door) -> None:
        context = client_context(files(tmp_path, 1))

        with pytest.raises(UnreachedError) as caught:
            await dial(LOOPBACK, impostor.port, node_name(LAUNCH, 0), context, 0.5)
        assert str(caught.value) == snapshot

    with_door(tmp_path, act, node=2)


def test_slow_connections_are_cut_and_keep_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "HANDSHAKE_S", 0.5)

    async def act(door: Door) -> None:
        held = [
            await asyncio.open_connection(LOOPBACK, door.port, local_addr=("127.0.0.9", 0))
            for _ in range(MOST_OF_ONE_ADDRESS + 5)
        ]
        await until(lambda: door.hub.refused["127.0.0.9"] == 5)

        await still_serves(door)
        await until(lambda: door.hub.refused["127.0.0.9"] == len(held))
        for _, writer in held:
            writer.close()

    with_door(tmp_path, act)


def test_a_host_that_sends_no_frame_is_cut_off_alone(tmp_path: Path) -> None:
    async def act(door: Door) -> None:
        one, other = await door.host(1), await door.host(2)
        await until(lambda: len(door.hub.peers) == 2)
        one._writer.write(b"\xff" * 100)
        await until(lambda: door.ended == [1])

        assert door.hub.refused[LOOPBACK] == 1
        other.send_word({"still": "here"})
        await until(lambda: door.words == [(2, {"still": "here"})])
        await one.close()
        await other.close()

    with_door(tmp_path, act)


def test_the_store_is_reached_through_the_connection_byte_for_byte(tmp_path: Path) -> None:
    async def act(door: Door) -> None:
        peer = await door.host()
        server = await serve_store(peer)
        heard: list[dict[str, Any]] = []
        listening = asyncio.ensure_future(peer.listen(heard.append))
        content = bytes(range(256)) * 5_000

        async def ask() -> bytes:
            reader, writer = await asyncio.open_connection(LOOPBACK, port_of(server))
            writer.write(content)
            await writer.drain()
            came = await reader.readexactly(len(content))
            writer.close()
            return came

        answers = await asyncio.wait_for(asyncio.gather(*(ask() for _ in range(5))), DEADLINE_S)
        assert answers == [content] * 5
        await until(lambda: not peer.streams._open)

        server.close()
        await peer.close()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)

    with_door(tmp_path, act)


def test_an_attempt_that_is_cut_short_does_not_hide_why_those_before_it_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempts = iter([ConnectionRefusedError(111, "refused")])

    async def connect(*args: object) -> None:
        for problem in attempts:
            raise problem
        await asyncio.sleep(60)

    monkeypatch.setattr(dial_module, "_connect", connect)

    with pytest.raises(UnreachedError, match=r"^Connection refused$"):
        asyncio.run(dial("127.0.0.1", 1, "node-0", ssl.create_default_context(), 0.3))
    with pytest.raises(UnreachedError, match=r"^no answer$"):
        asyncio.run(dial("127.0.0.1", 1, "node-0", ssl.create_default_context(), 0.3))
