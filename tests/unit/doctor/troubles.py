"""What can be wrong in a home, one function each: it gives the examination of that home."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tests.unit.doctor.builders import (
    ADDRESS,
    MAC,
    NAMES,
    OFF,
    PORTS,
    VPN,
    beside,
    broken,
    change,
    dial,
    firewall,
    home,
    interface,
    told,
    unreached,
)

from yoked.records.examination import Examination, Need, SshKind

Make = Callable[[], Examination]


def said(path: str, value: Any, name: str = "garage") -> Make:
    return lambda: told(home(), name, path, value)


def moved(seen: Examination, name: str, **changes: Any) -> Examination:
    """The same, with a host dialled at another place."""
    dials = tuple(replace(each, **changes) if each.target == name else each for each in seen.dials)
    return replace(seen, dials=dials)


def readdressed(name: str, address: str, prefix: int) -> Examination:
    """A home of which one host has another address, at which it is dialled."""
    own = interface("eth0", address, prefix)
    return moved(change(home(), name, interfaces=(own,)), name, address=address)


def cut_off(**changes: Any) -> Examination:
    """Nobody reaches garage, and it reaches nobody."""
    return broken(broken(home(), "garage", None, **changes), None, "garage", **changes)


def fails(
    error: str,
    *,
    begun: bool = True,
    environment: dict[str, str] | None = None,
    set_by: dict[str, Any] | None = None,
    **torch: Any,
) -> Examination:
    """The interpreter of garage does not import torch. begun: whether it starts at all; torch:
    what else is told of it.
    """
    seen = home()
    known = {} if begun else {"python_version": None, "torch_path": None, "torch": None,
                              "numpy": None, "gloo": None}  # fmt: skip
    whole = {**(seen.host("garage").torch or {}), **known, "imported": False, "error": error}
    if not begun:
        # Of what did not start nothing is told.
        whole = {name: value for name, value in whole.items() if name != "numpy"}
    seen = change(seen, "garage", torch={**whole, **torch})
    for name, value in (environment or {}).items():
        seen = told(seen, "garage", f"health/environment/{name}", value)
    return seen if set_by is None else told(seen, "garage", "health/set_by", set_by)


def no_agent(kind: SshKind, text: str, **more: str) -> Make:
    def make() -> Examination:
        seen = home(("attic", "study"))
        return replace(seen, hosts=(*seen.hosts, unreached("garage", kind, text, **more)))

    return make


def no_agents(*names: str, kind: SshKind, text: str, **more: str) -> Make:
    """None on several hosts, for the same reason."""

    def make() -> Examination:
        seen = home(tuple(name for name in NAMES if name not in names))
        lost = (unreached(name, kind, text, **more) for name in names)
        return replace(seen, hosts=(*seen.hosts, *lost), world=None)

    return make


def dialled(source: str | None = "attic", target: str | None = "garage", **changes: Any) -> Make:
    return lambda: broken(home(), source, target, **changes)


def rested(source: str, target: str, error: str, **more: Any) -> Examination:
    """A home of two hosts, in which a connection that was quiet did not last."""
    seen = home((source, target))
    made = dial(source, target, PORTS[0], "rest", ok=False, error=error, error_text="ended", **more)
    return replace(seen, dials=(*seen.dials, made))


def looked_again(**now: Any) -> Examination:
    """A home in which eth0 of garage is otherwise at the end of the look."""
    seen = home()
    rows = seen.host("garage").interfaces
    first = tuple({**each, "changes": 3} for each in rows)
    later = tuple({**each, **now} if each["name"] == "eth0" else each for each in first)
    return change(seen, "garage", interfaces=first, interfaces_later=later)


def over_what_is_off() -> Examination:
    """eth0 of garage is a macvlan over lan0, which is switched off."""
    seen = told(home(), "garage", "health/links/eth0/carrier", False)
    seen = told(seen, "garage", "health/links/eth0/lower", ["lan0"])
    return told(seen, "garage", "health/links/lan0", {"up": False, "carrier": None})


def lease(left_s: int = 40, managers: list[str] | None = None) -> Examination:
    """The address of garage ends."""
    seen = told(home(), "garage", "health/links/eth0/ends_s", {ADDRESS["garage"]: left_s})
    return told(seen, "garage", "health/writers", {"managers": managers or [], "loops": []})


def windowed() -> Examination:
    """What attic sends to garage crawls, whose route back has a window."""
    seen = home()
    slow = dial("attic", "garage", PORTS[0], "burst", goodput_bytes_per_s=3e5, bulk_bytes=200_000)
    seen = replace(seen, dials=(*seen.dials, slow))
    way = f"health/routes/{ADDRESS['attic']}"
    for name, value in {"network": ADDRESS["attic"], "prefix": 32}.items():
        seen = told(seen, "garage", f"{way}/{name}", value)
    return told(seen, "garage", f"{way}/metrics", {"window": 600, "initcwnd": 1})


def filtered() -> Examination:
    """Nothing that comes to garage passes its filter of tc."""
    seen = broken(home(), None, "garage", arrived=False)
    line = "in: action order 1: gact action drop"
    return told(seen, "garage", "health/links/eth0/queues", [line])


def wants(**entry: Any) -> Make:
    """Another entry of yoked.toml."""

    def make() -> Examination:
        seen = home()
        return change(seen, "garage", wanted={**seen.host("garage").wanted, **entry})

    return make


def has(*interfaces: dict[str, Any], **fields: Any) -> Make:
    """Other interfaces than the usual."""
    return lambda: change(home(), "garage", interfaces=interfaces, **fields)


def with_gpu(device: str = "cuda", **more: Any) -> Examination:
    seen = told(home(), "garage", "facts/gpus", [{"vendor": "nvidia", "name": "RTX 3060"}])
    seen = told(seen, "garage", "wanted/device", device)
    for path, value in more.items():
        seen = told(seen, "garage", path.replace("__", "/"), value)
    return seen


def with_card(device: str = "auto", cuda: str = "13.0", **more: Any) -> Examination:
    """A card whose torch is built for that CUDA. more: of the card, or with `__` of the host."""
    card = {"vendor": "nvidia", "name": "RTX 3060", "driver": "580.95.05", "capability": "8.6"}
    card |= {name: value for name, value in more.items() if "__" not in name}
    told_torch = {"torch__build": "cuda", "torch__cuda_build": cuda, "torch__cuda_available": True}
    of_host = {name: value for name, value in more.items() if "__" in name}
    return with_gpu(device, facts__gpus=[card], **{**told_torch, **of_host})


def with_amd(**more: Any) -> Examination:
    gpu = {"vendor": "amd", "name": "gfx1036", "integrated": True}
    return with_gpu("auto", **{"facts__gpus": [gpu], **more})


def on_rocm(**more: Any) -> Examination:
    """A torch that is built for AMD's GPUs, on all hosts."""
    seen = with_amd(torch__cuda_available=True, **more)
    for name in NAMES:
        seen = told(seen, name, "torch/torch", "2.13.0+rocm7.2")
        seen = told(seen, name, "torch/build", "rocm")
    return seen


