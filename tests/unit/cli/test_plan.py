from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.failures import raises_fault
from tests.schemas import conforms

from yoked.cli.commands import plan
from yoked.cli.commands.plan import PlanFlags
from yoked.cli.main import main
from yoked.costmodel.model_shape import ModelShape
from yoked.errors import FleetError, UsageError
from yoked.fleet.file import open_fleet
from yoked.plan.simulated_fleet import load_simulated, simulate
from yoked.probe.store import save
from yoked.records.measurement import Collective
from yoked.records.measurement_json import measurement_from_json, measurement_to_json

SHAPE = ModelShape(512, 32_768, 4, 4, 4, 256, "L")
KEYS = {"sync", "accumulation", "shares", "predicted"}
PREDICTED = {"step_s", "tokens_per_second", "compute_s", "exposed_comm_s", "bytes_per_step"}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("YOKED_STATE", str(tmp_path / "state"))


@pytest.fixture
def probed(tmp_path: Path) -> Path:
    """A measurement's file, of two laptops."""
    file = tmp_path / "probe.json"
    measurement = simulate(load_simulated("two-laptops"), SHAPE, device_batch_size=2)
    file.write_text(measurement_to_json(measurement))
    return file


def answer(capsys: pytest.CaptureFixture[str], **given: Any) -> dict[str, Any]:
    assert plan.command(json_output=True, **given) == 0
    return conforms("plan", json.loads(capsys.readouterr().out))


def test_the_json_has_what_is_promised(probed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, probe=probed)
    assert found["chosen"].keys() >= KEYS
    for candidate in found["candidates"]:
        assert candidate.keys() >= KEYS
        assert candidate["predicted"].keys() >= PREDICTED
        assert sum(candidate["shares"].values()) * 512 == found["tokens_per_step"] == 4096
    assert found["params"]["total"] == 36_700_290
    assert found["target"]["steps"] == 500


