"""What a host has: memory, cores, a clock; and whether it is one host or two names of it."""

from __future__ import annotations

from collections.abc import Iterator

from yoked.doctor.check import Check, page
from yoked.doctor.checks.keeping import rewrite_file
from yoked.doctor.checks.reading import (
    at,
    by_hand,
    edit_entry,
    finding,
    fleet_file,
    part,
    plural,
    ranks_of,
    trains_on_gpu,
)
from yoked.fleet.model import usable_gpus
from yoked.records.examination import Examination, Finding, Fix, HostSeen
from yoked.records.shell import command_line, shell_line
from yoked.units import format_bytes, format_duration

# What `import torch` and an empty rank hold.
_RANK_BYTES = 400 << 20
# What torch's libraries and threads commit before they use it.
_COMMIT_BYTES = 3 << 30
_CLOCK_S = 1.0
# From 2 on nobody but root may look into a process, not even its parent.
_PTRACE = 2


def _same_machine(seen: Examination) -> Iterator[Finding]:
    first: dict[str, str] = {}
    for host in seen.up:
        machine = host.facts.get("machine")
        if machine is None:
            continue
        other = first.setdefault(str(machine), host.name)
        if other != host.name:
            yield finding(
                "same-machine",
                "error",
                (host.name, other),
                f"{other} and {host.name} are two names of one machine",
                "its ranks would be started twice, and take each other's cores and files",
                _drop_host(seen, host.name),
            )


def _drop_host(seen: Examination, name: str) -> Fix:
    """Write yoked.toml anew without one of the names."""
    path = str(at(seen.controller, "fleet") or "yoked.toml")
    kept = [host.name for host in seen.hosts if host.name != name]
    words = ["yoked", "init", "--force", *kept, "--fleet", path]
    return rewrite_file("", fleet_file(seen), "one-name", command_line(*words))


