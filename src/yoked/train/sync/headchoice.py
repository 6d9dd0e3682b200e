"""Which ranks have the lm_head: `--lm-head`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from yoked.errors import UsageError
from yoked.timeline.deferral import deferred_backwards
from yoked.timeline.division import is_divided
from yoked.timeline.evening import head_part
from yoked.timeline.fastest import OneHead, fastest_has_it
from yoked.train.choose import Choice
from yoked.train.model.gpt import ModelConfig, count_parameters, flops_per_token


@dataclass(frozen=True)
class HeadAsked:
    """What the choice rests on.

    tokens: of a step. ranks: how many. on_cpus: all of them compute there. by_gloo: messages from
    one rank to another are possible.
    """

    config: ModelConfig
    tokens: int
    device_batch_size: int
    ranks: int
    on_cpus: bool
    by_gloo: bool = True

    @property
    def part(self) -> float:
        """Of a row's time, what the lm_head takes."""
        return row_head_part(self.config)

    @property
    def _deferred(self) -> int:
        tokens = self.device_batch_size * self.config.sequence_len
        return deferred_backwards(tokens, self.config.n_embd, self.config.n_layer)

    @property
    def why_not_divided(self) -> str | None:
        """None: it can be."""
        if self.ranks == 1:
            return "there is one rank"
        if not self.on_cpus:
            return "not all ranks compute on a CPU"
        batch_tokens = self.device_batch_size * self.config.sequence_len
        batches = -(-self.tokens // batch_tokens)
        if is_divided(self.tokens, self.config.padded_vocab_size, batches, self._deferred):
            return None
        return f"{self.tokens:,} tokens would weigh as much as its gradient"

    @property
    def why_not_fastest(self) -> str | None:
        """None: one rank can have it."""
        if self.ranks == 1:
            return "there is one rank"
        return None if self.by_gloo else "ranks with NCCL exchange no single messages"

    def by_speeds(self, speeds: Sequence[float], part: float | None = None) -> bool:
        """Whether the fastest rank is to have it; part: of its rows' time, where it is measured."""
        part = self.part if part is None else part
        vocab = self.config.padded_vocab_size
        able = self.why_not_fastest is None
        return able and fastest_has_it(speeds, part, self.tokens, vocab, self._deferred)


def row_head_part(config: ModelConfig) -> float:
    """Of a row's time, what the lm_head takes."""
    return head_part(6 * count_parameters(config).lm_head, flops_per_token(config))


def choose_lm_head(asked: str, about: HeadAsked, speeds: Sequence[float]) -> Choice:
    """speeds: by rank, as far as they are known.

    Raises UsageError where something was asked for that cannot be.
    """
    why_not = {"divided": about.why_not_divided, "fastest": about.why_not_fastest}.get(asked)
    if why_not is not None:
        raise UsageError(
            f"--lm-head {asked}: {why_not}",
            fix="leave --lm-head out: auto does so where it can be done",
        )
    if asked == "fastest":
        return _at_fastest("as asked for with --lm-head", speeds)
    if asked != "auto":
        return Choice("lm_head", asked, "as asked for with --lm-head")
    if about.why_not_divided is None:
        return Choice("lm_head", "divided", f"{about.tokens:,} tokens weigh less than its gradient")
    if about.by_speeds(speeds):
        return _at_fastest("it is much faster than the others: they send hidden states", speeds)
    return Choice("lm_head", "whole", about.why_not_divided)


def _at_fastest(reason: str, speeds: Sequence[float]) -> Choice:
    fastest = max(range(len(speeds)), key=lambda rank: speeds[rank])
    return Choice("lm_head", "fastest", f"rank {fastest}; {reason}", {"rank": fastest})


def one_head(choice: Choice, config: ModelConfig) -> OneHead | None:
    """Who has it, where one rank has."""
    if choice.value != "fastest":
        return None
    return OneHead(int(choice.measured["rank"]), row_head_part(config))
