"""The communication hook in real worlds of two and three ranks, against one process."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from syrupy.assertion import SnapshotAssertion
from tests.documents import file_of
from torch.distributed import TCPStore
from torch.nn.parallel import DistributedDataParallel

from yoked.ddp import CompressionState, compression_hook
from yoked.errors import UsageError

HERE = Path(__file__).parent
PROGRAM = HERE / "programs" / "ddp_hook.py"
DEADLINE_S = 240.0
# A loss may differ this much from that of fp32 after as many steps.
CLOSE = 0.02

# By name: the number of ranks, and what they run.
Asked = dict[str, tuple[int, list[Path | str]]]

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def printed(shared_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What rank 0 printed of the program with two and with three ranks, and of the document's."""
    folder = tmp_path_factory.mktemp("hook")
    script = folder / "train.py"
    script.write_text(file_of("docs/guides/ddp-hook.md", "python"))
    asked: Asked = {
        "two": (2, [PROGRAM, "gloo"]),
        "three": (3, [PROGRAM, "gloo"]),
        "document": (2, [script, "int4"]),
    }
    return words_of(asked, folder, shared_cache)


def words_of(asked: Asked, folder: Path, cache: Path) -> dict[str, str]:
    """What rank 0 of each world prints."""
    # In torchrun's place. They must outlive the ranks.
    stores = {
        name: TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for name in asked
    }
    worlds = [
        {
            "ranks": ranks,
            "port": stores[name].port,
            "argv": [str(word) for word in argv],
            "out": str(folder / name),
            "stuck_s": DEADLINE_S / 2,
        }
        for name, (ranks, argv) in asked.items()
    ]
    run_worlds(worlds, cache)
    return {name: (folder / name).read_text() for name in asked}


