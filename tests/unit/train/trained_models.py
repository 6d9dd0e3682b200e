"""Runs with a tiny model that nobody trained, for what reads checkpoints."""

from __future__ import annotations

import torch

from yoked.costmodel.model_shape import ModelShape
from yoked.train.checkpoint import CheckpointStore
from yoked.train.config import TrainConfig
from yoked.train.model.gpt import GPT
from yoked.train.nanochat_format import checkpoint_meta, export_tokenizer
from yoked.train.optim.groups import group_settings


def make_model(vocab_size=300, *, dtype=torch.float32, pattern="SL", n_kv_head=2, n_layer=3):
    """A model in which every part matters: no weight is zero, and short windows are short."""
    config = ModelShape(
        sequence_len=300,
        vocab_size=vocab_size,
        n_layer=n_layer,
        n_head=2,
        n_kv_head=n_kv_head,
        n_embd=32,
        window_pattern=pattern,
    )
    model = GPT(config, dtype)
    model.init_weights(seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(0.3 * noise.to(parameter.dtype))
    return model.eval()


def save_model(folder, model, step, val_bpb=None):
    """Save a checkpoint without an optimizer's state."""
    meta = checkpoint_meta(
        model_config=vars(model.config),
        user_config={},
        device_batch_size=1,
        max_seq_len=model.config.sequence_len,
        total_batch_size=model.config.sequence_len,
        val_bpb=None,
    )
    settings = group_settings(
        TrainConfig(), model.config.n_embd, batch_lr_scale=1.0, muon_weight_decay=0.0
    )
    empty = {"adamw": {}, "muon": {}, "settings": settings}
    with CheckpointStore(folder) as store:
        store.save(
            step,
            model.state_dict(),
            empty,
            meta,
            extra={"run": "first"},
            val_bpb=val_bpb,
            background=False,
        )


def make_run(folder, tokenizer):
    """A run's folder with one checkpoint, of step 5, and its tokenizer."""
    base = folder / "checkpoints"
    save_model(base / "base_checkpoints" / "d3", make_model(tokenizer.vocab_size), step=5)
    tokenizer.save(folder.parent / "tokenizer")
    export_tokenizer(folder.parent / "tokenizer", base / "tokenizer")
    (folder / "run.json").write_text("{}")
    return folder
