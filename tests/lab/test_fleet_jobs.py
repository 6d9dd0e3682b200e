"""From a fleet's file to a job on its hosts, as a person types it."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.lab.commands import run, start
from tests.schemas import conforms

from yoked.fleet.file import read_fleet
from yoked.fleet.trust import remember
from yoked.journal import read
from yoked.lab.lab import Lab
from yoked.lab.pytest_plugin import new_lab

pytest.importorskip("torch")

LIMIT_S = 240
SMALL = (
    *("--depth=1", "--max-seq-len=64", "--vocab-size=512", "--total-batch-size=256"),
    *("--num-iterations=4", "--eval-every=-1", "--dtype=float32", "--matmul=mkl", "--data=text"),
    "--keep=all",
)
# Rank 1 raises while rank 0 waits for it.
FAILS = """
import torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    raise ValueError("row 7 has no label")
dist.barrier()
"""
COUNTS = """
import sys, time
import torch.distributed as dist
dist.init_process_group("gloo")
for number in range(int(sys.argv[1])):
    dist.barrier()
    print("number", number, flush=True)
    time.sleep(0.1)
"""


# Reads what was pushed and what was included, and writes what is to come home.
WRITES = """
import os, pathlib
rank = os.environ["RANK"]
pathlib.Path("out").mkdir(exist_ok=True)
rows = pathlib.Path(os.environ["YOKED_DATA_MY_ROWS"], "rows.txt").read_text()
weights = pathlib.Path("weights.bin").read_text()
pathlib.Path(f"out/{rank}.txt").write_text(f"rank {rank}: {rows}, {weights}")
pathlib.Path("out/link").symlink_to("/etc/passwd")
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with new_lab("two-hosts-1gbe") as lab:
        yield lab


