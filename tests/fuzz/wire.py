"""What a host says, and files that people are given: examples of it, and its decoders."""

from __future__ import annotations

import contextlib
import io
import json
import threading
import zipfile
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from tests.fuzz.hostile import DEEP, JSON, json_files, near, near_bytes
from tests.unit.doctor.builders import home

from yoked.agent.protocol import ProtocolError, read_message
from yoked.cli.commands.hosts import hosts_lines, payload
from yoked.doctor.bundle import EXAMINATION, read_saved
from yoked.doctor.replay import from_json, to_json
from yoked.errors import FleetError, HostError, YokedError
from yoked.fleet.file import format_fleet, load_fleet
from yoked.fleet.model import Host
from yoked.launch.attach import JobEnd
from yoked.launch.registry import join
from yoked.remote.client import AgentClient, RemoteBug
from yoked.workflows.looks import Look

PATIENCE_S = 20
JOB = {
    "run": "try",
    "launch_id": "0123456789ab",
    "state": "failed",
    "folder": "/root/jobs/try",
    "node_rank": 0,
    "nodes": [{"host": "attic", "address": "192.168.1.2", "ranks": 1}],
    "program": None,
    "trains": "try",
    "started_s": 1.7e9,
    "ended_s": 1.7e9,
    "now_s": 1.7e9,
    "attempt": 0,
    "host_program": None,
    "end": {"time_s": 1.7e9},
    "failure": {"host": "attic", "rank": 0, "what": "no", "fix": ["a"], "last_lines": ["b"]},
    "progress": {"step": 7, "loss": 3.5},
    "size_bytes": None,
}
FACTS = {
    "hostname": "vm",
    "machine": "9d4f76c3409ec03b",
    "os": "Linux",
    "cpu_model": "AMD EPYC",
    "cores": 2,
    "fast_cores": 2,
    "usable_cores": 2,
    "memory_bytes": 25_276_514_304,
    "gpus": [{"name": "H100"}],
    "free_bytes": {"state": 1, "cache": 1},
    "state": "/root/.local/state/yoked",
    "cache": "/root/.cache/yoked",
    "uid": 0,
}
INTERFACE = {
    "name": "eth0",
    "kind": "physical",
    "mtu_bytes": 1400,
    "speed_bit_per_s": None,
    "addresses": [{"address": "192.0.2.2", "prefix": 24, "link_local": False}],
    "gloo_address": "192.0.2.2",
}
PIECE = {"rank": 0, "attempt": 0, "stream": "out", "time_s": 1.7e9, "offset": 3}
ERROR = {"kind": "JobError", "what": "a", "fix": ["b"], "trace": ""}
# By call: what an agent says to it, each message with its data.
ANSWERS: dict[str, list[tuple[dict[str, Any], bytes]]] = {
    "facts": [({"id": 1, "size": 0, "result": FACTS}, b"")],
    "interfaces": [({"id": 1, "size": 0, "result": [INTERFACE]}, b"")],
    "job_list": [({"id": 1, "size": 0, "result": [JOB]}, b"")],
    "job_logs": [
        ({"id": 1, "size": 3, "part": PIECE}, b"a\n\n"),
        ({"id": 1, "size": 0, "result": {}}, b""),
    ],
    "trial_go": [({"id": 1, "size": 0, "error": ERROR}, b"")],
}


def as_said(messages: list[tuple[Any, bytes]]) -> bytes:
    return b"".join(json.dumps(message).encode() + b"\n" + data for message, data in messages)


def messages() -> st.SearchStrategy[bytes]:
    """Bytes on the way from or to an agent."""
    call = {"id": 3, "call": "facts", "args": {"a": [1]}, "size": 2}
    return st.one_of(
        st.binary(max_size=300),
        near_bytes(as_said(ANSWERS["job_logs"])),
        near(call).map(lambda value: as_said([(value, b"ab")])),
        JSON.map(lambda value: as_said([(value, b"")])),
        DEEP.map(lambda text: b'{"size":0,"a":' + text + b"}\n"),
    )


def decode_messages(raw: bytes, folder: Path) -> None:
    del folder
    stream = io.BytesIO(raw)
    with contextlib.suppress(ProtocolError):
        while read_message(stream) is not None:
            pass


class Way:
    """A process that leads to an agent which says one thing, once it is asked."""

    def __init__(self, said: bytes) -> None:
        self._asked = threading.Event()
        self._said = io.BytesIO(said)
        self.stdin = self.stdout = self
        self.stderr = None

    def write(self, data: bytes) -> None:
        self._asked.set()

    def readline(self, limit: int) -> bytes:
        self._asked.wait(PATIENCE_S)
        return self._said.readline(limit)

    def read(self, size: int) -> bytes:
        return self._said.read(size)

    def flush(self) -> None: ...

    def kill(self) -> None: ...

    def close(self) -> None:
        self._asked.set()

    def wait(self, timeout: float | None = None) -> int:
        return 0


