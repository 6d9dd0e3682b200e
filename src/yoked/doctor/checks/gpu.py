"""Whether the device that yoked.toml asks for is there and can be used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from yoked.doctor.check import Match, check
from yoked.doctor.checks.query import mapping, part
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.fleet import edit_entry
from yoked.doctor.repairs.packages import get_torch
from yoked.doctor.repairs.startfiles import take_out_variable
from yoked.doctor.repairs.system import join_gpu_groups
from yoked.fleet.model import usable_gpus
from yoked.records.examination import Examination, Fix, HostSeen
from yoked.units import listed

_HIDDEN = ("", "-1", "NoDevFiles")
_AFTER = ("world-failed", "nccl-missing")


def _gpus(host: HostSeen) -> list[Mapping[str, Any]]:
    return [each for each in host.facts.get("gpus") or () if each.get("vendor") in
            ("nvidia", "amd")]  # fmt: skip


def _device(host: HostSeen) -> str:
    return str(host.wanted.get("device") or "auto")


@check(
    "device-missing",
    question="Is the device of yoked.toml there?",
    reads=("facts",),
    severity="error",
    saw='yoked.toml has device = "{device}" for {host}: {what}',
    why="a rank there ends with `Torch not compiled with CUDA enabled` or `No CUDA GPUs are "
    "available`",
    symptom="`AssertionError: Torch not compiled with CUDA enabled`, `RuntimeError: No "
    "CUDA GPUs are available`.",
    cause="yoked.toml asks for a device that the host does not have.",
    fix='Writes `device = "auto"`: a GPU where there is one, else the CPU.',
    on_cluster="Slurm: the job did not ask for `--gres=gpu`; Kubernetes: no "
    "`nvidia.com/gpu` among its limits.",
    explains=(*_AFTER, "gpu-driver"),
    quick=True,
)
def device_missing(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        device, system = _device(host), host.facts.get("os")
        if device == "cuda" and "gpus" in host.facts and not _gpus(host):
            error = part(host, "gpu", "error")
            what = error or "it has no GPU that is known of"
        elif device == "mps" and system not in (None, "Darwin"):
            what = f"mps is Apple's, and it runs {system}"
        else:
            continue
        take_auto = edit_entry(seen, host.name, 's/^device *=.*/device = "auto"/')
        yield Match(host.name, take_auto, device=device, what=what)


@check(
    "gpu-driver",
    question="Does the GPU's driver work?",
    reads=("health.gpu",),
    severity="error",
    saw="the GPU of {host} cannot be used: {error}",
    why="torch sees no GPU, and would train on the CPU",
    symptom="`NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA "
    "driver`, `Driver/library version mismatch`.",
    cause="No driver, one that was renewed without a restart, or no permission for /dev/nvidia*.",
    fix="Gives the user the groups of the GPU; the rest is by hand.",
    explains=(*_AFTER, "gpu-unused"),
)
def gpu_driver(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        error = part(host, "gpu", "error")
        if not error or _device(host) in ("cpu", "mps"):
            continue
        yield Match(
            host.name,
            *_mend_driver(host, str(error)),
            severity="error" if _device(host) == "cuda" else "warning",
            error=error,
        )


def _mend_driver(host: HostSeen, error: str) -> tuple[Fix, ...]:
    if "permission" in error:
        groups = join_gpu_groups(host.name, host.facts.get("user"))
        return (groups, by_hand(host.name, "log in anew"))
    if "mismatch" in error:
        return (by_hand(host.name, "restart the host: its driver was renewed while it ran"),)
    return (
        by_hand(host.name, "install NVIDIA's driver: `sudo ubuntu-drivers install`, and restart"),
    )


@check(
    "gpu-unused",
    question="Can torch use the GPU that is there?",
    reads=("torch", "facts"),
    severity="error",
    saw="{host} has {gpus:plural GPU} ({names}), and {reason}",
    why="it would train on the CPU, many times slower",
    symptom="A host with a GPU trains at the speed of its CPU.",
    cause="The CPU's build of torch, or one for a newer CUDA than the driver knows. A GPU "
    "of AMD is asked for where yoked.toml names it, or torch is built for ROCm.",
    fix="Makes an environment with the build for NVIDIA's GPUs; others are by hand.",
    explains=_AFTER,
)
def gpu_unused(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        told = mapping(host.torch)
        gpus, device = usable_gpus(host.facts), _device(host)
        if not gpus or device in ("cpu", "mps") or told.get("cuda_available") is not False:
            continue
        amd = gpus[0].get("vendor") == "amd"
        if amd and device == "auto" and "rocm" not in str(told.get("torch")):
            # Most are a part of the processor: nobody has asked to train on it.
            continue
        saw, fix = _unused_amd(host) if amd else _unused_nvidia(seen, host)
        names = listed(dict.fromkeys(str(each.get("name")) for each in gpus))
        yield Match(
            host.name,
            *fix,
            severity="error" if device == "cuda" else "warning",
            gpus=len(gpus),
            names=names,
            reason=saw,
        )


def _unused_amd(host: HostSeen) -> tuple[str, tuple[Fix, ...]]:
    version = mapping(host.torch).get("torch")
    fix = by_hand(
        host.name,
        "torch trains on AMD's in its build for ROCm, and where `rocminfo` names the GPU: "
        "https://pytorch.org/get-started/locally",
    )
    return f"its torch ({version}) cannot use it", (fix,)


def _unused_nvidia(seen: Examination, host: HostSeen) -> tuple[str, tuple[Fix, ...]]:
    told = mapping(host.torch)
    build = told.get("cuda_build")
    if build is None:
        return "its torch is built for the CPU", get_torch(seen, host, told.get("torch"), "--cuda")
    fix = by_hand(
        host.name,
        "compare `nvidia-smi` with torch.version.cuda: the driver must be as new as that",
    )
    return f"its torch (CUDA {build}) cannot use it", (fix,)


@check(
    "gpu-hidden",
    question="Is the GPU visible?",
    reads=("health.environment", "facts"),
    severity="error",
    saw='CUDA_VISIBLE_DEVICES is "{setting}" on {host}, which hides {gpus:plural GPU}',
    why="torch sees no GPU, and would train on the CPU",
    symptom="`torch.cuda.is_available()` is False, and nvidia-smi shows the GPU.",
    cause="A start file of the shell sets CUDA_VISIBLE_DEVICES to nothing.",
    fix="Makes that line a comment.",
    explains=(*_AFTER, "gpu-unused"),
    quick=True,
)
def gpu_hidden(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        environment = mapping(part(host, "environment"))
        value = environment.get("CUDA_VISIBLE_DEVICES")
        if value is None or value not in _HIDDEN or not _gpus(host):
            continue
        if _device(host) in ("cpu", "mps"):
            continue
        yield Match(
            host.name,
            take_out_variable(host.name, "CUDA_VISIBLE_DEVICES"),
            severity="error" if _device(host) == "cuda" else "warning",
            setting=value,
            gpus=len(_gpus(host)),
        )


@check(
    "nccl-missing",
    question="Does torch have NCCL where GPUs train?",
    reads=("torch",),
    severity="warning",
    saw="the torch of {host} was built without NCCL",
    why="gradients of GPUs would travel by Gloo, through the CPU's memory",
    symptom="`Distributed package doesn't have NCCL built in`.",
    cause="A build of torch without it.",
    fix="Installs the usual build.",
)
def nccl_missing(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        told = mapping(host.torch)
        if told.get("nccl") is False and told.get("cuda_build") and _device(host) == "cuda":
            yield Match(host.name, *get_torch(seen, host, told.get("torch"), "--anew"))


CHECKS = (device_missing, gpu_hidden, gpu_driver, gpu_unused, nccl_missing)
