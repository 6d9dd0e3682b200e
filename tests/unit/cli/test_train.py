from __future__ import annotations

import errno
import io
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.cli.commands import train
from yoked.cli.commands.train import with_run_name
from yoked.cli.flags import JobFlags
from yoked.cli.output import Output
from yoked.errors import UsageError, YokedError
from yoked.report import loss_plot
from yoked.train.config import TrainConfig

RESULT = {
    "run": "r",
    "steps": 20,
    "tokens": 10_240,
    "loss": 4.5,
    "val_bpb": 1.9,
    "tokens_per_second": 2_345.6,
    "first_step_s": 3.2,
    "bytes_sent_per_step": 46_100_000,
}


class Trainer:
    """Stands in for training: remembers what it was asked, answers with a result."""

    def __init__(self, **changes: Any) -> None:
        self.asked: list[TrainConfig] = []
        self._changes = changes

    def __call__(
        self, config: TrainConfig, flags: JobFlags, output: Output
    ) -> Mapping[str, Any] | None:
        if flags.detach:
            return None
        self.asked.append(config)
        return {**RESULT, "dir": str(config.runs_dir / str(config.run)), **self._changes}


@pytest.fixture(autouse=True)
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_plot, "plot_loss", lambda folder: (folder / "loss.png", None))


def run(
    config: TrainConfig, trainer: Trainer, *, json_mode: bool = False, detach: bool = False
) -> tuple[int, str]:
    stdout = io.StringIO()
    output = Output(json_mode=json_mode, stdout=stdout)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "train_here", trainer)
        status = train.run_training(config, output, JobFlags(detach=detach))
    return status, stdout.getvalue()


def test_a_run_that_is_left_to_itself_says_how_to_come_back() -> None:
    status, said = run(TrainConfig(run="r"), Trainer(), detach=True)

    assert status == 0
    assert "next: yoked attach r" in said
    assert "next: yoked stop r" in said


@pytest.mark.parametrize(("step", "is_said"), [(12, True), (20, False)])
def test_a_checkpoint_that_was_better_than_the_last_is_named(step: int, is_said: bool) -> None:
    _, said = run(TrainConfig(run="r"), Trainer(best={"step": step, "val_bpb": 1.8}))
    assert ("best        1.8000 at step 12: --checkpoint best" in said) is is_said


def test_people_get_verdict_evidence_and_next_command(snapshot: SnapshotAssertion) -> None:
    status, said = run(TrainConfig(run="r"), Trainer())

    assert status == 0
    assert said.splitlines()[0] == "trained: run r, 20 steps, 10.2k tokens"
    assert "4.5000 nats" in said
    assert said == snapshot
    assert "46.1 MB a step" in said
    assert "next: yoked sample r" in said


def test_a_run_that_was_started_again_says_why_at_its_end() -> None:
    why = "attempt 1 failed: rank 1 on pi: killed by SIGKILL"

    _, said = run(TrainConfig(run="r"), Trainer(restarts=[why]))

    assert why in said


def test_programs_get_the_promised_keys_in_one_object() -> None:
    status, said = run(TrainConfig(run="r"), Trainer(), json_mode=True)

    assert status == 0
    payload = json.loads(said)
    assert payload.items() >= RESULT.items()
    assert payload["plot"].endswith("loss.png")


def test_an_interrupted_run_says_how_to_go_on_and_ends_with_130(
    snapshot: SnapshotAssertion,
) -> None:
    status, said = run(
        TrainConfig(run="r", runs_dir=Path("elsewhere")),
        Trainer(state="interrupted"),
    )

    assert status == 130
    assert said == snapshot


