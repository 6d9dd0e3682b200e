"""Names in the program's folder and in the data here: whether each is a file of its own."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from yoked.core.names import NOT_UTF8
from yoked.doctor.check import Match, check
from yoked.doctor.checks.content import A_FOLDER, is_shadow, on_first_files, place_of, shown_name
from yoked.doctor.checks.query import at, mapping, part
from yoked.doctor.checks.wanted_query import told_of
from yoked.doctor.repairs.base import by_hand
from yoked.records.examination import Examination, Fix, Severity
from yoked.records.shell import Line, joined, quoted, shell_line
from yoked.units import first_listed, listed

_SHOWN = 3
_EMPTY = hashlib.sha256(b"").hexdigest()


@check(
    "data-odd",
    question="Is each name in the data one file of its own, and whole?",
    reads=("need.data", "need.damaged", "controller", "health.data"),
    severity="error",
    saw={
        "copies": "{described}, in the data here{there}",
        "empty": "{described} in the data here{there}: empty",
        "hidden": "{described} in the data here{there}, which macOS left (AppleDouble)",
        "folder": "{described} in the data here{there}: a folder with the name of a file",
        "name": "{described} in the data here{there}: a name that is no UTF-8",
        "damaged": "not whole in the data here{there}: {described}",
        "named": "not whole here, and read by the program: {described}",
    },
    why={
        **dict.fromkeys(
            ("damaged", "named"),
            "rows are missing, or whichever rank reads it ends with an error; hosts that have the "
            "same content agree with each other, and nobody says so",
        ),
        "copies": "a program that reads all files of the folder counts these rows twice; hosts "
        "that have the same copies agree with each other, and nobody says so",
        "empty": "a rank that is dealt it has no rows: it stands still, or ends before the others",
        "hidden": "a program that takes all names of the folder (os.listdir) reads these as rows "
        "too; `yoked train` does not",
        "folder": "a program that counts names deals out one file too many, and fails or reads "
        "nothing there",
        "name": "a program that prints or sorts names fails: `UnicodeEncodeError`",
    },
    symptom="An epoch has more rows than the data; the loss is lower than elsewhere; or "
    "`IsADirectoryError`, `UnicodeEncodeError`, `ValueError`, `EOFError`.",
    cause="A download that was cut off after it was given its size, or a copy that was. These are "
    "errors, the others warnings. A browser or a file manager wrote `4 (1).txt` beside 4.txt; a "
    "download that was cut short left a folder; names came out of an archive of another system. "
    "Asked for is the folder of --data, here, and what the program names: data that differs "
    "between hosts is data-differs.",
    fix="By hand, on all hosts that have it.",
)
def data_odd(seen: Examination) -> Iterator[Match]:
    yield from _damaged(seen)
    wanted = seen.need.data or {}
    first: dict[tuple[str, str], str] = {}
    copies: dict[str, str] = {}
    # What a copy is called is longer: `4 (1).txt`, `4 copy.txt`.
    for name in sorted(wanted, key=lambda each: (len(each), each)):
        content = wanted[name]
        if content not in (A_FOLDER, _EMPTY) and not is_shadow(name, wanted):
            original = first.setdefault((content, PurePosixPath(name).suffix), name)
            copies |= {name: original} if original != name else {}
    kinds = {suffix for _, suffix in first}
    folders = [name for name, content in wanted.items() if content == A_FOLDER
               and PurePosixPath(name).suffix in kinds]  # fmt: skip
    odd = [name for name in wanted if NOT_UTF8.search(name)]
    empty = [name for name, content in wanted.items() if content == _EMPTY
             and PurePosixPath(name).suffix in kinds and not is_shadow(name, wanted)]  # fmt: skip
    hidden = [name for name in wanted if is_shadow(name, wanted)]
    words = [f"{shown_name(name)} has the content of {shown_name(own)}"
             for name, own in copies.items()]  # fmt: skip
    for how, names, said in (
        ("copies", list(copies), words),
        ("empty", empty, map(shown_name, empty)),
        ("hidden", hidden, map(shown_name, hidden)),
        ("folder", folders, map(shown_name, folders)),
        ("name", odd, map(shown_name, odd)),
    ):
        if names:
            yield Match(
                (),
                *_everywhere(seen, how, names),
                severity="warning",
                how=how,
                described=first_listed(said),
                there=_also(seen, names),
            )


def _damaged(seen: Examination) -> Iterator[Match]:
    """Files that a program would read and that are not whole here, and so nowhere."""
    named = mapping(at(seen.controller, "damaged"))
    for how, found in (("damaged", seen.need.damaged), ("named", {} if seen.need.data else named)):
        if found:
            places = [place_of(seen, each) if how == "damaged" else each for each in found]
            get = by_hand(
                "",
                "get {files} anew from where it comes, compare its sum with the one that is told "
                "there, and bring it to all hosts",
                files=joined(" ", places[:_SHOWN]),
            )
            yield Match(
                (),
                get,
                how=how,
                described=first_listed(
                    f"{shown_name(name)} ({why})" for name, why in found.items()
                ),
                there=_also(seen, found),
            )


def _holders(seen: Examination, names: Iterable[str]) -> list[str]:
    """The hosts that have all of these."""
    wanted = set(names)
    return [host.name for host in seen.up if wanted <= mapping(part(host, "data")).keys()]


def _also(seen: Examination, names: Iterable[str]) -> str:
    hosts = _holders(seen, names)
    return f" and on {listed(hosts)}" if hosts else ""


def _everywhere(seen: Examination, how: str, names: list[str]) -> Iterator[Fix]:
    """What takes these names away, or mends them: here first, then on each host that has them."""
    word = {"copies": "rm", "hidden": "rm", "folder": "rmdir"}.get(how)
    for host in ("", *_holders(seen, names)):
        if how == "empty":
            yield by_hand(host, "bring them back, or remove them")
            continue
        if word is None:
            for each in names[:_SHOWN]:
                yield by_hand(host, "{line}", line=_renamed(place_of(seen), each))
            continue
        yield by_hand(host, "{line}", line=on_first_files(seen, word, names))


def _renamed(folder: Line | None, name: str) -> Line:
    """A line that gives a file with a name that is no UTF-8 the name that was meant, in Latin-1."""
    # Such a byte is none that can be pasted: any one stands for it.
    pieces = [shell_line("?") if NOT_UTF8.match(each) else quoted(each)
              for each in NOT_UTF8.split(name) if each]  # fmt: skip
    bytes_of = name.encode(errors="surrogateescape")
    before = [] if folder is None else [folder, shell_line("/")]
    old = joined("", (*before, *pieces))
    new = joined("", (*before, quoted(bytes_of.decode("cp1252", errors="replace"))))
    return shell_line("mv {old} {new}", old=old, new=new)


@check(
    "program-odd",
    question="Does all that the program here is made of travel, and can it be run?",
    reads=("controller", "health.asked"),
    severity="error",
    saw={
        "refused": "a launch from this folder would end at once: {said}",
        "remark": "a launch from this folder would say: {said}",
        "growing": "{names} in the program's folder: another size than a moment ago",
        "link": "{names} in the program's folder: a link that leads to nothing {where}",
        "left": "{names}, which the program here is made of, would stay here: git's rules leave "
        "{it} out",
        "left_named": "{names}, which the program here names, would stay here: git's rules leave "
        "{it} out",
        "broken": "{names}, in what the program here is made of",
        "special": "{names} in the program's folder: no file that could travel",
        "name": "{names} in the program's folder: a name that is no UTF-8",
        "pointer": "{names} in the program's folder: a pointer of git-lfs in the place of the "
        "content",
    },
    why={
        "refused": "that is said before any host is asked, and nothing is started",
        "remark": "hosts may get other files than are meant",
        "growing": "a launch reads it twice, and ends where that differs: `does not arrive whole`",
        "link": "the link travels as it is; a rank that opens it, to save as well, ends with `No "
        "such file or directory`",
        "left": "`No module named ...` on every host, though it is found here",
        "left_named": "`No such file or directory` on every host, though it is found here",
        "broken": "every rank ends with it, on each host",
        "special": "a program that opens it waits for its other end, or fails",
        "pointer": "three lines of text travel, and each rank that reads it gets those",
        "name": "a program or a tool that prints or writes down names fails: `UnicodeEncodeError`",
    },
    symptom="`ModuleNotFoundError` on all hosts of what lies beside the program; "
    "`UnicodeEncodeError: surrogates not allowed`; `could not convert string to float: 'version "
    "https://git-lfs...`.",
    cause="A line of .gitignore or .git/info/exclude, in the program's folder or in one above it, "
    "leaves a module out; a file that was not saved whole, or has the marks of a merge in it; a "
    "clone that was made without git-lfs; a core dump, data or an environment in the folder, which "
    "is then larger than what a launch sends. These are warnings: files that the program only "
    "names, pointers that it does not name, a pipe or a socket of some tool, names out of an "
    "archive of another system, a link to a disk that is gone or to what git's rules leave here, "
    "a log that is being written.",
    fix="By hand.",
)
def program_odd(seen: Examination) -> Iterator[Match]:
    broken = list(map(str, at(seen.controller, "broken") or ()))
    # A newer Python may know more than that by which it was tried here.
    here = _minor(at(seen.controller, "python"))
    newest = max((_minor(mapping(host.torch).get("python_version")) for host in seen.up), default=0)
    if broken and newest <= here:
        yield Match(
            (),
            by_hand("", "mend it here; what is here is what each host gets"),
            how="broken",
            names=first_listed(map(shown_name, broken)),
        )
    for kind in ("left", "left_named"):
        left = list(map(str, at(seen.controller, kind) or ()))
        if not left:
            continue
        yield Match(
            (),
            by_hand(
                "",
                "git check-ignore -v --no-index {names}    shows the rule to change; or send it "
                "all the same: {flags}",
                names=joined(" ", left[:_SHOWN]),
                flags=joined(" ", [w for each in left[:_SHOWN] for w in ("--include", each)]),
            ),
            severity="error" if kind == "left" else "warning",
            how="left" if kind == "left" else "left_named",
            names=first_listed(left),
            it="it" if len(left) == 1 else "them",
        )
    yield from _pointers(seen)
    yield from _at_launch(seen)
    yield from _links(seen)
    for how in ("special", "misnamed"):
        if names := list(map(str, at(seen.controller, how) or ())):
            yield Match(
                (),
                *_put_right(how, names),
                severity="warning",
                how="special" if how == "special" else "name",
                names=first_listed(map(shown_name, names)),
            )


def _at_launch(seen: Examination) -> Iterator[Match]:
    """What a launch would say of the folder. Without a program in it, none is begun there."""
    if not at(seen.controller, "programs"):
        return
    if refused := list(map(str, at(seen.controller, "refused") or ())):
        mend = by_hand(
            "",
            "name in .gitignore what hosts need not get, take it out of the folder, or make it "
            "readable: as the launch says it above",
        )
        yield Match((), mend, how="refused", said="; ".join(refused))
    for remark in map(str, at(seen.controller, "remarks") or ()):
        put_right = by_hand("", "put that right, or do without")
        yield Match((), put_right, severity="warning", how="remark", said=remark)
    if growing := list(map(str, at(seen.controller, "growing") or ())):
        wait = by_hand(
            "",
            "wait until {names} is written, or name it in .gitignore: `fuser -v {names}` shows "
            "who writes",
            names=joined(" ", growing[:_SHOWN]),
        )
        names = first_listed(map(shown_name, growing))
        yield Match((), wait, severity="warning", how="growing", names=names)


def _links(seen: Examination) -> Iterator[Match]:
    """Links of the folder that a program of it could not open on a host."""
    near = set(map(str, at(seen.controller, "links") or ()))
    dead = [str(each) for each in at(seen.controller, "dead_links") or ()
            if str(each).partition(" -> ")[0] in near]  # fmt: skip
    if dead:
        yield _dead(dead, "there", ())
    sent = at(seen.controller, "sent_links") or ()
    for target, name in mapping(at(seen.controller, "asks", "links")).items():
        lost = [host for host, own in told_of(seen, "files", target).items()
                if own["kind"] == "missing"
                # What can be made there is made by whoever writes.
                and mapping(told_of(seen, "writes", target).get(host)).get("problem")]  # fmt: skip
        if lost and name in sent:
            yield _dead([f"{name} -> {target}"], f"on {listed(lost)}, nor here", lost)


def _dead(links: list[str], where: str, hosts: list[str] | tuple[()]) -> Match:
    names = [each.partition(" -> ")[0] for each in links]
    remove = by_hand(
        "",
        "rm {names}    in the program's folder; or have it lead to what is in that folder",
        names=joined(" ", names[:_SHOWN]),
    )
    shown = first_listed(map(shown_name, links))
    return Match(hosts, remove, severity="warning", how="link", names=shown, where=where)


def _pointers(seen: Examination) -> Iterator[Match]:
    pointers = list(map(str, at(seen.controller, "pointers") or ()))
    named = [each for each in pointers if each in (at(seen.controller, "named") or ())]
    others = [each for each in pointers if each not in named]
    severities: tuple[Severity, ...] = ("error", "warning")
    for severity, names in zip(severities, (named, others), strict=True):
        if names:
            pull = by_hand(
                "",
                "git lfs install && git lfs pull    in the program's folder; git-lfs is a package "
                "of that name",
            )
            shown = first_listed(map(shown_name, names))
            yield Match((), pull, severity=severity, how="pointer", names=shown)


def _minor(version: object) -> int:
    found = re.match(r"3\.(\d+)", str(version))
    return int(found[1]) if found else 0


def _put_right(how: str, names: list[str]) -> Iterator[Fix]:
    for each in names[:_SHOWN]:
        if how == "special":
            yield by_hand("", "rm {name}", name=each.rpartition(" (")[0])
        else:
            yield by_hand("", "{line}", line=_renamed(None, each))


CHECKS = (program_odd, data_odd)
