"""Faults: what goes wrong with machines and networks, on purpose, each with its undo.

`apply` brings one about, `heal` undoes, `active` lists. A fault is written down before it is
brought about, so that one that a crash left half done can still be healed.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from yoked.errors import LabError, UsageError, YokedError
from yoked.lab.faults.base import ActiveFault, Fault, FaultContext, Kind
from yoked.lab.faults.changes import FILES
from yoked.lab.faults.distributions import DISTRIBUTIONS
from yoked.lab.faults.links import CABLES
from yoked.lab.faults.login import LOGIN
from yoked.lab.faults.machine import MACHINE
from yoked.lab.faults.mounts import STORAGE
from yoked.lab.faults.names import NAMES
from yoked.lab.faults.network import NETWORK
from yoked.lab.faults.rules import FIREWALLS
from yoked.lab.faults.store import Store
from yoked.lab.topology import hint

if TYPE_CHECKING:
    from yoked.lab.lab import Lab

__all__ = [
    "FAULTS",
    "ActiveFault",
    "Fault",
    "Kind",
    "active",
    "after_start",
    "apply",
    "heal",
    "kind_named",
]

# In the order in which `lab fault --list` has them.
FAULTS = (
    *(*CABLES, *NETWORK, *FIREWALLS, *DISTRIBUTIONS, *NAMES),
    *(*LOGIN, *MACHINE, *STORAGE, *FILES),
)


def kind_named(name: str) -> Kind:
    """The kind of that name. Raises UsageError with the nearest."""
    for kind in FAULTS:
        if name == kind.name:
            return kind
    raise UsageError(
        f"there is no fault {name!r}", fix=hint(name, [kind.name for kind in FAULTS], "faults")
    )


def active(lab: Lab) -> list[ActiveFault]:
    """The faults that the lab has, oldest first."""
    return list(Store(lab.folder).read().faults.values())


def apply(lab: Lab, kind: str, args: Sequence[str], *, seed: int | None = None) -> ActiveFault:
    """Bring a fault about.

    seed: decides what is left to chance (which file differs). Raises UsageError for words that
    cannot be meant, LabError where it cannot be done or is done already; then nothing is changed.
    """
    fault = kind_named(kind).parse(lab, args)
    if reason := fault.kind.unsupported(lab):
        raise LabError(f"{kind} cannot be done here: {reason}")
    store = Store(lab.folder)
    _require_hosts(lab, fault)
    entry = _begin(lab, store, fault, args)
    context = _context(lab, store, entry, random.Random(seed))
    try:
        fault.apply(context)
    except BaseException:
        with contextlib.suppress(YokedError, OSError):
            _undo(lab, store, entry)
        raise
    entry = replace(entry, state="active", record=context.record, text=context.text or entry.text)
    with store.change() as book:
        if fault.has("IS_OVER"):
            del book.faults[entry.id]
        else:
            book.faults[entry.id] = entry
    if fault.has("BOOTS") and fault.has("IS_OVER"):
        _after_starts(lab, fault.hosts)
    return entry


def heal(lab: Lab, which: Iterable[str] | None = None) -> list[ActiveFault]:
    """Undo faults by id or by host, newest first; None: all. Returns those that were undone.

    A fault whose host is switched off and must be up for it is undone when that starts again.
    Raises UsageError for what is neither; LabError when some could not be undone (they stay
    listed, and the others are undone all the same).
    """
    store = Store(lab.folder)
    chosen = _chosen(lab, active(lab), which)
    _do_all(lab, chosen[::-1], lambda entry: _undo(lab, store, entry), "could not be healed")
    waiting = store.read().faults
    return [entry for entry in reversed(chosen) if entry.id not in waiting]


def after_start(lab: Lab, name: str) -> None:
    """Put a host that was just started in the state that its faults ask for.

    What was to be healed when it is up is healed; faults of links and settings are brought about
    again; what the power took with it (a stopped process) is forgotten. Raises LabError when some
    could not be; the others are all the same.
    """
    store = Store(lab.folder)

    def settle(entry: ActiveFault) -> None:
        fault = _fault_of(lab, entry)
        if entry.state == "healing" or fault.kind.after_boot == "gone":
            _undo(lab, store, entry)
        elif fault.kind.after_boot == "again" and all(lab.host(each).alive for each in fault.hosts):
            fault.apply(_context(lab, store, entry, random.Random()))

    concerned = [
        entry
        for entry in active(lab)
        if name in entry.hosts or kind_named(entry.kind).whole_network
    ]
    _do_all(lab, concerned, settle, f"are not as they were before the start of {name}")


def _do_all(
    lab: Lab, entries: Sequence[ActiveFault], act: Callable[[ActiveFault], None], failure: str
) -> None:
    """Do the same with each fault; raises one LabError at the end for all that fail."""
    problems: list[tuple[str, YokedError]] = []
    for entry in entries:
        try:
            act(entry)
        except YokedError as problem:
            problems.append((entry.id, problem))
        except OSError as problem:
            problems.append((entry.id, LabError(str(problem), fix=f"yoked lab down {lab.name}")))
    if problems:
        raise LabError(
            f"{len(problems)} of {len(entries)} faults {failure}: "
            + "; ".join(f"{name}: {problem.what}" for name, problem in problems),
            fix=list(dict.fromkeys(line for _, problem in problems for line in problem.fix)),
        )


def _require_hosts(lab: Lab, fault: Fault) -> None:
    """Raise LabError while hosts are not in a state for it, or for undoing it."""
    others = tuple(_fault_of(lab, each) for each in active(lab))
    context = FaultContext(lab, id="", others=others)
    for name in fault.hosts:
        if fault.has("WRITES_FILES"):
            context.writable(name)
        elif fault.has("NEEDS_HOST"):
            context.awake(name)


def _begin(lab: Lab, store: Store, fault: Fault, args: Sequence[str]) -> ActiveFault:
    """Write down that a fault is about to come, if it is not there yet."""
    with store.change() as book:
        for known in book.faults.values():
            if fault.same_as(_fault_of(lab, known)):
                raise LabError(f"that is done already: {known}", fix=f"yoked lab heal {known.id}")
        # Never one that was given before in this lab.
        book.last_number += 1
        entry = ActiveFault(
            id=f"f{book.last_number}",
            kind=fault.kind.name,
            args=tuple(args),
            hosts=fault.hosts,
            text=fault.text,
            record={},
            started_at=time.time(),
            state="starting",
        )
        book.faults[entry.id] = entry
    return entry


def _fault_of(lab: Lab, entry: ActiveFault) -> Fault:
    return kind_named(entry.kind).parse(lab, entry.args)


def _context(lab: Lab, store: Store, entry: ActiveFault, chance: random.Random) -> FaultContext:
    others = [each for each in active(lab) if each.id != entry.id]

    def save(record: dict[str, Any]) -> None:
        with store.change() as book:
            book.faults[entry.id] = replace(entry, record=record)

    return FaultContext(
        lab=lab,
        id=entry.id,
        record=dict(entry.record),
        others=tuple(_fault_of(lab, each) for each in others),
        records=tuple(each.record for each in others),
        random=chance,
        save=save,
    )


def _undo(lab: Lab, store: Store, entry: ActiveFault) -> None:
    """Undo and forget one fault, or have it undone when its hosts are up."""
    known = store.read().faults
    if entry.id not in known:
        return  # the start of its host undid it
    entry = known[entry.id]
    fault = _fault_of(lab, entry)
    if fault.has("WRITES_FILES") and not all(lab.host(name).alive for name in fault.hosts):
        with store.change() as book:
            book.faults[entry.id] = replace(entry, state="healing")
        return
    fault.undo(_context(lab, store, entry, random.Random()))
    with store.change() as book:
        book.faults.pop(entry.id, None)
    if fault.has("BOOTS"):
        _after_starts(lab, fault.hosts)


def _after_starts(lab: Lab, names: Iterable[str]) -> None:
    for name in names:
        after_start(lab, name)


def _chosen(
    lab: Lab, faults: Sequence[ActiveFault], which: Iterable[str] | None
) -> list[ActiveFault]:
    if which is None:
        return list(faults)
    asked = [which] if isinstance(which, str) else list(which)
    ids = [fault.id for fault in faults]
    for word in asked:
        if word not in ids and word not in lab.hosts:
            raise UsageError(
                f"{word!r} is neither a fault nor a host of this lab",
                fix=hint(word, [*ids, *lab.hosts], "faults and hosts"),
            )
    by_id = {word for word in asked if word in ids}
    hosts = set(asked) - by_id
    return [fault for fault in faults if fault.id in by_id or hosts & set(fault.hosts)]
