"""Checkpoints of one run and model: saved while training goes on, verified when loaded.

The folder is nanochat's `base_checkpoints/<model_tag>`: nanochat loads what we save and the other
way round (`nanochat_format`). How its files become visible all at once is in `checkpoint_files`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from yoked.core.fs import NO_ROOM, free_bytes
from yoked.errors import CheckpointError
from yoked.records.manifest import Manifest
from yoked.train.checkpoint_files import (
    CheckpointFolder,
    checkpoint_files,
    manifest_name,
    meta_name,
    model_name,
    optim_name,
)
from yoked.train.checkpoint_reading import read_meta, read_model, read_tensors
from yoked.train.nanochat_format import OptimState, Snapshot, from_nanochat, to_nanochat
from yoked.train.nanochat_ranks import join_ranks, optim_parts
from yoked.units import format_bytes

RESUME_FLAG = "--resume-from-step"
# Zip and pickle overhead of a file, with room to spare; tensors are far larger.
_OVERHEAD_BYTES = 1 << 20


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint in memory. Its tensors may be mapped from the files: copy, do not keep them.

    optim_state: None when it was not asked for, or nanochat saved none.
    passed_over: newer checkpoints that were damaged, one message each. saved_s: seconds since 1970.
    """

    step: int
    model_state: dict[str, Tensor]
    optim_state: OptimState | None
    meta: dict[str, Any]
    passed_over: tuple[str, ...] = ()
    saved_s: float = 0.0


