"""Generates text with a trained model, one token at a time.

Keys and values are cached, so a token costs one pass over one position. The passes use the model's
own modules, but not its training forward: positions come in portions, first the prompt and then
each token.

Shape legend: T new tokens, K cached and new keys, C = n_embd, H heads, D head_dim, V vocabulary.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from yoked.core.schema import decode
from yoked.costmodel.model_shape import SMEAR_CHANNELS, ModelShape, check_shape
from yoked.errors import CheckpointError, UsageError
from yoked.shape import is_int
from yoked.train.checkpoint import CheckpointStore
from yoked.train.checkpoint_files import find_model_folder, find_tokenizer
from yoked.train.model.elementwise import norm
from yoked.train.model.gpt import GPT, Attention, rotary_tables
from yoked.train.tokenizer import Tokenizer


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn: see `generate`."""

    max_tokens: int
    temperature: float = 1.0
    top_k: int | None = None
    seed: int = 42


class CachedDecoder:
    """A model with a key-value cache: it reads tokens and returns the logits of the next one.

    Memory: at most the keys and values of each layer's window, 2*window*n_kv_head*D numbers.
    """

    def __init__(self, model: GPT) -> None:
        self._model = model
        self._length = 0
        self._embedding: Tensor | None = None  # of the last token, before smearing: (1, 1, C)
        self._keys: dict[int, Tensor] = {}  # by layer: (1, K, H, D)
        self._values: dict[int, Tensor] = {}
        self._cos, self._sin = model.cos, model.sin

    @torch.inference_mode()
    def advance(self, ids: Sequence[int]) -> Tensor:
        """Read more tokens; returns the logits after the last one, float32 (V,)."""
        model, config = self._model, self._model.config
        ids_1T = torch.tensor([ids], device=model.device)
        cos, sin = self._rotary(len(ids))
        x0 = x = kept = self._embed(ids_1T)
        for layer, block in enumerate(model.blocks):
            x = model.resid_lambdas[layer] * x + model.x0_lambdas[layer] * x0
            ve = None
            if block.attn.ve_gate is not None:
                ve = model.value_embeds[str(layer)](ids_1T).to(x.dtype)
            q, k, v = block.attn.project(norm(x), ve, cos, sin)
            y = self._attend(layer, block.attn, q, k, v)
            x = x + block.attn.c_proj(y.reshape(x.shape))
            x = x + block.mlp(norm(x))
            if layer == config.n_layer // 2:
                kept = x
        self._length += len(ids)
        last = norm(x[:, -1] - model.backout_lambda.to(x.dtype) * kept[:, -1])
        return model.logits(last)[0]

    def _embed(self, ids_1T: Tensor) -> Tensor:
        """The model's embedding; a portion's first token is smeared with the last one before it."""
        model = self._model
        x = norm(model.transformer["wte"](ids_1T).to(model.compute_dtype))
        # No token precedes the very first one, so nothing is added to it.
        before = torch.zeros_like(x[:, :1]) if self._embedding is None else self._embedding
        self._embedding = x[:, -1:]
        gate = torch.sigmoid(model.smear_gate(x[..., :SMEAR_CHANNELS]))
        previous = torch.cat((before, x[:, :-1]), dim=1)
        smeared: Tensor = x + model.smear_lambda.to(x.dtype) * gate * previous
        return smeared

    def _rotary(self, count: int) -> tuple[Tensor, Tensor]:
        """cos and sin of the next `count` positions, each (T, 1, D/2)."""
        stop = self._length + count
        if stop > self._cos.size(0):
            dtype, device = self._model.compute_dtype, self._model.device
            # Doubled, so that a long text seldom needs them anew.
            cos, sin = rotary_tables(2 * stop, self._model.config.head_dim, device)
            self._cos, self._sin = cos.to(dtype), sin.to(dtype)
        return self._cos[self._length : stop], self._sin[self._length : stop]

    def _attend(self, layer: int, attn: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of the new queries to cached and new keys; returns (1, T, H, D)."""
        if layer in self._keys:
            k = torch.cat((self._keys[layer], k), dim=1)
            v = torch.cat((self._values[layer], v), dim=1)
        # The next token attends to itself and to `window` tokens before it.
        self._keys[layer], self._values[layer] = k[:, -attn.window :], v[:, -attn.window :]
        new, keys = q.size(1), k.size(1)
        mask = None
        if new > 1:
            # (T, 1): places among the keys, cached ones included.
            query = torch.arange(keys - new, keys, device=q.device)[:, None]
            back = query - torch.arange(keys, device=q.device)[None, :]
            mask = (back >= 0) & (back <= attn.window)  # (T, K)
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            attn_mask=mask,
            enable_gqa=q.size(2) != k.size(2),
        )
        return y.transpose(1, 2)


def generate(
    model: GPT,
    prompt_ids: Sequence[int],
    *,
    max_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int = 42,
    stop_ids: Collection[int] = (),
) -> Iterator[int]:
    """Yield the token ids that follow the prompt; ends before one of `stop_ids`.

    temperature: 0 takes the most likely token. top_k: sample among the k most likely tokens.
    Equal seeds and equal logits give equal tokens on every device. Raises UsageError at once, not
    when the first token is asked for.
    """
    vocab_size = model.config.vocab_size
    if not prompt_ids:
        raise UsageError("there is no token to go on from", fix="begin the prompt with <|bos|>")
    if not all(0 <= token < vocab_size for token in prompt_ids):
        raise UsageError(f"a token of the prompt is outside the model's {vocab_size} tokens")
    # `not >=`: NaN is refused too.
    if not temperature >= 0 or max_tokens < 0 or (top_k is not None and top_k < 1):
        raise UsageError(
            f"cannot draw with temperature {temperature}, max_tokens {max_tokens}, top_k {top_k}",
            fix="give temperature and max_tokens of 0 or more, top_k of 1 or more",
        )
    if not is_int(seed):
        raise UsageError(f"--seed {seed} is no number of 64 bits", fix="give a smaller one")

    def tokens() -> Iterator[int]:
        decoder = CachedDecoder(model)
        generator = torch.Generator().manual_seed(seed)  # the CPU's: a GPU draws other numbers
        unread = prompt_ids
        for _ in range(max_tokens):
            logits = decoder.advance(unread)
            token = _sample_token(logits.cpu(), temperature, top_k, generator)
            if token in stop_ids:
                return
            yield token
            unread = [token]

    # As a generator, this function would check its arguments when the first token is asked for.
    return tokens()


def _sample_token(
    logits_V: Tensor, temperature: float, top_k: int | None, generator: torch.Generator
) -> int:
    if temperature == 0:
        return int(logits_V.argmax())
    if top_k is None:
        top_k = len(logits_V)
    top_logits, ids = logits_V.topk(min(top_k, len(logits_V)))
    probabilities = torch.softmax(top_logits / temperature, dim=-1)
    return int(ids[torch.multinomial(probabilities, 1, generator=generator)])


def decode_stream(ids: Iterator[int], tokenizer: Tokenizer) -> Iterator[str]:
    """Text of tokens as they come; a character of several tokens comes with its last one."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for token in ids:
        if piece := decoder.decode(tokenizer.decode_bytes([token])):
            yield piece
    if rest := decoder.decode(b"", final=True):
        yield rest


@dataclass(frozen=True)
class TrainedModel:
    """A model in float32 on the CPU, its tokenizer and the metadata of its checkpoint.

    saved_s: when it was saved, in seconds since 1970. better: step and val_bpb of the run's best
    checkpoint, where that is another one.
    """

    model: GPT
    tokenizer: Tokenizer
    meta: dict[str, Any]
    step: int
    saved_s: float
    better: tuple[int, float] | None

    def write(self, prompt: str, sampling: Sampling) -> Iterator[str]:
        """Yield the text that follows the prompt, in pieces, until the model ends the document.

        Raises UsageError at once, not when the first piece is asked for.
        """
        ids = generate(
            self.model,
            [self.tokenizer.bos_id, *self.tokenizer.encode(prompt)],
            stop_ids={self.tokenizer.bos_id},
            **vars(sampling),
        )
        return decode_stream(ids, self.tokenizer)


def load_trained(path: Path, checkpoint: str = "latest") -> TrainedModel:
    """A trained model with its tokenizer.

    path: a run's folder, a folder that has base_checkpoints/ (nanochat's base folder), or the
    folder of the model_*.pt files. Of several models, the one that was saved last.
    checkpoint: latest, best or a step. Raises CheckpointError or DataError.
    """
    folder = find_model_folder(path)
    store = CheckpointStore(folder)
    loaded = store.load(store.find(checkpoint), optimizer=False)
    config = model_shape(loaded.meta, folder)
    tokenizer = tokenizer_of(folder, config)
    with torch.device("meta"):  # no memory and no draws for weights that are loaded
        model = GPT(config, torch.float32)
    try:
        # Shapes alone: the meta file may describe a model that no memory holds.
        model.load_state_dict({name: each.to("meta") for name, each in loaded.model_state.items()})
    except RuntimeError as error:
        raise CheckpointError(f"the checkpoint in {folder} does not fit: {error}") from error
    model.to_empty(device="cpu")
    model.load_state_dict(loaded.model_state)
    model.finish()
    best = store.best()
    better = best if checkpoint == "latest" and best and best[0] != loaded.step else None
    saved_s = loaded.saved_s
    return TrainedModel(model.eval(), tokenizer, loaded.meta, loaded.step, saved_s, better)


def tokenizer_of(folder: Path, config: ModelShape) -> Tokenizer:
    """The tokenizer of a model folder. Raises CheckpointError for that of another model."""
    tokenizer = Tokenizer.load(find_tokenizer(folder))
    if tokenizer.vocab_size != config.vocab_size:
        raise CheckpointError(
            f"the model in {folder} has {config.vocab_size} tokens, the tokenizer beside it "
            f"{tokenizer.vocab_size}: they do not belong together.",
            fix=f"put the tokenizer it was trained with into {find_tokenizer(folder)}",
        )
    return tokenizer


def model_shape(meta: Mapping[str, Any], folder: Path) -> ModelShape:
    """The shape that a checkpoint's metadata describes. Raises CheckpointError."""
    try:
        # nanochat's older models have no windows: they attend to all tokens.
        given = {"window_pattern": "L", **meta["model_config"]}
        shape: ModelShape = decode(ModelShape, given, "model_config")
        check_shape(shape)
    except (KeyError, ValueError) as error:
        raise CheckpointError(
            f"the meta file in {folder} does not describe a model: {error}."
        ) from error
    return shape
