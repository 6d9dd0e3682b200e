"""What a rank is doing, for its host's daemon to read, also when the rank stands still.

A thread writes it into shared memory a few times a second: where the main thread is, since when,
which collectives are in flight, how many steps were taken. It starts before the program does and
needs no change to it. What yoked's own trainer knows better (phases, what it waits for, and whose)
it tells by the methods here.

At a word from the daemon the thread shuts the rank's connections to other ranks, whose collectives
then raise at once; abort() of torch's group frees nothing on Gloo. At others it writes the stacks
of all threads, or the last collectives, into a file beside the memory, has the trainer save, or
records for some steps what the rank does and when (yoked.ranks.spans).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple, TypeVar

from yoked.core.fs import write_bytes
from yoked.core.names import CALLS_SUFFIX, STACKS_SUFFIX, TRACE_SUFFIX
from yoked.core.proc import kernel_view
from yoked.core.shared_json import SharedJson
from yoked.ranks.flights import flights
from yoked.ranks.freeing import free_rank
from yoked.ranks.spans import SPANS

# The descriptor at which the daemon's words come, and the file that it reads.
WORDS_VARIABLE = "YOKED_RECORDER_WORDS"
FILE_VARIABLE = "YOKED_RECORDER_FILE"
# Of torch's flight recorder, in collectives: to read 2,000 of them takes 50 ms.
FLIGHT_VARIABLE, FLIGHT_COLLECTIVES = "TORCH_FR_BUFFER_SIZE", "64"
FREE, STACKS, CALLS, SAVE, TRACE = b"f", b"s", b"c", b"w", b"t"
# Behind the word TRACE: of how many steps, and for how many seconds at most.
TRACE_WISH = struct.Struct(">HH")

# The exit status of a rank that could not be freed otherwise.
STUCK_EXIT = 75

PERIOD_S = 0.25
# From the end of its connections until a call has raised, as a rule 1 to 2 ms.
_RAISES_S = 0.02
# The flight recorder is asked where the main thread stands.
_STANDS_S = 0.5
_MOST_FRAMES = 24
# Where a record of all of them has no room.
_FEW_FRAMES = 8
# Of all threads there is a whole file.
_MOST_STACK_FRAMES, _MOST_THREADS = 64, 64
_MOST_CHARACTERS = 160
# Enough to know the order of a step's calls, as a rule.
_MOST_CALLS = 32
# Of steps, of which there are more than this many between two looks only where they are tiny.
_MOST_ENDS = 33

_T = TypeVar("_T")
# What a program can be about. The trainer says it; of others the daemon judges by the frames.
Phase = Literal["starting", "training", "evaluating", "saving", "loading", "compiling"]


class _Words(NamedTuple):
    """The pipe through which the daemon says a word to this rank.

    A program may close all descriptors that it did not open itself, and have the number again for
    a file of its own, of which nothing may be read. pipe: what was there at first.
    """

    descriptor: int
    pipe: os.stat_result

    def next(self, size: int = 1) -> bytes | None:
        """The next word; empty: none will come any more; None: none has come for a while.

        size: of what stands behind a word, in bytes: both were written at once.
        """
        try:
            readable, _, _ = select.select([self.descriptor], [], [], PERIOD_S)
            if not os.path.samestat(os.fstat(self.descriptor), self.pipe):
                return b""
            return os.read(self.descriptor, size) if readable else None
        except (OSError, ValueError):
            return b""


class Recorder:
    """Of this process. Without a daemon it keeps what it is told, and nobody reads it."""

    def __init__(self) -> None:
        self.steps = 0
        self._stepped_s = time.monotonic()
        self._ends: deque[tuple[float, float]] = deque(maxlen=_MOST_ENDS)
        self._phase: Phase | None = None
        self._awaited: tuple[str, tuple[int, ...], float] | None = None
        self._frames: list[list[Any]] = []
        self._frames_s = self._stepped_s
        self._memory: SharedJson | None = None
        self._writing = threading.Lock()
        # How the program learns, as yoked.diagnosis.vitals.Learning has it; None: nothing is known.
        self.learning: Callable[[], Mapping[str, Any] | None] = lambda: None
        self._save_asked = False
        # Where to a trace is written; what is put around torch's functions for it.
        self._trace_file: Path | None = None
        self._instruments: Any = None

    def start(self) -> None:
        """Write from now on, if a daemon has given this process a file."""
        path, words = os.environ.get(FILE_VARIABLE), os.environ.pop(WORDS_VARIABLE, None)
        if path is None:
            return
        try:
            self._memory = SharedJson(Path(path))
        except OSError:
            # A full disk: the run goes on, and nobody can tell what this rank does.
            return
        self._trace_file = Path(path).with_suffix(TRACE_SUFFIX)
        # Here, and not in the thread: the program's next line may close all descriptors.
        pipe = None if words is None else _Words(int(words), os.fstat(int(words)))
        if pipe is not None:
            os.set_inheritable(pipe.descriptor, False)
        thread = threading.Thread(
            target=self._run,
            args=(pipe, Path(path)),
            name="yoked-recorder",
            daemon=True,
        )
        thread.start()

    # ---- what the trainer tells

    def starting(self) -> None:
        """The program gets ready, and says when it takes steps."""
        self._phase = "starting"

    def step_done(self, number: int | None = None) -> None:
        """The program took a step. number: as people count it; None: since the program's start."""
        self.steps += 1
        SPANS.step_done(self.steps if number is None else number)
        self._stepped_s = time.monotonic()
        self._ends.append((self._stepped_s, time.process_time()))
        if self._phase == "starting":
            self._phase = "training"

    @contextlib.contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """The program is about this meanwhile."""
        before = self._phase
        self._phase = name
        try:
            with SPANS.span(name):
                yield
        finally:
            self._phase = before

    @contextlib.contextmanager
    def awaiting(self, what: str, ranks: Sequence[int]) -> Iterator[None]:
        """The program waits for a message of these ranks meanwhile; empty: of all."""
        before = self._awaited
        self._awaited = (what, tuple(ranks), time.monotonic())
        try:
            with SPANS.span(f"wait: {what}", ranks):
                yield
        finally:
            self._awaited = before

    # ---- what is written

    def take_save_wish(self) -> bool:
        """Whether somebody asked for a checkpoint since this was called last."""
        asked, self._save_asked = self._save_asked, False
        return asked

    def write(self) -> None:
        """Write how it is now."""
        if self._memory is None:
            return
        with self._writing:
            record = self._record(threading.main_thread().ident)
            # Without any record this rank would be taken for one whose Python does not run.
            for less in _LESS:
                with contextlib.suppress(ValueError):
                    self._memory.write(less(record))
                    return

    def write_last(self) -> None:
        """Write how it is now that the program has ended, for whoever looks then."""
        self.write()
        self._end_trace(even_if_short=True)

    def _begin_trace(self, wish: bytes | None) -> None:
        """Record what this rank does from now on. A later wish takes an earlier one's place."""
        if wish is None or len(wish) != TRACE_WISH.size:
            return
        steps, limit_s = TRACE_WISH.unpack(wish)
        if "torch" in sys.modules and self._instruments is None:
            # Whatever another torch lacks of it: then fewer spans are known.
            with contextlib.suppress(Exception):
                from yoked.ranks.instruments import Instruments

                self._instruments = Instruments(own_steps=self._phase is not None)
                self._instruments.install()
        SPANS.ask(steps, limit_s)

    def _end_trace(self, *, even_if_short: bool = False) -> None:
        """Write what was recorded, if it is enough."""
        with self._writing:
            if self._trace_file is None or not (SPANS.is_over or (SPANS.asked and even_if_short)):
                return
            if self._instruments is not None:
                self._instruments.remove()
                self._instruments = None
            SPANS.write(self._trace_file, int(os.environ.get("RANK", "0")))

    def _run(self, words: _Words | None, path: Path) -> None:
        while True:
            self.write()
            self._end_trace()
            if words is None:
                time.sleep(PERIOD_S)
                continue
            word = words.next()
            if word == FREE:
                self._free(threading.main_thread().ident)
            elif word == STACKS:
                _leave(path.with_suffix(STACKS_SUFFIX), _stacks())
            elif word == CALLS:
                _leave(path.with_suffix(CALLS_SUFFIX), last_calls())
            elif word == SAVE:
                self._save_asked = True
            elif word == TRACE:
                self._begin_trace(words.next(TRACE_WISH.size))
            elif word is not None and not word:
                # The daemon is gone: there is nobody left to say anything.
                words = None

    def _free(self, main: int | None) -> None:
        """Have the call raise in which the main thread is blocked; end the process if it does not.

        A message between two ranks that has come in part is waited for by Gloo although its
        connection has ended (torch 2.13, 2.15), and no signal's handler runs meanwhile.
        """
        stood = _frames_of(main)
        free_rank()
        time.sleep(_RAISES_S)
        waits = self._awaited is not None or any(each["flying"] for each in _known(_groups) or ())
        own = kernel_view(os.getpid())
        # That of the main thread; one that is about to raise, and waits for a core, has an R.
        if waits and _frames_of(main) == stood and own is not None and own.state == "S":
            os._exit(STUCK_EXIT)

    def _record(self, main: int | None) -> dict[str, Any]:
        now_s = time.monotonic()
        frames = _frames_of(main)
        if frames != self._frames:
            self._frames, self._frames_s = frames, now_s
        awaited = self._awaited
        return {
            "pid": os.getpid(),
            "at_s": now_s,
            "steps": self.steps,
            "stepped_s": self._stepped_s,
            # A copy at once: the main thread may add to it meanwhile.
            "ends": [(round(at_s, 6), round(cpu_s, 6)) for at_s, cpu_s in self._ends.copy()],
            "phase": self._phase,
            "awaits": None
            if awaited is None
            else {"what": awaited[0], "ranks": awaited[1], "since_s": awaited[2]},
            "frames": frames,
            "frames_s": self._frames_s,
            "groups": _known(_groups) if now_s - self._frames_s >= _STANDS_S else None,
            "traced": sys.gettrace() is not None,
            "learning": _known(self.learning),
        }


