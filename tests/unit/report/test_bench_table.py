from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from syrupy.assertion import SnapshotAssertion
from tests.unit.report.legends import require_legends_above

from yoked.errors import YokedError
from yoked.report import bench_plot
from yoked.report.bench_plot import plot_bench
from yoked.report.bench_table import (
    COLUMNS,
    BenchRow,
    BenchTable,
    concurrent_steps,
    interpolate_time_s,
    read_steps,
    to_markdown,
)


def row(name: str, hosts: tuple[str, ...], speed: float, **more: Any) -> BenchRow:
    return BenchRow(
        **{
            "name": name,
            "hosts": hosts,
            "ranks": len(hosts),
            "device": "cpu",
            "dtype": "float32",
            "sync": None,
            "tokens_per_second": speed,
            "step_s": (2048 / speed,),
            "loss": 7.25,
            **more,
        }
    )


HOME = BenchTable(
    rows=(
        row("1 process on i9", ("i9",), 800.0),
        row("1 process on laptop", ("laptop",), 200.0, loss=None),
        row("2 processes on i9", ("i9",), 1000.0, ranks=2, exposed_comm_s=0.01),
        row("2 hosts, exact", ("i9", "laptop"), 700.0),
        row(
            "2 hosts, int8",
            ("i9", "laptop"),
            900.0,
            allreduce_s=0.4,
            predicted_allreduce_s=0.36,
            exposed_comm_s=0.05,
            compute_s=0.5,
            bytes_sent_per_step=46_100_000,
        ),
    ),
    single_host={"i9": 800.0, "laptop": 200.0},
)
ONE_HOST = BenchTable(rows=HOME.rows[:1], single_host={"i9": 800.0})


def test_the_fastest_run_on_all_hosts_is_compared_with_the_hosts_alone(
    snapshot: SnapshotAssertion,
) -> None:
    assert HOME.speedup == pytest.approx(900 / 800)
    assert HOME.efficiency == pytest.approx(900 / 1000)
    assert HOME.verdict() == snapshot


def test_one_host_has_no_speedup_and_its_fastest_row_is_the_verdict() -> None:
    table = BenchTable(rows=HOME.rows[:1] + HOME.rows[2:3], single_host={"i9": 800.0})

    assert (table.speedup, table.efficiency) == (None, None)
    assert table.verdict() == "2 processes on i9: 1,000 tokens/s"


def test_json_has_the_promised_keys_and_plain_values() -> None:
    told = json.loads(json.dumps(HOME.to_dict(), allow_nan=False))

    assert told["speedup"] == pytest.approx(1.125)
    assert told["efficiency"] == pytest.approx(0.9)
    promised = {
        *("name", "hosts", "ranks", "tokens_per_second", "allreduce_s", "predicted_allreduce_s"),
        *("exposed_comm_s", "compute_s", "alpha", "loss"),
    }
    assert all(promised <= set(each) for each in told["rows"])
    assert told["rows"][4]["alpha"] == pytest.approx(0.4 / 0.5)
    assert told["rows"][3]["alpha"] is None
    assert told["rows"][4]["hosts"] == ["i9", "laptop"]
    assert told["rows"][2]["speedup"] == pytest.approx(1.25)


def test_markdown_has_a_line_for_each_row_and_says_what_the_columns_mean(
    snapshot: SnapshotAssertion,
) -> None:
    text = to_markdown(HOME)

    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(HOME.rows)
    assert {line.count("|") for line in table} == {len(COLUMNS) + 1}
    assert (
        "| 2 hosts, int8 | 2 | 900 | 1.12x | 0.40 s | 0.36 s | 50.0 ms | 0.80 | 7.2500 |" in table
    )
    assert text == snapshot


def test_a_row_without_ranks_that_talk_needs_no_notes() -> None:
    assert ONE_HOST.notes() == []
    assert to_markdown(ONE_HOST).endswith("| 7.2500 |\n")


def test_alpha_goes_into_a_formula_that_is_shown(snapshot: SnapshotAssertion) -> None:
    assert HOME.notes() == snapshot


