"""What a host has: memory, cores, a clock; and whether it is one host or two names of it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from yoked.costmodel.memory import USABLE_GPU_FRACTION
from yoked.doctor.check import Match, check
from yoked.doctor.checks.environment import lines_out
from yoked.doctor.checks.query import gpus_that_train, mapping, part, ranks_of, turned_clock
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.fleet import drop_host, set_ranks
from yoked.doctor.repairs.system import set_clock, sysctl
from yoked.records.examination import Examination, Fix, HostSeen
from yoked.text import one_line
from yoked.units import format_duration, plural

# What `import torch` and an empty rank hold.
_RANK_BYTES = 400 << 20
# What torch's libraries and threads commit before they use it.
_COMMIT_BYTES = 3 << 30
_CLOCK_S = 1.0
# More than what one types by hand, to do something beside.
_LOW_NICE = 11
# Of the seconds of an examination: a step takes as much longer.
_STOOD_S = 1.0
# From 2 on nobody but root may look into a process, not even its parent.
_PTRACE = 2


@check(
    "same-machine",
    question="Is every name of yoked.toml another machine?",
    reads=("facts",),
    severity="error",
    saw="{other} and {host} are two names of one machine",
    why="its ranks would be started twice, and take each other's cores and files",
    symptom="`EADDRINUSE`, or two ranks that say they are rank 0; half the speed.",
    cause="Two entries of ~/.ssh/config lead to one machine.",
    fix="Writes yoked.toml anew without the second name. For more ranks on one host, "
    "write `ranks = 2`.",
    explains=(
        "same-address",
        "other-answers",
        "dial-failed",
        "stale-ranks",
        "memory",
        "world-failed",
        "peer-name-wrong",
        "firewall-reject",
    ),
    quick=True,
)
def same_machine(seen: Examination) -> Iterator[Match]:
    first: dict[str, str] = {}
    for host in seen.up:
        machine = host.facts.get("machine")
        if machine is None:
            continue
        other = first.setdefault(str(machine), host.name)
        if other != host.name:
            yield Match((host.name, other), drop_host(seen, host.name), other=other)


@check(
    "no-proc",
    question="Can the host be supervised?",
    reads=("facts",),
    severity="error",
    saw="{host} runs {system}, and has no /proc",
    why="what runs of a job is recognised by it, and Gloo's transport on macOS does not connect to "
    "that on Linux: `yoked train` and `yoked run` refuse it as a host",
    symptom="`garage cannot be a host of a run yet: it has no /proc`.",
    cause="yoked.toml has a Mac. It can start, follow and stop runs of other hosts, and `yoked "
    "train --fleet .` trains on it alone.",
    fix="Writes yoked.toml anew without it.",
    explains=("world-failed",),
    quick=True,
)
def no_proc(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        if host.facts.get("has_proc") is not False:
            continue
        fix = (
            drop_host(seen, host.name)
            if len(seen.hosts) > 1
            else by_hand(host.name, "on {host}: yoked train --fleet .")
        )
        yield Match(host.name, fix, system=host.facts.get("os") or "another system")


@check(
    "memory",
    question="Is there enough memory?",
    reads=("health.memory", "facts"),
    severity="error",
    saw="{available:bytes} of memory are free on {host}; {ranks:plural rank} would take "
    "about {needed:bytes}",
    why={
        "killed": "the kernel ends a rank, and the others say `Connection closed by peer`",
        "swaps": "it will swap, and all ranks wait for it",
    },
    symptom="A rank ends with signal 9; the others say `Connection closed by peer`. The "
    "kernel's log has `Out of memory: Killed process`.",
    cause="Other programs, ranks that were left behind, a container's limit, or a model "
    "that is too large. Where a GPU trains, the model is not counted but for tables that `--tables "
    "host` keeps in this memory: see gpu-memory.",
    fix="By hand.",
    on_cluster="Kubernetes: `OOMKilled`; Slurm: `Detected 1 oom_kill event`.",
    explains=("world-failed", "torch-import"),
    quick=True,
)
def memory(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        available = part(host, "memory", "available_bytes")
        if available is None:
            available = host.facts.get("memory_available_bytes")
        if available is None:
            continue
        # A limit of the control group counts swap by itself.
        swap = 0 if part(host, "memory", "limit_bytes") else part(host, "memory", "swap_free_bytes")
        ranks = ranks_of(seen, host)
        needed = (_model_bytes(seen, host) or _RANK_BYTES) * ranks
        if available >= needed:
            continue
        grave = available + (swap or 0) < needed
        yield Match(
            host.name,
            by_hand(
                host.name,
                "end what holds memory (`ps aux --sort=-rss | head`), or take fewer ranks, a "
                "smaller model or --device-batch-size",
            ),
            severity="error" if grave else "warning",
            available=available,
            ranks=ranks,
            needed=needed,
            how="killed" if grave else "swaps",
        )


def _model_bytes(seen: Examination, host: HostSeen) -> int:
    """What a model takes of a host's memory, for one rank; 0: nothing, or it is not known."""
    need = seen.need
    found = need.host_bytes_beside_gpu if gpus_that_train(seen, host) else need.memory_bytes
    return found or 0


