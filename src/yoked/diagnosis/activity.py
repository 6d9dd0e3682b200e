"""What a rank is about, by where its main thread stands. Standard library alone."""

from __future__ import annotations

from typing import Literal

from yoked.diagnosis.vitals import Frame, RankVitals, Recorded

Activity = Literal[
    "importing",
    "compiling",
    "waiting for peers",
    "loading data",
    "saving",
    "evaluating",
    "debugged",
    "training",
]

# Parts of paths, and functions, of whatever is on the stack; the first row that fits counts.
_BY_FRAME: tuple[tuple[Activity, tuple[str, ...], tuple[str, ...]], ...] = (
    ("debugged", ("/pdb.py", "/bdb.py", "/debugpy/", "/pydevd"), ()),
    ("compiling", ("/torch/_inductor/", "/torch/_dynamo/convert_frame", "/torch/_functorch/",
                   "/torch/utils/cpp_extension"), ()),
    ("saving", ("/torch/serialization.py", "/safetensors/", "/checkpoint/state_dict_saver"),
     ("save", "torch_save", "save_checkpoint", "save_pretrained")),
    ("waiting for peers", ("/torch/distributed/",), ()),
    ("loading data", ("/torch/utils/data/", "/pyarrow/", "/datasets/"), ()),
    ("importing", ("<frozen importlib._bootstrap",), ()),
)  # fmt: skip
# As the trainer calls its phases.
_BY_PHASE: dict[str, Activity] = {
    "starting": "importing",
    "compiling": "compiling",
    "loading": "loading data",
    "saving": "saving",
    "evaluating": "evaluating",
    "training": "training",
}
# What takes as long as it takes, and what nothing is said of.
PATIENT: frozenset[Activity] = frozenset(
    ("importing", "compiling", "saving", "evaluating", "debugged")
)


def activity_of(rank: RankVitals) -> Activity:
    """What a rank is about; "training" where nothing says otherwise."""
    recorded = rank.recorded
    if rank.state == "t":
        return "debugged"
    if recorded is None:
        return "importing"
    by_frames = _of_frames(recorded.frames)
    if recorded.traced or by_frames == "debugged":
        return "debugged"
    if recorded.awaits is not None:
        return "waiting for peers"
    if recorded.phase in _BY_PHASE and recorded.phase != "training":
        return _BY_PHASE[recorded.phase]
    if by_frames is None and rank.state == "S" and waits_in_backward(recorded):
        return "waiting for peers"
    return by_frames or "training"


def waits_in_backward(recorded: Recorded) -> bool:
    """Whether a rank may wait for others within the backward pass, as DDP has it.

    DDP waits in C++, below no line of torch.distributed. So does a rank that computes: its CPU
    tells. Nothing else is waited for where no line of Python's is below those of the engine.
    """
    in_backward = ["/torch/autograd/" in frame.file for frame in recorded.frames]
    flies = any(group.flying for group in recorded.groups or ())
    return in_backward[:1] == [True] or (flies and any(in_backward))


def own_frame(frames: tuple[Frame, ...]) -> Frame | None:
    """The innermost line of the program itself, past those of Python and its packages."""
    for frame in frames:
        foreign = ("site-packages/", "dist-packages/", "<frozen", "/lib/python3")
        if not any(part in frame.file for part in foreign):
            return frame
    return frames[0] if frames else None


def _of_frames(frames: tuple[Frame, ...]) -> Activity | None:
    for activity, parts, functions in _BY_FRAME:
        for frame in frames:
            if any(part in frame.file for part in parts) or frame.function in functions:
                return activity
    return None
