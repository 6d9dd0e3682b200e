"""A device without hardware: real numbers in host memory behind the rules of a GPU.

Tensors say that they are on `sim:0`. Operations are computed on the CPU, refused where a GPU
refuses them (operands on two devices, a device tensor for Gloo, float64 on Metal), and counted:
kernels, copies over the bus, and each point at which the host waits for the device. With a lag the
device is asynchronous: what nobody waited for has not happened yet.

PrivateUse1 of torch 2.13, by its Python backend (torch.utils.backend_registration): the name is for
the whole process, and the function is private. So tests/gpu runs in a process of its own, and the
tests that use it skip where torch is another one.
"""

from __future__ import annotations

import collections
import contextlib
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

NAME = "sim"
TORCH = "2.13.0"
# The host reads a result: it waits until the device has it.
WAITS = {"_local_scalar_dense", "nonzero", "_unique2", "masked_select", "equal"}
INDEXING = {"index", "index_put_", "index_put", "_index_put_impl_", "_unsafe_index"}
VIEWS = {
    "_reshape_alias",
    "_unsafe_view",
    "alias",
    "as_strided",
    "chunk",
    "detach",
    "diagonal",
    "expand",
    "lift_fresh",
    "narrow",
    "permute",
    "reshape",
    "select",
    "slice",
    "split",
    "split_with_sizes",
    "squeeze",
    "t",
    "transpose",
    "unbind",
    "unsqueeze",
    "view",
    "view_as",
}


@dataclass
class Tally:
    """What was done. waits: by what waited; lines: by file and function of yoked; operations: as
    torch's table of them has them.
    """

    kernels: collections.Counter[str] = field(default_factory=collections.Counter)
    waits: collections.Counter[str] = field(default_factory=collections.Counter)
    lines: collections.Counter[str] = field(default_factory=collections.Counter)
    to_device: list[int] = field(default_factory=list)
    to_host: list[int] = field(default_factory=list)
    collectives: list[tuple[str, int]] = field(default_factory=list)
    operations: set[str] = field(default_factory=set)


@dataclass
class _Device:
    """The rules of the moment. lag_s: what each kernel takes. metal: no float64, and square roots
    as they come. nccl: collectives take device tensors, and nothing else.
    """

    lag_s: float = 0.0
    metal: bool = False
    nccl: bool = False
    idle_at: float = 0.0
    tally: Tally = field(default_factory=Tally)
    registered: bool = False


_device = _Device()


def unusable() -> str | None:
    """Why there is no simulated device here; None: there is one."""
    version = torch.__version__.partition("+")[0]
    return None if version == TORCH else f"made for torch {TORCH}, this is {version}"


def register() -> torch.device:
    """The device; for the whole process, and for good."""
    if not _device.registered:
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

        _setup_privateuseone_for_python_backend(NAME)
        # torch.utils.checkpoint asks for it, whether autocast is on or not.
        torch.get_device_module(NAME).get_amp_supported_dtype = lambda: [torch.bfloat16]
        _device.registered = True
    return torch.device(NAME, 0)


def synchronize() -> None:
    """Wait until the device has done all that it was told."""
    time.sleep(max(0.0, _device.idle_at - time.perf_counter()))


@contextlib.contextmanager
def counted() -> Iterator[Tally]:
    """Count what is done meanwhile."""
    before, _device.tally = _device.tally, Tally()
    yield _device.tally
    _device.tally = before


@contextlib.contextmanager
def entered(*, lag_s: float = 0.0, metal: bool = False, nccl: bool = False) -> Iterator[None]:
    """Within it factories take device=sim, and plain operations meet device tensors."""
    _device.lag_s, _device.metal, _device.nccl = lag_s, metal, nccl
    with _Dispatch():
        yield
    _device.lag_s, _device.metal, _device.nccl = 0.0, False, False


class SimTensor(torch.Tensor):
    """raw: the numbers in host memory; views of one buffer share them."""

    raw: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> SimTensor:
        assert raw.device.type == "cpu", raw.device
        assert type(raw) is torch.Tensor, type(raw)
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            layout=raw.layout,
            device=torch.device(NAME, 0),
            requires_grad=False,
        )
        made.raw = raw
        return made

    def __init__(self, raw: torch.Tensor) -> None:
        """As __new__ takes it."""

    @property
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, other: torch.Tensor) -> None:
        assert isinstance(other, SimTensor), "a parameter on the device gets data on the device"
        assert (other.shape, other.dtype) == (self.shape, self.dtype)
        self.raw = other.raw

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self) -> Any:
        raise TypeError("can't convert sim:0 device type tensor to numpy")

    def data_ptr(self) -> int:
        raise RuntimeError("host code takes the address of a device tensor")

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})


