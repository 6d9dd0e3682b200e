"""One more try where ssh led to no agent, and what this machine and other hosts see of the way."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

from yoked.agent.ask import named_values
from yoked.core.parallel import at_once, gather_within
from yoked.core.proc import children_of
from yoked.doctor.console import told_by
from yoked.doctor.sshfailure import (
    EXECUTED,
    FINGERPRINT,
    explained,
    stage_of,
    told_failure,
    wants_try,
)
from yoked.doctor.sshinside import of_interpreter, of_start_files, run_here
from yoked.doctor.sshnames import of_names
from yoked.doctor.sshoptions import of_options
from yoked.doctor.sshprogram import of_program
from yoked.doctor.sshway import (
    Signs,
    Try,
    Way,
    flaw_of,
    is_narrowed,
    louder_left_out,
    turn_of,
    way_of,
)
from yoked.errors import YokedError
from yoked.fleet.discover import Agent, dialled
from yoked.fleet.model import Host
from yoked.records.examination import SshFailure, SshKind
from yoked.remote.client import AgentClient
from yoked.remote.ssh import NoAgentError, ssh_argv
from yoked.remote.transport import kill_way

_LOOKED_AT = ("timeout", "unreachable", "denied", "shell", "host-key", "other")
# The shell there runs what it is told, and something is in the way of the agent.
_RUNS = frozenset({("python", ""), ("python", "died"), ("shell", ""), ("shell", "no-input")})
# There is an interpreter, and it does not run.
_OF_PYTHON = ("died", "not-executable")
# By kind, the causes of which the host itself knows more.
_ON_CONSOLE: Mapping[SshKind, tuple[str, ...]] = {
    "timeout": ("", "mute", "filtered", "large", "slow"),
    "refused": ("",),
    "unreachable": ("",),
    "denied": ("", "refused-key", "refused-cert", "after-key", "expired"),
    "host-key": ("",),
    "shell": ("", "hangs", "chroot"),
    "other": ("", "closed", "cut", "altered"),
}
# By kind, the causes behind which a setting of ssh here may be.
_BY_OPTION: Mapping[SshKind, tuple[str, ...]] = {
    "timeout": ("", "mute", "large", "filtered"),
    "refused": ("",),
    "unreachable": ("", "no-route", "filtered"),
    "denied": ("", "no-key", "refused-key", "algorithm", "unused-key", "second-factor"),
    "shell": ("", "hangs", "no-input"),
    "other": ("", "closed", "cut", "bind"),
}
# How many times the patience with ssh a slow host gets at its second try.
_MORE_PATIENCE = 4
# Until the server has said its name, and until the login is through.
_TRY_S = 3
_LOGIN_S = 5.0
# A busy host takes long to start a program, and is no host whose shell hangs. This machine's own
# load is known: hosts may be as busy, and what is done here is late itself.
_PROGRAM_S, _PROGRAM_OF_BUSY_S = 12.0, 24.0
# What its shell prints is not this by chance.
_STARTED, _HAS_ALL = b"yoked-is-in", b"yoked-has-it"
# As much as an agent, so that it does not fit into what small packets carry at once.
_SENT_BYTES = 200_000
_MOST_BYTES = 1 << 20
_PIECE_BYTES = 65_536
_LONGEST = 200
_PING_S = 1.5
# With its headers a packet of 1500 bytes; the kernel cuts it where its own way takes less.
_SMALL, _LARGE = "56", "1472"
_DIAL_S = 1.2
_OTHER_S = 3.0
_READ = re.compile(r"^debug1: Reading configuration data (.+)$", re.MULTILINE)
_MATCH = re.compile(r"""\s*match\b.*?\bexec[ \t=]+("[^"]*"|\S+)""", re.IGNORECASE)
# Of Linux and macOS alike; beyond these bits OpenSSH passes over a key.
_OF_OTHERS = 0o077


def reached(
    host: Host,
    connect: Callable[[Host, int], AgentClient],
    patience_s: int,
    ssh_config: Path | None,
) -> AgentClient | SshFailure:
    """An agent, or why there is none. A host that is slow is waited for once more, longer: programs
    start there, so nothing keeps anybody from looking at it.

    connect: gives the agent of a host with so many seconds of patience.
    """
    for times in (1, _MORE_PATIENCE):
        try:
            return connect(host, times * patience_s)
        except YokedError as problem:
            failure = failure_of(
                host.name, ssh_config, problem, host.console, host.python, host.address
            )
        if failure.cause != "slow":
            break
    return failure


