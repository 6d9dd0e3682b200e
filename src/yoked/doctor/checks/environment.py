"""Variables that ranks inherit from the shell that ssh starts, and what they do to a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from yoked.doctor.check import Match, check
from yoked.doctor.checks.query import gpus_that_train, mapping, part, ranks_of
from yoked.doctor.repairs.startfiles import take_out_variable
from yoked.records.examination import Examination, Fix, HostSeen
from yoked.units import listed

# What torchrun tells its ranks, and whoever else reads it takes for the truth.
_OF_A_RANK = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
    "MASTER_PORT", "NODE_RANK",
)  # fmt: skip
# A launch sets these itself: see rank_environment of yoked.launch.start.
_OVERRIDDEN = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
# Of torch 2.13, by what its libraries contain; others do nothing.
_OF_GLOO = (
    "GLOO_SOCKET_IFNAME", "GLOO_DEVICE_TRANSPORT", "GLOO_LOG_LEVEL",
    "GLOO_DISABLE_CONNECTION_RETRIES", "GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY",
    "GLOO_DEVICE_TRANSPORT_TCP_TLS_CERT", "GLOO_DEVICE_TRANSPORT_TCP_TLS_CA_FILE",
    "GLOO_DEVICE_TRANSPORT_TCP_TLS_CA_PATH",
)  # fmt: skip
# All ranks must do the same; what only makes them talk more is left out.
_ALIKE = ("TORCH_DISTRIBUTED_DEBUG", "TORCH_GLOO_LAZY_INIT", "GLOO_DEVICE_TRANSPORT")
_ALIKE_OF_NCCL = (
    "NCCL_PROTO", "NCCL_ALGO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_BUFFSIZE",
    "NCCL_NTHREADS",
)  # fmt: skip
# Values that change nothing of what a rank sends: as good as none.
_AS_UNSET = {
    "TORCH_DISTRIBUTED_DEBUG": ("OFF", "INFO"),
    "TORCH_GLOO_LAZY_INIT": ("0",),
    "GLOO_DEVICE_TRANSPORT": ("TCP",),
}
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_THREAD_LIMIT")
_SLOW_PYTHON = ("PYTHONMALLOC", "PYTHONDEVMODE", "PYTHONTRACEMALLOC", "PYTHONASYNCIODEBUG")
_SAW = "the shell's start files set {variables} on {host}"
_FIX = "Makes the line of the start file that exports it a comment."


def _variables(host: HostSeen, names: Iterable[str]) -> dict[str, str]:
    """Those of some variables that are set on a host, and to something."""
    told = mapping(part(host, "environment"))
    return {name: str(told[name]) for name in names if told.get(name)}


def _shown(found: dict[str, str]) -> str:
    return listed(f"{name}={value}" for name, value in found.items())


def _take_out(host: HostSeen, found: Iterable[str]) -> Iterator[Fix]:
    return (take_out_variable(host.name, name) for name in found)


def _set(host: HostSeen, found: dict[str, str], how: str = "") -> Match:
    """Variables that are set on a host, each with the line that takes it out."""
    return Match(host.name, *_take_out(host, found), how=how, variables=_shown(found))


def _wherever_set(
    seen: Examination, *names: str, to: Callable[[str], bool] = bool, how: str = ""
) -> Iterator[Match]:
    """The hosts on which some variables are set. to: which values count."""
    for host in seen.up:
        told = _variables(host, names)
        if found := {name: value for name, value in told.items() if to(value)}:
            yield _set(host, found, how)


@check(
    "python-home",
    question="Does Python look for its library in the right place?",
    reads=("health.environment",),
    severity="error",
    saw=_SAW,
    why="every Python looks for its own library there: `No module named 'encodings'`",
    symptom="`Fatal Python error: init_fs_encoding`, `No module named 'encodings'`.",
    cause="PYTHONHOME is set, and is the home of another Python.",
    fix=_FIX,
    explains=("torch-missing", "torch-import", "python-missing", "world-failed"),
    quick=True,
)
def python_home(seen: Examination) -> Iterator[Match]:
    return _wherever_set(seen, "PYTHONHOME")


@check(
    "gloo-transport",
    question="Does Gloo use plain TCP on all hosts?",
    reads=("health.environment",),
    severity="error",
    saw=_SAW,
    why="Gloo speaks plain TCP to all others: the build has no such transport, or certificates "
    "are missing; docs/concepts/security.md says how to encrypt",
    symptom="`unsupported gloo device transport`, or `Connection reset by peer` in the first "
    "handshake.",
    cause="GLOO_DEVICE_TRANSPORT is set on a host.",
    fix=_FIX,
    explains=("unlike-variables", "world-failed"),
    quick=True,
)
def gloo_transport(seen: Examination) -> Iterator[Match]:
    return _wherever_set(seen, "GLOO_DEVICE_TRANSPORT", to=lambda value: value != "TCP")


@check(
    "unlike-variables",
    question="Are variables that must be alike the same on all hosts?",
    reads=("health.environment",),
    severity="error",
    saw="{name} is {shown:list}",
    why="ranks that are set up differently wait for different messages: all hang",
    symptom="All ranks hang in the first collective, or in init_process_group.",
    cause="TORCH_DISTRIBUTED_DEBUG=DETAIL, NCCL_PROTO or the like on some of the hosts: "
    "these ranks send messages that the others do not expect. NCCL's count where all hosts "
    "train on GPUs; values that are the default count nowhere.",
    fix=_FIX,
    on_cluster="Slurm exports the submitting shell's variables to all nodes, so it cannot "
    "occur; with ssh it can.",
    explains=("debug-variables", "world-failed"),
    quick=True,
)
def unlike_variables(seen: Examination) -> Iterator[Match]:
    """Variables that must be the same on all hosts, and are not."""
    on_gpus = all(gpus_that_train(seen, host) for host in seen.up)
    for name in (*_ALIKE, *_ALIKE_OF_NCCL) if on_gpus else _ALIKE:
        values = {
            host.name: _meant(name, str(mapping(part(host, "environment")).get(name) or ""))
            for host in seen.up
            if part(host, "environment") is not None
        }
        if len(set(values.values())) < 2:
            continue
        bearers = [seen.host(host) for host, value in values.items() if value]
        shown = [f"{value or 'as good as unset'} on {host}" for host, value in values.items()]
        yield Match(
            [host.name for host in bearers],
            *(take_out_variable(host.name, name) for host in bearers),
            name=name,
            shown=shown,
        )


def _meant(name: str, value: str) -> str | None:
    """What a variable asks for; None: what would be done without it."""
    # torch takes its level in any letters.
    value = value.upper() if name == "TORCH_DISTRIBUTED_DEBUG" else value
    return None if value in ("", *_AS_UNSET.get(name, ())) else value


@check(
    "rank-variables",
    question="Is the shell free of another job's rank?",
    reads=("health.environment",),
    severity="warning",
    saw=_SAW,
    why="a program that is started without a launcher takes itself for a rank, and waits for peers "
    "that do not come; ranks of a run get their own",
    symptom="A script that trains alone hangs in init_process_group.",
    cause="RANK, WORLD_SIZE or MASTER_ADDR were exported once, by hand.",
    fix=_FIX,
    quick=True,
)
def rank_variables(seen: Examination) -> Iterator[Match]:
    return _wherever_set(seen, *_OF_A_RANK)


@check(
    "gloo-variables",
    question="Does the shell leave the interface to the launcher?",
    reads=("health.environment",),
    severity="warning",
    saw=_SAW,
    why={
        "pinned": "yoked names the interface itself; other programs use this one, whatever "
        "network they are in",
        "unknown": "torch knows no such variable: it does nothing",
    },
    symptom="`Unable to find address for: wlan0` on some days.",
    cause="GLOO_SOCKET_IFNAME and the like in a start file; or variables that torch does not know "
    "(GLOO_PORT_RANGE, GLOO_IPV6).",
    fix=_FIX,
    quick=True,
)
def gloo_variables(seen: Examination) -> Iterator[Match]:
    yield from _wherever_set(seen, *_OVERRIDDEN, how="pinned")
    for host in seen.up:
        unknown = {
            name: str(value)
            for name, value in mapping(part(host, "environment")).items()
            if name.startswith("GLOO_") and name not in _OF_GLOO
        }
        if unknown:
            yield _set(host, unknown, "unknown")


@check(
    "debug-variables",
    question="Is torch's slow check of collectives off?",
    reads=("health.environment",),
    severity="warning",
    saw=_SAW,
    why="each collective is preceded by another that compares what all ranks are about to do",
    symptom="Steps with many small collectives are several times slower.",
    cause="TORCH_DISTRIBUTED_DEBUG=DETAIL is left from a search for a bug.",
    fix=_FIX,
    quick=True,
)
def debug_variables(seen: Examination) -> Iterator[Match]:
    return _wherever_set(
        seen, "TORCH_DISTRIBUTED_DEBUG", to=lambda value: value.upper() == "DETAIL"
    )


@check(
    "thread-variables",
    question="May ranks use all of their cores?",
    reads=("health.environment",),
    severity="warning",
    saw=_SAW,
    why="`yoked train` takes what a person has set, and {cores:plural core} could work for "
    "each rank",
    symptom="One core at 100%, the others idle.",
    cause="OMP_NUM_THREADS=1 in a start file.",
    fix=_FIX,
    on_cluster="torchrun itself sets OMP_NUM_THREADS=1 where nobody else has.",
    quick=True,
)
def thread_variables(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        cores = host.facts.get("usable_cores")
        if not cores or gpus_that_train(seen, host):
            continue
        fair = max(1, int(cores) // ranks_of(seen, host))
        few = {
            name: value
            for name, value in _variables(host, _THREADS).items()
            if value.isdigit() and int(value) < fair
        }
        if few:
            yield Match(host.name, *_take_out(host, few), variables=_shown(few), cores=fair)


@check(
    "python-variables",
    question="Is the shell free of settings for Python?",
    reads=("health.environment",),
    severity="warning",
    saw=_SAW,
    why={
        "slow": "every rank's Python is slower, or ends at the first warning of a library",
        "path": "programs that are started by hand find other modules than ranks of a run, which "
        "get a path of their own",
    },
    symptom="Everything is slower, a warning ends the run, or another module is imported than "
    "expected.",
    cause="PYTHONMALLOC, PYTHONDEVMODE, PYTHONWARNINGS=error or PYTHONPATH in a start file.",
    fix=_FIX,
    quick=True,
)
def python_variables(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        found = _variables(host, _SLOW_PYTHON)
        found |= {
            name: value
            for name, value in _variables(host, ("PYTHONWARNINGS",)).items()
            if "error" in value
        }
        if found:
            yield _set(host, found, "slow")
    yield from _wherever_set(seen, "PYTHONPATH", how="path")


@check(
    "preload",
    question="Is no library forced upon every program?",
    reads=("health.environment",),
    severity="warning",
    saw=_SAW,
    why="that library is loaded into every rank; where it is not there, each program says `object "
    "... from LD_PRELOAD cannot be preloaded`",
    symptom="`ERROR: ld.so: object '/gone.so' from LD_PRELOAD cannot be preloaded`, before each "
    "line of output.",
    cause="LD_PRELOAD in a start file.",
    fix=_FIX,
    quick=True,
)
def preload(seen: Examination) -> Iterator[Match]:
    return _wherever_set(seen, "LD_PRELOAD")


CHECKS = (
    python_home,
    gloo_transport,
    unlike_variables,
    rank_variables,
    gloo_variables,
    debug_variables,
    thread_variables,
    python_variables,
    preload,
)
