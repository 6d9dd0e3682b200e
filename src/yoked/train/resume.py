"""Where a run begins: anew, from its own checkpoint, or from another run's; and its trainer."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from yoked.costmodel.model_shape import count_parameters, flops_per_token
from yoked.costmodel.step_plan import EXACT
from yoked.costmodel.work import compression_of, delays_of, is_late
from yoked.errors import CheckpointError, UsageError
from yoked.ranks.exchange import read_list, read_table, read_text, read_whole
from yoked.runs import find_run, new_run_name
from yoked.train.checkpoint import CheckpointStore, LoadedCheckpoint, check_matches
from yoked.train.checkpoint_files import find_model_folder, find_tokenizer
from yoked.train.config import TrainConfig
from yoked.train.config_file import OF_THE_MODEL, as_it_began, require_record
from yoked.train.data.prepare import lasting_source
from yoked.train.data.rows import SampleStream
from yoked.train.decisions.compute import configure_model
from yoked.train.device import DTYPES
from yoked.train.model.cross_entropy import FusedLinearCrossEntropy
from yoked.train.model.gpt import GPT
from yoked.train.optim.groups import group_settings
from yoked.train.optim.optimizer import MuonAdamW
from yoked.train.optim.param_buffers import ParamBuffers
from yoked.train.optim.schedule import Schedule, batch_lr_scale, scaled_weight_decay
from yoked.train.outlook import Outlook
from yoked.train.resolve import REFERENCE_DEPTH
from yoked.train.result import RunResult, RunStats, host_table, idle_table
from yoked.train.runfolder import RunFolder
from yoked.train.setup import RunSetup, parameter_table
from yoked.train.sync.codecs import CODECS
from yoked.train.sync.late import late_steps
from yoked.train.tokenizer import Tokenizer
from yoked.train.trainer import Trainer


@dataclass(frozen=True)
class RunOrigin:
    """config: as the run goes on with it, with its name; start_from: the checkpoint that a run
    without one of its own begins with; attempt: from 1; recorded, idle: run.json's entries of the
    attempt before, or of a run that is repeated, of the ranks that took part and of those that sat
    out; last_rows: of the former's last step.
    """

    config: TrainConfig
    start_from: Path | None = None
    attempt: int = 1
    recorded: tuple[dict[str, Any], ...] = ()
    idle: tuple[dict[str, Any], ...] = ()
    last_rows: tuple[int, ...] = ()

    @property
    def recorded_ranks(self) -> list[dict[str, Any]]:
        """The entries of the attempt before, by rank."""
        return sorted((*self.recorded, *self.idle), key=lambda entry: int(entry["rank"]))

    @property
    def folder(self) -> Path:
        """The run's."""
        assert self.config.run is not None, "resolve_origin names the run"
        return self.config.runs_dir / self.config.run

    @property
    def resumes(self) -> bool:
        """Whether an earlier attempt has begun the run."""
        return self.attempt > 1

    def persistent_config(self, hosts: Collection[str]) -> TrainConfig:
        """The configuration without what is a matter of this start: what run.json keeps.

        hosts: of all ranks. On one, its paths are kept such that the run can be resumed from any
        folder; several may have the same files in different places, by the paths as given.
        """
        kept = dataclasses.replace(
            self.config, resume=False, resume_from_step=None, start_from=self.start_from
        )
        if len(set(hosts)) > 1:
            return kept
        tokenizer = kept.tokenizer
        return dataclasses.replace(
            kept,
            data=lasting_source(kept.data),
            tokenizer=None if tokenizer is None else tokenizer.expanduser().absolute(),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data from which `from_dict` makes an equal origin, on another rank."""
        return {
            "config": self.config.to_dict(),
            "start_from": None if self.start_from is None else str(self.start_from),
            "attempt": self.attempt,
            "recorded": list(self.recorded),
            "idle": list(self.idle),
            "last_rows": list(self.last_rows),
        }

    @classmethod
    def from_dict(cls, content: Any) -> RunOrigin:
        """The origin that `to_dict` wrote; its config raises UsageError."""
        told = read_table(content)
        start_from = told["start_from"]
        return cls(
            TrainConfig.from_dict(read_table(told["config"])),
            start_from=None if start_from is None else Path(read_text(start_from)),
            attempt=read_whole(told["attempt"]),
            recorded=tuple(read_list(read_table)(told["recorded"])),
            idle=tuple(read_list(read_table)(told["idle"])),
            last_rows=tuple(read_list(read_whole)(told["last_rows"])),
        )


def resolve_origin(config: TrainConfig, world_size: int) -> RunOrigin:
    """The folder and configuration of the run; rank 0 alone decides."""
    if not config.resume and config.resume_from_step is None:
        name = config.run or new_run_name(config.runs_dir, datetime.now().astimezone())
        start_from = None if config.start_from is None else config.start_from.absolute()
        return RunOrigin(
            dataclasses.replace(config, run=name, repeats=None),
            start_from,
            **_repeated(config.repeats),
        )
    folder = find_run(config.run, config.runs_dir)
    run = RunFolder(folder)
    recorded = run.read()
    anew = f"start a new run from its weights with --from {folder}"
    require_record(recorded, str(folder / "run.json"), fix=anew)
    saved = as_it_began(TrainConfig.from_dict(recorded["config"]), recorded, config)
    _require_same_model(config, saved, folder)
    start_from = saved.start_from
    # Where it begins is a matter of this start, not of the run.
    saved = dataclasses.replace(saved, resume=False, resume_from_step=None, start_from=None)
    resumed = dataclasses.replace(
        config.on_top_of(saved, world_size=world_size), run=folder.name, runs_dir=folder.parent
    )
    hosts = tuple(recorded["hosts"])
    for host in hosts[:1]:
        _require_same_dtype(config, host["tables_dtype"], folder)
    return RunOrigin(
        resumed,
        start_from,
        attempt=recorded["attempt"] + 1,
        recorded=hosts,
        idle=tuple(recorded["idle_hosts"]),
        last_rows=run.last_rows(),
    )


def _repeated(chosen: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a run that repeats an earlier one takes over. chosen: `TrainConfig.repeats`."""
    names = {"recorded": "hosts", "idle": "idle_hosts", "last_rows": "rows"}
    return {mine: tuple((chosen or {}).get(name, ())) for mine, name in names.items()}


def _require_same_model(config: TrainConfig, saved: TrainConfig, folder: Path) -> None:
    """Refuse flags by which another model would be trained in the run's folder."""
    before = {name: getattr(saved, name) for name in OF_THE_MODEL}
    before["model_tag"] = saved.model_tag or f"d{saved.depth}"
    for name, value in before.items():
        asked = config.given().get(name)
        if asked not in (None, value):
            flag = "--" + name.replace("_", "-")
            raise UsageError(
                f"{flag} {asked}, but run {folder.name} began with {value}",
                fix=f"leave {flag} out, or start a new run",
            )


def _require_same_dtype(config: TrainConfig, recorded: str, folder: Path) -> None:
    if config.dtype not in ("auto", recorded):
        raise UsageError(
            f"--dtype {config.dtype}, but run {folder.name} has computed in {recorded} so far",
            fix=f"leave --dtype out, or start a new run from its weights: --from {folder}",
        )


def build_trainer(setup: RunSetup) -> Trainer:
    """This rank's trainer of a fresh model."""
    config, compute, sync = setup.config, setup.compute, setup.strategy.sync.value
    model = GPT(setup.model_config, DTYPES[compute.dtype], DTYPES[compute.tables_dtype])
    # On the CPU whatever trains, so that one seed is one model on every device.
    model.init_weights(config.seed)
    model.place(setup.device, tables_on_host=setup.resolved.tables == "host")
    buffers = ParamBuffers(model, setup.sharing.weights)
    configure_model(
        model,
        compute.layers,
        compute.attention,
        compile_blocks=compute.compile_blocks,
        checkpoint_blocks=config.checkpoint_activations,
    )
    optimizer = MuonAdamW(
        buffers,
        group_settings(
            config,
            setup.model_config.n_embd,
            batch_lr_scale=batch_lr_scale(setup.schedule.total_batch_size),
            muon_weight_decay=_muon_weight_decay(setup),
        ),
        Schedule(
            setup.schedule.num_iterations,
            config.warmup_steps,
            config.warmdown_ratio,
            config.final_lr_frac,
        ),
        setup.rank_info.rank,
        backend=compute.layers.forward,
        in_bfloat16=compute.dtype == "bfloat16",
    )
    late = late_steps(
        setup.schedule.num_iterations,
        config.warmup_steps,
        matrices=delays_of(sync).matrices,
    )
    return Trainer(
        model,
        optimizer,
        FusedLinearCrossEntropy(
            setup.model_config.vocab_size, compute.head, compiled=compute.compile_blocks
        ),
        setup.comm,
        SampleStream(setup.data.train, config.seed),
        rows=setup.sharing.rows,
        batch_sizes=setup.batch_sizes,
        codec=None if compression_of(sync) == EXACT else CODECS[compression_of(sync)],
        late=late if is_late(sync) else None,
        head_rows=setup.strategy.head_rows,
    )


def _muon_weight_decay(setup: RunSetup) -> float:
    resolved, vocab_size = setup.resolved, setup.data.info.vocab_size
    return scaled_weight_decay(
        setup.config.weight_decay,
        setup.schedule.total_batch_size,
        resolved.scaling_parameters(vocab_size),
        resolved.scaling_parameters(vocab_size, REFERENCE_DEPTH),
    )


def load_checkpoint(
    origin: RunOrigin, setup: RunSetup, trainer: Trainer, store: CheckpointStore
) -> tuple[LoadedCheckpoint | None, dict[str, Tensor]]:
    """Load what the run starts from into this rank's trainer.

    Returns it (None: the run starts anew), with the step that the run goes on with, and Muon's
    state of all owners as `MuonAdamW.load` has it, where the run goes on with one.
    """
    loaded = _own_checkpoint(setup, store) if origin.resumes else None
    own = loaded is not None
    if loaded is not None:
        _check_same_run(loaded, setup)
    elif origin.start_from is not None:
        loaded = dataclasses.replace(_load_another(origin.start_from, setup), step=0)
    else:
        return None, {}
    check_matches(loaded.meta, dataclasses.asdict(setup.model_config))
    owned = _apply_checkpoint(loaded, trainer, optimizer=own or loaded.optim_state is not None)
    if own and setup.config.resume_from_step is not None:
        # From now on this is the run, should it be killed before it saves again.
        store.mark_newest(loaded.step)
    # Figures of the run so far are its own alone.
    return loaded if own else dataclasses.replace(loaded, meta={}), owned


def _load_another(path: Path, setup: RunSetup) -> LoadedCheckpoint:
    """What `--from` names, without its optimizer's state where that cannot be used."""
    folder = find_model_folder(path)
    _require_same_tokenizer(folder, setup)
    store = CheckpointStore(folder)
    try:
        return store.load()
    except CheckpointError as problem:
        # Of several ranks of nanochat each saves a part, on its own host: one may be missing.
        loaded = store.load(optimizer=False)
        return dataclasses.replace(loaded, passed_over=(problem.what,))


def _require_same_tokenizer(folder: Path, setup: RunSetup) -> None:
    """Other ids would read the rows of other words, where the vocabularies are of one size."""
    tokenizer = find_tokenizer(folder)
    if not tokenizer.is_dir():
        return
    if Tokenizer.load(tokenizer).fingerprint != setup.data.info.tokenizer_fingerprint:
        raise CheckpointError(
            f"the model in {folder} reads other tokens than those of --data {setup.config.data}",
            fix=f"--tokenizer {tokenizer}",
        )


def _own_checkpoint(setup: RunSetup, store: CheckpointStore) -> LoadedCheckpoint | None:
    """The run's checkpoint to go on from; None: it was stopped before its first."""
    step = setup.config.resume_from_step
    # First of all become the only writer: an attempt that is still alive would go on saving.
    store.recover()
    return store.load_newest_good() if step is None else store.load(step)


def _check_same_run(loaded: LoadedCheckpoint, setup: RunSetup) -> None:
    ours = loaded.meta.get("yoked") or {}
    data = ours.get("data")
    if data is not None and data != setup.data.info.fingerprint:
        raise CheckpointError(
            f"the run was trained on other data: its rows are {data[:12]}, "
            f"those of {setup.config.data!r} are now {setup.data.info.fingerprint[:12]}",
            fix="restore the data, or start a new run from its weights with --from FOLDER",
        )
    for flag, key, mine in (
        ("--seed", "seed", setup.config.seed),
        ("--total-batch-size", "total_batch_size", setup.schedule.total_batch_size),
    ):
        before = ours.get(key, loaded.meta.get(key))
        if before is not None and before != mine:
            # Step s takes rows [s * B, (s + 1) * B) of the order that the seed gives.
            raise UsageError(
                f"{flag} {mine}, but the run began with {before}: "
                f"rows would be skipped or seen twice",
                fix=f"leave {flag} out, or start a new run from its weights with --from FOLDER",
            )
    steps = setup.schedule.num_iterations
    if loaded.step > steps:
        raise UsageError(
            f"the run is at step {loaded.step:,} already; its steps, {steps:,} now, count from its "
            "beginning",
            fix=f"--num-iterations {loaded.step + steps} for {steps:,} more",
        )
    if loaded.step == steps:
        raise UsageError(
            f"the run has taken all its {steps:,} steps already",
            fix=f"--num-iterations {steps * 2} to train it further",
        )


def _apply_checkpoint(
    loaded: LoadedCheckpoint, trainer: Trainer, *, optimizer: bool
) -> dict[str, Tensor]:
    parameters = trainer.buffers.parameters
    lacking = [name for name in parameters if name not in loaded.model_state]
    if lacking:
        raise CheckpointError(
            f"the checkpoint of step {loaded.step} lacks {', '.join(lacking)}: it is of an older "
            "version of nanochat",
            fix="take one of a version that has them",
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(loaded.model_state[name])
    if not optimizer:
        return {}
    if loaded.optim_state is None:
        raise CheckpointError(
            f"the checkpoint of step {loaded.step} has no optimizer state",
            fix="start a new run from its weights with --from FOLDER",
        )
    return trainer.optimizer.load(loaded.optim_state)


def describe_run(setup: RunSetup, outlook: Outlook) -> RunResult:
    """Everything that would be used, before a step is taken: the result of `--dry-run`."""
    counts = count_parameters(setup.model_config)
    resolved, schedule, data = setup.resolved, setup.schedule, setup.data
    choices = [dataclasses.asdict(choice) for choice in setup.choices]
    for source in (resolved, schedule):
        for name, reason in source.reasons.items():
            choices.append({"name": name, "value": str(getattr(source, name)), "reason": reason})
    return RunResult(
        run=setup.config.run or "",
        dir=str(setup.config.runs_dir / (setup.config.run or "")),
        state="planned",
        params=parameter_table(counts),
        hosts=host_table(setup.hosts, setup.sharing.rows, RunStats())
        + idle_table(setup.idle_hosts),
        choices=choices,
        model={
            **dataclasses.asdict(setup.model_config),
            "flops_per_token": flops_per_token(setup.model_config),
        },
        data={
            "name": data.info.name,
            "source": data.info.source,
            "folder": str(data.folder),
            "fingerprint": data.info.fingerprint,
            "vocab_size": data.info.vocab_size,
            "requested_vocab_size": data.info.requested_vocab_size,
            "train_tokens": data.info.train.tokens_kept,
            "train_rows": data.train.num_rows,
            "val_rows": data.val.num_rows,
            "unigram_entropy_nats": data.info.unigram_entropy_nats,
        },
        horizon={
            key: value for key, value in dataclasses.asdict(schedule).items() if key != "reasons"
        },
        outlook=outlook.to_dict(),
    )
