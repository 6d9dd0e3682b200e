"""What libraries of training programs do in their first seconds, as yoked.probe.acts tried it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, LiteralString

from yoked.doctor.check import Match, check
from yoked.doctor.checks.environment import lines_out, shown_places, take_out, where_set
from yoked.doctor.checks.query import at, mapping, part
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.files import grow_shared_memory
from yoked.doctor.repairs.tables import add_to_line, lift_denial
from yoked.records.examination import Examination, Fix, HostSeen, Severity
from yoked.text import one_line
from yoked.units import listed

# By act, as the end of "a program cannot ...". Of a folder's acts by what follows its name.
# Those that torch, the workers of a DataLoader or a run of yoked cannot do without.
_NEEDED = {
    "thread": "start a thread",
    "child": "start a process (fork)",
    "program": "start its own Python as a rank is started, with a module to which PYTHONPATH leads",
    "semaphore": "have a lock of multiprocessing",
    "queue": "have a queue of multiprocessing",
    "shared-memory": "share memory (shm_open)",
    "socketpair": "hand an open file on (SCM_RIGHTS)",
    "unix-socket": "have a socket in its folder for temporary files",
    "epoll": "wait for several files (epoll)",
    "netlink": "ask the kernel for its interfaces (netlink)",
    "random": "get random numbers (/dev/urandom)",
    "clock": "wait for a thousandth of a second",
    "module-ctypes": "import ctypes",
    "module-ssl": "import ssl",
    "module-zlib": "import zlib",
}
_OTHERS = {
    "request": "ask a server on its own host by HTTP (urllib, 127.0.0.1)",
    "terminal": "get a terminal of its own (openpty)",
    "signals": "get a signal for which it has a handler",
    "user": "learn its user's name (getpass.getuser)",
    "md5": "compute an MD5",
    "certificates": "check certificates",
    "locale": "take the locale that its login names (setlocale)",
    "secure": "find libraries by LD_LIBRARY_PATH",
    "memfd": "have a file in memory (memfd_create)",
    "inotify": "watch a file (inotify)",
    "eventfd": "have an eventfd",
    "timerfd": "have a timerfd",
    "locked-memory": "lock 16 kB in memory (mlock), as pinned buffers are",
    "affinity": "choose its processors (sched_setaffinity)",
    "priority": "lower its priority (nice)",
}
_IN_FOLDERS = {
    "map": "map a file",
    "lock": "lock a file (fcntl, flock)",
    "link": "link a file",
    "symlink": "make a symbolic link",
    "rename": "rename a file over another one",
    "fsync": "have a file written to the disk (fsync)",
    "sparse": "make a file longer (truncate)",
    "mode": "set a file's mode and time",
    "long-name": "give a file a name of 140 letters",
    "names": "keep names apart by case, or with a letter like \u00e4",
    "sqlite": "keep a database (sqlite3)",
}
_FOLDERS = {
    "home": "in its home",
    "cache": "in the folder for caches",
    "state": "in the folder for a run's state",
    "tmp": "in the folder for temporary files",
}
# Modules of Python's own that libraries import, where they find them.
_SPARED = ("module-bz2", "module-lzma", "module-sqlite3", "module-uuid")
# Those that an act may find to be to blame.
_VARIABLES = ("http_proxy", "HTTP_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE",
              "CURL_CA_BUNDLE", "SSLKEYLOGFILE")  # fmt: skip
# What a person can do where a variable is to blame.
_ELSE: Mapping[str, LiteralString] = {
    "locale": "make it: `sudo dpkg-reconfigure locales`, or the langpack of the distribution; "
    "`locale -a` lists those that are there. Or take the variable out: `grep -ns -e LC_ -e LANG "
    "~/.bashrc ~/.profile /etc/default/locale /etc/environment`; ssh may bring it (SendEnv)",
    "request": "or, where that proxy is needed, behind it: export "
    "no_proxy=localhost,127.0.0.1,::1, and the addresses of all hosts",
}
_NO_FAMILY = "Address family not supported"
# Where these answer, it is a filter of system calls that does.
_FILTERED = ("PermissionError", "Operation not permitted", "Function not implemented", "SIGSYS",
             "Bad system call", "start new thread", _NO_FAMILY)  # fmt: skip
# Families of sockets that every kernel has.
_FAMILIES = {"unix-socket": "AF_UNIX", "socketpair": "AF_UNIX", "netlink": "AF_NETLINK",
             "request": "AF_INET"}  # fmt: skip
_RESTRICTS = re.compile(r"(/.*):(\d+) RestrictAddressFamilies=\s*(~?)(.*)")
_OF_MODULE = "module-"


def _words(name: str) -> str | None:
    """What an act is, to end "a program cannot ..."; None: it is one of another yoked."""
    if name.startswith(_OF_MODULE):
        return f"import {name.removeprefix(_OF_MODULE)}"
    folder, dot, act = name.partition(".")
    if dot:
        words, place = _IN_FOLDERS.get(act), _FOLDERS.get(folder)
        return f"{words} {place}" if words and place else None
    return {**_NEEDED, **_OTHERS}.get(name)


@check(
    "program-acts",
    question="Can a program do there what libraries do in their first seconds?",
    reads=("torch", "health.environment", "health.set_by", "health.set_limits"),
    severity="error",
    saw="on {host}{elsewhere} a program cannot {what}",
    why={
        "error": "torch, the workers of a DataLoader, a run of yoked or the program here does "
        "that in its first seconds, and ends there",
        "warning": "libraries of training programs do that: one that does ends there, or goes on "
        "otherwise than on other hosts",
        "secure": "what lies in a folder of that variable alone is not found: `cannot open shared "
        "object file`",
    },
    symptom="An OSError, `RuntimeError: can't start new thread`, `No such device` or a wait "
    "without end on one host alone, in the first seconds of a program; versions, code and data are "
    "the same on all hosts.",
    cause="Tried for real, by the Python and with the variables and limits of a rank: threads, "
    "processes, locks, shared memory, sockets, a request to 127.0.0.1, signals, inotify, locked "
    "memory, modules, and files that are mapped, locked, linked and renamed in the home and the "
    "folders for caches, state and temporary files. A variable that names a proxy and excepts "
    "nothing; `ulimit -l 0`; a program that holds all inotify instances of its user; a Python with "
    "a capability of its own (setcap), for which the loader takes no notice of LD_LIBRARY_PATH; a "
    "script in the place of a Python, which adds -I, loses variables or does not exec; "
    "RestrictAddressFamilies= of a unit without AF_UNIX; a seccomp profile older than the system "
    "in a container; a mount. Modules of Python's own that the program here imports are imported. "
    "What works on no host is told only where torch cannot do without. It is an error where torch, "
    "the workers of a DataLoader, yoked or the program here need it.",
    fix="Takes the variable or the limit out of the start file; else by hand, with the line for "
    "the mount, the program or the file that is to blame.",
    explains=("world-failed", "shared-memory"),
)
def program_acts(seen: Examination) -> Iterator[Match]:
    told = {host.name: acts for host in seen.up if (acts := mapping(at(host.torch, "acts")))}
    for name, own in told.items():
        host = seen.host(name)
        groups: dict[str, dict[str, Mapping[str, Any]]] = {}
        for act, failure in own["failed"].items():
            works_on = [each for each in told if act in told[each]["worked"]]
            if _words(act) and (works_on or act in _NEEDED):
                groups.setdefault(_blamed(act, failure), {})[act] = failure
        for failures in groups.values():
            severity = _severity(seen, failures)
            others = [each for each in told if all(act in told[each]["worked"] for act in failures)]
            is_filtered = own.get("seccomp") is True
            yield Match(
                name,
                *_mended(host, failures, is_filtered=is_filtered),
                severity=severity,
                how="secure" if "secure" in failures else severity,
                elsewhere=f", and not on {listed(others)}," if others else "",
                what=listed(_shown(host, failures, is_filtered=is_filtered)),
            )


def _blamed(act: str, failure: Mapping[str, Any]) -> str:
    """What is to blame, by which failures of one cause are told together."""
    if mount := failure.get("mount"):
        return f"mount {mount['place']}"
    if act in _FAMILIES and _NO_FAMILY in str(failure["said"]):
        return _FAMILIES[act]
    is_known = any(failure.get(key) for key in ("variables", "limit", "holders", "file", "by"))
    return act if is_known else ""


def _severity(seen: Examination, failures: Mapping[str, Any]) -> Severity:
    # Libraries are looked for by it, and none is found that lies there alone.
    named = any(mapping(part(each, "environment")).get("LD_LIBRARY_PATH") for each in seen.up)
    is_grave = any(
        act in _NEEDED
        or (act.startswith(_OF_MODULE) and act not in _SPARED)
        or (act == "secure" and named)
        for act in failures
    )
    return "error" if is_grave else "warning"


def _shown(
    host: HostSeen, failures: Mapping[str, Mapping[str, Any]], *, is_filtered: bool
) -> Iterator[str]:
    by_words: dict[str, list[str]] = {}
    for act, failure in failures.items():
        words = _evidence(host, act, failure, is_filtered=is_filtered)
        by_words.setdefault(words, []).append(str(_words(act)))
    for words, acts in by_words.items():
        yield f"{listed(acts)} ({words})"


def _evidence(host: HostSeen, act: str, failure: Mapping[str, Any], *, is_filtered: bool) -> str:
    """The system's own words, and what is to blame."""
    words = [one_line(str(failure["said"]))]
    words += [f"by {name}{where_set(host, name)}" for name in failure.get("variables") or ()]
    if letter := failure.get("limit"):
        places = mapping(part(host, "set_limits")).get(letter) or ()
        words.append(f"by its limit, `ulimit -{letter}`{shown_places(places)}")
    words += [
        f"{each['count']} are held by {one_line(each['command'])} (process {each['pid']})"
        for each in failure.get("holders") or ()
    ]
    if mount := failure.get("mount"):
        words.append("on {source} ({filesystem}, mounted at {place}, {options})".format(**mount))
    if failure.get("by") == "capability":
        words.append(f"{failure['file']} has a capability of its own (setcap)")
    if failure.get("by") == "mode":
        words.append(f"{failure['file']} is setuid or setgid")
    if failure.get("by") == "isolated":
        words.append("it is started with -I or -E, so it looks into no folder of PYTHONPATH")
    if last := failure.get("command"):
        words.append(f"{failure['file']} is a script, which ends with `{one_line(last)}`")
    if family := _lacking(act, failure):
        units = [f"{each[1]}, line {each[2]}" for each in _restricting(host, family)]
        by = f" in {listed(units)}," if units else ", or another filter of system calls (seccomp),"
        words.append(f"RestrictAddressFamilies={by} lets logins by ssh have no {family}")
    elif is_filtered and _is_filtered(failure):
        words.append("a filter of system calls, seccomp, is in force there")
    return "; ".join(words)


