"""nanochat as a program of the bench: unmodified, small, its kernels compiled beforehand.

nanochat is no part of this project: whoever measures names a checkout. What its ranks need lies in
this user's home, where the hosts of a lab see it: data and tokenizer as benchmarks/unmodified has
them, what torch.compile makes, and a stand-in for wandb.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "unmodified"), str(HERE.parent)]

import nanochat_side as side  # noqa: E402
import prepare_nanochat  # noqa: E402

_CACHES = Path.home() / ".cache" / "yoked-bench"
_BASE, _COMPILED = _CACHES / "nanochat", _CACHES / "compiled"
_VOCAB_SIZE = 4096
# Its gates read 24 channels, so it cannot be much smaller; a step takes some 10 ms.
_ROW_TOKENS = 32
_SMALL = (
    *("--depth=1", "--aspect-ratio=32", "--head-dim=32", "--window-pattern=L"),
    *(f"--max-seq-len={_ROW_TOKENS}", "--device-batch-size=1"),
)
# All that a step compiles is there after the first one.
_WARM_UP_STEPS, _WARM_UP_LIMIT_S = 3, 1800.0


@dataclass(frozen=True)
class Nanochat:
    """A checkout that is ready to be run by so many ranks."""

    checkout: side.Checkout
    ranks: int

    @classmethod
    def open(cls, path: Path, ranks: int) -> Nanochat:
        """Make what it trains on. Raises SystemExit when the folder is no nanochat."""
        checkout = side.Checkout.open(path, _CACHES)
        prepare_nanochat.prepare(checkout.path, _BASE, ranks, _VOCAB_SIZE)
        return cls(checkout, ranks)

    def words(self, steps: int) -> list[str]:
        """What `yoked run` is given, after its own flags."""
        settings = {
            "NANOCHAT_BASE_DIR": str(_BASE),
            # Chosen by measuring it would be another one now and then, and compiled anew.
            "NANOCHAT_DTYPE": "float32",
            "PYTHONPATH": str(self.checkout.stubs),
            "TORCHINDUCTOR_CACHE_DIR": str(_COMPILED),
        }
        env = [word for name, value in settings.items() for word in ("--env", f"{name}={value}")]
        tokens = self.ranks * _ROW_TOKENS
        flags = [*_SMALL, f"--total-batch-size={tokens}", f"--num-iterations={steps}"]
        return ["--threads", "1", *env, "--", *side.train_command(flags)[1:]]

    def warm_up(self, yoked: list[str], env: dict[str, str]) -> None:
        """Have what its ranks compile compiled, by a run on this machine. Raises SystemExit.

        The hosts of a lab that comes up later find it in the home. yoked: its command.
        """
        done = subprocess.run(
            [*yoked, "run", "--ranks", str(self.ranks), *self.words(_WARM_UP_STEPS)],
            cwd=self.checkout.path,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_WARM_UP_LIMIT_S,
            check=False,
        )
        # It saves at its end.
        shutil.rmtree(_BASE / "base_checkpoints", ignore_errors=True)
        if done.returncode:
            raise SystemExit(f"nanochat's warm-up failed:\n{(done.stdout + done.stderr)[-4000:]}")
