"""The firewalls that distributions ship, themselves: ufw, firewalld, iptables."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from yoked.errors import LabError
from yoked.lab.faults.args import HOST
from yoked.lab.faults.base import Effect, Fault, FaultContext, Kind
from yoked.lab.faults.rules import RENDEZVOUS_PORT
from yoked.lab.inside import TOOL_PATH
from yoked.lab.process import until

if TYPE_CHECKING:
    from yoked.lab.host import LabHost
    from yoked.lab.lab import Lab

_LIMIT_S = 15.0
_FIREWALLD_FOLDER = "/etc/firewalld/zones"
_BUS = "/run/dbus"


@dataclass(frozen=True)
class Program(Effect):
    """A program of the machine, without which the fault cannot be. It works for root alone.

    on, off: lines for the host's shell. files: as they were before, they are put back.
    """

    AFTER_BOOT = "again"
    WRITES_FILES = True

    name: str
    on: tuple[str, ...]
    off: tuple[str, ...]
    files: tuple[str, ...] = ()

    def unsupported(self, lab: Lab) -> str | None:
        if not lab.is_root:
            return f"{self.name} works for root alone, and this lab is an ordinary user's"
        if shutil.which(self.name, path=TOOL_PATH) is None:
            return f"{self.name} is not installed: sudo apt install {self.name}"
        return None

    def apply(self, fault: Fault, context: FaultContext) -> None:
        host = context.writable(fault.host)
        if "files" not in context.record:
            context.remember(files={path: host.read_text(path) for path in self.files})
        _run(host, *self.on)

    def undo(self, fault: Fault, context: FaultContext) -> None:
        host = context.writable(fault.host)
        _run(host, *self.off)
        # What a person allowed meanwhile was a part of mending this.
        for path, text in context.record.get("files", {}).items():
            if host.read_text(path) != text:
                host.write_text(path, text)


def _run(host: LabHost, *lines: str) -> None:
    """Lines for the host's shell; the first that fails ends them. Raises LabError."""
    host.run(["sh", "-ec", "\n".join(lines)], timeout_s=_LIMIT_S, env={"PATH": TOOL_PATH})


def _cleared(tool: str) -> tuple[str, ...]:
    policies = [f"{tool} -P {chain} ACCEPT" for chain in ("INPUT", "FORWARD", "OUTPUT")]
    return (*policies, f"{tool} -F", f"{tool} -X")


def _closed(tool: str, ping: str) -> tuple[str, ...]:
    # Rules first: the policy closes at once.
    return (
        *_cleared(tool),
        f"{tool} -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
        f"{tool} -A INPUT -i lo -j ACCEPT",
        f"{tool} -A INPUT -p {ping} -j ACCEPT",
        f"{tool} -A INPUT -p tcp --dport 22 -j ACCEPT",
        f"{tool} -A INPUT -p tcp --dport {RENDEZVOUS_PORT} -j ACCEPT",
        f"{tool} -P INPUT DROP",
    )


UFW = Program(
    "ufw",
    on=("ufw allow 22/tcp", f"ufw allow {RENDEZVOUS_PORT}/tcp", "ufw --force enable"),
    off=("ufw --force disable", *_cleared("iptables"), *_cleared("ip6tables")),
    files=("/etc/ufw/ufw.conf", "/etc/ufw/user.rules", "/etc/ufw/user6.rules"),
)
IPTABLES = Program(
    "iptables",
    on=(*_closed("iptables", "icmp"), *_closed("ip6tables", "ipv6-icmp")),
    off=(*_cleared("iptables"), *_cleared("ip6tables")),
)


class Firewalld(Program):
    """Fedora's: it rejects, which programs call `No route to host`."""

    def apply(self, fault: Fault, context: FaultContext) -> None:
        host = context.writable(fault.host)
        host.run(["mkdir", "-p", _BUS, _FIREWALLD_FOLDER])
        if not host.exists(f"{_BUS}/system_bus_socket"):
            _run(host, "dbus-daemon --system --fork")
        _run(host, "firewalld")

        def is_up() -> bool:
            with contextlib.suppress(LabError):
                _run(host, "firewall-cmd -q --state")
                return True
            return False

        if not until(is_up, _LIMIT_S, 0.1):
            raise LabError(
                f"firewalld of {host.name} does not come up", fix="apt install firewalld"
            )
        _run(host, *self.on)

    def undo(self, fault: Fault, context: FaultContext) -> None:
        """Both programs end; its table and its files go."""
        host = context.writable(fault.host)
        for name in ("firewalld", "dbus-daemon"):
            host.run(["pkill", "-x", name], check=False)

        def has_ended() -> bool:
            return not any("firewalld" in " ".join(each.command) for each in host.processes())

        if not until(has_ended, _LIMIT_S, 0.05):
            raise LabError(f"firewalld of {fault.host} does not end")
        host.tool(["nft", "delete", "table", "inet", "firewalld"], check=False)
        left = [f"{_FIREWALLD_FOLDER}/public.xml", f"{_BUS}/system_bus_socket", f"{_BUS}/pid"]
        host.run(["rm", "-f", *left])


FIREWALLD = Firewalld(
    "firewalld",
    on=(
        f"firewall-cmd -q --permanent --add-port={RENDEZVOUS_PORT}/tcp",
        f"firewall-cmd -q --add-port={RENDEZVOUS_PORT}/tcp",
    ),
    off=(),
)


# ---- the faults ----


def _distribution(program: Program, summary: str) -> Kind:
    text = f"{program.name} on {{host}} lets nobody connect, but to ports 22 and {RENDEZVOUS_PORT}"
    return Kind(program.name, (HOST,), summary, text, (program,))


DISTRIBUTIONS = (
    _distribution(
        UFW,
        "ufw is on, as after `ufw allow ssh` and `ufw enable`; port 29500 is open",
    ),
    _distribution(
        FIREWALLD,
        "firewalld is on in its zone public, with ssh and port 29500 open; others are rejected",
    ),
    _distribution(IPTABLES, "rules of iptables drop connections, but to ports 22 and 29500"),
)
