"""`yoked probe`: measure the fleet's links, collectives and processors."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from cyclopts import Group, Parameter

from yoked.cli.flags import FleetFile, JsonFlag
from yoked.cli.output import Output
from yoked.errors import UsageError, YokedError
from yoked.text import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from yoked.cli.commands.probe_text import ProbeResult
    from yoked.fleet.model import Fleet
    from yoked.launch.start import NodePlan
    from yoked.probe.links import LinkMeasurement
    from yoked.records.measurement import Measurement
    from yoked.remote.client import AgentClient
    from yoked.train.config import TrainConfig

MODEL = Group("Model", sort_key=1)
LARGEST_BYTES = 256_000_000
QUICK_LARGEST_BYTES = 16_000_000
QUICK_FRACTION = 0.3


def _model(help_text: str) -> Parameter:
    return Parameter(help=help_text, group=MODEL)


@dataclass(frozen=True)
class ModelFlags:
    """The model whose step is measured, by the flags of `yoked train`."""

    depth: Annotated[int, _model("Layers of the model; width follows.")] = 4
    aspect_ratio: Annotated[int, _model("Width is depth times this.")] = 64
    head_dim: Annotated[
        int | None, _model("Width of one attention head. Default: 64, on CUDA 128.")
    ] = None
    max_seq_len: Annotated[int | None, _model("Tokens in a row. Default: 512, on CUDA 2048.")] = (
        None
    )
    window_pattern: Annotated[
        str | None, _model("Attention windows. Default: L, on CUDA SSSL.")
    ] = None
    vocab_size: Annotated[int, _model("Tokens in the vocabulary.")] = 32_768
    device_batch_size: Annotated[
        int | None, _model("Rows of a micro-batch. Default: 2, on MPS 8, on CUDA 32.")
    ] = None
    device_type: Annotated[str, _model("Where to compute: auto, cpu, cuda or mps.")] = "auto"

    def config(self) -> TrainConfig:
        """The trainer's configuration. Raises UsageError for invalid values."""
        import dataclasses

        from yoked.train.config import TrainConfig
        from yoked.train.resolve import resolve

        config = TrainConfig(**dataclasses.asdict(self))
        # The hosts' devices are not known yet: refuse only what no device can compute.
        resolve(config, "cpu" if self.device_type == "auto" else self.device_type)
        return config

    def to_args(self) -> list[str]:
        """Arguments for the trainer's command line."""
        import dataclasses

        values = dataclasses.asdict(self)
        return [
            f"--{name.replace('_', '-')}={value}"
            for name, value in values.items()
            if value is not None
        ]


@dataclass(frozen=True)
class Parts:
    """The parts of the probe to run."""

    links: bool
    collectives: bool
    compute: bool


def command(
    *,
    model: Annotated[ModelFlags, Parameter(name="*")] = ModelFlags(),
    fleet: FleetFile = None,
    quick: Annotated[bool, Parameter(help="Shorter and less exact.", negative="")] = False,
    links: Annotated[bool, Parameter(help="Measure raw TCP between all hosts.")] = True,
    collectives: Annotated[
        bool, Parameter(help="Measure all_reduce, all_gather and reduce_scatter.")
    ] = True,
    compute: Annotated[
        bool, Parameter(help="Measure products, memory and a training step on each host.")
    ] = True,
    collectives_limit: Annotated[
        str, Parameter(help="What the collectives may take; larger sizes are left out.")
    ] = "6 s",
    json_output: JsonFlag = False,
) -> int:
    """Measure the links, the collectives and the compute of a fleet, or of this machine.

    The result is kept, and `yoked plan` starts from it. Nothing but yoked's own cache stays
    behind on the hosts.
    """
    from yoked.cli.commands.probe_text import report
    from yoked.fleet.file import open_fleet
    from yoked.units import parse_duration_s

    output = Output(json_mode=json_output)
    if not (links or collectives or compute):
        raise UsageError("nothing is left to measure", fix="yoked probe    measures everything")
    limit_s = parse_duration_s(collectives_limit)
    if not limit_s > 0:
        raise UsageError(
            f"--collectives-limit {collectives_limit!r}: no time", fix="--no-collectives"
        )
    model.config()
    opened = open_fleet(fleet)
    probe = _Probe(opened, model, Parts(links, collectives, compute), output, quick, limit_s)
    probe.run()
    return report(probe.result, output)


class StatusLine:
    """One line of progress on a terminal; nothing elsewhere."""

    def __init__(self, output: Output) -> None:
        self._console = output.console
        self._began_s = time.monotonic()
        self._drawn = False

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began_s

    def show(self, doing: str) -> None:
        """Show the current action."""
        if self._console.is_terminal:
            self._drawn = True
            # \x1b[K clears the rest of a longer line before this one.
            line = f"{self.elapsed_s:3.0f} s  {one_line(doing)}"[: self._console.width - 1]
            self._console.file.write(f"\r{line}\x1b[K")
            self._console.file.flush()

    def __enter__(self) -> Self:
        self.show("connecting")
        return self

    def __exit__(self, *problem: object) -> None:
        if self._drawn:
            self._console.file.write("\r\x1b[K")
            self._console.file.flush()


