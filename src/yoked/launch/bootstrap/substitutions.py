"""What the bootstrap changes under a program: put in its place, and said once, with the reason."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_told: set[str] = set()


def log_substitution(what: str, because: str, *, on_each_host: bool = False) -> None:
    """Write `yoked: WHAT, because WHY` to stderr: on rank 0, the first time only.

    on_each_host: by the first rank of every host, for what is one host's own.
    """
    speaker = os.environ.get("LOCAL_RANK" if on_each_host else "RANK", "0")
    if what in _told or speaker != "0":
        return
    _told.add(what)
    sys.stderr.write(f"yoked: {what}, because {because}\n")
    sys.stderr.flush()


def replace_everywhere(native: Callable[..., Any], make: Callable[[Any], Any]) -> None:
    """Put `make(native)` in its place, in all of torch's modules that hold it by its name."""
    name = native.__name__
    ours = wraps(native)(make(native))
    for module in _torch_modules():
        if vars(module).get(name) is native:
            setattr(module, name, ours)


class _Watch(MetaPathFinder):
    """Is asked first for each module, and so learns that one is about to be loaded."""

    def __init__(self, name: str, find: Callable[[], ModuleSpec | None]) -> None:
        self._name, self._find = name, find

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - a finder's signature
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """What `find` says, for that module, once."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        return self._find()


def before_import(name: str, find: Callable[[], ModuleSpec | None]) -> None:
    """Call `find` as the program is about to load a module for the first time.

    find: returns how it is loaded; None: as Python would.
    """
    sys.meta_path.insert(0, _Watch(name, find))


def _torch_modules() -> Iterable[Any]:
    holders = ("torch.distributed", "torch.nn.parallel")
    return [module for name, module in list(sys.modules.items()) if name.startswith(holders)]
