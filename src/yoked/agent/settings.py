"""Settings of the kernel that decide about packets, where they are not what Linux has by itself.

Source: ip-sysctl.rst, nf_conntrack-sysctl.rst and sysctl/net.rst of Linux's documentation.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from yoked.agent.ask import text

_ROOT = Path("/proc/sys")
# Stands for the name of an interface.
EACH = "*"


class Setting(NamedTuple):
    """One that can be in the way of a connection on a link of a home.

    name: below /proc/sys. usual: Linux' own value, to write back. least, most: between which the
    last of its numbers does no harm; None: no bound. harms: what goes wrong otherwise, in words of
    `yoked.doctor.checks.path`, and at which end of the data: sends, gets, or both.
    """

    name: str
    usual: str
    least: int | None
    most: int | None
    harms: tuple[str, ...]
    end: str = "both"


# Bounds are wide: what distributions, guides for servers and small boards set is in them.
SETTINGS = (
    Setting("net/ipv4/tcp_rmem", "4096 131072 6291456", 65_536, None, ("slow",), "gets"),
    Setting("net/ipv4/tcp_wmem", "4096 16384 4194304", 65_536, None, ("slow",), "sends"),
    # Pages of 4 kB, of all connections together.
    Setting("net/ipv4/tcp_mem", "96000 128000 192000", 4096, None, ("slow", "stalls", "breaks")),
    Setting("net/ipv4/tcp_base_mss", "1024", 256, None, ("slow",), "sends"),
    Setting("net/ipv4/tcp_limit_output_bytes", "1048576", 16_384, None, ("slow",), "sends"),
    Setting("net/ipv4/tcp_notsent_lowat", "4294967295", 4096, None, ("slow",), "sends"),
    Setting("net/ipv4/tcp_pacing_ss_ratio", "200", 50, None, ("slow",), "sends"),
    Setting("net/ipv4/tcp_pacing_ca_ratio", "120", 50, None, ("slow",), "sends"),
    Setting("net/ipv4/tcp_retries2", "15", 5, None, ("breaks", "stalls"), "sends"),
    Setting("net/ipv4/tcp_abort_on_overflow", "0", None, 0, ("breaks",), "gets"),
    Setting("net/ipv4/tcp_max_syn_backlog", "1024", 16, None, ("silent",), "gets"),
    Setting("net/core/somaxconn", "4096", 16, None, ("silent", "breaks"), "gets"),
    Setting("net/core/netdev_max_backlog", "1000", 50, None, ("slow", "loses", "stalls"), "gets"),
    Setting("net/core/netdev_budget", "300", 16, None, ("slow", "loses"), "gets"),
    Setting("net/core/dev_weight", "64", 8, None, ("slow", "loses"), "gets"),
    Setting(f"net/ipv4/conf/{EACH}/arp_ignore", "0", None, 3, ("silent",), "gets"),
    Setting(f"net/ipv4/neigh/{EACH}/mcast_solicit", "3", 1, None, ("silent",)),
    # So many seconds a program is asked first, for a card that nobody has met.
    Setting(f"net/ipv4/neigh/{EACH}/app_solicit", "0", None, 1, ("silent",), "sends"),
    Setting(f"net/ipv4/neigh/{EACH}/unres_qlen_bytes", "212992", 2048, None, ("silent",), "sends"),
    Setting("net/ipv4/neigh/default/gc_thresh3", "1024", 32, None, ("silent",)),
    Setting(f"net/ipv6/neigh/{EACH}/mcast_solicit", "3", 1, None, ("silent",)),
    Setting(f"net/ipv6/neigh/{EACH}/app_solicit", "0", None, 1, ("silent",), "sends"),
    Setting(f"net/ipv6/neigh/{EACH}/ucast_solicit", "3", 1, None, ("breaks",)),
    Setting(f"net/ipv6/neigh/{EACH}/retrans_time_ms", "1000", None, 5000, ("silent",), "sends"),
    Setting(f"net/ipv6/neigh/{EACH}/unres_qlen_bytes", "212992", 2048, None, ("silent",), "sends"),
    Setting("net/ipv6/neigh/default/gc_thresh3", "1024", 32, None, ("silent",)),
    Setting("net/ipv4/tcp_window_scaling", "1", 1, None, ("slow",)),
    Setting("net/ipv4/tcp_sack", "1", 1, None, ("loses",), "gets"),
    Setting("net/ipv4/tcp_moderate_rcvbuf", "1", 1, None, ("slow",), "gets"),
    Setting("net/ipv4/tcp_rto_min_us", "200000", 1000, 2_000_000, ("loses", "breaks"), "sends"),
    Setting("net/ipv4/tcp_rto_max_ms", "120000", 1000, None, ("breaks",), "sends"),
    Setting("net/ipv4/tcp_max_orphans", "65536", 16, None, ("breaks",)),
    Setting("net/ipv4/tcp_min_snd_mss", "48", None, 536, ("silent", "large", "breaks")),
    Setting("net/ipv4/tcp_syn_retries", "6", 2, None, ("silent",), "sends"),
    Setting("net/ipv4/tcp_synack_retries", "5", 1, None, ("silent",), "gets"),
    Setting("net/ipv4/ip_default_ttl", "64", 16, None, ("silent",), "sends"),
    Setting(f"net/ipv6/conf/{EACH}/hop_limit", "64", 16, None, ("silent",), "sends"),
    Setting(f"net/ipv6/conf/{EACH}/disable_ipv6", "0", None, 0, ("no-address",)),
    # By itself it harms nobody: rules for what a router hands on then see what a bridge does.
    Setting("net/bridge/bridge-nf-call-iptables", "0", None, 0, ()),
    Setting("net/bridge/bridge-nf-call-ip6tables", "0", None, 0, ()),
    Setting(f"net/ipv4/conf/{EACH}/proxy_arp", "0", None, 0, ("disturbs",)),
    Setting(f"net/ipv4/conf/{EACH}/proxy_arp_pvlan", "0", None, 0, ("disturbs",)),
    Setting(f"net/ipv6/conf/{EACH}/proxy_ndp", "0", None, 0, ("disturbs",)),
    Setting(f"net/ipv4/neigh/{EACH}/ucast_solicit", "3", 1, None, ("breaks",)),
    Setting(f"net/ipv4/neigh/{EACH}/retrans_time_ms", "1000", None, 5000, ("silent",), "sends"),
    Setting("net/core/netdev_budget_usecs", "2000", 100, None, ("slow", "loses"), "gets"),
    Setting("net/core/gro_normal_batch", "8", None, 512, ("late",), "gets"),
    Setting("net/core/optmem_max", "131072", 1024, None, ("breaks",)),
    Setting("net/netfilter/nf_conntrack_tcp_max_retrans", "3", 1, None, ("breaks", "loses")),
    Setting("net/netfilter/nf_conntrack_tcp_timeout_max_retrans", "300", 10, None, ("breaks",)),
    Setting("net/netfilter/nf_conntrack_tcp_loose", "1", 1, None, ("breaks",)),
    Setting("net/netfilter/nf_conntrack_tcp_timeout_established", "432000", 300, None, ("breaks",)),
    Setting("net/netfilter/nf_conntrack_tcp_timeout_syn_sent", "120", 3, None, ("silent",)),
    Setting("net/netfilter/nf_conntrack_tcp_timeout_syn_recv", "60", 3, None, ("silent",)),
    Setting(
        "net/netfilter/nf_conntrack_tcp_timeout_unacknowledged", "300", 10, None, ("breaks",)
    ),
)  # fmt: skip


def probe_settings(root: Path = _ROOT) -> dict[str, str] | None:
    """{name below /proc/sys: value} of those of `SETTINGS` that are out of their bounds; None: this
    system has none of them.
    """
    if not (root / "net/ipv4").is_dir():
        return None
    found = {}
    for setting in SETTINGS:
        paths = root.glob(setting.name) if EACH in setting.name else [root / setting.name]
        for path in paths:
            value = " ".join(text(path).split())
            if is_odd(setting, value):
                found[path.relative_to(root).as_posix()] = value
    return found


def is_odd(setting: Setting, value: str) -> bool:
    """Whether a setting's value is out of its bounds. A value that is no number is not."""
    last = value.rpartition(" ")[2]
    if not last.isdigit():
        return False
    below = setting.least is not None and int(last) < setting.least
    return below or (setting.most is not None and int(last) > setting.most)


def setting_of(name: str) -> Setting | None:
    """The entry for a name below /proc/sys; None: it is none of these."""
    folder, _, last = name.rpartition("/")
    general = f"{folder.rpartition('/')[0]}/{EACH}/{last}"
    return next((each for each in SETTINGS if each.name in (name, general)), None)
