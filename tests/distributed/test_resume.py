"""Going on where a run was stopped: the same rows, the same curve, on any number of ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.distributed.conftest import UNDRAWN, YOKED

from yoked.train.checkpoint import CheckpointStore

pytestmark = pytest.mark.distributed

KILL_BENCH = Path(__file__).parents[2] / "benchmarks" / "kill_resume" / "bench.py"
# Ranks sum in another order, so a run that changes their number rounds otherwise.
ROUNDING_NATS = 1e-4


def test_the_checkpoint_that_validation_found_best_outlives_newer_ones(lab: Any) -> None:
    # With such a rate the loss rises once warm-up ends.
    wild = lab.flags(eval_every=1, save_every=2, num_iterations=8, eval_tokens=512)
    wild += ["--keep-last=1", "--warmup-steps=4", "--unembedding-lr=9", "--embedding-lr=90"]

    ended = lab.train("wild", *wild, ranks=2).end()

    assert ended.status == 0, ended.stderr
    bpb = lab.curve("wild").eval_bpb
    best = 1 + bpb.index(min(bpb))
    assert best < 8, bpb
    assert CheckpointStore(lab.checkpoints("wild")).steps() == [best, 8]
    assert ended.json["best"] == {"step": best, "val_bpb": min(bpb)}


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_ranks(lab: Any) -> None:
    whole = lab.train("whole").end()
    first = lab.train("moved", *lab.flags(num_iterations=12)).end()
    assert (whole.status, first.status) == (0, 0)

    statuses = [
        lab.train("moved", f"--resume-from-step={step}", ranks=ranks).end().status
        for step, ranks in ((4, 2), (8, 3), (8, 1))
    ]

    assert statuses == [0, 0, 0]
    assert lab.curve("moved").steps == list(range(12))
    assert lab.curve("moved").losses == pytest.approx(lab.curve("whole").losses, abs=ROUNDING_NATS)
    assert lab.curve("moved").eval_bpb == pytest.approx(lab.curve("whole").eval_bpb, abs=1e-4)


@pytest.mark.slow
def test_a_lm_head_that_ranks_do_not_have_whole_is_saved_whole_and_goes_on_on_any_number_of_ranks(
    lab: Any,
) -> None:
    flags = lab.flags(max_seq_len=16, total_batch_size=64)
    alone = lab.train("alone", *flags).end()
    apart = lab.train("apart", *flags, "--shares=3:1", "--lm-head=vocab-parallel", ranks=2).end()
    assert (alone.status, apart.status) == (0, 0), apart.stderr
    kept = {choice["name"]: choice["value"] for choice in apart.json["choices"]}
    assert kept["lm_head"] == "vocab-parallel"

    first = lab.curve("apart").losses
    again = lab.train("apart", "--resume-from-step=4", ranks=2).end()
    repeated = lab.curve("apart").losses
    on_one = lab.train("apart", "--resume-from-step=8", "--lm-head=auto").end()

    assert (again.status, on_one.status) == (0, 0), on_one.stderr
    assert repeated == first
    assert lab.curve("apart").losses == pytest.approx(lab.curve("alone").losses, abs=ROUNDING_NATS)
    assert lab.curve("apart").eval_bpb == pytest.approx(lab.curve("alone").eval_bpb, abs=1e-4)


def test_a_run_is_drawn_when_it_ends(trained: Path) -> None:
    assert {"loss.png", "loss.svg"} <= {file.name for file in trained.iterdir()}


def test_a_resumed_run_computes_the_same_bits(lab: Any, done: list[float]) -> None:
    ended = lab.train("done", "--resume-from-step=4").end()

    assert ended.status == 0
    assert lab.curve("done").losses == done


def test_gradients_that_wait_are_saved_and_used_by_the_resumed_run(lab: Any) -> None:
    # Late are the steps from 2 to 27.
    flags = lab.flags(sync="late", warmup_steps=2, num_iterations=32, save_every=11, eval_every=-1)
    ended = lab.train("late", *flags, ranks=2).end()
    assert ended.status == 0, ended.stdout
    done = lab.curve("late").losses

    again = lab.train("late", "--resume-from-step=11", ranks=2).end()

    assert again.status == 0, again.stdout
    assert lab.curve("late").losses == done


@pytest.mark.slow
def test_data_that_was_named_from_where_one_stood_is_found_from_another_folder(lab: Any) -> None:
    data = os.path.relpath(lab.text, lab.root)
    lab.train("moved", *lab.flags(data=data, num_iterations=4)).end()
    (lab.root / "elsewhere").mkdir()
    elsewhere = "import os; os.chdir('elsewhere'); " + UNDRAWN + YOKED
    again = ["train", "--json", "--dry-run", f"--runs-dir={lab.runs}"]

    resumed = lab.start(["-c", elsewhere, *again, "--run=moved", "--resume", "--num-iterations=8"])
    repeated = lab.start(["-c", elsewhere, *again, f"--config={lab.runs / 'moved' / 'run.json'}"])

    record = json.loads((lab.runs / "moved" / "run.json").read_text())
    for started in (resumed, repeated):
        ended = started.end()
        assert ended.status == 0, ended.stderr
        assert ended.json["data"]["fingerprint"] == record["data"]["fingerprint"]


def test_saved_shares_give_way_to_the_ranks_of_a_resumed_run(lab: Any) -> None:
    assert lab.train("shared", *lab.flags(), "--shares=3:1", ranks=2).end().status == 0

    ended = lab.train("shared", "--resume-from-step=8", ranks=3).end()

    assert ended.status == 0, ended.stderr
    assert [host["ranks"] for host in ended.json["hosts"]] == [3]


@pytest.fixture
def says(lab: Any, done: list[float]) -> Callable[..., tuple[int, str]]:
    """Status and error of going on with flags; the run stays as it was."""

    def refusal(*flags: str) -> tuple[int, str]:
        ended = lab.train("done", *flags).end()
        assert lab.curve("done").losses == done
        return ended.status, ended.json["error"]["what"]

    return refusal


def test_what_cannot_be_gone_on_with_is_said_with_its_reason(
    lab: Any, says: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    other = tmp_path / "other.txt"
    other.write_text("\n".join(f"{n} quite other words {n * n}" for n in range(20_000)))

    missing = says("--resume-from-step=5")
    data = says("--resume-from-step=4", f"--data={other}")
    seed = says("--resume-from-step=4", "--seed=7")
    unknown = lab.train("nobody", "--resume").end()

    assert missing[0] == 1
    assert "there are: 4, 8, 12" in missing[1]
    assert data[0] == 1
    assert "other data" in data[1] or "another model" in data[1]
    assert seed[0] == 2
    assert "began with 42" in seed[1]
    assert unknown.status == 2


# More of the same check of what a run began with.
@pytest.mark.slow
def test_other_settings_and_a_finished_run_cannot_be_gone_on_with(
    says: Callable[..., tuple[int, str]],
    snapshot: SnapshotAssertion,
) -> None:
    finished = says("--resume")
    fewer = says("--resume", "--num-iterations=5")
    batch = says("--resume-from-step=4", "--total-batch-size=1024")
    dtype = says("--resume-from-step=4", "--dtype=bfloat16")

    assert (finished, fewer, batch, dtype) == snapshot


def test_a_model_is_not_taken_to_the_tokens_of_another_vocabulary(
    lab: Any, done: list[float], tmp_path: Path
) -> None:
    other = tmp_path / "other.txt"
    other.write_text("\n".join(f"{n} quite other words {n * n}" for n in range(20_000)))
    flags = [*lab.flags(data=other, num_iterations=2), f"--from={lab.runs / 'done'}"]
    tokenizer = lab.runs / "done" / "checkpoints" / "tokenizer"

    refused = lab.train("refused", *flags).end()
    taken = lab.train("taken", *flags, f"--tokenizer={tokenizer}").end()

    assert refused.status == 1
    assert refused.json["error"]["fix"] == [f"--tokenizer {tokenizer}"]
    assert taken.status == 0, taken.stderr


def test_a_damaged_newest_checkpoint_is_passed_over(lab: Any, done: list[float]) -> None:
    newest = lab.checkpoints("done") / "model_000012.pt"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)

    ended = lab.train("done", "--resume").end()

    assert ended.status == 0, ended.stderr
    assert "passed over" in ended.stderr
    assert lab.curve("done").losses == done


@pytest.mark.slow
def test_a_run_killed_before_its_first_checkpoint_keeps_its_origin(lab: Any) -> None:
    lab.train("parent").end()
    # Both runs would measure, and on busy cores choose differently.
    fixed = lab.flags(matmul="mkl", attention="sdpa")
    child = [*fixed, f"--from={lab.runs / 'parent'}"]
    assert lab.train("whole", *child).end().status == 0
    assert lab.train("killed", *child).end().status == 0
    for file in lab.checkpoints("killed").iterdir():
        file.unlink()

    ended = lab.train("killed", "--resume").end()

    assert ended.status == 0, ended.stderr
    assert "saved no checkpoint" in ended.stderr
    assert lab.curve("killed").losses == lab.curve("whole").losses
    assert lab.curve("killed").losses[0] < lab.curve("parent").losses[0] - 0.01


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_learns_what_it_would_have(lab: Any) -> None:
    ended = subprocess.run(
        [
            *(sys.executable, str(KILL_BENCH), "--kills", "3", "--out", str(lab.root / "r.json")),
            *lab.flags(num_iterations=30, save_every=3, eval_every=10),
        ],
        env=lab.environment(),
        cwd=lab.root,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert '"largest_loss_difference": 0.0' in ended.stdout
