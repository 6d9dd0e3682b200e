"""An environment on a host, as `yoked install` makes it on all of them at once."""

from __future__ import annotations

from collections.abc import Callable

from yoked.fleet.model import Host
from yoked.launch.blobs import Progress
from yoked.launch.install import (
    HostEnvironment,
    InstallOptions,
    make_environment,
    plan_environment,
)
from yoked.remote.client import AgentClient


def install_environment(
    client: AgentClient,
    host: Host,
    wishes: InstallOptions,
    say: Callable[[str], None],
    progress: Progress | None = None,
) -> HostEnvironment:
    """Have an environment with exactly these versions on a host. Raises HostError."""
    plan = plan_environment(client, host, wishes, say)
    if isinstance(plan, HostEnvironment):
        return plan
    for line in plan.lines:
        say(line)
    return make_environment(client, host, plan, wishes, say, progress)
