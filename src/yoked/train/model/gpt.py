"""The GPT: nanochat's architecture (July 2026), in plain PyTorch.

Linear weights are float32 and are cast to the activations' dtype where they are used; token and
value embeddings are in the dtype of the run's tables. `forward` ends before the lm_head, which
`yoked.train.model.cross_entropy` applies together with the loss.

Shape legend: B batch rows, T tokens a row, C n_embd, H heads, D head_dim, V vocabulary,
K kv_width (n_kv_head * D), I and O features of a linear layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from yoked.costmodel.model_shape import SMEAR_CHANNELS, VE_GATE_CHANNELS, ModelShape
from yoked.train.model.attention import AttentionPath, attend
from yoked.train.model.elementwise import mix, norm, relu_square, rotate_norm
from yoked.train.model.host_tables import HostLookup
from yoked.train.model.linear import MatmulBackends, linear
from yoked.train.model.row_grads import RowGrads, embedding

# nanochat's numbers. kernels/elementwise.c has SOFTCAP too.
ROTARY_BASE = 100_000
SOFTCAP = 15.0
QK_SCALE = 1.2  # of normed queries and keys: sharper attention
COMPILED_KINDS = 64


def rotary_tables(length: int, head_dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin, each (length, 1, D/2) float32."""
    channel = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device)  # (D/2,)
    inverse_frequency = 1.0 / (ROTARY_BASE ** (channel / head_dim))
    position = torch.arange(length, dtype=torch.float32, device=device)
    angle = torch.outer(position, inverse_frequency)[:, None, :]  # 1: the same for all heads
    return angle.cos(), angle.sin()