def _lacking(act: str, failure: Mapping[str, Any]) -> str | None:
    """The family of sockets that is kept from programs; None: none is."""
    return _FAMILIES.get(act) if _NO_FAMILY in str(failure["said"]) else None


def _restricting(host: HostSeen, family: str) -> Iterator[re.Match[str]]:
    """The settings of units that keep a family of sockets from programs, as _RESTRICTS has them."""
    for each in part(host, "tables", "denials") or ():
        found = _RESTRICTS.match(each)
        # With a ~ the families are those that are kept from them.
        if found and bool(found[3]) == (family in found[4].split()):
            yield found


def _is_filtered(failure: Mapping[str, Any]) -> bool:
    """Whether a filter of system calls may have answered, where there is one."""
    return any(each in str(failure["said"]) for each in _FILTERED)


def _mended(
    host: HostSeen, failures: Mapping[str, Mapping[str, Any]], *, is_filtered: bool
) -> tuple[Fix, ...]:
    # One mount may be to blame for several.
    known = dict.fromkeys(fix for act, each in failures.items() for fix in _mend(host, act, each))
    if not known and is_filtered and any(_is_filtered(each) for each in failures.values()):
        return (
            by_hand(
                host.name,
                "lift that filter: SystemCallFilter= of the ssh server's unit (`systemctl cat ssh "
                "sshd`); of a container --security-opt seccomp=, by an older runtime than the "
                "system in it",
            ),
        )
    look = by_hand(
        host.name,
        "mend what is said there; `grep -E 'Seccomp|NoNewPrivs|SigBlk' /proc/self/status`, "
        "`ulimit -a` and `env` there and on another host tell what differs",
    )
    return tuple(known) or (look,)


