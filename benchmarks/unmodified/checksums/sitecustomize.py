"""With this folder on PYTHONPATH, every rank writes a checksum of its weights after each step.

    PYTHONPATH=benchmarks/unmodified/checksums CHECKSUMS=FOLDER torchrun ...

writes FOLDER/<rank>.jsonl: optimizer step, sha256 of all parameters. So the weights of a program
are compared without changing it. Python imports this file at the start of each process; only
ranks are watched.
"""

import hashlib
import json
import os
from pathlib import Path

if "RANK" in os.environ and "CHECKSUMS" in os.environ:
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    folder = Path(os.environ["CHECKSUMS"])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{os.environ['RANK']}.jsonl"
    path.unlink(missing_ok=True)
    steps = iter(range(1, 2**62))

    def write_checksum(optimizer, _args, _kwargs):
        digest = hashlib.sha256()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                whole = parameter.detach()
                if hasattr(whole, "full_tensor"):
                    # Each rank has a part of it. Collective: all ranks step at the same time.
                    whole = whole.full_tensor()
                flat = whole.cpu().contiguous().reshape(-1)
                digest.update(flat.view(torch.uint8).numpy().tobytes())
        line = json.dumps({"step": next(steps), "sha256": digest.hexdigest()})
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    register_optimizer_step_post_hook(write_checksum)
