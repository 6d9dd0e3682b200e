"""What the numbers and names of a run's configuration may be; else a UsageError with the fix.

Nothing here imports torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from yoked.core.names import RUN_NAME, RUN_NAME_RULE
from yoked.costmodel.model_shape import MOST_LAYERS
from yoked.errors import UsageError
from yoked.units import parse_duration_s

DeviceType = Literal["auto", "cpu", "cuda", "mps"]
Packing = Literal["pieces", "bestfit"]
Dtype = Literal["auto", "float32", "bfloat16"]
Matmul = Literal["auto", "mkl", "onednn"]
Attention = Literal["auto", "sdpa", "blocked"]
Compile = Literal["auto", "on", "off"]
Balance = Literal["auto", "on", "off"]
Sync = Literal[
    "auto",
    "exact",
    "bf16",
    "int8",
    "int4",
    "late-head",
    "late-head:bf16",
    "late-head:int8",
    "late-head:int4",
    "late",
    "late:bf16",
    "late:int8",
    "late:int4",
]
LmHead = Literal["auto", "replicated", "vocab-parallel"]
Tables = Literal["auto", "device", "host"]

# Whoever takes a run's figures besides (train/sinks.py).
TRACKERS = ("wandb", "trackio", "tensorboard")
# `launch.listing` lets no other name of a folder come from a host.
_MODEL_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,79}")
_AT_LEAST: tuple[tuple[str, float], ...] = (
    ("depth", 1),
    ("aspect_ratio", 1),
    ("max_seq_len", 2),
    # The bytes and nanochat's nine special tokens; a merge less is no vocabulary.
    ("vocab_size", 265),
    ("num_iterations", 1),
    ("device_batch_size", 1),
    ("total_batch_size", 1),
    ("ranks", 1),
    ("embedding_lr", 0),
    ("unembedding_lr", 0),
    ("matrix_lr", 0),
    ("scalar_lr", 0),
    ("weight_decay", 0),
    ("warmup_steps", 0),
    ("warmdown_ratio", 0),
    ("final_lr_frac", 0),
    ("seed", 0),
    ("eval_tokens", 1),
    ("keep_last", 1),
    ("resume_from_step", 0),
)
# Whole numbers of 64 bits: torch takes no larger seed, and a float bears what is divided.
_MOST_WHOLE = 2**63 - 1
# No tokenizer has more: a forecast goes through the lm_head's chunks one by one.
MOST_VOCABULARY = 2**20
_AT_MOST = {"depth": MOST_LAYERS, "vocab_size": MOST_VOCABULARY}
# FLOPs, or tokens a parameter: of which steps are still a number that can be divided.
_LONGEST = 1e30
# Of a step, which are shared out one by one: hundreds of times those of nanochat's largest runs.
MOST_ROWS = 1_000_000


def check_numbers(values: Mapping[str, Any]) -> None:
    """Raise UsageError for the first number that cannot be meant. values: by field."""
    for name, least in _AT_LEAST:
        value, flag = values[name], "--" + name.replace("_", "-")
        if value is None:
            continue
        # `not >=` rather than `<`: it refuses NaN too.
        if not value >= least:
            raise UsageError(f"{flag} {value} is too small", fix=f"give {least} or more")
        most = _AT_MOST.get(name, _MOST_WHOLE)
        if isinstance(value, int) and value > most:
            raise UsageError(f"{flag} {value} is too large", fix=f"give {most} or less")
    for name in ("target_flops", "target_param_data_ratio"):
        value = values[name]
        # NaN is not below anything.
        if value is not None and not value <= _LONGEST:
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag} {value} gives the run no end", fix="give a smaller number")
    if values["warmdown_ratio"] > 1:
        raise UsageError(
            f"--warmdown-ratio {values['warmdown_ratio']} is more than the whole run",
            fix="give a part between 0 and 1",
        )
    for name in ("eval_every", "save_every"):
        if values[name] == 0:
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag} 0 says nothing", fix=f"give a number of steps, or {flag}=-1")


def check_trackers(log_to: str | None) -> None:
    """Raise UsageError for a tracker that yoked does not know."""
    for name in (log_to or "").split(",") if log_to is not None else ():
        if name not in TRACKERS:
            raise UsageError(
                f"--log-to {log_to!r}: {name!r} is no tracker that yoked knows",
                fix=f"--log-to {TRACKERS[0]}, {' or '.join(TRACKERS[1:])}; several with commas",
            )


def check_model(head_dim: int | None, window_pattern: str | None) -> None:
    """Raise UsageError for a model that cannot be built."""
    if head_dim is not None and (head_dim < 2 or head_dim % 2):
        raise UsageError(
            f"--head-dim {head_dim} is not an even number above 0: "
            "rotary embeddings turn pairs of channels",
            fix="give an even number, such as 64 or 128",
        )
    if window_pattern is not None and (not window_pattern or set(window_pattern) - set("SL")):
        raise UsageError(
            f"--window-pattern {window_pattern!r} has letters other than S and L",
            fix="write L for layers that see the whole row and S for short windows, as in SSSL",
        )


def require_whole_rows(total_batch_size: int, max_seq_len: int) -> None:
    """Raise UsageError, naming the nearest that fit, unless a step is a number of rows."""
    if total_batch_size // max_seq_len > MOST_ROWS:
        raise UsageError(
            f"--total-batch-size {total_batch_size} is more than {MOST_ROWS:,} rows of "
            f"{max_seq_len} tokens",
            fix=f"give {MOST_ROWS * max_seq_len} or less",
        )
    if total_batch_size % max_seq_len == 0:
        return
    below = total_batch_size // max_seq_len * max_seq_len
    nearest = [str(n) for n in (below, below + max_seq_len) if n > 0]
    raise UsageError(
        f"--total-batch-size {total_batch_size} is not a multiple of "
        f"--max-seq-len {max_seq_len}, so a step is not a whole number of rows",
        fix=f"--total-batch-size {' or '.join(nearest)}",
    )


def check_batch(
    total_batch_size: int | None, max_seq_len: int | None, shares: str | None, ranks: int | None
) -> None:
    """Raise UsageError for a step that cannot be divided into rows, or rows among ranks."""
    if total_batch_size is not None and max_seq_len is not None:
        require_whole_rows(total_batch_size, max_seq_len)
    if shares is None:
        return
    parts = shares.split(":")
    if not all(part.isdecimal() for part in parts) or not any(int(part) for part in parts):
        raise UsageError(
            f"--shares {shares!r} is not a list of whole numbers with a colon between them",
            fix="write the parts by rank, as in --shares 3:1",
        )
    if ranks is not None and len(parts) != ranks:
        raise UsageError(
            f"--shares {shares} names {len(parts)} ranks, but --ranks is {ranks}",
            fix=f"--shares {':'.join('1' * ranks)}, or --ranks {len(parts)}",
        )


def check_run(run: str | None, tag: str | None) -> None:
    """Raise UsageError for a name that no folder may have."""
    # It names a folder on every host, and stands in lines to paste: the agent's rule.
    if run is not None and not RUN_NAME.fullmatch(run):
        raise UsageError(
            f"--run {run!r} cannot be the name of a run",
            fix=RUN_NAME_RULE,
        )
    if tag is not None and not _MODEL_TAG.fullmatch(tag):
        raise UsageError(
            f"--model-tag {tag!r} cannot be the name of a folder",
            fix="letters, digits and . _ - only, at most 80, a letter, digit or _ first",
        )


def require_known(flag: str, value: str, known: Sequence[str]) -> None:
    """Raise UsageError for a word that is none of a flag's."""
    if value not in known:
        raise UsageError(f"{flag} {value!r} is unknown", fix=f"choose one of {', '.join(known)}")


