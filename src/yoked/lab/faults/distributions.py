"""The firewalls that distributions ship, themselves: ufw, firewalld, iptables."""

from __future__ import annotations

import contextlib
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from yoked.errors import LabError
from yoked.lab.faults.base import Act, Fault
from yoked.lab.faults.firewall import RENDEZVOUS_PORT
from yoked.lab.inside import TOOL_PATH

if TYPE_CHECKING:
    from yoked.lab.host import LabHost
    from yoked.lab.lab import Lab

_LIMIT_S = 15.0
_UFW_FILES = ("/etc/ufw/ufw.conf", "/etc/ufw/user.rules", "/etc/ufw/user6.rules")
_FIREWALLD_FOLDER = "/etc/firewalld/zones"
_BUS = "/run/dbus"


@dataclass(frozen=True)
class DistributionFirewall(Fault):
    """A firewall with a program of its own, open for ssh and the rendezvous.

    PROGRAM: of the machine; without it the fault cannot be.
    """

    AFTER_BOOT = "again"
    WRITES_FILES = True
    PROGRAM: ClassVar[str]
    PACKAGE: ClassVar[str]

    @classmethod
    def blocked(cls, lab: Lab) -> str | None:
        """By its program, as root."""
        if not lab.is_root:
            return f"{cls.PROGRAM} works for root alone, and this lab is an ordinary user's"
        if shutil.which(cls.PROGRAM, path=TOOL_PATH) is None:
            return f"{cls.PROGRAM} is not installed: sudo apt install {cls.PACKAGE}"
        return None

    @property
    def text(self) -> str:
        """What it does."""
        open_ports = f"ports 22 and {RENDEZVOUS_PORT}"
        return f"{self.PACKAGE} on {self.host} lets nobody connect, but to {open_ports}"


def _run(host: LabHost, *lines: str) -> None:
    """Lines for the host's shell; the first that fails ends them. Raises LabError."""
    host.run(["sh", "-ec", "\n".join(lines)], timeout_s=_LIMIT_S, env={"PATH": TOOL_PATH})


@dataclass(frozen=True)
class Ufw(DistributionFirewall):
    """Ubuntu's."""

    KIND = "ufw"
    SUMMARY = "ufw is on, as after `ufw allow ssh` and `ufw enable`; port 29500 is open"
    USAGE = "ufw HOST"
    PROGRAM = PACKAGE = "ufw"

    def apply(self, act: Act) -> None:
        """Its files are written down first."""
        host = act.writable(self.host)
        if "files" not in act.record:
            act.remember(files={path: host.read_text(path) for path in _UFW_FILES})
        _run(host, "ufw allow 22/tcp", f"ufw allow {RENDEZVOUS_PORT}/tcp", "ufw --force enable")

    def undo(self, act: Act) -> None:
        """Off, with the files that it had."""
        host = act.writable(self.host)
        _run(host, "ufw --force disable")
        # What a person allowed meanwhile was a part of mending this.
        for path, text in act.record.get("files", {}).items():
            if host.read_text(path) != text:
                host.write_text(path, text)
        for tool in ("iptables", "ip6tables"):
            _clear_tables(host, tool)


@dataclass(frozen=True)
class Iptables(DistributionFirewall):
    """Rules of a person's own, from a page of the last decade."""

    KIND = "iptables"
    SUMMARY = "rules of iptables drop connections, but to ports 22 and 29500"
    USAGE = "iptables HOST"
    PROGRAM = PACKAGE = "iptables"

    def apply(self, act: Act) -> None:
        """Both families, as rules first: the policy closes at once."""
        host = act.writable(self.host)
        for tool in ("iptables", "ip6tables"):
            _clear_tables(host, tool)
            ping = "icmp" if tool == "iptables" else "ipv6-icmp"
            _run(
                host,
                f"{tool} -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
                f"{tool} -A INPUT -i lo -j ACCEPT",
                f"{tool} -A INPUT -p {ping} -j ACCEPT",
                f"{tool} -A INPUT -p tcp --dport 22 -j ACCEPT",
                f"{tool} -A INPUT -p tcp --dport {RENDEZVOUS_PORT} -j ACCEPT",
                f"{tool} -P INPUT DROP",
            )

    def undo(self, act: Act) -> None:
        """No rules, and open."""
        for tool in ("iptables", "ip6tables"):
            _clear_tables(act.writable(self.host), tool)


def _clear_tables(host: LabHost, tool: str) -> None:
    policies = [f"{tool} -P {chain} ACCEPT" for chain in ("INPUT", "FORWARD", "OUTPUT")]
    _run(host, *policies, f"{tool} -F", f"{tool} -X")


@dataclass(frozen=True)
class Firewalld(DistributionFirewall):
    """Fedora's: it rejects, which programs call `No route to host`."""

    KIND = "firewalld"
    SUMMARY = (
        "firewalld is on in its zone public, with ssh and port 29500 open; others are rejected"
    )
    USAGE = "firewalld HOST"
    PROGRAM = PACKAGE = "firewalld"

    def apply(self, act: Act) -> None:
        """Its bus, the program, the port."""
        host = act.writable(self.host)
        host.run(["mkdir", "-p", _BUS, _FIREWALLD_FOLDER])
        if not host.exists(f"{_BUS}/system_bus_socket"):
            _run(host, "dbus-daemon --system --fork")
        _run(host, "firewalld")
        self._await(host)
        _run(host, f"firewall-cmd -q --permanent --add-port={RENDEZVOUS_PORT}/tcp")
        _run(host, f"firewall-cmd -q --add-port={RENDEZVOUS_PORT}/tcp")

    def undo(self, act: Act) -> None:
        """Both programs end; its table and its files go."""
        host = act.writable(self.host)
        for name in ("firewalld", "dbus-daemon"):
            host.run(["pkill", "-x", name], check=False)
        end_s = time.monotonic() + _LIMIT_S
        while any("firewalld" in " ".join(each.command) for each in host.processes()):
            if time.monotonic() > end_s:
                raise LabError(f"firewalld of {self.host} does not end")
            time.sleep(0.05)
        host.tool(["nft", "delete", "table", "inet", "firewalld"], check=False)
        left = [f"{_FIREWALLD_FOLDER}/public.xml", f"{_BUS}/system_bus_socket", f"{_BUS}/pid"]
        host.run(["rm", "-f", *left])

    def _await(self, host: LabHost) -> None:
        end_s = time.monotonic() + _LIMIT_S
        while time.monotonic() < end_s:
            with contextlib.suppress(LabError):
                _run(host, "firewall-cmd -q --state")
                return
            time.sleep(0.1)
        raise LabError(f"firewalld of {self.host} does not come up", fix="apt install firewalld")
