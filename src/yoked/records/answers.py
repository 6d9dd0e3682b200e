"""What an agent may answer, call by call: its answers and saved reports pass these rules.

What does not fit is left out, and its place is noted: it is unknown then, as if the host had not
told it. No word of a host's gets further, so no check or command meets one that it does not expect.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

from yoked.records.rules import (
    OddError,
    Rule,
    address,
    all_of,
    any_of,
    complete,
    count,
    each,
    fields,
    flag,
    host_name,
    interface,
    label,
    launch_id,
    libc,
    libc_version,
    line,
    mac,
    mac_version,
    moment,
    named,
    nothing,
    number,
    one_of,
    optional,
    path,
    pid,
    port,
    port_text,
    prefix,
    program,
    python_minor,
    run_name,
    ssh_name,
    symbol,
    text,
    user,
    variable,
    version,
    whole,
    word,
)

_GPU = fields(
    {
        "vendor": word,
        "name": label,
        "memory_bytes": count,
        "driver": label,
        "capability": version,
        "integrated": flag,
    },
    needed=("vendor", "name"),
)

FACTS = fields(
    {
        "hostname": host_name,
        "machine": line,  # equal for two names of one machine
        "os": word,
        "has_proc": flag,  # without it nothing is supervised there
        "kernel": version,
        "arch": word,
        "cpu_model": label,
        "cores": count,
        "threads": count,
        "fast_cores": count,
        "cpu_quota": number,  # CPUs' worth of time
        "usable_cores": count,  # that a job may fill
        "memory_bytes": count,
        "memory_available_bytes": count,
        "gpus": each(_GPU),
        "free_bytes": named(word, optional(count)),  # of the home, state and cache folders
        "python": version,
        "executable": path,
        "state": path,
        "cache": path,
        "home": path,
        "path": line,
        "user": user,
        "uid": count,
        "time_s": number,
        "on_battery": flag,
    },
    strict=(
        "machine",
        "gpus",
        "cores",
        "fast_cores",
        "usable_cores",
        "free_bytes",
        "uid",
        "state",
        "executable",
        "path",
    ),
)
_ADDRESS = fields(
    {"address": address, "prefix": prefix, "family": count, "link_local": flag},
    needed=("address",),
)


def _own_address(value: Any, path: str, odd: list[str]) -> Any:
    """An address of an interface; its prefix is one of its family."""
    found = _ADDRESS(value, path, odd)
    # A link-local address may name its interface behind a % (RFC 4007).
    most = ip_address(found["address"].partition("%")[0]).max_prefixlen
    if (found.get("prefix") or 0) > most:
        raise OddError(f"{path}.prefix")
    return found


INTERFACES = each(
    fields(
        {
            "name": interface,
            "kind": word,
            "mtu_bytes": count,
            "speed_bit_per_s": count,
            "addresses": each(_own_address),
            "gloo_address": address,
        },
        needed=("name", "kind"),
        strict=("gloo_address",),
    )
)

_RESOLVED = fields(
    {"addresses": each(address), "error": line, "took_s": number}, strict=("addresses", "error")
)
# Soft and hard limit, as in getrlimit(2); None: unlimited.
_LIMIT = optional(all_of(optional(count), optional(count)))
_PROCESSES = each(
    fields(
        {
            "pid": pid,
            "command": text,
            "user": user,
            "run": run_name,
            "launch": launch_id,
            "start_ticks": count,  # since boot: a pid alone may be given to another process
            "cores": number,
            "memory_bytes": count,
            "age_s": number,
            "ppid": count,
            "ended": flag,
        }
    )
)
_FOLDER = fields(
    {
        "path": path,
        "exists": flag,
        "writable": flag,
        "free_bytes": count,
        "free_inodes": count,
        "filesystem": line,
        "noexec": flag,
        "read_only": flag,
        "owner_uid": count,
        "error": line,
    },
    needed=("path",),
    strict=("writable", "error"),
)

HEALTH = fields(
    {
        "names": fields(
            {
                "hostname": host_name,
                "own": _RESOLVED,
                "others": named(host_name, _RESOLVED),
                "reverse": named(address, fields({"error": line, "took_s": number})),
            }
        ),
        "routes": named(
            address,
            fields(
                {
                    "source": address,
                    "interface": interface,
                    "error": symbol,
                    "neighbour": word,
                    "mac": mac,
                }
            ),
        ),
        "gateway": fields({"address": address, "interface": interface, "neighbour": word}),
        "environment": named(variable, text),
        "firewall": fields(
            {
                "kind": word,
                "active": flag,
                "rules": each(line),
                "zone": word,
                "tools": each(word),
            }
        ),
        "sudo": fields({"root": flag, "without_password": flag}),
        "limits": fields(
            {
                **dict.fromkeys(
                    ("nofile", "nproc", "memlock", "as", "fsize", "data", "stack", "cpu"), _LIMIT
                ),
                "pids": fields({"max": count, "current": count}, needed=("max", "current")),
                "umask": count,
            }
        ),
        "folders": named(word, _FOLDER),
        "ports": fields(
            {
                "range": all_of(port, port),
                "reserved": line,
                "taken": count,  # of the range
                "owners": named(port_text, _PROCESSES),
            }
        ),
        "processes": fields({"stale": _PROCESSES, "busy": _PROCESSES}),
        "memory": fields(
            dict.fromkeys(
                (
                    "available_bytes",
                    "swap_free_bytes",
                    "overcommit",
                    "commit_left_bytes",
                    "limit_bytes",
                ),
                count,
            )
        ),
        "power": fields(
            {
                "on_battery": flag,
                "lid": word,
                "lid_action": word,
                "idle_action": word,
                "can_inhibit": flag,
                "kill_user_processes": flag,
                "linger": flag,
                "governor": word,
                "throttled": flag,
                "sleep_targets": word,
            }
        ),
        "processors": fields(
            {
                "online": count,
                "affinity": count,
                "quota_cores": number,
                "fast_cores": count,
                "slow_cores": count,
            }
        ),
        "wireless": named(
            interface, fields({"power_save": flag, "signal_dbm": number, "bit_per_s": number})
        ),
        "links": named(
            interface,
            fields(
                {
                    "up": flag,
                    "carrier": flag,
                    "speed_bit_per_s": count,
                    "duplex": word,
                    "mtu_bytes": count,
                    "rx_errors": count,
                    "tx_errors": count,
                    "addresses": count,
                    "mac": mac,
                }
            ),
        ),
        "compiler": fields({"cc": path, "cxx": path}, strict=("cc", "cxx")),
        "kernel": fields(
            {
                "ptrace_scope": count,
                "conntrack_count": count,
                "conntrack_max": count,
                "rp_filter": named(interface, optional(count)),  # 0: off, 1: strict, 2: loose
                "somaxconn": count,
            }
        ),
        "clock": fields(
            {"time_s": number, "synchronised": flag, "service": word}, needed=("time_s",)
        ),
        "gpu": fields(
            {
                "driver": version,
                "devices": each(_GPU),
                "error": text,
                "busy": _PROCESSES,
            }
        ),
        "shell": fields({"login_shell": line, "sources_noise": flag}),
        "virtual": fields(
            {
                "container": word,
                "bridged": each(interface),
                "wsl": count,
                "networking": word,
                "portproxy": each(port),
                "inbound": word,
            }
        ),
        # What the controller compares, file by file.
        "data": named(line, line),
        "code": named(line, line),
        "untold": named(word, text),
    }
)

TORCH = fields(
    {
        "python": line,
        "python_version": version,
        "torch": version,
        "torch_path": line,
        "numpy": version,
        "gloo": flag,
        "nccl": flag,
        "headers": flag,
        "build": one_of("cpu", "cuda", "rocm"),
        "cuda_build": version,
        "cuda_available": flag,
        "imported": flag,
        "error": text,
        "no_base": text,
        "took_s": number,
    },
    strict=("torch", "torch_path", "numpy"),
)

_DIAL = fields(
    {
        "ok": flag,
        "answered_by": line,
        "error": symbol,
        "error_text": line,
        "rtt_s": number,
        "echo_s": all_of(number),
        "goodput_bytes_per_s": number,
        "path_mtu_bytes": count,
        "source_address": address,
        "took_s": number,
        "connected": flag,
        "arrived_bytes": count,
    },
    needed=("ok", "echo_s", "connected", "arrived_bytes"),
    strict=("error",),
)

# yoked.diagnosis.gate.Shares
_SHARES = fields(
    {
        "step_s": optional(number),
        "ranks": all_of(
            fields(
                {
                    "rank": count,
                    "computes": optional(number),
                    "waits_for_core": number,
                    "waits": optional(number),
                    "loads_data": number,
                    "gpu": flag,
                },
                needed=("rank", "computes", "waits_for_core", "waits", "loads_data", "gpu"),
            )
        ),
        "gate": optional(one_of("rank", "data", "network", "nobody")),
        "gating": all_of(count),
        "ahead": optional(number),
        "since_s": number,
        "why": text,
        "fix": each(text),
    },
    needed=("step_s", "ranks", "gate", "gating", "ahead", "since_s", "why", "fix"),
)
_STATE = one_of("prepared", "running", "finished", "failed", "stopped", "interrupted", "lost")
_JOB = fields(
    {
        "run": run_name,
        "launch_id": launch_id,
        "state": _STATE,
        "folder": path,
        "node_rank": count,
        "nodes": all_of(
            fields(
                {"host": line, "address": address, "ranks": count},
                needed=("host", "ranks"),
                more=True,
            )
        ),
        "trains": run_name,
        "run_dir": optional(path),
        "started_s": optional(moment),
        "ended_s": optional(moment),
        "now_s": moment,  # by the same clock as the two before
        "attempt": count,
        "failure": optional(
            fields(
                {
                    "host": text,
                    "what": text,
                    "rank": optional(count),
                    "cause": optional(line),
                    "hosts": each(text),
                    "at": optional(text),
                    "fix": each(text),
                    "last_lines": each(text),
                },
                needed=("host", "what"),
                strict=("host", "what"),
                more=True,
            )
        ),
        "progress": optional(
            fields(
                {"step": optional(count), "loss": optional(number)},
                needed=("step", "loss"),
                more=True,
            )
        ),
        "diagnosis": optional(
            fields(
                {
                    "attempt": count,
                    "time_s": moment,
                    "shares": optional(_SHARES),
                    "busy": all_of(
                        fields(
                            {"rank": count, "doing": line, "for_s": number, "at": text},
                            needed=("rank", "doing", "for_s", "at"),
                        )
                    ),
                    "causes": all_of(
                        fields(
                            {
                                "cause": line,
                                "hosts": each(line),
                                "rank": optional(count),
                                "certainty": one_of("sure", "likely"),
                                "since_s": number,
                                "what": text,
                                "fix": each(text),
                            },
                            needed=("cause", "hosts", "what"),
                            more=True,
                        )
                    ),
                    "nccl": optional(
                        fields({"what": text, "as_planned": flag}, needed=("what", "as_planned"))
                    ),
                },
                needed=("causes",),
                more=True,
            )
        ),
        "stage": optional(
            fields(
                {
                    "attempt": count,
                    "begun": flag,
                    "since_s": moment,
                    "hosts": each(line),
                    "ranks": all_of(
                        fields(
                            {"rank": count, "doing": line, "since_s": moment},
                            needed=("rank", "doing", "since_s"),
                            more=True,
                        )
                    ),
                },
                needed=("begun", "since_s", "hosts", "ranks"),
                more=True,
            )
        ),
        "refused": optional(fields({"connections": count, "last": text}, more=True)),
        "size_bytes": optional(count),
    },
    needed=(
        "run",
        "launch_id",
        "state",
        "folder",
        "node_rank",
        "nodes",
        "started_s",
        "ended_s",
        "now_s",
        "attempt",
        "failure",
        "progress",
    ),
    strict=("trains",),
    more=True,
)

# How a program ended.
_OUTCOME = complete(
    {
        "exit_status": optional(whole),
        "signal": optional(whole),
        "late": flag,
        "stdout": text,
        "stderr": text,
    }
)

# What a call returns; whoever uses what another call returns looks at it himself.
RESULTS: Mapping[str, Rule] = {
    "facts": FACTS,
    "interfaces": INTERFACES,
    "health": HEALTH,
    "dial": all_of(_DIAL),
    "file_list": all_of(all_of(text, count, whole)),
    "file_read": flag,
    "blobs_missing": named(text, count, strict=True),
    "blob_append": count,
    "folder_contents": optional(named(text, text, strict=True)),
    "folder_here": optional(text),
    "folder_put": text,
    "tree_checkout": text,
    "kernels_here": complete({"cpu": text, "keys": all_of(text)}),
    "run": _OUTCOME,
    "environment": fields(
        {
            "made": path,
            "configured": path,
            "system": path,
            "marker": optional(fields({"build": text}, needed=("build",), more=True)),
        },
        strict=("made", "configured", "system", "marker"),
        more=True,
    ),
    # A part of it decides which files pip brings here.
    "environment_base": complete(
        {
            "python": path,
            "version": python_minor,
            "system": word,
            "machine": word,
            "libc": libc,
            "libc_version": libc_version,
            "mac_version": mac_version,
        }
    ),
    "environment_remove": each(
        complete({"path": path, "size_bytes": count, "removed": flag, "why": one_of("", "used")})
    ),
    "job_list": each(_JOB),
    "job_status": _JOB,
    "job_listeners": named(
        run_name,
        each(complete({"address": address, "port": port, "pid": pid, "command": text})),
    ),
    # A rank that told something odd is left out by whoever reads it.
    "job_stacks": each(fields({}, more=True)),
    "job_start": complete({"folder": text, "supervisor": count, "control_port": optional(count)}),
    "job_go": complete({"host_program": count}),
    "job_stop": complete({"state": _STATE, "signalled": all_of(count)}),
    "job_remove": flag,
    "job_reap": complete(
        {
            "processes": all_of(
                complete(
                    {
                        "pid": count,
                        "run": text,
                        "command": text,
                        "ports": all_of(port),
                        "killed": flag,
                    }
                )
            ),
            "shared_memory": all_of(complete({"name": text, "size_bytes": count, "removed": flag})),
        }
    ),
    "job_sweep": all_of(complete({"folder": text, "size_bytes": count})),
}
# The parts of an answer that comes in parts; a call that is not here has none.
PARTS: Mapping[str, Rule] = {
    "listen": complete({"port": port, "more": all_of(optional(port))}),
    "file_read": nothing,
    "environment_make": any_of(
        *(complete({key: text}) for key in ("line", "made", "unreachable")),
        complete(
            {
                "stage": one_of("downloading", "unpacking"),
                "done": count,
                "total": optional(count),
            }
        ),
    ),
    "job_logs": any_of(
        complete({"begin": named(text, count, strict=True)}),
        complete(
            {
                "rank": count,
                "attempt": count,
                "stream": one_of("out", "err"),
                "time_s": moment,
                "offset": count,
            }
        ),
    ),
    "trial": fields({"line": text, "end": _OUTCOME}),
}
# Fields that a caller takes for granted: an agent tells all of them, if only by null.
_TOLD: Mapping[str, tuple[str, ...]] = {
    "facts": (
        "machine", "hostname", "cpu_model", "cores", "fast_cores", "usable_cores", "memory_bytes",
        "gpus", "free_bytes", "executable", "state", "path", "uid",
    ),
    "environment": ("made", "configured", "system", "marker"),
}  # fmt: skip
_TOLD_OF_EACH: Mapping[str, tuple[str, ...]] = {
    "interfaces": ("mtu_bytes", "gloo_address", "addresses"),
    "dial": (
        "answered_by", "error", "error_text", "rtt_s", "goodput_bytes_per_s", "path_mtu_bytes",
        "source_address", "took_s",
    ),
}  # fmt: skip


WANTED = fields(
    {
        "name": ssh_name,
        "ranks": count,
        "device": word,
        "interface": interface,
        "address": address,
        "python": program,
    }
)
"""An entry of yoked.toml."""
CONTROLLER = fields(
    {
        "hostname": label,
        "python": version,
        "yoked": version,
        "torch": version,
        "ssh": label,
        "state": path,
        "fleet": path,
        "ssh_config": path,
        "time_s": number,
    }
)
DIALLED = fields(
    {
        "source": ssh_name,
        "target": ssh_name,
        "interface": interface,
        "address": address,
        "port": port,
        "answered_by": line,
        "error": symbol,
        "error_text": line,
        "source_address": address,
    },
    needed=("source", "target", "interface", "address", "port"),
    strict=("answered_by", "error"),
    more=True,
)
"""A dial as a record has it."""
VERSIONS = named(word, version)


def understood(call: str, answer: Any, odd: list[str]) -> Any:
    """What an agent's call returned, as far as it fits. Calls without a rule answer as they do.

    odd: is given the places of what was left out. Raises OddError where nothing can be made of it.
    """
    rule = RESULTS.get(call)
    if rule is None:
        return answer
    found = rule(answer, call, odd)
    told, of_each = _TOLD.get(call, ()), _TOLD_OF_EACH.get(call, ())
    if missing := [name for name in told if name not in found]:
        raise OddError(f"{call}.{missing[0]}")
    for item in found if of_each else ():
        if missing := [name for name in of_each if name not in item]:
            raise OddError(f"{call}.{missing[0]}")
    return found


def reread(rule: Rule, name: str, content: Any, odd: list[str], instead: Any) -> Any:
    """A part of a saved report by its rule. instead: what it is where nothing can be made of it."""
    try:
        return rule(content, name, odd)
    except OddError as problem:
        odd.append(str(problem))
        return instead
