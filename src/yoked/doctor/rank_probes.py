"""A rank of `yoked.probe.smoke_test` on each host, and what they report together; and what
`yoked.probe.acts` tries there.
"""

from __future__ import annotations

import contextlib
import functools
import json
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yoked
from yoked.channel.credentials import make_credentials
from yoked.core.parallel import at_once
from yoked.doctor.dials import Endpoint
from yoked.errors import HostError, YokedError
from yoked.fleet.discover import Agent
from yoked.records.examination import World
from yoked.remote.client import RemoteBug
from yoked.remote.ssh import NoAgentError
from yoked.text import telling

# "acts": no smoke test, but what yoked.probe.acts tries.
How = Literal["versions", "connect", "train", "acts"]
# A rank gives up by itself before it is given up. On a busy host seconds are not much, and a
# world that only takes long is no failure.
_PATIENCE_S = 5.0
_WORLD_S = 8.0
_CALL_S = 5.0
# Each after what it imports.
_CHANNEL = ("names", "tls", "frames", "carry", "peer", "hub", "dial")
_MODULES = (
    "core.torchbuild", "core.unusable", "probe.origins", "probe.own_library", "probe.interpreter",
    "parent_death", "ranks.store",
    *(f"channel.{name}" for name in _CHANNEL),
)  # fmt: skip
_OF_ACTS = ("core.mounts", "probe.folder_acts", "probe.process_acts")
_NO_SOURCES = "SOURCES: dict[str, str] = {}"
# Done, and let go of.
_WANTED_ENDS = (0, 3)
# What is said of a rank that the kernel killed, mostly for want of memory.
KILLED = "ended with signal 9"
# Whatever happens to us, nothing is left of a trial after this.
_LIMIT_S = 60.0
# Failures of the way to a host: those of what it was asked to do have other codes.
_OF_THE_WAY = ("agent-ended", "no-answer", "odd-message")


class SilentHostError(HostError):
    """A host that let a call run out before is not asked again."""


@functools.cache
def program(how: How = "train") -> str:
    """The text of the rank, and of all that it imports: nothing of ours is there yet."""
    package = Path(yoked.__file__).parent
    name, modules = ("acts", _OF_ACTS) if how == "acts" else ("smoke_test", _MODULES)
    text = (package / "probe" / f"{name}.py").read_text(encoding="utf-8")
    packages = ("yoked", "yoked.core", "yoked.probe", "yoked.ranks", "yoked.channel")
    sources = dict.fromkeys(packages, "")
    for module in modules:
        file = package.joinpath(*module.split(".")).with_suffix(".py")
        sources[f"yoked.{module}"] = file.read_text(encoding="utf-8")
    assert text.count(_NO_SOURCES) == 1
    return text.replace(_NO_SOURCES, f"SOURCES: dict[str, str] = {sources!r}")


