"""Variables that ranks inherit from the shell that ssh starts, and what they do to a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from yoked.doctor.check import Match, check
from yoked.doctor.checks.link_groups import described
from yoked.doctor.checks.query import gpus_that_train, mapping, part, ranks_of, turned_clock
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.startfiles import leave_out_lines, unset_variable
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
# By these torch.distributed and Gloo send other messages, or more of them, than without: all ranks
# must do the same. TORCH_DISTRIBUTED_DEBUG, TORCH_DIST_INIT_BARRIER, TORCH_GLOO_LAZY_INIT and such.
_ALIKE = re.compile(r"TORCH_DIST\w*|TORCH_GLOO_\w+|GLOO_DEVICE_TRANSPORT")
_ALIKE_OF_NCCL = (
    "NCCL_PROTO", "NCCL_ALGO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_BUFFSIZE",
    "NCCL_NTHREADS",
)  # fmt: skip
# Values that change nothing of what a rank sends: as good as none; and those of a switch.
_AS_UNSET = {"TORCH_DISTRIBUTED_DEBUG": ("OFF", "INFO"), "GLOO_DEVICE_TRANSPORT": ("TCP",)}
_OFF = ("0", "false", "no", "off")
# By these numbers are computed otherwise.
_NUMBERS = ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE", "NVIDIA_TF32_OVERRIDE",
            "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")  # fmt: skip
# What torch does otherwise by them is told where hosts differ; not what it shows, and where it
# keeps things.
_OF_TORCH = re.compile(r"(?!\w*(SHOW|LOG|TRACE|DUMP|WARN|HOME|DIR|CACHE|PATH))(PY)?TORCH_\w+")
# By which programs find their data; those of desktops are of other things.
_DATA = re.compile(r"(?!XDG_|YOKED_)(\w+_)?DATA(SET)?S?(_(DIR|PATH|ROOT|HOME|FOLDER))?")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_THREAD_LIMIT")
# By these torch or numpy takes slower instructions than the processor has.
_INSTRUCTIONS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY",
                 "MKL_ENABLE_INSTRUCTIONS", "NPY_DISABLE_CPU_FEATURES")  # fmt: skip
# And by these their threads and the C library place work and memory otherwise.
_PLACES = re.compile(r"(OMP|GOMP|KMP|MKL|OPENBLAS|BLIS|MALLOC)_\w+|GLIBC_TUNABLES")
_SLOW_PYTHON = ("PYTHONMALLOC", "PYTHONDEVMODE", "PYTHONTRACEMALLOC", "PYTHONASYNCIODEBUG")
_BYTECODE = ("PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE")
# What many programs print, and a name of a person or a file may have.
_BEYOND_ASCII = "\u00b5\u00e9\u2192"
_FIX = (
    "Takes the variable out of the start file that sets it; where sshd or another file does, by "
    "hand."
)
# What most of these checks have in common.
_check = partial(
    check,
    reads=("health.environment",),
    severity="warning",
    saw="{variables} on {host}",
    fix=_FIX,
    quick=True,
)


def _variables(host: HostSeen, names: Iterable[str]) -> dict[str, str]:
    """Those of some variables that are set on a host, and to something."""
    told = mapping(part(host, "environment"))
    return {name: str(told[name]) for name in names if told.get(name)}


def _shown(host: HostSeen, found: dict[str, str]) -> str:
    told = [f"{name}={value}{where_set(host, name)}" for name, value in found.items()]
    return f"{listed(told)} {'is' if len(told) == 1 else 'are'} set"


def take_out(host: HostSeen, names: Iterable[str]) -> Iterator[Fix]:
    """The lines that have a host's start files no longer set some variables."""
    told, home = part(host, "set_by"), host.facts.get("home")
    for name in names:
        places = None if told is None else mapping(told).get(name, ())
        yield from unset_variable(host.name, home, name, places)


def lines_out(host: HostSeen, what: str, otherwise: Fix) -> tuple[Fix, ...]:
    """The lines that have a host's start files no longer set what `set_limits` has; otherwise:
    where none does.
    """
    places = mapping(part(host, "set_limits")).get(what) or ()
    return leave_out_lines(host.name, places) or (otherwise,)


def where_set(host: HostSeen, name: str) -> str:
    """` (/etc/environment, line 3)`, of a variable; empty: nobody knows."""
    return shown_places(mapping(part(host, "set_by")).get(name) or ())


