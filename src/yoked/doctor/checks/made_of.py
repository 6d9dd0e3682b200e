"""What the program here is made of: whether all of it travels, and can be run on the hosts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from yoked.doctor.check import Match
from yoked.doctor.checks.content import renamed_to_utf8, shown_name
from yoked.doctor.checks.query import at, mapping, minor_of
from yoked.doctor.checks.wanted_query import told_of
from yoked.doctor.repairs.base import by_hand
from yoked.records.examination import Examination, Fix, Severity
from yoked.records.shell import joined
from yoked.units import first_listed, listed

_SHOWN = 3
SAW = {
    "refused": "a launch from this folder would end at once: {said}",
    "remark": "a launch from this folder would say: {said}",
    "growing": "{names} in the program's folder: another size than a moment ago",
    "link": "{names} in the program's folder: a link that leads to nothing {where}",
    "left": "{names}, which the program here is made of, would stay here: git's rules leave {it} "
    "out",
    "left_named": "{names}, which the program here names, would stay here: git's rules leave {it} "
    "out",
    "broken": "{names}, in what the program here is made of",
    "special": "{names} in the program's folder: no file that could travel",
    "misnamed": "{names} in the program's folder: a name that is no UTF-8",
    "pointer": "{names} in the program's folder: a pointer of git-lfs in the place of the content",
}
WHY = {
    "refused": "that is said before any host is asked, and nothing is started",
    "remark": "hosts may get other files than are meant",
    "growing": "a launch reads it twice, and ends where that differs: `does not arrive whole`",
    "link": "the link travels as it is; a rank that opens it, to save as well, ends with `No such "
    "file or directory`",
    "left": "`No module named ...` on every host, though it is found here",
    "left_named": "`No such file or directory` on every host, though it is found here",
    "broken": "every rank ends with it, on each host",
    "special": "a program that opens it waits for its other end, or fails",
    "pointer": "three lines of text travel, and each rank that reads it gets those",
    "misnamed": "a program or a tool that prints or writes down names fails: `UnicodeEncodeError`",
}


def _told(seen: Examination, key: str) -> list[str]:
    return list(map(str, at(seen.controller, key) or ()))


def _of_folder(
    how: str,
    names: list[str],
    *fixes: Fix,
    hosts: tuple[str, ...] = (),
    severity: Severity = "warning",
    **params: Any,
) -> Match:
    """What is wrong with files of the program's folder."""
    shown = first_listed(map(shown_name, names))
    return Match(hosts, *fixes, severity=severity, how=how, names=shown, **params)


def in_the_folder(seen: Examination) -> Iterator[Match]:
    """What of the program's folder does not travel, or cannot be run or read on hosts."""
    broken = _told(seen, "broken")
    # A newer Python may know more than that by which it was tried here.
    here = minor_of(at(seen.controller, "python"))
    theirs = [minor_of(mapping(host.torch).get("python_version")) for host in seen.up]
    if broken and all(each <= here for each in theirs):
        mend = by_hand("", "mend it here; what is here is what each host gets")
        yield _of_folder("broken", broken, mend, severity="error")
    yield from _left(seen, "left", "error")
    yield from _left(seen, "left_named", "warning")
    named = _told(seen, "named")
    pointers = _told(seen, "pointers")
    yield from _pointers([each for each in pointers if each in named], "error")
    yield from _pointers([each for each in pointers if each not in named], "warning")
    yield from _at_launch(seen)
    yield from _links(seen)
    if special := _told(seen, "special"):
        names = [each.rpartition(" (")[0] for each in special[:_SHOWN]]
        yield _of_folder("special", special, *(by_hand("", "rm {it}", it=each) for each in names))
    if misnamed := _told(seen, "misnamed"):
        lines = [renamed_to_utf8(None, each) for each in misnamed[:_SHOWN]]
        renames = [by_hand("", "{line}", line=each) for each in lines]
        yield _of_folder("misnamed", misnamed, *renames)


def _left(seen: Examination, how: str, severity: Severity) -> Iterator[Match]:
    """What git's rules leave here."""
    if left := _told(seen, how):
        rule = by_hand(
            "",
            "git check-ignore -v --no-index {names}    shows the rule to change; or send it all "
            "the same: {flags}",
            names=joined(" ", left[:_SHOWN]),
            flags=joined(" ", [w for each in left[:_SHOWN] for w in ("--include", each)]),
        )
        it = "it" if len(left) == 1 else "them"
        yield _of_folder(how, left, rule, severity=severity, it=it)


def _pointers(names: list[str], severity: Severity) -> Iterator[Match]:
    if names:
        pull = by_hand(
            "",
            "git lfs install && git lfs pull    in the program's folder; git-lfs is a package of "
            "that name",
        )
        yield _of_folder("pointer", names, pull, severity=severity)


def _at_launch(seen: Examination) -> Iterator[Match]:
    """What a launch would say of the folder. Without a program in it, none is begun there."""
    if not at(seen.controller, "programs"):
        return
    if refused := _told(seen, "refused"):
        mend = by_hand(
            "",
            "name in .gitignore what hosts need not get, take it out of the folder, or make it "
            "readable: as the launch says it above",
        )
        yield Match((), mend, how="refused", said="; ".join(refused))
    for remark in _told(seen, "remarks"):
        put_right = by_hand("", "put that right, or do without")
        yield Match((), put_right, severity="warning", how="remark", said=remark)
    if growing := _told(seen, "growing"):
        wait = by_hand(
            "",
            "wait until {names} is written, or name it in .gitignore: `fuser -v {names}` shows "
            "who writes",
            names=joined(" ", growing[:_SHOWN]),
        )
        yield _of_folder("growing", growing, wait)


def _links(seen: Examination) -> Iterator[Match]:
    """Links of the folder that a program of it could not open on a host."""
    near = _told(seen, "links")
    dead = [each for each in _told(seen, "dead_links") if each.partition(" -> ")[0] in near]
    if dead:
        yield _dead(dead, "there", ())
    sent = at(seen.controller, "sent_links") or ()
    for target, name in mapping(at(seen.controller, "asks", "links")).items():
        lost = [host for host, own in told_of(seen, "files", target).items()
                if own["kind"] == "missing"
                # What can be made there is made by whoever writes.
                and mapping(told_of(seen, "writes", target).get(host)).get("problem")]  # fmt: skip
        if lost and name in sent:
            yield _dead([f"{name} -> {target}"], f"on {listed(lost)}, nor here", tuple(lost))


def _dead(links: list[str], where: str, hosts: tuple[str, ...]) -> Match:
    names = [each.partition(" -> ")[0] for each in links]
    remove = by_hand(
        "",
        "rm {names}    in the program's folder; or have it lead to what is in that folder",
        names=joined(" ", names[:_SHOWN]),
    )
    return _of_folder("link", links, remove, hosts=hosts, where=where)
