"""What the lab needs of this machine, what of it is missing, and how to get it.

`gather` looks at the machine, `judge` is pure: facts in, needs out. Nothing is believed that can
be tried: namespaces, devices, queues and overlays are made once, in namespaces of their own that
vanish with the attempt.
"""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from yoked.core.packages import install_line, package_manager, this_distribution
from yoked.errors import LabError
from yoked.lab.cgroups import SCOPE, Hierarchy, trees_here
from yoked.lab.hostgroup import CONTROLLERS
from yoked.lab.inside import TOOL_PATH

_PROBE_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Need:
    """One thing that the lab uses.

    required: without it no lab comes up; else something is left out, which `detail` names.
    fix: a command, or a sentence; "" when it is there.
    """

    name: str
    ok: bool
    required: bool
    detail: str
    fix: str = ""


@dataclass(frozen=True)
class Cgroups:
    """version: "v1", "v2", "v1 and v2" or "none".

    usable: controllers with which this user may limit a group that he makes.
    delegable: those that systemd would hand to him for the asking.
    """

    version: str = "none"
    usable: frozenset[str] = frozenset()
    delegable: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Facts:
    """What `gather` saw.

    distribution: ID and ID_LIKE of os-release. programs: their paths, those that are there.
    probe: each attempt with "" or why it failed; what was not tried is not in it.
    loadable: kernel modules on the disk; None: this kernel has no folder of modules.
    """

    system: str = "Linux"
    is_root: bool = False
    distribution: tuple[str, ...] = ()
    kernel: str = ""
    programs: Mapping[str, str] = field(default_factory=dict)
    faketime: str | None = None
    sysctls: Mapping[str, int] = field(default_factory=dict)
    filesystems: frozenset[str] = frozenset()
    probe: Mapping[str, str] = field(default_factory=dict)
    loadable: frozenset[str] | None = None
    cgroups: Cgroups = Cgroups()


_TOOLS = {
    "ip": "makes the links",
    "tc": "keeps the links' rates",
    "ssh-keygen": "makes the lab's keys",
    "ssh": "logs in to hosts",
    "sshd": "answers on every host",
    "nft": "firewalls and losses",
    "libfaketime": "the fault clock-skew",
}
_REQUIRED_TOOLS = ("ip", "tc", "ssh-keygen")


@dataclass(frozen=True)
class _Feature:
    use: str
    required: bool
    module: str
    option: str


# What the kernel must have, in the order in which the probe tries it.
_FEATURES = {
    "veth": _Feature("links", True, "veth", "CONFIG_VETH"),
    "bridge": _Feature("networks", True, "bridge", "CONFIG_BRIDGE"),
    "tbf": _Feature("the links' rates", True, "sch_tbf", "CONFIG_NET_SCH_TBF"),
    "netem": _Feature(
        "delays of links, else by a relay", False, "sch_netem", "CONFIG_NET_SCH_NETEM"
    ),
    "overlay": _Feature("each host's own files", True, "overlay", "CONFIG_OVERLAY_FS"),
}


@functools.cache
def check() -> tuple[Need, ...]:
    """All needs of the lab on this machine, met or not; looked for once in a process."""
    return tuple(judge(gather()))


def require(needs: Iterable[Need]) -> None:
    """Raise LabError that names every required need that is not met, with its fix."""
    missing = [need for need in needs if need.required and not need.ok]
    if missing:
        what = "; ".join(f"{need.name}: {need.detail}" for need in missing)
        # One package can be the answer to several.
        fixes = dict.fromkeys(need.fix for need in missing if need.fix)
        raise LabError(f"no lab can be brought up on this machine: {what}", fix=list(fixes))


def judge(facts: Facts) -> list[Need]:
    """Needs by facts. Off Linux it is the only need; what was not tried has none."""
    if facts.system != "Linux":
        what = f"a lab is made of Linux namespaces, and this is {facts.system}"
        fix = "run it in a virtual machine: Lima on macOS, WSL 2 on Windows"
        return [Need("Linux", False, True, what, fix)]
    return [
        Need("Linux", True, True, f"kernel {facts.kernel}"),
        *(_judge_tool(name, facts) for name in _TOOLS),
        _judge_namespaces(facts),
        *_judge_features(facts),
        _judge_cgroups(facts),
    ]


def _judge_tool(name: str, facts: Facts) -> Need:
    required = name in _REQUIRED_TOOLS
    if there := facts.faketime if name == "libfaketime" else facts.programs.get(name):
        return Need(name, True, required, there)
    fix = install_line(name, facts.distribution)
    if name == "sshd" and package_manager(facts.distribution) == "apt":
        # Debian starts it at once, which opens a port of the machine itself.
        fix += "; to keep the machine itself closed, sudo systemctl disable --now ssh"
    return Need(name, False, required, f"is not installed ({_TOOLS[name]})", fix)