def shown_places(places: Iterable[Mapping[str, Any]]) -> str:
    """Lines of start files, behind what they set; empty: there are none."""
    shown = [f"{each['file']}, line {each.get('line')}" for each in places]
    return f" ({listed(shown)})" if shown else ""


def _wherever_set(
    seen: Examination, name: str, to: Callable[[str], bool] = bool
) -> Iterator[Match]:
    """The hosts on which a variable is set. to: which values count."""
    for host in seen.up:
        found = _variables(host, (name,))
        if found and to(found[name]):
            yield Match(host.name, *take_out(host, found), variables=_shown(host, found))


@_check(
    "python-home",
    question="Does Python look for its library in the right place?",
    severity="error",
    why="every Python looks for its own library there: `No module named 'encodings'`",
    symptom="`Fatal Python error: init_fs_encoding`, `No module named 'encodings'`.",
    cause="PYTHONHOME is set, and is the home of another Python.",
    explains=("torch-missing", "torch-import", "python-missing", "world-failed"),
)
def python_home(seen: Examination) -> Iterator[Match]:
    return _wherever_set(seen, "PYTHONHOME")


@_check(
    "gloo-transport",
    question="Does Gloo use plain TCP on all hosts?",
    severity="error",
    why="Gloo speaks plain TCP to all others: the build has no such transport, or certificates "
    "are missing; docs/concepts/security.md says how to encrypt",
    symptom="`unsupported gloo device transport`, or `Connection reset by peer` in the first "
    "handshake.",
    cause="GLOO_DEVICE_TRANSPORT is set on a host.",
    explains=("unlike-variables", "world-failed"),
)
def gloo_transport(seen: Examination) -> Iterator[Match]:
    return _wherever_set(seen, "GLOO_DEVICE_TRANSPORT", to=lambda value: value != "TCP")


@_check(
    "unlike-variables",
    question="Are variables that must be alike the same on all hosts?",
    severity="error",
    saw="{name} is {shown:list}",
    why={
        "": "ranks that are set up differently wait for different messages: all hang",
        "numbers": "the same rows give other gradients there, and nobody says so",
        "data": "a program that looks there for its data reads other rows on some hosts, and "
        "nobody says so",
        "torch": "torch does something otherwise there, and a program that goes well on the others "
        "may fail",
        "places": "libraries place threads or memory by it: ranks there may be slower than the "
        "others, or end where those go on",
    },
    symptom="All ranks hang in the first collective, or in init_process_group; or the loss is of "
    "other rows than one thinks.",
    cause="TORCH_DISTRIBUTED_DEBUG=DETAIL, TORCH_DIST_INIT_BARRIER, NCCL_PROTO or the like on some "
    "of the hosts: these ranks send messages that the others do not expect. NCCL's count where all "
    "hosts train on GPUs; values that are the default count nowhere. Of variables that compute "
    "numbers otherwise, name a folder of data, or place threads and memory (GOMP_CPU_AFFINITY, "
    "MALLOC_CHECK_, GLIBC_TUNABLES) on some hosts alone, it is a warning; so it is of torch's own "
    "(TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD).",
    on_cluster="Slurm exports the submitting shell's variables to all nodes, so it cannot "
    "occur; with ssh it can.",
    explains=("debug-variables", "world-failed"),
)
def unlike_variables(seen: Examination) -> Iterator[Match]:
    """Variables that must be the same on all hosts, and are not."""
    told = [host for host in seen.up if part(host, "environment") is not None]
    names = sorted({name for host in told for name in mapping(part(host, "environment"))})
    on_gpus = all(gpus_that_train(seen, host) for host in seen.up)
    for name in names:
        values = {
            host.name: _meant(name, str(mapping(part(host, "environment")).get(name) or ""))
            for host in told
        }
        how = _must_agree(name, on_gpus=on_gpus)
        # Who names a folder on each host means that it may lie elsewhere.
        is_meant = how == "data" and all(values.values())
        if how is None or is_meant or len(set(values.values())) < 2:
            continue
        bearers = [seen.host(host) for host, value in values.items() if value]
        shown = [
            f"{value}{where_set(seen.host(host), name)} on {host}"
            if value
            else f"as good as unset on {host}"
            for host, value in values.items()
        ]
        yield Match(
            [host.name for host in bearers],
            *(fix for host in bearers for fix in take_out(host, [name])),
            *_on_all(name, how, values),
            severity="warning" if how else "error",
            how=how,
            name=name,
            shown=shown,
        )


