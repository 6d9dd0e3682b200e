"""Speak to all of a network at once, as the question for a network card does, and hear who else
does: a host that hears nobody is found by nobody.

Source: udp(7), packet(7), RFC 4291 (2.7.1: the group in which IPv6 asks for a card).
"""

from __future__ import annotations

import contextlib
import ctypes
import select
import socket
import struct
import sys
import time
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any

from yoked.agent.server import Call

_MARK = b"yoked to all "
_EVERY_S, _POLL_S = 0.2, 0.05
_MOST_BYTES, _ALL_PROTOCOLS = 2048, 3
_SO_ATTACH_FILTER = 26
# Frames for one card alone stay in the kernel: load its first byte, keep it where its lowest bit
# is set. Source: bpf(4), struct sock_filter of linux/filter.h.
_TO_ALL = ((0x30, 0, 0, 0), (0x45, 0, 1, 1), (0x06, 0, 0, 0x40000), (0x06, 0, 0, 0))


def answer_broadcast(call: Call) -> dict[str, Any]:
    """Speak and hear for a while.

    args: token; host, its name; interface; address, its own; group, where it hears, and groups, to
    which it speaks; port; wait_s. Gives sent, whether it could speak, and by name whose words came
    to a program here (heard) and to the card (card), before any rule; None: only root may look.
    """
    args = call.args
    device, token = str(args["interface"]), str(args["token"]).encode()
    words = b"%s%s %s" % (_MARK, token, str(args["host"]).encode())
    with contextlib.ExitStack() as stack:
        ears = {
            "heard": _listener(str(args["group"]), int(args["port"]), device),
            "card": _card(device),
        }
        mouth = _speaker(str(args["address"]), device)
        for each in (mouth, *ears.values()):
            if each is not None:
                stack.enter_context(each)
        told, sent = _speak(
            mouth, words, args["groups"], int(args["port"]), ears, float(args["wait_s"])
        )
    names = {
        name: sorted({_name(each, token) for each in said} - {"", str(args["host"])})
        for name, said in told.items()
    }
    return {
        "sent": sent,
        "heard": names["heard"] if ears["heard"] is not None else None,
        "card": names["card"] if ears["card"] is not None else None,
    }


def _speak(
    mouth: socket.socket | None,
    words: bytes,
    groups: Sequence[str],
    port: int,
    ears: dict[str, socket.socket | None],
    wait_s: float,
) -> tuple[dict[str, set[bytes]], bool]:
    """(by ear what came in this time, whether anything could be sent)."""
    told: dict[str, set[bytes]] = {name: set() for name in ears}
    by_ear = {each: name for name, each in ears.items() if each is not None}
    until_s, next_s, sent = time.monotonic() + wait_s, 0.0, False
    while (now_s := time.monotonic()) < until_s:
        # Not in its last moment: others may not hear that.
        if mouth is not None and next_s <= now_s < until_s - _EVERY_S:
            next_s = now_s + _EVERY_S
            for group in groups:
                with contextlib.suppress(OSError):
                    sent |= mouth.sendto(words, (group, port)) > 0
        for ear in select.select(list(by_ear), [], [], _POLL_S)[0]:
            with contextlib.suppress(OSError):
                told[by_ear[ear]].add(ear.recv(_MOST_BYTES))
    return told, sent


def _name(said: bytes, token: bytes) -> str:
    """The name of the host that said something; "": it is none of ours."""
    _, found, name = said.partition(_MARK + token + b" ")
    return name.decode(errors="replace") if found else ""


def _speaker(address: str, device: str) -> socket.socket | None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    mouth = socket.socket(family, socket.SOCK_DGRAM)
    try:
        mouth.bind((address, 0))
        if family == socket.AF_INET:
            mouth.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        else:
            number = socket.if_nametoindex(device)
            mouth.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, number)
    except OSError:
        mouth.close()
        return None
    return mouth


def _listener(group: str, port: int, device: str) -> socket.socket | None:
    """Bound to the group, and not to all: what is for this host alone does not count."""
    is_six = ip_address(group).version == 6
    ear = socket.socket(socket.AF_INET6 if is_six else socket.AF_INET, socket.SOCK_DGRAM)
    try:
        if is_six:
            number = socket.if_nametoindex(device)
            joined = struct.pack("=16sI", ip_address(group).packed, number)
            ear.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, joined)
            ear.bind((group, port, 0, number))
        else:
            ear.bind((group, port))
        ear.setblocking(False)
    except OSError:
        ear.close()
        return None
    return ear


def _card(device: str) -> socket.socket | None:
    """A socket that takes what comes to the card for all, before any rule; None: only root may."""
    if sys.platform != "linux":
        return None
    try:
        # Nothing is taken in before the filter is there.
        ear = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    except OSError:
        return None
    try:
        program = b"".join(struct.pack("HBBI", *each) for each in _TO_ALL)
        buffer = ctypes.create_string_buffer(program)
        told = struct.pack("HL", len(_TO_ALL), ctypes.addressof(buffer))
        ear.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, told)
        ear.bind((device, _ALL_PROTOCOLS))
        ear.setblocking(False)
    except OSError:
        ear.close()
        return None
    return ear