def run_worlds(worlds: list[dict[str, Any]], cache: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(HERE.parents[1] / "src"),
        "YOKED_CACHE": str(cache),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    # Tied to this process: a test that is killed leaves nothing behind.
    tether = [sys.executable, "-m", "yoked.parent_death", str(os.getpid())]
    process = subprocess.Popen(
        [*tether, sys.executable, str(HERE / "forked_ranks.py")],
        env=environment,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, errors = process.communicate(json.dumps(worlds), timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 0, errors


@pytest.fixture(params=["two", "three"])
def seen(request: pytest.FixtureRequest, printed: dict[str, str]) -> dict[str, Any]:
    """What a world of so many ranks saw in all cases of the program."""
    found: dict[str, Any] = json.loads(printed[request.param])
    return found


def test_uneven_batches_give_the_single_process_gradient(seen: dict[str, Any]) -> None:
    assert seen["buckets"] > 2
    assert seen["off_by"]["fp32"] < 1e-5
    assert seen["accumulated"] < 1e-5


def test_smaller_payloads_differ_from_it_by_their_rounding(seen: dict[str, Any]) -> None:
    off_by = seen["off_by"]

    assert 1e-5 < off_by["bf16"] < 0.02
    assert off_by["bf16"] < off_by["int8"] < 0.1
    assert off_by["int8"] < off_by["int4"] < 1


def test_models_of_other_dtypes_are_averaged_in_float32(seen: dict[str, Any]) -> None:
    assert seen["off_by_float64"] < 1e-6
    assert seen["off_by_bfloat16"] < 0.02


def test_powersgds_first_steps_are_weighted_by_tokens_too(seen: dict[str, Any]) -> None:
    assert seen["off_by_powersgd"] < 1e-5


def test_what_was_lost_of_a_large_step_counts_no_more_than_the_next_one(
    seen: dict[str, Any],
) -> None:
    assert seen["off_by_after_a_large_step"] < 0.1


def test_without_tokens_it_is_ddps_own_mean(seen: dict[str, Any]) -> None:
    assert seen["off_by_untold"] < 1e-6


@pytest.mark.parametrize("payload", ["bf16", "int8", "int4"])
def test_a_smaller_payload_learns_as_fp32_does(seen: dict[str, Any], payload: str) -> None:
    exact, trained = seen["trained"]["fp32"], seen["trained"][payload]

    assert exact["after"] < exact["before"] / 3
    learned = trained["before"] - trained["after"]
    assert learned > (1 - CLOSE) * (exact["before"] - exact["after"])


def test_powersgd_learns_what_pytorchs_own_does_in_a_program_that_weighs_its_loss(
    seen: dict[str, Any],
) -> None:
    ours, by_hand = seen["powersgd"]
    trained = seen["trained"]["powersgd"]

    assert ours == pytest.approx(by_hand, rel=1e-4)
    # How close that is to fp32 is PowerSGD's own affair.
    assert ours < 0.9 * trained["before"]
    assert trained["after"] < trained["before"] / 3


@pytest.mark.parametrize("payload", ["fp32", "bf16", "int8", "int4"])
def test_all_ranks_end_with_the_same_weights(seen: dict[str, Any], payload: str) -> None:
    assert seen["trained"][payload]["same"]


def test_a_gradient_that_is_not_finite_is_seen_once(seen: dict[str, Any]) -> None:
    assert seen["finite"] == {"broken": False, "next": True}


def test_a_rank_that_names_no_tokens_is_named(seen: dict[str, Any]) -> None:
    assert "rank 1 " in seen["one_silent"] or "ranks 1, 2 " in seen["one_silent"]


def test_a_step_without_any_token_is_refused(
    seen: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    assert seen["no_tokens"].splitlines()[0] == snapshot


def test_a_rank_that_stays_away_ends_the_wait_at_the_groups_deadline(seen: dict[str, Any]) -> None:
    assert "a bucket of gradients" in seen["away"]


def test_the_documents_program_runs_and_learns(printed: dict[str, str]) -> None:
    losses = [float(line.split()[-1]) for line in printed["document"].splitlines()]

    assert len(losses) == 4
    assert losses[-1] < losses[0] / 5


@pytest.mark.gpu
@pytest.mark.parametrize(("backend", "gpus"), [("gloo", 1), ("nccl", 2)])
def test_gradients_on_gpus_are_averaged_and_learn_alike(
    tmp_path: Path, shared_cache: Path, backend: str, gpus: int
) -> None:
    if torch.cuda.device_count() < gpus:
        pytest.skip(f"needs {gpus} CUDA devices")
    asked: Asked = {"gpu": (2, [PROGRAM, backend, "cuda"])}

    seen = json.loads(words_of(asked, tmp_path, shared_cache)["gpu"])

    assert seen["off_by"]["fp32"] < 1e-5
    assert seen["off_by_untold"] < 1e-6
    assert seen["finite"] == {"broken": False, "next": True}
    for payload in ("fp32", "bf16", "int8", "int4"):
        assert seen["trained"][payload]["same"]
        assert seen["trained"][payload]["after"] < seen["trained"][payload]["before"] / 3


def test_an_unknown_payload_is_told_which_there_are() -> None:
    with pytest.raises(UsageError) as raised:
        CompressionState(payload="int9")

    assert "'int9'" in raised.value.what
    assert raised.value.fix == ("choose among fp32, bf16, int8, int4, powersgd",)


@pytest.fixture
def alone() -> Iterator[None]:
    """A world of this process alone."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("count", [-1, 2.5, None])
def test_what_is_no_number_of_tokens_is_refused(alone: None, count: Any) -> None:
    with pytest.raises(UsageError) as raised:
        CompressionState().tokens(count)
    assert repr(count) in raised.value.what


def test_a_powersgd_rank_of_zero_is_refused(alone: None) -> None:
    with pytest.raises(UsageError) as raised:
        CompressionState("powersgd", powersgd_rank=0)
    assert "powersgd_rank=0" in raised.value.what


def test_with_one_rank_nothing_is_lost(alone: None) -> None:
    plain = torch.nn.Linear(8, 8)
    model = DistributedDataParallel(copy.deepcopy(plain))
    model.register_comm_hook(CompressionState("int4"), compression_hook)

    for each in (plain, model):
        each(torch.arange(8.0)[None]).square().sum().backward()

    assert torch.equal(model.module.weight.grad, plain.weight.grad)


def test_with_one_rank_too_a_step_without_tokens_is_refused(
    alone: None, snapshot: SnapshotAssertion
) -> None:
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    state = CompressionState("int4")
    model.register_comm_hook(state, compression_hook)

    state.tokens(0)
    with pytest.raises(RuntimeError) as raised:
        model(torch.ones(1, 8)).sum().backward()
    assert str(raised.value).splitlines()[0] == snapshot


def test_sparse_gradients_are_refused(alone: None, snapshot: SnapshotAssertion) -> None:
    model = DistributedDataParallel(torch.nn.Embedding(10, 4, sparse=True))
    model.register_comm_hook(CompressionState("int8"), compression_hook)

    with pytest.raises(RuntimeError) as raised:
        model(torch.tensor([1, 2])).sum().backward()
    assert str(raised.value).splitlines()[0] == snapshot


def test_a_state_before_the_process_group_is_refused(snapshot: SnapshotAssertion) -> None:
    with pytest.raises(UsageError) as raised:
        CompressionState()
    assert str(raised.value) == snapshot
