"""What a program expected of a host and did not find: a GPU, a module, a file; and the fix.

Pure; standard library alone. The program's words stay as they are, and this adds what they lack:
the host, the interpreter, and what to do, such as the program's own flag for the CPU.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

# torch 2.13, of lines that a build for the CPU, or a machine without a GPU, cannot carry out.
_GPU_WORDS = (
    "Torch not compiled with CUDA enabled",
    "Found no NVIDIA driver on your system",
    "No CUDA GPUs are available",
    "Cannot get CUDA generator without ATen_cuda library",
    "torch.cuda.Stream requires CUDA support",
    "Tried to instantiate dummy base class",
    "module 'torch._C' has no attribute '_cuda_",
    "Cannot access accelerator device when none is available",
    "Attempting to deserialize object on a CUDA device but",
    "Attempting to deserialize object on CUDA device",
    "NVTX functions not installed",
    "no CUDA-capable device is detected",
    "Unexpected error from cudaGetDeviceCount",
    "device_ids and output_device arguments only work with single-device",
    # Lightning.
    "No supported gpu backend found",
    "`CUDAAccelerator` can not run on your system",
)
_NO_CUDA_BUILD = ("Torch not compiled with CUDA enabled", "module 'torch._C' has no attribute")
# The line that raised, as a traceback ends with it.
_GPU_ASSERTED = re.compile(
    r"^ +assert [^\n]*torch\.cuda\.(is_available|device_count)\([^\n]*\n( +[~^]+\n)?AssertionError",
    re.MULTILINE,
)
_NO_MODULE = re.compile(r"No module named '([\w.]{1,200})'")
# As Hugging Face's libraries say it.
_PIP_LINE = re.compile(
    r"pip install (?:-U |--upgrade )?['\"]?"
    r"([A-Za-z0-9][\w.-]*(?:\[[\w.,-]+\])?(?:[<>=~!]=?[\w.*]+)?)"
)
_NO_FILE = re.compile(r"FileNotFoundError: \[Errno 2\] [^\n:]*: (['\"])([^\n]{1,400}?)\1")
_NO_FOLDER = re.compile(r"Parent directory ([^\n]{1,400}?) does not exist")
# Errors of an import; others may name a module that somebody only tried.
_OF_IMPORTS = ("ModuleNotFoundError", "ImportError", "RuntimeError: Failed to import")

# Options by which programs take the CPU, as argparse and click have them.
_DEVICE_OPTIONS = ("--device-type", "--device_type", "--device", "--accelerator")
_CPU_SWITCHES = (
    *("--cpu", "--use-cpu", "--use_cpu", "--cpu-only", "--cpu_only", "--force-cpu", "--force_cpu"),
    *("--no-cuda", "--no_cuda", "--no-gpu", "--no_gpu"),
)
_OPTION_CALLS = ("add_argument", "option")
_TAKES_CUDA = re.compile(r"^ *device = f?['\"]cuda", re.MULTILINE)
_ITS_NAME = "check its name: the program runs in {}"
# Packages whose name is not that of their module.
_PACKAGES = {
    "PIL": "pillow",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "git": "GitPython",
    "hydra": "hydra-core",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


@dataclass(frozen=True)
class Place:
    """Where a program ran. folder: its working directory, and names: what lies in that.

    sent: the folder is a copy that was sent. python_made: `yoked install` made the interpreter's
    environment. source: the program's text, "" where it could not be read. has_gpu: the machine has
    a driver of NVIDIA's.
    """

    host: str
    python: str
    folder: str
    names: Sequence[str] = ()
    sent: bool = True
    python_made: bool = False
    source: str = ""
    args: Sequence[str] = ()
    has_gpu: bool = False

    @property
    def there(self) -> str:
        """The host, for people."""
        return "this machine" if self.is_here else self.host

    @property
    def is_here(self) -> bool:
        """Whether it is the machine at which the person sits, as yoked.toml calls it."""
        return self.host == "."


@dataclass(frozen=True)
class Absent:
    """What was not there. what: half a sentence for behind the program's own words."""

    cause: Literal["gpu-missing", "module-missing", "file-missing"]
    what: str
    fix: tuple[str, ...]


def absent_of(said: str, trace: str, at: str | None, place: Place) -> Absent | None:
    """What the error of a program says that it did not find; None: it is about something else.

    said: the error's class and words. trace: its traceback. at: the program's line.
    """
    if any(words in said for words in _GPU_WORDS) or _GPU_ASSERTED.search(trace):
        return _no_gpu(said, at, place)
    named = _NO_MODULE.search(said)
    if named is None and said.startswith(_OF_IMPORTS):
        # transformers hides the import that failed behind one of its own.
        named = _NO_MODULE.search(trace)
    if named is not None:
        return _no_module(named[1], place)
    if said.startswith(_OF_IMPORTS) and (asked := _PIP_LINE.search(said)) is not None:
        what = f"{place.python} on {place.there} does not have it"
        return Absent("module-missing", what, (_install(asked[1].rstrip("."), place),))
    file = _NO_FILE.search(said)
    folder = _NO_FOLDER.search(said)
    if file is None and folder is None:
        return None
    path = file[2] if file else folder[1] if folder else ""
    if "/" not in path and "/subprocess.py" in trace:
        what = f"there is no program {path} in the PATH of {place.there}"
        return Absent("file-missing", what, (f"install {path} there",))
    return _no_file(path, place)


