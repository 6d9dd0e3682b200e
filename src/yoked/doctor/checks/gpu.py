"""Whether the device that yoked.toml asks for is there and can be used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from yoked.doctor.check import Match, check
from yoked.doctor.checks.environment import take_out
from yoked.doctor.checks.query import asked_device, gpus_that_train, mapping, part
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.fleet import edit_entry, fleet_file
from yoked.doctor.repairs.packages import get_torch
from yoked.doctor.repairs.system import join_gpu_groups
from yoked.fleet.devices import misfit, newest_cuda, torch_index, usable_gpus
from yoked.records.examination import Examination, Fix, HostSeen
from yoked.units import listed

_HIDDEN = ("", "-1", "NoDevFiles")
_AFTER = ("world-failed", "nccl-missing")
# What most of these checks have in common.
_check = partial(check, reads=("torch", "facts"), severity="error", quick=True)


def _gpus(host: HostSeen, *vendors: str) -> list[Mapping[str, Any]]:
    return [each for each in host.facts.get("gpus") or () if each.get("vendor") in
            (vendors or ("nvidia", "amd"))]  # fmt: skip


def _device(host: HostSeen) -> str:
    return str(host.wanted.get("device") or "auto")


@_check(
    "device-missing",
    question="Is the device of yoked.toml there?",
    reads=("facts",),
    saw='the fleet\'s file has device = "{device}" for {host}: {what}',
    why="a rank there ends with `Torch not compiled with CUDA enabled` or `No CUDA GPUs are "
    "available`",
    symptom="`AssertionError: Torch not compiled with CUDA enabled`, `RuntimeError: No "
    "CUDA GPUs are available`.",
    cause="yoked.toml asks for a device that the host does not have.",
    fix='Writes `device = "auto"`: a GPU where there is one, else the CPU.',
    on_cluster="Slurm: the job did not ask for `--gres=gpu`; Kubernetes: no "
    "`nvidia.com/gpu` among its limits.",
    explains=(*_AFTER, "gpu-driver"),
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
    return (_new_driver(host),)


def _new_driver(host: HostSeen) -> Fix:
    return by_hand(host.name, "install NVIDIA's driver: `sudo ubuntu-drivers install`, and restart")


@_check(
    "gpu-build",
    question="Does torch's CUDA fit the GPU and its driver?",
    saw={
        "driver": "the torch of {host} is built for CUDA {cuda}, and the driver of its {name} "
        "({driver}) runs CUDA {newest} at most",
        "card": "the torch of {host} is built for CUDA {cuda}, without kernels for its {name} "
        "(compute capability {capability})",
    },
    why={
        "driver": "torch sees no GPU, and would train on the CPU, many times slower",
        "card": "a rank ends at its first kernel: `no kernel image is available for execution on "
        "the device`",
    },
    symptom="`The NVIDIA driver on your system is too old`, and `torch.cuda.is_available()` is "
    "False; or `CUDA error: no kernel image is available for execution on the device`.",
    cause="pip brings the build for one CUDA, whatever the host has. CUDA 12 needs a driver from "
    "525 on, CUDA 13 one from 580 on; minor versions do not matter. Builds for CUDA 13 have "
    "kernels for cards from Turing (RTX 20) on, those for CUDA 12.6 for Maxwell (GTX 900) to "
    "Hopper.",
    fix="Installs the build that fits; where none does, a newer driver is needed first.",
    on_cluster="In containers: an image built for a newer CUDA than the node's driver.",
    explains=(*_AFTER, "gpu-unused"),
)
def gpu_build(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        cuda, device = mapping(host.torch).get("cuda_build"), asked_device(seen, host)
        odd = [(card, how) for card in _gpus(host, "nvidia") if (how := misfit(card, cuda))]
        if not odd or device in ("cpu", "mps"):
            continue
        card, how = odd[0]
        # With a driver that is too old, torch takes the CPU where it may.
        grave = how == "card" or device == "cuda"
        yield Match(
            host.name,
            *_fitting_torch(seen, host, "--anew"),
            severity="error" if grave else "warning",
            how=how,
            cuda=cuda,
            name=card.get("name"),
            driver=card.get("driver"),
            newest=newest_cuda(card.get("driver")) or 10,
            capability=card.get("capability"),
        )


def _fitting_torch(seen: Examination, host: HostSeen, flag: str) -> tuple[Fix, ...]:
    """Have a host come by the build of torch that fits its GPUs, or by a driver that takes one."""
    index = torch_index(_gpus(host, "nvidia"))
    if index is None:
        return (_new_driver(host),)
    return get_torch(seen, host, mapping(host.torch).get("torch"), flag, index=index)


@_check(
    "gpu-unused",
    question="Can torch use the GPU that is there?",
    saw="{host} has {gpus:plural GPU} ({names}), and {reason}",
    why="it would train on the CPU, many times slower",
    symptom="A host with a GPU trains at the speed of its CPU.",
    cause="The CPU's build of torch, or a GPU that its driver does not start. A GPU "
    "of AMD is asked for where yoked.toml names it, or torch is built for ROCm.",
    fix="Makes an environment with the build for NVIDIA's GPUs; others are by hand.",
    explains=_AFTER,
)
def gpu_unused(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        told, device = mapping(host.torch), asked_device(seen, host)
        gpus = usable_gpus(host.facts, {}) or _gpus(host, "amd")
        unused = told.get("cuda_available") is False or told.get("build") == "cpu"
        if not gpus or device in ("cpu", "mps") or not unused:
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
        others = "AMD's GPUs" if told.get("build") == "rocm" else "the CPU"
        return f"its torch is built for {others}", _fitting_torch(seen, host, "--cuda")
    fix = by_hand(
        host.name, "compare `nvidia-smi` with torch.version.cuda: the driver must be as new as that"
    )
    return f"its torch (CUDA {build}) cannot use it", (fix,)


@_check(
    "gpu-hidden",
    question="Is the GPU visible?",
    reads=("health.environment", "facts"),
    saw='CUDA_VISIBLE_DEVICES is "{setting}" on {host}, which hides {gpus:plural GPU}',
    why="torch sees no GPU, and would train on the CPU",
    symptom="`torch.cuda.is_available()` is False, and nvidia-smi shows the GPU.",
    cause="A start file of the shell sets CUDA_VISIBLE_DEVICES to nothing.",
    fix="Makes that line a comment.",
    explains=(*_AFTER, "gpu-unused"),
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
            *take_out(host, ["CUDA_VISIBLE_DEVICES"]),
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


@_check(
    "gpu-integrated",
    question="Is the GPU that would train a card of its own?",
    severity="warning",
    saw="{host} would train on {name}, a GPU that is a part of its processor",
    why="it shares the processor's memory and is often slower than its cores; for many of its kind "
    "torch has no kernels: `HIP error: invalid device function`",
    symptom="`HIP error: invalid device function`, or a GPU as slow as the CPU.",
    cause="A build of torch for ROCm takes each GPU that AMD's driver shows for a card, that of a "
    "processor too; or yoked.toml asks for it.",
    fix='Has `device = "cpu"` in yoked.toml. Where `yoked probe` shows that this GPU is faster, '
    "leave it.",
)
def gpu_integrated(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        gpus = gpus_that_train(seen, host)
        if not gpus or not all(each.get("integrated") for each in gpus):
            continue
        named = _device(host) != "auto"
        take_cpu = (
            edit_entry(seen, host.name, 's/^device *=.*/device = "cpu"/')
            if named
            else by_hand("", 'write `device = "cpu"` into the entry of {name} in {file}',
                         name=host.name, file=fleet_file(seen))
        )  # fmt: skip
        yield Match(host.name, take_cpu, name=gpus[0].get("name"))


CHECKS = (
    device_missing,
    gpu_hidden,
    gpu_driver,
    gpu_build,
    gpu_unused,
    gpu_integrated,
    nccl_missing,
)
