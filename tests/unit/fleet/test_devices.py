"""What ranks will train on, told before they start, by all that is known of a host."""

from __future__ import annotations

from typing import Any

import pytest

from yoked.fleet.devices import (
    default_ranks,
    device_type,
    misfit,
    newest_cuda,
    torch_index,
    training_gpus,
    usable_gpus,
)

CPU = {"build": "cpu"}
CUDA = {"build": "cuda", "cuda_build": "13.0"}
ROCM = {"build": "rocm"}
RTX: dict[str, Any] = {"vendor": "nvidia", "name": "RTX 4070", "driver": "580.95.05"}
OLD_DRIVER = {**RTX, "driver": "550.54.14"}
RX = {"vendor": "amd", "name": "gfx1100", "integrated": False}
APU = {"vendor": "amd", "name": "gfx1036", "integrated": True}


@pytest.mark.parametrize(
    ("gpus", "torch", "device", "ranks"),
    [
        ([], {}, "cpu", 1),
        ([RTX, RTX], {}, "cuda", 2),
        ([RTX, RTX], CUDA, "cuda", 2),
        ([RTX, RTX], CPU, "cpu", 1),
        ([RTX, RTX], {**CUDA, "cuda_available": False}, "cpu", 1),
        ([RTX], ROCM, "cpu", 1),
        ([OLD_DRIVER], CUDA, "cpu", 1),
        ([OLD_DRIVER], {"build": "cuda", "cuda_build": "12.6"}, "cuda", 1),
        ([RTX, APU], CUDA, "cuda", 1),
        ([APU], {}, "cpu", 1),
        ([APU], CUDA, "cpu", 1),
        ([APU], ROCM, "cuda", 1),
        ([APU, RX], ROCM, "cuda", 1),
        ([RX, RX], ROCM, "cuda", 2),
        ([RX, RX], {}, "cpu", 1),
    ],
)
def test_ranks_take_the_gpus_that_their_torch_is_built_for(
    gpus: list[dict[str, Any]], torch: dict[str, Any], device: str, ranks: int
) -> None:
    facts = {"gpus": gpus}

    assert device_type("auto", facts, torch) == device
    assert default_ranks("auto", facts, torch) == ranks


@pytest.mark.parametrize("asked", ["cpu", "mps", "cuda"])
def test_what_is_asked_for_is_not_guessed(asked: str) -> None:
    for facts in ({"gpus": []}, {"gpus": [RTX, RTX]}):
        assert device_type(asked, facts, CUDA) == asked

    assert default_ranks(asked, {"gpus": [RTX, RTX]}, CUDA) == (2 if asked == "cuda" else 1)
    # One, which says that there is no GPU.
    assert default_ranks(asked, {"gpus": []}, CUDA) == 1


def test_beside_a_card_the_processors_gpu_gets_no_rank() -> None:
    assert list(usable_gpus({"gpus": [APU, RX]}, ROCM)) == [RX]
    assert list(training_gpus("auto", {"gpus": [APU]}, ROCM)) == [APU]
    assert list(training_gpus("cpu", {"gpus": [RX]}, ROCM)) == []


@pytest.mark.parametrize(
    ("driver", "capability", "cuda", "why"),
    [
        ("580.95.05", "8.9", "13.0", None),
        ("580.95.05", "8.9", "13.2", None),
        ("550.54.14", "8.9", "13.0", "driver"),
        ("550.54.14", "8.9", "12.8", None),
        ("525.60.13", "8.6", "12.6", None),
        ("470.256.02", "8.6", "12.6", "driver"),
        ("470.256.02", "8.6", "11.8", None),
        ("580.95.05", "6.1", "13.0", "card"),
        ("580.95.05", "6.1", "12.6", None),
        ("580.95.05", "12.0", "12.6", "card"),
        ("580.95.05", "12.0", "12.8", None),
        ("590.10", "8.9", "14.0", None),
        (None, None, "13.0", None),
        ("[N/A]", "odd", "13.0", None),
        ("550.54.14", "8.9", None, None),
        ("550.54.14", "8.9", "git", None),
    ],
)
def test_a_build_fits_a_driver_by_its_major_version_and_a_card_by_its_kernels(
    driver: str | None, capability: str | None, cuda: str | None, why: str | None
) -> None:
    gpu = {"vendor": "nvidia", "driver": driver, "capability": capability}

    assert misfit(gpu, cuda) == why


@pytest.mark.parametrize(
    ("gpus", "index"),
    [
        ([], "cpu"),
        ([("580.95.05", "8.9")], "cu130"),
        ([("550.54.14", "8.9")], "cu126"),
        ([("580.95.05", "6.1")], "cu126"),
        ([("580.95.05", "12.0")], "cu130"),
        ([(None, None)], "cu130"),
        ([("580.95.05", "8.9"), ("580.95.05", "6.1")], "cu126"),
        # A driver for neither; a card that needs what its driver cannot; two cards without a build.
        ([("470.256.02", "8.6")], None),
        ([("570.86.10", "12.0")], None),
        ([("580.95.05", "6.1"), ("580.95.05", "12.0")], None),
    ],
)
def test_the_index_is_that_of_the_newest_build_that_runs_on_all_gpus(
    gpus: list[tuple[str | None, str | None]], index: str | None
) -> None:
    found = torch_index([{"driver": driver, "capability": card} for driver, card in gpus])

    assert found == (None if index is None else f"https://download.pytorch.org/whl/{index}")


@pytest.mark.parametrize(
    ("driver", "cuda"),
    [("580.95.05", 13), ("570.86.10", 12), ("470.256.02", 11), ("390.157", None), (None, None)],
)
def test_a_driver_runs_cudas_up_to_one(driver: str | None, cuda: int | None) -> None:
    assert newest_cuda(driver) == cuda