class Linear(nn.Module):
    """A linear layer (..., I) -> (..., O) without bias; its weight is cast to x's dtype."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))  # drawn by GPT
        self.backends = MatmulBackends()

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight.to(x.dtype), self.backends)


class Attention(nn.Module):
    """Causal attention with rotary positions, normed queries and keys, and value embeddings."""

    def __init__(self, config: ModelShape, layer: int) -> None:
        super().__init__()
        width, kv_width = config.n_embd, config.n_kv_head * config.head_dim
        self.n_head, self.n_kv_head, self.head_dim = (
            config.n_head,
            config.n_kv_head,
            config.head_dim,
        )
        self.window = config.window(layer)
        self.path: AttentionPath = "sdpa"
        self.c_q = Linear(width, width)
        self.c_k = Linear(width, kv_width)
        self.c_v = Linear(width, kv_width)
        self.c_proj = Linear(width, width)
        self.ve_gate = (
            Linear(VE_GATE_CHANNELS, config.n_kv_head)
            if config.has_value_embedding(layer)
            else None
        )

    def project(
        self, x_BTC: Tensor, ve_BTK: Tensor | None, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys (rotated, normed, scaled) and values, each (B, T, heads, D)."""
        B, T, _ = x_BTC.shape
        q = self.c_q(x_BTC).view(B, T, self.n_head, self.head_dim)
        k = self.c_k(x_BTC).view(B, T, self.n_kv_head, self.head_dim)
        v = self.c_v(x_BTC).view(B, T, self.n_kv_head, self.head_dim)
        if self.ve_gate is not None:
            assert ve_BTK is not None
            # One gate a token and KV head, between 0 and 3.
            gate = 3 * torch.sigmoid(self.ve_gate(x_BTC[..., :VE_GATE_CHANNELS]))
            v = v + gate[..., None] * ve_BTK.view_as(v)
        return rotate_norm(q, cos, sin, QK_SCALE), rotate_norm(k, cos, sin, QK_SCALE), v

    def forward(self, x_BTC: Tensor, ve_BTK: Tensor | None, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = self.project(x_BTC, ve_BTK, cos, sin)
        y = attend(q, k, v, self.window, self.path)
        out: Tensor = self.c_proj(y.reshape(x_BTC.shape))  # (B, T, H, D) -> (B, T, C)
        return out


class MLP(nn.Module):
    """Two matrices with relu(x)^2 between them."""

    def __init__(self, config: ModelShape) -> None:
        super().__init__()
        self.c_fc = Linear(config.n_embd, 4 * config.n_embd)
        self.c_proj = Linear(4 * config.n_embd, config.n_embd)

    def forward(self, x_BTC: Tensor) -> Tensor:
        out: Tensor = self.c_proj(relu_square(self.c_fc(x_BTC)))  # hidden (B, T, 4C)
        return out


class Block(nn.Module):
    """One layer: attention, then MLP, each on the normed residual stream and added to it."""

    def __init__(self, config: ModelShape, layer: int) -> None:
        super().__init__()
        self.attn = Attention(config, layer)
        self.mlp = MLP(config)

    def forward(self, x_BTC: Tensor, ve_BTK: Tensor | None, cos: Tensor, sin: Tensor) -> Tensor:
        x_BTC = x_BTC + self.attn(norm(x_BTC), ve_BTK, cos, sin)
        out: Tensor = x_BTC + self.mlp(norm(x_BTC))
        return out


def _table(vocab: int, width: int) -> nn.Embedding:
    """An embedding whose weights are drawn or loaded later."""
    # Without _weight nn.Embedding draws them here, which takes seconds.
    return nn.Embedding(vocab, width, _weight=torch.empty(vocab, width))


class GPT(nn.Module):
    """The model; weights are undefined until `init_weights`, or until they are loaded.

    Parameter names are nanochat's, so that state dicts load both ways.
    """

    cos: Tensor
    sin: Tensor

    def __init__(
        self,
        config: ModelShape,
        compute_dtype: torch.dtype = torch.float32,
        tables_dtype: torch.dtype | None = None,
    ) -> None:
        """tables_dtype: of the embedding tables, one for all ranks; None: the compute dtype."""
        super().__init__()
        self.config = config
        self.compute_dtype, self.tables_dtype = compute_dtype, tables_dtype
        # Called before the layers' weights are read: matrices that other ranks update may still
        # be arriving.
        self.before_layers: Callable[[], None] | None = None
        # Whether backward computes each layer again from its input.
        self.checkpoints_blocks = False
        # Of a compiled model: has one graph serve any size of a dimension of a tensor.
        self._mark_dynamic: Callable[[Tensor, int], None] | None = None
        width, vocab = config.n_embd, config.padded_vocab_size
        kv_width = config.n_kv_head * config.head_dim
        self.transformer = nn.ModuleDict(
            {
                "wte": _table(vocab, width),
                "h": nn.ModuleList(Block(config, layer) for layer in range(config.n_layer)),
            }
        )
        self.lm_head = Linear(width, vocab)
        self.resid_lambdas = nn.Parameter(torch.empty(config.n_layer))
        self.x0_lambdas = nn.Parameter(torch.empty(config.n_layer))
        self.smear_gate = Linear(SMEAR_CHANNELS, 1)
        self.smear_lambda = nn.Parameter(torch.empty(1))
        self.backout_lambda = nn.Parameter(torch.empty(1))
        self.value_embeds = nn.ModuleDict(
            {
                str(layer): _table(vocab, kv_width)
                for layer in range(config.n_layer)
                if config.has_value_embedding(layer)
            }
        )
        self.register_buffer("cos", torch.empty(0), persistent=False)  # not in nanochat's files
        self.register_buffer("sin", torch.empty(0), persistent=False)

    @property
    def blocks(self) -> list[Block]:
        layers = self.transformer["h"]
        assert isinstance(layers, nn.ModuleList)
        return [block for block in layers if isinstance(block, Block)]

    def compile_blocks(self, **how: Any) -> None:
        """Have torch.compile make each block one graph; layers of a kind share it.

        how: arguments of torch.compile.
        """
        from torch import _dynamo as dynamo  # takes a second

        # The whole model would be compiled layer by layer. Kinds of a block: its window, whether it
        # has a value embedding, with and without gradients, one row and more; 8 is the default.
        dynamo.config.recompile_limit = COMPILED_KINDS
        for block in self.blocks:
            block.compile(**how)
        self._mark_dynamic = dynamo.maybe_mark_dynamic

    def _allow_any_rows(self, *inputs: Tensor | None) -> None:
        """Have a block's graph serve all micro-batches and evaluations, whatever their rows."""
        if self._mark_dynamic is None:
            return
        for tensor in inputs:
            # Dynamo compiles a size of 1 apart in any case.
            if tensor is not None and tensor.size(0) > 1:
                self._mark_dynamic(tensor, 0)

    @property
    def device(self) -> torch.device:
        """That computes."""
        return self.lm_head.weight.device

    @property
    def tables_device(self) -> torch.device:
        """Where the embedding tables are: there, or in host memory."""
        return self.get_parameter("transformer.wte.weight").device

    def place(self, device: torch.device, *, tables_on_host: bool = False) -> None:
        """Move to a device, the embedding tables too unless they are to stay in host memory."""
        # Not there and back: they may be more than the device has room for.
        staying = [table for _, table in self.tables()] if tables_on_host else []
        weights = [table.get_parameter("weight") for table in staying]
        for table in staying:
            table.register_parameter("weight", None)
        self.to(device)
        for table, weight in zip(staying, weights, strict=True):
            table.register_parameter("weight", weight)

    def tables(self) -> Iterator[tuple[str, nn.Embedding]]:
        """The embedding tables with their parameter names."""
        yield "transformer.wte.weight", self.transformer["wte"]  # type: ignore[misc]
        for key, table in self.value_embeds.items():
            yield f"value_embeds.{key}.weight", table  # type: ignore[misc]

    @torch.no_grad()
    def init_weights(self, seed: int = 42) -> None:
        """Draw the weights. The order is nanochat's: a seed gives the same model in both."""
        torch.manual_seed(seed)
        bound = math.sqrt(3.0 / self.config.n_embd)
        wte = self.transformer["wte"].weight
        assert isinstance(wte, Tensor)
        nn.init.normal_(wte, 0.0, 0.8)
        nn.init.normal_(self.lm_head.weight, 0.0, 0.001)
        for block in self.blocks:
            for matrix in (block.attn.c_q, block.attn.c_k, block.attn.c_v):
                nn.init.uniform_(matrix.weight, -bound, bound)
            nn.init.zeros_(block.attn.c_proj.weight)  # a new layer adds nothing to the stream
            nn.init.uniform_(block.mlp.c_fc.weight, -bound * 0.4, bound * 0.4)
            nn.init.zeros_(block.mlp.c_proj.weight)
        last = max(self.config.n_layer - 1, 1)  # one layer would divide by zero
        for layer in range(self.config.n_layer):
            self.resid_lambdas[layer] = 1.15 - 0.10 * layer / last
            self.x0_lambdas[layer] = 0.20 - 0.15 * layer / last
        nn.init.zeros_(self.smear_lambda)
        nn.init.constant_(self.backout_lambda, 0.2)
        nn.init.uniform_(self.smear_gate.weight, 0.0, 0.02)
        for table in self.value_embeds.values():
            nn.init.uniform_(table.weight, -bound, bound)  # type: ignore[arg-type]
        for block in self.blocks:
            if block.attn.ve_gate is not None:
                nn.init.uniform_(block.attn.ve_gate.weight, 0.0, 0.02)
        self.finish()

    def finish(self) -> None:
        """Cast the tables to their dtype, and compute cos and sin in that of the computation."""
        storage = self.tables_dtype or self.compute_dtype
        if storage == torch.float16:
            # A table's AdamW moments have its dtype, and float16's range is too small for them.
            storage = torch.float32
        for _, table in self.tables():
            table.to(storage)
        length = self.config.sequence_len
        cos, sin = rotary_tables(length, self.config.head_dim, self.device)
        self.cos, self.sin = cos.to(self.compute_dtype), sin.to(self.compute_dtype)

    def _lookup(self, ids_BT: Tensor, row_grads: RowGrads | None) -> Callable[[str], Tensor]:
        """Rows (B, T, C) of the tables for these tokens, by a table's name."""
        if self.tables_device == self.device:
            return lambda name: embedding(ids_BT, self.get_parameter(name), name, row_grads)
        lookup = HostLookup(ids_BT, self.device, row_grads)
        return lambda name: lookup.embedding(self.get_parameter(name), name)

    def _smeared(self, rows_BTC: Tensor) -> Tensor:
        """Token embeddings, normed, with a gated part of the previous token's added."""
        x = norm(rows_BTC.to(self.compute_dtype))
        gate = torch.sigmoid(self.smear_gate(x[:, 1:, :SMEAR_CHANNELS]))  # (B, T - 1, 1)
        smeared = x[:, 1:] + self.smear_lambda.to(x.dtype) * gate * x[:, :-1]  # x[t-1] unsmeared
        return torch.cat((x[:, :1], smeared), dim=1)

    def forward(self, ids_BT: Tensor, row_grads: RowGrads | None = None) -> Tensor:
        """Normed hidden states (B, T, C), the lm_head's input.

        ids_BT: where the tables are, as row_grads: where the backward pass adds their gradients;
        None: to `.grad`.
        """
        tokens, longest = ids_BT.size(1), self.cos.size(0)
        assert tokens <= longest, f"{tokens} tokens, rotary tables for {longest}"
        cos, sin = self.cos[:tokens], self.sin[:tokens]  # (T, 1, D/2)
        rows_of = self._lookup(ids_BT, row_grads)
        x0 = x = self._smeared(rows_of("transformer.wte.weight"))
        kept = x  # the stream after the middle layer, of which a part is subtracted at the end
        if self.before_layers is not None:
            self.before_layers()
        for layer, block in enumerate(self.blocks):
            x = mix(x, x0, self.resid_lambdas[layer], self.x0_lambdas[layer])
            ve = None
            if block.attn.ve_gate is not None:
                # ve: (B, T, K). The table may have another dtype, see `finish`.
                ve = rows_of(f"value_embeds.{layer}.weight").to(x.dtype)
            self._allow_any_rows(x, ve)
            if self.checkpoints_blocks and torch.is_grad_enabled():
                # Nothing is drawn at random in a layer: its second pass has the same bits.
                x = checkpoint(
                    block, x, ve, cos, sin, use_reentrant=False, preserve_rng_state=False
                )
            else:
                x = block(x, ve, cos, sin)
            if layer == self.config.n_layer // 2:
                kept = x
        return norm(x - self.backout_lambda.to(x.dtype) * kept)

    def logits(self, hidden: Tensor) -> Tensor:
        """Softcapped float32 logits (..., V) of hidden states (..., C), for sampling."""
        raw: Tensor = self.lm_head(hidden)[..., : self.config.vocab_size].float()  # without padding
        return SOFTCAP * torch.tanh(raw / SOFTCAP)
