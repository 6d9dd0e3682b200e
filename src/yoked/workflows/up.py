"""The steps of `yoked up`: from ssh names to a fleet that trains, and what that will bring."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol

from yoked.console import HostsProgress
from yoked.core.fs import backup_name
from yoked.doctor import render
from yoked.doctor.fixing import FixPlan, plan_fixes
from yoked.doctor.judge import Examiner, Seen, Status
from yoked.doctor.mending import Mended, mend
from yoked.errors import HostError, YokedError
from yoked.fleet.file import load_fleet
from yoked.fleet.model import HERE, Fleet, Host
from yoked.launch.hosts import require_all
from yoked.launch.install import HostEnvironment, InstallOptions, InstallPlan
from yoked.launch.requirements import train_requirements
from yoked.plan.explain import Target
from yoked.plan.explain import verdict as plan_verdict
from yoked.plan.search import Plan, make_plan
from yoked.probe.store import load_newest
from yoked.records.examination import Finding
from yoked.records.measurement import Measurement
from yoked.train.config import TrainConfig
from yoked.units import plural
from yoked.workflows.environments import Found, Planned, check_all, make_all, plan_all
from yoked.workflows.found_fleet import look_at, wanted_fleet
from yoked.workflows.looks import reach_quietly
from yoked.workflows.need import need_of
from yoked.workflows.passed import forget_passed, note_passed
from yoked.workflows.planning import measured_devices, plan_request, resolve_run
from yoked.workflows.probe_job import ProbeRequest, probe_fleet
from yoked.workflows.steps import Ask, Command, Standing, Step

# Of `yoked probe`: a model that every machine measures in seconds.
_PROBE_DEPTH = 4
_COLLECTIVES_S = 6.0


class Screen(Protocol):
    """Where it is shown what goes on."""

    progress: HostsProgress

    def status(self) -> AbstractContextManager[Status]:
        """One line that tells what is being done."""
        ...

    def say(self, line: str) -> None:
        """A line that stays."""
        ...


@dataclass(frozen=True)
class Site:
    """What is to be set up. names: hosts; none: those of the file, or this machine. path: the
    fleet's file; depth: of the model that is to be trained; None: the devices decide.
    """

    names: tuple[str, ...]
    path: Path
    ssh_config: Path | None
    depth: int | None
    sudo: bool
    screen: Screen

    @property
    def fleet(self) -> Fleet:
        """The fleet of the file, where it is of these hosts; else the hosts as they are named.

        Raises FleetError for a file with flaws, and UsageError for names that are none.
        """
        there = load_fleet(self.path) if self.path.is_file() else None
        if there is not None and self._is_meant(there):
            return there
        if there is None and self.is_alone:
            return Fleet("here", (Host(HERE),), self.path.absolute())
        return self.wanted

    @property
    def wanted(self) -> Fleet:
        """The hosts as they are named. Raises as `fleet` does."""
        return wanted_fleet(self.names, self.path, self.ssh_config, None)

    @property
    def is_alone(self) -> bool:
        """Whether this machine is all that is meant, and no file says otherwise."""
        return not self.path.is_file() and self.names in ((), (HERE,))

    def _is_meant(self, there: Fleet) -> bool:
        written = tuple(host.name for host in there.hosts)
        ssh_config = there.ssh_config if self.ssh_config is None else self.ssh_config.absolute()
        # The first has rank 0.
        return (self.names or written) == written and ssh_config == there.ssh_config

    @property
    def config(self) -> TrainConfig:
        """The run that is to be trained."""
        return TrainConfig(depth=self.depth)


def steps_of(site: Site) -> tuple[tuple[Step, ...], Step, PlanStep]:
    """All steps in their order, the one that mends what keeps another from being done, and the
    last, which has the plan.
    """
    plan = PlanStep(site)
    doctor = DoctorStep(site)
    # What was mended early is among what was mended.
    early = DoctorStep(site, early=True, fixed=doctor.fixed)
    steps: tuple[Step, ...] = (
        SshStep(site),
        InitStep(site),
        InstallStep(site),
        doctor,
        ProbeStep(site),
        plan,
    )
    return steps, early, plan


@dataclass
class SshStep:
    """Every host lets this machine in."""

    site: Site
    name: str = "ssh"
    purpose: str = "reach every host by ssh"

    def check(self) -> Standing:
        """Try them all. Raises HostError that names each host without an agent."""
        fleet = self.site.fleet
        with self.site.screen.status(), reach_quietly(fleet) as hosts:
            require_all(hosts.unreachable)
        many = plural(len(fleet.hosts), "host")
        return Standing("done", f"{many} reached: {', '.join(host.name for host in fleet.hosts)}")

    def act(self, ask: Ask) -> bool:
        """There is nothing to do here: how a host lets us in is for the doctor and for hands."""
        del ask
        return True


@dataclass
class InitStep:
    """The fleet's file names the hosts, and interfaces that were proved with traffic."""

    site: Site
    name: str = "init"
    purpose: str = "find out how the hosts reach each other, and write the fleet's file"

    def check(self) -> Standing:
        """Whether the file is of these hosts, and complete."""
        site, path = self.site, self.site.path
        if site.is_alone:
            return Standing("done", "this machine alone, which needs no fleet's file")
        if not path.is_file():
            return Standing("due", f"write {path} for {', '.join(site.names)}")
        fleet, there, kept = site.fleet, load_fleet(path), backup_name(path)
        if fleet != there:
            old = ", ".join(host.name for host in there.hosts)
            return Standing("due", f"replace {path}, which is of {old} and stays as {kept}")
        if len(fleet.hosts) > 1 and any(host.interface is None for host in fleet.hosts):
            return Standing("due", f"find the interfaces of {path}'s hosts; it stays as {kept}")
        return Standing("done", f"{path} has {plural(len(fleet.hosts), 'host')}")

    def act(self, ask: Ask) -> bool:
        """Look at the hosts, show what was found, write the file. Raises HostError."""
        # One that another command writes meanwhile is not to be replaced without a word.
        was_there = self.site.path.is_file()
        with self.site.screen.status() as status:
            status.show("who reaches whom, and how fast")
            found = look_at(self.site.wanted)
        lines = [f"{name}: {comment}" for name, comment in found.comments.items()]
        if not ask([*lines, self.check().said]):
            return False
        found.write(force=was_there)
        return True


