"""Rules of the facts and the health of a host, in an answer or a saved report."""

from __future__ import annotations

from yoked.records.asked_rules import ASKED
from yoked.records.ender_rules import ENDERS, LEFT_ALONE
from yoked.records.network_rules import (
    BROADCAST,
    FIREWALL,
    LINKS,
    ROUTES,
    TRAFFIC,
    TUNNELS,
    WRITERS,
)
from yoked.records.rules import (
    address,
    all_of,
    complete,
    count,
    each,
    fields,
    flag,
    host_name,
    interface,
    label,
    launch_id,
    line,
    named,
    number,
    one_of,
    optional,
    path,
    pid,
    port,
    port_text,
    run_name,
    setting,
    symbol,
    text,
    user,
    variable,
    version,
    word,
    zone,
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
        "state": path,
        "cache": path,
        "home": path,
        "path": line,
        "user": user,
        "uid": count,
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
        "path",
    ),
)
_RESOLVED = fields(
    {"addresses": each(address), "error": line, "took_s": number}, strict=("addresses", "error")
)
# Soft and hard limit, as in getrlimit(2); None: unlimited.
_LIMIT = optional(all_of(optional(count), optional(count)))
LIMITS = dict.fromkeys(
    ("nofile", "nproc", "memlock", "as", "fsize", "data", "stack", "cpu"), _LIMIT
)
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
            "ended": flag,
        }
    )
)
PLACE = fields({"file": path, "line": count, "traced": flag}, needed=("file",))
# See yoked.core.mounts.
MOUNT = complete({"place": path, "filesystem": line, "source": line, "options": line})
# A command that a start file of the shell runs.
START_COMMAND = fields(
    {"file": path, "line": count, "words": line, "took_s": number}, needed=("file", "line", "words")
)
# See yoked.core.unusable.
BARRED = fields(
    {"place": path, "owner": line, "mode": word, "user": line, "lacks": one_of("r", "x")},
    needed=("place", "owner", "mode", "user", "lacks"),
)
OTHER_HOME = fields({"file": path, "home": path, "own": path}, needed=("file", "home", "own"))
UNUSABLE = fields({"barred": BARRED, "home": OTHER_HOME})
# Programs, as far as others may see them.
_PROGRAM = fields({"pid": pid, "command": text}, needed=("pid", "command"))
# When nothing ran: see yoked.agent.watch.
STOOD = fields(
    {
        "times": count,
        "lost_s": number,
        "gaps": each(complete({"ago_s": number, "lost_s": number})),
    },
    needed=("times", "lost_s"),
)
# What is not as it should be when a launch is tried in small: see yoked.agent.smalllaunch.
LAUNCH = fields(
    {
        "login": complete({"how": one_of("waits", "blocks"), "command": START_COMMAND}),
        "failed": label,
        "noise": complete(
            {
                "line": label,
                "variables": each(complete({"name": variable, "places": each(PLACE)})),
            }
        ),
        "adopter": _PROGRAM,
        "damaged": each(path),
        "batons": each(path),
        "stood": STOOD,
        "enclosed": complete({"command": text, "start_file": optional(START_COMMAND)}),
    }
)
_RUN = fields(
    {"run": run_name, "user": label, "ours": flag, "pid": pid, "age_s": number},
    needed=("run", "ours", "age_s"),
)
_BASICS = ("/dev/null", "/dev/zero", "/dev/urandom", "/bin/sh", "/proc", "/sys",
           "executable memory")  # fmt: skip
