"""What torch.compile makes of a block off the CPU: the meta device stands for a GPU."""

from __future__ import annotations

import pytest
import torch
from tests.gpu.tiny import tiny_trainer

from yoked.costmodel.model_shape import ModelShape
from yoked.train.model.cross_entropy import softcap
from yoked.train.model.gpt import GPT, Block

TOKENS = 256


@pytest.fixture(autouse=True)
def _compiled_anew():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def model_of(windows: str, depth: int = 4) -> GPT:
    config = ModelShape.from_depth(
        depth,
        aspect_ratio=16 if depth == 4 else 2,
        head_dim=32,
        sequence_len=TOKENS,
        vocab_size=512,
        window_pattern=windows,
    )
    with torch.device("meta"):
        model = GPT(config, torch.bfloat16)
        half = config.head_dim // 2
        model.cos = torch.empty(TOKENS, 1, half, dtype=torch.bfloat16)
        model.sin = torch.empty_like(model.cos)
    return model


def inputs_of(model: GPT, block: Block, rows: int, grad: bool = True) -> tuple:
    width = model.config.n_embd
    x = torch.empty(rows, TOKENS, width, dtype=torch.bfloat16, device="meta", requires_grad=grad)
    ve = torch.empty(rows, TOKENS, width, dtype=torch.bfloat16, device="meta")
    return x, ve if block.attn.ve_gate is not None else None, model.cos, model.sin


@pytest.mark.parametrize("path", ["sdpa", "flash"])
@pytest.mark.parametrize("layer", [0, 1])
def test_a_block_is_one_graph(layer, path):
    model = model_of("SSSL")
    block = model.blocks[layer]
    block.attn.path = path

    found = torch._dynamo.explain(block)(*inputs_of(model, block, 2))

    assert found.graph_count == 1, [reason.reason for reason in found.break_reasons]


@pytest.mark.parametrize(("windows", "path"), [("L", "sdpa"), ("SSSL", "sdpa"), ("SSSL", "flash")])
def test_no_other_number_of_rows_makes_another_graph(windows, path):
    model = model_of(windows, depth=8)
    for block in model.blocks:
        block.attn.path = path
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    model.compile_blocks(backend=backend)
    made = {}
    for rows, grad in ((8, True), (5, True), (2, True), (7, True), (8, False), (3, False)):
        before = len(graphs)
        with torch.set_grad_enabled(grad):
            for block in model.blocks:
                x, ve, cos, sin = inputs_of(model, block, rows, grad)
                model._allow_any_rows(x, ve)
                block(x, ve, cos, sin)
        made[rows, grad] = len(graphs) - before

    kinds = {(block.attn.window, block.attn.ve_gate is None) for block in model.blocks}
    assert made.pop((8, True)) == made.pop((8, False)) == len(kinds)
    assert not any(made.values()), made


@pytest.mark.usefixtures("plain_passes")
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # Dynamo's own look at it
def test_compiled_steps_are_the_eager_ones_to_the_bit():
    eager, compiled = tiny_trainer("cpu"), tiny_trainer("cpu")
    compiled.model.compile_blocks(backend="aot_eager", fullgraph=True)

    for step in range(3):
        assert compiled.step(step).nats == eager.step(step).nats

    assert not torch._dynamo.utils.counters["graph_break"]
    for one, other in zip(eager.model.parameters(), compiled.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_softcap_is_one_graph_for_all_sizes_and_the_eager_one():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(softcap, dynamic=True, fullgraph=True, backend=backend)
    for rows in (64, 64, 32, 17):
        logits = 20 * torch.randn(rows, 512)
        targets = torch.randint(0, 500, (rows,))
        found = []
        for run in (softcap, compiled):
            u, sums, mine = logits.clone(), torch.zeros(rows), torch.zeros(rows)
            run(u, u, sums, mine, targets, 0, 500)
            found.append((u, sums, mine))
        for one, other in zip(*found, strict=True):
            assert torch.equal(one, other)

    assert len(graphs) == 1