@pytest.mark.parametrize(
    "problem", [YokedError("no loss"), OSError(errno.ENOSPC, "No space left on device")]
)
def test_a_plot_that_fails_does_not_fail_the_training(
    monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    def no_plot(run_dir: Path) -> Path:
        raise problem

    monkeypatch.setattr(loss_plot, "plot_loss", no_plot)

    status, said = run(TrainConfig(run="r"), Trainer(), json_mode=True)

    assert status == 0
    assert "plot" not in json.loads(said)


def planned(**outlook: Any) -> Trainer:
    """Answers with a plan."""
    return Trainer(
        params={"wte": 8_388_608, "total": 36_700_290},
        choices=[{"name": "dtype", "value": "bfloat16", "reason": "2.1x float32 on this CPU"}],
        data={
            "name": "farm",
            "vocab_size": 26_259,
            "requested_vocab_size": 32_768,
            "train_tokens": 482_000,
        },
        horizon={"num_iterations": 500, "total_batch_size": 4096},
        outlook={
            "step_s": 1.5,
            "time_s": 4000.0,
            "epochs": 4.25,
            "remark": "4.2 epochs of farm: expect memorising",
            "checkpoint_bytes": 440_000_000,
            "disk_bytes": 1_760_000_000,
            "free_bytes": 73_000_000_000,
            "memory": [{"host": "i9", "need_bytes": 1.1e9, "may_use_bytes": 16e9}],
            **outlook,
        },
    )


def test_a_dry_run_says_what_the_run_will_take(snapshot: SnapshotAssertion) -> None:
    status, said = run(TrainConfig(dry_run=True), planned())

    assert status == 0
    assert said == snapshot


def test_a_dry_run_says_of_what_there_is_too_little_and_what_is_not_known() -> None:
    little = [{"host": "i9", "need_bytes": 17e9, "may_use_bytes": 16e9}]

    _, said = run(
        TrainConfig(dry_run=True),
        planned(free_bytes=10**9, memory=little, time_s=None, remark=None),
    )

    lines = {line.split()[0]: line for line in said.splitlines()}
    assert lines["disk"].endswith("of 1.00 GB free: TOO LITTLE")
    assert lines["memory"].endswith("of 16.0 GB: TOO LITTLE")
    assert "time" not in lines
    assert "remark" not in lines


def test_a_dry_run_shows_each_choice_with_its_reason_and_names_no_run() -> None:
    plan = planned()

    status, said = run(TrainConfig(dry_run=True), plan)

    assert status == 0
    assert plan.asked[0].run is None
    assert "36,700,290" in said
    assert "bfloat16  (2.1x float32 on this CPU)" in said


def test_flags_without_effect_are_noted_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    run(TrainConfig(run="r", sample_every=10), Trainer())

    assert "note: --sample-every" in capsys.readouterr().err


def test_a_new_run_is_named_by_the_time_and_a_resumed_one_is_the_latest(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    now = datetime(2026, 7, 1, 12, 30, 5, tzinfo=UTC)
    new = with_run_name(TrainConfig(runs_dir=tmp_path), now)
    with pytest.raises(UsageError) as caught:
        with_run_name(TrainConfig(runs_dir=tmp_path, resume=True), now)
    assert str(caught.value) == snapshot
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "run.json").write_text("{}")

    resumed = with_run_name(TrainConfig(runs_dir=tmp_path, resume_from_step=5), now)

    assert new.run == "20260701-123005"
    assert (resumed.run, resumed.ranks) == ("old", 1)


def test_a_resumed_run_gets_the_ranks_it_had_unless_others_are_given(tmp_path: Path) -> None:
    now = datetime(2026, 7, 1, tzinfo=UTC)
    (tmp_path / "old").mkdir()
    recorded = {"config": TrainConfig(run="old", shares="3:1:1").to_dict()}
    (tmp_path / "old" / "run.json").write_text(json.dumps(recorded))

    same = with_run_name(TrainConfig(runs_dir=tmp_path, resume=True), now)
    other = with_run_name(TrainConfig(runs_dir=tmp_path, resume=True, ranks=2), now)

    assert (same.ranks, other.ranks) == (3, 2)
