"""What came of the steps of a launch, tried in small: see yoked.agent.smalllaunch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from yoked.doctor.check import Match, check
from yoked.doctor.checks.environment import shown_places
from yoked.doctor.checks.folder_query import folders_of, place_of
from yoked.doctor.checks.query import at, mapping, part
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.files import remove_files
from yoked.doctor.repairs.startfiles import leave_out_line, own_state_folder, unset_variable
from yoked.records.examination import Examination, Fix, HostSeen
from yoked.units import listed, plural

# A login that takes so long by itself waits for no other one.
_FIRST_S = 2.0
_MOST_FILES = 4


@check(
    "small-launch",
    question="Do the steps of a launch, tried in small, go as they should on every host?",
    reads=("health.launch", "health.folders", "controller"),
    severity="error",
    saw={
        "shared": "{host} and {words} have one folder: what one of them writes to {place} is there "
        "on the other",
        "damaged": "{host} keeps {words} of an earlier launch with another content than was sent: "
        "{place}",
        "failed": "no {place} can be started on {host}: {words}",
        "noise": "each program that {host} starts prints by itself, such as `{words}`, and is "
        "silent without {place}",
        "adopter": "on {host}, a program that had lost its parent ended, and stays as a zombie: "
        "`{words}` ({place}), which has it now, does not wait for it",
        "enclosed": "each login on {host} has process numbers of its own (a PID namespace), begun "
        "by {place}: `{words}`",
        "baton": "a build of the extension {words} was killed on {host}, and its lock is left: "
        "{place}",
        "waits": "a second login on {host} waits while there is another one, at {place}: `{words}`",
        "blocks": "{place} on {host} leaves the streams of a login such that nobody waits for them "
        "(O_NONBLOCK): `{words}`",
    },
    why={
        "shared": "the hosts of a run keep its job there under one name: each finds, or writes "
        "over, that of the other",
        "damaged": "a launch sends nothing that is there already: a rank there runs another "
        "program than the others, and nobody says so",
        "failed": "a launch fails there",
        "noise": "each start is slower, and the logs of ranks are full of it",
        "adopter": "each run leaves some behind, and whoever waits for their end waits for ever",
        "enclosed": "the kernel kills all that a login started as soon as it ends: no run outlives "
        "its launch, and nothing is in any log",
        "baton": "a rank that loads it waits until the lock goes, for ever, and uses no CPU",
        "waits": "what is asked of a run while it goes on hangs: logs, attach, stop",
        "blocks": "a program that reads too early gets nothing, and one that writes much loses "
        "the rest: `BlockingIOError`",
    },
    symptom="A run whose name is taken at once; a rank with another result than the others; an "
    "`ssh` that hangs while another one goes on; `BlockingIOError: Resource temporarily "
    "unavailable`; logs of megabytes; `<defunct>` in `ps`.",
    cause="A home on a file server that several hosts have; a disk that gives back other bits; a "
    "lock that a start file of the shell takes and keeps, or the helper of a prompt; LD_DEBUG in a "
    "start file; a container whose first process waits for nobody; a start file, or sshd, that "
    "runs each login by `unshare --pid`; a build of torch.utils.cpp_extension that was killed. The "
    "doctor writes a file as a launch does, runs the start files beside its own login, starts a "
    "program as a supervisor is started and lets it lose its parent, and compares what is kept "
    "with its hashes.",
    fix="Gives each host that shares a home a folder of its own for jobs, makes the line of a "
    "start file a comment, takes a variable out, removes a lock. By hand: a damaged cache, a "
    "container.",
    explains=("world-failed",),
)
def small_launch(seen: Examination) -> Iterator[Match]:
    yield from _shared(seen)
    for host in seen.up:
        yield from _damaged(host)
        yield from _login(host)
        yield from _enclosed(host)
        yield from _batons(seen, host)
        yield from _supervisor(host)


def _shared(seen: Examination) -> Iterator[Match]:
    told: set[str] = set()
    for host in seen.up:
        if host.name in told:
            continue
        # Whoever looked first saw what the other had left. Two names of one machine are told as
        # such elsewhere.
        found = {
            other.name: folders
            for other in seen.up
            if other.facts.get("machine") != host.facts.get("machine")
            and (folders := _met(host, other) or _met(other, host))
        }
        if found:
            told.update(found)
            path = next(iter(found.values()))
            fix = own_state_folder(host.name)
            hosts, others = [host.name, *found], listed(found)
            yield Match(hosts, fix, how="shared", place=path, words=others)


def _met(host: HostSeen, other: HostSeen) -> str | None:
    """The folder of a host's jobs, if it saw a file of another one there. What a cache has lies by
    its hash, and may be shared.
    """
    marks = {each.get("mark") for each in folders_of(other, "state").values()} - {None}
    for name, folder in folders_of(host, "state").items():
        if marks & {*(folder.get("beside") or ())}:
            return place_of({name: folder})
    return None


def _damaged(host: HostSeen) -> Iterator[Match]:
    files = [str(each) for each in part(host, "launch", "damaged") or ()]
    if not files:
        return
    cache = str(host.facts.get("cache") or "~/.cache/yoked")
    again = by_hand(
        host.name,
        "rm -rf {trees} {blobs}    when no run is on there: the next launch sends it anew",
        trees=str(PurePosixPath(cache, "trees")),
        blobs=str(PurePosixPath(cache, "blobs")),
    )
    look = by_hand(
        host.name,
        "the disk or the memory may be failing: dmesg | grep -i error; sudo smartctl -a DISK, that "
        "of `df {cache}`",
        cache=cache,
    )
    shown = listed(files[:_MOST_FILES])
    yield Match(
        host.name, again, look, how="damaged", place=shown, words=plural(len(files), "file")
    )


def _login(host: HostSeen) -> Iterator[Match]:
    found = mapping(part(host, "launch", "login"))
    if not found or (found["how"] == "waits" and (host.connect_s or 0.0) > _FIRST_S):
        return
    command = found["command"]
    file, line = str(command["file"]), int(command["line"])
    yield Match(
        host.name,
        leave_out_line(host.name, file, line),
        how=found["how"],
        severity="warning",
        place=f"{file}, line {line}",
        words=command["words"],
    )


def _batons(seen: Examination, host: HostSeen) -> Iterator[Match]:
    """Of the program here where it names such extensions; else of any, which a package may load."""
    named = set(map(str, at(seen.controller, "extensions") or ()))
    for path in map(str, part(host, "launch", "batons") or ()):
        extension = PurePosixPath(path).parent.name
        if not named or extension in named:
            yield Match(
                host.name,
                remove_files(host.name, [path]),
                severity="error" if named else "warning",
                how="baton",
                place=path,
                words=extension,
            )


def _enclosed(host: HostSeen) -> Iterator[Match]:
    found = mapping(part(host, "launch", "enclosed"))
    if not found:
        return
    start = mapping(found["start_file"])
    if start:
        file, line = str(start["file"]), int(start["line"])
        fix, place = leave_out_line(host.name, file, line), f"{file}, line {line}"
    else:
        place = "its process 1"
        fix = by_hand(
            host.name,
            "except the account that trains: ForceCommand in /etc/ssh/sshd_config, command= in "
            "~/.ssh/authorized_keys, or the shell of `getent passwd $USER`",
        )
    words = start.get("words") or found["command"]
    yield Match(host.name, fix, how="enclosed", place=place, words=words)


def _supervisor(host: HostSeen) -> Iterator[Match]:
    if failed := part(host, "launch", "failed"):
        look = by_hand(host.name, "`systemd-run --user --scope true` there tells more")
        yield Match(host.name, look, how="failed", place="supervisor", words=failed)
    if noise := mapping(part(host, "launch", "noise")):
        shown, fixes = [], list[Fix]()
        for each in noise["variables"]:
            name, places = str(each["name"]), each["places"]
            shown.append(f"{name}{shown_places(places)}")
            fixes += unset_variable(host.name, host.facts.get("home"), name, places)
        yield Match(
            host.name,
            *fixes,
            how="noise",
            severity="warning",
            place=listed(shown),
            words=noise["line"],
        )
    if adopter := mapping(part(host, "launch", "adopter")):
        init = by_hand(
            host.name,
            "have process {pid} wait for all children that it gets, or put an init in front of it: "
            "docker run --init, tini; or mend the start file that leads each login into it",
            pid=adopter["pid"],
        )
        yield Match(
            host.name,
            init,
            how="adopter",
            severity="warning",
            place=f"process {adopter['pid']}",
            words=adopter["command"],
        )


CHECKS = (small_launch,)