RECORDER = Recorder()


def _known(tell: Callable[[], _T]) -> _T | None:
    """What is told; None where another torch has it in another form: nothing is known then."""
    try:
        return tell()
    except Exception:  # noqa: BLE001 - whatever it is, the rest of the record is as good as before
        return None


def _without_calls(record: dict[str, Any]) -> dict[str, Any]:
    groups = record["groups"] and [{**group, "calls": []} for group in record["groups"]]
    return {**record, "groups": groups}


def _with_few_frames(record: dict[str, Any]) -> dict[str, Any]:
    """Of the innermost frames alone, and of the groups in which something is in flight."""
    groups = record["groups"] and [group for group in record["groups"] if group["flying"]][:2]
    frames = record["frames"][:_FEW_FRAMES]
    return {**_without_calls({**record, "groups": groups}), "frames": frames, "learning": None}


# What there is room for, the most first. Deep stacks in folders of long names take much.
_LESS: tuple[Callable[[dict[str, Any]], dict[str, Any]], ...] = (
    lambda record: record,
    _without_calls,
    _with_few_frames,
)


def _leave(path: Path, content: object) -> None:
    # A full disk: then what the memory has is all that is known.
    with contextlib.suppress(OSError):
        write_bytes(path, json.dumps(content).encode(), durable=False)


