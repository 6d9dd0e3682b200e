"""Whether a host stays awake, at its speed, and keeps a run when its user logs out."""

from __future__ import annotations

from collections.abc import Iterator

from yoked.doctor.check import Check, page
from yoked.doctor.checks.keeping import is_free
from yoked.doctor.checks.reading import by_hand, finding, part
from yoked.records.examination import Examination, Finding, Fix, HostSeen
from yoked.records.shell import shell_line

_CPUS = shell_line("/sys/devices/system/cpu/cpu*/cpufreq")
_LINGER = "/var/lib/systemd/linger"
_SLEEPS = ("suspend", "hibernate", "hybrid-sleep", "suspend-then-hibernate", "poweroff", "halt")


def _battery(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        told = part(host, "power", "on_battery")
        if (host.facts.get("on_battery") if told is None else told) is True:
            yield finding(
                "battery",
                "warning",
                host.name,
                f"{host.name} runs on its battery",
                "it trains at half speed, for an hour or two, and takes the others down with it",
                by_hand(host.name, "plug {host} in", host=host.name),
            )


def _can_sleep(host: HostSeen) -> bool:
    """Whether a run could not keep this host awake, and it may sleep at all."""
    may = part(host, "power", "sleep_targets") != "masked"
    return may and part(host, "power", "can_inhibit") is False


def _stay_awake(host: HostSeen) -> Fix:
    targets = shell_line("sleep.target suspend.target hibernate.target hybrid-sleep.target")
    return Fix(
        host.name,
        shell_line("systemctl mask {targets}", targets=targets),
        root=True,
        undo=shell_line("systemctl unmask {targets}", targets=targets),
    )


def _lid(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        action, lid = part(host, "power", "lid_action"), part(host, "power", "lid")
        if lid is not None and action in _SLEEPS and _can_sleep(host):
            yield finding(
                "lid",
                "warning",
                host.name,
                f"{host.name} is a laptop (lid {lid}): closing the lid means {action}, and a run "
                "may not hold that off there",
                "all ranks wait for a host that sleeps",
                _stay_awake(host),
            )


def _idle(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        action = part(host, "power", "idle_action")
        if action in _SLEEPS and _can_sleep(host):
            yield finding(
                "idle-sleep",
                "warning",
                host.name,
                f"{host.name} is set to {action} when nobody types, and a run may not hold that "
                "off there",
                "all ranks wait for a host that sleeps",
                _stay_awake(host),
            )


def _logout(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        power = part(host, "power") or {}
        # Not known to linger: without a systemd there is nobody who would let it.
        if power.get("kill_user_processes") is True and power.get("linger") is False:
            user = host.facts.get("user")
            yield finding(
                "logout",
                "error",
                host.name,
                f"logind on {host.name} ends all processes of {user} with the last login "
                "(KillUserProcesses=yes), and they do not linger",
                "the run dies a minute after you disconnect",
                Fix(
                    host.name,
                    shell_line(
                        "loginctl enable-linger {user} || {{ mkdir -p {folder} && touch {file}; }}",
                        user=user,
                        folder=_LINGER,
                        file=f"{_LINGER}/{user}",
                    ),
                    root=True,
                    undo=shell_line(
                        "loginctl disable-linger {user} || rm -f {file}",
                        user=user,
                        file=f"{_LINGER}/{user}",
                    ),
                ),
            )


def _throttled(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        governor = part(host, "power", "governor")
        # On x86 "powersave" is the usual one, and lets the CPU run as fast as it can.
        arm = str(host.facts.get("arch", "")).startswith(("arm", "aarch"))
        held = part(host, "power", "throttled") is True
        if held or (governor == "powersave" and arm):
            what = "something holds" if held else "its governor, powersave, holds"
            yield finding(
                "throttled",
                "warning",
                host.name,
                f"{what} the CPU of {host.name} below its highest frequency",
                "it computes slower than it could, and the others wait",
                _full_speed(host),
            )


def _full_speed(host: HostSeen) -> Fix:
    """Take the limits of the CPUs away; what each had is kept until the next start, as they are."""
    before = shell_line("/run/limits.yoked-cpus")
    return Fix(
        host.name,
        shell_line(
            "{free} && grep . {cpus}/scaling_max_freq {cpus}/scaling_governor > {before} && "
            "cpupower frequency-set -g performance -u 100GHz",
            free=is_free(before),
            cpus=_CPUS,
            before=before,
        ),
        root=True,
        undo=shell_line(
            "[ ! -e {before} ] || {{ while IFS=: read -r file value; do "
            'echo "$value" > "$file"; done < {before} && rm {before}; }}',
            before=before,
        ),
        kept=".yoked-cpus",
    )


CHECKS = (
    Check(
        "logout",
        "Does a run go on when its user logs out?",
        ("health.power",),
        "error",
        page(
            symptom="The run ends as the laptop is closed or ssh drops: signal 15, nothing in the "
            "log.",
            cause="KillUserProcesses=yes in logind.conf: what a login leaves running is ended, "
            "whatever nohup or setsid say.",
            fix="Lets the user's own systemd stay when nobody is logged in; a run then lives in a "
            "unit of it.",
            elsewhere="Slurm's pam_slurm_adopt does it to those who log in to a node.",
        ),
        _logout,
    ),
    Check(
        "battery",
        "Does every host have mains power?",
        ("health.power", "facts"),
        "warning",
        page(
            symptom="A laptop is slow, and after an hour gone.",
            cause="It runs on its battery.",
            fix="By hand.",
        ),
        _battery,
        explains=("throttled",),
        quick=True,
    ),
    Check(
        "lid",
        "Does a laptop stay awake with its lid closed?",
        ("health.power",),
        "warning",
        page(
            symptom="All ranks stall, and go on when somebody opens the laptop.",
            cause="Closing the lid means sleep. A run takes an inhibitor lock of logind, where the "
            "host lets it; here it does not, as over ssh without polkit.",
            fix="Forbids sleep altogether, until it is undone.",
        ),
        _lid,
        explains=("idle-sleep",),
    ),
    Check(
        "idle-sleep",
        "Does every host stay awake when nobody types?",
        ("health.power",),
        "warning",
        page(
            symptom="All ranks stall after half an hour.",
            cause="The host sleeps when nobody uses it; computing does not count as use.",
            fix="Forbids sleep altogether, until it is undone.",
        ),
        _idle,
    ),
    Check(
        "throttled",
        "Does the CPU run as fast as it can?",
        ("health.power",),
        "warning",
        page(
            symptom="A host is half as fast as an equal one.",
            cause="A power profile, a governor or a limit of the firmware.",
            fix="Lets the CPU run at its highest frequency, until the next start.",
        ),
        _throttled,
    ),
)