@dataclass
class InstallStep:
    """Every host has an environment with the versions that are here."""

    site: Site
    name: str = "install"
    purpose: str = "have an environment with torch on every host"
    planned: Planned = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def check(self) -> Standing:
        """What trains on each host, or how much would have to come. Raises HostError."""
        fleet, requirements = self.site.fleet, train_requirements()
        self.notes = []
        with self.site.screen.status() as status, reach_quietly(fleet) as hosts:
            status.show("what trains on each host")
            found = check_all(hosts, requirements)
            if all(_trains(each) for each in found.values()):
                said = f"{plural(len(found), 'host')} can train with the versions that are here"
                note_passed(fleet, self.name, said)
                return Standing("done", said, facts={"hosts": _environment_facts(found)})
            status.show("how much the hosts need")
            # One that is there and does not fit is broken, and made anew.
            wishes = InstallOptions(requirements, anew=True)
            planned = plan_all(hosts, wishes, self.notes.append)
        self.planned = {
            name: each if _trains(each) else planned[name] for name, each in found.items()
        }
        _require_no_failure(self.planned)
        return self._due()

    def _due(self) -> Standing:
        due = [each for each in self.planned.values() if isinstance(each, InstallPlan)]
        facts = {"hosts": [_plan_facts(each) for each in due]}
        if due:
            said = f"make an environment on {', '.join(each.host for each in due)}"
            lines = (*self.notes, *(line for each in due for line in each.lines))
            flags = "".join(f" --host {each.host}" for each in due)
            command = Command("", f"yoked install{flags}{self.site.fleet.flag}")
            return Standing("due", said, lines, (command,), facts=facts)
        bare = [name for name, each in self.planned.items() if not _trains(each)]
        words = f"give the `python` of {', '.join(bare)} in {self.site.path} a torch, or remove it"
        return Standing("hands", words, (words,), (Command("", words, by_hand=True),))

    def act(self, ask: Ask) -> bool:
        """Make them, on all hosts at once. Raises HostError."""
        due = [each for each in self.planned.values() if isinstance(each, InstallPlan)]
        lines = [*self.notes, *(line for each in due for line in each.lines)]
        if not ask([*lines, "nothing else of these hosts is changed"]):
            return False
        wishes = InstallOptions(train_requirements(), anew=True)
        screen = self.site.screen

        def say(line: str) -> None:
            screen.progress.close()
            screen.say(line)

        with reach_quietly(self.site.fleet) as hosts:
            found = make_all(hosts, self.planned, wishes, say, screen.progress)
        screen.progress.close()
        _require_no_failure(found)
        return True


