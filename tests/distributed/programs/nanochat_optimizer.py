"""nanochat's own optimizer goes on from a checkpoint: one step on known gradients.

    nanochat_optimizer.py CHECKOUT FOLDER STEP

FOLDER: the base_checkpoints/TAG of an export. Prints the sum of each parameter after the step.
"""

from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path

import torch

checkout, folder, step = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
sys.path.insert(0, checkout)
# nanochat imports it at the top, and this does not need it.
sys.modules["wandb"] = types.ModuleType("wandb")
torch.compiler.set_stance("force_eager")

from nanochat.checkpoint_manager import load_checkpoint  # noqa: E402
from nanochat.gpt import GPT, GPTConfig  # noqa: E402

rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
if ranks > 1:
    torch.distributed.init_process_group("nccl")
weights, optimizer_state, meta = load_checkpoint(
    str(folder), step, torch.device("cpu"), load_optimizer=True, rank=rank
)
model = GPT(GPTConfig(**meta["model_config"]))
model.init_weights()
model.load_state_dict(weights)
optimizer = model.setup_optimizer()
optimizer.load_state_dict(optimizer_state)
generator = torch.Generator().manual_seed(1)
for parameter in model.parameters():
    parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
optimizer.step()
print(json.dumps({name: float(p.double().sum()) for name, p in model.named_parameters()}))
