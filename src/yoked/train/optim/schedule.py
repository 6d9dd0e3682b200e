"""Learning rates, momentum and weight decay over a run, and how they scale with its size."""

from __future__ import annotations

import math
from dataclasses import dataclass

MOMENTUM_WARMUP_STEPS = 400
MOMENTUM_START, MOMENTUM_PEAK, MOMENTUM_END = 0.85, 0.97, 0.90
# The batch for which nanochat's rates are given, tokens.
REFERENCE_BATCH_TOKENS = 524_288


@dataclass(frozen=True)
class Schedule:
    """Multipliers by step (counted from 0) for a run of `steps` steps."""

    steps: int
    warmup_steps: int = 40
    warmdown_ratio: float = 0.65
    final_lr_frac: float = 0.05

    @property
    def warmdown_steps(self) -> int:
        """Steps over which the learning rate falls."""
        return round(self.warmdown_ratio * self.steps)

    def learning_rate(self, step: int) -> float:
        """Factor of every learning rate: rises, stays at 1, falls linearly."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if step <= self.steps - self.warmdown_steps:
            return 1.0
        left = (self.steps - step) / self.warmdown_steps
        return left + (1 - left) * self.final_lr_frac

    def muon_momentum(self, step: int) -> float:
        """Momentum itself, not a factor."""
        if step < MOMENTUM_WARMUP_STEPS:  # nanochat's order, also where a short run falls already
            part = step / MOMENTUM_WARMUP_STEPS
            return (1 - part) * MOMENTUM_START + part * MOMENTUM_PEAK
        start = self.steps - self.warmdown_steps
        if step >= start:
            part = (step - start) / self.warmdown_steps
            return MOMENTUM_PEAK * (1 - part) + MOMENTUM_END * part
        return MOMENTUM_PEAK

    def weight_decay(self, step: int) -> float:
        """Factor of Muon's weight decay: half a cosine from 1 to 0."""
        return 0.5 * (1 + math.cos(math.pi * step / self.steps))


def batch_lr_scale(batch_tokens: int) -> float:
    """Learning rates grow with the square root of the batch."""
    return math.sqrt(batch_tokens / REFERENCE_BATCH_TOKENS)


def scaled_weight_decay(
    weight_decay: float, batch_tokens: int, scaling_parameters: int, reference_parameters: int
) -> float:
    """Muon's weight decay for this batch and model (arXiv 2405.13698: T_epoch kept constant).

    The training horizons are both target_param_data_ratio times the parameters, so their ratio
    is that of the parameters.
    """
    return weight_decay * batch_lr_scale(batch_tokens) * reference_parameters / scaling_parameters