def test_the_text_has_a_verdict_reasons_a_table_and_the_next_command(
    probed: Path, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    assert plan.command(probe=probed, flags=PlanFlags(total_batch_size=32_768)) == 0
    said = capsys.readouterr().out
    assert "times laptop-1 alone" in said.splitlines()[0]
    assert said == snapshot
    assert "<- chosen" in said
    assert "2(N-1)/N" in said


def test_the_newest_measurement_of_the_fleet_is_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    save(open_fleet(None), simulate(load_simulated("two-laptops"), SHAPE, device_batch_size=2))
    assert answer(capsys)["alone"].keys() == {"laptop-1", "laptop-2"}


def test_a_link_that_was_measured_slower_than_it_is_is_said_of_the_source(
    probed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measurement = dataclasses.replace(
        measurement_from_json(probed.read_text()),
        collectives=(Collective("all_reduce", "gloo", 2, 64_000_000, 0.2, 3e8, 3e8, 2.54),),
    )
    probed.write_text(measurement_to_json(measurement))

    plan.command(probe=probed)

    assert "is faster than was measured there" in capsys.readouterr().out


def test_a_fleet_that_was_never_probed_is_told_to_be() -> None:
    with raises_fault("fleet-unmeasured") as refused:
        plan.command()
    assert refused.value.fix[0] == "yoked probe"


def test_a_host_that_would_not_help_is_told_so(
    probed: Path, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    found = answer(capsys, probe=probed, add=("old=0.01,10",))
    assert "old" in found["leave_at_home"]
    assert found["explanation"] == snapshot


def test_prices_make_a_cost(probed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, probe=probed, price_per_hour=("laptop-1=2", "laptop-2=2"))
    used = len(found["chosen"]["shares"])
    assert found["target"]["cost"] == pytest.approx(2 * used * found["target"]["time_s"] / 3600)


def test_a_model_that_does_not_fit_ends_with_one(
    capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    status = plan.command(simulate="two-laptops", flags=PlanFlags(depth=40))
    assert status == 1
    assert capsys.readouterr().out == snapshot


@pytest.mark.parametrize(
    "given",
    [
        {"simulate": "two-laptops", "probe": Path("p")},
        {"simulate": "two-laptops", "price_per_hour": ("x=1",)},
        {"simulate": "two-laptops", "price_per_hour": ("laptop-1=dear",)},
        {"probe": Path("missing.json")},
        {"simulate": "two-laptops", "flags": PlanFlags(dtype="bfloat16")},
        {"simulate": "two-laptops", "flags": PlanFlags(total_batch_size=1000)},
    ],
)
def test_what_cannot_be_meant_is_refused(
    given: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(UsageError) as caught:
        plan.command(**given)
    assert str(caught.value) == snapshot


def test_an_unknown_fleet_is_refused_with_those_that_there_are(snapshot: SnapshotAssertion) -> None:
    with pytest.raises(FleetError) as refused:
        plan.command(simulate="nowhere")
    assert str(refused.value) == snapshot
    assert any("two-laptops" in line for line in refused.value.fix)


def test_a_plan_needs_no_torch() -> None:
    program = (
        "import sys; from yoked.cli.commands import plan; plan.command(simulate='two-laptops')\n"
        "print([m for m in ('torch', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_where_one_host_is_better_alone_larger_steps_that_would_use_all_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    slow = tmp_path / "slow.toml"
    slow.write_text('[[host]]\nname = "box"\ncount = 2\ntflops = 0.5\nup = "60 Mbit/s"\n')

    assert plan.command(simulate=str(slow), flags=PlanFlags(total_batch_size=2048)) == 0

    said = capsys.readouterr().out
    assert said.startswith("train on box-1 alone")
    assert said == snapshot


def test_nobody_is_sent_to_train_on_a_host_that_there_is_not(
    probed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan.command(probe=probed, add=("old=0.01,10",)) == 0
    assert "next:" not in capsys.readouterr().out


def test_a_fleet_of_unlike_devices_is_planned_by_what_suits_its_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mixed = tmp_path / "mixed.toml"
    mixed.write_text(
        '[[host]]\nname = "gpu"\ndevice = "cuda"\ntflops = 40\nup = "1 Gbit/s"\n'
        '[[host]]\nname = "cpu"\ntflops = 1\nup = "1 Gbit/s"\n'
    )

    found = answer(capsys, simulate=str(mixed))

    # On CPUs alone it would be depth 4 and 4,096 tokens.
    assert found["tokens_per_step"] == 524_288
    assert found["chosen"]["shares"] == {"gpu": 256}


def test_a_plan_says_what_a_gpu_leaves_to_its_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    card = tmp_path / "card.toml"
    card.write_text(
        '[[host]]\nname = "i9"\ndevice = "cuda"\ntflops = 40\nmemory = "12 GB"\nup = "1 Gbit/s"\n'
    )

    assert plan.command(simulate=str(card), flags=PlanFlags(depth=20)) == 0

    told = [line for line in capsys.readouterr().out.splitlines() if "tables" in line]
    assert told == snapshot


GPT2_760M = ["plan", "--params", "760M", "--payload", "bf16", "--step-s", "1.5"]


def test_any_model_is_planned_without_a_fleet(
    capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    assert main([*GPT2_760M, "--hosts", "2", "--link", "1gbit"]) == 0
    assert capsys.readouterr().out == snapshot


def test_the_json_of_any_model_has_the_times_of_the_line_that_was_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*GPT2_760M, "--link", "5GbE", "--efficiency", "0.85", "--json"]) == 0

    found = conforms("plan-params", json.loads(capsys.readouterr().out))

    by_rate = {line["bit_per_s"]: line for line in found["links"]}
    assert by_rate.keys() == {1e9, 2.5e9, 5e9, 10e9, 400e9}
    assert [rate for rate, line in by_rate.items() if line["given"]] == [5e9]
    assert by_rate[1e9]["comm_s"] == pytest.approx(14.3, rel=2e-3)
    assert by_rate[10e9]["comm_s"] == pytest.approx(1.43, rel=2e-3)
    assert by_rate[400e9]["comm_s"] == pytest.approx(0.036, rel=1e-2)
    assert found["efficiency_from"] == "given"


LORA = ["plan", "--params", "1.1B", "--trainable", "4.5M", "--hosts", "4", "--link", "100mbit"]


def test_a_fine_tune_is_planned_by_the_parameters_that_it_trains(
    capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    assert main([*LORA, "--step-s", "8"]) == 0
    assert capsys.readouterr().out == snapshot


def test_the_json_of_a_fine_tune_has_each_number_of_hosts_and_what_training_all_would_send(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*LORA, "--step-s", "8", "--json"]) == 0

    found = conforms("plan-params", json.loads(capsys.readouterr().out))

    assert (found["params"], found["trainable"]) == (1.1e9, 4.5e6)
    assert found["bytes_per_step"] == pytest.approx(1.5 * 18e6)
    assert found["all_trained"]["bytes_per_step"] == pytest.approx(1.5 * 4.4e9)
    by_hosts = {one["hosts"]: one for one in found["by_hosts"]}
    assert by_hosts.keys() == {1, 2, 3, 4}
    assert (by_hosts[1]["speedup"], by_hosts[1]["exposed_comm_s"]) == (1.0, 0.0)
    exposed_s = 8 * 18e6 / (1e8 * 0.95)
    assert by_hosts[2]["exposed_comm_s"] == pytest.approx(exposed_s)
    assert by_hosts[2]["speedup"] == pytest.approx(2 * 8 / (8 + exposed_s))


def test_without_trainable_all_parameters_are_trained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GPT2_760M, "--json"]) == 0
    found = conforms("plan-params", json.loads(capsys.readouterr().out))
    assert (found["trainable"], found["all_trained"]) == (760e6, None)


@pytest.mark.parametrize(
    "argv",
    [
        ["--params", "760Q"],
        ["--params", "0"],
        ["--params", "760M", "--link", "fast"],
        ["--params", "760M", "--link", "0gbit"],
        ["--params", "760M", "--hosts", "1"],
        ["--params", "760M", "--step-s", "nan"],
        ["--params", "760M", "--efficiency", "85"],
        ["--params", "760M", "--depth", "4", "--simulate", "two-laptops"],
        ["--params", "760M", "--trainable", "all"],
        ["--params", "760M", "--trainable", "1.5B"],
        ["--params", "760M", "--device-batch-size", "4"],
        ["--link", "1gbit"],
        ["--trainable", "4.5M"],
    ],
)
def test_what_cannot_be_meant_of_any_model_is_refused(
    argv: list[str], capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    assert main(["plan", *argv]) == 2
    assert capsys.readouterr().err == snapshot


def test_any_model_is_planned_without_torch() -> None:
    program = (
        "import sys; from yoked.cli.main import main\n"
        "status = main(['plan', '--params', '760M', '--json'])\n"
        "print(status, 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "0 False False"
