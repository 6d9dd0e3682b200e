"""After an examination's connection ended: a host is asked once more what may have done it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from yoked.errors import YokedError
from yoked.records.examination import SshFailure
from yoked.remote.client import AgentClient, RemoteBug
from yoked.text import one_line

# The agent that asks is soon through: whatever ends programs comes again. Twice is enough.
# In a longer time AgentClient has said something.
SHORT_S = 15
_TRIES, _LIMIT_S, _SLACK_S, _CLOSE_S = 2, 1.5, 1.0, 0.5
_ABOUT = {
    "sessions": "of logins by ssh",
    "users": "of a user",
    "orphans": "that have lost their parent",
    "listeners": "that listen at a port",
    "memory": "by their memory",
    "shortage": "where memory runs short",
    "cores": "by what they compute",
    "GPUs": "that use a GPU",
    "age": "by their age",
}


def enders_of(connect: Callable[[], AgentClient]) -> Mapping[str, Any]:
    """What ends programs and sessions there, as yoked.agent.enders tells it, and loops, as
    yoked.agent.writers does; empty: nobody knows. connect: gives an agent of its own.
    """
    for _ in range(_TRIES):
        with contextlib.suppress(YokedError, RemoteBug, OSError):
            client = connect()
            try:
                told = client.call(
                    "health",
                    parts=["enders", "writers"],
                    limit_s=_LIMIT_S,
                    timeout_s=_LIMIT_S + _SLACK_S,
                )
                loops = (told.get("writers") or {}).get("loops") or ()
                return {"loops": loops, **(told.get("enders") or {})}
            finally:
                client.close(_CLOSE_S)
    return {}


def with_ender(told: SshFailure, enders: Mapping[str, Any]) -> SshFailure:
    """A connection that ended, with who ends such, where the host knows one."""
    sessions, programs = enders.get("sessions") or (), enders.get("programs") or ()
    for each in sessions:
        if each["after_s"] <= SHORT_S:
            words = f"its sshd ends a session in which nothing is said for {each['after_s']:g} s"
            place = f"{each['file']}, line {each['line']}"
            text = f"{told.text}; {words}: `{one_line(each['words'])}` ({place})"
            return replace(
                told, text=text, cause="timed-out", about=f"{each['file']}:{each['line']}"
            )
    for each in enders.get("loops") or ():
        if "connections" in each["changes"]:
            words = f"`{one_line(each['command'])}` there ends connections: `{words_of(each)}`"
            return replace(
                told, text=f"{told.text}; {words}", cause="ended-by", about=str(each["pid"])
            )
    for each in programs:
        text = f"{told.text}; {place_of(each)} there signals {chosen(each)}: `{words_of(each)}`"
        return replace(told, text=text, cause="ended-by", about=each["file"] or str(each["pid"]))
    return told


def place_of(ender: Mapping[str, Any]) -> str:
    """Where a script stands that ends programs."""
    if ender["file"]:
        line = f", line {ender['line']}," if ender.get("line") else ""
        return f"{one_line(ender['file'])}{line}"
    return "a script in the words of a command"


def words_of(ender: Mapping[str, Any]) -> str:
    """Its line, or what it is called."""
    return one_line(str(ender.get("words") or ender.get("command") or ""))


def chosen(ender: Mapping[str, Any]) -> str:
    """Which programs it chooses."""
    about = ender.get("about") or ()
    who = "programs that are called as ranks are" if "python" in about else "programs"
    narrower = " and ".join(_ABOUT[each] for each in about if each in _ABOUT)
    between = ", those " if "python" in about and narrower else " "
    return f"{who}{between}{narrower}".rstrip()