# What became of a file that was left in a folder: see yoked.agent.watch.
LEFT = {"kept": flag, "now": optional(line), "mark": word, "beside": each(word)}
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
        "place": path,  # that was tried: the folder, or the nearest above it that is there
        "marks": one_of("i", "a", "ia"),  # of chattr(1): immutable, append-only
        "blocked": path,  # a file, or a link to what is not there, where a folder should be
        "link_to": path,
        **LEFT,
    },
    needed=("path",),
    strict=("writable", "error"),
)
HEALTH = fields(
    {
        "names": fields(
            {
                "hostname": host_name,
                "order": line,  # of nsswitch.conf, for hosts
                "own": _RESOLVED,
                "others": named(host_name, _RESOLVED),
                "reverse": named(address, fields({"error": line, "took_s": number})),
            }
        ),
        "routes": ROUTES,
        # Why it cannot dial itself there; None: it can.
        "loopback": named(address, optional(symbol)),
        "gateway": fields({"address": address, "interface": interface, "neighbour": word}),
        "environment": named(variable, text),
        # By variable, where start files set it.
        "set_by": named(variable, each(PLACE)),
        # By letter of ulimit, where a low limit is set.
        "set_limits": named(word, each(PLACE)),
        # Libraries that /etc/ld.so.preload loads into every program.
        "preload": each(line),
        # By what every program needs and does not work, why.
        "basics": named(one_of(*_BASICS), line),
        "firewall": FIREWALL,
        "limits": fields(
            {
                **LIMITS,
                "later": each(one_of(*LIMITS)),  # that were others when the look began
                "pids": fields({"max": count, "current": count}, needed=("max", "current")),
                "umask": count,
                "pid_max": count,
                "tasks": count,  # processes and threads, each of which has a number
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
        "processes": fields(
            {
                "stale": _PROCESSES,
                "busy": _PROCESSES,
                "runs": each(_RUN),
                "small": count,  # programs that use little, each by itself
                "small_cores": number,
            }
        ),
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
                "shutdown_s": number,
            }
        ),
        "processors": fields(
            {
                "online": count,
                "affinity": count,
                "quota_cores": number,
                "fast_cores": count,
                "slow_cores": count,
                "nice": number,  # of what comes in by ssh
                "policy": word,
                "tracer": fields({"pid": pid, "command": text}, needed=("pid",)),
                "of_init": count,  # CPUs that process 1 may use
            }
        ),
        "wireless": named(interface, fields({"power_save": flag, "signal_dbm": number})),
        "links": LINKS,
        # Out of the bounds of yoked.agent.settings.
        "settings": named(setting, line),
        # By table, the lines that somebody set; None: it was not read to its end.
        "tables": named(word, optional(each(line))),
        "traffic": TRAFFIC,
        "broadcasts": BROADCAST,
        "tunnels": TUNNELS,
        # What ends programs or sessions there: see yoked.agent.enders.
        "enders": ENDERS,
        "left_alone": LEFT_ALONE,
        "writers": WRITERS,
        "compiler": fields({"cc": path, "cxx": path}, strict=("cc", "cxx")),
        "kernel": fields(
            {
                "ptrace_scope": count,
                "conntrack_count": count,
                "conntrack_max": count,
                "rp_filter": named(interface, optional(count)),  # 0: off, 1: strict, 2: loose
            }
        ),
        "clock": fields(
            {
                "time_s": number,
                "service": word,
                "utc_offset_s": number,
                "zone": zone,
                # Between two looks: what passed here, what that may be wrong by, and what passed
                # there by its two clocks.
                "watched_s": number,
                "error_s": number,
                "monotonic_s": number,
                "real_s": number,
            },
            needed=("time_s",),
        ),
        "gpu": fields(
            {
                "error": text,
                "busy": _PROCESSES,
            }
        ),
        "shell": fields(
            {
                "rc": path,
                "sources_noise": flag,
                "searched": flag,  # whether start files were run to find what prints
                "prints": START_COMMAND,
                "takes_long": START_COMMAND,
            }
        ),
        "virtual": fields(
            {
                "container": word,
                "bridged": each(interface),
                "networking": word,
                "portproxy": each(port),
                "inbound": word,
            }
        ),
        "launch": LAUNCH,
        "asked": ASKED,
        # What the controller compares, file by file.
        "data": named(line, line),
        "code": named(line, line),
        "data_lock": symbol,  # why no file of the data can be locked
        "data_map": label,  # why none can be mapped
        "data_mount": MOUNT,  # of data of which something is wrong
        "untold": named(word, text),
    }
)

_PROOFS = ("start", "reads", "prints", "threads", "finds")
# The command of a start file that keeps something from working: see yoked.agent.starttrace.
START_FILES = fields(
    {
        "proof": one_of(*_PROOFS, "soon"),
        "how": one_of(*_PROOFS, "soon", "waits", "ends", "inside"),
        "command": START_COMMAND,
    }
)
