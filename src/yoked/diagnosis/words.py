"""What is said of each cause: one or two sentences, and what to do. Standard library alone.

A sentence does not name the place; whoever shows it puts `rank 1 on beta` before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from yoked.diagnosis.rules import Cause, Code
from yoked.text import one_line
from yoked.units import format_duration, listed


class Words(NamedTuple):
    """what: the evidence. fix: what to do, a line each."""

    what: str
    fix: tuple[str, ...]


# What a kernel's function means for the rank that waits in it; by the start of its name.
_WAITS_IN: Mapping[str, str] = {
    "futex": "for a lock that no thread gives back",
    "hrtimer_nanosleep": "in a sleep",
    "pipe_": "for another process, at a pipe",
    "do_wait": "for another process to end",
    "unix_": "for another process, at a socket",
    "inet_csk_accept": "for somebody to connect",
    "sk_wait_data": "for data of a connection",
    "wait_woken": "for data of a connection",
    "do_sys_poll": "for data of a connection",
    "ep_poll": "for data of a connection",
}


def waits_for(waits_in: str) -> str:
    """For what a process waits in a function of the kernel; empty: that says nothing."""
    return next((said for start, said in _WAITS_IN.items() if waits_in.startswith(start)), "")


def words_of(cause: Cause, hosts: Sequence[str]) -> Words:
    """What is said of a cause. hosts: names by node."""
    return _WORDS[cause.code](cause, hosts)


def _stopped(cause: Cause, hosts: Sequence[str]) -> Words:
    pid, since = cause.params["pid"], format_duration(cause.since_s)
    what = f"its process {pid} was stopped {since} ago (SIGSTOP, or Ctrl-Z), and the others wait"
    return Words(what, (f"kill -CONT {pid}    on {hosts[cause.nodes[0]]}",))


def _stands(cause: Cause, hosts: Sequence[str]) -> Words:
    del hosts
    means = waits_for(str(cause.params.get("waits_in", "")))
    what = (
        f"it stands at {_place(cause)} for {format_duration(cause.since_s)} and uses no CPU"
        f"{f', waiting {means}' if means else ''}; rank {cause.params['waiting']} waits for it "
        f"in {one_line(str(cause.params['what']))}"
    )
    fix = ("look at that line: what it waits for does not come",)
    return Words(what, fix)


def _on_disk(cause: Cause, hosts: Sequence[str]) -> Words:
    what = (
        "it waits in the kernel (state D) for a disk or a network mount for "
        f"{format_duration(cause.since_s)}, at {_place(cause)}"
    )
    host = hosts[cause.nodes[0]]
    return Words(what, (f"df -h; dmesg    on {host}: which mount does not answer?",))


def _asleep(cause: Cause, hosts: Sequence[str]) -> Words:
    host = hosts[cause.nodes[0]]
    what = (
        f"nothing was heard of it for {format_duration(cause.since_s)}, though its kernel takes "
        "what is sent: its programs do not run"
    )
    return Words(what, (f"wake {host}, or look whether it is out of memory or its lid is closed",))


def _unheard(cause: Cause, hosts: Sequence[str]) -> Words:
    gone, listener = (hosts[node] for node in cause.nodes)
    what = (
        f"nothing was heard of it for {format_duration(cause.since_s)}, and nothing that "
        f"{listener} sends is acknowledged: it is off or asleep, or the link between {gone} and "
        f"{listener} is cut"
    )
    return Words(what, ("yoked doctor    once its power, cable and Wi-Fi are in order",))


def _link(cause: Cause, hosts: Sequence[str]) -> Words:
    source, target = (hosts[node] for node in cause.nodes)
    way = f"from {source} to {target}" if cause.params["one_way"] else f"{source} - {target}"
    what = (
        f"the link {way} passes the launchers' words and not the ranks' bytes for "
        f"{format_duration(cause.since_s)}: {cause.params['unsent']:,} bytes are not acknowledged"
    )
    fix = (f"yoked doctor    a firewall that came up on {source} or {target} is the usual cause",)
    return Words(what, fix)


def _early(cause: Cause, hosts: Sequence[str]) -> Words:
    del hosts
    what = (
        f"it ended with status 0, {format_duration(cause.since_s)} ago, while rank "
        f"{cause.params['waiting']} waits for it in {one_line(str(cause.params['what']))}: its "
        "data ran out sooner, or it left out a collective"
    )
    return Words(what, ("give each rank the same number of steps",))


def _mismatch(cause: Cause, hosts: Sequence[str]) -> Words:
    del hosts
    calls = cause.params["calls"]
    assert isinstance(calls, Mapping)
    said = listed(f"rank {rank} in {one_line(str(call))}" for rank, call in calls.items())
    what = f"its collective does not fit the others': {said}"
    return Words(what, ("one rank left out a call, or has a tensor of another shape",))


def _cannot_tell(cause: Cause, hosts: Sequence[str]) -> Words:
    del hosts
    what = (
        f"all ranks wait in {one_line(str(cause.params['what']))} for "
        f"{format_duration(cause.since_s)}, both ends are heard, and nothing tells why"
    )
    return Words(what, ("yoked diagnose --stacks    has the stacks of all ranks",))


def _place(cause: Cause) -> str:
    file, line = one_line(str(cause.params["file"])), cause.params["line"]
    return f"{file}:{line} in {one_line(str(cause.params['function']))}"


_WORDS: Mapping[Code, Callable[[Cause, Sequence[str]], Words]] = {
    "rank-stopped": _stopped,
    "rank-stands": _stands,
    "rank-ended-early": _early,
    "disk-stands": _on_disk,
    "host-asleep": _asleep,
    "host-unheard": _unheard,
    "link-stands": _link,
    "collective-mismatch": _mismatch,
    "cannot-tell": _cannot_tell,
}
