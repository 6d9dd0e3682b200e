"""Runs inside a nanochat environment and answers questions about nanochat with its own code.

usage: python nanochat_worker.py REQUESTS.json

REQUESTS is a list of objects with `job` and the job's arguments; each job writes its answer to
the file `out`, with torch.save.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from nanochat.checkpoint_manager import load_model
from nanochat.common import compute_init
from nanochat.dataloader import tokenizing_distributed_data_loader_bos_bestfit
from nanochat.engine import Engine
from nanochat.gpt import GPT, GPTConfig
from nanochat.tokenizer import get_tokenizer


def fresh_weights(model_config: dict[str, Any]) -> dict[str, Any]:
    """The state dict with which nanochat begins a run, seeded as its trainer seeds."""
    compute_init("cpu")
    with torch.device("meta"):
        model = GPT(GPTConfig(**model_config))
    model.to_empty(device="cpu")
    model.init_weights()
    counts = model.num_scaling_params()
    return {
        "state": model.state_dict(),
        "counts": counts,
        "flops_per_token": model.estimate_flops(),
    }


def rows(split: str, row_tokens: int, count: int) -> torch.Tensor:
    """The loader's first rows, (count, row_tokens)."""
    loader = tokenizing_distributed_data_loader_bos_bestfit(
        get_tokenizer(), 1, row_tokens - 1, split=split, device="cpu"
    )
    found = []
    for _ in range(count):
        inputs, targets = next(loader)
        found.append(torch.cat((inputs[0], targets[0, -1:])))
    return torch.stack(found)


def use(model_tag: str, step: int | None, ids_file: str, prompts: list[str]) -> dict[str, Any]:
    """Load a checkpoint as nanochat's tools do; its logits for rows, its greedy continuations."""
    model, tokenizer, meta = load_model(
        "base", torch.device("cpu"), phase="eval", model_tag=model_tag, step=step
    )
    ids = torch.load(ids_file)
    with torch.inference_mode():
        logits = model(ids)
    engine = Engine(model, tokenizer)
    samples = [
        engine.generate_batch(
            tokenizer(prompt, prepend="<|bos|>"), num_samples=1, max_tokens=48, temperature=0
        )[0][0]
        for prompt in prompts
    ]
    return {"logits": logits, "samples": samples, "step": meta["step"]}


JOBS = {"fresh_weights": fresh_weights, "rows": rows, "use": use}


def main() -> None:
    for request in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        job, out = JOBS[request.pop("job")], request.pop("out")
        torch.save(job(**request), out)


if __name__ == "__main__":
    main()