class RankProbe:
    """One rank, which starts now. Every method may be called from any thread. modules: of which
    it tells what a program would import, or that "acts" imports.
    """

    def __init__(self, client: Agent, python: str, how: How, modules: Sequence[str] = ()) -> None:
        self._client = client
        self._name = secrets.token_hex(8)
        self._messages: list[dict[str, Any]] = []
        self._over = False
        self._began_s = time.monotonic()
        self._changed = threading.Condition()
        argv = [python, "-c", program(how), *modules, how]
        threading.Thread(target=self._follow, args=(argv,), daemon=True, name="trial").start()

    @property
    def has(self) -> dict[str, Any]:
        """What it said to have so far."""
        with self._changed:
            told = [each.get("has") for each in self._messages]
        return {name: value for has in told if isinstance(has, dict) for name, value in has.items()}

    @property
    def failed(self) -> str | None:
        """Why it failed; None: it did not."""
        found = self._find(["failed"])
        return None if found is None else str(found["failed"])

    @property
    def is_lost(self) -> bool:
        """Whether the way to it ended, or its host said no more: nothing is known of the rank."""
        return self._find(["lost"]) is not None

    @property
    def is_broken(self) -> bool:
        """Whether it failed before it had loaded what it needs, and by itself."""
        return self.failed is not None and not self.is_lost and self._find(["ready"]) is None

    @property
    def blame(self) -> Mapping[str, Any]:
        """What it said of whose fault that is, as `blame` of the smoke test tells it."""
        found = (self._find(["failed"]) or {}).get("blame")
        return found if isinstance(found, dict) else {}

    @property
    def silent_s(self) -> float | None:
        """For how long it has said nothing since it was started; None: it has said something."""
        with self._changed:
            return None if self._messages or self._over else time.monotonic() - self._began_s

    @property
    def last_words(self) -> str:
        """Why it failed, and what it was doing last."""
        doing = [each["doing"] for each in self._messages if "doing" in each]
        if self.failed:
            return f"{self.failed} ({doing[-1]})" if doing else self.failed
        return f"it was {doing[-1]}" if doing else "it said nothing"

    def await_any(self, *keys: str, until_s: float) -> dict[str, Any] | None:
        """The first message with one of these keys; None: it ended before, or time is up.

        until_s: by the monotonic clock.
        """
        with self._changed:
            while (found := self._find(keys)) is None and not self._over:
                if not self._changed.wait(until_s - time.monotonic()):
                    break
            return found or self._find(keys)

    def go(self, spec: Mapping[str, Any] | None) -> None:
        """Have it take part in a world; None: have it end."""
        # One that has ended needs no word, and its last ones are here.
        with contextlib.suppress(YokedError):
            self._client.call("trial_go", trial=self._name, spec=spec, timeout_s=_CALL_S)

    def _follow(self, argv: Sequence[str]) -> None:
        env = {
            # Ranks find our package there, and nothing that the host has there otherwise.
            "PYTHONPATH": None,
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "YOKED_DOCTOR": self._name,
        }
        try:
            for part in self._client.stream(
                "trial", timeout_s=_LIMIT_S, trial=self._name, argv=argv, env=env, limit_s=_LIMIT_S
            ):
                self._take(_message(part.content))
        except (NoAgentError, SilentHostError) as problem:
            self._take({"failed": problem.what, "lost": True})
        except YokedError as problem:
            lost = {"lost": True} if problem.code in _OF_THE_WAY else {}
            self._take({"failed": problem.what, **lost})
        except RemoteBug as problem:
            self._take({"failed": problem.what, "lost": True})
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _take(self, message: dict[str, Any]) -> None:
        with self._changed:
            self._messages.append(message)
            self._changed.notify_all()

    def _find(self, keys: Sequence[str]) -> dict[str, Any] | None:
        return next((each for each in self._messages if any(key in each for key in keys)), None)


def run_world(trials: Mapping[str, RankProbe], places: Sequence[Endpoint], backend: str) -> World:
    """Have the trials of these places, which are ready, make a world; the first has the store."""
    launch_id = secrets.token_hex(6)
    try:
        credentials = make_credentials(launch_id, len(places))
    except YokedError as problem:
        return World(ok=None, reason=problem.what)
    began_s = time.monotonic()
    until_s = began_s + _WORLD_S
    spec = {
        "world": len(places),
        "address": places[0].address,
        "backend": backend,
        "patience_s": _PATIENCE_S,
        "launch_id": launch_id,
    }

    def enter(rank: int, port: int) -> None:
        # As launch gives it to ranks.
        names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
        env = dict.fromkeys(names, places[rank].interface)
        own = {"rank": rank, "port": port, "env": env, "credentials": credentials[rank]}
        trials[places[rank].host].go({**spec, **own})

    enter(0, 0)
    opened = trials[places[0].host].await_any("port", "failed", until_s=until_s)
    if opened is not None and "port" in opened:
        at_once(lambda rank: enter(rank, opened["port"]), range(1, len(places)))
    ends = {
        place.host: trials[place.host].await_any("done", "failed", until_s=until_s)
        for place in places
    }
    took_s = time.monotonic() - began_s
    if all(end is not None and "done" in end for end in ends.values()):
        return World(ok=True, took_s=took_s)
    return World(
        ok=False,
        took_s=took_s,
        said={
            host: "it came through" if end and "done" in end else trials[host].last_words
            for host, end in ends.items()
        },
        reason=f"a world of {backend} over the chosen interfaces did not come about",
    )


def _message(content: Mapping[str, Any]) -> dict[str, Any]:
    """What a part of a trial's answer means."""
    if content.get("end") is not None:
        return _end(content["end"])
    try:
        found = json.loads(content.get("line") or "")
    except (ValueError, RecursionError):
        # A library's own words.
        return {}
    return found if isinstance(found, dict) else {}


def _end(end: Mapping[str, Any]) -> dict[str, Any]:
    """What the end of a rank means, unless it has said so itself."""
    if end["exit_status"] in _WANTED_ENDS:
        return {"ended": True}
    if end["late"]:
        return {"failed": f"no end in {_LIMIT_S:g} s"}
    how = f"signal {end['signal']}" if end["signal"] else f"status {end['exit_status']}"
    return {"failed": telling(end["stderr"]) or f"the interpreter ended with {how}"}