def answers() -> st.SearchStrategy[tuple[str, bytes]]:
    """A call, and what a host says to it."""

    def to_call(name: str) -> st.SearchStrategy[tuple[str, bytes]]:
        valid = ANSWERS[name]
        (first, data), rest = valid[0], valid[1:]
        return st.one_of(
            near(first).map(lambda message: as_said([(message, data), *rest])),
            near_bytes(as_said(valid)),
            DEEP.map(lambda text: b'{"id":1,"size":0,"result":' + text + b"}\n"),
        ).map(lambda raw: (name, raw))

    return st.sampled_from(sorted(ANSWERS)).flatmap(to_call)


def use_answer(example: tuple[str, bytes], folder: Path) -> None:
    """Call a host, and show what it said as commands do."""
    del folder
    name, said = example
    way: Any = Way(said)
    with (
        AgentClient("attic", way, lambda: HostError("attic: cut off")) as client,
        contextlib.suppress(YokedError, RemoteBug),
    ):
        if name == "job_logs":
            list(client.stream(name, timeout_s=PATIENCE_S))
            return
        result = client.call(name, timeout_s=PATIENCE_S)
        if name == "job_list":
            show_runs(result)
        if name in ("facts", "interfaces"):
            show_host(**{"facts": FACTS, "interfaces": [INTERFACE], name: result})


def show_runs(jobs: Any) -> None:
    for record in join({"attic": jobs}):
        end = JobEnd(record)
        shown = [end.verdict, end.evidence, end.next_commands(""), end.to_dict(), record.ended_s]
        json.dumps([*shown, record.progress, record.host_of(0)])


def show_host(facts: Any, interfaces: Any) -> None:
    host = Host("attic", interface="eth0")
    look = Look(facts, interfaces, "python3", {"torch": "2.13.0"})
    hosts_lines([host, Host("garage")], {"attic": look, "garage": look})
    json.dumps(payload(host, look))


FLEET = b"""\
[fleet]
name = "home"
ssh_config = "ssh/config"

[[host]]
name = "i9"
ranks = 2
device = "cpu"
interface = "enp4s0"
address = "192.168.1.36"

[[host]]
name = "me@laptop"
python = "~/venv/bin/python"
"""
TOML = st.sampled_from(
    [
        '"~nobody/x"', '"a\\u0000b"', '"\\u001b[2J"', "9" * 5000, "1e400", "nan", "[" * 5000, "-1",
        "{a={b=1}}", "1979-99-27", '"fe80::1%x"', "true", '"""', "10000000000", "0x" + "f" * 9000,
    ]
)  # fmt: skip


@st.composite
def with_another_value(draw: st.DrawFn) -> bytes:
    rows = FLEET.decode().splitlines()
    at = draw(st.sampled_from([number for number, row in enumerate(rows) if "=" in row]))
    value = draw(TOML | JSON.map(json.dumps) | st.text(max_size=20))
    rows[at] = f"{rows[at].partition('=')[0]}= {value}"
    return "\n".join(rows).encode(errors="surrogatepass")


def fleets() -> st.SearchStrategy[bytes]:
    """What a yoked.toml may hold."""
    deep = DEEP.map(lambda text: b"a = " + text)
    return st.one_of(with_another_value(), near_bytes(FLEET), st.binary(max_size=200), deep)


def decode_fleet(raw: bytes, folder: Path) -> None:
    path = folder / "yoked.toml"
    path.write_bytes(raw)
    with contextlib.suppress(FleetError):
        fleet = load_fleet(path)
        # What was taken is written such that it is taken again.
        path.write_text(format_fleet(fleet, {}), encoding="utf-8")
        assert load_fleet(path).hosts == fleet.hosts


def examinations() -> st.SearchStrategy[bytes]:
    """What `yoked doctor --from` may be given: JSON, and bundles."""
    valid = json.loads(json.dumps(to_json(home(("attic", "garage")))))
    bundle = io.BytesIO()
    with zipfile.ZipFile(bundle, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(EXAMINATION, json.dumps({**valid, "hosts": [], "dials": []}))
    return json_files(valid) | near_bytes(bundle.getvalue())


def decode_examination(raw: bytes, folder: Path) -> None:
    path = folder / "seen"
    path.write_bytes(raw)
    with contextlib.suppress(YokedError):
        to_json(from_json(read_saved(path)))