def yoked(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run(cwd, *words, limit_s=LIMIT_S)


def of_run(lab: Lab, run: str) -> list[list[str]]:
    """Command lines of processes of a run, on all hosts."""
    found = []
    for host in lab.topology.hosts:
        for process in lab.host(host.name).processes():
            try:
                environ = Path(f"/proc/{process.outer_pid}/environ").read_bytes()
            except OSError:
                continue
            if f"YOKED_RUN={run}\0".encode() in environ:
                found.append(process.command)
    return found


def write_text(folder: Path) -> None:
    """Documents of made-up words, which the controller prepares and sends."""
    draw = random.Random(7)
    words = ["".join(draw.choices("aeioubdfgklmnprst", k=draw.randint(2, 7))) for _ in range(200)]
    documents = [{"text": " ".join(draw.choices(words, k=120))} for _ in range(60)]
    folder.mkdir()
    lines = "".join(json.dumps(document) + "\n" for document in documents)
    (folder / "made-up.jsonl").write_text(lines)


def losses(run_dir: Path) -> list[float]:
    return [event["loss"] for event in read(run_dir / "metrics.jsonl") if "loss" in event]


def test_training_on_two_hosts_is_the_training_of_one(lab: Lab, tmp_path: Path) -> None:
    fleet = ["--fleet", str(lab.fleet_file)]
    write_text(tmp_path / "text")

    plan = yoked(tmp_path, "train", *SMALL, *fleet, "--run=there", "--dry-run", "--json")
    after = yoked(tmp_path, "runs", *fleet, "--json")
    assert conforms("train", json.loads(plan.stdout))["dir"] == "runs/there", plan.stderr
    assert conforms("runs", json.loads(after.stdout))["runs"] == []

    here = yoked(tmp_path, "train", *SMALL, "--fleet=.", "--run=here", "--json")
    done = yoked(tmp_path, "train", *SMALL, *fleet, "--run=there", "--json")

    assert here.returncode == 0, here.stderr
    assert done.returncode == 0, done.stderr
    result = conforms("train", json.loads(done.stdout))
    assert (result["steps"], result["dir"]) == (4, "runs/there")
    assert [host["name"] for host in result["hosts"]] == ["alpha", "beta"]
    assert losses(tmp_path / "runs/there") == pytest.approx(
        losses(tmp_path / "runs/here"), rel=1e-4
    )

    fetched = yoked(tmp_path, "fetch", "there", *fleet)
    assert fetched.returncode == 0, fetched.stderr
    assert list((tmp_path / "runs/there/checkpoints").rglob("model_000004.pt"))
    assert of_run(lab, "there") == []


@pytest.mark.slow
def test_a_training_goes_on_from_another_controller(lab: Lab, tmp_path: Path) -> None:
    fleet = ["--fleet", str(lab.fleet_file)]
    first, second = tmp_path / "first", tmp_path / "second"
    for controller in (first, second):
        controller.mkdir()
    write_text(first / "text")

    begun = yoked(first, "train", *SMALL, *fleet, "--run=moved")
    again = ["train", "--resume", "--run=moved", "--num-iterations=6", *fleet, "--json"]
    done = yoked(second, *again)
    listed = yoked(second, "runs", *fleet, "--json")

    assert begun.returncode == 0, begun.stderr
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 6
    assert len(losses(second / "runs/moved")) == 6
    # Each start is a job, and both are one run.
    rows = [
        row for row in conforms("runs", json.loads(listed.stdout))["runs"] if row["run"] == "moved"
    ]
    assert [(row["job"], row["step"]) for row in rows] == [("moved.2", 6)]


def test_the_rank_that_failed_first_is_shown_and_all_hosts_are_free(
    lab: Lab, tmp_path: Path
) -> None:
    (tmp_path / "fails.py").write_text(FAILS)

    done = yoked(tmp_path, "run", "--fleet", str(lab.fleet_file), "--run=fails", "--", "fails.py")

    assert done.returncode == 1, done.stderr
    assert "rank 1 on beta: ValueError: row 7 has no label" in done.stdout
    assert of_run(lab, "fails") == []
    verdict = json.loads((tmp_path / "runs/fails/result.json").read_text())
    assert (verdict["state"], verdict["faults"][0]["host"]) == ("failed", "beta")

    again = yoked(tmp_path, "run", "--fleet", str(lab.fleet_file), "--run=fails", "--", "fails.py")
    assert again.returncode == 1
    assert "taken" in again.stderr
    assert "--run NAME" in again.stderr


def test_data_and_ignored_files_reach_all_hosts_and_what_they_write_comes_home(
    lab: Lab, tmp_path: Path
) -> None:
    fleet = ["--fleet", str(lab.fleet_file)]
    program, rows = tmp_path / "program", tmp_path / "my rows"
    for folder in (program, rows):
        folder.mkdir()
    (rows / "rows.txt").write_text("7 rows")
    (program / "writes.py").write_text(WRITES)
    (program / ".gitignore").write_text("*.bin\n")
    (program / "weights.bin").write_text("weights")
    (program / "large.bin").write_bytes(bytes(3_000_000))

    pushed = [yoked(program, "push", str(rows), *fleet, "--json") for _ in range(2)]
    words = ("--include=weights.bin", "--outputs=out/", "--run=writes")
    done = yoked(program, "run", *fleet, *words, "--json", "--", "writes.py")

    sent = [
        [
            host["sent_bytes"]
            for host in conforms("push", json.loads(each.stdout))["data"][0]["hosts"]
        ]
        for each in pushed
    ]
    assert sent == [[6, 6], [0, 0]], pushed[0].stderr
    assert done.returncode == 0, done.stderr
    assert "left here by git's rules: 1 file (3.00 MB), the largest large.bin" in done.stderr
    assert "outputs (out/) lie in " in done.stderr
    result = conforms("run", json.loads(done.stdout))
    assert [host["files"] for host in result["outputs"]["hosts"]] == [["out/0.txt"], ["out/1.txt"]]
    home = program / "runs/writes/outputs"
    assert (home / "alpha/out/0.txt").read_text() == "rank 0: 7 rows, weights"
    assert (home / "beta/out/1.txt").read_text() == "rank 1: 7 rows, weights"
    assert not list(home.rglob("link"))

    # From another controller, which knows nothing but the fleet.
    fetched = yoked(rows, "fetch", "writes", *fleet, "--json")
    again = yoked(rows, "fetch", "writes", *fleet, "--json")
    cleaned = yoked(rows, "clean", "writes", *fleet)

    assert conforms("fetch", json.loads(fetched.stdout))["bytes"] == 46, fetched.stderr
    assert json.loads(again.stdout)["bytes"] == 0
    assert (rows / "runs/writes/outputs/beta/out/1.txt").is_file()
    for here in (program / "runs/writes", rows / "runs/writes"):
        run, doctor = (
            json.loads((here / f"{each}.json").read_text()) for each in ("run", "doctor")
        )
        events = [line["event"] for line in read(here / "diagnosis.jsonl")]
        assert [rank["name"] for rank in run["hosts"]] == ["alpha", "beta"]
        assert run["program"] == {"argv": ["writes.py"], "folder": "program"}
        assert (doctor["asked"], doctor["launch_id"]) == (True, run["launch_id"])
        assert (events[0], events[-1]) == ("begin", "end")
    written = json.loads((program / "runs/writes/result.json").read_text())
    assert written == result
    assert cleaned.stdout.count("with outputs (out/: 1 file, 23 B)") == 2, cleaned.stdout


def test_a_training_that_goes_on_is_not_resumed_beside_itself(lab: Lab, tmp_path: Path) -> None:
    fleet = ["--fleet", str(lab.fleet_file)]
    write_text(tmp_path / "text")
    long = [word.replace("iterations=4", "iterations=9000") for word in SMALL]

    begun = yoked(tmp_path, "train", *long, *fleet, "--run=twice", "--detach", "--json")
    again = yoked(tmp_path, "train", *fleet, "--resume", "--run=twice", "--detach", "--json")
    stopped = yoked(tmp_path, "stop", "twice", "--now", *fleet)

    assert conforms("run", json.loads(begun.stdout))["state"] == "running", begun.stderr
    assert again.returncode == 2, again.stdout
    assert json.loads(again.stdout)["error"]["fix"][0].startswith("yoked attach twice --fleet ")
    assert stopped.returncode == 0, stopped.stderr
    assert of_run(lab, "twice") == of_run(lab, "twice.2") == []


def test_ctrl_c_leaves_a_job_running_and_stop_ends_it(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "counts.py").write_text(COUNTS)
    fleet = ["--fleet", str(lab.fleet_file)]
    job = start(tmp_path, "run", *fleet, "--run=counts", "--", "counts.py", "2000")
    assert job.stdout is not None
    first = job.stdout.readline()

    job.send_signal(signal.SIGINT)
    left, _ = job.communicate(timeout=LIMIT_S)
    still_there = of_run(lab, "counts")
    stopped = yoked(tmp_path, "stop", "counts", "--now", *fleet)

    assert first == "number 0\n"
    assert "counts goes on" in left
    assert still_there
    assert stopped.returncode == 0, stopped.stderr
    end_s = time.monotonic() + 20
    while of_run(lab, "counts") and time.monotonic() < end_s:
        time.sleep(0.1)
    assert of_run(lab, "counts") == []
    log = yoked(tmp_path, "logs", "counts", "--rank=0", *fleet).stdout
    numbers = [int(line.rpartition(" ")[2]) for line in log.splitlines() if "number" in line]
    assert numbers == list(range(len(numbers)))
    assert numbers


def test_a_host_that_nobody_can_reach_is_named_with_sshs_own_reason(
    lab: Lab, tmp_path: Path
) -> None:
    text = lab.fleet_file.read_text()
    (tmp_path / "yoked.toml").write_text(text.replace('"beta"', '"no-such-host.invalid"'))
    remember(read_fleet(tmp_path / "yoked.toml"))
    (tmp_path / "counts.py").write_text(COUNTS)

    done = yoked(tmp_path, "run", "--", "counts.py", "3")

    assert done.returncode == 1
    assert "no-such-host.invalid: " in done.stderr
    assert "hostname no-such-host.invalid: " in done.stderr


def test_variables_of_the_shell_reach_the_ranks_of_all_hosts_and_secrets_by_request(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("WANDB_MODE", "HF_TOKEN", "WANDB_API_KEY", "MY_SETTING")
    (tmp_path / "tells.py").write_text(
        f"import os\nprint([os.environ.get(name) for name in {names}], flush=True)\n"
    )
    for name in names:
        monkeypatch.setenv(name, f"of {name}")
    fleet = ["--fleet", str(lab.fleet_file)]

    asked = ["--env=HF_TOKEN", "--env=MY_SETTING", "--no-bootstrap", "--no-doctor"]
    done = yoked(tmp_path, "run", *fleet, "--run=told", *asked, "tells.py")
    said = yoked(tmp_path, "logs", "told", *fleet)

    assert done.returncode == 0, done.stderr
    assert "no rank has WANDB_API_KEY" in done.stderr
    expected = "['of WANDB_MODE', 'of HF_TOKEN', None, 'of MY_SETTING']"
    assert said.stdout.count(expected) == 2, said.stdout


def test_a_module_that_one_host_lacks_is_told_with_that_host_its_python_and_the_line(
    lab: Lab, tmp_path: Path
) -> None:
    (tmp_path / "needs.py").write_text(
        "import os, time\n"
        "if os.environ['RANK'] == '1':\n    import nobody_has_this\n"
        "time.sleep(60)\n"
    )

    options = ["--run=needs", "--no-bootstrap", "--no-doctor", "--json"]
    done = yoked(tmp_path, "run", "--fleet", str(lab.fleet_file), *options, "needs.py")

    (fault,) = json.loads(done.stdout)["faults"]
    assert (fault["cause"], fault["host"], fault["rank"]) == ("module-missing", "beta", 1)
    assert fault["evidence"][0].endswith(" on beta has no module nobody_has_this")
    assert fault["fix"][0].endswith(" -m pip install nobody-has-this    on beta")