def not_tried(torch_path: str) -> Examination:
    """In the quick form torch is found, and not imported."""
    seen = replace(home(), quick=True, world=None)
    for name in NAMES:
        unknown = dict.fromkeys(("imported", "gloo", "nccl", "cuda_build", "cuda_available"))
        seen = change(seen, name, torch={**(seen.host(name).torch or {}), **unknown})
    return told(seen, "garage", "torch/torch_path", torch_path)


def on_gpus(**memory_bytes: int) -> Examination:
    """All hosts train on a GPU of 24 GiB, and a model needs 16 of it, or 32 on the CPU.

    memory_bytes: of other GPUs, by host.
    """
    seen = home()
    for name in NAMES:
        held = memory_bytes.get(name, 24 << 30)
        gpu = {"vendor": "nvidia", "name": "RTX 3090", "memory_bytes": held}
        told_torch = {"torch": "2.13.0", "build": "cuda", "cuda_build": "12.8",
                      "cuda_available": True, "nccl": True}  # fmt: skip
        seen = told(seen, name, "facts/gpus", [gpu])
        seen = change(seen, name, torch={**(seen.host(name).torch or {}), **told_torch})
    return replace(seen, need=Need(memory_bytes=32 << 30, gpu_memory_bytes=16 << 30))


def on_radio(**wireless: Any) -> Examination:
    seen = told(home(), "study", "health/wireless", {"eth0": wireless})
    radio = interface("eth0", ADDRESS["study"], 24, "wireless")
    return change(seen, "study", interfaces=(radio,))


