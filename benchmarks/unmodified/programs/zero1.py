"""DeepSpeed's engine with ZeRO stage 1: each rank keeps a part of the optimizer's state.

ZeRO's optimizer steps a flat part of the weights, another one on each rank, so checksums/ cannot
compare them: this program writes the checksum of all weights itself.
"""

import hashlib
import json
import os
from pathlib import Path

import deepspeed
import torch
from small import STEPS, build, check, loss_of

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "zero_optimization": {"stage": 1},
    # ZeRO knows Adam and its kin; SGD can be computed by hand.
    "zero_allow_untested_optimizer": True,
    # Without a word DeepSpeed clips gradients at 1.
    "gradient_clipping": 0.0,
}


def write_checksum(model):
    weights = b"".join(each.detach().cpu().numpy().tobytes() for each in model.parameters())
    folder = Path(os.environ["CHECKSUMS"])
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{os.environ['RANK']}.jsonl").open("a") as file:
        file.write(json.dumps({"sha256": hashlib.sha256(weights).hexdigest()}) + "\n")


model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)
for step in range(STEPS):
    engine.backward(loss_of(engine, step, [deepspeed.comm.get_rank()]))
    engine.step()
    write_checksum(engine.module)
check([each.detach() for each in engine.module.parameters()], deepspeed.comm.get_world_size())
