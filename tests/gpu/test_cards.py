"""What `yoked train --dry-run` takes on cards of several sizes, and whether doctor and plan agree.

torch tells of a card that is not there: how much is free, and how fast it multiplies. The command
goes the way of a system without /proc, where one rank trains in its process.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from tests.unit.doctor.builders import NAMES
from tests.unit.doctor.troubles import on_gpus

from yoked.cli.main import main
from yoked.costmodel.memory import USABLE_GPU_FRACTION, rank_memory
from yoked.costmodel.model_shape import ModelShape
from yoked.doctor.checks.machine import gpu_memory
from yoked.launch import here
from yoked.train.config import TrainConfig
from yoked.train.decisions import compute
from yoked.train.decisions.decision import Decision
from yoked.train.decisions.products import KINDS, ProductChoice, ProductTimes
from yoked.train.gpu_fit import head_logits
from yoked.workflows.need import need_of
from yoked.workflows.planning import PlannedDevice, resolve_run

CARDS = pytest.mark.parametrize("gigabytes", [8, 12, 24, 80])
Choices = dict[str, dict[str, Any]]
DryRun = Callable[..., Choices]


def multiplied_in(seconds: float) -> ProductTimes:
    """A card's times a token."""
    places = [(place, kind) for place in ("layers", "head") for kind in KINDS]
    return ProductTimes({each: {"default": seconds} for each in places})


MEASURED = ProductChoice({"float32": multiplied_in(4e-8), "bfloat16": multiplied_in(2e-8)})


@pytest.fixture(scope="module")
def known() -> dict[tuple[int | str, ...], Choices]:
    """Choices by card and flags: each command is given once."""
    return {}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus is prepared once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def dry_run(
    cache: Path,
    known: dict[tuple[int | str, ...], Choices],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> DryRun:
    """Of `yoked train --dry-run` on a card of so many GB, all free: choices by name."""

    def run(gigabytes: int, *flags: str) -> Choices:
        if (gigabytes, *flags) in known:
            return known[gigabytes, *flags]
        amount = round(gigabytes * 1e9)
        told: dict[str, Callable[..., Any]] = {
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "set_device": lambda device: None,
            "mem_get_info": lambda device: (amount, amount),
            "get_device_capability": lambda device: (8, 9),
            "get_device_name": lambda device: f"a card of {gigabytes} GB",
        }
        for name, answer in told.items():
            monkeypatch.setattr(torch.cuda, name, answer)
        assert main(["train", "--dry-run", "--json", "--fleet", ".", *flags]) == 0
        found = json.loads(capsys.readouterr().out)
        known[gigabytes, *flags] = {choice["name"]: choice for choice in found["choices"]}
        return known[gigabytes, *flags]

    monkeypatch.setenv("YOKED_CACHE", str(cache))
    monkeypatch.setattr(here, "supervises", lambda: False)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda precision: None)
    monkeypatch.setattr(compute, "measure_dtypes", lambda *_, **__: MEASURED)
    monkeypatch.setattr(compute, "_flash_is_as_a_mask", lambda *_: True)
    compiles = Decision("compile", "blocks", "it compiled a few lines")
    monkeypatch.setattr(compute, "_choose_inductor", lambda asked, device: compiles)
    return run


def taken(choices: Choices) -> tuple[ModelShape, int]:
    """The model, and rows at once."""
    value = {name: choice["value"] for name, choice in choices.items()}
    shape = ModelShape.from_depth(
        int(value["depth"]),
        aspect_ratio=int(value["aspect_ratio"]),
        head_dim=int(value["head_dim"]),
        sequence_len=int(value["max_seq_len"]),
        vocab_size=TrainConfig().vocab_size,
        window_pattern=value["window_pattern"],
    )
    return shape, int(value["device_batch_size"])


def found_too_small(gigabytes: int, config: TrainConfig) -> set[str]:
    """Hosts with such a card whose memory the doctor finds too small for a run."""
    memory = dict.fromkeys(NAMES, round(gigabytes * 1e9))
    seen = dataclasses.replace(on_gpus(**memory), need=need_of(config))
    return {name for match in gpu_memory.look(seen) for name in match.hosts}


@CARDS
def test_a_card_gets_what_fits_in_085_of_its_free_memory_and_is_told_why(
    dry_run: DryRun, gigabytes: int, snapshot: SnapshotAssertion
) -> None:
    choices = dry_run(gigabytes)

    shape, rows = taken(choices)
    # As tests/gpu/test_memory.py has it, within a tenth of what a step allocates.
    need = rank_memory(
        shape,
        dtype=choices["dtype"]["value"],
        rows=rows,
        step_rows=int(choices["total_batch_size"]["value"]) // shape.sequence_len,
        owned_fraction=1.0,
        payload_bytes=0.0,
        logits=head_logits(shape, rows),
    )
    assert need <= USABLE_GPU_FRACTION * gigabytes * 1e9
    lines = [
        f"{each['name']:<17} {each['value']}  ({each['reason']})"
        for each in choices.values()
        if each["name"] != "threads"  # of this machine's CPU
    ]
    assert "\n".join(lines) == snapshot


@CARDS
@pytest.mark.parametrize("flags", [[], ["--depth=20", "--checkpoint-activations"]])
def test_plan_and_doctor_agree_with_what_a_card_gets(
    dry_run: DryRun, gigabytes: int, flags: list[str]
) -> None:
    config = TrainConfig(depth=20, checkpoint_activations=True) if flags else TrainConfig()
    shape, rows = taken(choices := dry_run(gigabytes, *flags))

    planned = resolve_run(config, [PlannedDevice("cuda", gigabytes * 1e9)])
    assert (planned.shape, planned.resolved.device_batch_size) == (shape, rows)
    for name, reason in planned.resolved.reasons.items():
        assert choices[name]["reason"] == reason

    asked = dataclasses.replace(config, depth=shape.n_layer, device_batch_size=rows)
    fits = "too much" not in choices["device_batch_size"]["reason"]
    assert found_too_small(gigabytes, asked) == (set() if fits else set(NAMES))


@CARDS
def test_the_doctor_names_a_card_for_which_twice_the_rows_are_too_many(
    dry_run: DryRun, gigabytes: int
) -> None:
    shape, rows = taken(dry_run(gigabytes))

    asked = TrainConfig(depth=shape.n_layer, device_batch_size=2 * rows, tables="device")
    assert found_too_small(gigabytes, asked) == set(NAMES)
