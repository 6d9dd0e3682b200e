"""The network that NCCL chose, by the lines that it prints with NCCL_DEBUG=INFO.

NCCL takes an interface of its own choice where NCCL_SOCKET_IFNAME names none, and a program or
/etc/nccl.conf may say another. Pure; standard library alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address

_SAYS = re.compile(r"NCCL INFO (Bootstrap|NET/Socket|NET/IB) ?: Using(.*)")
# eth0:10.0.0.2<0>, of several with [0] before it.
_END = re.compile(r"(?<=[\s\]])([A-Za-z0-9_.-]{1,15}):([0-9A-Fa-f.:]{2,45})(?:%\S{1,15})?<\d+>")
# [0]mlx5_0:1/RoCE
_ADAPTER = re.compile(r"\[\d+\]([A-Za-z0-9_.-]{1,30}):\d+/(?:IB|RoCE)")


@dataclass(frozen=True)
class NcclNetwork:
    """ends: interface and address of each end of TCP. adapters: of InfiniBand or RoCE, which carry
    the data; then ranks only meet by TCP.
    """

    ends: tuple[tuple[str, str], ...]
    adapters: tuple[str, ...] = ()

    def is_on(self, interface: str) -> bool:
        """Whether it uses an interface; empty: any will do."""
        return not interface or any(name == interface for name, _ in self.ends)

    def words(self, planned: str) -> str:
        """What is said of it. planned: the interface that it was to use, or empty."""
        said = ", ".join(f"{name} ({address})" for name, address in self.ends)
        if self.adapters:
            said = f"{', '.join(self.adapters)}, and {said} to meet"
        said = f"NCCL uses {said}"
        if self.is_on(planned):
            return said
        return f"{said}, and not {planned} as planned: NCCL_SOCKET_IFNAME, or /etc/nccl.conf"


def network_of(lines: Iterable[str]) -> NcclNetwork | None:
    """What a rank's lines say; None: nothing of NCCL's network."""
    ends: dict[str, list[tuple[str, str]]] = {}
    adapters: tuple[str, ...] = ()
    for line in lines:
        if (says := _SAYS.search(line)) is None:
            continue
        if says[1] == "NET/IB":
            adapters = adapters or tuple(_ADAPTER.findall(says[2]))
        ends.setdefault(says[1], [end for end in _END.findall(says[2]) if _is_address(end[1])])
    # What carries the data, before what ranks meet by.
    for source in ("NET/Socket", "NET/IB", "Bootstrap"):
        if found := ends.get(source):
            return NcclNetwork(tuple(found), adapters)
    return None


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
