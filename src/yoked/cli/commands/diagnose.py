"""`yoked diagnose`: why a run stands, is slow, or ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from shlex import quote
from typing import Annotated, Any

from cyclopts import Parameter

from yoked.agent.verdict import held_up_by, verdict_of
from yoked.cli.argv import about_fleet
from yoked.cli.commands.diagnose_shares import (
    busy_lines,
    shares_lines,
    shares_payload,
    starving,
    starving_fix,
)
from yoked.cli.commands.diagnose_text import stacks_lines, stacks_payload
from yoked.cli.flags import FleetFlag, JsonFlag, RunName, same_fleet
from yoked.cli.output import Output
from yoked.diagnosis.cause import SLOW
from yoked.diagnosis.stacks import RankStacks
from yoked.errors import JobError, UsageError
from yoked.fleet.file import open_fleet
from yoked.launch.handle import RunHandle
from yoked.launch.hosts import reach_hosts
from yoked.launch.registry import Record, fault_line, warning_lines
from yoked.units import format_duration


def command(
    run: RunName = None,
    *,
    fleet: FleetFlag = None,
    stacks: Annotated[
        bool,
        Parameter(negative="", help="Show where each thread of each rank is, in its Python code."),
    ] = False,
    pid: Annotated[
        int | None,
        Parameter(
            help="Look at this process in place of a run: any program of torch.distributed on this "
            "machine, such as torchrun's."
        ),
    ] = None,
    json_output: JsonFlag = False,
) -> int:
    """Say of a run which host and which rank hold it up, why, since when, and what to do.

    Its hosts find that out by themselves, twice a second, also while no controller is there. Of a
    run that gets on it says where its ranks' time goes, and which of them gates the others; of one
    that is over, how it ended. With --pid it looks at a program that yoked did not start, as the
    kernel of this machine has it.
    """
    output, flag = Output(json_mode=json_output), same_fleet(fleet)
    if pid is not None:
        if run is not None or fleet is not None or stacks:
            raise UsageError(
                "--pid looks at a process of this machine, and at no run",
                fix=f"yoked diagnose --pid {pid}",
            )
        return _outside(pid, output)
    with reach_hosts(open_fleet(fleet), output.note) as hosts:
        handle = hosts.run(run)
        record = handle.record
        found = _stacks(handle, output) if stacks else None
    faults = faults_of(record)
    shown = payload(record, faults)
    gets_on = shown["state"] in ("healthy", "slow")
    own_fix = list((shown["shares"] or {"fix": ()})["fix"])
    fix = faults[0]["fix"] if faults else own_fix or starving_fix(shown["shares"])
    output.result(
        shown | ({} if found is None else {"stacks": stacks_payload(found)}),
        verdict=verdict(record, faults),
        evidence=[
            *(f"  {line}" for line in (faults[0]["evidence"][1:] if faults else ())),
            *(line for fault in faults[1:] for line in ("and:", *_lines(fault))),
            *_likely(record, faults),
            *(line for each in shown["warnings"] for line in warning_lines(each)),
            *((record.restarted_line,) if record.restarted_line else ()),
            *busy_lines(shown["busy"] if gets_on else ()),
            *(shares_lines(shown["shares"]) if gets_on and not shown["busy"] else ()),
            *stacks_lines(found or {}),
        ],
        next_commands=[
            about_fleet(line, flag)
            for line in (*fix, *record.go_on(flag))
            if not (stacks and line.startswith("yoked diagnose --stacks"))
        ],
    )
    return 1 if faults else 0


def _outside(pid: int, output: Output) -> int:
    """Of a program that yoked did not start."""
    from yoked.cli.commands.diagnose_outside import outside_payload, outside_verdict
    from yoked.diagnosis.outside import causes_outside, evidence, process_of, words_outside
    from yoked.launch.outside import look_outside

    seen = look_outside(pid)
    found = causes_outside(seen)
    blamed = process_of(found[0], seen) if found else None
    ranks = [one.vitals.pid for one in ([blamed] if blamed else seen.ranks)]
    # A launcher's own stack says nothing.
    stack = pid if pid in ranks or not ranks else ranks[0]
    next_commands = [line for cause in found[:1] for line in words_outside(cause, seen).fix]
    if seen.run is not None:
        next_commands.append(f"yoked diagnose {quote(seen.run)}    knows more of it")
    next_commands.append(
        f"py-spy dump --pid {stack}    its Python stack (pip install py-spy; it may need sudo)"
    )
    output.result(
        outside_payload(pid, seen, found),
        verdict=outside_verdict(pid, seen, found),
        evidence=list(evidence(seen)),
        next_commands=next_commands,
    )
    return 1 if found else 0


def _stacks(handle: RunHandle, output: Output) -> dict[str, list[RankStacks]]:
    """Where the ranks of each host that answers are. Raises JobError for a run that is over."""
    record = handle.record
    if not record.active:
        raise JobError(
            f"run {record.name} is over: it has no stacks any more",
            fix=f"yoked logs {quote(record.name)}    shows what its ranks wrote last",
        )
    found, silent = handle.stacks()
    for problem in silent.values():
        output.note(str(problem))
    return found


def payload(record: Record, faults: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The object that `--json` prints."""
    state = _state(record, faults)
    return {
        **verdict_of(record.name, state, faults),
        # Of a run that stands, what was before says nothing.
        "shares": shares_payload(record) if state in ("healthy", "slow") else None,
        "busy": record.busy,
        "warnings": record.warnings,
    }