def _memory(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        available = part(host, "memory", "available_bytes")
        if available is None:
            available = host.facts.get("memory_available_bytes")
        if available is None:
            continue
        # A limit of the control group counts swap by itself.
        swap = 0 if part(host, "memory", "limit_bytes") else part(host, "memory", "swap_free_bytes")
        ranks = ranks_of(host)
        needed = (_model_bytes(seen, host) or _RANK_BYTES) * ranks
        if available >= needed:
            continue
        grave = available + (swap or 0) < needed
        yield finding(
            "memory",
            "error" if grave else "warning",
            host.name,
            f"{format_bytes(available)} of memory are free on {host.name}; "
            f"{plural(ranks, 'rank')} would take about {format_bytes(needed)}",
            "the kernel ends a rank, and the others say `Connection closed by peer`"
            if grave
            else "it will swap, and all ranks wait for it",
            by_hand(
                host.name,
                "end what holds memory (`ps aux --sort=-rss | head`), or take fewer ranks, a "
                "smaller model or --device-batch-size",
            ),
        )


def _model_bytes(seen: Examination, host: HostSeen) -> int:
    """What a model takes of a host's memory, for one rank; 0: nothing, or it is not known."""
    return 0 if trains_on_gpu(seen, host) else seen.need.memory_bytes or 0


def _gpu_memory(seen: Examination) -> Iterator[Finding]:
    needed = seen.need.gpu_memory_bytes
    # Where only some hosts have a GPU, sizes that are not given are those of the CPU.
    if needed is None or not all(trains_on_gpu(seen, host) for host in seen.up):
        return
    for host in seen.up:
        used = usable_gpus(host.facts)[: ranks_of(host)]
        smallest = min(used, key=lambda each: each.get("memory_bytes") or needed)
        if (smallest.get("memory_bytes") or needed) < needed:
            yield finding(
                "gpu-memory",
                "warning",
                host.name,
                f"{smallest.get('name')} of {host.name} has "
                f"{format_bytes(smallest['memory_bytes'])} of memory; a rank would take about "
                f"{format_bytes(needed)}",
                "a rank that finds no room ends with `torch.OutOfMemoryError: CUDA out of memory`",
                by_hand(host.name, "take a smaller --device-batch-size or --depth"),
            )


def _overcommit(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        left = part(host, "memory", "commit_left_bytes")
        needed = max(_COMMIT_BYTES, _model_bytes(seen, host)) * ranks_of(host)
        if part(host, "memory", "overcommit") == 2 and left is not None and left < needed:
            yield finding(
                "overcommit",
                "error",
                host.name,
                f"the kernel of {host.name} promises no more memory than it has "
                f"(vm.overcommit_memory 2), and {format_bytes(left)} are left to promise; "
                f"{plural(ranks_of(host), 'rank')} ask for about {format_bytes(needed)}",
                "torch ends with `Cannot allocate memory`, although memory is free",
                Fix(
                    host.name,
                    shell_line("sysctl -w vm.overcommit_memory=0"),
                    root=True,
                    undo=shell_line("sysctl -w vm.overcommit_memory=2"),
                ),
            )


def _ranks(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        cores, ranks = host.facts.get("usable_cores"), ranks_of(host)
        if not cores or ranks <= cores or host.facts.get("gpus"):
            continue
        fast = part(host, "processors", "slow_cores") or 0
        slow = f" ({fast} slow ones are left out)" if fast else ""
        yield finding(
            "ranks",
            "warning",
            host.name,
            f"{host.name} is to run {plural(ranks, 'rank')} on {plural(cores, 'core')}{slow}",
            "ranks that share a core take turns, and each collective waits for all of them",
            _set_ranks(seen, host.name, cores),
        )


def _set_ranks(seen: Examination, host: str, ranks: int) -> Fix:
    """Write another number of ranks into a host's entry of yoked.toml."""
    return edit_entry(seen, host, f"s/^ranks *=.*/ranks = {ranks}/")


def _quota(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        quota, online = part(host, "processors", "quota_cores"), part(host, "processors", "online")
        if quota is None or not online or quota >= online:
            continue
        yield finding(
            "cpu-quota",
            "warning",
            host.name,
            f"the control group on {host.name} grants {quota:g} of {plural(online, 'CPU')}",
            "a rank with more threads than that is stopped within each tenth of a second",
            by_hand(host.name, "start the container or unit with a higher --cpus or CPUQuota"),
        )


def _slow_cores(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        slow, fast = (part(host, "processors", each) for each in ("slow_cores", "fast_cores"))
        if slow and fast and host.wanted.get("ranks") and ranks_of(host) > fast:
            yield finding(
                "slow-cores",
                "warning",
                host.name,
                f"{host.name} has {plural(fast, 'fast core')} and {slow} slow ones, and "
                f"{plural(ranks_of(host), 'rank')}",
                "some ranks run on slow cores, and all wait for them",
                _set_ranks(seen, host.name, fast),
            )


def _clock(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        offset, error = host.clock_offset_s, host.clock_error_s or 0.0
        if offset is None or abs(offset) - error < _CLOCK_S:
            continue
        which = "ahead" if offset > 0 else "behind"
        service = part(host, "clock", "service")
        keeper = f"{service} is to keep it" if service else "nobody keeps it"
        yield finding(
            "clock",
            "warning",
            host.name,
            f"the clock of {host.name} is {format_duration(abs(offset))} {which}; {keeper}",
            "torchrun's rendezvous drops hosts that differ by more than 15 s, certificates may "
            "count as expired, and logs of hosts do not line up",
            *_set_clock(host),
        )


def _set_clock(host: HostSeen) -> tuple[Fix, ...]:
    service = part(host, "clock", "service")
    if service == "chrony":
        return (Fix(host.name, shell_line("chronyc makestep"), root=True),)
    return (
        Fix(
            host.name,
            shell_line("timedatectl set-ntp true"),
            root=True,
            # Where somebody keeps the clock already, it is on, and stays so.
            undo=None if service else shell_line("timedatectl set-ntp false"),
        ),
    )


def _ptrace(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        scope = part(host, "kernel", "ptrace_scope")
        if scope is not None and scope >= _PTRACE:
            yield finding(
                "ptrace",
                "warning",
                host.name,
                f"nobody but root may look into a process on {host.name} "
                f"(kernel.yama.ptrace_scope {scope})",
                "py-spy says `Permission denied`; stacks that ranks write themselves still work",
                Fix(
                    host.name,
                    shell_line("sysctl -w kernel.yama.ptrace_scope=1"),
                    root=True,
                    undo=shell_line("sysctl -w kernel.yama.ptrace_scope={scope}", scope=scope),
                ),
            )


def _check_of_cores() -> tuple[Check, ...]:
    """The checks of processors."""
    return (
        Check(
            "ranks",
            "Does every rank have a core?",
            ("facts",),
            "warning",
            page(
                symptom="Eight ranks are slower than four.",
                cause="More ranks in yoked.toml than cores that a job may fill.",
                fix="Writes as many ranks as there are cores into yoked.toml. On a CPU, one rank "
                "that uses all cores is mostly best.",
            ),
            _ranks,
            explains=("slow-cores",),
            quick=True,
        ),
        Check(
            "slow-cores",
            "Does every rank fit onto the fast cores?",
            ("health.processors",),
            "warning",
            page(
                symptom="The first step is slow, then one rank is slower than the others.",
                cause="Processors with performance and efficiency cores: a rank that the kernel "
                "puts on the latter takes twice as long.",
                fix="Writes as many ranks as there are fast cores into yoked.toml.",
            ),
            _slow_cores,
        ),
        Check(
            "cpu-quota",
            "May a run use all of the cores?",
            ("health.processors",),
            "warning",
            page(
                symptom="A host is slower than its cores; it stutters in tenths of a second.",
                cause="A container's --cpus or a unit's CPUQuota.",
                fix="By hand: a higher quota, or one rank with as many threads as it grants.",
                elsewhere="Kubernetes: `resources.limits.cpu`; leave it out, or make it whole.",
            ),
            _quota,
        ),
    )


CHECKS = (
    Check(
        "same-machine",
        "Is every name of yoked.toml another machine?",
        ("facts",),
        "error",
        page(
            symptom="`EADDRINUSE`, or two ranks that say they are rank 0; half the speed.",
            cause="Two entries of ~/.ssh/config lead to one machine.",
            fix="Writes yoked.toml anew without the second name. For more ranks on one host, "
            "write `ranks = 2`.",
        ),
        _same_machine,
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
    ),
    Check(
        "memory",
        "Is there enough memory?",
        ("health.memory", "facts"),
        "error",
        page(
            symptom="A rank ends with signal 9; the others say `Connection closed by peer`. The "
            "kernel's log has `Out of memory: Killed process`.",
            cause="Other programs, ranks that were left behind, a container's limit, or a model "
            "that is too large. Where a GPU trains, the model is not counted: see gpu-memory.",
            fix="By hand.",
            elsewhere="Kubernetes: `OOMKilled`; Slurm: `Detected 1 oom_kill event`.",
        ),
        _memory,
        explains=("world-failed",),
        quick=True,
    ),
    Check(
        "gpu-memory",
        "Is there enough memory on every GPU?",
        ("facts", "need"),
        "warning",
        page(
            symptom="`torch.OutOfMemoryError: CUDA out of memory. Tried to allocate ...`.",
            cause="A model, or a --device-batch-size, that is larger than the smallest GPU. How "
            "much it takes is foreseen for bfloat16.",
            fix="By hand: with a smaller --device-batch-size the same steps are made in more "
            "parts, and the curve stays the same.",
        ),
        _gpu_memory,
        quick=True,
    ),
    Check(
        "overcommit",
        "Does the kernel promise enough memory?",
        ("health.memory",),
        "error",
        page(
            symptom="`OSError: [Errno 12] Cannot allocate memory`, with memory free.",
            cause="vm.overcommit_memory is 2: what is asked for counts, not what is used.",
            fix="Sets it to the kernel's default, until the next start.",
        ),
        _overcommit,
        explains=("world-failed", "torch-import"),
    ),
    *_check_of_cores(),
    Check(
        "clock",
        "Do all clocks show the same time?",
        ("clock",),
        "warning",
        page(
            symptom="Healthy hosts drop out of an elastic rendezvous; certificates are `not yet "
            "valid`; logs seem to answer before they were asked.",
            cause="Nobody sets the clock, or the battery of its board is empty.",
            fix="Has the host ask a time server.",
            elsewhere="Slurm refuses: `Munge decode failed: Rewound credential`.",
        ),
        _clock,
    ),
    Check(
        "ptrace",
        "May a tool look into a rank that hangs?",
        ("health.kernel",),
        "warning",
        page(
            symptom="`py-spy dump`: `Error: Permission Denied: Try running again with elevated "
            "permissions`.",
            cause="kernel.yama.ptrace_scope. With 1, the default of many systems, a parent may "
            "look into its children, and `sudo py-spy` into all; from 2 on only root may.",
            fix="Sets it to 1, until the next start. The stacks that ranks write themselves need "
            "none of it.",
            elsewhere="Containers need `--cap-add SYS_PTRACE`.",
        ),
        _ptrace,
    ),
)