def _mend(host: HostSeen, act: str, failure: Mapping[str, Any]) -> Iterator[Fix]:
    if family := _lacking(act, failure):
        yield from _with_family(host, family)
    yield from _with_another_python(host, act, failure)
    variables = [each for each in failure.get("variables") or () if each in _VARIABLES]
    yield from take_out(host, variables)
    if act in _ELSE and failure.get("variables"):
        yield by_hand(host.name, _ELSE[act])
    if letter := failure.get("limit"):
        look = by_hand(
            host.name,
            "`systemctl show ssh sshd | grep ^LimitMEMLOCK`, limits.conf or the settings of the "
            "container have it; lift it there, and log in anew",
        )
        yield from lines_out(host, str(letter), look)
    if act == "inotify" and "PermissionError" not in str(failure["said"]):
        holders = failure.get("holders") or ()
        for each in holders[:1]:
            yield by_hand(
                host.name, "end it, if it can go: kill {pid}    or start it anew", pid=each["pid"]
            )
        yield by_hand(
            host.name,
            "or, until it is mended: sudo sysctl fs.inotify.max_user_instances=1024 "
            "fs.inotify.max_user_watches=524288",
        )
    if act == "secure" and failure.get("by") == "capability":
        yield by_hand(
            host.name,
            "sudo setcap -r {file}    who needs that right gets a copy of Python for it",
            file=str(failure["file"]),
        )
    if act == "secure" and failure.get("by") == "mode":
        yield by_hand(host.name, "sudo chmod ug-s {file}", file=str(failure["file"]))
    is_closed = part(host, "folders", "shm", "writable") is False
    is_of_shm = act in ("semaphore", "shared-memory")
    if is_of_shm and (is_closed or "No space" in str(failure["said"])):
        yield grow_shared_memory(host.name)
        yield by_hand(
            host.name,
            "ls -lt /dev/shm    lists what fills it: what no program has open may go; `fuser -v "
            "/dev/shm/NAME`",
        )
    if mount := failure.get("mount"):
        yield by_hand(
            host.name,
            "mount it with what programs need (a page cache, locks, names as on other systems), or "
            "have that folder on a disk of the host: {mount}",
            mount=mount["place"],
        )