def slow_echoes(times_s: tuple[float, ...]) -> Examination:
    seen = home(("attic", "garage"))
    dials = tuple(
        replace(each, echo_s=times_s, rtt_s=min(times_s)) if each.echo_s else each
        for each in seen.dials
    )
    bulk = tuple(replace(each, rtt_s=min(times_s)) for each in dials)
    return replace(seen, dials=bulk)


def measured(rate: float, other: float) -> Examination:
    """Goodputs of the chosen cable and of another interface."""
    seen = beside(home(("attic", "garage")), "eth1", {"attic": "10.9.0.1", "garage": "10.9.0.2"})
    dials = tuple(
        replace(each, goodput_bytes_per_s=rate if each.chosen else other) for each in seen.dials
    )
    return replace(seen, dials=dials)


def on_vpn() -> Examination:
    """The VPN is named for garage, although all reach it at its cable too."""
    seen = told(home(), "garage", "wanted/interface", "tailscale0")
    seen = moved(seen, "garage", interface="tailscale0", address=VPN["garage"])
    return beside(seen, "eth0", ADDRESS)


def outbound_alone() -> Examination:
    return broken(home(), "garage", None)


def two_networks() -> Examination:
    """garage has the address of a virtual machine's NAT."""
    seen = readdressed("garage", "10.0.2.15", 24)
    for name in ("attic", "study"):
        routes = {"10.0.2.15": {"error": "ENETUNREACH"}}
        seen = told(seen, name, "health/routes", routes)
        seen = told(seen, "garage", f"health/routes/{ADDRESS[name]}/error", "ENETUNREACH")
    seen = broken(seen, "garage", None, error="ENETUNREACH")
    return broken(seen, None, "garage", error="ENETUNREACH")


def behind_router() -> Examination:
    """study is behind a second router: it reaches the others, and they do not reach it."""
    seen = told(readdressed("study", "192.168.50.13", 24), "study", "wanted/address", None)
    return broken(seen, None, "study")


def windows() -> Examination:
    return told(behind_router(), "study", "facts/kernel", "5.15.167.4-microsoft-standard-WSL2")


def in_windows(mode: str, **more: Any) -> Make:
    """study is Linux in Windows, connected like this, and nothing gets in."""

    def make() -> Examination:
        told_of = {"networking": mode, "portproxy": [], "inbound": None, **more}
        return told(broken(home(), None, "study"), "study", "health/virtual", told_of)

    return make


def in_container(address: str = "172.17.0.2", manager: str = "docker") -> Examination:
    """garage is a container, whose eth0 ends at a bridge of its machine."""
    seen = readdressed("garage", address, 16)
    inside = {"container": manager, "bridged": ["eth0"]}
    return told(broken(seen, None, "garage"), "garage", "health/virtual", inside)