def _dispatch(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = func._schema.name.split("::")[-1]
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    sims = [x for x in tensors if isinstance(x, SimTensor)]
    hosts = [x for x in tensors if not isinstance(x, SimTensor)]
    device = kwargs.get("device")
    on_device = device is not None and torch.device(device).type == NAME
    if func.namespace == "c10d":
        return _collective(func, name, args, kwargs, sims, hosts)
    if name == "_to_copy":
        return _to_copy(func, args[0], kwargs, on_device if device is not None else bool(sims))
    if name == "copy_":
        return _copy(*args[:2])
    if not sims and not on_device:
        return func(*args, **kwargs)
    _device.tally.operations.add(func.name())
    raw_args, raw_kwargs = tree_map_only(SimTensor, lambda x: x.raw, (args, dict(kwargs)))
    raw_kwargs.pop("pin_memory", None)
    if sims and device is not None and not on_device:
        return func(*raw_args, **raw_kwargs)
    if device is not None:
        raw_kwargs["device"] = torch.device("cpu")
    _require_one_device(name, sims, hosts)
    _wait_if_read(name, args)
    if name == "sqrt" and raw_args[0].dtype == torch.float32 and not _device.metal:
        # Rounded correctly, as CUDA's is; PyTorch's on the CPU may be off by a unit.
        out = raw_args[0].double().sqrt().float()
    else:
        out = func(*raw_args, **raw_kwargs)
    if name not in VIEWS and not name.startswith(("empty", "new_empty")):
        _launch(name)
    return _wrapped(out, sims)


def _require_one_device(name: str, sims: list[SimTensor], hosts: list[torch.Tensor]) -> None:
    # Numbers in host memory may index, and 0-D tensors go as numbers.
    if sims and name not in INDEXING and any(x.dim() for x in hosts):
        raise RuntimeError(
            f"{name}: Expected all tensors to be on the same device, but found at least two "
            "devices, sim:0 and cpu!"
        )


def _wait_if_read(name: str, args: Any) -> None:
    if name in WAITS:
        _wait(name)
    if name in INDEXING:
        indices = [i for i in tree_leaves(args[1]) if isinstance(i, torch.Tensor)]
        if any(i.dtype == torch.bool for i in indices):
            _wait(f"{name}(bool)")


def _wrapped(out: Any, sims: list[SimTensor]) -> Any:
    """Results as device tensors; those that an operation changed in place as they were."""
    known = {id(x.raw): x for x in sims}

    def wrap(x: torch.Tensor) -> SimTensor:
        return known[id(x)] if id(x) in known else _on_device(x)

    return tree_map_only(torch.Tensor, wrap, out)


def _on_device(raw: torch.Tensor) -> SimTensor:
    if _device.metal and raw.dtype == torch.float64:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
    return SimTensor(raw)


def _raw(x: torch.Tensor) -> torch.Tensor:
    return x.raw if isinstance(x, SimTensor) else x


def _launch(name: str) -> None:
    _device.tally.kernels[name] += 1
    _device.idle_at = max(time.perf_counter(), _device.idle_at) + _device.lag_s


def _wait(what: str) -> None:
    _device.tally.waits[what] += 1
    ours = [f for f in traceback.extract_stack() if "/yoked/" in f.filename]
    if ours:
        file = ours[-1].filename.split("/yoked/")[-1]
        _device.tally.lines[f"{file}:{ours[-1].name}"] += 1
    synchronize()


def _moved(source: torch.Tensor, to_device: bool) -> None:
    from_device = isinstance(source, SimTensor)
    if from_device and to_device:
        _launch("copy_")
    elif from_device:
        _device.tally.to_host.append(source.nbytes)
        _wait("to host")
    elif to_device:
        _device.tally.to_device.append(source.nbytes)


def _to_copy(
    func: Any, source: torch.Tensor, kwargs: dict[str, Any], to_device: bool
) -> torch.Tensor:
    raw = func(_raw(source), **{key: value for key, value in kwargs.items() if key != "device"})
    raw = raw.clone() if raw.data_ptr() == _raw(source).data_ptr() else raw
    _moved(source, to_device)
    return _on_device(raw) if to_device else raw


def _copy(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    _moved(source, isinstance(target, SimTensor))
    _raw(target).copy_(_raw(source))
    return target


def _collective(
    func: Any, name: str, args: Any, kwargs: Any, sims: list[Any], hosts: list[Any]
) -> Any:
    if not sims:
        return func(*args, **kwargs)
    if not _device.nccl:
        raise RuntimeError(f"Gloo got a device tensor in {name}")
    if hosts:
        raise RuntimeError(f"NCCL got a tensor in host memory in {name}")
    if name in ("send", "recv_"):
        raise RuntimeError("NCCL pairs messages by their order, whatever their tags")
    _device.tally.collectives.append((name, sum(x.nbytes for x in sims)))
    raw_args, raw_kwargs = tree_map_only(SimTensor, lambda x: x.raw, (args, kwargs))
    return _wrapped(func(*raw_args, **raw_kwargs), sims)