class _Probe:
    """One probe of a fleet, from connecting to saving."""

    result: ProbeResult

    def __init__(
        self,
        fleet: Fleet,
        model: ModelFlags,
        parts: Parts,
        output: Output,
        quick: bool,
        limit_s: float,
    ) -> None:
        self._fleet, self._model, self._parts = fleet, model, parts
        self._quick, self._limit_s = quick, limit_s
        self._many = len(fleet.hosts) > 1
        self._measures_links = parts.links and self._many
        self._progress = StatusLine(output)

    def run(self) -> None:
        """Measure the requested parts. If hosts cannot do one, result.problem says why."""
        from yoked.launch.hosts import connected
        from yoked.remote.client import host_wrote

        problem: YokedError | None = None
        from_ranks: Mapping[str, Any] = {}
        nodes: Sequence[NodePlan] = ()
        with self._progress, connected(self._fleet) as clients:
            facts = self._facts(clients)
            addresses = self._addresses(clients)
            links = self._links(clients, addresses)
            if self._parts.compute or self._parts.collectives:
                try:
                    nodes, from_ranks = self._job(clients, addresses)
                except YokedError as caught:
                    problem = caught
        # Values in it come from the ranks: an invalid one is that host's error.
        first = next((node.host.name for node in nodes), self._fleet.hosts[0].name)
        with host_wrote(first, "what the probe measured"):
            self.result = self._probe_result(facts, links, nodes, from_ranks, problem)

    def _probe_result(
        self,
        facts: Mapping[str, Mapping[str, Any]],
        links: list[LinkMeasurement],
        nodes: Sequence[NodePlan],
        from_ranks: Mapping[str, Any],
        problem: YokedError | None,
    ) -> ProbeResult:
        from yoked.cli.commands.probe_text import ProbeResult

        measurement = self._measurement(facts, links, nodes, from_ranks)
        return ProbeResult(
            fleet=self._fleet,
            measurement=measurement,
            links=links,
            skipped_sizes=from_ranks.get("left_out", []),
            choices={
                node.host.name: report["choices"]
                for node, report in _by_node(nodes, from_ranks.get("profiles", []))
                if report is not None
            },
            problem=problem,
            saved_to=self._save(measurement),
            took_s=self._progress.elapsed_s,
        )

    def _facts(self, clients: Mapping[str, AgentClient]) -> dict[str, Mapping[str, Any]]:
        from yoked.core.parallel import at_once
        from yoked.fleet.discover import require_distinct

        answers = at_once(lambda client: client.call("facts"), clients.values())
        facts = dict(zip(clients, answers, strict=True))
        require_distinct(facts)
        return facts

    def _addresses(self, clients: Mapping[str, AgentClient]) -> Mapping[str, tuple[str, str]]:
        """(interface, address) of each host, at which all others have reached it."""
        from yoked.fleet.discover import find_addresses

        if not self._many:
            return {}
        self._progress.show("who reaches whom")
        return find_addresses(self._fleet, clients)

    def _links(
        self, clients: Mapping[str, AgentClient], addresses: Mapping[str, tuple[str, str]]
    ) -> list[LinkMeasurement]:
        from yoked.probe.links import QUICK, Timing, measure_links

        if not self._measures_links:
            return []
        return measure_links(
            _link_ends(clients, addresses),
            clients,
            QUICK if self._quick else Timing(),
            lambda done, total: self._progress.show(f"links: {done} of {total} pairs"),
        )

    def _job(
        self,
        clients: Mapping[str, AgentClient],
        addresses: Mapping[str, tuple[str, str]],
    ) -> tuple[Sequence[NodePlan], Mapping[str, Any]]:
        """Run the ranks' part."""
        from yoked.workflows.probe_job import PROFILER, nodes_of, run_worker

        nodes = nodes_of(self._fleet, clients, addresses)
        self._progress.show("starting " + ", ".join(node.host.name for node in nodes))
        profile = {"module": PROFILER, "args": self._model.to_args()}
        collectives = {
            "largest_bytes": QUICK_LARGEST_BYTES if self._quick else LARGEST_BYTES,
            "limit_s": self._limit_s * (QUICK_FRACTION if self._quick else 1.0),
            "gpus": self._model.device_type in ("auto", "cuda"),
        }
        spec = {
            "profile": profile if self._parts.compute else None,
            "collectives": collectives if self._parts.collectives else None,
        }
        return nodes, run_worker(self._fleet, nodes, spec, self._progress.show)

    def _measurement(
        self,
        facts: Mapping[str, Mapping[str, Any]],
        links: Sequence[LinkMeasurement],
        nodes: Sequence[NodePlan],
        from_ranks: Mapping[str, Any],
    ) -> Measurement:
        from yoked.probe.summary import summarise

        ranks = [
            (node.host.name, report)
            for node, report in _by_node(nodes, from_ranks.get("profiles", []))
        ]
        return summarise(
            fleet=self._fleet.name,
            taken_s=time.time(),
            hosts=[host.name for host in self._fleet.hosts],
            facts=facts,
            links=[each.link for each in links],
            ranks=ranks,
            timed=from_ranks.get("collectives", []),
        )

    def _save(self, measurement: Measurement) -> Path | None:
        """Save a complete measurement: `yoked plan` cannot use any other."""
        from yoked.probe.store import save
        from yoked.probe.summary import is_complete

        return save(self._fleet, measurement) if is_complete(measurement) else None


def _link_ends(
    clients: Mapping[str, AgentClient], addresses: Mapping[str, tuple[str, str]]
) -> list[Any]:
    """The address of each host, with the MTU of its interface."""
    from yoked.core.parallel import at_once
    from yoked.probe.links import LinkEnd

    def link_end(name: str) -> LinkEnd:
        interface, address = addresses[name]
        mtus = {each["name"]: each["mtu_bytes"] for each in clients[name].call("interfaces")}
        return LinkEnd(name, interface, address, mtus.get(interface))

    return at_once(link_end, addresses)


def _by_node(nodes: Sequence[NodePlan], by_rank: Sequence[Any]) -> list[tuple[NodePlan, Any]]:
    """Each rank's report with its node; ranks are numbered host by host."""
    filled = [node for node in nodes for _ in range(node.ranks)]
    return list(zip(filled, by_rank, strict=True)) if by_rank else []
