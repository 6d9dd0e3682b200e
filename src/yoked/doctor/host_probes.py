"""An agent on each host, and what it says of its host, all of it at the same time."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from yoked.doctor.afterwards import enders_of, with_ender
from yoked.doctor.dials import RENDEZVOUS_PORT
from yoked.doctor.package_asks import with_asks
from yoked.doctor.profile import ProbeProfile
from yoked.doctor.rank_probes import KILLED, How, RankProbe, SilentHostError
from yoked.doctor.sshfailure import lost
from yoked.doctor.sshinside import SLOW_S, heard, with_reason
from yoked.doctor.sshtry import reached, seen_by
from yoked.doctor.watch import Sight, look_at, with_changes
from yoked.doctor.which_python import python_of
from yoked.errors import HostError, YokedError
from yoked.fleet.model import HERE, Fleet, Host
from yoked.records.examination import HostSeen, Need, SshFailure
from yoked.records.rules import reread
from yoked.records.torch_rules import TORCH
from yoked.remote.client import AgentClient, Part, RemoteBug
from yoked.remote.connect import connect_host

_CALL_S = 5.0
# How long ssh may take, and an answer beyond what it tells of.
_PATIENCE_S, _SLACK_S = 4, 1.0
# Until Gloo's library is loaded: from a cold disk it is half a gigabyte.
LOAD_S = 12.0
# How long all of torch waits for a small world, which the cores are needed for.
_HEAD_START_S = 0.4
_CLOSE_S = 0.5
# What an agent answers that can start no thread.
_NO_THREAD = "host-exhausted"
# The last look is answered at once, or tells nothing.
_LAST_S = 2.0
# A Python that has said nothing for so long does not start; and how long its agent may try to find
# out why one fails, which takes an import of torch or two for each try.
_STUCK_S, _CULPRITS_S, _FILES_S = 8.0, 40.0, 13.0
# Variables that Python or torch acts upon when it is imported; and how long that is waited for
# where one host alone has such a one.
_ACTED_UPON, _SUSPECT_S = re.compile("(PY)?TORCH|KINETO|PYTHON(?!UNBUF|DONT|IOENC|UTF8|HASH)"), 6.0
# As long as one of the acts may hang that yoked.probe.acts tries, and a bit.
_ACTS_S = 2.5
_TORCH_KEYS = (
    "python", "python_version", "torch", "torch_path", "numpy", "headers", "build", "cuda_build",
    "gloo", "nccl", "cuda_available", "imported", "error", "no_base", "took_s",
)  # fmt: skip


class HostProbe:
    """A host that was reached. What it is asked is answered while other things are done.

    interfaces: as the agent's call of this name tells them; interfaces_later: at the end of the
    look. trials: those that have begun. is_lent: the agent is somebody else's, and stays.
    """

    def __init__(
        self, host: Host, client: AgentClient, connect_s: float, *, is_lent: bool = False
    ) -> None:
        self._is_lent = is_lent
        self._began_s = time.monotonic()
        self.host, self.client, self.connect_s = host, client, connect_s
        self.interfaces: list[Mapping[str, Any]] = []
        self.interfaces_later: list[Mapping[str, Any]] = []
        self.trials: dict[How, RankProbe] = {}
        self._silent = False
        self._modules: Sequence[str] = ()
        self._unanswered: dict[str, str] = {}
        self._refused: YokedError | None = None
        self._culprits: Mapping[str, Any] | None = None
        self._start_files: dict[str, Mapping[str, Any]] = {}
        self._last: Sight | None = None
        self._left_alone: Mapping[str, Any] = {}
        self._enders: Mapping[str, Any] = {}
        self._line = ThreadPoolExecutor(max_workers=1)
        self._waiting: dict[str, Future[Any]] = {}

    def begin(self, need: Need, profile: ProbeProfile) -> None:
        """Ask for what does not depend on other hosts; returns with the interfaces alone.

        One after the other, and nothing with a large answer: a way that lets no large packet
        through holds up ssh as well, and with it all that comes after.
        """
        self.interfaces = self.ask("interfaces") or []
        # What takes longest is asked first.
        self._ask_later("python", self._begin_trial, need, profile)
        self._ask_later("facts", self.ask, "facts")
        files = "leave" if profile.looks_twice else None
        self._ask_later("sight", look_at, self.call, files, _CALL_S)
        if profile.looks_twice:
            # For as long as possible.
            self._ask_later("left", self.ask, "left_alone", do="begin", sources=profile.sources)

    def begin_health(
        self, names: Sequence[str], addresses: Sequence[str], profile: ProbeProfile
    ) -> None:
        """Ask for what the host could be suffering from, now that it has dialled: names to resolve,
        addresses of the others.
        """
        limit_s = 2.5 if profile.looks_twice else 1.0
        self._ask_later(
            *("health", self._ask_health, profile.asks),
            timeout_s=limit_s + _SLACK_S,
            limit_s=limit_s,
            names=names,
            addresses=addresses,
            ports=[RENDEZVOUS_PORT],
            sudo=profile.sudo,
        )
        if profile.looks_twice:
            # Behind what measures: these take a tenth of a second of a core.
            self._ask_later("acts", self._begin_acts, profile.standard)
            self._ask_later("launch", self.ask, "small_launch", timeout_s=_FILES_S)

    def _ask_health(self, asks: Mapping[str, Sequence[str]], **args: Any) -> Any:
        python = self._waiting["python"].result().get("python")
        asks = with_asks(asks, self.trials.get("connect"))
        wanted = {**asks, "pythons": [python] if python else []} if asks else None
        return self.ask("health", asks=wanted, **args)

    def _ask_later(self, what: str, act: Callable[..., Any], *args: object, **more: object) -> None:
        self._waiting[what] = self._line.submit(act, *args, **more)

    def ask(self, name: str, *, timeout_s: float = _CALL_S, **args: Any) -> Any:
        """What a call answers; None where nothing comes, or a failure does: that is noted."""
        try:
            return self.call(name, timeout_s=timeout_s, **args)
        except YokedError as problem:
            self._unanswered[name] = problem.what.removeprefix(f"{self.host.name}: ")
            self._refused = problem if problem.code == _NO_THREAD else self._refused
            return None

    def call(self, name: str, *, data: bytes = b"", timeout_s: float = _CALL_S, **args: Any) -> Any:
        """The result of a call. A host that once let one run out without a word is not waited
        for again. Raises HostError, also where its agent met what nobody foresaw.
        """
        self._require_voice()
        asked_s = time.monotonic()
        try:
            return self.client.call(name, data=data, timeout_s=timeout_s, **args)
        except RemoteBug as problem:
            raise HostError(problem.what.removeprefix("on ")) from problem
        finally:
            waited_s = time.monotonic() - asked_s
            self._silent |= waited_s >= timeout_s and self.client.heard_s < asked_s

    def stream(
        self, name: str, *, data: bytes = b"", timeout_s: float | None = None, **args: Any
    ) -> Iterator[Part]:
        """The parts of an answer. Raises HostError."""
        self._require_voice()
        parts = self.client.stream(name, data=data, timeout_s=timeout_s, **args)
        try:
            yield from parts
        except RemoteBug as problem:
            raise HostError(problem.what.removeprefix("on ")) from problem

    def _require_voice(self) -> None:
        if self._silent:
            name = self.host.name
            raise SilentHostError(f"{name} fell silent", fix=f"ssh {name} uptime")

    @property
    def found_facts(self) -> Mapping[str, Any]:
        """Its facts, once they are there; none where it does not answer."""
        return self._waiting["facts"].result() or {}

    @property
    def variables(self) -> set[str]:
        """Those of its environment, each with its value."""
        told = (self._waiting["health"].result() or {}).get("environment") or {}
        return {f"{name}={value}" for name, value in told.items()}

    @property
    def found_python(self) -> str | None:
        """The interpreter whose trials have begun; None: there is none."""
        found = self._waiting["python"].result().get("python")
        return found if self.trials else None

    def await_loaded(self, until_s: float) -> str | None:
        """The interpreter, when its first trial has loaded what it needs; None: it could not."""
        python = self.found_python
        if python is None:
            return None
        told = self.trials["connect"].await_any("ready", "failed", until_s=until_s)
        return python if told else None

    def begin_training(self, python: str) -> None:
        """Import all of torch."""
        self.trials["train"] = RankProbe(self, python, "train", self._modules)

    def await_acts(self) -> None:
        """Wait for what programs do first, which is tried since its health is known."""
        self._waiting["acts"].result()
        if (trial := self.trials.get("acts")) is not None:
            trial.await_any("ended", "failed", until_s=time.monotonic() + _ACTS_S)

    def find_culprits(self) -> None:
        """Have the agent find out what keeps the interpreter from working, where it does not, and
        what of a start file prints, or takes long, where that is so.
        """
        for proof, is_so in (("prints", self.client.noise), ("soon", self.connect_s > SLOW_S)):
            if is_so and (told := self.ask("start_files", proofs=[proof], timeout_s=_FILES_S)):
                self._start_files[proof] = told
        broken = self._broken()
        said = "" if broken is None else str(broken.failed)
        # What the kernel killed for its size would be killed again.
        if said.endswith(KILLED):
            return
        if broken is not None or (self._silent_s() or 0.0) > _STUCK_S:
            self._culprits = self.ask(
                "culprits",
                timeout_s=_CULPRITS_S + _SLACK_S,
                python=self._waiting["python"].result()["python"],
                said=said,
                limit_s=_CULPRITS_S,
            )

    def _silent_s(self) -> float | None:
        """For how long its Python has not begun; None: it has, or there is none."""
        silent = [each.silent_s for each in self.trials.values()]
        known = [each for each in silent if each is not None]
        return max(known) if known and len(known) == len(silent) else None

    def _broken(self) -> RankProbe | None:
        """A trial that failed before it was ready; the one that imports all says most."""
        order: tuple[How, ...] = ("train", "connect", "versions")
        trials = (self.trials[how] for how in order if how in self.trials)
        return next((each for each in trials if each.is_broken), None)

    def seen(self) -> HostSeen:
        """The record of this probe, once all has been answered."""
        health = dict(self._waiting["health"].result() or {})
        if health:
            shell = health.get("shell") or {}
            health["shell"] = heard(shell, self.client.noise, self._start_files)
        failure = self._failure(health)
        first: Sight | None = self._waiting["sight"].result()
        if first is not None and self._last is not None:
            health = with_changes(health, first, self._last)
        if "launch" in self._waiting and (launch := self._waiting["launch"].result()):
            health["launch"] = launch
        if self._left_alone:
            health["left_alone"] = self._left_alone
        odd = list(self.client.odd)
        torch = reread(TORCH, "torch", self._torch(), odd, None)
        if gone := [each.failed for each in self.trials.values() if each.is_lost and each.failed]:
            self._unanswered["trial"] = gone[0].removeprefix(f"{self.host.name}: ")
        if self._unanswered:
            health["untold"] = {**(health.get("untold") or {}), **self._unanswered}
        return HostSeen(
            name=self.host.name,
            wanted=dataclasses.asdict(self.host),
            failure=failure,
            connect_s=self.connect_s,
            clock_offset_s=None if first is None else first.offset_s,
            clock_error_s=None if first is None else first.error_s,
            facts=self.found_facts,
            interfaces=tuple(self.interfaces),
            interfaces_later=tuple(self.interfaces_later),
            health=health,
            torch=torch,
            odd=tuple(dict.fromkeys(odd)),
        )

    def _failure(self, health: Mapping[str, Any]) -> SshFailure | None:
        """Why nothing that was seen counts; None: it does."""
        if self.client.ended_s is not None:
            after_s = self.client.ended_s - self._began_s
            return with_ender(lost(self.client.why_ended(), after_s), self._enders)
        # Facts and interfaces are asked first; who is suspended after them says no more.
        if health or self.found_python:
            return None
        if self._refused is not None:
            what = self._refused.what.removeprefix(f"{self.host.name}: ")
            said = f"its agent came up, and says: {what}"
            cause = "no-threads" if "seccomp" in str(self._refused.params["why"]) else _NO_THREAD
            return SshFailure("python", said, tuple(self._refused.fix), cause=cause)
        return SshFailure("timeout", "its agent came up, and then fell silent", cause="silent")

    def end_trials(self) -> None:
        """End the ranks that run there."""
        for trial in list(self.trials.values()):
            trial.go(None)

    def close(self) -> None:
        """End what runs there for us."""
        self.end_trials()
        if not self._is_lent:
            self.client.close(_CLOSE_S)
        self._line.shutdown()

    def look_again(self) -> None:
        """See what has changed there since the beginning."""
        self._last = look_at(self.call, "look", _LAST_S)
        # Links and addresses too; who does not answer now has told the rest.
        with contextlib.suppress(YokedError):
            self.interfaces_later = self.call("interfaces", timeout_s=_LAST_S)
            self._left_alone = self.call("left_alone", do="end", timeout_s=_LAST_S)

    def ask_after(self, agent: Callable[[Host, int], AgentClient]) -> None:
        """Where its connection has ended, see by another agent what may have done that."""
        if self.client.ended_s is not None:
            self._enders = enders_of(lambda: agent(self.host, _PATIENCE_S))

    def _begin_trial(self, need: Need, profile: ProbeProfile) -> dict[str, Any]:
        """The interpreter that would train, and its first trial; or why there is none."""
        found = python_of(self.host, need, self.ask, self.call)
        self._modules = profile.modules
        if "error" not in found:
            self.trials[profile.how] = RankProbe(self, found["python"], profile.how, self._modules)
        return found

    def _begin_acts(self, modules: Sequence[str]) -> None:
        """Have that interpreter try what programs do first, with imports of its own modules."""
        if (python := self.found_python) is not None:
            self.trials["acts"] = RankProbe(self, python, "acts", modules)

    def _torch(self) -> dict[str, Any]:
        """What the interpreter that would train says; see `yoked.doctor.examine`."""
        found: dict[str, Any] = dict.fromkeys(_TORCH_KEYS)
        found.update(self._waiting["python"].result())
        for trial in list(self.trials.values()):
            found.update(trial.has)
        if (broken := self._broken()) is not None:
            found.update(error=broken.failed, imported=False, blame=dict(broken.blame))
        else:
            training = self.trials.get("train") or self.trials.get("versions")
            if training is not None and training.failed is not None and not training.is_lost:
                # What the way has come to is no word of torch's; a rank that fails in its world has
                # imported it.
                found.update(error=training.failed)
            if (silent_s := self._silent_s()) is not None:
                found.update(silent_s=silent_s)
        if self._culprits is not None:
            found.update(culprits=self._culprits)
        return found


# Gives the agent of a host by its name; whoever lends it closes it. Raises why there is none.
Lend = Callable[[str], AgentClient]


class HostProbes:
    """An agent on each host of a fleet at once. Close it to end them."""

    def __init__(
        self,
        fleet: Fleet,
        need: Need,
        profile: ProbeProfile,
        say: Callable[[str], None],
        lend: Lend | None = None,
    ) -> None:
        self._lend = lend
        self._fleet, self._need, self._profile, self._say = fleet, need, profile, say
        self._pool = ThreadPoolExecutor(max_workers=len(fleet.hosts) + 1)
        self._closed = False
        self._training: Future[None] | None = None
        self.world_is_over = threading.Event()
        self.here: dict[str, HostProbe] = {}
        self.failures: dict[str, SshFailure] = {}

    def begin(self) -> None:
        """Return when each host has an agent, and has told its interfaces, or failed."""
        list(self._pool.map(self._probe, self._fleet.hosts))
        self._ask_others()
        # In the order of the file, not of arrival.
        self.here = {
            each.name: self.here[each.name] for each in self._fleet.hosts if each.name in self.here
        }

    def _ask_others(self) -> None:
        """Have a host that is here look at those that ssh does not reach from here."""
        by = next((each for name, each in self.here.items() if name != HERE), None)
        if by is None:
            return
        config = self._fleet.ssh_file

        def look(name: str) -> None:
            told = self.failures[name]
            self.failures[name] = seen_by(told, name, config, by.host.name, by.client)

        list(self._pool.map(look, list(self.failures)))

    def begin_training(self) -> None:
        """Have all hosts import all of torch, once each has loaded what a small world needs.

        That world comes first, where there is one: `world_is_over` says that it was.
        """

        def begin() -> None:
            until_s = time.monotonic() + LOAD_S
            pythons = {name: probe.await_loaded(until_s) for name, probe in self.here.items()}
            self.world_is_over.wait(_HEAD_START_S)
            for name, python in pythons.items():
                if python is not None and not self._closed:
                    self.here[name].begin_training(python)

        if self._profile.how == "connect":
            self._training = self._pool.submit(begin)

    def trainings(self) -> dict[str, RankProbe]:
        """The trials that import all of torch, once they have begun."""
        if self._training is not None:
            self._training.result()
        found = {name: probe.trials.get("train") for name, probe in self.here.items()}
        return {name: trial for name, trial in found.items() if trial is not None}

    def await_suspects(self) -> None:
        """Wait for imports of torch where a variable is set that could keep one from working."""
        until_s = time.monotonic() + _SUSPECT_S
        told = {name: each.variables for name, each in self.here.items()}
        for name, trial in self.trainings().items():
            others = [own for other, own in told.items() if other != name]
            odd = [each for each in told[name] if not all(each in own for own in others)]
            if any(map(_ACTED_UPON.match, odd)):
                trial.await_any("ready", "failed", until_s=until_s)

    def begin_health(self, addresses: Mapping[str, Sequence[str]]) -> None:
        """Ask all that are here for their health. addresses: of each host, by its name."""
        names = [name for each in self._fleet.hosts if (name := each.bare_name) is not None]
        for probe in self.here.values():
            others = [
                address
                for name, own in addresses.items()
                if name != probe.host.name
                for address in own
            ]
            probe.begin_health(names, others, self._profile)

    def await_acts(self) -> None:
        """Wait for what programs do first on all hosts."""
        list(self._pool.map(HostProbe.await_acts, self.here.values()))

    def await_versions(self, until_s: float) -> None:
        """Wait for trials that tell versions alone."""
        for probe in self.here.values():
            if probe.found_python is not None:
                probe.trials["versions"].await_any("ended", "failed", until_s=until_s)

    def seen(self, host: Host) -> HostSeen:
        """The record of a host, once all has been answered."""
        if host.name not in self.here:
            return HostSeen(host.name, dataclasses.asdict(host), self.failures[host.name])
        return with_reason(self.here[host.name].seen(), self._fleet.ssh_file)

    def find_culprits(self) -> None:
        """Have the hosts whose interpreter fails find out why, at the same time."""
        list(self._pool.map(HostProbe.find_culprits, self.here.values()))

    def end_trials(self) -> None:
        """End the ranks that run on all hosts."""
        list(self._pool.map(HostProbe.end_trials, self.here.values()))

    def look_again(self) -> None:
        """See what has changed on the hosts since the beginning, where there was time for it."""
        if self._profile.looks_twice:
            list(self._pool.map(HostProbe.look_again, self.here.values()))
            list(self._pool.map(lambda each: each.ask_after(self._agent), self.here.values()))

    def close(self) -> None:
        """End all probes, that of a host that is only arriving too."""
        self._closed = True
        # What ended the look is told, and not that ending it failed as well.
        with contextlib.suppress(OSError, RuntimeError, YokedError):
            list(self._pool.map(HostProbe.close, self.here.values()))
        self._pool.shutdown(cancel_futures=True)

    def _probe(self, host: Host) -> None:
        began_s = time.monotonic()
        client = reached(host, self._agent, _PATIENCE_S, self._fleet.ssh_file)
        if isinstance(client, SshFailure):
            self.failures[host.name] = client
            self._say(f"{host.name}: {client.text}")
            return
        probe = HostProbe(host, client, time.monotonic() - began_s, is_lent=self._lend is not None)
        if self._closed:
            probe.close()
            return
        probe.begin(self._need, self._profile)
        self.here[host.name] = probe

    def _agent(self, host: Host, patience_s: int) -> AgentClient:
        if self._lend is not None:
            return self._lend(host.name)
        # The quick form goes over the connection that other commands have.
        shared = not self._profile.looks_twice
        return connect_host(host, self._fleet.ssh_file, patience_s=patience_s, shared=shared)
