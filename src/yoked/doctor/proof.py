"""The last proof: a real world over the chosen interfaces, when all dials came through.

First of Gloo's library alone, which is loaded in half a second; then, as far as time allows, of all
of torch, with tensors, on NCCL where every host trains on CUDA.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from yoked.doctor.dialling import Door
from yoked.doctor.trials import Place, Trial, run_world
from yoked.doctor.visits import LOAD_S, Visit, Visits
from yoked.records.examination import Dial, World

# After so long a look waits no more for imports of all of torch, which prove little beyond what
# is known; with GPUs everywhere NCCL's world needs them.
_IMPORT_UNTIL_S, _GPU_IMPORT_UNTIL_S = 4.0, 15.0


def prove(
    visits: Visits,
    doors: Sequence[Door],
    dials: Sequence[Dial],
    began_s: float,
    say: Callable[[str], None],
) -> World:
    """The world that was started, or why none was. began_s: when the look began."""
    until_s = began_s + (_GPU_IMPORT_UNTIL_S if _on_gpus(visits) else _IMPORT_UNTIL_S)
    here = list(visits.here.values())
    if len(here) == 1 and not visits.failures:
        # Of a fleet of one, whether torch can be imported is all there is to see.
        visits.world_is_over.set()
        _await_imports(visits, until_s)
    places = [Place(each.host, each.interface, each.address) for each in doors if each.chosen]
    if reason := _why_none(here, places, dials):
        return World(ok=None, reason=reason)
    say("starting a small world on all hosts")
    connecting = {visit.host.name: visit.trials["connect"] for visit in here}
    if failed := _unloaded(connecting, time.monotonic() + LOAD_S):
        # Importing all of torch says what is wrong with it.
        visits.world_is_over.set()
        _await_imports(visits, until_s)
        said = {failed: connecting[failed].last_words}
        return World(ok=None, said=said, reason=f"Gloo could not be loaded on {failed}")
    world = run_world(connecting, places, "gloo")
    visits.world_is_over.set()
    if not world.ok or not _await_imports(visits, until_s):
        return world
    training = visits.trainings()
    cuda = _on_gpus(visits) and all(each.has.get("cuda_available") for each in training.values())
    whole = run_world(training, places, "nccl" if cuda else "gloo")
    return dataclasses.replace(whole, took_s=(world.took_s or 0.0) + (whole.took_s or 0.0))


def _why_none(here: Sequence[Visit], places: Sequence[Place], dials: Sequence[Dial]) -> str:
    """Why no world is tried; empty: it is."""
    if len(here) < 2:
        return "fewer than two hosts answered"
    for visit in here:
        name = visit.host.name
        if all(each.host != name for each in places):
            return f"{name} has no address for it"
        if visit.found_python is None:
            return f"{name} has no torch"
    failed = next((each for each in dials if each.chosen and not each.ok), None)
    return "" if failed is None else f"{failed.source} did not come through to {failed.target}"


def _unloaded(trials: dict[str, Trial], until_s: float) -> str | None:
    """The first host whose trial did not load what it needs; None: all did."""
    for name, trial in trials.items():
        end = trial.await_any("ready", "failed", until_s=until_s)
        if end is None or "failed" in end:
            return name
    return None


def _await_imports(visits: Visits, until_s: float) -> bool:
    """Whether all of torch is loaded everywhere in time."""
    trials = visits.trainings()
    ends = [each.await_any("ready", "failed", until_s=until_s) for each in trials.values()]
    return len(ends) == len(visits.here) and all(end and "ready" in end for end in ends)


def _on_gpus(visits: Visits) -> bool:
    """Whether all hosts would train on CUDA, as far as is known by now."""
    for visit in visits.here.values():
        gpus = visit.found_facts.get("gpus") or ()
        if visit.host.device in ("cpu", "mps") or all(gpu["vendor"] != "nvidia" for gpu in gpus):
            return False
    return bool(visits.here)
