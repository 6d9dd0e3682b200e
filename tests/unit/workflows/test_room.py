"""Ranks that a host has no cores or no memory for are refused before anything starts."""

from __future__ import annotations

from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.errors import UsageError
from yoked.fleet.model import Host
from yoked.launch.start import NodePlan
from yoked.train.config import TrainConfig
from yoked.workflows.room import check_room, require_room

GB = 1_000_000_000


def facts(**changes: Any) -> dict[str, Any]:
    return {
        "usable_cores": 4,
        "cpu_quota": None,
        "memory_available_bytes": 16 * GB,
        **changes,
    }


def node(ranks: int, name: str = "i9", device: str = "cpu", **changes: Any) -> NodePlan:
    nobody: Any = None
    return NodePlan(
        Host(name), nobody, facts(**changes), ranks, "python3", "lo", "127.0.0.1", device
    )


def test_more_ranks_than_cores_are_refused_with_the_number_that_makes_sense(
    snapshot: SnapshotAssertion,
) -> None:
    with pytest.raises(UsageError) as caught:
        check_room("this machine", 99, facts())

    assert "fix: --ranks 4" in str(caught.value)
    assert str(caught.value) == snapshot


def test_a_control_groups_time_counts_as_cores() -> None:
    with pytest.raises(UsageError) as caught:
        check_room("this machine", 8, facts(usable_cores=2, cpu_quota=1.5))

    assert "2 cores for them (its control group allows the time of 1.5)" in str(caught.value)


@pytest.mark.parametrize("ranks", [1, 4])
def test_as_many_ranks_as_cores_are_nothing_to_speak_of(ranks: int) -> None:
    assert check_room("this machine", ranks, facts()) is None


def test_a_few_ranks_on_fewer_cores_are_let_through_and_told(snapshot: SnapshotAssertion) -> None:
    assert check_room("this machine", 3, facts(usable_cores=1)) == snapshot


def test_ranks_that_memory_has_no_room_for_are_refused_with_the_number_it_has_room_for(
    snapshot: SnapshotAssertion,
) -> None:
    with pytest.raises(UsageError) as caught:
        check_room("this machine", 4, facts(), lambda ranks: ranks * 7.0 * GB)

    assert "fix: --ranks 2" in str(caught.value)
    assert str(caught.value) == snapshot


def test_a_model_that_one_rank_has_no_memory_for_is_refused(snapshot: SnapshotAssertion) -> None:
    with pytest.raises(UsageError) as caught:
        require_room(TrainConfig(depth=40), [node(1, name=".")], print)

    assert str(caught.value) == snapshot


def test_memory_is_no_matter_where_a_gpu_trains_or_the_model_is_not_known_yet() -> None:
    nodes = [node(1, device="cuda", memory_available_bytes=GB // 2)]
    require_room(TrainConfig(depth=40), nodes, print)
    require_room(TrainConfig(depth=40, resume=True), [node(1)], print)

    with pytest.raises(UsageError):
        require_room(TrainConfig(depth=40, device_type="cpu"), nodes, print)


def test_a_model_that_no_smaller_one_of_its_width_could_be_is_let_through() -> None:
    narrow = TrainConfig(depth=2, aspect_ratio=16, head_dim=16)

    require_room(narrow, [node(1)], print)
    with pytest.raises(UsageError) as caught:
        require_room(narrow, [node(1, memory_available_bytes=1_000_000)], print)

    assert "--depth" not in str(caught.value)


def test_of_several_hosts_the_one_without_room_is_named() -> None:
    told: list[str] = []

    with pytest.raises(UsageError, match="attic has 4 cores"):
        require_room(TrainConfig(), [node(2), node(9, name="attic")], told.append)
    require_room(TrainConfig(), [node(2), node(3, "attic", usable_cores=2)], told.append)

    assert [line.partition(" has ")[0] for line in told] == ["3 ranks, but attic"]
