from __future__ import annotations

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from yoked.costmodel.model_shape import ModelShape, count_parameters, flops_per_token
from yoked.train import kernels
from yoked.train.model.cross_entropy import FusedLinearCrossEntropy
from yoked.train.model.elementwise import norm, rotate
from yoked.train.model.gpt import GPT, rotary_tables
from yoked.train.model.linear import MatmulBackends, onednn_available
from yoked.train.model.row_grads import RowGrads

TINY = ModelShape(
    sequence_len=40, vocab_size=70, n_layer=3, n_head=2, n_kv_head=2, n_embd=32, window_pattern="L"
)
# The smallest short window is 128 tokens.
WINDOWED = dataclasses.replace(TINY, sequence_len=300, window_pattern="SL")
DEEP = dataclasses.replace(TINY, n_layer=4)
GROUPED = dataclasses.replace(TINY, n_head=4, n_kv_head=2)


def make_model(config: ModelShape, dtype: torch.dtype = torch.float32) -> GPT:
    """A model none of whose parameters is zero, so that nothing is hidden."""
    model = GPT(config, dtype)
    model.init_weights()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(0.1 * noise)
    return model


def draw_ids(config: ModelShape, rows: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    shape = (rows, config.sequence_len)
    return torch.randint(0, config.vocab_size, shape, generator=generator)


class Reference:
    """The model, one formula after another, in float64, from a state dict."""

    def __init__(self, config: ModelShape, state: dict[str, Tensor]) -> None:
        self.c, self.w = config, state

    def norm(self, x: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 2.0**-23).sqrt()

    def rotary(self, x: Tensor) -> Tensor:
        """Halves (x1, x2) of position t turn by the angles t * 100000^(-2j/d)."""
        d, tokens = x.size(-1), x.size(1)
        frequency = 100_000.0 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
        angle = torch.arange(tokens, dtype=torch.float64)[:, None, None] * frequency
        turned = torch.complex(x[..., : d // 2], x[..., d // 2 :]) * torch.polar(
            torch.ones_like(angle), -angle
        )
        return torch.cat((turned.real, turned.imag), -1)

    def attention(self, x: Tensor, ids: Tensor, layer: int, window: int) -> Tensor:
        c, name = self.c, f"transformer.h.{layer}.attn"
        heads = (*x.shape[:2], -1, c.n_embd // c.n_head)
        q, k, v = ((x @ self.w[f"{name}.c_{m}.weight"].t()).view(heads) for m in "qkv")
        if layer % 2 == (c.n_layer - 1) % 2:
            gate = 3 * torch.sigmoid(x[..., :12] @ self.w[f"{name}.ve_gate.weight"].t())
            v = v + gate[..., None] * self.w[f"value_embeds.{layer}.weight"][ids].view(heads)
        q, k = (1.2 * self.norm(self.rotary(part)) for part in (q, k))
        repeat = c.n_head // c.n_kv_head
        k, v = (part.repeat_interleave(repeat, dim=2) for part in (k, v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.size(-1))
        back = torch.arange(x.size(1))[:, None] - torch.arange(x.size(1))[None, :]
        scores = scores.masked_fill((back < 0) | (back > window), -math.inf)
        y = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).reshape(x.shape)
        return y @ self.w[f"{name}.c_proj.weight"].t()

    def mlp(self, x: Tensor, layer: int) -> Tensor:
        name = f"transformer.h.{layer}.mlp"
        hidden = (x @ self.w[f"{name}.c_fc.weight"].t()).clamp_min(0) ** 2
        return hidden @ self.w[f"{name}.c_proj.weight"].t()

    def logits(self, ids: Tensor, windows: list[int]) -> Tensor:
        w = self.w
        plain = self.norm(w["transformer.wte.weight"][ids])
        x = plain.clone()
        for t in range(1, ids.size(1)):
            gate = torch.sigmoid(plain[:, t, :24] @ w["smear_gate.weight"].t())
            x[:, t] = plain[:, t] + w["smear_lambda"] * gate * plain[:, t - 1]
        x0, kept = x, x
        for i, window in enumerate(windows):
            x = w["resid_lambdas"][i] * x + w["x0_lambdas"][i] * x0
            x = x + self.attention(self.norm(x), ids, i, window)
            x = x + self.mlp(self.norm(x), i)
            if i == self.c.n_layer // 2:
                kept = x
        x = self.norm(x - w["backout_lambda"] * kept)
        raw = (x @ w["lm_head.weight"].t())[..., : self.c.vocab_size]
        return 15 * torch.tanh(raw / 15)


# --- sizes


def test_depth_4_has_the_counts_and_flops_of_nanochat():
    config = ModelShape.from_depth(4, head_dim=64, sequence_len=512, window_pattern="L")

    counts = count_parameters(config)

    assert dataclasses.asdict(counts) == {
        "wte": 8_388_608,
        "value_embeds": 16_777_216,
        "lm_head": 8_388_608,
        "transformer_matrices": 3_145_824,
        "scalars": 34,
    }
    assert counts.total == 36_700_290
    assert counts.dense == 3_145_824 + 8_388_608
    assert f"{flops_per_token(config):.6e}" == "7.549819e+07"


def test_depth_8_is_126_million_of_which_67_are_value_embeddings():
    counts = count_parameters(ModelShape.from_depth(8))

    assert round(counts.total / 1e6) == 126
    assert round(counts.value_embeds / 1e6) == 67


@pytest.mark.parametrize(
    "config",
    [TINY, GROUPED, dataclasses.replace(TINY, n_layer=1), dataclasses.replace(TINY, n_layer=4)],
)
def test_counts_from_the_shapes_are_those_of_the_model(config):
    model = GPT(config)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    counts = count_parameters(config)

    def size_of(start: str) -> int:
        return sum(size for name, size in sizes.items() if name.startswith(start))

    assert counts.total == sum(sizes.values())
    assert counts.wte == size_of("transformer.wte")
    assert counts.value_embeds == size_of("value_embeds")
    assert counts.lm_head == size_of("lm_head")
    assert counts.transformer_matrices == size_of("transformer.h.")


@pytest.mark.parametrize(
    ("depth", "head_dim", "width", "heads"),
    [(4, 64, 256, 4), (8, 128, 512, 4), (5, 128, 384, 3), (20, 128, 1280, 10), (1, 128, 128, 1)],
)
def test_width_is_depth_times_64_rounded_up_to_whole_heads(depth, head_dim, width, heads):
    config = ModelShape.from_depth(depth, head_dim=head_dim)

    assert (config.n_embd, config.n_head, config.n_kv_head) == (width, heads, heads)
    assert config.head_dim == head_dim


def test_the_vocabulary_is_padded_to_a_multiple_of_64():
    sizes = {
        size: ModelShape.from_depth(1, vocab_size=size).padded_vocab_size for size in (1, 64, 65)
    }

    assert sizes == {1: 64, 64: 64, 65: 128}


@pytest.mark.parametrize(
    ("pattern", "length", "expected"),
    [
        ("L", 512, [512] * 5),
        ("SSSL", 2048, [512, 512, 512, 2048, 2048]),
        ("SSSL", 512, [128, 128, 128, 512, 512]),
        ("sl", 1100, [384, 1100, 384, 1100, 1100]),
        ("S", 2048, [512, 512, 512, 512, 2048]),
    ],
)
def test_the_pattern_is_tiled_and_the_last_layer_sees_everything(pattern, length, expected):
    config = ModelShape.from_depth(5, sequence_len=length, window_pattern=pattern)

    assert [config.window(layer) for layer in range(5)] == expected


def test_short_windows_cost_fewer_flops():
    full = ModelShape.from_depth(4, sequence_len=2048, window_pattern="L")
    short = ModelShape.from_depth(4, sequence_len=2048, window_pattern="SSSL")

    assert flops_per_token(full) - flops_per_token(short) == 3 * 12 * full.n_embd * (2048 - 512)


# --- initial weights


def test_initial_weights_are_drawn_in_nanochats_order():
    model = GPT(TINY)

    model.init_weights(seed=5)

    state = model.state_dict()
    torch.manual_seed(5)
    s = math.sqrt(3 / 32)
    assert torch.equal(state["transformer.wte.weight"], torch.empty(128, 32).normal_(0, 0.8))
    assert torch.equal(state["lm_head.weight"], torch.empty(128, 32).normal_(0, 0.001))
    for i in range(3):
        for m in "qkv":
            drawn = torch.empty(32, 32).uniform_(-s, s)
            assert torch.equal(state[f"transformer.h.{i}.attn.c_{m}.weight"], drawn)
        drawn = torch.empty(128, 32).uniform_(-0.4 * s, 0.4 * s)
        assert torch.equal(state[f"transformer.h.{i}.mlp.c_fc.weight"], drawn)
        assert state[f"transformer.h.{i}.attn.c_proj.weight"].eq(0).all()
        assert state[f"transformer.h.{i}.mlp.c_proj.weight"].eq(0).all()
    assert torch.equal(state["smear_gate.weight"], torch.empty(1, 24).uniform_(0, 0.02))
    for i in (0, 2):
        drawn = torch.empty(128, 32).uniform_(-s, s)
        assert torch.equal(state[f"value_embeds.{i}.weight"], drawn)
    for i in (0, 2):
        drawn = torch.empty(2, 12).uniform_(0, 0.02)
        assert torch.equal(state[f"transformer.h.{i}.attn.ve_gate.weight"], drawn)


@pytest.mark.parametrize(
    ("layers", "resid", "x0"), [(3, [1.15, 1.10, 1.05], [0.20, 0.125, 0.05]), (1, [1.15], [0.20])]
)
def test_initial_scalars_fall_over_the_layers(layers, resid, x0):
    model = GPT(dataclasses.replace(TINY, n_layer=layers))

    model.init_weights()

    torch.testing.assert_close(model.resid_lambdas.data, torch.tensor(resid))
    torch.testing.assert_close(model.x0_lambdas.data, torch.tensor(x0))
    assert model.smear_lambda.item() == 0
    assert model.backout_lambda.item() == pytest.approx(0.2)


def test_a_fresh_model_predicts_nothing_in_particular():
    model = GPT(TINY)
    model.init_weights()

    logits = model.logits(model(draw_ids(TINY)))

    assert logits.abs().max() < 0.05


def test_one_seed_is_one_model_in_any_dtype():
    models = [GPT(TINY, dtype) for dtype in (torch.float32, torch.bfloat16)]
    for model in models:
        model.init_weights()

    wide, narrow = (model.state_dict() for model in models)

    assert all(torch.equal(wide[name].to(narrow[name].dtype), narrow[name]) for name in wide)


def test_only_tables_are_stored_in_bfloat16():
    model = GPT(TINY, torch.bfloat16)
    model.init_weights()

    narrow = {name for name, p in model.named_parameters() if p.dtype == torch.bfloat16}

    assert narrow == {name for name, _ in model.tables()}
    assert narrow == {
        "transformer.wte.weight",
        "value_embeds.0.weight",
        "value_embeds.2.weight",
    }


def test_the_names_are_nanochats():
    names = set(GPT(dataclasses.replace(TINY, n_layer=2)).state_dict())

    assert names == {
        "transformer.wte.weight",
        *(
            f"transformer.h.{i}.{part}.weight"
            for i in (0, 1)
            for part in (
                "attn.c_q",
                "attn.c_k",
                "attn.c_v",
                "attn.c_proj",
                "mlp.c_fc",
                "mlp.c_proj",
            )
        ),
        "transformer.h.1.attn.ve_gate.weight",
        "lm_head.weight",
        "value_embeds.1.weight",
        "resid_lambdas",
        "x0_lambdas",
        "smear_gate.weight",
        "smear_lambda",
        "backout_lambda",
    }


# --- what it computes


def test_the_norm_divides_by_the_root_mean_square_and_lets_zero_be():
    assert norm(torch.zeros(4)).tolist() == [0, 0, 0, 0]
    torch.testing.assert_close(norm(torch.tensor([3.0, 4.0])).square().mean(), torch.tensor(1.0))
    torch.testing.assert_close(
        norm(torch.full((2,), 1e-4)), torch.full((2,), 1e-4 / math.sqrt(1e-8 + 2.0**-23))
    )


def test_rotation_keeps_lengths_and_depends_on_distance_alone():
    cos, sin = rotary_tables(20, 8, torch.device("cpu"))
    q, k = (x.expand(1, 20, 1, 8) for x in torch.randn(2, 8))

    turned_q, turned_k = rotate(q, cos, sin), rotate(k, cos, sin)

    torch.testing.assert_close(turned_q.norm(dim=-1), q.norm(dim=-1))
    products = turned_q[0, :, 0] @ turned_k[0, :, 0].t()
    for distance in range(-19, 20):
        line = products.diagonal(distance)
        torch.testing.assert_close(line, line[:1].expand_as(line), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("path", ["sdpa", "blocked"])
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    "config", [TINY, WINDOWED, DEEP, GROUPED], ids=["full", "windows", "deep", "groups"]
)
def test_logits_and_gradients_are_those_of_the_formulas(config, compiled, path):
    if compiled and not kernels.kernels().available:
        pytest.skip(f"no compiled passes: {kernels.kernels().reason}")
    if not compiled:
        kernels.switch_off("comparing the two")
    try:
        model, ids = make_model(config), draw_ids(config)
        for block in model.blocks:
            block.attn.path = path
        logits = model.logits(model(ids))
        upstream = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
        (logits * upstream).sum().backward()
    finally:
        kernels.switch_on()

    exact = {n: p.detach().double().requires_grad_() for n, p in model.named_parameters()}
    windows = [config.window(layer) for layer in range(config.n_layer)]
    expected = Reference(config, exact).logits(ids, windows)
    (expected * upstream.double()).sum().backward()

    torch.testing.assert_close(logits.double(), expected, rtol=1e-4, atol=1e-4)
    for name, parameter in model.named_parameters():
        ours, right = parameter.grad, exact[name].grad
        assert ours is not None, name
        assert right is not None, name
        assert (ours.double() - right).norm() <= 2e-5 * right.norm() + 1e-9, name


@pytest.mark.skipif(not onednn_available(), reason="this PyTorch has no oneDNN")
def test_no_library_changes_the_logits():
    model, ids = make_model(TINY), draw_ids(TINY)
    expected = model(ids)

    for module in model.modules():
        if hasattr(module, "products"):
            module.backends = MatmulBackends.all("onednn")  # type: ignore[assignment]

    torch.testing.assert_close(model(ids), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("path", ["sdpa", "blocked"])
def test_bfloat16_computes_in_bfloat16_near_the_float32_model(path):
    narrow = make_model(TINY, torch.bfloat16)
    wide = GPT(TINY)
    wide.load_state_dict({name: p.float() for name, p in narrow.state_dict().items()})
    wide.finish()
    ids = draw_ids(TINY)
    for block in narrow.blocks:
        block.attn.path = path

    hidden, expected = narrow(ids), wide(ids)
    (narrow.logits(hidden).square().mean()).backward()

    assert hidden.dtype == torch.bfloat16
    assert narrow.logits(hidden).dtype == torch.float32
    assert (hidden.float() - expected).norm() < 0.03 * expected.norm()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in narrow.parameters())


def test_row_gradients_are_the_dense_gradients_of_the_tables():
    model, ids = make_model(TINY), draw_ids(TINY)
    model(ids).square().mul(torch.arange(32.0)).sum().backward()
    dense = {name: table.weight.grad.clone() for name, table in model.tables()}  # type: ignore[union-attr]
    model.zero_grad(set_to_none=True)
    rows = RowGrads(torch.unique(ids), dict.fromkeys(dense, 32), TINY.padded_vocab_size)

    model(ids, rows).square().mul(torch.arange(32.0)).sum().backward()

    for name, table in model.tables():
        assert table.weight.grad is None
        whole = torch.zeros_like(dense[name])
        whole[rows.rows] = rows.tables[name]
        torch.testing.assert_close(whole, dense[name])


def test_the_head_gives_the_loss_of_the_models_logits():
    model, ids = make_model(TINY), draw_ids(TINY)
    targets = ids.roll(-1, 1).flatten()
    hidden = model(ids)

    loss = FusedLinearCrossEntropy(TINY.vocab_size).loss(
        hidden.detach().flatten(0, 1), model.lm_head.weight.detach(), targets
    )

    expected = F.cross_entropy(model.logits(hidden).flatten(0, 1), targets, reduction="sum")
    torch.testing.assert_close(loss.loss_sum.float(), expected.detach(), rtol=1e-5, atol=1e-5)


def test_shorter_rows_than_the_models_are_a_prefix():
    model, ids = make_model(TINY), draw_ids(TINY)

    torch.testing.assert_close(model(ids[:, :17]), model(ids)[:, :17], rtol=1e-4, atol=1e-5)


def test_longer_rows_than_the_models_are_a_mistake():
    model = make_model(TINY)

    with pytest.raises(AssertionError, match="41 tokens, rotary tables for 40"):
        model(torch.zeros(1, 41, dtype=torch.int64))