def _no_gpu(said: str, at: str | None, place: Place) -> Absent:
    what = f"the program asks for a GPU, and {place.python} on {place.there} can use none"
    fix = [cpu_flag(place.source, place.args) or _cpu_line(at)]
    if place.has_gpu and any(words in said for words in _NO_CUDA_BUILD):
        what += ": its torch is built for the CPU, though the host has an NVIDIA driver"
        again = f"yoked install --cuda --anew --host {shlex.quote(place.host)}"
        fix.insert(
            0, again if place.python_made else f"install a CUDA build of torch into {place.python}"
        )
    return Absent("gpu-missing", what, tuple(fix))


def _cpu_line(at: str | None) -> str:
    where = f"at {at}" if at else "where it takes its device"
    return f'{where}: "cuda" if torch.cuda.is_available() else "cpu", and device_ids only with CUDA'


def cpu_flag(source: str, args: Sequence[str]) -> str | None:
    """How a program is told to compute on the CPU; None: its text does not show it.

    args: those that it had, in which the flag may be without an effect.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    given = {word.partition("=")[0] for word in args}
    options = dict(_options(tree))
    for name in _DEVICE_OPTIONS:
        if options.get(name) and name not in given:
            return f"{name}=cpu behind the program's name: its own flag for the CPU"
    for name in _CPU_SWITCHES:
        if name in options and name not in given:
            return f"{name} behind the program's name: its own flag for the CPU"
    return _framework_flag(source, _imported(tree), given)


def _framework_flag(source: str, imported: set[str], given: set[str]) -> str | None:
    """The flag or argument of the framework that a program imports; None: it is not known."""
    words = set(re.findall(r"\w+", source))
    if "transformers" in imported and "TrainingArguments" in words:
        if "HfArgumentParser" in words and "--use_cpu" not in given:
            return "--use_cpu behind the program's name: the Trainer's own flag for the CPU"
        return "TrainingArguments(use_cpu=True, …) has the Trainer compute on the CPU"
    if imported & {"lightning", "pytorch_lightning"}:
        return 'Trainer(accelerator="cpu", …), Fabric too: Lightning then computes on the CPU'
    if "accelerate" in imported:
        return "Accelerator(cpu=True, …) has accelerate compute on the CPU"
    # nanoGPT's configurator sets any variable at the top of a program; its trainer, where it has a
    # rank, then takes a GPU whatever the flag said.
    after = source.partition("configurator.py")[2]
    if after and "--device" not in given and not _TAKES_CUDA.search(after):
        return "--device=cpu behind the program's name: its own flag for the CPU"
    return None


def _options(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """The options that a program declares, and whether each takes a word such as cpu."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr not in _OPTION_CALLS:
            continue
        keywords = {each.arg: each.value for each in node.keywords}
        kind = keywords.get("type")
        is_number = isinstance(kind, ast.Name) and kind.id in ("int", "float")
        takes_word = not is_number and "action" not in keywords and "is_flag" not in keywords
        for word in node.args:
            if isinstance(word, ast.Constant) and isinstance(word.value, str):
                yield word.value, takes_word


def _imported(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def _no_module(name: str, place: Place) -> Absent:
    what = f"{place.python} on {place.there} has no module {name}"
    top = name.partition(".")[0]
    if top in place.names or f"{top}.py" in place.names:
        # A part of the program's own package.
        path = name.replace(".", "/")
        return Absent("module-missing", f"{what}, nor has {place.folder}", _looks(path, place))
    package = _PACKAGES.get(top, top.replace("_", "-"))
    return Absent("module-missing", what, (_install(package, place),))


def _install(package: str, place: Place) -> str:
    """The line that brings a package into the interpreter."""
    if place.python_made:
        file = "requirements.txt"
        line = "" if file in place.names else f"    with a line {package} in that file"
        return f"yoked install -r {file}{line}"
    on = "" if place.is_here or not place.sent else f"    on {place.host}"
    return f"{shlex.quote(place.python)} -m pip install {shlex.quote(package)}{on}"


def _no_file(path: str, place: Place) -> Absent:
    folder = os.path.normpath(place.folder)
    whole = os.path.normpath(os.path.join(folder, path))  # noqa: PTH118 - names of files alone
    if place.sent and whole.startswith(f"{folder}/"):
        own = whole[len(folder) + 1 :]
        what = f"{own} is not in the copy of the program's folder on {place.there}"
        return Absent("file-missing", what, _looks(own, place))
    if place.is_here or not place.sent:
        what = f"{whole} is not on {place.there}"
        return Absent("file-missing", what, (_ITS_NAME.format(folder),))
    what = f"{whole} is not on {place.there}, and only the program's folder is sent"
    word = shlex.quote(whole)
    copy = f"scp -r {word} {shlex.quote(f'{place.host}:{whole}')}    if it is here"
    push = "or yoked push FOLDER    has a folder of data on all hosts, with its path in a variable"
    return Absent("file-missing", what, (copy, push))


def _looks(path: str, place: Place) -> tuple[str, ...]:
    if not place.sent:
        return (_ITS_NAME.format(place.folder),)
    word = shlex.quote(path)
    return (
        f"yoked run --include {word} …    where git ignores it: git check-ignore -v {word}",
        f"ls -d {word}    says whether it is here; an empty folder is not sent",
    )