def faults_of(record: Record) -> list[dict[str, Any]]:
    """What is wrong with a run, the root first; empty: nothing, as far as its hosts can tell."""
    found = [held_up_by(cause) for cause in record.held_up] if record.active else record.faults
    for number, fault in enumerate(found):
        fault["evidence"] += _nccl_lines(record, fault, first=number == 0)
    return found


def _nccl_lines(record: Record, fault: Mapping[str, Any], *, first: bool) -> Iterator[str]:
    """The network that NCCL says it uses: of a host or link that is blamed, and of all hosts on
    which it is not the planned one.
    """
    for host, told in record.hosts.items():
        nccl = (told.get("diagnosis") or {}).get("nccl")
        if nccl is None:
            continue
        blamed = fault["rank"] is None and host in fault["hosts"]
        if blamed or (first and not nccl["as_planned"]):
            yield f"{host}: {nccl['what']}"


def _state(record: Record, faults: Sequence[Mapping[str, Any]]) -> str:
    if record.active:
        if not faults:
            return "healthy"
        return "slow" if faults[0]["cause"] in SLOW else "hung"
    return "failed" if faults else record.state


def verdict(record: Record, faults: Sequence[Mapping[str, Any]]) -> str:
    """What it comes to, in a line."""
    if faults:
        state = f"is {_state(record, faults)}" if record.active else "failed"
        return f"run {record.name} {state}: {_lines(faults[0])[0]}"
    if not record.active:
        return f"run {record.name} is over: {record.state}"
    stands = [each for each in record.busy if each["doing"] in ("waiting for others", "at work")]
    if stands:
        longest_s = max(each["for_s"] for each in stands)
        return f"run {record.name} goes on, and no step has ended for {format_duration(longest_s)}"
    step = record.progress
    done = f", {step['step']:,} steps are done" if step else ""
    if record.busy:
        first = record.busy[0]
        said = f"rank {first['rank']} on {first['host'] or '?'} is {first['doing']}"
        return f"run {record.name} goes on{done}: {said}"
    if starved := starving(shares_payload(record)):
        said = f"rank {starved[0]['rank']} on {starved[0]['host'] or '?'} has no core"
        return f"run {record.name} goes on{done}, and slowly: {said} in much of the time"
    return f"run {record.name} goes on{done}: nothing holds it up"


def _likely(record: Record, faults: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Of a cause that is not sure, and holds the run up."""
    if _state(record, faults) == "hung" and faults[0]["certainty"] == "likely":
        yield "  this is likely and not sure: it may pass by itself, and does not end the run"


def _lines(fault: Mapping[str, Any]) -> list[str]:
    return [fault_line(fault), *(f"  {line}" for line in fault["evidence"][1:])]
