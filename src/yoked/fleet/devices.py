"""What the ranks of a host will train on, by all that is known before they start; and which of
PyTorch's builds fits a host.

Of the torch that trains there, `torch` has build and cuda_build (core/torchbuild.py), and
cuda_available where it was imported; what is not known is None or missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

Gpu = Mapping[str, Any]
Torch = Mapping[str, Any]

# The oldest driver that runs programs of a CUDA, by its major version: minor versions do not
# matter. Source: NVIDIA, "CUDA Compatibility", table 1.
_OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
# The compute capabilities of the cards that PyTorch's builds for a CUDA have kernels for, the
# newest CUDA first. Source: RELEASE.md of PyTorch 2.12 to 2.14, "PyTorch CUDA Support Matrix".
_CARDS = {"13.0": ((7, 5), (12, 1)), "12.6": ((5, 0), (9, 0))}
_INDEX = "https://download.pytorch.org/whl"


def usable_gpus(facts: Mapping[str, Any], torch: Torch) -> Sequence[Gpu]:
    """The GPUs of a host that its torch can use: a build is for those of one vendor, or none.

    As long as the build is not known, it is one for NVIDIA's: that is what pip brings.
    """
    gpus: Sequence[Gpu] = facts.get("gpus") or ()
    build = torch.get("build")
    if build == "cpu" or torch.get("cuda_available") is False:
        return ()
    if build == "rocm":
        of_amd = [gpu for gpu in gpus if gpu.get("vendor") == "amd"]
        # One that is a part of the processor counts where it is the only one.
        return [gpu for gpu in of_amd if not gpu.get("integrated")] or of_amd
    cuda = torch.get("cuda_build")
    of_nvidia = [gpu for gpu in gpus if gpu.get("vendor") == "nvidia"]
    return [gpu for gpu in of_nvidia if misfit(gpu, cuda) != "driver"]


def training_gpus(asked: str, facts: Mapping[str, Any], torch: Torch) -> Sequence[Gpu]:
    """The GPUs on which the ranks of a host will train; none: they do not train on GPUs.

    asked: --device-type, or where that is auto, the host's `device` of yoked.toml.
    """
    return () if asked in ("cpu", "mps") else usable_gpus(facts, torch)


def device_type(asked: str, facts: Mapping[str, Any], torch: Torch) -> str:
    """What the ranks of a host will train on, as they choose it: train/device.py:pick_device.

    Not foreseen is Metal: a Mac is no host of a fleet.
    """
    if asked != "auto":
        return asked
    return "cuda" if training_gpus(asked, facts, torch) else "cpu"


def default_ranks(asked: str, facts: Mapping[str, Any], torch: Torch) -> int:
    """One rank on the CPU or on Metal, one for each GPU that trains."""
    return max(1, len(training_gpus(asked, facts, torch)))


def misfit(gpu: Gpu, cuda: str | None) -> Literal["driver", "card"] | None:
    """Why a GPU does not run a torch for that CUDA; None: it does, or it is not known.

    driver: it is older than the CUDA. card: that build has no kernels for it.
    """
    built, driver = _numbers(cuda), _numbers(gpu.get("driver"))
    if built and driver and driver[0] < _OLDEST_DRIVER.get(built[0], 0):
        return "driver"
    capability = _numbers(gpu.get("capability"))
    if capability and cuda in _CARDS:
        oldest, newest = _CARDS[cuda]
        return None if oldest <= capability <= newest else "card"
    return None


def newest_cuda(driver: str | None) -> int | None:
    """The major version of the newest CUDA that a driver runs; None: not known."""
    number = _numbers(driver)
    fitting = [cuda for cuda, oldest in _OLDEST_DRIVER.items() if number and number[0] >= oldest]
    return max(fitting, default=None)


def torch_index(gpus: Sequence[Gpu]) -> str | None:
    """PyTorch's index with the build for a host's GPUs, or for its CPU where it has none.

    None: no build runs on all of them, mostly because the driver is too old.
    """
    if not gpus:
        return f"{_INDEX}/cpu"
    for cuda in _CARDS:
        if not any(misfit(gpu, cuda) for gpu in gpus):
            return f"{_INDEX}/cu{cuda.replace('.', '')}"
    return None


def _numbers(version: object) -> tuple[int, ...]:
    """The numbers at the front of a version that a host told; none where it has none."""
    found = re.match(r"\d{1,6}(\.\d{1,6})*", version) if isinstance(version, str) else None
    return tuple(map(int, found[0].split("."))) if found else ()
