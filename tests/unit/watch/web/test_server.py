from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.report.run_folders import write_run
from tests.unit.watch.web.moving import Moving, Nothing
from tests.unit.watch.web.served import TOKEN, Served, served

from yoked.errors import HostError, YokedError
from yoked.watch.web.app import MOST_PAGES, NO_ADDRESS, NOT_LOOPBACK, NOT_OURS
from yoked.watch.web.secret import kept_token
from yoked.watch.web.serving import MOST_CONNECTIONS, PORTS, listening

ROOT = Path(__file__).parents[4]
WITHIN_S = 20.0


def asked(
    server: Served, path: str, *, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], str]:
    """Status, headers and text of an answer. path: below the token, or from / on."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WITHIN_S)
    whole = path if path.startswith("/") else f"/{TOKEN}/{path}"
    connection.request(method, whole, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, text


class Stream:
    """Events that a page is sent."""

    def __init__(self, server: Served) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WITHIN_S)
        self._connection.request("GET", f"/{TOKEN}/events")
        self.answer = self._connection.getresponse()

    def next(self) -> tuple[str, Any]:
        """The next event, and its data."""
        event = self.answer.readline().decode().removeprefix("event: ").strip()
        data = self.answer.readline().decode().removeprefix("data: ")
        self.answer.readline()
        return event, json.loads(data)

    def close(self) -> None:
        self.answer.close()
        self._connection.close()


@contextmanager
def stream(server: Served) -> Iterator[Stream]:
    found = Stream(server)
    try:
        yield found
    finally:
        found.close()


def wait_until(is_so: Any) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(Moving(host="<img src=x onerror=alert(1)>")) as found:
        yield found


# ---- who may ask


def test_the_page_asks_for_nothing_beyond_its_server_and_leaves_nothing_behind(
    server: Served,
) -> None:
    status, headers, text = asked(server, "")

    assert status == 200
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "connect-src 'self'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-content-type-options"] == "nosniff"
    assert "set-cookie" not in headers
    assert "server" not in headers
    assert TOKEN not in text


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8000", "[::1]:1", "LOCALHOST:65000"])
def test_names_of_loopback_are_answered_at_the_port_of_any_tunnel(
    server: Served, host: str
) -> None:
    assert asked(server, "", Host=host)[0] == 200
    assert asked(server, "", Host=host, Origin=f"http://{host}")[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:8765",
        "evil.example:8765@127.0.0.1",
        "192.168.1.7:8765",
        "127.0.0.1:port",
        "",
    ],
)
def test_a_name_that_was_pointed_at_loopback_is_refused(server: Served, host: str) -> None:
    status, headers, text = asked(server, "", Host=host)

    assert (status, text.strip()) == (421, NOT_LOOPBACK)
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1", ""]
)
@pytest.mark.parametrize(
    ("method", "path"), [("GET", ""), ("GET", "events"), ("POST", "choose?run=day")]
)
def test_another_page_of_the_browser_is_refused(
    server: Served, origin: str, method: str, path: str
) -> None:
    status, headers, text = asked(server, path, method=method, Origin=origin)

    assert (status, text.strip()) == (403, NOT_OURS)
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    "path", ["", "events", "curve?first=0&last=9&points=9", "runs", "favicon.ico"]
)
@pytest.mark.parametrize("token", ["", "a", TOKEN[:-1], TOKEN + "x", "%00", "..", "%C3%A9", "%FF"])
def test_without_its_token_nothing_is_told(server: Served, path: str, token: str) -> None:
    status, headers, text = asked(server, f"/{token}/{path}")

    assert (status, text.strip()) == (403, NO_ADDRESS)
    assert headers["content-security-policy"].startswith("default-src 'none'")


def test_a_choice_is_made_by_post_alone_and_only_among_runs_of_the_list(server: Served) -> None:
    assert asked(server, "choose?run=day")[0] == 405
    asked(server, "runs")
    status, _, text = asked(server, "choose?run=%2Fetc", method="POST")

    assert status == 409
    assert json.loads(text)["what"] == "no run of the list is named /etc"


def test_it_listens_on_loopback_alone(server: Served) -> None:
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path("/proc/net", name).read_text().splitlines()[1:]
    ]
    # 0A: it listens. The address has its bytes from right to left.
    found = [each[1] for each in lines if each[3] == "0A"]

    assert [each for each in found if each.endswith(f":{server.port:04X}")] == [
        f"0100007F:{server.port:04X}"
    ]


# ---- what it tells


def test_a_page_gets_the_whole_view_and_then_what_changes(server: Served) -> None:
    with stream(server) as events:
        assert events.answer.headers["content-type"].startswith("text/event-stream")
        first, state = events.next()
        second, change = events.next()

    assert (first, second) == ("whole", "changes")
    assert state["problem"] is None
    assert state["view"]["run"] == "night"
    done = state["view"]["progress"]["step"]
    assert change["view"]["progress"]["step"] == [done + 3]
    assert len(json.dumps(change)) < len(json.dumps(state)) / 5


def test_there_is_no_look_while_no_page_is_open_and_one_for_many() -> None:
    watched = Moving()
    with served(watched) as server:
        time.sleep(0.3)
        assert watched.looks == 0
        streams = [Stream(server) for _ in range(5)]
        for each in streams:
            each.next()
            each.next()
        assert watched.looks <= 3
        for each in streams:
            each.close()
        wait_until(lambda: server.server.looker.pages == 0)
        looks = watched.looks
        time.sleep(1.3)
        assert watched.looks <= looks + 1
    assert len(watched.threads) == 1
    assert threading.get_ident() not in watched.threads


def test_a_look_that_fails_is_told_and_the_last_view_stays() -> None:
    watched = Moving()
    with served(watched) as server, stream(server) as events:
        _, state = events.next()
        watched.failure = HostError("alpha does not answer", fix="yoked doctor")
        _, change = events.next()
        told = change["problem"][0]
        watched.failure = None
        _, healed = events.next()

    assert state["view"]["run"] == "night"
    assert "view" not in change
    assert (told["what"], told["fix"]) == ("alpha does not answer", ["yoked doctor"])
    assert healed["problem"] == [None]


def test_a_page_that_comes_later_waits_for_a_look_and_still_has_the_last_view_if_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("yoked.watch.web.looking._SHOWN_FOR_S", 0.0)
    watched = Moving()
    with served(watched) as server:
        with stream(server) as events:
            _, first = events.next()
        wait_until(lambda: server.server.looker.pages == 0)
        with stream(server) as events:
            _, later = events.next()
        wait_until(lambda: server.server.looker.pages == 0)
        watched.failure = HostError("alpha does not answer", fix="yoked doctor")
        with stream(server) as events:
            _, failed = events.next()

    steps = [each["view"]["progress"]["step"] for each in (first, later, failed)]
    assert steps[0] < steps[1] <= steps[2]
    assert failed["problem"]["what"] == "alpha does not answer"


def test_a_bug_in_a_look_ends_the_server_with_it() -> None:
    watched = Moving()

    def fail() -> None:
        raise ZeroDivisionError

    watched.on_look = fail
    found = Served(watched)
    with stream(found):
        pass
    wait_until(lambda: found.problem is not None)
    found.end()

    assert isinstance(found.problem, ZeroDivisionError)


def test_where_there_is_no_run_it_says_so() -> None:
    with served(Nothing()) as server, stream(server) as events:
        _, state = events.next()
        runs = asked(server, "runs")

    assert state["view"] is None
    assert state["problem"]["what"] == "there is no run to look at yet"
    assert json.loads(runs[2]) == []


def test_a_part_of_the_curve_is_read_in_full() -> None:
    watched = Moving(done=5000)
    with served(watched) as server:
        status, _, text = asked(server, "curve?first=1000&last=1099&points=100")
        wrong = [
            asked(server, f"curve?{each}")[0]
            for each in ("", "first=1", "first=-1&last=2&points=3", "first=a&last=2&points=3")
        ]
        asked(server, "curve?first=0&last=4999&points=999999999")

    assert status == 200
    assert json.loads(text)["step"] == list(range(1001, 1101))
    assert wrong == [400] * 4
    assert watched.asked[-1] == (0, 4999, 2000)


def test_another_run_is_looked_at_once_it_is_chosen() -> None:
    watched = Moving()
    with served(watched) as server, stream(server) as events:
        events.next()
        rows = json.loads(asked(server, "runs")[2])
        status, _, _ = asked(
            server, "choose?run=day", method="POST", Origin=f"http://127.0.0.1:{server.port}"
        )
        run = None
        while run is None:
            run = (events.next()[1].get("view") or {}).get("run")

    assert [row["run"] for row in rows] == ["night", "day"]
    assert status == 200
    assert run == ["day"]


def test_where_no_run_was_chosen_there_is_a_list_to_choose_from() -> None:
    watched = Moving()
    with served(watched, chosen=False) as server, stream(server) as events:
        _, state = events.next()
        looks = watched.looks
        status, _, _ = asked(server, "choose?run=day", method="POST")
        _, change = events.next()

    assert (state["view"], state["problem"], looks) == (None, None, 0)
    assert [row["run"] for row in state["choice"]] == ["night", "day"]
    assert status == 200
    assert change["view"][0]["run"] == "day"
    assert change["choice"] == [None]


def test_more_pages_than_the_most_are_told_so() -> None:
    with served(Moving()) as server:
        streams = [Stream(server) for _ in range(MOST_PAGES)]
        for each in streams:
            each.next()
        status, _, text = asked(server, "events")
        for each in streams:
            each.close()
        wait_until(lambda: server.server.looker.pages == 0)
        with stream(server) as events:
            events.next()

    assert (status, text.strip()) == (
        503,
        f"{MOST_PAGES} pages are open, which is the most: close one.",
    )


def test_connections_have_a_limit_and_those_that_end_make_room() -> None:
    with served(Moving()) as server, contextlib.ExitStack() as idle:
        for _ in range(MOST_CONNECTIONS):
            idle.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        wait_until(lambda: len(server.server.server_state.connections) == MOST_CONNECTIONS)
        refused, _, text = asked(server, "")
        idle.close()
        wait_until(lambda: not server.server.server_state.connections)
        answered, _, _ = asked(server, "")

    assert (refused, answered) == (503, 200)
    assert TOKEN not in text


def test_streams_end_with_the_server_and_its_thread_too() -> None:
    before = set(threading.enumerate())
    found = Served(Moving())
    events = Stream(found)
    events.next()

    found.end()

    # One that was cut off would raise.
    assert not events.answer.read().strip() or events.answer.isclosed()
    events.close()
    wait_until(lambda: set(threading.enumerate()) <= before)


COMMAND = "import sys; from yoked.cli.main import main; sys.exit(main())"


def test_the_command_shows_a_run_of_this_machine_until_ctrl_c(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "evening", ranks=2)
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "watch", "evening", "--web"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths},
    )
    try:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        url = next(each for each in lines if "the page is at" in each).split()[-1]
        tunnel = next(lines)
        with urllib.request.urlopen(f"{url}events", timeout=WITHIN_S) as events:
            assert events.readline() == b"event: whole\n"
            state = json.loads(events.readline().removeprefix(b"data: "))
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=WITHIN_S)[1]
    finally:
        process.kill()
        process.communicate()

    assert state["view"]["run"] == "evening"
    assert state["view"]["figures"]["steps"] == 60
    assert process.returncode == 0
    assert tunnel.startswith("note: from another machine: ssh -L ")
    assert said == ""


# ---- its token and its port


def test_the_token_is_private_and_stays(state_folder: Path) -> None:
    token = kept_token()
    path = state_folder / "watch" / "token"

    assert kept_token() == token
    assert len(token) >= 22
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("harm", ["others read it", "cut short", "no token"])
def test_a_token_that_others_may_know_is_made_anew(state_folder: Path, harm: str) -> None:
    token = kept_token()
    path = state_folder / "watch" / "token"
    if harm == "others read it":
        path.chmod(0o644)
    else:
        path.write_text({"cut short": token[:5], "no token": "../" * 10}[harm])

    newer = kept_token()

    assert newer != token
    assert kept_token() == newer
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_port_that_is_taken_is_passed_over_and_that_is_said() -> None:
    notes: list[str] = []
    with listening(None, lambda _: None) as first, listening(None, notes.append) as second:
        ports = [each.getsockname()[1] for each in (first, second)]

    assert ports[0] != ports[1]
    assert set(ports) < set(PORTS) | {ports[1]}
    assert ports[0] != PORTS[0] or f"port {PORTS[0]} is taken" in notes[0]


def test_a_port_that_was_asked_for_and_is_taken_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(YokedError, match=f"port {port} of 127.0.0.1") as raised:
            listening(port, lambda _: None)

    assert raised.value.fix == ("yoked watch --web    takes one that is free",)


def test_a_port_is_free_again_after_its_server_was_killed() -> None:
    with served(Moving()) as server, stream(server) as events:
        events.next()
        port = server.port
    with served(Moving(), port) as again:
        assert again.port == port