def _judge_namespaces(facts: Facts) -> Need:
    name, closed = "namespaces", _closed_by(facts)
    problem = facts.probe.get("namespaces", "unshare is missing" if closed else "")
    if not problem:
        return Need(name, True, True, "as root" if facts.is_root else "user namespaces")
    if closed:
        settings = " ".join(f"{key}={value}" for key, value in closed.items())
        detail = f"are closed by {', '.join(closed)} ({problem})"
        way_out = "" if facts.is_root else ", or run yoked as root"
        return Need(name, False, True, detail, f"sudo sysctl {settings}{way_out}")
    fix = "run yoked as root"
    if facts.is_root:
        fix = "leave the container, or start it with docker run --privileged"
    return Need(name, False, True, f"cannot be made ({problem})", fix)


def _closed_by(facts: Facts) -> dict[str, int]:
    """The sysctls that are in the way, each with a value that opens it."""
    closed = {
        key: 15_000
        for key, value in facts.sysctls.items()
        if key.startswith("user.max_") and value == 0
    }
    if facts.is_root:
        closed.pop("user.max_user_namespaces", None)
        return closed
    if facts.sysctls.get("kernel.unprivileged_userns_clone") == 0:
        closed["kernel.unprivileged_userns_clone"] = 1
    if facts.sysctls.get("kernel.apparmor_restrict_unprivileged_userns", 0) != 0:
        closed["kernel.apparmor_restrict_unprivileged_userns"] = 0
    return closed


def _judge_features(facts: Facts) -> Iterator[Need]:
    for name, feature in _FEATURES.items():
        problem = facts.probe.get(name)
        if name == "overlay" and problem is None and name in facts.filesystems:
            problem = ""
        if problem is None:
            continue
        if not problem:
            yield Need(name, True, feature.required, feature.use)
            continue
        detail = f"the kernel does not give it ({problem}); it is for {feature.use}"
        yield Need(name, False, feature.required, detail, _feature_fix(feature, problem, facts))


def _feature_fix(feature: _Feature, problem: str, facts: Facts) -> str:
    module, loadable = feature.module, facts.loadable
    if "not permitted" in problem or "ermission denied" in problem:
        return "run yoked as root, outside of containers"
    if module == "overlay" and module in facts.filesystems:
        return "run yoked as root" if not facts.is_root else "run yoked outside of containers"
    if loadable is not None and module in loadable:
        return f"sudo modprobe {module}"
    other = f"start a kernel that has {feature.option}; {facts.kernel} has neither it nor a module"
    # In a container the distribution is not that of the kernel, and no package of it helps.
    if loadable is None or feature.required:
        return other
    if "ubuntu" in facts.distribution:
        return "sudo apt install linux-modules-extra-$(uname -r)"
    if package_manager(facts.distribution) == "dnf":
        return "sudo dnf install kernel-modules-extra-$(uname -r)"
    return other


def _judge_cgroups(facts: Facts) -> Need:
    groups = facts.cgroups
    missing = [name for name in CONTROLLERS if name not in groups.usable]
    if not missing:
        return Need("cgroups", True, False, f"{groups.version}: {', '.join(CONTROLLERS)}")
    lost = {"cpu": "speeds", "memory": "memory limits", "freezer": "suspend as one act"}
    detail = f"{groups.version}: no {', '.join(missing)}, so hosts go without " + ", ".join(
        lost[name] for name in missing
    )
    return Need("cgroups", False, False, detail, _cgroups_fix(missing, facts))


def _cgroups_fix(missing: list[str], facts: Facts) -> str:
    if facts.is_root:
        if missing == ["memory"]:
            return "add cgroup_enable=memory to the kernel's command line"
        return "run yoked outside of containers, or mount /sys/fs/cgroup writable"
    if not facts.cgroups.delegable:
        return "run yoked as root"
    if facts.cgroups.delegable.issuperset(missing):
        return SCOPE
    folder = "/etc/systemd/system/user@.service.d"
    return (
        f"sudo mkdir -p {folder} && printf '[Service]\\nDelegate=cpu cpuset io memory pids\\n'"
        f" | sudo tee {folder}/delegate.conf && sudo systemctl daemon-reload"
        f"; log in again, then: {SCOPE}"
    )


def gather() -> Facts:
    """Look at this machine; takes some 30 ms, most of it for the probe."""
    system, is_root = platform.system(), os.geteuid() == 0
    if system != "Linux":
        return Facts(system=system, is_root=is_root)
    # The user's own PATH goes first, as it does when the lab runs them.
    search = os.pathsep.join([os.environ.get("PATH", ""), TOOL_PATH])
    found = {name: shutil.which(name, path=search) for name in (*_TOOLS, "unshare")}
    programs = {name: path for name, path in found.items() if path}
    # The probe goes first: it makes the kernel load what it can load.
    probe = probe_kernel(is_root, programs.get("unshare"), programs.get("ip"), programs.get("tc"))
    return Facts(
        is_root=is_root,
        distribution=this_distribution(),
        kernel=platform.release(),
        programs=programs,
        faketime=_find_faketime(),
        sysctls=_read_sysctls(),
        filesystems=frozenset(_read("/proc/filesystems").split()) - {"nodev"},
        probe=probe,
        loadable=_find_loadable(platform.release()),
        cgroups=find_cgroups(
            trees_here(),
            os.geteuid(),
            read=_read,
            writable=lambda path: os.access(path, os.W_OK),
        ),
    )


