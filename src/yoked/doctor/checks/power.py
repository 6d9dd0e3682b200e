"""Whether a host stays awake, at its speed, and keeps a run when its user logs out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from yoked.doctor.check import Match, check
from yoked.doctor.checks.query import mapping, part
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.system import let_linger, mask_sleep, unlock_cpu_speed
from yoked.fleet.model import HERE
from yoked.records.examination import Examination, HostSeen

_SLEEPS = ("suspend", "hibernate", "hybrid-sleep", "suspend-then-hibernate", "poweroff", "halt")
_SOON_S = 3600.0
# A host that has much to do may leave an agent waiting for a second, and once.
_OFTEN, _LONG_S = 2, 2.0
# All hosts are asked at one time, and answer within so long.
_ASKED_WITHIN_S = 1.0
# What most of these checks have in common.
_check = partial(check, reads=("health.power",), severity="warning")


@_check(
    "battery",
    question="Does every host have mains power?",
    reads=("health.power", "facts"),
    saw="{host} runs on its battery",
    why="it trains at half speed, for an hour or two, and takes the others down with it",
    symptom="A laptop is slow, and after an hour gone.",
    cause="It runs on its battery.",
    fix="By hand.",
    explains=("throttled",),
    quick=True,
)
def battery(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        told = part(host, "power", "on_battery")
        if (host.facts.get("on_battery") if told is None else told) is True:
            yield Match(host.name, by_hand(host.name, "plug {host} in"))


@_check(
    "paused",
    question="Does every host go on all the time?",
    reads=("health.launch",),
    severity="error",
    saw="all that ran for this look on {host} stood {times:plural time}, for {lost_s:duration} in "
    "all, and no program there had stopped it",
    why="each wait for it takes seconds: all ranks stand with it, and a launch is given up",
    symptom="Steps take several times as long, and by turns; connections answer seconds later.",
    cause="It is a virtual machine or a container that is paused from outside: for snapshots and "
    "backups, by `docker pause`, by the freezer of its control group, or by a manager that has too "
    "little for all its guests. Cable, switch and radio are not to blame.",
    fix="By hand.",
    explains=("bulk-stalls", "agent-failed", "torch-import", "world-failed", "ssh-slow", "jitter",
              "loss", "slow-link", "dial-failed", "slow-names"),
)  # fmt: skip
def paused(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        times, lost_s = _stood_alone(seen, host)
        # Whoever is known by his signal is told as such; and who stops the doctor stops this agent.
        known = mapping(host.torch).get("stops") or host.name == HERE
        if known or (times < _OFTEN and lost_s < _LONG_S):
            continue
        look = by_hand(
            host.name,
            "at the machine or the manager on which {host} runs: end what pauses it, or take "
            "snapshots and backups live; cgroup.events of its control group has `frozen 1` where "
            "that is it",
        )
        yield Match(host.name, look, times=times, lost_s=lost_s)


def _stood_alone(seen: Examination, host: HostSeen) -> tuple[int, float]:
    """(times, seconds) that a host stood while neither another nor this machine did.

    Hosts on one machine that is busy, or hosts that a network's file server holds up, stand
    together: then none of them is paused.
    """
    told = mapping(part(host, "launch", "stood"))
    if "gaps" not in told:
        return told.get("times") or 0, told.get("lost_s") or 0.0
    others = [part(each, "launch", "stood") for each in seen.up if each != host]
    theirs = [gap for each in (*others, seen.controller.get("stood"))
              for gap in mapping(each).get("gaps") or ()]  # fmt: skip
    own = [gap for gap in told["gaps"] if not any(_overlap(gap, each) for each in theirs)]
    return len(own), sum(gap["lost_s"] for gap in own)


def _overlap(one: Mapping[str, float], other: Mapping[str, float]) -> bool:
    """Whether two hosts stood at one time, as far as both were asked at one time."""
    first, then = sorted((one, other), key=lambda gap: gap["ago_s"])
    return then["ago_s"] <= first["ago_s"] + first["lost_s"] + _ASKED_WITHIN_S


@_check(
    "sleep",
    question="Does every host stay awake, when nobody types and with its lid closed?",
    saw={
        "lid": "{host} is a laptop (lid {lid}): closing the lid means {action}, and a run may not "
        "hold that off there",
        "idle": "{host} is set to {action} when nobody types, and a run may not hold that off "
        "there",
    },
    why="all ranks wait for a host that sleeps",
    symptom="All ranks stall, and go on when somebody opens the laptop; or after half an hour.",
    cause="Closing the lid means sleep, or nobody uses the host: computing does not count as use. "
    "A run takes an inhibitor lock of logind, where the host lets it; here it does not, as over "
    "ssh without polkit.",
    fix="Forbids sleep altogether, until it is undone.",
    explains=("sleep",),
)
def sleep(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        power = mapping(part(host, "power"))
        if power.get("sleep_targets") == "masked" or power.get("can_inhibit") is not False:
            continue
        lid = power.get("lid")
        for how, action in (("lid", power.get("lid_action")), ("idle", power.get("idle_action"))):
            if action in _SLEEPS and (how == "idle" or lid is not None):
                yield Match(host.name, mask_sleep(host.name), how=how, lid=lid, action=action)


@_check(
    "logout",
    question="Does a run go on when its user logs out?",
    severity="error",
    saw="logind on {host} ends all processes of {user} with the last login "
    "(KillUserProcesses=yes), and they do not linger",
    why="the run dies a minute after you disconnect",
    symptom="The run ends as the laptop is closed or ssh drops: signal 15, nothing in the log.",
    cause="KillUserProcesses=yes in logind.conf: what a login leaves running is ended, "
    "whatever nohup or setsid say.",
    fix="Lets the user's own systemd stay when nobody is logged in; a run then lives in a "
    "unit of it.",
    on_cluster="Slurm's pam_slurm_adopt does it to those who log in to a node.",
)
def logout(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        power = part(host, "power") or {}
        # Not known to linger: without a systemd there is nobody who would let it.
        if power.get("kill_user_processes") is True and power.get("linger") is False:
            user = host.facts.get("user")
            yield Match(host.name, let_linger(host.name, str(user)), user=user)


@_check(
    "throttled",
    question="Does the CPU run as fast as it can?",
    saw="{what} the CPU of {host} below its highest frequency",
    why="it computes slower than it could, and the others wait",
    symptom="A host is half as fast as an equal one.",
    cause="A power profile, a governor or a limit of the firmware.",
    fix="Lets the CPU run at its highest frequency, until the next start.",
)
def throttled(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        governor = part(host, "power", "governor")
        # On x86 "powersave" is the usual one, and lets the CPU run as fast as it can.
        arm = str(host.facts.get("arch", "")).startswith(("arm", "aarch"))
        held = part(host, "power", "throttled") is True
        if held or (governor == "powersave" and arm):
            what = "something holds" if held else "its governor, powersave, holds"
            yield Match(host.name, unlock_cpu_speed(host.name), what=what)


@_check(
    "shutdown",
    question="Do all hosts stay on?",
    severity="error",
    saw="{host} goes off, or starts again, in {left:duration}: a shutdown is planned there",
    why="a run with ranks there ends with it",
    symptom="A host is gone in the middle of a run, each evening at the same time.",
    cause="A person, cron or a timer typed `shutdown -h 20:00`: /run/systemd/shutdown/scheduled "
    "has it. Of one that is more than an hour away it is a warning.",
    fix="By hand.",
)
def shutdown(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        if left_s := part(host, "power", "shutdown_s"):
            yield Match(
                host.name,
                by_hand(host.name, "sudo shutdown -c    or begin when it is on again"),
                severity="error" if left_s < _SOON_S else "warning",
                left=left_s,
            )


CHECKS = (paused, shutdown, logout, battery, sleep, throttled)