@check(
    "gpu-memory",
    question="Is there enough memory on every GPU?",
    reads=("facts", "need"),
    severity="warning",
    saw="{name} of {host} has {memory_bytes:bytes} of memory, {usable:bytes} of it for a rank, "
    "which would take about {needed:bytes}",
    why="a rank that finds no room ends with `torch.OutOfMemoryError: CUDA out of memory`",
    symptom="`torch.OutOfMemoryError: CUDA out of memory. Tried to allocate ...`.",
    cause="A model, or a --device-batch-size, that is larger than the smallest GPU. How "
    "much it takes is foreseen for bfloat16.",
    fix="By hand: with a smaller --device-batch-size the same steps are made in more "
    "parts, and the curve stays the same.",
    quick=True,
)
def gpu_memory(seen: Examination) -> Iterator[Match]:
    # Of what is asked for: what is left open is chosen by what a GPU has.
    needed = seen.need.gpu_memory_bytes
    if needed is None:
        return
    for host in seen.up:
        used = gpus_that_train(seen, host)[: ranks_of(seen, host)]
        if not used:
            continue
        smallest = min(used, key=lambda each: each.get("memory_bytes") or math.inf)
        usable = USABLE_GPU_FRACTION * (smallest.get("memory_bytes") or math.inf)
        if usable < needed:
            yield Match(
                host.name,
                by_hand(host.name, "take a smaller --device-batch-size or --depth"),
                name=smallest.get("name"),
                memory_bytes=smallest["memory_bytes"],
                usable=round(usable),
                needed=needed,
            )


