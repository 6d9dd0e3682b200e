"""What on a host ends programs that nobody looks after, takes files away, or closes sessions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from yoked.doctor.afterwards import SHORT_S, chosen, place_of, words_of
from yoked.doctor.check import Match, check
from yoked.doctor.checks.imports import error_of
from yoked.doctor.checks.query import mapping, part
from yoked.doctor.repairs.base import by_hand
from yoked.records.examination import Examination, Fix, HostSeen
from yoked.text import one_line
from yoked.units import format_bytes, format_duration, listed

# A rank with torch alone holds half a gigabyte; a model comes on top.
_SMALL_BYTES = 4 << 30
_MOST_SHOWN = 3
# As yoked.doctor.rank_probes has it; what faults by itself is nobody's.
_ENDED = re.compile(r"ended with signal (1|2|3|9|10|12|14|15|24)$")


@check(
    "enders",
    question="Does nothing on a host end programs, sessions or files that a run leaves alone?",
    reads=("health.left_alone", "health.enders"),
    severity="error",
    saw={
        "killed": "a program that was left alone on {host}, as a launch leaves its launcher, was "
        "killed after {after}{because}",
        "rank": "a rank that was tried on {host} ended with signal {signal}{because}",
        "signal": "a program that was left alone on {host}, as a launch leaves its launcher, got "
        "{signals} from {sender}{because}",
        "goes-on": "{place} on {host} goes on and signals {chosen}{limit}: `{words}`",
        "comes-again": "{place} on {host}, which cron or logrotate runs, signals {chosen}: "
        "`{words}`",
        "taken": "copies of files of this program, which were left on {host} as a launch leaves "
        "them, are {fates}{because}",
        "session": "the sshd of {host} ends a session in which nothing is said for {after}: "
        "`{words}` ({place})",
    },
    why={
        "killed": "the launcher of a run or a rank there is killed too (signal 9), and nothing "
        "is in its log",
        "rank": "every rank there may end so, and nothing is in its log",
        "signal": "a rank or its launcher gets it too, and a program that does not expect one "
        "ends by it",
        "goes-on": "the launcher, ranks or logins of a run are such programs: they end there "
        "without a word",
        "comes-again": "the launcher, ranks or logins of a run are such programs: they end there "
        "without a word",
        "taken": "a rank there does not find what it imports: ModuleNotFoundError on one host",
        "session": "what works in silence for longer is cut off, whatever it does",
    },
    symptom="A rank on one host ends by signal 9, 10 or 15, in some runs after seconds, in others "
    "after hours; the kernel's log has no word of it; ModuleNotFoundError on one host.",
    cause="A script that ends what has lost its parent, what listens, or the largest Python; a "
    "`pkill python` meant for one service; a virus scanner that puts a module into quarantine; "
    "ChannelTimeout of sshd. The doctor leaves a program and some of your sources alone on each "
    "host for the time of its look, and reads the scripts that go on there, the tables of cron "
    "and the files of logrotate.",
    fix="By hand: only you know what the script is for. Its line is named.",
    on_cluster="Slurm's epilog and the health checks of nodes do the same.",
    explains=("torch-import", "program-acts", "world-failed"),
)
def enders(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        left = mapping(part(host, "left_alone"))
        programs: list[Mapping[str, Any]] = list(
            left.get("programs") or part(host, "enders", "programs") or ()
        )
        signals: list[Mapping[str, Any]] = list(left.get("signals") or ())
        killed = mapping(left.get("killed"))
        if killed:
            after = format_duration(killed["after_s"])
            because = _because(programs)
            yield Match(host.name, *_spare(host, programs), how="killed", after=after,
                        because=because)  # fmt: skip
        elif signals:
            yield _signalled(host, signals, programs)
        elif programs and (number := _ENDED.search(error_of(host))):
            yield Match(host.name, *_spare(host, programs), how="rank", signal=number[1],
                        because=_because(programs))  # fmt: skip
        else:
            yield from _may_end(seen, host, programs)
        if left.get("taken"):
            yield _taken(host, left)
        yield from _sessions(host)


def _because(programs: Sequence[Mapping[str, Any]]) -> str:
    shown = [f"{place_of(each)} signals {chosen(each)}: `{words_of(each)}`"
             for each in programs[:_MOST_SHOWN]]  # fmt: skip
    return f"; there {listed(shown)}" if shown else ""


def _spare(host: HostSeen, programs: Sequence[Mapping[str, Any]]) -> Iterator[Fix]:
    for each in programs[:_MOST_SHOWN]:
        if each.get("pid"):
            words = (
                "end it, `sudo kill {pid}`, or have it spare what is not meant: `pkill -f` with a "
                "service's own name, or the number in its pid file"
            )
            yield by_hand(host.name, words, pid=each["pid"])
        else:
            yield by_hand(
                host.name,
                "have {place} name the one service that is meant",
                place=str(each["file"]),
            )
    if not programs:
        yield by_hand(
            host.name,
            "see who: `sudo dmesg | tail`; `sudo auditctl -a always,exit -F arch=b64 -S kill`, "
            "and, when it has happened again, `sudo ausearch -sc kill`",
        )


def _signalled(
    host: HostSeen, signals: Sequence[Mapping[str, Any]], programs: Sequence[Mapping[str, Any]]
) -> Match:
    names = dict.fromkeys(str(each["name"]) for each in signals)
    known = [each["sender"] for each in signals if each["sender"]["commands"]]
    sender = (known or [signals[0]["sender"]])[0]
    commands = list(map(one_line, sender["commands"]))
    if commands:
        shown = f"`{commands[0]}`"
        shown += f", which `{commands[1]}` started" if len(commands) > 1 else ""
    elif sender["pid"]:
        shown = f"process {sender['pid']}, which has ended since"
    else:
        shown = "outside of its container"
    # The one that sent it, as far as it is known.
    own = [each for each in programs if each.get("command") in sender["commands"]] or programs
    return Match(host.name, *_spare(host, own), how="signal", signals=listed(names),
                 sender=shown, because=_because(own))  # fmt: skip


def _may_end(
    seen: Examination, host: HostSeen, programs: Sequence[Mapping[str, Any]]
) -> Iterator[Match]:
    """Those that have ended nothing yet, but will."""
    most = max(_SMALL_BYTES, seen.need.memory_bytes or 0)
    for each in programs:
        limit = each.get("limit_bytes")
        # A guard that waits until memory is short does what the kernel would.
        if "shortage" in each["about"] or (limit is not None and limit >= most):
            continue
        yield Match(
            host.name,
            *_spare(host, [each]),
            how="goes-on" if each.get("pid") else "comes-again",
            severity="warning",
            place=place_of(each),
            chosen=chosen(each),
            limit="" if limit is None else f", above {format_bytes(limit)}",
            words=words_of(each),
        )


def _taken(host: HostSeen, left: Mapping[str, Any]) -> Match:
    fates: dict[str, list[str]] = {}
    for each in left["taken"]:
        name = PurePosixPath(each["path"]).name
        if name not in fates.setdefault(str(each["how"]), []):
            fates[str(each["how"])].append(name)
    shown = [f"{how} ({listed(names)})" for how, names in fates.items()]
    folder = str(PurePosixPath(left["taken"][0]["path"]).parent.parent)
    takers = list(left.get("takers") or ())
    who = [
        f"{place_of(each)} moves or removes files there: `{words_of(each)}`"
        if each.get("words")
        else f"`{words_of(each)}` is told of what changes there"
        for each in takers[:_MOST_SHOWN]
    ]
    fixes = [
        by_hand(host.name, "have process {pid} leave {folder} alone: an exception in its settings",
                pid=each["pid"], folder=folder)
        for each in takers[:_MOST_SHOWN]
    ] or [by_hand(host.name, "see who removes files in {folder}: `sudo inotifywait -rm {folder}`, "
                  "`sudo auditctl -w {folder} -p wa`, the log of a virus scanner",
                  folder=folder)]  # fmt: skip
    because = f"; {listed(who)}" if who else ""
    return Match(host.name, *fixes, how="taken", fates=listed(shown), because=because)


def _sessions(host: HostSeen) -> Iterator[Match]:
    for each in part(host, "enders", "sessions") or ():
        if each["after_s"] > SHORT_S:
            continue
        place = f"{each['file']}, line {each['line']}"
        fix = by_hand(
            host.name,
            "give {file}, line {line}, a longer time (ChannelTimeout session:*=1h), or take it "
            "out; then: sudo systemctl reload ssh",
            file=str(each["file"]),
            line=each["line"],
        )
        yield Match(host.name, fix, how="session", severity="warning",
                    after=format_duration(each["after_s"]), words=one_line(each["words"]),
                    place=place)  # fmt: skip


CHECKS = (enders,)