def failure_of(
    host: str,
    ssh_config: Path | None,
    problem: YokedError,
    console: Sequence[str] = (),
    python: str | None = None,
    address: str | None = None,
) -> SshFailure:
    """What kept the agent of a host from coming; where it is not plain, more tries are made.

    console: the command that starts a root's shell there by another way; empty: there is none.
    python, address: the interpreter and the address that the fleet's file names.
    """
    told = _failure_by_trying(host, ssh_config, problem)
    if isinstance(problem, NoAgentError):
        told = of_program(told, host, ssh_config)
    if told.cause == "jump-on":
        way = way_to(host, ssh_config)
        words = problem.words if isinstance(problem, NoAgentError) else ""
        return of_names(told, way, ssh_config, words=words, address=address, console=console)
    if told.cause in _BY_OPTION.get(told.kind, ()):
        told = of_options(told, host, ssh_config)
    if python and told.kind == "python" and told.cause in _OF_PYTHON:
        told = of_interpreter(told, host, ssh_config, python)
    if (told.kind, told.cause) in _RUNS:
        told = of_start_files(told, host, ssh_config)
    if not console or told.cause not in _ON_CONSOLE.get(told.kind, ()):
        return told
    way = way_to(host, ssh_config)
    key = told.about if FINGERPRINT.fullmatch(told.about) else key_of(way)
    told = replace(told, user=way.user)
    if way.proxy == "command":
        return told_by(console, told, key)
    return told_by(console, told, key, way.port, way.address)


def _failure_by_trying(host: str, ssh_config: Path | None, problem: YokedError) -> SshFailure:
    told = told_failure(problem)
    if told.cause == "no-match" and _is_narrowed(host, ssh_config, told.text):
        return replace(told, cause="narrowed")
    if told.cause == "config-mode" and not _is_of_ssh(told.about, ssh_config):
        return replace(told, cause="config", about="")
    if not isinstance(problem, NoAgentError):
        return told
    way = way_to(host, ssh_config)
    if told.kind not in _LOOKED_AT and not way.hops:
        return told
    if told.kind in ("shell", "denied"):
        told = replace(told, user=way.user)
    if told.kind == "unreachable" and not told.cause and not way.hops:
        return explained(told, way, Try(), signs_from_here(way))
    if not wants_try(told, way):
        return told
    tried = try_again(host, ssh_config)
    if told.kind == "timeout" and tried.turn == "here" and stage_of(tried, way) != "in":
        # It has not come to the host, or the host has done its part.
        place = _place_of(tried.words, ssh_config)
        tried = replace(tried, place=place, is_dumb=_is_dumb(way.agent))
        return explained(told, way, tried, Signs())
    # Whoever came in needs no other proof that the host is on.
    looks = told.kind == "timeout" and stage_of(tried, way) != "in"
    signs = signs_from_here(way) if looks else Signs()
    return explained(told, _with_keys(way) if told.kind != "timeout" else way, tried, signs)


def _place_of(words: str, ssh_config: Path | None) -> str:
    """`FILE:LINE` of the `Match` whose program ssh ran last; "" where that is not clear.

    FILE is empty for the configuration that ssh was given: it may be a copy.
    """
    executed = EXECUTED.findall(words)
    found = []
    for name in dict.fromkeys(_READ.findall(words)) if executed else ():
        with contextlib.suppress(OSError):
            lines = Path(name).read_text(encoding="utf-8", errors="replace").splitlines()
            shown = "" if name == str(ssh_config) else name
            found += [
                f"{shown}:{number}"
                for number, line in enumerate(lines, start=1)
                if (asked := _MATCH.match(line)) and _may_be(asked[1].strip('"'), executed[-1])
            ]
    return found[0] if len(found) == 1 else ""


def _may_be(written: str, executed: str) -> bool:
    """Whether ssh makes the one of the other: it puts something in the place of %h and the like."""
    parts = re.split(r"%[a-zA-Z]", written.replace("%%", "%"))
    return re.match(".*".join(map(re.escape, parts)), executed) is not None


def _is_dumb(agent: str) -> bool:
    """Whether the key agent that ssh asks takes what it is asked, and says nothing.

    agent: its socket by ssh's settings.
    """
    socket = os.environ.get("SSH_AUTH_SOCK", "") if agent in ("", "SSH_AUTH_SOCK") else agent
    if not socket:
        return False
    asked = run_here("env", f"SSH_AUTH_SOCK={socket}", "ssh-add", "-l")
    return asked is None and shutil.which("ssh-add") is not None


def seen_by(
    told: SshFailure, host: str, ssh_config: Path | None, by: str, agent: Agent
) -> SshFailure:
    """The same failure, as far as another host sees more of this one. by: its name."""
    if told.kind not in ("timeout", "unreachable", "refused") or told.cause not in ("", "slow"):
        return told
    way = way_to(host, ssh_config)
    return explained(told, way, Try(), _signs_from(by, agent, way)) if _address(way) else told


def ask_ssh(*flags: str) -> str | None:
    """What ssh says of itself, here; None: nothing, or not in time."""
    done = run_here("ssh", *flags)
    return None if done is None else (done.stdout or done.stderr).strip() or None


