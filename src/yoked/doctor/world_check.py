"""The last proof: a real world over the chosen interfaces, when all dials came through.

First of Gloo's library alone, which is loaded in half a second; then, as far as time allows, of all
of torch, with tensors, on NCCL where every host trains on CUDA.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence

from yoked.doctor.dials import Endpoint
from yoked.doctor.host_probes import LOAD_S, HostProbe, HostProbes
from yoked.doctor.rank_probes import RankProbe, run_world
from yoked.fleet.devices import training_gpus
from yoked.records.examination import Dial, World

# After so long a look waits no more for imports of all of torch, which prove little beyond what
# is known; with GPUs everywhere NCCL's world needs them.
_IMPORT_UNTIL_S, _GPU_IMPORT_UNTIL_S = 4.0, 15.0
# On a host whose Python takes in what no other one does, it is waited for so much longer.
_ODD_IMPORT_S = 12.0
# And what is installed, which is looked at before the import, so much longer on every host.
_LOOK_S = 1.0


def check_world(
    probes: HostProbes,
    endpoints: Sequence[Endpoint],
    dials: Sequence[Dial],
    began_s: float,
    say: Callable[[str], None],
) -> World:
    """The world that was started, or why none was. began_s: when the look began."""
    until_s = began_s + (_GPU_IMPORT_UNTIL_S if _on_gpus(probes) else _IMPORT_UNTIL_S)
    here = list(probes.here.values())
    if len(here) == 1 and not probes.failures:
        # Of a fleet of one, whether torch can be imported is all there is to see.
        probes.world_is_over.set()
        _await_imports(probes, until_s)
    places = [each for each in endpoints if each.chosen]
    if reason := _why_none(here, places, dials):
        return World(ok=None, reason=reason)
    say("starting a small world on all hosts")
    connecting = {probe.host.name: probe.trials["connect"] for probe in here}
    if failed := _unloaded(connecting, time.monotonic() + LOAD_S):
        # Importing all of torch says what is wrong with it.
        probes.world_is_over.set()
        _await_imports(probes, until_s)
        said = {failed: connecting[failed].last_words}
        return World(ok=None, said=said, reason=f"Gloo could not be loaded on {failed}")
    world = run_world(connecting, places, "gloo")
    probes.world_is_over.set()
    if not world.ok or not _await_imports(probes, until_s):
        return world
    training = probes.trainings()
    cuda = _on_gpus(probes) and all(each.has.get("cuda_available") for each in training.values())
    whole = run_world(training, places, "nccl" if cuda else "gloo")
    return dataclasses.replace(whole, took_s=(world.took_s or 0.0) + (whole.took_s or 0.0))


def _why_none(here: Sequence[HostProbe], places: Sequence[Endpoint], dials: Sequence[Dial]) -> str:
    """Why no world is tried; empty: it is."""
    if len(here) < 2:
        return "fewer than two hosts answered"
    for probe in here:
        name = probe.host.name
        if all(each.host != name for each in places):
            return f"{name} has no address for it"
        if probe.found_python is None:
            return f"{name} has no torch"
    failed = next((each for each in dials if each.chosen and not each.ok), None)
    return "" if failed is None else f"{failed.source} did not come through to {failed.target}"


def _unloaded(trials: dict[str, RankProbe], until_s: float) -> str | None:
    """The first host whose trial did not load what it needs; None: all did."""
    for name, trial in trials.items():
        end = trial.await_any("ready", "failed", until_s=until_s)
        if end is None or "failed" in end:
            return name
    return None


def _await_imports(probes: HostProbes, until_s: float) -> bool:
    """Whether all of torch is loaded everywhere in time."""
    trials = probes.trainings()
    ends = {
        name: each.await_any("ready", "failed", until_s=until_s) for name, each in trials.items()
    }
    for each in trials.values():
        # What is installed there is known long before, but on a busy host.
        each.await_any("looked", "ready", "failed", until_s=until_s + _LOOK_S)
    late = {name for name, end in ends.items() if end is None}
    odd = late & _odd_ones(probes)
    for name in (late - odd) if odd else ():
        # Hosts may be virtual, and have their cores in common.
        trials[name].go(None)
    for name in odd:
        trials[name].await_any("ready", "failed", until_s=until_s + _ODD_IMPORT_S)
    return len(ends) == len(probes.here) and all(end and "ready" in end for end in ends.values())


def _odd_ones(probes: HostProbes) -> set[str]:
    """Hosts whose Python takes in a file, a plugin or a variable that not every other one does."""
    told = {name: _taken_in(probe.trials.values()) for name, probe in probes.here.items()}
    common = set.intersection(*told.values()) if told else set()
    return {name for name, own in told.items() if own - common}


def _taken_in(trials: Iterable[RankProbe]) -> set[str]:
    """What an interpreter obeys and runs by itself, as yoked.probe.interpreter tells it."""
    found: set[str] = set()
    for has in (each.has for each in trials):
        for kind, mark in (("starts", "digest"), ("plugins", "value"), ("obeys", None)):
            told = has.get(kind)
            for each in told if isinstance(told, list) else ():
                found.add(f"{kind} {each.get(mark) if isinstance(each, dict) else each}")
    return found


def _on_gpus(probes: HostProbes) -> bool:
    """Whether all hosts would train on CUDA, as far as is known by now."""
    for probe in probes.here.values():
        # For what its torch is built, nobody may have told yet.
        if not training_gpus(probe.host.device, probe.found_facts, {}):
            return False
    return bool(probes.here)
