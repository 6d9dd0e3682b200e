"""Which ranks have the lm_head: `--lm-head`."""

from __future__ import annotations

from dataclasses import dataclass

from yoked.costmodel.model_shape import ModelShape, count_parameters, flops_per_token
from yoked.costmodel.schedule import max_deferred_backwards
from yoked.costmodel.vocab_parallel import LEAST_IDS_PER_TOKEN, MOST_TOKENS
from yoked.costmodel.work import head_part
from yoked.errors import UsageError
from yoked.train.choose import Choice


@dataclass(frozen=True)
class HeadAsked:
    """What the choice rests on.

    tokens: of a step. ranks: how many. on_cpus: all of them compute there.
    """

    config: ModelShape
    tokens: int
    device_batch_size: int
    ranks: int
    on_cpus: bool

    @property
    def why_not_vocab_parallel(self) -> str | None:
        """None: it can be."""
        if self.ranks == 1:
            return "there is one rank"
        if not self.on_cpus:
            return "not all ranks compute on a CPU"
        most = min(MOST_TOKENS, self.config.padded_vocab_size // LEAST_IDS_PER_TOKEN)
        if self.tokens > most:
            return f"{self.tokens:,} tokens would weigh as much as its gradient"
        batch_tokens = self.device_batch_size * self.config.sequence_len
        kept = max_deferred_backwards(batch_tokens, self.config.n_embd, self.config.n_layer)
        if self.tokens > kept * batch_tokens:
            return f"the activations of {self.tokens:,} tokens would have to be kept at once"
        return None


def row_head_part(config: ModelShape) -> float:
    """Of a row's time, what the lm_head takes."""
    return head_part(6 * count_parameters(config).lm_head, flops_per_token(config))


def choose_lm_head(asked: str, about: HeadAsked) -> Choice:
    """Raises UsageError where something was asked for that cannot be."""
    if asked == "vocab-parallel" and about.why_not_vocab_parallel is not None:
        raise UsageError(
            f"--lm-head {asked}: {about.why_not_vocab_parallel}",
            fix="leave --lm-head out: auto does so where it can be done",
        )
    if asked != "auto":
        return Choice("lm_head", asked, "as asked for with --lm-head")
    if about.why_not_vocab_parallel is None:
        return Choice(
            "lm_head", "vocab-parallel", f"{about.tokens:,} tokens weigh less than its gradient"
        )
    return Choice("lm_head", "replicated", about.why_not_vocab_parallel)