def check_choices(values: Mapping[str, Any]) -> None:
    """Raise UsageError for a word that is none of a flag's. values: by field."""
    for flag, value, known in (
        ("--device-type", values["device_type"], get_args(DeviceType)),
        ("--packing", values["packing"], get_args(Packing)),
        ("--dtype", values["dtype"], get_args(Dtype)),
        ("--matmul", values["matmul"], get_args(Matmul)),
        ("--attention", values["attention"], get_args(Attention)),
        ("--compile", values["compile"], get_args(Compile)),
        ("--balance", values["balance"], get_args(Balance)),
        ("--sync", values["sync"], get_args(Sync)),
        ("--lm-head", values["lm_head"], get_args(LmHead)),
        ("--tables", values["tables"], get_args(Tables)),
    ):
        require_known(flag, value, known)
    if values["threads"] != "auto" and not (
        values["threads"].isdecimal() and int(values["threads"]) > 0
    ):
        raise UsageError(
            f"--threads {values['threads']!r} is neither auto nor a whole number above 0",
            fix="leave it out: auto is one for each fast core",
        )
    if values["fp8"]:
        raise UsageError(
            "--fp8: yoked computes in float32 or bfloat16; there is no 8-bit path",
            fix="leave --fp8 out; --dtype auto measures which of the two is faster here",
        )


# What says how long a run is.
LENGTHS = ("num_iterations", "target_flops", "target_param_data_ratio", "duration")


def check_length(values: Mapping[str, Any]) -> None:
    """Raise UsageError for a --for that is no time, or stands beside another length."""
    if values["duration"] is None:
        return
    if parse_duration_s(values["duration"], "--for") <= 0:
        raise UsageError(f"--for {values['duration']}: no time", fix="--for 8h")
    # A ratio of -1 is nanochat's way to switch it off.
    others = [name for name in LENGTHS[:-1] if (values[name] or 0) > 0]
    if others:
        flag = "--" + others[0].replace("_", "-")
        raise UsageError(f"--for and {flag} both say how long to train", fix="give one of them")
    if values["resume"] or values["resume_from_step"] is not None:
        raise UsageError(
            "--for with --resume: a run goes on to the steps that were fixed at its start",
            fix="leave --for out, or give --num-iterations, which counts from the run's beginning",
        )


def without_effect(values: Mapping[str, Any]) -> tuple[str, ...]:
    """One line for each flag that was given and has no effect here. values: by field."""
    notes = {
        "--core-metric-every: yoked does not compute the CORE metric; "
        "nanochat's base_eval does, on the checkpoint": values["core_metric_every"] > 0,
        "--sample-every: yoked does not sample while it trains; run `yoked sample`": (
            values["sample_every"] > 0
        ),
        "--vocab-size: the tokenizer that was given has its own": (
            values["tokenizer"] is not None and "vocab_size" in values["passed"]
        ),
        "--eval-tokens: nothing is evaluated (--eval-every)": (
            (values["eval_every"] or 0) < 0 and values["eval_tokens"] is not None
        ),
    }
    return tuple(note for note, holds in notes.items() if holds)
