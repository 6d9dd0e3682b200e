"""How a checkpoint's files come into being and go: complete or absent at every instant.

A checkpoint of step S is the set of files that `manifest_S.json` names, with their sizes and
SHA-256 digests. The manifest decides, and it changes by one atomic rename:

1. Every file is written under a staged name (`.yoked-S-TOKEN-NAME.part`), hashed and fsynced.
2. The manifest is renamed into place: from here on the checkpoint is complete. A checkpoint
   of the same step that was there before ceases to exist in that same rename.
3. The staged files are renamed to their final names. A kill in between leaves some files under
   staged names; readers look there first, and the next start finishes the renames.

Removal runs the other way: the manifest is renamed to a tombstone, then the files go, then the
tombstone. What a kill leaves behind is invisible and has names that only this module makes.

A step without a manifest, but with the two files that nanochat's loader wants, is one that
nanochat wrote: it can be read, but not verified. This module knows nothing of tensors.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from yoked.core.fs import HashingWriter, locked, sha256_of, sync_path
from yoked.errors import CheckpointError
from yoked.paths import private_folder
from yoked.records.manifest import FileEntry, Manifest, best_of
from yoked.runs import copied_from, is_program, no_training

MODEL_FOLDERS = "base_checkpoints"
_MODELS = "model_*.pt"
LOCK_NAME = ".yoked-lock"
LOCK_WAIT_S = 15.0
# What the lock says while it is held: a process and its host.
_HOLDER = re.compile(r"(\d{1,10}) ([A-Za-z0-9._-]{1,255})")
# The suffix keeps nanochat, which searches for names that end in model_NNN.pt, from seeing them.
_STAGED = re.compile(r"\.yoked-(\d{6,})-([0-9a-f]{8})-(.+)\.part")
_MANIFEST = re.compile(r"manifest_(\d{6,})\.json")
_TOMBSTONE = re.compile(r"\.yoked-removing_(\d{6,})\.json")
_MODEL = re.compile(r"model_(\d+)\.pt")


def model_name(step: int) -> str:
    """The weights' file, by nanochat's name for it."""
    return f"model_{step:06d}.pt"


def meta_name(step: int) -> str:
    """The JSON file beside the weights, by nanochat's name for it."""
    return f"meta_{step:06d}.json"


def optim_name(step: int, rank: int = 0) -> str:
    """A rank's file of the optimizer's state, by nanochat's name. Our runs have that of rank 0."""
    return f"optim_{step:06d}_rank{rank}.pt"


def manifest_name(step: int) -> str:
    """The file that says what the checkpoint consists of."""
    return f"manifest_{step:06d}.json"


def staged_path(folder: Path, step: int, token: str, name: str) -> Path:
    """Where a file lies while its checkpoint is not complete."""
    return folder / f".yoked-{step:06d}-{token}-{name}.part"


