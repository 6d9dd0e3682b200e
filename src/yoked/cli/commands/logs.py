"""`yoked logs`: what the ranks of a run wrote."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from yoked.cli.completers import host_names
from yoked.cli.flags import FleetFlag, JsonFlag, RawFlag, RunName
from yoked.cli.output import Output
from yoked.errors import UsageError
from yoked.fleet.file import open_fleet
from yoked.fleet.model import HERE
from yoked.launch.hosts import reach_hosts
from yoked.launch.registry import Record, headline


def command(
    run: RunName = None,
    *,
    fleet: FleetFlag = None,
    follow: Annotated[
        bool, Parameter(name=["--follow", "-f"], negative="", help="Go on until the run ends.")
    ] = False,
    host: Annotated[
        str | None, Parameter(help="Only the ranks of this host.", completer=host_names)
    ] = None,
    rank: Annotated[int | None, Parameter(help="Only this rank.")] = None,
    attempt: Annotated[int | None, Parameter(help="Only this attempt; the first is 0.")] = None,
    stream: Annotated[Literal["out", "err"] | None, Parameter(help="Only this stream.")] = None,
    tail: Annotated[int | None, Parameter(help="Begin with the last lines of each stream.")] = None,
    times: Annotated[bool, Parameter(negative="", help="When each line came.")] = False,
    raw: RawFlag = False,
    json_output: JsonFlag = False,
) -> int:
    """Print the output of a run's ranks, merged in the order of time; followed, as it comes.

    With several ranks, each line begins with its host and rank. Followed over a network that
    goes away and comes back, each byte comes once.
    """
    if tail is not None and tail < 0:
        raise UsageError(f"--tail {tail}: below 0", fix="--tail 20")
    if json_output and follow:
        raise UsageError(
            "--json prints one object, and --follow has no end until the run has",
            fix="yoked attach --json    waits for that; then yoked logs --json",
        )
    output = Output(json_mode=json_output, raw=raw)
    told: list[dict[str, object]] = []
    with reach_hosts(open_fleet(fleet), output.note) as hosts:
        found = hosts.run(run)
        record = found.record
        names = _hosts_wanted(record, host, rank)
        wanted = {
            "follow": follow,
            "attempt": attempt,
            "tail_lines": tail,
            "ranks": None if rank is None else [rank],
            "streams": None if stream is None else [stream],
        }
        if attempt is not None and (attempt < 0 or (attempt > record.attempt and not follow)):
            raise UsageError(
                f"--attempt {attempt}: run {record.name} has no such one",
                fix=f"it has attempts 0 to {record.attempt}",
            )
        several = rank is None and record.ranks > 1
        for name, part in found.logs(names, wanted, output.note):
            content = part.content
            if json_output:
                told += _lines(name, content, part.data.decode(errors="replace"))
                continue
            source = (name, content["rank"], content["stream"])
            text = output.followed(source, part.data.decode(errors="replace"))
            if prefix := _prefix(name, content, named=several, times=times):
                # The last line of a rank that was killed may have no end.
                lines = text.removesuffix("\n").split("\n")
                text = "".join(f"{prefix}{line}\n" for line in lines)
            output.text(text)
        if json_output:
            output.result({"run": record.name, "lines": told}, verdict="")
        elif verdict := _verdict(found.look_again() if follow else record):
            output.note(verdict)
    return 0


def _verdict(record: Record) -> str | None:
    """What the output itself may not say: why the run failed, or does not get on."""
    if record.held_up_line is not None:
        return f"run {record.name} is held up: {record.held_up_line}"
    if record.active or record.failure is None:
        return None
    return f"run {record.name} failed: {headline(record.failure)}"


def _lines(host: str, content: dict[str, Any], text: str) -> list[dict[str, object]]:
    """Each line of a part, as it was written."""
    of = {"host": host, **{name: content[name] for name in ("rank", "stream", "time_s")}}
    return [{**of, "text": line} for line in text.removesuffix("\n").split("\n")]


def _hosts_wanted(record: Record, host: str | None, rank: int | None) -> list[str]:
    """The hosts whose output is wanted; raises UsageError for what the run does not have."""
    if host is not None and host not in record.hosts:
        raise UsageError(
            f"--host {host}: run {record.name} has none of that name that answers",
            fix=f"its hosts: {', '.join(record.hosts)}",
        )
    if rank is None:
        return [host] if host is not None else list(record.hosts)
    at = record.host_of(rank)
    if at is None or host not in (None, at):
        raise UsageError(
            f"--rank {rank}: run {record.name} has no such one on a host that answers",
            fix=f"it has ranks 0 to {record.ranks - 1}",
        )
    return [at]


def _prefix(host: str, content: dict[str, Any], *, named: bool, times: bool) -> str:
    """What stands before each line of a part: when it came, and of which rank it is."""
    parts = []
    if times:
        came = datetime.fromtimestamp(content["time_s"]).astimezone()
        parts.append(f"{came:%H:%M:%S}.{came.microsecond // 1000:03d}")
    if named:
        # As a word it is easier to see than yoked.toml's dot.
        parts.append(f"{'here' if host == HERE else host}.{content['rank']}")
    return " ".join(parts) + " | " if parts else ""