@check(
    "overcommit",
    question="Does the kernel promise enough memory?",
    reads=("health.memory",),
    severity="error",
    saw="the kernel of {host} promises no more memory than it has (vm.overcommit_memory 2), "
    "and {left:bytes} are left to promise; {ranks:plural rank} ask for about "
    "{needed:bytes}",
    why="torch ends with `Cannot allocate memory`, although memory is free",
    symptom="`OSError: [Errno 12] Cannot allocate memory`, with memory free.",
    cause="vm.overcommit_memory is 2: what is asked for counts, not what is used.",
    fix="Sets it to the kernel's default, until the next start.",
    explains=("world-failed", "torch-import"),
)
def overcommit(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        left = part(host, "memory", "commit_left_bytes")
        needed = max(_COMMIT_BYTES, _model_bytes(seen, host)) * ranks_of(seen, host)
        if part(host, "memory", "overcommit") == 2 and left is not None and left < needed:
            yield Match(
                host.name,
                sysctl(host.name, "vm.overcommit_memory", 0, was=2),
                left=left,
                ranks=ranks_of(seen, host),
                needed=needed,
            )


@check(
    "ranks",
    question="Does every rank have a core, and a fast one?",
    reads=("facts", "health.processors"),
    severity="warning",
    saw={
        "many": "{host} is to run {ranks:plural rank} on {cores:plural core}{slow}",
        "slow": "{host} has {cores:plural fast core} and {slow} slow ones, and {ranks:plural rank}",
    },
    why={
        "many": "ranks that share a core take turns, and each collective waits for all of them",
        "slow": "some ranks run on slow cores, and all wait for them",
    },
    symptom="Eight ranks are slower than four; or the first step is slow, then one rank is slower "
    "than the others.",
    cause="More ranks in yoked.toml than cores that a job may fill. Processors with performance "
    "and efficiency cores: a rank that the kernel puts on the latter takes twice as long.",
    fix="Writes as many ranks as there are cores, or fast cores, into yoked.toml. On a CPU, one "
    "rank that uses all cores is mostly best.",
    # Too many for all of its cores are too many for the fast ones.
    explains=("ranks",),
    quick=True,
)
def ranks(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        cores, ranks = host.facts.get("usable_cores"), ranks_of(seen, host)
        slow, fast = (part(host, "processors", each) for each in ("slow_cores", "fast_cores"))
        if cores and ranks > cores and not gpus_that_train(seen, host):
            fewer = set_ranks(seen, host.name, cores)
            left_out = f" ({slow} slow ones are left out)" if slow else ""
            yield Match(host.name, fewer, how="many", ranks=ranks, cores=cores, slow=left_out)
        if slow and fast and host.wanted.get("ranks") and ranks > fast:
            fewer = set_ranks(seen, host.name, fast)
            yield Match(host.name, fewer, how="slow", ranks=ranks, cores=fast, slow=slow)


@check(
    "cpu-quota",
    question="May a run use all of the cores?",
    reads=("health.processors",),
    severity="error",
    saw={
        "": "the control group on {host} grants {limit}",
        "priority": "what comes in by ssh to {host} gets {limit}",
        "stopped": "a rank of the doctor's on {host} was stopped and continued {limit}",
    },
    why={
        "": "a rank with more threads than that is stopped within each tenth of a second",
        "priority": "ranks inherit it, and all ranks wait for the slowest",
        "stopped": "a rank of a run stands as well, and all others wait for it",
    },
    symptom="A host is slower than its cores; it stutters in tenths of a second, or as soon as "
    "anything else runs there.",
    cause="A container's --cpus or a unit's CPUQuota; `chrt`, `renice` or `taskset` in a start "
    "file of the shell, or Nice= or CPUAffinity= in the ssh server's unit; `strace -f` that was "
    "left on the ssh server; a program that stops others part of the time (cpulimit), which is an "
    "error where they stand for a second and more.",
    fix="By hand: a higher quota, or one rank with as many threads as it grants; or the usual "
    "priority.",
    on_cluster="Kubernetes: `resources.limits.cpu`; leave it out, or make it whole.",
    explains=(
        "paused", "agent-failed", "torch-import", "world-failed", "ssh-slow", "jitter", "loss"
    ),
)  # fmt: skip
def cpu_quota(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        yield from _stopped(host)
        for how, limit, fixes in _held_back(host):
            yield Match(host.name, *fixes, severity="warning", how=how, limit=limit)


def _held_back(host: HostSeen) -> Iterator[tuple[str, str, tuple[Fix, ...]]]:
    """(which of the sentences fits, what holds a run back, the lines that end that)."""
    told = mapping(part(host, "processors"))
    own, of_init = told.get("affinity"), told.get("of_init")
    if own and of_init and own < of_init:
        look = by_hand(
            host.name,
            "take `taskset` out of the shell's start files, or CPUAffinity= out of the ssh "
            "server's unit; `taskset -p 1` shows what process 1 may use",
        )
        yield "priority", f"{own} of {plural(of_init, 'CPU')}", lines_out(host, "cpus", look)
    quota, online = told.get("quota_cores"), told.get("online")
    if quota is not None and online and quota < online:
        more = by_hand(host.name, "start the container or unit with a higher --cpus or CPUQuota")
        yield "", f"{quota:g} of {plural(online, 'CPU')}", (more,)
    if tracer := mapping(told.get("tracer")):
        name = one_line(str(tracer.get("command") or "a program"))
        limit = f"a look of {name} (process {tracer['pid']}) at each of its system calls"
        yield "priority", limit, (by_hand(host.name, "end it: sudo kill {pid}", pid=tracer["pid"]),)
    nice, is_idle = told.get("nice") or 0, told.get("policy") == "idle"
    if is_idle or nice >= _LOW_NICE:
        look = by_hand(
            host.name,
            "take `chrt`, `nice` or `renice` out of the shell's start files, or out of the ssh "
            "server's unit (Nice=, CPUSchedulingPolicy=)",
        )
        limit = "only what is idle (SCHED_IDLE)" if is_idle else f"the low priority {nice:g}"
        yield "priority", limit, lines_out(host, "priority", look)


def _stopped(host: HostSeen) -> Iterator[Match]:
    """Whether somebody stops what runs there, part of the time; who is known by his SIGCONT."""
    told = mapping(mapping(host.torch).get("stops"))
    times, lost_s = told.get("times") or 0, told.get("lost_s") or 0.0
    # Once may be a person.
    if times < 2:
        return
    pid, name = told.get("pid"), one_line(str(told.get("command") or ""))
    yield Match(
        host.name,
        by_hand(host.name, "end it, if it can go: sudo kill {pid}", pid=pid)
        if pid and name
        else by_hand(host.name, "look for what stops others, such as cpulimit: ps aux"),
        severity="error" if lost_s >= _STOOD_S else "warning",
        how="stopped",
        limit=f"{times} times, and stood for {format_duration(lost_s)}"
        + (f"; {name} (process {pid}) did it" if pid and name else ""),
    )


@check(
    "clock",
    question="Do all clocks show the same time?",
    reads=("clock",),
    severity="error",
    saw={
        "": "the clock of {host} is {abs:duration} {which}; {keeper}",
        "here": "the clock of this machine is {abs:duration} {which}; {keeper}",
        "turned": "while {host} was looked at, {which}; {keeper}",
        "turned-here": "while all hosts were looked at, {which}; {keeper}",
    },
    why={
        **dict.fromkeys(
            ("", "here"),
            "torchrun's rendezvous drops hosts that differ by more than 15 s, certificates may "
            "count as expired, and logs of hosts do not line up",
        ),
        **dict.fromkeys(
            ("turned", "turned-here"),
            "what waits for a minute waits for another time there: deadlines pass early, or late",
        ),
    },
    symptom="Healthy hosts drop out of an elastic rendezvous; certificates are `not yet "
    "valid`; logs seem to answer before they were asked.",
    cause="Nobody sets the clock, or the battery of its board is empty. Where all hosts agree with "
    "each other, it is the clock of the machine where the command was typed. A clock that runs at "
    "another speed is an error: the time source of a virtual machine, or a faketime that was left.",
    fix="Has the host ask a time server; by hand where the clock runs at another speed, or is set "
    "again and again.",
    on_cluster="Slurm refuses: `Munge decode failed: Rewound credential`.",
)
def clock(seen: Examination) -> Iterator[Match]:
    turned = {host.name: found for host in seen.up if (found := turned_clock(host))}
    # All but one that are wrong in the same way would be a wonder.
    is_here = len(turned) == len(seen.up) > 1
    for name, (which, counts) in list(turned.items())[: 1 if is_here else None]:
        yield Match(
            () if is_here else name,
            by_hand(
                "" if is_here else name,
                "end what turns its clock: two time services at once, a script with `date -s`, "
                "faketime (LD_PRELOAD, /etc/ld.so.preload); or mend the time source of its virtual "
                "machine; one that was asleep meanwhile is looked at again",
            ),
            severity="error" if counts else "warning",
            how="turned-here" if is_here else "turned",
            which=which,
            keeper="deadlines count by it" if counts else "deadlines do not count by it",
        )
    odd = [
        host
        for host in seen.up
        if host.name not in turned
        and host.clock_offset_s is not None
        and abs(host.clock_offset_s) - (host.clock_error_s or 0.0) >= _CLOCK_S
    ]
    offsets = [host.clock_offset_s or 0.0 for host in odd]
    if len(odd) > 1 and len(odd) == len(seen.up) and max(offsets) - min(offsets) < 2 * _CLOCK_S:
        yield Match(
            (),
            by_hand("", "sudo timedatectl set-ntp true; or, where it runs with faketime, without"),
            severity="warning",
            how="here",
            abs=abs(offsets[0]),
            which="behind" if offsets[0] > 0 else "ahead",
            keeper="all hosts agree with each other",
        )
        return
    for host, offset in zip(odd, offsets, strict=True):
        service = part(host, "clock", "service")
        yield Match(
            host.name,
            set_clock(host.name, service),
            severity="warning",
            abs=abs(offset),
            which="ahead" if offset > 0 else "behind",
            keeper=f"{service} is to keep it" if service else "nobody keeps it",
        )


@check(
    "ptrace",
    question="May a tool look into a rank that hangs?",
    reads=("health.kernel",),
    severity="warning",
    saw="nobody but root may look into a process on {host} (kernel.yama.ptrace_scope {scope})",
    why="py-spy says `Permission denied`; stacks that ranks write themselves still work",
    symptom="`py-spy dump`: `Error: Permission Denied: Try running again with elevated "
    "permissions`.",
    cause="kernel.yama.ptrace_scope. With 1, the default of many systems, a parent may "
    "look into its children, and `sudo py-spy` into all; from 2 on only root may.",
    fix="Sets it to 1, until the next start. The stacks that ranks write themselves need "
    "none of it.",
    on_cluster="Containers need `--cap-add SYS_PTRACE`.",
)
def ptrace(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        scope = part(host, "kernel", "ptrace_scope")
        if scope is not None and scope >= _PTRACE:
            yield Match(
                host.name, sysctl(host.name, "kernel.yama.ptrace_scope", 1, was=scope), scope=scope
            )


CHECKS = (same_machine, no_proc, memory, gpu_memory, overcommit, ranks, cpu_quota, clock, ptrace)