class CheckpointFolder:
    """The checkpoints that lie in one folder. Reading needs no lock and changes nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: weakref.finalize[[], CheckpointFolder] | None = None

    # Reading.

    def manifest(self, step: int) -> Manifest | None:
        """The step's manifest; None when there is none. Raises CheckpointError if damaged."""
        path = self.path / manifest_name(step)
        try:
            manifest = Manifest.from_bytes(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise CheckpointError(f"{path} is damaged: {error}.") from error
        if manifest.step != step:
            raise CheckpointError(f"{path} is damaged: it is the manifest of {manifest.step}.")
        return manifest

    def complete(self) -> list[Manifest]:
        """Checkpoints whose files are all there in their full size, newest save first.

        Their content is not read; `verify` does that.
        """
        whole = [m for m in self._readable() if all(self._has_size(m, file) for file in m.files)]
        return sorted(whole, key=lambda manifest: manifest.sequence, reverse=True)

    def best(self) -> Manifest | None:
        """The complete checkpoint that validation found best, by `best_of`; None: none was."""
        return best_of(self.complete())

    def by_age(self) -> list[int]:
        """Steps that have a manifest, newest save first, those with a damaged one before all.

        Unlike `complete`, damage does not hide a step here: it must be told, not passed over.
        """
        sequences = {manifest.step: manifest.sequence for manifest in self._readable()}
        damaged = sorted(self._steps(_MANIFEST) - set(sequences), reverse=True)
        return damaged + sorted(sequences, key=lambda step: sequences[step], reverse=True)

    def foreign(self) -> list[int]:
        """Steps that nanochat wrote: model and meta files, no manifest. Highest first."""
        ours = self._steps(_MANIFEST) | self._steps(_TOMBSTONE)
        found = self._steps(_MODEL) - ours
        return sorted((s for s in found if (self.path / meta_name(s)).is_file()), reverse=True)

    def locate(self, manifest: Manifest, entry: FileEntry) -> Path:
        """Where a file of a checkpoint lies: staged, if a kill came before its last rename."""
        staged = staged_path(self.path, manifest.step, manifest.token, entry.name)
        return staged if staged.exists() else self.path / entry.name

    def verify(self, manifest: Manifest, *, leave_out: Collection[str] = ()) -> None:
        """Read every file and compare. Raises CheckpointError that names the first bad one.

        leave_out: names of files that are not going to be used.
        """
        for entry in manifest.files:
            if entry.name in leave_out:
                continue
            path = self.locate(manifest, entry)
            try:
                size_bytes = path.stat().st_size
                if size_bytes != entry.size_bytes:
                    raise CheckpointError(
                        f"{path} is damaged: it has {size_bytes} bytes, not {entry.size_bytes}."
                    )
                digest = sha256_of(path)
            except OSError as error:
                raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
            if digest != entry.sha256:
                raise CheckpointError(
                    f"{path} is damaged: its SHA-256 is not that of the file that was saved."
                )

    def _readable(self) -> Iterator[Manifest]:
        for step in self._steps(_MANIFEST):
            with contextlib.suppress(CheckpointError):
                if manifest := self.manifest(step):
                    yield manifest

    def _has_size(self, manifest: Manifest, entry: FileEntry) -> bool:
        try:
            return self.locate(manifest, entry).stat().st_size == entry.size_bytes
        except OSError:
            return False

    def _steps(self, pattern: re.Pattern[str]) -> set[int]:
        return {int(match[1]) for name in self._names() if (match := pattern.fullmatch(name))}

    def _names(self) -> list[str]:
        try:
            return sorted(path.name for path in self.path.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    # Writing: by one process at a time.

    @property
    def locked(self) -> bool:
        """Whether this object is the folder's writer."""
        return self._lock is not None

    def lock(self) -> None:
        """Become the folder's only writer until `unlock` or the end of the process.

        Raises CheckpointError when another process keeps the lock for longer than a dying
        one would, and OSError at once on a disk without locks.
        """
        if self._lock is not None:
            return
        path = private_folder(self.path) / LOCK_NAME
        held = contextlib.ExitStack()
        try:
            held.enter_context(locked(path, LOCK_WAIT_S))
        except TimeoutError:
            raise CheckpointError(
                f"the run goes on already: {_holder(path)} saves its checkpoints in {self.path}.",
                fix=(
                    "yoked runs    shows it; wait until it ends, or stop it",
                    "--run NAME with another name starts a run of its own",
                ),
            ) from None
        # A full disk costs the next one a name, and not this one the lock.
        with contextlib.suppress(OSError):
            path.write_text(f"{os.getpid()} {socket.gethostname()}")
        self._lock = weakref.finalize(self, held.close)

    def unlock(self) -> None:
        """Let another process, or object, become the writer."""
        if self._lock is not None:
            self._lock()
            self._lock = None

    def recover(self) -> None:
        """Finish what a killed writer had begun: renames, removals; drop what is incomplete."""
        self.lock()
        for manifest in self._readable():
            self._move_into_place(manifest)
        for step in self._steps(_TOMBSTONE):
            self._finish_removal(step)
        # The staged files of a damaged manifest stay: they may be all that is left of it.
        damaged = self._steps(_MANIFEST) - {manifest.step for manifest in self._readable()}
        for name in self._names():
            match = _STAGED.fullmatch(name)
            if match and int(match[1]) not in damaged:
                (self.path / name).unlink(missing_ok=True)

    def save(
        self,
        step: int,
        contents: Mapping[str, Callable[[HashingWriter], object]],
        val_bpb: float | None = None,
        *,
        aside: bool = False,
    ) -> None:
        """Write a checkpoint, and make it the one of its step.

        contents: what writes each file, by the file's name. val_bpb, aside: see Manifest.
        Raises OSError where it could not become complete; nothing of it is left then.
        """
        token = secrets.token_hex(4)
        entries: list[FileEntry] = []
        try:
            for name, write in contents.items():
                with HashingWriter(staged_path(self.path, step, token, name)) as file:
                    write(file)
                entries.append(FileEntry(name, file.size_bytes, file.sha256))
        except BaseException:
            self._discard(token)
            raise
        sequence = self._next_sequence()
        manifest = Manifest(step, sequence, token, tuple(entries), val_bpb, aside)
        try:
            self._publish(manifest)
        except OSError:
            # Not after Ctrl-C: it may come when the manifest is in place and needs its files.
            self._discard(token)
            raise
        sync_path(self.path)
        self._move_into_place(manifest)

    def _discard(self, token: str) -> None:
        """Remove everything that a save has staged."""
        for path in self.path.glob(f".yoked-*-{token}-*.part"):
            path.unlink(missing_ok=True)

    def mark_newest(self, step: int) -> None:
        """Let a complete checkpoint of ours count as the one that was saved last."""
        manifest = self.manifest(step)
        assert manifest is not None, f"step {step} has no manifest"
        if manifest != self.complete()[0]:
            self._publish(replace(manifest, sequence=self._next_sequence()))
            sync_path(self.path)

    def _next_sequence(self) -> int:
        return 1 + max((manifest.sequence for manifest in self._readable()), default=0)

    def _publish(self, manifest: Manifest) -> None:
        name = manifest_name(manifest.step)
        with HashingWriter(staged_path(self.path, manifest.step, manifest.token, name)) as file:
            file.write(manifest.to_bytes())
        sync_path(self.path)
        file.path.replace(self.path / name)

    def _move_into_place(self, manifest: Manifest) -> None:
        # The model goes last: nanochat takes the step for complete when it sees that file.
        moved = False
        for entry in sorted(manifest.files, key=lambda e: e.name == model_name(manifest.step)):
            staged = staged_path(self.path, manifest.step, manifest.token, entry.name)
            if staged.exists():
                staged.replace(self.path / entry.name)
                moved = True
        if moved:
            sync_path(self.path)

    def keep_newest(self, keep_last: int) -> None:
        """Remove complete checkpoints of ours beyond the newest `keep_last` (at least 1).

        Beside them stay the best one, and that from which a run would go on. Those that were saved
        aside do not count.
        """
        assert keep_last >= 1, f"keep_last is {keep_last}: it would remove every checkpoint"
        whole = self.complete()
        kept = [manifest for manifest in whole if not manifest.aside][:keep_last]
        kept += [*whole[:1], self.best() or whole[0]] if whole else []
        for manifest in whole:
            if manifest in kept:
                continue
            tombstone = self.path / f".yoked-removing_{manifest.step:06d}.json"
            (self.path / manifest_name(manifest.step)).replace(tombstone)
            sync_path(self.path)
            self._finish_removal(manifest.step)

    def _finish_removal(self, step: int) -> None:
        tombstone = self.path / f".yoked-removing_{step:06d}.json"
        # A manifest beside it means that the step was saved anew; its files are the new ones.
        if not (self.path / manifest_name(step)).exists():
            # The model first: without it nanochat no longer takes the step for complete.
            parts = [path.name for path in self.path.glob(f"optim_{step:06d}_rank*.pt")]
            for name in (model_name(step), *parts, meta_name(step)):
                (self.path / name).unlink(missing_ok=True)
            sync_path(self.path)
        tombstone.unlink(missing_ok=True)


def _holder(lock: Path) -> str:
    """Who keeps a folder's lock, by what he wrote into it."""
    with contextlib.suppress(OSError), lock.open("rb") as file:
        if found := _HOLDER.fullmatch(file.read(300).decode("ascii", errors="replace")):
            return f"process {found[1]} on {found[2]}"
    return "another process"


def find_model_folder(path: Path) -> Path:
    """The folder of the model_*.pt files that a path means. Raises CheckpointError, and UsageError
    for a program of `yoked run`.

    path: such a folder, a run's, one with base_checkpoints/ (nanochat's base), or that one. Of
    several models, the one that was saved last: it is the one that is being worked on.
    """
    if any(path.glob(_MODELS)):
        return path
    for base in (path / "checkpoints" / MODEL_FOLDERS, path / "checkpoints", path / MODEL_FOLDERS):
        if any(base.glob(_MODELS)):
            return base
        if found := [folder for folder in base.glob("*/") if any(folder.glob(_MODELS))]:
            return max(found, key=_saved_at)
    if found := [folder for folder in path.glob("*/") if any(folder.glob(_MODELS))]:
        return max(found, key=_saved_at)
    if is_program(path):
        raise no_training(path)
    if (path / "run.json").is_file():
        copied = copied_from(path) is not None
        raise CheckpointError(
            f"run {path.resolve().name} has saved no checkpoint {'here' if copied else 'yet'}",
            fix=f"yoked fetch {path.resolve().name}    brings one from its hosts"
            if copied
            else "yoked stop    has a run that goes on save and end; --save-every saves meanwhile",
        )
    raise CheckpointError(
        f"there is no checkpoint in {path}",
        fix="name a run's folder, one with base_checkpoints/, or that of the model_*.pt files",
    )


def checkpoint_files(folder: Path, step: int | None = None) -> dict[str, Path]:
    """The files of a model folder's checkpoint: by their names, where they lie.

    step: None takes the newest. Raises CheckpointError where none is complete.
    """
    files = CheckpointFolder(folder)
    for manifest in files.complete():
        if step in (None, manifest.step):
            return {
                manifest_name(manifest.step): folder / manifest_name(manifest.step),
                **{entry.name: files.locate(manifest, entry) for entry in manifest.files},
            }
    for foreign in files.foreign():
        if step in (None, foreign):
            # Of nanochat's optimizer every rank writes a part.
            names = [model_name(foreign), meta_name(foreign)]
            names += [path.name for path in folder.glob(f"optim_{foreign:06d}_rank*.pt")]
            return {name: folder / name for name in names}
    raise CheckpointError(
        f"no checkpoint in {folder} is complete", fix="name the folder of a run that has saved one"
    )


def find_tokenizer(folder: Path) -> Path:
    """Where the tokenizer of a model folder is, if it is anywhere: beside it, or in its base."""
    beside = folder / "tokenizer"
    return beside if beside.is_dir() else folder.parent.parent / "tokenizer"


def _saved_at(folder: Path) -> int:
    return max(model.stat().st_mtime_ns for model in folder.glob(_MODELS))