def _trains(each: HostEnvironment | InstallPlan | YokedError) -> bool:
    """Whether a host needs nothing: an interpreter of a person's own may differ but in torch."""
    if not isinstance(each, HostEnvironment):
        return False
    if each.state == "named" or each.python == sys.executable:
        return not any(one.package == "torch" and not one.found for one in each.differences)
    return not each.differences


def _require_no_failure(found: Found | Planned) -> None:
    require_all({name: each for name, each in found.items() if isinstance(each, YokedError)})


def _environment_facts(found: Found) -> list[dict[str, object]]:
    return [
        {"name": name, "state": each.state, "python": each.python, "torch_build": each.torch_build}
        for name, each in found.items()
        if isinstance(each, HostEnvironment)
    ]


def _plan_facts(plan: InstallPlan) -> dict[str, object]:
    size = plan.size
    return {
        "name": plan.host,
        "python": plan.base["python"],
        "torch_build": plan.build,
        "packages": None if size is None else size.packages,
        "download_bytes": None if size is None else size.known_bytes,
        "packages_of_unknown_size": None if size is None else size.unknown,
    }


@dataclass
class DoctorStep:
    """Nothing keeps a run from working.

    early: looks quickly, and leaves what `yoked install` brings to the step that is to come.
    """

    site: Site
    early: bool = False
    name: str = "doctor"
    purpose: str = "see that nothing keeps a run from working, and mend what does"
    fixed: list[Mended] = field(default_factory=list)
    _tried: set[tuple[str, tuple[str, ...]]] = field(default_factory=set)
    _mended: Seen | None = None

    def check(self) -> Standing:
        """Look, unless mending has just done so."""
        seen, self._mended = self._mended or self._examine(self.site.fleet), None
        self._seen = seen
        errors = render.errors_of(seen.findings)
        found = tuple(render.finding_payload(each, seen.examination) for each in seen.findings)
        facts = {"fixed": [each.to_dict() for each in self.fixed]}
        if not errors:
            return self._all_well(seen, found, facts)
        if not self.early:
            forget_passed(self.site.fleet, self.name)
        able = [plan for plan in self._plans(seen) if self._is_able(plan)]
        meant = [plan.finding for plan in able] or errors
        return Standing(
            "due" if able else "hands",
            "; ".join(map(_named, meant)),
            tuple(line for each in meant for line in render.error_lines(each, seen.examination)),
            tuple(
                Command(fix.host, render.typed(fix, seen.examination), fix.by_hand, fix.root)
                for each in meant
                for fix in each.fix
            ),
            findings=found,
            facts=facts,
        )

    def act(self, ask: Ask) -> bool:
        """Mend what a line can mend, each after a yes. Raises HostError."""
        site = self.site
        seen, outcomes = mend(
            self._seen,
            self._examine,
            lambda: site.fleet,
            ask=ask,
            note=lambda outcome: site.screen.say(outcome.text),
            sudo=site.sudo,
        )
        self.fixed += outcomes
        self._tried |= {_key(each.finding) for each in outcomes if each.state != "left"}
        self._mended = seen
        return not any(each.state == "declined" for each in outcomes)

    def _examine(self, fleet: Fleet, *, quick: bool | None = None) -> Seen:
        need = need_of(None if self.site.depth is None else self.site.config)
        sudo, early = self.site.sudo, self.early
        examiner = Examiner(need, self.site.screen.status, quick=early, sudo=sudo)
        seen = examiner(fleet, quick=quick)
        if not early:
            return seen
        kept = tuple(each for each in seen.findings if not _comes_with_install(each))
        return dataclasses.replace(seen, findings=kept)

    def _plans(self, seen: Seen) -> Sequence[FixPlan]:
        return plan_fixes(seen.findings, seen.examination, sudo=self.site.sudo)

    def _is_able(self, plan: FixPlan) -> bool:
        return not plan.left and _key(plan.finding) not in self._tried

    def _all_well(
        self, seen: Seen, found: tuple[Mapping[str, object], ...], facts: Mapping[str, object]
    ) -> Standing:
        said = render.verdict(seen.fleet, seen.examination, seen.findings)
        warned = render.warnings_of(seen.findings)
        names = ", ".join(dict.fromkeys(each.check for each in warned))
        lines = (f"warnings: {names}; `yoked doctor` says more",) if warned else ()
        if not self.early:
            note_passed(self.site.fleet, self.name, "nothing is in the way of a run")
        return Standing("done", said, lines, findings=found, facts=facts)