def _on_all(name: str, how: str, values: Mapping[str, str | None]) -> Iterator[Fix]:
    """The other way to have a variable of torch's alike: the hosts without it may be what fails."""
    for host, value in values.items():
        if how == "torch" and value is None:
            yield by_hand(host, "or set {name} there, too, in a start file", name=name)


def _must_agree(name: str, *, on_gpus: bool) -> str | None:
    """What a variable decides that hosts must agree on, as `unlike-variables` tells it."""
    if _ALIKE.fullmatch(name) or (on_gpus and name in _ALIKE_OF_NCCL):
        return ""
    if name in _NUMBERS:
        return "numbers"
    if _OF_TORCH.fullmatch(name):
        return "torch"
    if _PLACES.fullmatch(name) and name not in (*_THREADS, *_INSTRUCTIONS):
        return "places"
    return "data" if _DATA.fullmatch(name) else None


def _meant(name: str, value: str) -> str | None:
    """What a variable asks for; None: what would be done without it."""
    # torch takes its level in any letters.
    value = value.upper() if name == "TORCH_DISTRIBUTED_DEBUG" else value
    if _DATA.fullmatch(name):
        return value if value.startswith(("/", "~", ".")) else None
    # Of a place, 0 is one; and what torch does of itself is switched off by it (PYTORCH_JIT).
    is_own = _OF_TORCH.fullmatch(name) and not _ALIKE.fullmatch(name)
    is_switch = name not in _ALIKE_OF_NCCL and not _PLACES.fullmatch(name) and not is_own
    is_off = value.lower() in _OFF and is_switch
    return None if is_off or value in ("", *_AS_UNSET.get(name, ())) else value


@_check(
    "debug-variables",
    question="Is torch's slow check of collectives off?",
    why="each collective is preceded by another that compares what all ranks are about to do",
    symptom="Steps with many small collectives are several times slower.",
    cause="TORCH_DISTRIBUTED_DEBUG=DETAIL is left from a search for a bug.",
)
def debug_variables(seen: Examination) -> Iterator[Match]:
    return _wherever_set(
        seen, "TORCH_DISTRIBUTED_DEBUG", to=lambda value: value.upper() == "DETAIL"
    )


