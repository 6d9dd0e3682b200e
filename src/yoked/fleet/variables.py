"""Which variables of this shell go along to the ranks of a program, on all hosts alike.

Variables that tell a program what to do go along: those of the libraries below, by their names.
What belongs to one machine stays on it: paths, devices, threads, proxies, interfaces. A secret is
not sent unless `--env NAME` asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# Prefixes, and whole names.
PREFIXES = (
    *("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "DATASETS_", "DIFFUSERS_", "TOKENIZERS_"),
    *("ACCELERATE_", "PL_", "LIGHTNING_", "DEEPSPEED_", "NANOCHAT_"),
    *("WANDB_", "MLFLOW_", "COMET_", "CLEARML_", "TQDM_"),
    *("TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "PYTORCH_"),
)
NAMES = (
    *("PYTHONHASHSEED", "PYTHONWARNINGS", "PYTHONFAULTHANDLER"),
    *("CUBLAS_WORKSPACE_CONFIG", "CUDA_LAUNCH_BLOCKING", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS"),
)
# TOKENIZERS_PARALLELISM is none.
_SECRET = re.compile(r"SECRET|TOKEN(?!IZ)|PASSW|CREDENTIAL|KEY|AUTH")
_OF_A_MACHINE = re.compile(r"_(HOME|DIR|PATH|CACHE|ROOT|FILE|FOLDER)$")


def carried(shell: Mapping[str, str]) -> dict[str, str]:
    """The variables that go along, by name."""
    return {
        name: value
        for name, value in sorted(shell.items())
        if _tells_a_program(name)
        and not _SECRET.search(name)
        and not _OF_A_MACHINE.search(name)
        and not value.startswith(("/", "~", "./", "../"))
    }


def secrets(shell: Mapping[str, str]) -> list[str]:
    """The names of those that would, were they no secrets."""
    return [name for name in sorted(shell) if _tells_a_program(name) and _SECRET.search(name)]


def _tells_a_program(name: str) -> bool:
    return name in NAMES or name.startswith(PREFIXES)