def _named(finding: Finding) -> str:
    return f"{finding.check} on {', '.join(finding.hosts) or 'this machine'}"


def _key(finding: Finding) -> tuple[str, tuple[str, ...]]:
    return finding.check, finding.hosts


def _comes_with_install(finding: Finding) -> bool:
    return any(fix.repair == "install_torch" for fix in finding.fix)


@dataclass
class ProbeStep:
    """The network and the hosts' speed are measured."""

    site: Site
    name: str = "probe"
    purpose: str = "measure every link, and what a step costs on each host"

    def check(self) -> Standing:
        """Whether these hosts were measured with this model."""
        measurement = load_newest(self.site.fleet)
        if measurement is None:
            return Standing("due", "measure links and hosts", consent=False)
        if self.site.depth is not None and any(
            cost.model.n_layer != self.site.depth for cost in measurement.step_costs
        ):
            return Standing("due", f"measure a model of depth {self.site.depth}", consent=False)
        taken = datetime.fromtimestamp(measurement.taken_s).astimezone()
        return Standing("done", f"measured at {taken:%Y-%m-%d %H:%M}")

    def act(self, ask: Ask) -> bool:
        """Measure: nothing stays on the hosts but yoked's own cache. Raises YokedError."""
        del ask
        wanted = ProbeRequest(
            links=True,
            collectives=True,
            compute=True,
            quick=False,
            limit_s=_COLLECTIVES_S,
            model=(f"--depth={self.site.depth or _PROBE_DEPTH}",),
            device="auto",
        )
        with self.site.screen.status() as status:
            result = probe_fleet(self.site.fleet, wanted, status.show)
        if result.problem is not None:
            raise result.problem
        if result.saved_to is None:
            raise HostError("the probe did not come to an end", fix="yoked probe    says why")
        return True


@dataclass
class PlanStep:
    """What training brings here. plan, measurement, target: once it was checked."""

    site: Site
    name: str = "plan"
    purpose: str = "predict what each way of training brings"
    plan: Plan | None = None
    measurement: Measurement | None = None
    target: Target | None = None

    def check(self) -> Standing:
        """Predict. Raises YokedError where nothing was measured, or the model does not fit."""
        config, measurement = self.site.config, load_newest(self.site.fleet)
        if measurement is None:
            raise YokedError("the fleet was not measured", fix="yoked probe")
        run = resolve_run(config, measured_devices(measurement))
        plan = make_plan(plan_request(config, run), measurement)
        if plan.chosen.over_memory:
            raise YokedError(
                f"the model does not fit into the memory of {', '.join(plan.chosen.over_memory)}",
                fix="yoked up --depth N    with fewer layers",
            )
        self.plan, self.measurement = plan, measurement
        self.target = Target(run.schedule.num_iterations, {})
        return Standing("done", plan_verdict(plan))

    def act(self, ask: Ask) -> bool:
        """A plan is made by looking."""
        del ask
        return True