def _with_another_python(host: HostSeen, act: str, failure: Mapping[str, Any]) -> Iterator[Fix]:
    if failure.get("by") == "isolated" or failure.get("command"):
        yield by_hand(
            host.name,
            'have the script end with exec PYTHON "$@", without -I and -E (-s leaves out ~/.local '
            "alone), or have the interpreter itself at its place: {python}",
            python=str(failure.get("file") or host.wanted.get("python") or "python"),
        )
    if act.startswith(_OF_MODULE):
        yield by_hand(
            host.name,
            "{python} -v -c {code}    shows where it fails; install that Python anew, or the part "
            "of it that is a package of the system (as python3-tk)",
            python=str(mapping(host.torch).get("python") or "python3"),
            code=str(_words(act)),
        )


def _with_family(host: HostSeen, family: str) -> Iterator[Fix]:
    found = list(_restricting(host, family))
    for each in found:
        if each[3] or each[4].strip() == "none":
            yield lift_denial(host.name, each[1], int(each[2]))
        else:
            yield add_to_line(host.name, each[1], int(each[2]), family)
    if not found:
        yield by_hand(
            host.name,
            "add {family} to RestrictAddressFamilies= of the ssh server's unit (`systemctl cat ssh "
            "sshd`), systemctl daemon-reload, restart ssh; of a container it is --security-opt "
            "seccomp=",
            family=family,
        )


CHECKS = (program_acts,)
