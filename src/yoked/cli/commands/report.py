"""`yoked report`: one page about a run, to be read afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from yoked.cli.copies import with_newest_lines
from yoked.cli.flags import JsonFlag, RunsDir
from yoked.cli.outfile import named_file, usual_file, writing
from yoked.cli.output import Output

_NAME = "report.html"


def command(
    run: Annotated[
        str | None, Parameter(help="Name or folder of a run. Default: the latest.")
    ] = None,
    /,
    *,
    against: Annotated[
        str | None,
        Parameter(help="Name or folder of another run: say what differs, and by how much."),
    ] = None,
    out: Annotated[
        Path | None, Parameter(help=f"The page's file. Default: {_NAME} in the run's folder.")
    ] = None,
    runs_dir: RunsDir = Path("runs"),
    json_output: JsonFlag = False,
) -> int:
    """Write one HTML page about a run: loss, speed, where each second went by rank, what was told,
    and what was foreseen beside what came. It needs no network to be read. Of a program of `yoked
    run` it has what the diagnosis saw.

    Of a run on a fleet that was brought here, what is new of its lines comes first.
    """
    output = Output(json_mode=json_output)
    path = None if out is None else named_file("--out", out, _NAME)
    folder = with_newest_lines(run, runs_dir, output, programs=True)
    path = path or usual_file("--out", folder / _NAME)
    from yoked.report.figures import figures_of
    from yoked.report.run_record import read_run

    record = read_run(folder)
    figures: dict[str, Any] = figures_of(record)
    evidence = [*figures["why"]]
    if against is not None:
        from yoked.report.against import compare, in_words

        other = with_newest_lines(against, runs_dir, output, programs=True)
        figures["against"] = compare(record, read_run(other))
        evidence += in_words(figures["against"])
    from yoked.report.page import write_page

    with writing("--out", path):
        write_page(figures, path)
    output.result(
        {**figures, "page": str(out or path)},
        verdict=figures["verdict"],
        evidence=[*evidence, f"page: {out or path}"],
        next_commands=figures["next"],
    )
    return 0
