"""All checks, in the order in which what they find is to be mended."""

from __future__ import annotations

import difflib

from yoked.doctor.check import Check
from yoked.doctor.checks import (
    acts,
    answers,
    cables,
    code,
    data,
    duplicates,
    encryption,
    enders,
    environment,
    firewall,
    flow,
    folders,
    gpu,
    interfaces,
    interpreter,
    limits,
    loopback,
    machine,
    names,
    neighbours,
    power,
    processes,
    program,
    routes,
    small_launch,
    software,
    ssh,
    world,
)
from yoked.errors import UsageError

# From what everything else stands on to what is only slow; the world comes last, for whatever
# else is wrong explains why it failed.
CHECKS: tuple[Check, ...] = (
    *ssh.CHECKS,
    *machine.CHECKS[:2],
    *answers.CHECKS,
    *interfaces.CHECKS,
    *duplicates.CHECKS,
    *loopback.CHECKS,
    *routes.CHECKS,
    *neighbours.CHECKS,
    *limits.CHECKS,
    *firewall.CHECKS,
    *flow.CHECKS,
    *cables.CHECKS,
    *folders.CHECKS,
    *small_launch.CHECKS,
    *enders.CHECKS,
    *environment.CHECKS,
    *software.CHECKS,
    *interpreter.CHECKS,
    *acts.CHECKS,
    *encryption.CHECKS,
    *gpu.CHECKS,
    *processes.CHECKS,
    *machine.CHECKS[2:],
    *power.CHECKS,
    *data.CHECKS,
    *code.CHECKS,
    *program.CHECKS,
    *names.CHECKS,
    *world.CHECKS,
)


def check_named(name: str, flag: str) -> Check:
    """The check of that name. Raises UsageError with the nearest, if any is near.

    flag: where it is named, such as `--only`.
    """
    for check in CHECKS:
        if check.code == name:
            return check
    known = [check.code for check in CHECKS]
    near = difflib.get_close_matches(name, known, n=1)
    raise UsageError(
        f"{flag} {name}: there is no such check",
        fix=f"{flag} {near[0]}" if near else "docs/reference/checks.md lists them",
    )