def test_processes_of_the_first_host_are_a_curve(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    more = row("4 processes on i9", ("i9",), 1600.0, ranks=4)
    table = BenchTable(rows=(more, *HOME.rows), single_host=HOME.single_host)

    assert [each.ranks for each in table.processes] == [1, 2, 4]
    assert table.notes() == snapshot
    drawn = plot_bench(table, tmp_path / "bench.svg").read_text()
    assert "processes on i9" in drawn
    assert "ideal" in drawn


def step(dt_s: float, loss: float, comm_s: list[float]) -> dict[str, Any]:
    ranks = len(comm_s)
    return {
        "dt_s": dt_s,
        "loss": loss,
        "tokens": [1024] * ranks,
        "comm_s": comm_s,
        "compute_s": [dt_s / 2 - rank / 10 for rank in range(ranks)],
        "bytes_sent": [1000 + rank for rank in range(ranks)],
    }


def test_a_row_is_read_from_the_steps_that_count() -> None:
    steps = [step(9.0, 10.0, [3, 3]), step(2.0, 9.0, [0.1, 0.3]), step(4.0, 8.0, [0.5, 0.2])]
    empty = row("2 hosts", ("i9", "laptop"), 1.0)

    found = read_steps(empty, steps, range(1, 3), complete=True)

    assert found.tokens_per_second == pytest.approx(2048 / 3.0)
    assert found.step_s == (2.0, 4.0)
    assert found.exposed_comm_s == pytest.approx(0.4)
    assert found.compute_s == pytest.approx(1.5)
    assert found.bytes_sent_per_step == 1001
    assert found.loss == 8.0
    assert read_steps(empty, steps, range(1, 3), complete=False).loss is None


def test_one_rank_exposes_nothing() -> None:
    found = read_steps(row("alone", ("i9",), 1.0), [step(1.0, 9.0, [0.0])], range(1), complete=True)

    assert found.exposed_comm_s is None


def test_only_steps_beside_the_others_count() -> None:
    seen = [
        {"i9": 0, "laptop": 0},
        {"i9": 2, "laptop": 0},
        {"i9": 4, "laptop": 1},
        {"i9": 12, "laptop": 3},
        {"i9": 20, "laptop": 5},
        {"i9": 20, "laptop": 9},
    ]

    counted = concurrent_steps(seen, {"i9": 20, "laptop": 20})

    assert counted == {"i9": range(4, 20), "laptop": range(1, 5)}


def test_runs_that_never_trained_together_have_no_step_that_counts() -> None:
    seen = [{"i9": 0, "laptop": 0}, {"i9": 3, "laptop": 0}]

    assert concurrent_steps(seen, {"i9": 3, "laptop": 3}) == {"i9": range(0), "laptop": range(0)}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_steps_that_count_are_steps_that_were_taken(growth: list[tuple[int, int]]) -> None:
    done, totals = {"a": 0, "b": 0}, {"a": 12, "b": 8}
    seen = []
    for more in growth:
        done = {name: min(totals[name], done[name] + m) for name, m in zip(done, more, strict=True)}
        seen.append(done)

    counted = concurrent_steps(seen, totals)

    for name, steps in counted.items():
        assert 1 <= steps.start <= steps.stop <= seen[-1][name] or not steps


def test_the_time_of_a_payload_lies_between_those_that_were_measured() -> None:
    timed = [(1_000.0, 0.001), (2_000.0, 0.003), (4_000.0, 0.005)]

    assert interpolate_time_s(timed, 1_500) == pytest.approx(0.002)
    assert interpolate_time_s(timed, 4_000) == pytest.approx(0.005)
    assert interpolate_time_s(timed, 8_000) == pytest.approx(0.009)
    assert interpolate_time_s(timed, 10) == pytest.approx(0.001)
    assert interpolate_time_s(timed[:1], 10) is None


@pytest.mark.parametrize("suffix", ["png", "pdf"])
def test_the_table_is_drawn(tmp_path: Path, suffix: str) -> None:
    drawn = plot_bench(HOME, tmp_path / f"bench.{suffix}")

    assert drawn.stat().st_size > 2_000


def test_the_same_table_gives_the_same_picture_with_every_row_in_it(tmp_path: Path) -> None:
    first = plot_bench(HOME, tmp_path / "a.svg").read_bytes()
    again = plot_bench(HOME, tmp_path / "b.svg").read_bytes()

    assert first == again
    assert all(each.name.encode() in first for each in HOME.rows)
    assert b"all-reduce, measured" in first


@pytest.mark.parametrize("longest", [1, 4])
def test_legends_leave_bars_and_curves_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longest: int
) -> None:
    many = [row(f"{count} processes on i9", ("i9",), 900.0, ranks=count) for count in (3, 4)]
    table = BenchTable(rows=(*HOME.rows[-longest:], *many), single_host=HOME.single_host)
    drawn: list[Figure] = []
    monkeypatch.setattr(bench_plot, "save", lambda figure, _: drawn.append(figure))

    plot_bench(table, tmp_path / "bench.svg")

    require_legends_above(drawn[0])


def test_a_table_without_a_network_is_drawn_too(tmp_path: Path) -> None:
    drawn = plot_bench(ONE_HOST, tmp_path / "one.svg").read_text()

    assert "tokens per second" in drawn
    assert "sum of all alone" not in drawn


def test_a_picture_that_cannot_be_written_is_told(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(YokedError) as caught:
        plot_bench(ONE_HOST, tmp_path / "nowhere" / "bench.png")
    assert str(caught.value) == snapshot