@_check(
    "shell-variables",
    question="Is the shell free of another job's rank, and of settings for interfaces, threads and "
    "Python?",
    why={
        "rank": "a program that is started without a launcher takes itself for a rank, and waits "
        "for peers that do not come; ranks of a run get their own",
        "pinned": "yoked names the interface itself; other programs use this one, whatever "
        "network they are in",
        "unknown": "torch knows no such variable: it does nothing",
        "threads": "`yoked train` takes what a person has set, and {cores:plural core} could work "
        "for each rank",
        "instructions": "it keeps torch or numpy from instructions that the processor has; on its "
        "{cores:plural core} some types of numbers are computed many times slower",
        "slow": "every rank's Python is slower, or ends at the first warning of a library",
        "compiled": "nothing that Python compiles is kept there: each start of a rank compiles all "
        "of torch anew, for many seconds",
        "path": "programs that are started by hand find other modules than ranks of a run, which "
        "get a path of their own",
        "beside": "modules that lie beside a program are not found: `No module named ...`",
        "letters": "a rank that prints any other letter, such as µ or é, ends with "
        "`UnicodeEncodeError`",
    },
    symptom="A script that trains alone hangs in init_process_group; `Unable to find address for: "
    "wlan0` on some days; one core at 100%, the others idle; a step that takes ten times as long; "
    "everything is slower; a warning or a letter ends the run, or another module is imported than "
    "expected, or none.",
    cause="RANK, WORLD_SIZE or MASTER_ADDR were exported once, by hand. GLOO_SOCKET_IFNAME and the "
    "like in a start file; or variables that torch does not know (GLOO_PORT_RANGE, GLOO_IPV6). "
    "OMP_NUM_THREADS=1, or ONEDNN_MAX_CPU_ISA after a comparison. PYTHONMALLOC, PYTHONDEVMODE, "
    "PYTHONWARNINGS=error, PYTHONIOENCODING, PYTHONSAFEPATH or PYTHONPATH; PYTHONPYCACHEPREFIX or "
    "PYTHONDONTWRITEBYTECODE, where torch is then found without its bytecode.",
    on_cluster="torchrun itself sets OMP_NUM_THREADS=1 where nobody else has.",
)
def shell_variables(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        cores = 0 if gpus_that_train(seen, host) else int(host.facts.get("usable_cores") or 0)
        fair = max(1, cores // ranks_of(seen, host))
        for how, found in _odd_variables(host, fair if cores else 0):
            if found:
                fixes = take_out(host, found)
                yield Match(host.name, *fixes, how=how, variables=_shown(host, found), cores=fair)


def _odd_variables(host: HostSeen, fair_cores: int) -> Iterator[tuple[str, dict[str, str]]]:
    """(which of the sentences fits, variables, maybe none). fair_cores: that a rank could have; 0:
    its cores do not matter.
    """
    yield "rank", _variables(host, _OF_A_RANK)
    yield "pinned", _variables(host, _OVERRIDDEN)
    told = mapping(part(host, "environment"))
    of_gloo = {name: str(value) for name, value in told.items() if name.startswith("GLOO_")}
    yield "unknown", {name: of_gloo[name] for name in of_gloo if name not in _OF_GLOO}
    if fair_cores:
        threads = _variables(host, _THREADS).items()
        yield "threads", {n: v for n, v in threads if v.isdigit() and int(v) < fair_cores}
        yield "instructions", _variables(host, _INSTRUCTIONS)
    warned = _variables(host, ("PYTHONWARNINGS",)).items()
    ending = {name: value for name, value in warned if "error" in value}
    yield "slow", {**_variables(host, _SLOW_PYTHON), **ending}
    if mapping(host.torch).get("compiled") is False:
        yield "compiled", _variables(host, _BYTECODE)
    yield "path", _variables(host, ("PYTHONPATH",))
    yield "beside", _variables(host, ("PYTHONSAFEPATH",))
    encoded = _variables(host, ("PYTHONIOENCODING",)).items()
    yield "letters", {name: value for name, value in encoded if _lacks_letters(value)}


def _lacks_letters(setting: str) -> bool:
    """Whether an output of this encoding, `ascii` or `latin-1:strict`, ends a program."""
    encoding, _, errors = setting.partition(":")
    try:
        _BEYOND_ASCII.encode(encoding or "utf-8", errors or "strict")
    except (LookupError, ValueError):
        return True
    return False


@check(
    "preload",
    question="Is no library forced upon every program?",
    reads=("health.environment", "health.preload", "dials"),
    severity="error",
    saw="{variables} on {host}{failed}",
    why={
        "": "that library is loaded into every rank; where it is not there, each program says "
        "`object ... from LD_PRELOAD cannot be preloaded`",
        "dials": "that library is loaded into every program, also into what dialled: it may refuse "
        "connections itself, as proxychains does; a dial without it would tell",
        "clock": "that library is loaded into every program, and may turn its clock, as faketime "
        "does: deadlines pass too early, or late",
    },
    symptom="`ERROR: ld.so: object '/gone.so' from LD_PRELOAD cannot be preloaded`, before each "
    "line of output; or connections that fail at once, from one host alone.",
    cause="LD_PRELOAD in a start file, or a line in /etc/ld.so.preload. It is an error where "
    "connections of that host failed as well, or its clock runs at another speed.",
    fix=_FIX,
    explains=("no-route", "other-network", "firewall-out", "firewall-reject", "dial-failed",
              "clock", "agent-failed", "world-failed"),
    quick=True,
)  # fmt: skip
def preload(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        found = _variables(host, ("LD_PRELOAD",))
        files = [str(each) for each in part(host, "preload") or ()]
        if not found and not files:
            continue
        shown = [_shown(host, found)] if found else []
        shown += [f"/etc/ld.so.preload has {listed(files)}"] if files else []
        # A library that refuses does so at once.
        failed = [each for each in seen.dials if each.source == host.name and each.chosen
                  and not each.ok and each.error not in (None, "ETIMEDOUT")]  # fmt: skip
        fixes = [*take_out(host, found)]
        how, more = "", ""
        if failed:
            how = "dials"
            more = f"; {len(failed)} dials from it failed: {described(failed[0])}"
        elif turned := turned_clock(host):
            how = "clock"
            more = f"; {turned[0]}"
        if files:
            fixes.append(
                by_hand(
                    host.name,
                    "sudo mv /etc/ld.so.preload /etc/ld.so.preload.off    and look again: whether "
                    "it heals tells; mv it back where it does not",
                )
            )
        yield Match(
            host.name,
            *fixes,
            severity="error" if how else "warning",
            how=how,
            variables=" and ".join(shown),
            failed=more,
        )


CHECKS = (python_home, gloo_transport, unlike_variables, debug_variables, shell_variables, preload)
