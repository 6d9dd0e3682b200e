"""The script for Slurm, run by bash with stand-ins for Slurm's programs."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.errors import UsageError
from yoked.launch.manifests import slurm
from yoked.launch.manifests.slurm import SlurmOptions, sbatch_script
from yoked.launch.manifests.spec import ManifestSpec, Program

AWKWARD = ("--data", 'it\'s a "folder"', "$HOME", "a\nb", "*", "", "`id`", "--run", "r", "\\")
TRAIN = Program(
    kind="module",
    name="yoked.train",
    args=("--depth=8", "--run", "r"),
    run_folder=".",
    resume_args=("--resume", "--run", "r"),
)
SPEC = ManifestSpec(run="r", program=TRAIN, nodes=2)
JOB = {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "node[7-8]", "SLURM_JOB_NUM_NODES": "2"}
DEADLINE_S = 20.0


def script(spec: ManifestSpec = SPEC, options: SlurmOptions | None = None) -> str:
    return sbatch_script(spec, options or SlurmOptions()).text


def run(stage: Any, spec: ManifestSpec, **environment: str) -> tuple[int, str]:
    found: tuple[int, str] = stage.run(["bash", "-c", script(spec)], {**JOB, **environment})
    return found


def program_arguments(call: dict[str, Any]) -> list[str]:
    """What torchrun was given behind the program's name."""
    argv: list[str] = call["argv"]
    return argv[argv.index("--") + 2 :]


@pytest.mark.parametrize(
    "program", [TRAIN, Program(kind="script", name="a b.py", args=("it's", "two words", "*"))]
)
def test_bash_and_shellcheck_find_nothing(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    spec = replace(SPEC, program=program, interface="ib*", adapters="mlx5_0,mlx5_1", restarts=2)
    path.write_text(script(spec, SlurmOptions(time="1-00:00:00", partition="p", account="a")))

    subprocess.run(["bash", "-n", str(path)], check=True)
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    checked = subprocess.run(["shellcheck", str(path)], check=False, capture_output=True, text=True)

    assert checked.stdout == ""


def test_an_array_without_words_is_none_that_is_not_set_in_an_old_bash() -> None:
    text = (Path(slurm.__file__).parent / "slurm.sh").read_text()

    # The program always has words.
    bare = re.findall(r"""(?<!\+)"\$\{(\w+)\[@\]\}\"""", text)

    assert set(bare) == {"target"}


def test_every_argument_reaches_the_program_as_it_was_given(stage: Any) -> None:
    program = Program(kind="script", name="my script.py", args=AWKWARD)

    status, said = run(stage, replace(SPEC, program=program))

    assert (status, said) == (0, "")
    argv = stage.calls()[0]["argv"]
    assert argv[-len(AWKWARD) - 2 :] == ["--", "my script.py", *AWKWARD]


def test_torchrun_gets_the_nodes_of_the_allocation(stage: Any) -> None:
    run(stage, replace(SPEC, ranks_per_node=4), SLURM_CPUS_ON_NODE="8")

    call = stage.calls()[0]
    assert {
        "--nnodes=2",
        "--nproc-per-node=4",
        "--node-rank=0",
        "--master-addr=node7",
        "--master-port=10420",
    } <= set(call["argv"])
    assert call["environment"]["OMP_NUM_THREADS"] == "2"


def test_each_start_of_the_job_has_a_secret_that_is_in_no_command_line(stage: Any) -> None:
    for _ in range(2):
        run(stage, SPEC, YOKED_SECRET="of the shell that called sbatch")

    calls = stage.calls()
    first, second = (call["environment"]["YOKED_SECRET"] for call in calls)
    assert (len(bytes.fromhex(first)), len(bytes.fromhex(second))) == (32, 32)
    assert first != second
    assert not any(secret in str(call["argv"]) for call in calls for secret in (first, second))
    assert first not in stage.said_to_slurm()


def test_another_address_for_the_first_node_can_be_named(stage: Any) -> None:
    run(stage, SPEC, YOKED_MASTER_ADDR="10.0.0.7")

    assert "--master-addr=10.0.0.7" in stage.calls()[0]["argv"]


def test_gloo_and_nccl_get_the_interface_that_a_pattern_finds(stage: Any) -> None:
    run(stage, replace(SPEC, interface="l?"))

    environment = stage.calls()[0]["environment"]
    assert (environment["GLOO_SOCKET_IFNAME"], environment["NCCL_SOCKET_IFNAME"]) == ("lo", "=lo")


def test_a_node_without_such_an_interface_is_named(stage: Any, snapshot: SnapshotAssertion) -> None:
    status, said = run(stage, replace(SPEC, interface="rocket*"))

    assert status == 1
    assert said == snapshot
    assert stage.calls() == []


def test_a_run_that_was_begun_goes_on(stage: Any) -> None:
    (stage.folder / "run.json").write_text("{}")

    run(stage, SPEC)

    assert program_arguments(stage.calls()[0]) == ["--resume", "--run", "r"]


def test_a_failed_start_is_tried_again_as_often_as_restarts_says(
    stage: Any, snapshot: SnapshotAssertion
) -> None:
    (stage.programs / "statuses").write_text("3 4 5")

    status, said = run(stage, replace(SPEC, restarts=1))

    assert status == 4
    assert len(stage.calls()) == 2
    assert said == snapshot
    ports = [a for call in stage.calls() for a in call["argv"] if a.startswith("--master-port")]
    assert ports == ["--master-port=10420", "--master-port=10421"]


def start_waiting(stage: Any, text: str, **environment: str) -> subprocess.Popen[str]:
    """Run a script until its ranks are there."""
    process: subprocess.Popen[str] = stage.start(["bash", "-c", text], {**JOB, **environment})
    started = stage.programs / "started"
    until(lambda: started.exists() and bool(started.read_text()))
    return process


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.01)


