"""What is said of each cause: one or two sentences, and what to do. Standard library alone.

A sentence does not name the place; whoever shows it puts `rank 1 on beta` before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from yoked.diagnosis.cause import SAME_CALLS, SAME_GROUPS, SAME_STEPS, Cause, Code
from yoked.text import one_line
from yoked.units import format_bytes_per_s, format_duration, listed


class Words(NamedTuple):
    """what: the evidence. fix: what to do, a line each."""

    what: str
    fix: tuple[str, ...]


# What a kernel's function means for the rank that waits in it, and what to look for at its line; by
# the start of its name.
_NOTHING_COMES = "what it waits for does not come"
_OTHER_PROCESS = "what does the other process wait for?"
_NO_ANSWER = "why does the other end not answer? Give the call a timeout"
_OF_CONNECTION = ("for data of a connection", _NO_ANSWER)
_WAITS_IN: Mapping[str, tuple[str, str]] = {
    "futex": (
        "for a lock that no thread gives back",
        "who has that lock, and waits for something itself?",
    ),
    "hrtimer_nanosleep": ("in a sleep", "what does it sleep and look for, again and again?"),
    "pipe_": ("for another process, at a pipe", _OTHER_PROCESS),
    "do_wait": ("for another process to end", "what does that process wait for?"),
    "unix_": ("for another process, at a socket", _OTHER_PROCESS),
    "inet_csk_accept": ("for somebody to connect", _NOTHING_COMES),
    "sk_wait_data": _OF_CONNECTION,
    "wait_woken": _OF_CONNECTION,
    "do_sys_poll": _OF_CONNECTION,
    "ep_poll": _OF_CONNECTION,
}
_LATE_FIX: Mapping[str, str] = {
    "saving": "see whether the disk or the network mount on {host} is slow, or full",
    "evaluating": "evaluate on fewer tokens, or on all ranks together",
    "compiling": "wait, or run without torch.compile",
    "importing": "see whether the disk or the network mount of the environment on {host} is slow",
}


def waits_for(waits_in: str) -> str:
    """For what a process waits in a function of the kernel; empty: that says nothing."""
    return _waits(waits_in)[0]


def _waits(waits_in: object) -> tuple[str, str]:
    """The same, with what to look for at the line of the program."""
    found = (means for start, means in _WAITS_IN.items() if str(waits_in).startswith(start))
    return next(found, ("", _NOTHING_COMES))


def words_of(cause: Cause, hosts: Sequence[str]) -> Words:
    """What is said of a cause. hosts: names by node."""
    return _WORDS[cause.code](cause, [named(host) for host in hosts])


def named(host: str) -> str:
    """A host in a sentence, in which the dot of this machine would end it."""
    return "this machine" if host == "." else host


def place(hosts: Sequence[str], rank: int | None) -> str:
    """A rank or hosts, as a sentence begins with them: `rank 1 on this machine`."""
    where = listed(map(named, hosts))
    return where if rank is None else f"rank {rank} on {where}"


def _stopped(cause: Cause, hosts: Sequence[str]) -> Words:
    pid, since = cause.params["pid"], format_duration(cause.since_s)
    what = f"its process {pid} was stopped {since} ago (SIGSTOP, or Ctrl-Z), and the others wait"
    return Words(what, (f"kill -CONT {pid}    on {hosts[cause.nodes[0]]}",))


def _stands(cause: Cause, hosts: Sequence[str]) -> Words:
    del hosts
    means, look_for = _waits(cause.params["waits_in"])
    waiting = (
        f"{f', waiting {means}' if means else ''}; rank {cause.params['waiting']} waits for it"
    )
    waiting += f" in {one_line(str(cause.params['what']))}"
    since, place = format_duration(cause.since_s), _place(cause)
    if cause.params.get("native"):
        what = f"its Python has not run for {since}, and it uses no CPU: native code keeps the "
        what += f"interpreter's lock (GIL); it was last seen at {place}{waiting}"
        fix = "look for a C extension, or a ctypes call, that is called near that line"
    elif cause.params.get("loads"):
        what = f"it has waited for data at {place} for {since} and uses no CPU{waiting}"
        fix = "look at what gives the rows: a process of the loader, its disk or its server"
    else:
        what = f"it stands at {place} for {since} and uses no CPU{waiting}"
        fix = f"look at that line: {look_for}"
    return Words(what, (fix,))


def _late(cause: Cause, hosts: Sequence[str]) -> Words:
    doing, usual_s = str(cause.params["doing"]), cause.params["usual_s"]
    since = format_duration(cause.since_s)
    if doing == "computing":
        what = f"it computes at {_place(cause)}, and the others have waited for {since}"
        what += f"; a step takes {format_duration(usual_s)}" if isinstance(usual_s, float) else ""
        fix = "look at that line: a loop that does not end, or work that no other rank has"
    else:
        longest = "the first time"
        if isinstance(usual_s, float):
            longest = f"{format_duration(usual_s)} so far at most"
        what = f"it has been {doing} for {since}, {longest}, at {_place(cause)}"
        fix = _LATE_FIX.get(doing, "look at that line").format(host=hosts[cause.nodes[0]])
        means, look_for = _waits(cause.params["waits_in"])
        if means:
            what += f", and waits {means} now"
            fix = f"look at that line: {look_for}"
    waiting = f"rank {cause.params['waiting']} waits for it"
    return Words(f"{what}; {waiting} in {one_line(str(cause.params['what']))}", (fix,))


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
    return Words(what, (SAME_STEPS,))


def _mismatch(cause: Cause, hosts: Sequence[str]) -> Words:
    del hosts
    groups = cause.params.get("groups", False)
    return Words(one_line(str(cause.params["said"])), (SAME_GROUPS if groups else SAME_CALLS,))


def _slow_cpu(cause: Cause, hosts: Sequence[str]) -> Words:
    host, params = hosts[cause.nodes[0]], cause.params
    why, fix = held_back_words(params, host)
    if params["delayed"]:
        why = why or "another program, or a limit"
        what = (
            f"{_times(cause)}: it waits for a core, and gets {_figure(params['cores'])} cores "
            f"where it used {_figure(params['usual_cores'])}: {why}"
        )
        return Words(what, fix or (f"top    on {host}: what else runs there?",))
    why = why or "a lower clock, heat, or a shared memory"
    what = (
        f"{_times(cause)}: for the same work it needs {_figure(params['cpu_s'])} s of a core, and "
        f"needed {_figure(params['usual_cpu_s'])} s: {why}"
    )
    return Words(what, fix or (f"is {host} on battery, or hot? sensors, and its power profile",))


def held_back_words(params: Mapping[str, object], host: str) -> Words:
    """What yoked.diagnosis.slow.held_back found, and what to do; empty: nothing."""
    said: list[tuple[str, str]] = []
    if "limited" in params:
        share = _percent(params["limited"])
        what = f"a CPU limit of its container or service stops it in {share} of the periods"
        said.append((what, f"a higher CPU limit for the container or service on {host}"))
    if "stolen" in params:
        what = f"the host of this virtual machine takes {_percent(params['stolen'])} of its time"
        said.append((what, f"what else runs on the machine of which {host} is a part?"))
    if "program" in params:
        name = one_line(str(params["program"]))
        what = f"the program {name} uses {_figure(params['program_cores'])} cores beside it"
        said.append((what, f"top    on {host}: end {name}, or have it give way by renice"))
    if "hot" in params:
        said.append(("its cores slow themselves down as they are hot", f"cool {host}: fan, dust"))
    if "battery" in params:
        said.append(("it runs on its battery", f"plug {host} in"))
    if "clock_hz" in params:
        now, most = (_figure(params[name], 1e9) for name in ("clock_hz", "most_hz"))
        usual = params["usual_clock_hz"]
        was = "" if usual is None else f", and was at {_figure(usual, 1e9)}"
        fix = f"powerprofilesctl    on {host}: its power profile"
        said.append((f"its clock is at {now} of {most} GHz{was}", fix))
    if "swapped_bytes_per_s" in params:
        rate = _figure(params["swapped_bytes_per_s"], 1e6)
        what = f"it swaps, {rate} MB/s: its memory is too small"
        said.append((what, f"a smaller --device-batch-size, or fewer programs on {host}"))
    return Words("; ".join(what for what, _ in said), tuple(fix for _, fix in said))


def _slow_data(cause: Cause, hosts: Sequence[str]) -> Words:
    del hosts
    share = cause.params["share"]
    assert isinstance(share, float)
    what = f"{_times(cause)}: it loads data in {share:.0%} of the time, and the others wait"
    return Words(what, ("more workers that load, or data on a faster disk",))


def _slow_link(cause: Cause, hosts: Sequence[str]) -> Words:
    source, target = (hosts[node] for node in cause.nodes)
    params = cause.params
    what = (
        f"{_times(cause)}: {source} sends {_figure(params['bytes_per_s'], 1e6)} MB/s to {target}, "
        f"and sent {_figure(params['usual_bytes_per_s'], 1e6)}; a packet takes "
        f"{_figure(params['rtt_s'], 1e-3)} ms, and took {_figure(params['usual_rtt_s'], 1e-3)}"
    )
    fix = f"yoked probe    measures the link between {source} and {target} anew"
    return Words(what, (fix, "what else uses this network, or has the Wi-Fi moved?"))


def _lost(cause: Cause, hosts: Sequence[str]) -> Words:
    source, target = (hosts[node] for node in cause.nodes)
    lost = cause.params["lost"]
    assert isinstance(lost, float)
    what = f"{_times(cause)}: of the packets from {source} to {target} {lost:.1%} are lost"
    return Words(what, (f"yoked doctor    a cable, a port, or the Wi-Fi of {source} or {target}",))


def _times(cause: Cause) -> str:
    times, since = cause.params["times"], format_duration(cause.since_s)
    taken = f"taken {_figure(times)} times as long" if times else "taken much longer"
    return f"for {since} steps have {taken}"


def _figure(value: object, unit: float = 1.0) -> str:
    assert isinstance(value, float)
    return f"{value / unit:.3g}"


def _percent(share: object) -> str:
    assert isinstance(share, float)
    return f"{share:.0%}"


def _cannot_tell(cause: Cause, hosts: Sequence[str]) -> Words:
    del hosts
    waits = (
        f"all ranks wait in {one_line(str(cause.params['what']))} for "
        f"{format_duration(cause.since_s)}"
    )
    rate = cause.params["bytes_per_s"]
    assert isinstance(rate, float)
    if rate:
        what = f"{waits}, and bytes come, {format_bytes_per_s(rate)}: the network takes so long"
        fix = "yoked probe    measures the network; `yoked plan` then says what sends less"
        return Words(what, (fix,))
    return Words(
        f"{waits}, both ends are heard, and nothing tells why",
        ("yoked diagnose --stacks    has the stacks of all ranks",),
    )


def _place(cause: Cause) -> str:
    file, line = one_line(str(cause.params["file"])), cause.params["line"]
    return f"{file}:{line} in {one_line(str(cause.params['function']))}"


_WORDS: Mapping[Code, Callable[[Cause, Sequence[str]], Words]] = {
    "rank-stopped": _stopped,
    "rank-stands": _stands,
    "rank-late": _late,
    "rank-ended-early": _early,
    "disk-stands": _on_disk,
    "host-asleep": _asleep,
    "host-unheard": _unheard,
    "link-stands": _link,
    "collective-mismatch": _mismatch,
    "cannot-tell": _cannot_tell,
    "cpu-slow": _slow_cpu,
    "data-slow": _slow_data,
    "link-slow": _slow_link,
    "packets-lost": _lost,
}