class PinnedBuffers(Snapshot):
    """Copies in host memory that are reused from one save to the next.

    Page-locked where the source is a CUDA tensor, so that copies run at the bus's speed.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._device: torch.device | None = None

    def keep(self, key: str, tensor: Tensor, /) -> Tensor:
        """A copy in the buffer of that key; arrived only after `finish`."""
        buffer = self._buffer(key, tuple(tensor.shape), tensor)
        buffer.copy_(tensor.detach(), non_blocking=tensor.is_cuda)
        return buffer

    def stack(self, key: str, tensors: Sequence[Tensor], /) -> Tensor:
        """Copies as the rows of one buffer; arrived only after `finish`."""
        buffer = self._buffer(key, (len(tensors), *tensors[0].shape), tensors[0])
        for row, tensor in zip(buffer, tensors, strict=True):
            row.copy_(tensor.detach(), non_blocking=tensor.is_cuda)
        return buffer

    def finish(self) -> None:
        """Wait until every copy has arrived."""
        if self._device is not None:
            torch.cuda.synchronize(self._device)

    def _buffer(self, key: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        if like.is_cuda:
            self._device = like.device
        buffer = self._buffers.get(key)
        if buffer is None or buffer.shape != shape or buffer.dtype != like.dtype:
            buffer = torch.empty(shape, dtype=like.dtype, device="cpu", pin_memory=like.is_cuda)
            self._buffers[key] = buffer
        return buffer


class CheckpointStore:
    """The checkpoints in one folder. Any process may read; one writes: rank 0.

    keep_last: how many of the newest to keep, None for all; the best one stays beside them.
    Checkpoints that nanochat wrote are not counted and never removed.
    """

    def __init__(self, folder: Path, keep_last: int | None = None) -> None:
        assert keep_last is None or keep_last >= 1, f"keep_last must be at least 1, is {keep_last}"
        self.folder = folder
        self._keep_last = keep_last
        self._files = CheckpointFolder(folder)
        self._buffers = PinnedBuffers()
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None

    # Saving.

    def recover(self) -> None:
        """Become the folder's writer and clear up after one that was killed.

        The trainer calls it on rank 0 before the first step; otherwise the first save does.
        """
        with self._disk_errors(None, 0):
            self._files.recover()

    def mark_newest(self, step: int) -> None:
        """A run goes on from this checkpoint: what an abandoned attempt saved later is older now.

        One that nanochat wrote stays as old as it is.
        """
        if self._files.manifest(step) is not None:
            with self._disk_errors(None, 0):
                self._files.mark_newest(step)

    def save(
        self,
        step: int,
        model_state: Mapping[str, Tensor],
        optim_state: OptimState,
        meta: Mapping[str, Any],
        *,
        extra: Mapping[str, Any],
        val_bpb: float | None = None,
        aside: bool = False,
        background: bool = True,
    ) -> None:
        """Save a checkpoint; returns when the tensors are copied, and they may change again.

        optim_state: see `nanochat_format`, whole, whatever the number of ranks.
        meta: see `nanochat_format.checkpoint_meta`. extra: JSON values of our own, which come
        back as `meta["yoked"]`. val_bpb: of these weights; None: they were not evaluated.
        aside: it is saved for its val_bpb alone, and counts among the newest to keep no more.
        background: False writes from the live tensors and returns when the checkpoint is
        complete: no copies, for the last save of a run.

        Waits for a save that is still being written. Raises CheckpointError for what went wrong
        with that one (this one is then not begun), or when the disk has not enough room.
        """
        self.wait()
        if not self._files.locked:
            self.recover()
        document = json.dumps({"step": step, **meta, "yoked": dict(extra)}, indent=2).encode()
        needed_bytes = _size_bytes(model_state, optim_state) + len(document) + _OVERHEAD_BYTES
        self._require_room(step, needed_bytes)
        snapshot = self._buffers if background else Snapshot()
        shapes = {name: tuple(tensor.shape) for name, tensor in model_state.items()}
        settings = optim_state["settings"]
        optimizer = to_nanochat(optim_state, shapes, settings=settings, snapshot=snapshot)
        model = {name: snapshot.keep(name, tensor) for name, tensor in model_state.items()}
        contents: dict[str, Callable[[Any], object]] = {
            optim_name(step): lambda file: torch.save(optimizer, file),
            meta_name(step): lambda file: file.write(document),
            model_name(step): lambda file: torch.save(model, file),
        }

        def write() -> None:
            with self._disk_errors(step, needed_bytes):
                self._files.save(step, contents, val_bpb, aside=aside)
                if self._keep_last is not None:
                    self._files.keep_newest(self._keep_last)

        if not background:
            write()
            return
        self._buffers.finish()
        # Not a daemon: the end of the program waits for the checkpoint.
        name = f"checkpoint-{step}"
        self._thread = threading.Thread(target=self._catching, args=(write,), name=name)
        self._thread.start()

    def poll(self) -> bool:
        """Whether a save is being written. Raises CheckpointError if the last one failed."""
        if self._thread is not None and self._thread.is_alive():
            return True
        self.wait()
        return False

    def wait(self) -> None:
        """Wait for the save that is being written. Raises CheckpointError if it failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Wait, then let another process write here. The buffers' memory is given back."""
        try:
            self.wait()
        finally:
            self._files.unlock()
            self._buffers = PinnedBuffers()

    def __enter__(self) -> CheckpointStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _catching(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:  # noqa: BLE001 - raised on the training thread, by wait()
            self._failure = error

    def _require_room(self, step: int, needed_bytes: int) -> None:
        with self._disk_errors(step, needed_bytes):
            if free_bytes(self.folder) < needed_bytes:
                raise OSError(errno.ENOSPC, "No space left on device")

    @contextlib.contextmanager
    def _disk_errors(self, step: int | None, needed_bytes: int) -> Iterator[None]:
        """Turn the system's errors into one that says what is left and what to do."""
        try:
            yield
        except OSError as error:
            raise self._disk_error(step, needed_bytes, error) from error

    def _disk_error(self, step: int | None, needed_bytes: int, error: OSError) -> CheckpointError:
        if step is None:
            full = error.errno in NO_ROOM
            return CheckpointError(
                f"checkpoints cannot be saved in {self.folder}: {error.strerror}.",
                fix="free space on that disk"
                if full
                else "make the folder writable, or name another --runs-dir",
            )
        steps = self.steps()
        kept = f"complete there: {_listed(steps)}" if steps else "none is complete there yet"
        what = f"the checkpoint of step {step} was not saved in {self.folder}"
        if error.errno not in NO_ROOM:
            return CheckpointError(
                f"{what}: {error.strerror} ({kept}).", fix="make the folder writable"
            )
        free = free_bytes(self.folder)
        room = f"it needs {format_bytes(needed_bytes)}, {format_bytes(free)} are free"
        if error.errno == errno.EFBIG:
            return CheckpointError(
                f"{what}: a limit on the size of files stops it; {room} ({kept}).",
                fix="raise the limit (`ulimit -f unlimited`)",
            )
        missing_bytes = max(needed_bytes - free, 0)
        return CheckpointError(
            f"{what}: the disk is full; {room} ({kept}).",
            fix=(
                f"free {format_bytes(missing_bytes)} on that disk",
                "or keep fewer checkpoints (--keep-last)",
            ),
        )

    # Loading.

    def steps(self) -> list[int]:
        """The steps of complete checkpoints, nanochat's included, lowest first."""
        ours = [manifest.step for manifest in self._files.complete()]
        return sorted({*ours, *self._files.foreign()})

    def newest(self) -> int | None:
        """The step of the checkpoint that was saved last, damaged or not; None without any.

        After a resume from an earlier step this can be a lower step than that of checkpoints
        which the abandoned attempt left.
        """
        return next(iter(self._by_age()), None)

    def best(self) -> tuple[int, float] | None:
        """Step and val_bpb of the checkpoint that validation found best; None: none was evaluated.

        Where a run went on from an earlier step, only what led to its newest one counts.
        """
        best = self._files.best()
        return None if best is None or best.val_bpb is None else (best.step, best.val_bpb)

    def val_bpb(self, step: int) -> float | None:
        """The evaluation of a checkpoint's weights; None: they were not evaluated."""
        manifest = self._files.manifest(step)
        return None if manifest is None else manifest.val_bpb

    def find(self, which: str) -> int | None:
        """The step of `latest` (None: what `load` takes then), `best`, or a step in digits.

        Raises CheckpointError where no checkpoint was evaluated, or none is of that step.
        """
        if which == "latest":
            return None
        if which != "best":
            steps = self.steps()
            if int(which) not in steps:
                raise CheckpointError(
                    f"{self.folder} has no checkpoint of step {which}; "
                    f"there are: {_listed(steps) or 'none'}.",
                    fix="--checkpoint with one that is there, or --checkpoint latest",
                )
            return int(which)
        best = self.best()
        if best is None:
            raise CheckpointError(
                f"no checkpoint in {self.folder} was saved at an evaluation, so none is the best",
                fix="--checkpoint latest",
            )
        return best[0]

    @property
    def size_bytes(self) -> int:
        """What the complete checkpoints of ours take on the disk."""
        return sum(each.size_bytes for m in self._files.complete() for each in m.files)

    def load(self, step: int | None = None, *, optimizer: bool = True) -> LoadedCheckpoint:
        """The checkpoint of a step, by default the newest.

        Every file of ours that is used is read once more, and its digest is compared first.
        Raises CheckpointError when it is not there or damaged, naming those that can be used.
        """
        if step is None:
            step = self.newest()
        if step is None:
            raise CheckpointError(
                f"there is no complete checkpoint in {self.folder}.",
                fix="name the folder of a run that has saved one, or train without resuming",
            )
        try:
            return self._load(step, optimizer=optimizer)
        except CheckpointError as error:
            if error.fix:
                raise
            fine = [s for s in self.steps() if s != step and self._is_fine(s)]
            raise CheckpointError(error.what, fix=_use_another(fine)) from error

    def load_newest_good(self) -> LoadedCheckpoint | None:
        """The newest checkpoint that verifies; None when none was ever saved.

        For restarts without a person. Raises CheckpointError when all are damaged.
        """
        passed_over: list[str] = []
        for step in self._by_age():
            try:
                loaded = self._load(step, optimizer=True)
                return replace(loaded, passed_over=tuple(passed_over))
            except CheckpointError as error:
                passed_over.append(error.what)
        if passed_over:
            raise CheckpointError(
                f"every checkpoint in {self.folder} is damaged:\n" + "\n".join(passed_over),
                fix="restore one from a copy, or move the folder away to train from the start",
            )
        return None

    def _by_age(self) -> list[int]:
        return self._files.by_age() + self._files.foreign()

    def _load(self, step: int, *, optimizer: bool) -> LoadedCheckpoint:
        manifest = self._files.manifest(step)
        try:
            return self._load_as(manifest, step, optimizer=optimizer)
        except CheckpointError:
            # A run that is still saving may have replaced it while it was being read.
            again = self._files.manifest(step)
            if again == manifest or again is None:
                raise
            return self._load_as(again, step, optimizer=optimizer)

    def _load_as(
        self, manifest: Manifest | None, step: int, *, optimizer: bool
    ) -> LoadedCheckpoint:
        paths = self._paths(manifest, step)
        if manifest is not None:
            unused = [] if optimizer else [name for name in paths if name.startswith("optim_")]
            self._files.verify(manifest, leave_out=unused)
        meta = read_meta(paths[meta_name(step)])
        model_state = read_model(paths[model_name(step)])
        parts = [paths[name] for name in optim_parts(paths, step)] if optimizer else []
        optim_state = None
        if parts:
            shapes = {name: tuple(tensor.shape) for name, tensor in model_state.items()}
            try:
                whole = join_ranks([read_tensors(path) for path in parts], shapes)
                optim_state = from_nanochat(whole, shapes)
            except CheckpointError as error:
                raise CheckpointError(f"{parts[0]}: {error.what}", fix=error.fix) from error
        saved_s = paths[model_name(step)].stat().st_mtime
        return LoadedCheckpoint(step, model_state, optim_state, meta, saved_s=saved_s)

    def _paths(self, manifest: Manifest | None, step: int) -> dict[str, Path]:
        if manifest is not None:
            found = {e.name: self._files.locate(manifest, e) for e in manifest.files}
            if missing := {model_name(step), meta_name(step)} - found.keys():
                raise CheckpointError(
                    f"{self.folder / manifest_name(step)} is damaged: it lacks {sorted(missing)}."
                )
            return found
        if step not in self._files.foreign():
            raise self._not_there(step)
        return checkpoint_files(self.folder, step)

    def _not_there(self, step: int) -> CheckpointError:
        steps = self.steps()
        if not steps:
            return CheckpointError(
                f"{self.folder} has no checkpoint of step {step}, nor of any other.",
                fix=f"train from the start, without {RESUME_FLAG}",
            )
        return CheckpointError(
            f"{self.folder} has no checkpoint of step {step}; there are: {_listed(steps)}.",
            fix=f"resume from one that is there: {RESUME_FLAG} {steps[-1]}",
        )

    def _is_fine(self, step: int) -> bool:
        try:
            manifest = self._files.manifest(step)
            if manifest is not None:
                self._files.verify(manifest)
        except CheckpointError:
            return False
        return True


def check_matches(meta: Mapping[str, Any], expected_model_config: Mapping[str, Any]) -> None:
    """Raise CheckpointError, naming each difference, if the checkpoint is of another model."""
    saved = meta.get("model_config", {})
    # Models from before nanochat had windows attend to everything.
    saved = {"window_pattern": "L", **saved}
    differences = [
        f"{key} is {saved.get(key, 'not given')} in the checkpoint, {wanted} in this run"
        for key, wanted in expected_model_config.items()
        if saved.get(key) != wanted
    ]
    if differences:
        raise CheckpointError(
            "the checkpoint is of another model: " + "; ".join(differences) + ".",
            fix=(
                "give the flags and the tokenizer with which it was trained",
                "or start a new run: --run NAME, without --resume and --from",
            ),
        )


def _size_bytes(model_state: Mapping[str, Tensor], optim_state: OptimState) -> int:
    tensors = [*model_state.values()]
    for kind in ("adamw", "muon"):
        for entry in optim_state[kind].values():
            tensors += [value for value in entry.values() if isinstance(value, Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _use_another(steps: Sequence[int]) -> tuple[str, ...]:
    if not steps:
        return ("no other checkpoint there is fine: restore one from a copy, or train anew",)
    return (f"resume from another: {RESUME_FLAG} {steps[-1]} (these are fine: {_listed(steps)})",)


def _listed(steps: Sequence[int]) -> str:
    return ", ".join(str(step) for step in steps)
