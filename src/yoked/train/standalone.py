"""The model of this folder in plain PyTorch: torch and safetensors are all that it needs.

    from model import bos_id, load, load_tokenizer
    model, tokenizer = load("."), load_tokenizer(".")           # tiktoken, for the tokenizer
    ids = [bos_id(tokenizer), *tokenizer.encode_ordinary("The state of the Union is")]
    logits = model.logits(torch.tensor([ids]))                  # (1, T, vocab_size) float32

`python model.py "The state of the Union is"` goes on with a text. The architecture is nanochat's.
`yoked export --to safetensors` wrote this file; its tests compare the logits with yoked's own.

Shape legend: B batch rows, T tokens a row, C n_embd, H heads, D head_dim, V vocabulary.
"""

from __future__ import annotations

import base64
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

ROTARY_BASE = 100_000
NORM_EPS = 2.0**-23
SOFTCAP = 15.0
QK_SCALE = 1.2
SMEAR_CHANNELS = 24  # of the embedding, that the smear gate reads
VE_GATE_CHANNELS = 12  # of the stream, that a value embedding's gate reads
SHORT_WINDOW_TILE = 128


def load(folder: str | Path, dtype: torch.dtype = torch.float32) -> Model:
    """The model of an exported folder, on the CPU."""
    config = json.loads((Path(folder) / "config.json").read_text())
    weights = load_file(Path(folder) / "model.safetensors")
    return Model(config, {name: tensor.to(dtype) for name, tensor in weights.items()})


def load_tokenizer(folder: str | Path) -> Any:
    """The tokenizer, as tiktoken's Encoding."""
    import tiktoken

    form = json.loads((Path(folder) / "yoked_tokenizer.json").read_text())
    tokens = [base64.b64decode(token) for token in form["tokens_base64"]]
    return tiktoken.Encoding(
        name="exported",
        pat_str=form["pattern"],
        mergeable_ranks={token: rank for rank, token in enumerate(tokens)},
        special_tokens=form["special_tokens"],
    )


def bos_id(tokenizer: Any) -> int:
    """Id of the token with which every document begins."""
    found: int = tokenizer.encode_single_token("<|bos|>")
    return found


def norm(x: Tensor) -> Tensor:
    """RMS norm over the last dimension, without a learned weight."""
    return F.rms_norm(x, (x.size(-1),), eps=NORM_EPS)


class Model:
    """config: the object of config.json. weights: by the names in model.safetensors."""

    def __init__(self, config: dict[str, Any], weights: dict[str, Tensor]) -> None:
        self.config, self.weights = config, weights
        self.n_layer: int = config["n_layer"]
        self.n_head: int = config["n_head"]
        self.n_kv_head: int = config["n_kv_head"]
        self.head_dim: int = config["n_embd"] // config["n_head"]

    @torch.inference_mode()
    def logits(self, ids_BT: Tensor) -> Tensor:
        """Logits of the next token at each position: (B, T, V) float32."""
        weights = self.weights
        cos, sin = self._rotary(ids_BT.size(1))
        x = norm(weights["transformer.wte.weight"][ids_BT])
        gate = torch.sigmoid(F.linear(x[:, 1:, :SMEAR_CHANNELS], weights["smear_gate.weight"]))
        smeared = x[:, 1:] + weights["smear_lambda"] * gate * x[:, :-1]
        x0 = x = middle = torch.cat((x[:, :1], smeared), dim=1)
        for layer in range(self.n_layer):
            x = weights["resid_lambdas"][layer] * x + weights["x0_lambdas"][layer] * x0
            x = x + self._attention(layer, norm(x), ids_BT, cos, sin)
            hidden = F.linear(norm(x), weights[f"transformer.h.{layer}.mlp.c_fc.weight"])
            projection = weights[f"transformer.h.{layer}.mlp.c_proj.weight"]
            x = x + F.linear(F.relu(hidden).square(), projection)
            if layer == self.n_layer // 2:
                middle = x
        x = norm(x - weights["backout_lambda"] * middle)
        raw = F.linear(x, weights["lm_head.weight"])[..., : self.config["vocab_size"]].float()
        capped: Tensor = SOFTCAP * torch.tanh(raw / SOFTCAP)
        return capped

    def _attention(
        self, layer: int, x_BTC: Tensor, ids_BT: Tensor, cos: Tensor, sin: Tensor
    ) -> Tensor:
        B, T, C = x_BTC.shape
        prefix = f"transformer.h.{layer}.attn."

        def project(name: str, heads: int) -> Tensor:
            projected = F.linear(x_BTC, self.weights[f"{prefix}{name}.weight"])
            return projected.view(B, T, heads, self.head_dim)

        q, k = project("c_q", self.n_head), project("c_k", self.n_kv_head)
        v = project("c_v", self.n_kv_head)
        if (gate := self.weights.get(f"{prefix}ve_gate.weight")) is not None:
            opening = 3 * torch.sigmoid(F.linear(x_BTC[..., :VE_GATE_CHANNELS], gate))
            value_rows = self.weights[f"value_embeds.{layer}.weight"][ids_BT]
            v = v + opening[..., None] * value_rows.view_as(v)
        q, k = (QK_SCALE * norm(_rotated(each, cos, sin)) for each in (q, k))
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=self._mask(layer, T), enable_gqa=self.n_head != self.n_kv_head
        )
        y = y.transpose(1, 2).reshape(B, T, C)
        return F.linear(y, self.weights[f"{prefix}c_proj.weight"])

    def _mask(self, layer: int, T: int) -> Tensor:
        """Whether a query sees a key: itself, and `window` tokens before it. (T, T) bool."""
        length, pattern = self.config["sequence_len"], self.config["window_pattern"].upper()
        window = length
        if pattern[layer % len(pattern)] == "S" and layer < self.n_layer - 1:
            window = math.ceil(length / 4 / SHORT_WINDOW_TILE) * SHORT_WINDOW_TILE
        back = torch.arange(T)[:, None] - torch.arange(T)[None, :]
        seen: Tensor = (back >= 0) & (back <= min(window, length))
        return seen

    def _rotary(self, T: int) -> tuple[Tensor, Tensor]:
        """cos and sin, each (T, 1, D/2)."""
        channel = torch.arange(0, self.head_dim, 2, dtype=torch.float32)
        frequency = 1.0 / (ROTARY_BASE ** (channel / self.head_dim))
        angle = torch.outer(torch.arange(T, dtype=torch.float32), frequency)[:, None, :]
        dtype = self.weights["lm_head.weight"].dtype
        return angle.cos().to(dtype), angle.sin().to(dtype)


def _rotated(x_BTHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x_BTHD.chunk(2, dim=-1)
    return torch.cat((first * cos + second * sin, second * cos - first * sin), dim=-1)


def generate(model: Model, ids: list[int], count: int, top_k: int = 50) -> list[int]:
    """So many token ids after these. Each is a pass over the whole text: short, and slow."""
    generator = torch.Generator().manual_seed(42)
    ids = [*ids]
    for _ in range(count):
        top, of_top = model.logits(torch.tensor([ids]))[0, -1].topk(top_k)
        drawn = torch.multinomial(torch.softmax(top / 0.8, dim=-1), 1, generator=generator)
        ids.append(int(of_top[drawn]))
    return ids


if __name__ == "__main__":
    here = Path(__file__).parent
    tokenizer = load_tokenizer(here)
    begun = [bos_id(tokenizer), *tokenizer.encode_ordinary(" ".join(sys.argv[1:]))]
    sys.stdout.write(tokenizer.decode(generate(load(here), begun, 100)[1:]) + "\n")
