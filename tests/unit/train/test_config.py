from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from yoked.cli.commands.probe import ModelFlags
from yoked.errors import UsageError
from yoked.train import resolve
from yoked.train.__main__ import parse
from yoked.train.config import TrainConfig
from yoked.train.limits import require_whole_rows


@pytest.mark.parametrize(
    ("flags", "what", "fix"),
    [
        ({"depth": 0}, "--depth 0", "1 or more"),
        ({"ranks": 0}, "--ranks 0", "1 or more"),
        ({"vocab_size": 264}, "--vocab-size 264", "265 or more"),
        ({"matrix_lr": float("nan")}, "--matrix-lr nan", "0 or more"),
        ({"head_dim": 63}, "--head-dim 63 is not an even", "64"),
        ({"window_pattern": "SLX"}, "letters other than S and L", "SSSL"),
        ({"window_pattern": ""}, "letters other than S and L", "SSSL"),
        ({"shares": "3:1", "ranks": 3}, "names 2 ranks, but --ranks is 3", "--ranks 2"),
        ({"shares": "3:x"}, "whole numbers", "3:1"),
        ({"shares": "0:0"}, "whole numbers", "3:1"),
        ({"dtype": "float64"}, "--dtype 'float64' is unknown", "bfloat16"),
        ({"device_type": "gpu"}, "--device-type 'gpu' is unknown", "cuda"),
        ({"threads": "many"}, "--threads 'many'", "auto"),
        (
            {"total_batch_size": 2**40, "max_seq_len": 512},
            f"--total-batch-size {2**40} is more than 1,000,000 rows",
            "512000000 or less",
        ),
        ({"tables": "nowhere"}, "--tables 'nowhere' is unknown", "host"),
        ({"seed": 2**64}, f"--seed {2**64} is too large", str(2**63 - 1)),
        ({"num_iterations": 10**400}, "is too large", str(2**63 - 1)),
        ({"vocab_size": 10**8}, "--vocab-size 100000000 is too large", "1048576 or less"),
        ({"depth": 10**12}, "--depth 1000000000000 is too large", "10000 or less"),
        ({"fp8": True}, "no 8-bit path", "leave --fp8 out"),
        ({"eval_every": 0}, "--eval-every 0", "-1"),
        ({"warmdown_ratio": 1.5}, "more than the whole run", "between 0 and 1"),
        ({"target_flops": float("inf")}, "--target-flops inf gives the run no end", "smaller"),
        ({"target_flops": float("nan")}, "--target-flops nan gives the run no end", "smaller"),
        ({"target_param_data_ratio": float("inf")}, "--target-param-data-ratio inf", "smaller"),
        ({"target_param_data_ratio": 1e300}, "1e+300 gives the run no end", "smaller"),
        ({"run": "../elsewhere"}, "cannot be the name of a run", "letters"),
        ({"run": "a b"}, "cannot be the name of a run", "letters"),
        ({"run": "$(touch x)"}, "cannot be the name of a run", "letters"),
        ({"run": "ünï"}, "cannot be the name of a run", "letters"),
        ({"run": "n" * 81}, "cannot be the name of a run", "at most 80"),
        ({"model_tag": "d4 of mine"}, "--model-tag 'd4 of mine'", "letters"),
        ({"model_tag": "d4\n"}, "cannot be the name of a folder", "letters"),
        ({"model_tag": "d" * 81}, "cannot be the name of a folder", "at most 80"),
        ({"resume": True, "start_from": Path("x")}, "--from starts a new run", "one of the two"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_fix(
    flags: dict[str, Any], what: str, fix: str
) -> None:
    with pytest.raises(UsageError) as caught:
        TrainConfig(**flags)

    assert what in caught.value.what
    assert fix in " ".join(caught.value.fix)


@given(batch=st.integers(1, 10_000), row=st.integers(2, 600))
def test_a_batch_of_broken_rows_is_refused_with_the_nearest_that_fit(batch: int, row: int) -> None:
    if batch % row == 0:
        require_whole_rows(batch, row)
        return
    with pytest.raises(UsageError) as caught:
        require_whole_rows(batch, row)
    words = caught.value.fix[0].split()
    nearest = [int(word) for word in words if word.isdecimal()]
    assert all(n % row == 0 and abs(n - batch) < row and n > 0 for n in nearest)
    assert nearest[-1] > batch
    assert len(nearest) == (2 if batch > row else 1)


def test_minus_one_means_not_given_as_in_nanochat() -> None:
    config = TrainConfig(
        num_iterations=-1, total_batch_size=-1, resume_from_step=-1, target_flops=-1.0
    )

    assert config == TrainConfig()


def test_shares_imply_the_number_of_ranks() -> None:
    assert TrainConfig(shares="3:1").local_ranks == 2
    assert TrainConfig(shares="3:0:1").share_weights == (3, 0, 1)
    assert TrainConfig(ranks=4).local_ranks == 4
    assert TrainConfig().local_ranks == 1


def test_ranks_that_torchrun_contradicts_are_refused(snapshot: SnapshotAssertion) -> None:
    TrainConfig(ranks=2, shares="3:1").check_world(2)
    with pytest.raises(UsageError) as caught:
        TrainConfig(ranks=2).check_world(4)
    assert str(caught.value) == snapshot
    with pytest.raises(UsageError) as caught:
        TrainConfig(shares="3:1").check_world(3)
    assert str(caught.value) == snapshot


def test_flags_without_effect_are_noted_only_when_switched_on() -> None:
    assert TrainConfig(core_metric_every=-1, sample_every=0).notes == ()
    notes = TrainConfig(core_metric_every=250, sample_every=100).notes
    assert [note.split(":")[0] for note in notes] == ["--core-metric-every", "--sample-every"]


def test_flags_that_others_leave_without_effect_are_noted() -> None:
    assert TrainConfig(tokenizer=Path("t")).notes == TrainConfig(vocab_size=300).notes == ()
    assert TrainConfig(eval_every=-1).notes == TrainConfig(eval_tokens=512).notes == ()
    config = TrainConfig(tokenizer=Path("t"), vocab_size=300, eval_every=-1, eval_tokens=512)
    assert [note.split(":")[0] for note in config.notes] == ["--vocab-size", "--eval-tokens"]


def test_a_configuration_travels_as_plain_data(tmp_path: Path) -> None:
    config = TrainConfig(
        depth=8, shares="3:1", tokenizer=Path("t"), start_from=Path("c"), threads="3"
    )
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config.to_dict()))

    assert TrainConfig.from_file(file) == config


def test_a_configuration_of_another_version_is_refused(snapshot: SnapshotAssertion) -> None:
    with pytest.raises(UsageError) as caught:
        TrainConfig.from_dict({"warp_drive": 9})
    assert str(caught.value) == snapshot


@pytest.mark.parametrize(
    "values",
    [[], {"depth": "deep"}, {"runs_dir": 5}, {"passed": [["depth"]]}, {"window_pattern": 3}],
)
def test_values_of_another_kind_are_no_configuration(values: Any) -> None:
    with pytest.raises(UsageError, match="no configuration of a run"):
        TrainConfig.from_dict(values)


def test_a_file_that_is_no_configuration_is_named(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / "config.json").write_text('{"depth": ')
    with pytest.raises(UsageError) as caught:
        TrainConfig.from_file(tmp_path / "config.json")
    assert str(caught.value) == snapshot


def test_a_resumed_run_takes_over_what_is_not_given_anew() -> None:
    saved = TrainConfig(depth=8, ranks=2, data="books", seed=7, tables="host")

    resumed = TrainConfig(ranks=3, resume=True).on_top_of(saved)

    assert (resumed.depth, resumed.data, resumed.seed) == (8, "books", 7)
    assert (resumed.ranks, resumed.resume) == (3, True)
    # Other devices may train now.
    assert resumed.tables == "auto"


def test_saved_shares_are_kept_only_for_the_number_of_ranks_they_were_made_for() -> None:
    saved = TrainConfig(shares="3:1", ranks=2)

    assert TrainConfig(ranks=2).on_top_of(saved).shares == "3:1"
    assert TrainConfig(ranks=3).on_top_of(saved).shares is None
    assert TrainConfig().on_top_of(saved, world_size=3).shares is None
    assert TrainConfig(shares="1:1:2").on_top_of(saved).shares == "1:1:2"
    assert TrainConfig().on_top_of(saved).ranks is None


def test_every_flag_has_help_and_a_group() -> None:
    from cyclopts import Parameter

    hints = get_type_hints(TrainConfig, include_extras=True)
    for field in dataclasses.fields(TrainConfig):
        (parameter,) = hints[field.name].__metadata__
        assert isinstance(parameter, Parameter)
        if parameter.parse is False:
            # No flag.
            continue
        assert parameter.help, field.name
        assert parameter.group, field.name


@pytest.mark.parametrize("flags", [TrainConfig, ModelFlags])
def test_the_help_names_each_default_of_every_device(flags: type) -> None:
    hints = get_type_hints(flags, include_extras=True)
    for device, defaults in resolve._DEFAULTS.items():
        for name, value in defaults._asdict().items():
            (parameter,) = hints[name].__metadata__
            # `yoked probe` takes one depth everywhere.
            if flags is TrainConfig or name != "depth":
                assert re.search(rf"\b{value}\b", parameter.help), (device, name)


def test_configuration_loads_without_torch() -> None:
    program = (
        "import sys, yoked.train.config, yoked.train.resolve\n"
        "print([m for m in ('torch', 'numpy', 'pyarrow', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_flag_with_its_default_counts_on_a_resumed_run() -> None:
    saved = TrainConfig(matrix_lr=0.01, seed=7, sync="int8")

    resumed = TrainConfig(resume=True, matrix_lr=0.02, sync="auto").on_top_of(saved)

    assert (resumed.matrix_lr, resumed.sync, resumed.seed) == (0.02, "auto", 7)


def test_what_was_named_travels_with_a_configuration_and_its_copies(tmp_path: Path) -> None:
    config = dataclasses.replace(TrainConfig(seed=42, resume=True), run="a")
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config.to_dict()))

    there = TrainConfig.from_file(file)

    assert there.given() == config.given() == {"seed": 42, "resume": True, "run": "a"}


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"num_iterations": 100}, {"target_flops": 1e15}),
        ({"num_iterations": 100}, {"target_param_data_ratio": 20.0}),
        ({"target_flops": 1e15}, {"num_iterations": 200}),
    ],
)
def test_a_length_that_is_given_now_takes_the_place_of_the_runs(
    before: dict[str, Any], now: dict[str, Any]
) -> None:
    resumed = TrainConfig(resume=True, **now).on_top_of(TrainConfig(**before))

    assert {name: getattr(resumed, name) for name in (*before, *now)} == {
        **dict.fromkeys(before),
        **now,
    }


def test_what_nanochat_spells_as_not_given_changes_nothing_on_a_resumed_run() -> None:
    saved = TrainConfig(num_iterations=100, total_batch_size=2048, max_seq_len=512)

    now = TrainConfig(resume=True, num_iterations=-1, total_batch_size=-1, target_flops=-1.0)

    assert now.given() == {"resume": True}
    assert (now.on_top_of(saved).num_iterations, now.on_top_of(saved).total_batch_size) == (
        100,
        2048,
    )


def test_a_ratio_that_is_switched_off_says_no_length_beside_for() -> None:
    assert TrainConfig(duration="8h", target_param_data_ratio=-1).duration == "8h"
    with pytest.raises(UsageError, match="--for and --target-param-data-ratio"):
        TrainConfig(duration="8h", target_param_data_ratio=20)


def test_flags_are_what_a_command_line_names() -> None:
    assert parse(["--seed=42", "--depth", "4"]).given() == {"seed": 42, "depth": 4}
    assert parse([]).given() == {}
