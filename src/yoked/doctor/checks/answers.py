"""Whether hosts answered what they were asked: what could not be looked at is no good news."""

from __future__ import annotations

import re
from collections.abc import Iterator

from yoked.agent.basics import EXECUTABLE
from yoked.doctor.check import Match, check
from yoked.doctor.checks.query import mapping, part
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.tables import lift_denial
from yoked.records.examination import Examination, Fix, HostSeen
from yoked.text import one_line

# What every examination asks of each host, and parts of its health that a run cannot do without.
_CALLS = ("facts", "interfaces", "environment", "health", "trial")
_NEEDED = ("folders", "limits")
# Without these hardly any program works; and what a whole system may lack.
_GRAVE, _OF_MACHINES = frozenset({"/dev/null", "/bin/sh", "/proc"}), frozenset({"/sys"})
_NUMBERS = {"/dev/null": (1, 3), "/dev/zero": (1, 5), "/dev/urandom": (1, 9)}
# A line of a unit that takes executable memory away.
_DENIES = re.compile(r"(/.*):(\d+) MemoryDenyWriteExecute=\s*(?:yes|true|on|1)\s*$", re.IGNORECASE)
# Source: cache-emptied of yoked.core.faults.
_EMPTIED = "emptied the cache"
_LATE = re.compile("no answer|fell silent")


@check(
    "agent-failed",
    question="Did every host answer, and does what all programs need work there?",
    reads=("health.untold", "health.basics", "health.tables"),
    severity="error",
    saw={
        **dict.fromkeys(("", "late"), "what {host} was asked for failed: {failed:list}"),
        "memory": "memory that a program has written cannot be made executable on {host} "
        "({why_not}){place}",
        "basics": "what all programs take for granted does not work on {host}: {failed:list}",
    },
    why={
        "": "a launch asks the same, and what could not be looked at may be in its way",
        "late": "what was not looked at may be in the way of a run; a busy host answers later",
        "memory": "oneDNN compiles what it computes with: `could not create a primitive` in the "
        "first convolution or bfloat16 product, though torch is imported and connects",
        "basics": "shells, compilers, ssh and ranks use it, and fail, wait or read what is none",
    },
    symptom="`This is a bug in yoked`, `the ssh connection ended`, or `gave no answer`; or "
    "`/dev/null: Permission denied`, a script that fails on one host alone, or `could not "
    "create a primitive`.",
    cause="The agent met what nobody foresaw (a file in the place of a folder), its answer was "
    "none, something ends ssh's sessions, or empties the cache in which the agent lies. Or "
    "/dev/null is a plain file, /dev is mounted nodev, /bin/sh is another shell, /proc or /sys is "
    "empty, or the ssh server's unit has MemoryDenyWriteExecute=yes: each is tried. It is a "
    "warning where an answer only took too long, and of what few programs need.",
    fix="By hand; makes a line of the ssh server's unit a comment.",
    explains=("world-failed",),
)
def agent_failed(seen: Examination) -> Iterator[Match]:
    yield from _without_basics(seen)
    for host in seen.up:
        yield from _without_executable_memory(host)
    for host in seen.up:
        untold = mapping(part(host, "untold"))
        failed = {
            name: str(why)
            for name, why in untold.items()
            if name in _CALLS or (name in _NEEDED and not _LATE.search(str(why)))
        }
        if not failed:
            continue
        is_late = all(_LATE.search(why) for why in failed.values())
        fix = by_hand(
            host.name,
            "look again; where it stays so, `yoked doctor --bundle doctor.zip` has what a bug "
            "report needs",
        )
        if any(_EMPTIED in why for why in failed.values()):
            fix = by_hand(
                host.name,
                "have what removes files leave ~/.cache/yoked alone: a cleaner or a loop (`ps "
                "aux`), `systemctl list-timers`, `crontab -l`",
            )
        yield Match(
            host.name,
            fix,
            severity="warning" if is_late else "error",
            how="late" if is_late else "",
            failed=[f"{name} ({one_line(why)})" for name, why in failed.items()],
        )


def _without_basics(seen: Examination) -> Iterator[Match]:
    told = {
        host.name: mapping(basics)
        for host in seen.up
        if (basics := part(host, "basics")) is not None
    }
    for name, own in told.items():
        # A container, or a lab, may have no /sys at all: then no host of it has.
        flaws = {
            path: str(why)
            for path, why in own.items()
            if path != EXECUTABLE
            and (path not in _OF_MACHINES or any(path not in other for other in told.values()))
        }
        if flaws:
            yield Match(
                name,
                *(_mend(name, path, why) for path, why in flaws.items()),
                severity="error" if flaws.keys() & _GRAVE else "warning",
                how="basics",
                failed=[f"{path} ({one_line(why)})" for path, why in flaws.items()],
            )


def _without_executable_memory(host: HostSeen) -> Iterator[Match]:
    why_not = part(host, "basics", EXECUTABLE)
    if why_not is None:
        return
    units = [
        found for line in part(host, "tables", "denials") or () if (found := _DENIES.match(line))
    ]
    fixes = [lift_denial(host.name, each[1], int(each[2])) for each in units] or [
        by_hand(
            host.name,
            "MemoryDenyWriteExecute= of the ssh server's unit (`systemctl cat ssh sshd`) does so, "
            "and deny_execmem of SELinux (`getsebool deny_execmem`): turn it off",
        )
    ]
    place = "".join(f"; by MemoryDenyWriteExecute in {each[1]}, line {each[2]}" for each in units)
    yield Match(host.name, *fixes, how="memory", why_not=one_line(str(why_not)), place=place)


def _mend(host: str, path: str, why: str) -> Fix:
    if path in _NUMBERS and why.startswith(("EACCES", "EPERM")):
        return by_hand(
            host,
            "sudo chmod 666 {path}; where `mount` shows nodev: sudo mount -o remount,dev /dev",
            path=path,
        )
    if path in _NUMBERS:
        major, minor = _NUMBERS[path]
        return by_hand(
            host,
            "sudo rm -f {path} && sudo mknod -m 666 {path} c {major} {minor}    and see who did it",
            path=path,
            major=major,
            minor=minor,
        )
    if path == "/bin/sh":
        return by_hand(
            host, "have it be a shell of POSIX again: sudo ln -sf bash /bin/sh    (on Debian dash)"
        )
    if path == "/proc":
        return by_hand(host, "sudo mount -t proc proc /proc")
    return by_hand(host, "sudo mount -t sysfs sysfs /sys")


CHECKS = (agent_failed,)
