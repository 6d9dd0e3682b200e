"""Programs that know nothing of Gloo, under torchrun with the rank program."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from torch import nn
from torch.distributed import TCPStore

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"

pytestmark = pytest.mark.distributed


@dataclass
class Attempt:
    """Two ranks of a job folder under torchrun."""

    folder: Path
    status: int
    said: str

    def log(self, rank: int, stream: str = "out") -> str:
        return (self.folder / "logs" / f"{rank}.0.{stream}").read_text()

    def result(self, rank: int) -> dict[str, Any]:
        assert self.status == 0, (self.said, self.log(0, "err"), self.log(1, "err"))
        found: dict[str, Any] = json.loads(self.log(rank).splitlines()[-1])
        return found

    def told(self) -> list[str]:
        return [line for line in self.log(0, "err").splitlines() if line.startswith("yoked: ")]


Write = Callable[..., Path]


@pytest.fixture
def write_job(tmp_path: Path) -> Write:
    """Writes a job of two ranks on this machine; gives the path of job.json."""

    def write(script: str = "", *args: str, cwd: Path = PROGRAMS, **changes: Any) -> Path:
        folder = tmp_path / "job"
        folder.mkdir()
        job = {
            "version": 1,
            "run": "tried",
            "launch_id": "0123456789ab",
            "folder": str(folder),
            "node_rank": 0,
            "nodes": [{"host": "here", "address": "127.0.0.1", "ranks": 2}],
            "control_port": 1,
            "control_fd": None,
            "restarts": 0,
            "resume_args": [],
            "program": {"kind": "script", "name": script, "args": list(args)},
            "cwd": str(cwd),
            "bootstrap": True,
            **changes,
        }
        (folder / "job.json").write_text(json.dumps(job))
        return folder / "job.json"

    return write


def under_torchrun(lab: Any, job: Path) -> Any:
    """The rank program as torchrun starts it."""
    return lab.start(
        [
            *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            *("-m", "yoked.launch.bootstrap.rank", str(job)),
        ],
        {"GLOO_SOCKET_IFNAME": "lo", "PYTHONDONTWRITEBYTECODE": "1"},
    )


@pytest.fixture
def start(lab: Any) -> Callable[[Path], list[Any]]:
    """Starts the two ranks of a job in torchrun's environment; without torchrun it is faster."""
    stores = []

    def ranks(job: Path) -> list[Any]:
        # In torchrun's place. It must outlive the ranks.
        stores.append(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
        common = {
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(stores[-1].port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "GLOO_SOCKET_IFNAME": "lo",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = ["-m", "yoked.launch.bootstrap.rank", str(job)]
        return [
            lab.start(command, {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(2)
        ]

    return ranks


@pytest.fixture
def attempt(write_job: Write, start: Callable[[Path], list[Any]]) -> Callable[..., Attempt]:
    """Runs a program on two ranks to its end."""

    def ended(*args: Any, **options: Any) -> Attempt:
        job = write_job(*args, **options)
        ends = [rank.end() for rank in start(job)]
        said = "".join(end.stderr for end in ends)
        return Attempt(job.parent, max(end.status for end in ends), said)

    return ended


def until(condition: Callable[[], bool], started: Any) -> None:
    """Poll until it is so; fails when the command ended before."""
    while not condition():
        assert started.process.poll() is None, started.end()
        time.sleep(0.05)


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, PROGRAMS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_a_ddp_script_for_nccl_trains_as_one_process_on_all_rows(
    write_job: Write, lab: Any, snapshot: SnapshotAssertion
) -> None:
    ddp = load("ddp")
    model = ddp.build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(ddp.STEPS):
        rows = [ddp.rows(step, rank) for rank in range(2)]
        inputs, targets = (torch.cat(parts) for parts in zip(*rows, strict=True))
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()

    job = write_job("ddp.py")
    end = under_torchrun(lab, job).end()
    tried = Attempt(job.parent, end.status, end.stderr)

    first, second = tried.result(0), tried.result(1)
    assert first["weights"] == second["weights"]
    torch.testing.assert_close(torch.tensor(first["weights"]), ddp.flat(model))
    assert [first["part"], second["part"]] == [[1.0, 3.0], [5.0, 7.0]]
    assert tried.told() == snapshot


@pytest.mark.slow
def test_an_accelerate_script_shares_its_gradients(attempt: Callable[..., Attempt]) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")

    tried = attempt("accelerate_loop.py")

    first, second = tried.result(0), tried.result(1)
    assert first["ranks"] == 2
    assert first["weights"] == second["weights"]
    assert first["losses"][0] != first["losses"][-1]


def test_what_gloo_lacks_has_the_meaning_that_nccl_gives_it(
    attempt: Callable[..., Attempt],
) -> None:
    tried = attempt("collectives.py")

    for rank in range(2):
        result = tried.result(rank)
        assert result["failed"] == []
        assert result["tried"] == 9
    assert len(tried.told()) == 5
    assert not tried.log(1, "err")


@pytest.mark.slow
def test_a_distributed_checkpoint_is_loaded_though_hosts_share_no_disk(
    attempt: Callable[..., Attempt], tmp_path: Path
) -> None:
    tried = attempt("saves_apart.py", str(tmp_path))

    expected = {
        "loaded": [[1.0, 1.0], [2.0, 2.0], [2.0, 2.0]],
        "files": [".metadata", "__0_0.distcp", "__1_0.distcp"],
    }
    assert tried.result(0) == tried.result(1) == expected


@pytest.mark.slow
def test_a_program_without_a_group_has_one_when_it_first_steps(
    attempt: Callable[..., Attempt],
    snapshot: SnapshotAssertion,
) -> None:
    tried = attempt("no_group.py")

    # The mean of both ranks' gradients, 1 and 3.
    expected = {"before": False, "shared": True, "weight": -2.0}
    assert tried.result(0) == tried.result(1) == expected
    assert tried.told() == snapshot


@pytest.mark.slow
def test_a_programs_own_group_replaces_the_one_that_was_started_for_it(
    attempt: Callable[..., Attempt],
) -> None:
    tried = attempt("uses_then_starts.py")

    expected = {"total": 2.0, "restarted": False}
    assert tried.result(0) == {"before": 0, **expected}
    assert tried.result(1) == {"before": 1, **expected}


@pytest.mark.parametrize("group", ["starts", "uses"])
def test_ranks_of_a_program_that_knows_nothing_of_it_prove_the_secret(
    attempt: Callable[..., Attempt], group: str
) -> None:
    ended = attempt("strange_rank.py", group)

    assert ended.status == 1
    for rank in (0, 1):
        left = json.loads((ended.folder / "errors" / f"0.{rank}.json").read_text())
        assert left["kind"] == "MeetingError"
        assert f"rank {1 - rank} " in left["what"]
        assert ended.log(rank) == ""


def test_nanochat_finds_one_dtype_and_a_group(attempt: Callable[..., Attempt]) -> None:
    cwd = PROGRAMS / "small_nanochat"

    tried = attempt(
        cwd=cwd,
        program={"kind": "module", "name": "scripts.train", "args": ["--device-type=cpu"]},
    )

    first = tried.result(0)
    assert first == tried.result(1)
    assert first["dtype"] in ("float32", "bfloat16")
    assert first["sdpa"] == "1"
    assert first["ranks"] == 2
    assert first["args"] == ["--device-type=cpu"]
    # This version names no NANOCHAT_DATA_DIR.
    assert first["data"] is None


def test_a_program_that_ends_with_a_collective_ends_well(attempt: Callable[..., Attempt]) -> None:
    """Without a pause, Gloo's thread frees its tensors while Python ends: SIGABRT."""
    ended = attempt("ends_at_once.py")

    assert ended.status == 0, (ended.log(0, "err"), ended.log(1, "err"))


def test_a_failed_rank_ends_though_its_collective_cannot(
    write_job: Write, start: Callable[[Path], list[Any]], tmp_path: Path
) -> None:
    (tmp_path / "fails.py").write_text(
        "import time, torch, torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "if dist.get_rank() == 0:\n"
        "    time.sleep(600)\n"
        "work = dist.all_reduce(torch.ones(1), async_op=True)\n"
        "raise ValueError('bad row')\n"
    )
    job = write_job(str(tmp_path / "fails.py"))

    waiting, failing = start(job)
    status = failing.end().status

    assert status == 1
    assert waiting.process.poll() is None
    error = json.loads((job.parent / "errors" / "0.1.json").read_text())
    assert error["what"] == "ValueError: bad row"
    assert error["traceback"].count("File ") == 1


def test_a_rank_dies_with_its_torchrun(write_job: Write, lab: Any, tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text("import time\nprint('up')\ntime.sleep(600)\n")
    job = write_job(str(tmp_path / "waits.py"), bootstrap=False)
    torchrun = under_torchrun(lab, job)
    logs = [job.parent / "logs" / f"{rank}.0.out" for rank in range(2)]
    until(lambda: all(log.exists() and log.read_text() == "up\n" for log in logs), torchrun)
    ranks = torchrun.ranks()

    torchrun.process.kill()

    _, alive = psutil.wait_procs(ranks, timeout=30)
    for rank in alive:
        rank.kill()
    torchrun.end()
    assert len(ranks) == 2
    assert not alive