def _stacks() -> dict[str, Any]:
    """Where all threads of the program are now, the main one first; not this one."""
    main, names = threading.main_thread(), {one.ident: one.name for one in threading.enumerate()}
    frames = dict(sys._current_frames())  # noqa: SLF001 - its one door
    frames.pop(threading.get_ident(), None)
    threads = [
        {
            # Threads of torch's are none of Python's until they run some.
            "name": names.get(ident, "of C++")[:80],
            "main": ident == main.ident,
            "frames": _frames(frame, _MOST_STACK_FRAMES),
        }
        for ident, frame in frames.items()
    ]
    threads.sort(key=lambda one: not one["main"])
    return {"at_s": time.monotonic(), "threads": threads[:_MOST_THREADS]}


def _frames_of(thread: int | None) -> list[list[Any]]:
    """Where a thread of this process is now."""
    return _frames(sys._current_frames().get(thread or 0))  # noqa: SLF001 - its one door


def _frames(frame: FrameType | None, most: int = _MOST_FRAMES) -> list[list[Any]]:
    """File, line and function of each frame, the innermost first."""
    found: list[list[Any]] = []
    while frame is not None and len(found) < most:
        # Python has no line for some of its instructions.
        code, line = frame.f_code, frame.f_lineno or 0
        found.append([code.co_filename[-_MOST_CHARACTERS:], line, code.co_name[:80]])
        frame = frame.f_back
    return found


def last_calls() -> dict[str, Any] | None:
    """The last collectives of the group that was used last: diagnosis.calls.Calls as an object."""
    for group in _known(_groups) or ():
        if group["calls"]:
            return {
                "group": group["name"],
                "number": group["started"],
                "calls": group["calls"],
            }
    return None


def _groups() -> list[dict[str, Any]] | None:
    """What torch's flight recorder has of each group; None: it has none, or no such recorder.

    Counted by entries: its last completed collective, its states and its times are wrong at times.
    """
    entries = flights()
    if entries is None:
        return None
    groups: dict[str, dict[str, Any]] = {}
    newest = None
    for entry in entries:
        name = str(entry["process_group"][0])
        group = groups.setdefault(name, {"name": name, "started": 0, "flying": [], "calls": []})
        if not entry["is_p2p"]:
            newest = name
            group["started"] = max(group["started"], entry["collective_seq_id"])
            group["calls"].append(_call(entry))
        if not entry["retired"]:
            group["flying"].append(
                {
                    "number": entry["p2p_seq_id" if entry["is_p2p"] else "collective_seq_id"],
                    "op": str(entry["profiling_name"])[:80],
                }
            )
    for group in groups.values():
        group["flying"] = group["flying"][:8]
        # Of one group, for the room that there is.
        group["calls"] = group["calls"][-_MOST_CALLS:] if group["name"] == newest else []
    return list(groups.values())


def _call(entry: Mapping[str, Any]) -> str:
    """A collective as people read it: all_reduce of [1000] Float."""
    op = str(entry["profiling_name"]).rpartition(":")[2]
    tensors = zip(entry["input_sizes"], entry["input_dtypes"], strict=False)
    said = ", ".join(f"{sizes} {dtype}" for sizes, dtype in tensors)
    return f"{op} of {said}"[:_MOST_CHARACTERS]
