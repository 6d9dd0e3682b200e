"""Codecs: the payload dtypes in which gradients and updates travel.

    fp32   4 bytes a number, as it is
    bf16   2 bytes, rounded to nearest even
    int8   a float32 scale for 256 numbers, then one byte a number: -127 to 127 times the scale
    int4   a bf16 scale for 64 numbers, then half a byte a number: -7 to 7 times the scale

The scale is the block's largest magnitude divided by 127 or 7, so no number is clipped and the
error is at most half a scale. A block that holds NaN or an infinity decodes to NaN as a whole:
the loss of the next step then shows it.

A residual gives error feedback: what rounding loses in one step is added to the next (Seide et
al. 2014, "1-bit stochastic gradient descent"; Karimireddy et al. 2019, "Error feedback fixes
SignSGD"). Over the steps, the sum of what arrives differs from the sum of what was given by one
step's error, however many steps there are.

Each codec is one compiled pass on a CPU with a compiler and on a CUDA device, and otherwise the
same IEEE additions and multiplications in PyTorch: the same bytes in each way, on all of them.

Shape legend: n numbers, N blocks, W numbers of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from yoked.costmodel.work import INT8_BLOCK
from yoked.train import kernels
from yoked.train.kernels import cuda

INT4_BLOCK = 64  # why 64, with a bf16 scale: benchmarks/codecs
# 2^-126: the reciprocal of a smaller scale would not be finite.
SMALLEST_SCALE = torch.finfo(torch.float32).tiny


# A codec in PyTorch, for where no pass is compiled (kernels/codecs.c and codecs.cu do the same):
# (n,) fp32 to the parts of its payload, and back.
Split = Callable[[Tensor], tuple[Tensor, ...]]
Join = Callable[[Tensor, int], Tensor]


@dataclass(frozen=True)
class Codec:
    """Numbers to bytes and back. block: numbers that share a scale.

    scale_bytes, payload_bytes: of one block, the latter only for whole blocks of `block` numbers
    if `padded`. split, join: the same in PyTorch as `kernels.encode` and `decode` are in C.
    """

    name: str
    block: int
    scale_bytes: int
    payload_bytes: int
    padded: bool
    split: Split
    join: Join

    @property
    def bits(self) -> float:
        """Bits that a number costs on the wire in a long tensor, scales included."""
        return 8 * (self.scale_bytes + self.payload_bytes) / self.block

    def encoded_bytes(self, numel: int) -> int:
        """Length of the payload of so many numbers."""
        blocks = -(-numel // self.block)
        # A byte of int4 has a number of each half of a block: the last block is sent whole.
        numbers = blocks * self.block if self.padded else numel
        return blocks * self.scale_bytes + numbers * self.payload_bytes // self.block

    def encode(self, values: Tensor, out: Tensor, residual: Tensor | None = None) -> None:
        """Encode values, (n,) fp32, into out, (encoded_bytes(n),) uint8; both contiguous.

        With residual, (n,) fp32: encodes values + residual, and leaves there what was lost (0
        where what arrives is not finite, so that a step skipped for it leaves no trace).
        """
        self._check(values, out)
        assert residual is None or (
            residual.shape == values.shape
            and residual.dtype == torch.float32
            and residual.is_contiguous()
        ), f"residual {tuple(residual.shape)} {residual.dtype}, values {tuple(values.shape)}"
        if self._is_compiled(values, out):
            kernels.encode(self.name, self.block, values, out, residual)
            return
        if cuda.has_codec(self.name, values.device):
            cuda.encode(self.name, values, out, residual)
            return
        x = values if residual is None else values + residual
        parts = [part.contiguous().view(torch.uint8).view(-1) for part in self.split(x)]
        torch.cat(parts, out=out)  # all scales, then all numbers
        if residual is not None:
            arrives = self.join(out, len(x))
            torch.sub(x, arrives, out=residual).masked_fill_(~arrives.isfinite(), 0.0)

    def decode(self, encoded: Tensor, out: Tensor, *, add: bool = False) -> None:
        """Overwrite out, (n,) fp32 contiguous, with the numbers of a payload, or add them."""
        self._check(out, encoded)
        if self._is_compiled(out, encoded):
            kernels.decode(self.name, self.block, encoded, out, add)
        elif cuda.has_codec(self.name, out.device):
            cuda.decode(self.name, encoded, out, add)
        elif add:
            out += self.join(encoded, len(out))
        else:
            out.copy_(self.join(encoded, len(out)))

    def works_on(self, device: torch.device) -> torch.device:
        """Where the trainer encodes what is on a device: there, or in host memory.

        Of a GPU without kernels the numbers travel over its bus in float32: PyTorch's passes would
        take longer, and on Metal they are not IEEE's.
        """
        return device if cuda.has_codec(self.name, device) else torch.device("cpu")

    def _is_compiled(self, *tensors: Tensor) -> bool:
        """Whether a fused pass has been compiled for it; else PyTorch's operators do the same."""
        on_cpu = all(tensor.device.type == "cpu" for tensor in tensors)
        return on_cpu and self.name in kernels.CODECS and kernels.kernels().available

    def _check(self, numbers: Tensor, payload: Tensor) -> None:
        room = (self.encoded_bytes(len(numbers)),)
        assert numbers.dtype == torch.float32, numbers.dtype
        assert numbers.dim() == 1, numbers.shape
        assert numbers.is_contiguous(), numbers.stride()
        assert payload.dtype == torch.uint8, payload.dtype
        assert payload.shape == room, f"{self.name} takes {room} bytes, not {payload.shape}"
        assert payload.is_contiguous(), payload.stride()