def ssh_here(host: str | None, ssh_config: Path | None) -> dict[str, str | float | None]:
    """The ssh of this machine: its version; ssh_path; ssh_prints, what it puts in front of what a
    host says: one that stands in ssh's place may greet; ssh_settings_s, how long it reads its
    settings for a host, no longer than ssh is waited for here. None: unknown, or nothing.
    """
    began_s = time.monotonic()
    if host is not None:
        ask_ssh("-G", *_flags(ssh_config), host)
    settings_s = None if host is None else round(time.monotonic() - began_s, 2)
    done = run_here("ssh", "-V")
    if done is None:
        return {"ssh": None, "ssh_path": None, "ssh_prints": None, "ssh_settings_s": settings_s}
    # ssh itself has its version on stderr, and nothing else.
    printed, told = done.stdout.strip(), done.stderr.strip()
    return {
        "ssh": (told or printed) or None,
        "ssh_path": shutil.which("ssh"),
        "ssh_prints": printed[:_LONGEST] if told and printed else None,
        "ssh_settings_s": settings_s,
    }


def way_to(host: str, ssh_config: Path | None) -> Way:
    """How ssh goes to a host."""
    return way_of(ask_ssh("-G", *_flags(ssh_config), host))


def try_again(host: str, ssh_config: Path | None) -> Try:
    """How far ssh comes: to the server, through the login, to a program, and with much to carry.

    On a connection of its own: a shared one may lead to a machine that is gone, and not know it.
    """
    config = None if ssh_config is None else str(ssh_config)
    program, *rest = ssh_argv(host, config, patience_s=_TRY_S, shared=False)
    line = f"echo {_STARTED.decode()}; cat > /dev/null; echo {_HAS_ALL.decode()}"
    with tempfile.TemporaryFile() as sent:
        sent.write(bytes(_SENT_BYTES))
        sent.seek(0)
        try:
            process = subprocess.Popen(
                [program, "-vvv", *rest, line],
                stdin=sent,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError:
            return Try()
        with process:
            try:
                return replace(_follow(process), helpers=tuple(_helpers(process.pid)))
            finally:
                kill_way(process)


def _helpers(pid: int) -> list[str]:
    """What a program has started that still runs, with what that has started."""
    return [each for child in children_of(pid) for each in (child.command(), *_helpers(child.pid))]


def _follow(process: subprocess.Popen[bytes]) -> Try:
    """What a try shows, until it has shown all, ended, or takes too long."""
    assert process.stdout is not None
    assert process.stderr is not None
    said = {process.stdout: b"", process.stderr: b""}
    open_now = list(said)
    until_s = time.monotonic() + _LOGIN_S
    in_s = started_s = None
    while open_now and (left_s := until_s - time.monotonic()) > 0:
        for stream in select.select(open_now, [], [], left_s)[0]:
            piece = os.read(stream.fileno(), _PIECE_BYTES)
            said[stream] += piece
            if not piece:
                open_now.remove(stream)
        found = _try_of(said[process.stdout], said[process.stderr])
        now_s = time.monotonic()
        if in_s is None and stage_of(found, Way()) == "in":
            in_s, until_s = now_s, now_s + _program_s()
        if started_s is None and found.started:
            started_s = now_s
        if found.took or sum(map(len, said.values())) > _MOST_BYTES:
            break
    found = _try_of(said[process.stdout], said[process.stderr])
    end_s = started_s or time.monotonic()
    return replace(found, after_s=0.0 if in_s is None else end_s - in_s)


def _program_s() -> float:
    """How long a program may take to start there."""
    is_busy = os.getloadavg()[0] > (os.cpu_count() or 1)
    return _PROGRAM_OF_BUSY_S if is_busy else _PROGRAM_S


def _try_of(printed: bytes, told: bytes) -> Try:
    before, started, _ = printed.partition(_STARTED)
    words = told.decode(errors="replace").replace("\r", "")
    return Try(
        words=louder_left_out(words),
        turn=turn_of(words),
        printed=before.decode(errors="replace").replace("\r", ""),
        started=bool(started),
        took=_HAS_ALL in printed,
    )


def signs_from_here(way: Way) -> Signs:
    """What this machine sees of a host that it reaches without another's help."""
    address = _address(way)
    if way.proxy or address is None:
        return Signs()
    small, large = at_once(lambda size: run_here(*_ping(size, address), limit_s=_PING_S),
                           (_SMALL, _LARGE))  # fmt: skip
    pings = small is not None and small.returncode == 0
    return Signs(pings=pings, large=large is not None and large.returncode == 0 if pings else None)


def _signs_from(by: str, agent: Agent, way: Way) -> Signs:
    """What another host sees: who dials from there needs no way from here."""
    address = _address(way)
    assert address is not None

    def ping(size: str) -> bool:
        told = agent.call("run", argv=_ping(size, address), limit_s=_PING_S, timeout_s=_OTHER_S)
        return bool(told["exit_status"] == 0)

    found, _ = gather_within(
        _OTHER_S,
        {
            "small": lambda: ping(_SMALL),
            "large": lambda: ping(_LARGE),
            "port": lambda: _port_from(by, agent, address, way),
        },
    )
    pings = found.get("small") is True
    return Signs(by, pings, found.get("large") if pings else None, found.get("port"))


def _port_from(by: str, agent: Agent, address: str, way: Way) -> str | None:
    """What the port of ssh does when another host dials it: a stranger to it, who says hello."""
    (answer,) = dialled(
        agent,
        by,
        [{"address": address, "port": way.port}],
        token="",
        wait_s=_DIAL_S,
        patience_s=_DIAL_S,
        send_bytes=0,
        timeout_s=_OTHER_S,
    )
    if not answer["connected"]:
        return "refuses" if answer["error"] == "ECONNREFUSED" else None
    return {"ETIMEDOUT": "mute", "EPROTO": "speaks"}.get(str(answer["error"]), "closes")


def _ping(size: str, address: str) -> list[str]:
    # Nothing of how long to wait: the same letter means seconds on Linux, and thousandths on macOS.
    program = "ping6" if ":" in address and sys.platform == "darwin" else "ping"
    return [program, "-n", "-c", "1", "-s", size, address]


def _address(way: Way) -> str | None:
    """Where ssh goes to, if that is an address: a name may mean another host elsewhere."""
    with contextlib.suppress(ValueError):
        ip_address(way.address.partition("%")[0])
        return way.address
    return None


def _with_keys(way: Way) -> Way:
    """The same, with what keeps its keys from being used."""
    # What has a token of ssh's in its name stays unknown.
    files = [_plain(each) for each in way.files if each.startswith(("~/", "/"))]
    modes = {each: mode for each in files if (mode := _mode_of(each)) is not None}
    told = {each: run_here("ssh-keygen", "-y", "-P", "", "-f", each) for each in modes}
    known = {each: done for each, done in told.items() if done is not None}
    pairs = [f"{each}-cert.pub" for each in files] + [each for each, _ in way.certificates]
    certified = {each: run_here("ssh-keygen", "-L", "-f", each) for each in map(_plain, pairs)
                 if Path(each).is_file()}  # fmt: skip
    # ssh-keygen tells local time.
    now = datetime.now(UTC).astimezone().replace(tzinfo=None)
    return replace(
        way,
        gone=tuple(each for each in files if each not in modes),
        certificates=tuple((each, flaw_of(done.stdout, way.user, now))
                           for each, done in certified.items() if done and not done.returncode),
        loose=tuple(each for each, mode in modes.items() if mode & _OF_OTHERS),
        locked=tuple(each for each, done in known.items()
                     if done.returncode and "passphrase" in done.stderr),
        # One with a passphrase tells nothing of itself.
        stale=tuple(each for each, done in known.items()
                    if not done.returncode and _is_stale(each, done.stdout)),
    )  # fmt: skip


def _plain(path: str) -> str:
    return str(Path(path).expanduser())


def key_of(way: Way) -> str:
    """The fingerprint of the key that ssh offers, where its settings lead to one alone; else ""."""
    found = set()
    for each in way.files:
        path = Path(each).expanduser()
        done = run_here("ssh-keygen", "-lf", str(path)) if path.is_file() else None
        found |= set(FINGERPRINT.findall(done.stdout if done else ""))
    return found.pop() if len(found) == 1 else ""


def _mode_of(path: str) -> int | None:
    try:
        return Path(path).stat().st_mode
    except OSError:
        return None


def _is_stale(key: str, public: str) -> bool:
    """Whether the .pub beside a key, by which ssh offers it, is of another key. public: its own."""
    try:
        told = Path(f"{key}.pub").read_text(encoding="utf-8", errors="replace").split()[:2]
    except OSError:
        return False
    return public.split()[:2] != told


def _is_of_ssh(path: str, ssh_config: Path | None) -> bool:
    """Whether a file is one that ssh reads by itself."""
    folders = (str(Path("~/.ssh").expanduser()), "/etc/ssh")
    return path == str(ssh_config) or str(Path(path).parent) in folders


def _is_narrowed(host: str, ssh_config: Path | None, text: str) -> bool:
    own, usual = (
        named_values(ask_ssh("-G", *flags, host) or "", " ")
        for flags in (_flags(ssh_config), ["-F", "none"])
    )
    return is_narrowed(text, own, usual)


def _flags(ssh_config: Path | None) -> list[str]:
    return [] if ssh_config is None else ["-F", str(ssh_config)]