def vpn_meant() -> Examination:
    """Tailscale is named for every host, although cables lead everywhere too."""
    seen = home()
    for name in NAMES:
        seen = told(seen, name, "wanted/interface", "tailscale0")
        seen = moved(seen, name, interface="tailscale0", address=VPN[name])
    return beside(seen, "eth0", ADDRESS)


def netmask() -> Examination:
    narrow = interface("eth0", ADDRESS["garage"], 32)
    return change(cut_off(), "garage", interfaces=(narrow,))


def route(error: str) -> Make:
    def make() -> Examination:
        seen = broken(broken(home(), "garage", "attic", error=error), "attic", "garage")
        return told(seen, "garage", f"health/routes/{ADDRESS['attic']}/error", error)

    return make


def fixed_neighbour() -> Examination:
    seen = broken(broken(home(), "garage", "attic"), "attic", "garage")
    way = f"health/routes/{ADDRESS['attic']}"
    seen = told(seen, "garage", f"{way}/neighbour", "permanent")
    return told(seen, "garage", f"{way}/mac", "02:00:5e:00:53:01")


def by_vpn() -> Examination:
    """A VPN takes what is for the neighbours."""
    seen = cut_off()
    for name in ("attic", "study"):
        seen = told(seen, "garage", f"health/routes/{ADDRESS[name]}/interface", "tailscale0")
    return seen


def unheard(state: str, *, router: bool) -> Examination:
    """Nobody hears garage, and it hears nobody."""
    seen = cut_off()
    for name in ("attic", "study"):
        seen = told(seen, "garage", f"health/routes/{ADDRESS[name]}/neighbour", state)
        seen = told(seen, name, f"health/routes/{ADDRESS['garage']}/neighbour", state)
    if not router:
        seen = told(seen, "garage", "health/gateway", None)
    return seen


def dropped_between() -> Examination:
    seen = broken(broken(home(), "garage", "attic"), "attic", "garage")
    for name in NAMES:
        seen = told(told(seen, name, "health/firewall", OFF), name, "health/gateway", None)
    return seen


def strict_filter() -> Examination:
    seen = broken(home(), None, "garage")
    seen = told(seen, "garage", "health/kernel/rp_filter", {"all": 1, "eth0": 1})
    for name in ("attic", "study"):
        seen = told(seen, "garage", f"health/routes/{ADDRESS[name]}/interface", "wlan0")
    # It is in their network with its radio too.
    radio = interface("wlan0", "192.168.1.99", 24, "wireless")
    return change(seen, "garage", interfaces=(*seen.host("garage").interfaces, radio))


def routed(**way: Any) -> Make:
    """garage's way to attic is another one."""

    def make() -> Examination:
        seen = broken(home(), "garage", "attic")
        for name, value in way.items():
            seen = told(seen, "garage", f"health/routes/{ADDRESS['attic']}/{name}", value)
        return seen

    return make


TWO_HOPS = [{"interface": "eth0", "gateway": None, "weight": 1},
            {"interface": "lan1", "gateway": "192.168.1.99", "weight": 2}]  # fmt: skip


def library() -> Examination:
    """A library refuses what garage's programs dial."""
    seen = broken(home(), "garage", "attic", error="ECONNREFUSED", took_s=84e-6)
    return told(seen, "garage", f"health/routes/{ADDRESS['attic']}/error", "ECONNREFUSED")


def unkeyed() -> Examination:
    """An IPsec policy of garage withholds what is for attic."""
    source, target = ADDRESS["garage"], ADDRESS["attic"]
    seen = told(broken(home(), "garage", "attic"), "garage", "health/firewall/policies", [
        f"src {source}/32 dst {target}/32", "dir out priority 7", f"tmpl src {source} dst {target}",
        "proto esp reqid 1 mode transport"])  # fmt: skip
    return told(seen, "garage", f"health/routes/{target}/unkeyed", True)


