"""The copy of a fleet's run: what is new of it comes before something is made of the copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from yoked.cli.flags import named_checkpoint, same_fleet
from yoked.cli.output import Output
from yoked.errors import CheckpointError, UsageError, YokedError
from yoked.fleet.file import FILE_NAME
from yoked.runs import copied_from, find_run, is_program, same_runs
from yoked.units import format_bytes

if TYPE_CHECKING:
    from yoked.console import StageProgress
    from yoked.remote.client import AgentClient


def find_folder(run: str | None, runs_dir: Path) -> Path:
    """The folder of a run, or of checkpoints, that was named. Raises UsageError."""
    return Path(run) if run and Path(run).is_dir() else find_run(run, runs_dir)


def with_newest_checkpoint(
    run: str | None, runs_dir: Path, checkpoint: str, output: Output
) -> Path:
    """The folder of a run, or of checkpoints, that was named: with what is asked for of it now.

    Of a fleet's run the checkpoint is fetched, if the hosts have another one than is here; where
    they cannot be asked, it is said that this one may be older. A folder that is named as such is
    taken as it is. Raises UsageError, and CheckpointError where nothing is here and none comes.
    """
    folder = find_folder(run, runs_dir)
    fleet_file = _fleet_file(run, folder)
    if fleet_file is None:
        return folder
    wanted = named_checkpoint(checkpoint)

    def bring(clients: Mapping[str, AgentClient], progress: StageProgress) -> None:
        from yoked.workflows.fetching import fetch_run

        if run is None:
            _tell_newer(clients, folder, fleet_file, output)
        progress.doing(f"asking for {wanted} of {folder.name}")
        fetched = fetch_run(
            clients,
            folder,
            checkpoint,
            fleet_file=fleet_file,
            note=output.note,
            progress=progress.comes,
        )
        if fetched.checkpoint_bytes:
            size = format_bytes(fetched.checkpoint_bytes)
            progress.close()
            output.note(f"fetched {wanted} from {fetched.host}: {size}")

    try:
        _with_hosts(fleet_file, bring, output)
    except YokedError as problem:
        if not any(folder.glob("checkpoints/base_checkpoints/*/model_*.pt")):
            again = _fetch_line(folder.name, folder, fleet_file)
            raise CheckpointError(
                f"no checkpoint of run {folder.name} is here, and none came: {problem.what}",
                fix=(*problem.fix, f"{again}    tries again"),
            ) from problem
        output.note(
            f"run {folder.name} may have a newer checkpoint than this one: its hosts could not be "
            f"asked: {problem.what}"
        )
    return folder


def with_newest_lines(
    run: str | None, runs_dir: Path, output: Output, *, programs: bool = False
) -> Path:
    """The folder of a run that was named, with the journals of a fleet's run as they are now.

    programs: those of `yoked run` count, too; theirs came when they were followed, or by fetch.
    """
    folder = find_run(run, runs_dir, programs=programs)
    fleet_file = _fleet_file(run, folder)
    if fleet_file is None or is_program(folder):
        return folder

    def bring(clients: Mapping[str, AgentClient], progress: StageProgress) -> None:
        from yoked.workflows.fetching import fetch_lines

        if run is None:
            _tell_newer(clients, folder, fleet_file, output)
        progress.doing(f"asking for the newest lines of {folder.name}")
        fetch_lines(clients, folder, note=output.note)

    try:
        _with_hosts(fleet_file, bring, output)
    except YokedError as problem:
        output.note(
            f"run {folder.name} may be further than this: its hosts could not be asked: "
            f"{problem.what}"
        )
    return folder


def _fleet_file(run: str | None, folder: Path) -> Path | None:
    """The fleet's file of a copy that is to be up to date; None: it is none, or named as a folder.

    run: as it was named.
    """
    return None if run and Path(run).is_dir() else copied_from(folder)


def _fetch_line(run: str, folder: Path, fleet_file: Path) -> str:
    """The line that brings a run to where this folder is."""
    flag = same_fleet(None if fleet_file == Path(FILE_NAME).absolute() else fleet_file)
    return f"yoked fetch {quote(run)}{same_runs(folder.parent)}{flag}"


def _tell_newer(
    clients: Mapping[str, AgentClient], folder: Path, fleet_file: Path, output: Output
) -> None:
    """Note a run that these hosts began later, and that is not here."""
    from yoked.launch.registry import collect, newest_training

    records, _ = collect(clients)
    newest = newest_training(records)
    if newest is not None and not (folder.parent / newest).exists():
        line = _fetch_line(newest, folder, fleet_file)
        output.note(f"run {newest} is newer, and not here: {line}")


def _with_hosts(
    fleet_file: Path,
    act: Callable[[Mapping[str, AgentClient], StageProgress], None],
    output: Output,
) -> None:
    """Act with the hosts that answer. Raises YokedError."""
    from yoked.console import StageProgress
    from yoked.fleet.file import load_fleet
    from yoked.launch.hosts import reach_hosts, require_all

    fleet = load_fleet(fleet_file)
    with closing(StageProgress(output.console)) as progress:
        progress.doing("connecting")
        with reach_hosts(fleet, lambda _: None) as hosts:
            try:
                act(hosts.clients, progress)
            except UsageError:
                # Of those that answer none has it.
                require_all(hosts.unreachable)
                raise