def _read(payload: Tensor, dtype: torch.dtype) -> Tensor:
    # A view as a wider type must begin at a multiple of its size; a copy does.
    return payload.clone().view(dtype)


def _split_fp32(x: Tensor) -> tuple[Tensor, ...]:
    return (x,)


def _join_fp32(payload: Tensor, _numel: int) -> Tensor:
    return _read(payload, torch.float32)


def _to_bf16(x: Tensor) -> Tensor:
    """Rounded to nearest even; all NaN become one, because CPUs differ in the NaN they make."""
    return x.to(torch.bfloat16).masked_fill_(x.isnan(), torch.nan)


def _split_bf16(x: Tensor) -> tuple[Tensor, ...]:
    return (_to_bf16(x),)


def _join_bf16(payload: Tensor, _numel: int) -> Tensor:
    return _read(payload, torch.bfloat16).float()


def _in_blocks(x: Tensor, width: int) -> Tensor:
    """(N, W): the last block filled up with zeros."""
    return torch.nn.functional.pad(x, (0, -len(x) % width)).view(-1, width)


def _scales(blocks_NW: Tensor, steps: int) -> Tensor:
    """(N, 1): the largest magnitude / steps; NaN for a block that is not finite."""
    # Multiplied: PyTorch divides by a number on CUDA as it pleases.
    largest = blocks_NW.abs().amax(dim=1, keepdim=True) * torch.tensor(1 / steps)
    return largest.clamp_min(SMALLEST_SCALE).masked_fill_(~largest.isfinite(), torch.nan)


def _quotients(blocks_NW: Tensor, scales_N1: Tensor) -> Tensor:
    """(N, W) int8: numbers as multiples of their scale, 0 in a block that is not finite."""
    # Multiplied, and rounded to even, as in codecs.c. A cast of NaN to int8 is undefined.
    return (blocks_NW * scales_N1.reciprocal()).round_().nan_to_num_(0.0).to(torch.int8)


def _split_int8(x: Tensor) -> tuple[Tensor, ...]:
    blocks_NW = _in_blocks(x, INT8_BLOCK)
    scales_N1 = _scales(blocks_NW, 127)
    return scales_N1, _quotients(blocks_NW, scales_N1).view(-1)[: len(x)]


def _join_int8(payload: Tensor, numel: int) -> Tensor:
    scales_bytes = 4 * -(-numel // INT8_BLOCK)
    scales_N1 = _read(payload[:scales_bytes], torch.float32)[:, None]
    blocks_NW = _in_blocks(payload[scales_bytes:].view(torch.int8).float(), INT8_BLOCK)
    return (blocks_NW * scales_N1).view(-1)[:numel]


def _split_int4(x: Tensor) -> tuple[Tensor, ...]:
    blocks_NW = _in_blocks(x, INT4_BLOCK)
    scales_N1 = _to_bf16(_scales(blocks_NW, 7))
    # (N, W/2) each, 1 to 15; by the scale as rounded, since it decodes them.
    low, high = (_quotients(blocks_NW, scales_N1.float()) + 8).chunk(2, dim=1)
    return scales_N1, low.view(torch.uint8) | (high.view(torch.uint8) << 4)


def _join_int4(payload: Tensor, numel: int) -> Tensor:
    scales_bytes = 2 * -(-numel // INT4_BLOCK)
    scales_N1 = _read(payload[:scales_bytes], torch.bfloat16).float()[:, None]
    pairs = payload[scales_bytes:].view(-1, INT4_BLOCK // 2)  # (N, W/2)
    blocks_NW = torch.cat([pairs & 15, pairs >> 4], dim=1).float() - 8
    return (blocks_NW * scales_N1).view(-1)[:numel]


CODECS: dict[str, Codec] = {
    codec.name: codec
    for codec in (
        # Name, block, scale_bytes, payload_bytes, padded, split, join.
        Codec("fp32", 1, 0, 4, False, _split_fp32, _join_fp32),
        Codec("bf16", 1, 0, 2, False, _split_bf16, _join_bf16),
        Codec("int8", INT8_BLOCK, 4, INT8_BLOCK, False, _split_int8, _join_int8),
        Codec("int4", INT4_BLOCK, 2, INT4_BLOCK // 2, True, _split_int4, _join_int4),
    )
}


def encoded(codec: Codec, values: Tensor, residual: Tensor | None) -> Tensor:
    """The payload of values, (n,) fp32, as `Codec.encode` makes it: a tensor beside them."""
    payload = torch.empty(
        codec.encoded_bytes(values.numel()), dtype=torch.uint8, device=values.device
    )
    codec.encode(values, payload, residual)
    return payload


def decode_sum(codec: Codec, payloads: Sequence[Tensor], total: Tensor) -> None:
    """Overwrite total, (n,) fp32, with the sum of payloads, added in their order."""
    for number, payload in enumerate(payloads):
        codec.decode(payload, total, add=number > 0)