def metered() -> Examination:
    """A quota of garage ends a burst."""
    rules = ["table inet metered {", "chain out {",
             "type filter hook output priority filter; policy accept;",
             "quota over 12 mbytes used 0 bytes drop", "}", "}"]  # fmt: skip
    seen = told(home(), "garage", "health/firewall", firewall("nft", rules))
    burst = dial("garage", "attic", PORTS[0], "burst", ok=False, error="ETIMEDOUT",
                 bulk_bytes=11_700_000)  # fmt: skip
    return replace(seen, dials=(*seen.dials, burst))


def spoofed(mac: str = MAC["study"]) -> Examination:
    """What attic has for garage goes to another card."""
    seen = broken(broken(home(), "garage", "attic"), "attic", "garage")
    for name in NAMES:
        seen = told(seen, name, "health/links/eth0/mac", MAC[name])
    return told(seen, "attic", f"health/routes/{ADDRESS['garage']}/mac", mac)


def other_versions() -> Examination:
    return told(home(), "garage", "torch/torch", "2.12.1+cpu")


def one_machine() -> Examination:
    return told(home(), "study", "facts/machine", "machine of garage")


def shared_address() -> Examination:
    """garage was given the address of attic."""
    seen = readdressed("garage", ADDRESS["attic"], 24)
    return broken(seen, None, "garage", error="ECONNREFUSED")


def docker_named() -> Examination:
    seen = told(home(), "garage", "wanted/interface", "docker0")
    seen = moved(seen, "garage", interface="docker0", address="172.17.0.1")
    return broken(seen, None, "garage", error="ECONNREFUSED")


def ipv6_alone() -> Examination:
    seen = readdressed("garage", "fd00::12", 64)
    return broken(seen, None, "garage", error="ENETUNREACH")


def no_interface_at_all() -> Examination:
    seen = told(home(), "garage", "wanted/interface", None)
    seen = change(seen, "garage", interfaces=(interface("lo", "127.0.0.1", 8, "loopback"),))
    dials = tuple(each for each in seen.dials if each.target != "garage")
    return replace(seen, dials=dials)


def names_known() -> Examination:
    """All know all names."""
    seen = home()
    for asker in NAMES:
        for name in NAMES:
            answer = {"addresses": [ADDRESS[name]], "error": None, "took_s": 0.001}
            seen = told(seen, asker, f"health/names/others/{name}", answer)
    return seen


def data(there: dict[str, str]) -> Examination:
    seen = replace(home(), need=Need(data={"000.bin": "a1", "001.bin": "b2"}))
    return told(seen, "garage", "health/data", there)


def code(there: dict[str, str]) -> Examination:
    seen = replace(home(), need=Need(code={"train.py": "a1"}))
    return told(seen, "garage", "health/code", there)


def everywhere(path: str, value: Any) -> Examination:
    """All hosts say the same."""
    seen = home()
    for name in NAMES:
        seen = told(seen, name, path, value)
    return seen


def watched(*names: str, error_s: float = 0.02, **clocks: float) -> Make:
    """What passed by clocks of garage, or of the hosts that are named, while 3.2 s passed here."""

    def make() -> Examination:
        seen = home()
        for name in names or ("garage",):
            fits = {"watched_s": 3.2, "error_s": error_s, "monotonic_s": 3.2, "real_s": 3.2}
            clock = {**seen.host(name).health["clock"], **fits, **clocks}
            seen = told(seen, name, "health/clock", clock)
        return seen

    return make


def listed_as(orders: dict[str, tuple[str, ...]], **asks: Sequence[str]) -> Examination:
    """Hosts have the same files in their own order. asks: lines of the program here, by how."""
    seen = replace(
        home(), need=Need(data={name: name for name in sorted(next(iter(orders.values())))})
    )
    seen = replace(seen, controller={**seen.controller, **asks})
    for host, names in orders.items():
        seen = told(seen, host, "health/data", {name: name for name in names})
    return seen