def signalled(stage: Any, spec: ManifestSpec, steps: str, **environment: str) -> tuple[int, str]:
    """Run the script and tell it that its time is nearly up; its ranks write `steps` then."""
    (stage.programs / "waits").write_text(steps)
    process = start_waiting(stage, script(spec), **environment)
    process.send_signal(signal.SIGUSR1)
    said, _ = process.communicate(timeout=DEADLINE_S)
    return process.returncode, said


def test_a_program_that_does_not_listen_may_use_the_rest_of_its_time(stage: Any) -> None:
    (stage.programs / "deaf").touch()
    (stage.programs / "statuses").write_text("7")
    spec = replace(SPEC, program=Program(kind="module", name="other"))
    process = start_waiting(stage, script(spec).replace("save_limit_s=45", "save_limit_s=0"))

    process.send_signal(signal.SIGUSR1)
    until(lambda: "scancel" in stage.said_to_slurm())
    (stage.programs / "deaf").unlink()
    said, _ = process.communicate(timeout=DEADLINE_S)

    assert process.returncode == 7, said
    assert "requeue" not in stage.said_to_slurm()


def test_before_the_time_is_up_ranks_save_and_the_job_is_requeued(stage: Any) -> None:
    status, said = signalled(stage, SPEC, steps='{"step": 0}\n')

    assert status == 0, said
    slurm = stage.said_to_slurm()
    assert slurm.endswith("scancel --signal=INT 42\nscontrol requeue 42\n")
    assert "srun --kill-on-bad-exit=1\n" in slurm


def test_a_job_that_took_no_step_is_not_requeued(stage: Any, snapshot: SnapshotAssertion) -> None:
    status, said = signalled(stage, SPEC, steps="")

    assert status == 1
    assert said == snapshot
    assert "requeue" not in stage.said_to_slurm()


@pytest.mark.parametrize(("requeued", "again"), [("0", True), ("1", False)])
def test_another_program_is_requeued_as_often_as_restarts_says(
    stage: Any, requeued: str, again: bool
) -> None:
    program = Program(kind="module", name="other")
    spec = replace(SPEC, program=program, restarts=1)

    signalled(stage, spec, steps="", SLURM_RESTART_COUNT=requeued)

    assert ("scontrol requeue 42" in stage.said_to_slurm()) is again


def test_what_is_asked_of_slurm_stands_in_the_header() -> None:
    spec = replace(SPEC, run="my run 50%", gpus_per_node=8, cpus_per_node=64)

    lines = script(spec, SlurmOptions(time="2:00:00", partition="gpu", account="team")).splitlines()

    asked = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]
    assert asked == [
        "--job-name=my-run-50-",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--cpus-per-task=64",
        "--gpus-per-node=8",
        "--time=2:00:00",
        "--partition=gpu",
        "--account=team",
        "--output=my-run-50-.%j.log",
        "--open-mode=append",
        "--signal=B:USR1@60",
        "--requeue",
    ]


@pytest.mark.parametrize("time_limit", ["30", "30:00", "2:00:00", "1-0", "1-12:30", "7-00:00:00"])
def test_slurms_forms_of_a_time_are_taken(time_limit: str) -> None:
    assert f"--time={time_limit}\n" in script(SPEC, SlurmOptions(time=time_limit))


@pytest.mark.parametrize(
    "options",
    [{"time": "2h"}, {"time": "1:2:3:4"}, {"partition": "a b"}, {"account": "x\n#SBATCH -N9"}],
)
def test_what_could_not_stand_in_the_header_is_refused(
    options: dict[str, str], snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(UsageError) as caught:
        SlurmOptions(**options)
    assert str(caught.value) == snapshot


@pytest.mark.parametrize(
    "change",
    [
        {"nodes": 0},
        {"gpus_per_node": 0},
        {"restarts": -1},
        {"interface": "eth0; reboot"},
        {"adapters": "mlx5_0 mlx5_1"},
    ],
)
def test_a_spec_that_cannot_be_meant_names_its_flag(
    change: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(UsageError) as caught:
        replace(SPEC, **change)
    assert str(caught.value) == snapshot