def _read(path: str) -> str:
    """The file's text; "" where it is not there or not ours to read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _find_faketime() -> str | None:
    patterns = ("lib/*/faketime", "lib64/faketime", "lib/faketime", "local/lib/*/faketime")
    for pattern in (*patterns, "local/lib/faketime"):
        for found in Path("/usr").glob(f"{pattern}/libfaketime.so.1"):
            return str(found)
    return None


def _read_sysctls() -> dict[str, int]:
    kinds = ("user", "net", "mnt", "pid", "uts", "ipc")
    keys = [f"user.max_{kind}_namespaces" for kind in kinds]
    keys += ["kernel.unprivileged_userns_clone", "kernel.apparmor_restrict_unprivileged_userns"]
    texts = {key: _read(f"/proc/sys/{key.replace('.', '/')}").strip() for key in keys}
    return {key: int(text) for key, text in texts.items() if text.isdigit()}


def _find_loadable(kernel: str) -> frozenset[str] | None:
    folder = Path("/lib/modules") / kernel
    if not folder.is_dir():
        return None
    known = _read(str(folder / "modules.dep"))
    modules = (feature.module for feature in _FEATURES.values())
    return frozenset(module for module in modules if f"/{module}.ko" in known)


# The overlay stands on a tmpfs, as the hosts' files will.
_PROBE = """
try() {
    name=$1
    shift
    if why=$("$@" 2>&1); then echo "yes $name"; else echo "no $name" $why; fi
}
echo yes namespaces
if [ -n "$1" ]; then
    try veth "$1" link add yoked0 type veth peer name yoked1
    try bridge "$1" link add yoked2 type bridge
fi
if [ -n "$2" ]; then
    try tbf "$2" qdisc replace dev lo root tbf rate 1mbit burst 10kb latency 50ms
    try netem "$2" qdisc replace dev lo root netem delay 1ms
fi
if mount -t tmpfs yoked /tmp && mkdir /tmp/upper /tmp/work /tmp/merged; then
    try overlay mount -t overlay yoked \\
        -o lowerdir=/usr,upperdir=/tmp/upper,workdir=/tmp/work /tmp/merged
fi
"""


def probe_kernel(
    is_root: bool, unshare: str | None, ip: str | None, tc: str | None
) -> Mapping[str, str]:
    """Try what the lab will do, in throw-away namespaces; {} without unshare(1).

    Each attempt with "" or the reason of its failure.
    """
    if unshare is None:
        return {}
    namespaces = ["--mount", "--net", "--uts", "--ipc", "--pid", "--fork"]
    if not is_root:
        namespaces = ["--user", "--map-root-user", *namespaces]
    command = [unshare, *namespaces, "--propagation", "private", "sh", "-c", _PROBE, "sh"]
    try:
        done = subprocess.run(
            [*command, ip or "", tc or ""],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PATH": TOOL_PATH, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        return {"namespaces": f"no answer in {_PROBE_TIMEOUT_S:.0f} s"}
    return read_probe(done.stdout, done.stderr)


def read_probe(output: str, problem: str) -> dict[str, str]:
    """What the probe printed; `problem` is why it did not come to print anything."""
    results = {}
    for line in output.splitlines():
        verdict, _, rest = line.partition(" ")
        name, _, why = rest.partition(" ")
        results[name] = "" if verdict == "yes" else why.rstrip(".") or "it failed"
    return results or {"namespaces": " ".join(problem.split()) or "unshare failed"}


def find_cgroups(
    trees: Iterable[Hierarchy],
    uid: int,
    *,
    read: Callable[[str], str],
    writable: Callable[[str], bool],
) -> Cgroups:
    """Which controllers this user may use.

    Root makes its groups at the top; others may do so only in a group that was handed to them.
    """
    versions: set[str] = set()
    usable: set[str] = set()
    delegable: set[str] = set()
    for tree in trees:
        versions.add(f"v{tree.version}")
        folder = tree.mount if uid == 0 else tree.own
        if tree.version == 1:
            if writable(str(folder)):
                usable |= tree.controllers
            continue
        manager = f"{tree.mount}/user.slice/user-{uid}.slice/user@{uid}.service"
        theirs = read(f"{manager}/cgroup.controllers").split()
        delegable.update([*theirs, "freezer"] if theirs else [])
        if writable(str(folder)) and writable(f"{folder}/cgroup.procs"):
            # cgroup.freeze is part of every v2 group.
            usable.update(["freezer", *read(f"{folder}/cgroup.controllers").split()])
    version = " and ".join(sorted(versions)) or "none"
    wanted = frozenset(CONTROLLERS)
    return Cgroups(version, wanted & usable, wanted & delegable)