def in_zones(**hosts: tuple[str, int]) -> Examination:
    """The program here asks for local time. hosts: those that are not in UTC."""
    seen = replace(home(), controller={**home().controller, "local_time": ["train.py:3"]})
    for name in NAMES:
        zone, offset_s = hosts.get(name, ("Etc/UTC", 0))
        clock = {**seen.host(name).health["clock"], "zone": zone, "utc_offset_s": offset_s}
        seen = told(seen, name, "health/clock", clock)
    return seen


def modules(**hosts: dict[str, Any] | None) -> Examination:
    """The program here imports rowscale, and hosts have these."""
    seen = replace(home(), controller={**home().controller, "modules": ["rowscale"]})
    for host, module in hosts.items():
        seen = told(seen, host, "torch/modules", {"rowscale": module})
    return seen


def plain(**hosts: dict[str, Any] | None) -> Examination:
    """The program's folder rowscale has no __init__.py, and hosts have these of that name."""
    seen = modules(**hosts)
    return replace(seen, controller={**seen.controller, "modules": [], "plain": ["rowscale"]})


def here(**told_here: Any) -> Examination:
    """A home whose controller tells these."""
    return replace(home(), controller={**home().controller, **told_here})


def taken(**hosts: dict[str, Any]) -> Examination:
    """What the interpreters of all hosts take in; these hosts have more."""
    seen = home()
    nothing = {"starts": [], "plugins": [], "settings": {}, "replaced": {}, "foreign": [],
               "torch_settings": {}, "torch_replaced": {}, "altered": []}  # fmt: skip
    for name in NAMES:
        told_torch = {**(seen.host(name).torch or {}), **nothing, **hosts.get(name, {})}
        seen = change(seen, name, torch=told_torch)
    return seen


def large_run() -> Examination:
    return replace(home(), need=Need(checkpoint_bytes=30 * 10**9, keep=2))


def asked(
    ask: str, name: str, kind: str | None = None, *, asks: dict[str, Any] | None = None, **told: Any
) -> Examination:
    """A home in which a program asks for something by name. kind: of the hosts' answers; told: by
    host; asks: what else it asks for.
    """
    seen = replace(home(), controller={**home().controller,
                   "asks": {ask: {name: "train.py:7"}, **(asks or {})}})  # fmt: skip
    for host, answer in told.items():
        own = {**seen.host(host).health, "asked": {kind or ask: {name: answer}}}
        seen = change(seen, host, health=own)
    return seen


def led_away(name: str, target: str, *hosts: str, problem: str | None = "ENOENT") -> Examination:
    """A home whose program has a link that travels; these hosts have nothing at its end."""
    seen = home()
    links = {"asks": {"links": {target: name}}, "sent_links": [name], "programs": ["/w/train.py"]}
    told_of = {"files": {target: {"kind": "missing"}},
               "writes": {target: {"problem": problem, "owner": None}}}  # fmt: skip
    for host in hosts:
        seen = change(seen, host, health={**seen.host(host).health, "asked": told_of})
    return replace(seen, controller={**seen.controller, **links})


ACTS = ("thread", "child", "request", "inotify", "locked-memory", "secure", "home.map", "home.link")


ACTS = (
    "thread",
    "child",
    "shared-memory",
    "request",
    "inotify",
    "locked-memory",
    "secure",
    "home.map",
    "home.link",
    "module-bz2",
    "module-statistics",
    "netlink",
    "program",
    "unix-socket",
)


def acted(*names: str, **failure: Any) -> Callable[..., Examination]:
    """Acts that fail on garage, or on these hosts, and work on the others."""

    def make(*hosts: str) -> Examination:
        seen = home()
        for each in NAMES:
            fails_there = each in (hosts or ("garage",))
            own = {"said": "OSError: no", **failure}
            failed = {name: own for name in names if fails_there}
            acts = {"worked": [act for act in ACTS if act not in failed], "failed": failed}
            seen = told(seen, each, "torch/acts", acts)
        return seen

    return make
