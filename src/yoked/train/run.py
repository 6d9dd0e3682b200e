"""A run from its first step to its last: train, evaluate, save, stop when asked to.

Every rank executes this file alike; what only one may do (printing, writing) is rank 0's.
A step's figures are exchanged while the next step computes, so a line is written one step
late, and a wish to stop takes effect on all ranks at the same step.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from yoked.collector import frozen_objects
from yoked.console import StageProgress
from yoked.costmodel.model_shape import count_parameters, flops_per_token
from yoked.errors import CheckpointError
from yoked.ranks.exchange import read_flag, read_list, read_nothing, read_whole
from yoked.ranks.recorder import RECORDER
from yoked.train.balance.balancer import Assignment
from yoked.train.balance.controller import BalanceController
from yoked.train.balance.text import idle_note, rank_names
from yoked.train.checkpoint import CheckpointStore
from yoked.train.comm.communicator import Work
from yoked.train.comm.control import run_on_all_ranks, run_on_rank0, run_on_ranks
from yoked.train.data.verify import Verification
from yoked.train.decisions.products import OWN_DTYPES_S
from yoked.train.duration import Pace
from yoked.train.finite import require_finite_loss, require_finite_weights
from yoked.train.idle import IdleRanks
from yoked.train.nanochat_format import checkpoint_meta, export_tokenizer
from yoked.train.outlook import Outlook, disk_remark, require_disk, start_lines
from yoked.train.progress import RankPart, TrainProgress
from yoked.train.result import RunResult, RunStats, State, host_table, idle_table
from yoked.train.resume import RunOrigin, build_trainer, describe_run, load_checkpoint
from yoked.train.runfolder import RunFolder, write_json, writing
from yoked.train.setup import RunSetup, parameter_table
from yoked.train.step_batch import batch_arithmetic
from yoked.train.stop_wish import StopWish
from yoked.train.trainer import StepStats, evaluate_bpb

CHECK_EVERY_STEPS = 100
NANOCHAT_EMA = 0.9


def full_speed_token_s(setup: RunSetup) -> float | None:
    """Seconds a token if all ranks computed as fast as they multiply, for MFU (Chowdhery et al.
    2022) against the measured rate instead of a table's. None: not GPUs alone, or not measured.
    """
    dtype = setup.compute.choices[0]
    # Where ranks compute in unlike dtypes, each in its own.
    one_dtype_s = dtype.measured.get(f"{dtype.value}_s_per_token")
    multiplied_s = dtype.measured.get(OWN_DTYPES_S, one_dtype_s)
    if multiplied_s is None or any(not host["device"].startswith("cuda") for host in setup.hosts):
        return None
    shape = setup.model_config
    multiplied = 6 * count_parameters(shape).dense  # FLOPs: forward, and twice backward
    return multiplied_s * flops_per_token(shape) / multiplied


class TrainingRun:
    """The state of a run while it goes on."""

    def __init__(
        self, setup: RunSetup, origin: RunOrigin, outlook: Outlook, console: Console
    ) -> None:
        self.setup, self.origin = setup, origin
        self.comm, self.schedule = setup.comm, setup.schedule
        self.outlook = outlook
        self.console = console if setup.rank_info.rank == 0 else Console(quiet=True)
        self.folder = RunFolder(origin.folder)
        self.trainer = build_trainer(setup)
        token_bytes = setup.data.tokenizer().token_bytes()
        self.token_bytes = torch.from_numpy(token_bytes).to(setup.device)
        self.store = CheckpointStore(
            self.folder.checkpoint_folder(setup.resolved.model_tag), setup.config.keep_last
        )
        self.first_step = 0
        self.stats = RunStats()
        self.val_bpb: float | None = None
        self.min_val_bpb = math.inf
        self._evaluated_at: int | None = None
        self._compared_at: int | None = None
        self.training_time_s = 0.0
        self.stop_wish, self.stop_agreed = StopWish(), False
        self.save_agreed = False  # `yoked save`: after this step, on all ranks
        self.idle: IdleRanks | None = None  # on rank 0, those that sit out
        # Whether the run is to go on with ranks that sat out so far.
        self.wants_more = self.makes_room = False
        self.pace: Pace | None = None  # where steps were fixed by time
        self.balance: BalanceController | None = None
        if setup.sharing.live:
            hosts = [host["name"] for host in setup.hosts]
            rows, speeds = setup.sharing.rows, setup.sharing.weights
            now = Assignment(rows, setup.strategy.head_rows or rows)
            self.balance = BalanceController(self.trainer, self.folder, hosts, speeds, now)
        self.verification = Verification(setup.data, works=setup.rank_info.local_rank == 0)
        self._next_step = 0
        self._pending_stats: tuple[int, Tensor, Work, float] | None = None

    @property
    def is_first(self) -> bool:
        """Whether this rank prints and writes for all."""
        return self.setup.rank_info.rank == 0

    def run(self) -> RunResult:
        """Train to the end, or until stopped."""
        self.verification.start()
        self._start()
        hosts = [host["name"] for host in self.setup.hosts]
        progress = TrainProgress(
            self.console,
            self.schedule.num_iterations,
            self.first_step,
            full_speed_token_s(self.setup),
            hosts,
            rank_names(hosts) if len(set(hosts)) > 1 else [f"rank {n}" for n in range(len(hosts))],
        )
        if self.is_first:
            progress.doing("the first step: compiling and warming up")
        done = self.first_step
        state: State = "interrupted"
        try:
            with self.stop_wish.listening(), frozen_objects():
                for step in range(self.first_step, self.schedule.num_iterations):
                    self._step(step, progress)
                    done = step + 1
                    last = done == self.schedule.num_iterations
                    if (self.stop_agreed or self.makes_room) and not last:
                        break
                    self._after_step(done, last, progress)
                else:
                    state, self.makes_room = "finished", False
                self._log_pending_step(progress)
                if self.balance is not None:
                    self.balance.apply()
                if self.is_first:
                    progress.close()
                    progress.doing("saving the checkpoint")
                self._save(done, background=False)
                if state == "finished":
                    self._finish_verification()
        finally:
            self.verification.stop()
            progress.close()
            self._close()
        return self._result(done, state)

    # --- start

    def _start(self) -> None:
        """Weights from the start's origin, the same on all ranks; the folder; the choices."""
        optimizer = self.trainer.optimizer
        owned: dict[str, Tensor] = {}  # on rank 0, what a checkpoint has of all owners

        def load() -> list[int]:
            owned.update(self._load())
            return [self.first_step, optimizer.num_updates, len(owned)]

        stage = StageProgress(self.console)
        if self.is_first:
            own = self.origin.resumes or self.origin.start_from is not None
            stage.doing("reading the checkpoint" if own else "drawing the first weights")
        told = run_on_rank0(self.comm, load, read_list(read_whole))
        self.first_step, optimizer.num_updates, num_owned = told
        self.trainer.state.broadcast(self.console.print, owned or None, has_owned=num_owned > 0)
        run_on_all_ranks(self.comm, self._open_folder)
        stage.close()
        self._print_start()

    def _load(self) -> dict[str, Tensor]:
        """Read the checkpoint that the run starts from, if it does. Returns Muon's state of it."""
        loaded, owned = load_checkpoint(self.origin, self.setup, self.trainer, self.store)
        if loaded is not None:
            for message in loaded.passed_over:
                self.console.print(f"passed over: {message}", markup=False)
            self.first_step = loaded.step
            state = loaded.meta.get("loop_state") or {}
            self.training_time_s = float(state.get("total_training_time") or 0.0)
            self.min_val_bpb = float(state.get("min_val_bpb") or math.inf)
            self.val_bpb = loaded.meta.get("val_bpb")
        return owned

    def _open_folder(self) -> None:
        if not self.is_first:
            return
        require_disk(self.outlook, self.setup)
        if not self.origin.resumes:
            self.folder.claim()
        self.store.recover()
        tokenizer = self.folder.checkpoints / "tokenizer"
        with writing(tokenizer):
            export_tokenizer(self.setup.data.tokenizer_folder, tokenizer)
        self.folder.open(self._describe(), self.origin.attempt, self.first_step)
        if self.origin.resumes:
            self.folder.resumed(self.first_step)
        self.folder.event(
            "start",
            step=self.first_step,
            ranks=self.setup.rank_info.world_size,
            rows=self.setup.sharing.rows,
        )

    def _describe(self) -> dict[str, Any]:
        plan = describe_run(self.setup, self.outlook)
        hosts = [host["name"] for host in (*self.setup.hosts, *self.setup.idle_hosts)]
        return {
            "run": self.folder.name,
            "config": self.origin.persistent_config(hosts).to_dict(),
            "params": plan.params,
            "model": plan.model,
            "data": plan.data,
            "horizon": plan.horizon,
            "outlook": plan.outlook,
            "choices": plan.choices,
            "hosts": self.setup.hosts,
            "rows": list(self.setup.sharing.rows),
            "idle_hosts": self.setup.idle_hosts,
            "started_s": time.time(),
        }

    def _print_start(self) -> None:
        """Three lines; with --verbose, every choice as well."""
        setup = self.setup
        lines = start_lines(setup, self.outlook)
        if self.first_step:
            lines.append(f"going on from step {self.first_step:,}")
        elif self.origin.resumes:
            lines.append("beginning anew: the run had saved no checkpoint")
        if setup.config.verbose:
            lines += self._all_choices()
        names = rank_names([host["name"] for host in setup.hosts])
        there_bytes = self.store.size_bytes if self.is_first else 0
        if note := disk_remark(self.outlook, setup.config.keep_last, there_bytes):
            lines.append(note)
        if note := idle_note(setup.sharing.rows, setup.sharing.weights, names):
            lines.append(note)
        for line in (*lines, *setup.notes):
            self.console.print(line, markup=False)

    def _all_choices(self) -> Iterator[str]:
        setup = self.setup
        counts = parameter_table(count_parameters(setup.model_config))
        yield "parameters: " + ", ".join(f"{name} {count:,}" for name, count in counts.items())
        yield from map(str, setup.choices)
        for source in (setup.resolved, setup.schedule):
            for name, reason in source.reasons.items():
                yield f"{name}: {getattr(source, name)} ({reason})"
        rows, sizes = setup.sharing.rows, setup.batch_sizes
        yield f"batch: {batch_arithmetic(rows, sizes, setup.resolved.max_seq_len)}"

    # --- steps

    def _step(self, step: int, progress: TrainProgress) -> None:
        """Take a step; its figures set out, those of the step before arrive."""
        self._next_step = step + 1
        if self.balance is not None:
            self.balance.apply()
        started = time.perf_counter()
        stats = self.trainer.step(step)
        dt_s = time.perf_counter() - started
        if self.idle is not None and (note := self.idle.look(self.stop_wish)):
            progress.say(note)
            self.wants_more = True
        unsound = self.verification.problem is not None
        # All ranks of a host hear of it, and one of them may after the next step.
        saves = RECORDER.take_save_wish() and self.is_first
        flags = (unsound, self.stop_wish.asked, self.wants_more, saves)
        vector = torch.tensor([*stats.to_vector(), *map(float, flags)], dtype=torch.float64)
        gathered, pending = self.comm.all_gather(vector, "a step's figures")
        self._log_pending_step(progress)
        self._pending_stats = (step, gathered, pending, dt_s)
        if not self.comm.active:
            # With one rank nobody need be waited for.
            self._log_pending_step(progress)

    def _log_pending_step(self, progress: TrainProgress) -> None:
        """Write the step whose figures are on their way, and learn whether a rank wants to stop."""
        if self._pending_stats is None:
            return
        (step, gathered, pending, dt_s), self._pending_stats = self._pending_stats, None
        pending.wait()
        by_rank = [StepStats.from_vector(row[:-4]) for row in gathered.tolist()]
        unsound, stop, more, save = gathered[:, -4:].any(dim=0).tolist()
        if unsound:
            run_on_all_ranks(self.comm, self.verification.require_sound)
        require_finite_loss(self.comm, step, by_rank)
        self.stats.add(dt_s, by_rank)
        self.training_time_s += dt_s
        if self.is_first:
            self.folder.step(step, by_rank, dt_s)
            loss = sum(s.nats for s in by_rank) / sum(s.tokens for s in by_rank)
            tokens = sum(s.tokens for s in by_rank)
            parts = [RankPart(each.tokens, each.wait_s, each.comm_s) for each in by_rank]
            progress.step(step, loss, tokens, dt_s, parts)
            if self.pace is not None and (note := self.pace.step(dt_s)):
                progress.say(note)
            if news := self.folder.news():
                progress.say(news)
        self.stop_agreed = self.stop_agreed or stop
        self.save_agreed = self.save_agreed or save
        self.makes_room = (self.makes_room or more) and not self.stop_agreed
        if self.balance is not None and self._next_step < self.schedule.num_iterations:
            self.balance.follow(by_rank, self._next_step, progress.say)

    def _finish_verification(self) -> None:
        """Compare what is left of the rows, or a short run would not notice that they changed."""
        stage = StageProgress(self.console)
        run_on_ranks(
            self.comm,
            bool(self.verification.pending),
            lambda: self.verification.finish(stage, lambda: self.stop_wish.asked),
            "verifying rows",
        )
        stage.close()

    def _after_step(self, done: int, last: bool, progress: TrainProgress) -> None:
        """Comparing, evaluating and saving after `done` steps."""
        RECORDER.step_done(done)
        eval_every, save_every = self.schedule.eval_every, self.schedule.save_every
        checks = done == self.first_step + 1 or done % CHECK_EVERY_STEPS == 0 or last
        evaluates = eval_every is not None and (done % eval_every == 0 or last)
        is_due = save_every is not None and done % save_every == 0
        saves = (is_due or self.save_agreed) and not last
        if self.save_agreed and saves:
            progress.say(f"step {done:,}: saving, as asked")
        self.save_agreed = False
        aside = False
        if evaluates or saves or last:
            # A checkpoint must not be newer than the lines of its steps, which a kill would
            # leave out for good; nor may it hold what a loss that is not finite has left.
            self._log_pending_step(progress)
        if checks:
            self.trainer.drain()
            self._compare_weights(done)
        if evaluates:
            with RECORDER.phase("evaluating"):
                self.trainer.gather_weights()
                best = self._evaluate(done, progress)
            # What a run was at its best is kept, unless nothing is to be saved before the end.
            aside = best and save_every is not None and not (saves or last)
        if saves or aside:
            self._save(done, background=True, aside=aside)
        self._report_failed_save(progress)

    def _compare_weights(self, done: int) -> None:
        """Raise WeightsApartError unless all ranks hold the same after `done` steps. Collective.

        Nothing of the last step is in flight. What was compared after these steps is not again.
        """
        if self._compared_at != done:
            self._compared_at = done
            self.trainer.state.require_equal(list(self.trainer.buffers.parameters), done)

    def _evaluate(self, done: int, progress: TrainProgress) -> bool:
        """Evaluate after `done` steps; whether the run never was better. Collective."""
        data = self.setup.data
        rows = max(1, min(self.schedule.eval_tokens // data.info.max_seq_len, data.val.num_rows))
        self.val_bpb = evaluate_bpb(self.trainer, data.val.rows, rows, self.token_bytes)
        # Rank 0 alone knows what was best before the run was resumed.
        best = self.val_bpb < self.min_val_bpb
        self.min_val_bpb, self._evaluated_at = min(self.min_val_bpb, self.val_bpb), done
        if self.is_first:
            self.folder.evaluation(done, self.val_bpb)
            progress.say(f"step {done:,}: validation {self.val_bpb:.4f} bits per byte")
        return run_on_rank0(self.comm, lambda: best, read_flag)

    # --- saving

    def _save(self, done: int, *, background: bool, aside: bool = False) -> None:
        """Save after `done` steps; collective, because matrices' state lies with their owners."""
        if not background and done == self.first_step and self.origin.resumes:
            return
        with RECORDER.phase("saving"):
            self.trainer.drain()
            # What is replicated is saved as rank 0 has it: a bit that flipped there since the last
            # comparison would be in the checkpoint, from which all ranks then go on.
            self._compare_weights(done)
            whole = self.trainer.state.gather()
            require_finite_weights(
                self.comm, self.trainer.state, self.trainer.model.named_parameters(), done
            )
            if background:
                self._write(done, whole, background=True, aside=aside)
            else:
                # No rank ends before the last checkpoint is complete: its end would end rank 0.
                run_on_all_ranks(self.comm, lambda: self._write(done, whole, background=False))

    def _write(
        self,
        done: int,
        whole: dict[str, Tensor] | None,
        *,
        background: bool,
        aside: bool = False,
    ) -> None:
        """whole: all tensors, on rank 0. aside: see CheckpointStore.save."""
        if whole is None:
            return
        try:
            # The failure of an earlier save is not this one's.
            self.store.wait()
        except CheckpointError as problem:
            self._save_failed(problem)
        try:
            self.store.save(
                done,
                self.trainer.model.state_dict(),
                self.trainer.optimizer.state_dict(whole),
                self._meta(done),
                extra={
                    "data": self.setup.data.info.fingerprint,
                    "seed": self.setup.config.seed,
                    "dtype": self.setup.compute.tables_dtype,
                    "run": self.folder.name,
                },
                val_bpb=self._val_bpb_of(done),
                aside=aside,
                background=background,
            )
        except CheckpointError as problem:
            if not background:
                raise
            # The run is worth more than one checkpoint: say so, go on, try again next time.
            self._save_failed(problem)

    def _val_bpb_of(self, done: int) -> float | None:
        """The evaluation of the weights after `done` steps; None: they were not evaluated."""
        if self._evaluated_at != done or not math.isfinite(self.val_bpb or 0.0):
            return None
        return self.val_bpb

    def _report_failed_save(self, progress: TrainProgress) -> None:
        if self.is_first:
            try:
                self.store.poll()
            except CheckpointError as problem:
                progress.close()
                self._save_failed(problem)

    def _save_failed(self, problem: CheckpointError) -> None:
        self.folder.event("save_failed", what=problem.what)
        self.console.print(f"NOT SAVED: {problem}\ntraining goes on.", markup=False)

    def _meta(self, done: int) -> dict[str, Any]:
        setup = self.setup
        return checkpoint_meta(
            model_config=dataclasses.asdict(setup.model_config),
            user_config=setup.config.to_dict(),
            device_batch_size=setup.resolved.device_batch_size,
            max_seq_len=setup.resolved.max_seq_len,
            total_batch_size=self.schedule.total_batch_size,
            val_bpb=self.val_bpb,
            min_val_bpb=self.min_val_bpb,
            # nanochat divides its moving average by this when it prints it.
            smooth_train_loss=(self.stats.loss or 0.0) * (1 - NANOCHAT_EMA**done),
            total_training_time_s=self.training_time_s,
        )

    # --- end

    def _close(self) -> None:
        if self.is_first:
            try:
                self.store.close()
            finally:
                if news := self.folder.close():
                    self.console.print(news, markup=False)

    def _best(self) -> dict[str, Any] | None:
        best = self.store.best()
        return None if best is None else {"step": best[0], "val_bpb": best[1]}

    def _result(self, done: int, state: State) -> RunResult:
        result = dataclasses.replace(
            describe_run(self.setup, self.outlook),
            state=state,
            steps=done,
            tokens=done * self.schedule.total_batch_size,
            loss=self.stats.loss,
            val_bpb=self.val_bpb,
            best=self._best() if self.is_first else None,
            tokens_per_second=self.stats.tokens_per_second,
            first_step_s=self.stats.first_step_s,
            bytes_sent_per_step=self.stats.bytes_sent_per_step,
            hosts=host_table(self.setup.hosts, self.trainer.rows, self.stats)
            + idle_table(self.setup.idle_hosts),
        )
        if self.is_first:
            write_json(self.folder.path / "result.json", result.to_dict())
        # Under torchrun the first rank to end with a status ends the others.
        self.comm.all_gather_json(None, read_nothing)
        return result
