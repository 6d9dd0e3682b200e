"""A run of a fleet on this machine: what is small of it, and the checkpoint that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from yoked.agent.verdict import is_of_launch, write_verdict
from yoked.core.faults import fault
from yoked.errors import CheckpointError, UsageError, YokedError
from yoked.launch.attach import JobEnd
from yoked.launch.handle import RunHandle
from yoked.launch.listing import TOKENIZER, TOKENIZER_FILE
from yoked.launch.mirror import CHECKPOINTS, find_checkpoint, mirror_run
from yoked.launch.runrecord import bring_said
from yoked.remote.client import AgentClient
from yoked.runs import copied_from, list_trainings, mark_copy, same_runs
from yoked.train.tokenizer import PICKLE_NAME


@dataclass(frozen=True)
class Fetched:
    """What came of a run. checkpoint_bytes: 0 where the checkpoint was here already."""

    host: str
    checkpoint_bytes: int


def fetch_run(
    clients: Mapping[str, AgentClient],
    here: Path,
    checkpoint: str,
    *,
    fleet_file: Path,
    note: Callable[[str], None],
    progress: Callable[[str, int, int], None],
) -> Fetched:
    """Copy what is new of a run into its folder here, with the checkpoint that is named.

    here: its name is the run's. checkpoint: latest, best, or a step. fleet_file: of these hosts.
    progress: told the host, the bytes of the checkpoint that came, and that will have come. Raises
    UsageError where no host has the run, CheckpointError where there is no such checkpoint.
    """
    name = here.name
    host, folder = _find(clients, here)
    client = clients[host]
    files = find_checkpoint(client, folder, checkpoint)
    if not files and checkpoint != "latest" and find_checkpoint(client, folder):
        why = " that was evaluated" if checkpoint == "best" else f" of step {checkpoint}"
        raise CheckpointError(
            f"{host} has no checkpoint of {name}{why}",
            fix=f"yoked fetch {quote(name)}{same_runs(here.parent)}    takes the latest",
        )
    if not files:
        raise fault("no-checkpoint", name=name, host=host)
    # The tokenizer has no digest, and comes each time.
    weights = {path: digest for path, digest in files.items() if path != TOKENIZER_FILE}
    small = {path for path in files if path not in weights}
    mirror_run(
        client,
        folder,
        here,
        wanted=lambda path: path in small or not path.startswith(f"{CHECKPOINTS}/"),
        note=note,
    )
    mark_copy(here, fleet_file)
    came = mirror_run(
        client,
        folder,
        here,
        wanted=weights.__contains__,
        digests=weights,
        progress=lambda done, total: progress(host, done, total),
    )
    if came or not (here / TOKENIZER / PICKLE_NAME).is_file():
        _make_tokenizer(here, files, note)
    return Fetched(host, came)


def bring_ended(
    job: RunHandle,
    host: str,
    there: str,
    here: Path,
    end: JobEnd,
    *,
    fleet_file: Path,
    note: Callable[[str], None],
) -> None:
    """Copy what is small of a run that is over, with what was said of it, into its folder here.

    host: of rank 0, which has the run's folder there. Of a run that failed the folder here has the
    verdict, whatever is gone. Raises YokedError where a run that did not fail cannot be copied.
    """
    failure = end.record.failure if end.state in ("failed", "lost") else None
    try:
        with job.reach(host) as client:
            mirror_run(client, there, here, note=note)
        ours = is_of_launch(here, end.record.launch_id)
    except YokedError as problem:
        if failure is None:
            raise
        # The host of rank 0 may be what failed: what is here is of before.
        note(f"the run's folder could not be copied: {problem.what}")
        ours = (here / "run.json").exists()
        # Another host may tell what was said; that this one cannot is told.
        note = _nobody
    if failure is not None and ours:
        write_verdict(here, end.run, failure)
    if here.is_dir():
        mark_copy(here, fleet_file)
        bring_said(end.record, here, job.reach, note)


def _nobody(line: str) -> None:
    del line


def fetch_lines(
    clients: Mapping[str, AgentClient], here: Path, *, note: Callable[[str], None]
) -> None:
    """Copy what is new of a run's journals into its folder here. Raises UsageError as above."""
    host, folder = _find(clients, here)
    mirror_run(clients[host], folder, here, note=note)


def _find(clients: Mapping[str, AgentClient], here: Path) -> tuple[str, str]:
    """The host that has a run, and the run's folder there."""
    name = here.name
    for host, client in clients.items():
        folder = f"{client.call('facts')['state']}/runs/{name}"
        if client.call("file_list", folder=folder):
            return host, folder
    if here in list_trainings(here.parent) and copied_from(here) is None:
        raise UsageError(
            f"run {name} is this machine's own: it is in {here}",
            fix=f"yoked sample {quote(name)}{same_runs(here.parent)}",
        )
    raise UsageError(
        f"no host of the fleet has a run {name}", fix="yoked runs    lists what there is"
    )


def _make_tokenizer(here: Path, came: Container[str], note: Callable[[str], None]) -> None:
    """Make nanochat's forms of a fetched run's tokenizer from ours; a host's pickle never comes.

    came: what the checkpoint consists of. Raises DataError for a tokenizer that is damaged.
    """
    if TOKENIZER_FILE not in came:
        note(f"no tokenizer came: the host has no {TOKENIZER_FILE}")
        return
    try:
        from yoked.train.nanochat_format import export_tokenizer
    except ImportError as problem:
        # What trains need not be on the controller; yoked itself reads the JSON.
        note(f"tokenizer.pkl, which only nanochat reads, was not made: {problem}")
        return
    export_tokenizer(here / TOKENIZER, here / TOKENIZER)
