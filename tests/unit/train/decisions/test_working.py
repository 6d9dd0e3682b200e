from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.costmodel.compute_cost import COPY_BYTES_PER_S, RankSpeed, estimated_cost
from yoked.costmodel.model_shape import ModelShape
from yoked.costmodel.step_plan import safe_syncs
from yoked.costmodel.work import Network, PortRate
from yoked.errors import UsageError
from yoked.train.decisions.working import (
    WORTH_SAYING,
    WorkQuestion,
    choose_working,
    kept_hosts,
    worth_coming_back,
)

D4 = ModelShape.from_depth(
    4, aspect_ratio=64, head_dim=64, sequence_len=512, vocab_size=32768, window_pattern="L"
)
GBIT = 118e6
FAST, SLOW = 1e13, 1e8


def question(
    hosts: Sequence[str],
    flops: Sequence[float],
    *,
    rate: float = GBIT,
    rows: int = 8,
    keep: Collection[str] = (),
) -> WorkQuestion:
    ranks = [
        estimated_cost(
            D4,
            host=host,
            device="cpu",
            dtype="float32",
            threads=4,
            speed=RankSpeed(speed, 1.0, min(1.0, speed / 1e11) * COPY_BYTES_PER_S),
            device_batch_size=2,
        )
        for host, speed in zip(hosts, flops, strict=True)
    ]
    network = Network(dict.fromkeys(hosts, PortRate(rate, rate)), 2e-4)
    return WorkQuestion(D4, ranks, network, safe_syncs(D4, rows * D4.sequence_len), rows, 2, keep)


@pytest.mark.parametrize("hosts", [("i9", "laptop"), ("i9", "laptop", "attic")])
def test_hosts_that_make_a_step_longer_sit_out(
    hosts: tuple[str, ...], snapshot: SnapshotAssertion
) -> None:
    asked = question(hosts, [FAST, *[SLOW] * (len(hosts) - 1)])

    working = choose_working(asked)

    assert working.ranks == (0,)
    assert list(working.notes) == snapshot


def test_where_all_add_something_all_take_part() -> None:
    working = choose_working(question(("i9", "laptop"), (1e11, 1e11), rate=100 * GBIT, rows=32))

    assert (working.ranks, working.notes) == ((0, 1), ())


def test_a_host_without_a_row_sits_out_however_little_it_costs() -> None:
    asked = question(("i9", "laptop"), (1e11, 2e10), rate=1e11, rows=4)

    working = choose_working(asked)
    gain = asked.gain([])

    assert working.ranks == (0,)
    assert gain.step_s < gain.now_s < WORTH_SAYING * gain.step_s


def test_all_ranks_of_a_host_sit_out_together() -> None:
    asked = question(("i9", "attic", "attic", "mini"), (1e11, SLOW, SLOW, 1e11), rate=1e10, rows=64)

    assert choose_working(asked).ranks == (0, 3)


def test_a_host_takes_part_that_is_to_be_kept(snapshot: SnapshotAssertion) -> None:
    hosts, flops = ("i9", "laptop", "attic"), (FAST, 10 * SLOW, SLOW)

    one = choose_working(question(hosts, flops, keep=["laptop"]))
    every = choose_working(question(hosts, flops, keep=hosts))

    assert (one.ranks, every.ranks) == ((0, 1), (0, 1, 2))
    assert [list(one.notes), list(every.notes)] == snapshot


def test_the_host_of_rank_0_has_the_runs_folder_and_takes_part(snapshot: SnapshotAssertion) -> None:
    working = choose_working(question(("laptop", "i9"), (SLOW, FAST)))

    assert working.ranks == (0, 1)
    assert list(working.notes) == snapshot


def test_which_hosts_are_kept(snapshot: SnapshotAssertion) -> None:
    hosts = ["i9", "laptop", "laptop"]

    assert kept_hosts(None, hosts) == ()
    assert list(kept_hosts("laptop, i9", hosts)) == ["laptop", "i9"]
    assert set(kept_hosts("all", hosts)) == {"i9", "laptop"}
    with pytest.raises(UsageError) as refused:
        kept_hosts("laptop,desk", hosts)
    assert str(refused.value) == snapshot


def test_a_host_comes_back_where_a_step_is_shorter_with_it(snapshot: SnapshotAssertion) -> None:
    asked = question(("i9", "laptop"), (1e11, SLOW), rate=1e10, rows=32)
    assert choose_working(asked).ranks == (0,)
    (_, slow) = asked.ranks
    as_fast = replace(asked.ranks[0], host="laptop")

    assert worth_coming_back(asked, [0], [slow]) is None
    assert worth_coming_back(asked, [0], [as_fast]) == snapshot


def test_a_host_that_would_shorten_a_step_a_little_stays_out() -> None:
    asked = question(("i9", "laptop"), (1e11, SLOW), rate=1e10, rows=32)
    tenth = replace(
        asked.ranks[1],
        **{
            name: 10 * getattr(asked.ranks[0], name)
            for name in ("forward_s", "head_s", "backward_s", "muon_s", "adamw_s")
        },
    )

    assert worth_coming_back(asked, [0], [tenth]) is None
