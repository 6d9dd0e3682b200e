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

# Parts of paths, and functions, of whatever is on the stack.
_DEBUGGERS = ("/pdb.py", "/bdb.py", "/debugpy/", "/pydevd")
_COMPILERS = (
    "/torch/_inductor/",
    "/torch/_dynamo/convert_frame",
    "/torch/_dynamo/symbolic_convert",
    "/torch/_functorch/_aot_autograd/",
    "/torch/_functorch/aot_autograd",
    "/torch/utils/cpp_extension",
)
# Lines of the compilers that are below each call of what they have compiled (torch 2.4 to 2.13).
_CALLS_COMPILED = (
    "/_inductor/output_code.py",
    "/_inductor/utils.py",
    "/_inductor/cudagraph_",
    "/_inductor/runtime/",
    "/_aot_autograd/runtime_wrappers.py",
    "/_aot_autograd/utils.py",
    "/_aot_autograd/subclass_",
)
_CALLS_COMPILED_IN = ("__call__", "forward", "run")
_SAVERS = ("/torch/serialization.py", "/safetensors/", "/checkpoint/state_dict_saver")
_SAVES = ("save", "torch_save", "save_checkpoint", "save_pretrained")
_LOADERS = ("/torch/utils/data/", "/pyarrow/", "/datasets/")
_IMPORTS = ("<frozen importlib._bootstrap",)
_COLLECTIVES = "/torch/distributed/"
# What a call of torch.distributed stands in and calls itself. torchrun's @record, FSDP's forward
# and a schedule of stages have the program's own lines, or a module's, above theirs.
_BENEATH = ("/torch/", "<frozen", "/yoked/launch/bootstrap/", "/yoked/ranks/")
_COMPUTES = ("/torch/nn/", "/torch/optim/", "/torch/autograd/")
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
    if by_frames is None and rank.state == "S" and may_wait_in_cpp(recorded):
        return "waiting for peers"
    return by_frames or "training"


def may_wait_in_cpp(recorded: Recorded) -> bool:
    """Whether a rank may wait for others above no line of torch.distributed.

    DDP waits in C++ within the backward pass, and where it sends its buffers; so does whoever waits
    for the work or the future of a collective that he began before. A rank that computes meanwhile
    stands there, too: its CPU tells. Nothing else is waited for where no line of Python's is above
    those of the engine. A message to one rank may be on its way for as long as that likes.
    """
    in_backward = ["/torch/autograd/" in frame.file for frame in recorded.frames]
    flying = [one.op for group in recorded.groups or () for one in group.flying]
    waited_for = any(any(in_backward) or _is_of_all(op) for op in flying)
    return in_backward[:1] == [True] or waited_for


def _is_of_all(op: str) -> bool:
    """Whether it is a collective: of messages between two, gloo:send and gloo:recv, it is not."""
    return not op.rpartition(":")[2].startswith(("send", "recv"))


def own_frame(frames: tuple[Frame, ...]) -> Frame | None:
    """The innermost line of the program itself, past those of Python and its packages."""
    for frame in frames:
        foreign = ("site-packages/", "dist-packages/", "<frozen", "/lib/python3")
        if not any(part in frame.file for part in foreign):
            return frame
    return frames[0] if frames else None


def _of_frames(frames: tuple[Frame, ...]) -> Activity | None:
    if _any_of(frames, _DEBUGGERS):
        return "debugged"
    if any(map(_compiles, frames)):
        return "compiling"
    if _any_of(frames, _SAVERS) or any(frame.function in _SAVES for frame in frames):
        return "saving"
    if _in_collective(frames):
        return "waiting for peers"
    if _any_of(frames, _LOADERS):
        return "loading data"
    return "importing" if _any_of(frames, _IMPORTS) else None


def _any_of(frames: tuple[Frame, ...], parts: tuple[str, ...]) -> bool:
    return any(_has(frame, parts) for frame in frames)


def _has(frame: Frame, parts: tuple[str, ...]) -> bool:
    return any(part in frame.file for part in parts)


def _compiles(frame: Frame) -> bool:
    """Whether it is a line of a compiler at work, and not one that calls what was compiled."""
    calls = _has(frame, _CALLS_COMPILED) or frame.function in _CALLS_COMPILED_IN
    return _has(frame, _COMPILERS) and not calls


def _in_collective(frames: tuple[Frame, ...]) -> bool:
    """Whether the innermost lines, up to those of the program or a module, are of a collective."""
    for frame in frames:
        if _COLLECTIVES in frame.file:
            return True
        of_python = "/lib/python3" in frame.file and "-packages/" not in frame.file
        if _has(frame, _COMPUTES) or not (of_python or _has(frame, _BENEATH)):
            return False
    return False
