"""The acts in yoked's trainer, which has no place for them: done as it fetches a step's rows.

A .pth file of the host's Python imports this in every rank. It waits for the module that reads
rows, and wraps the call, so that a fault stands where the reading of data would.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from typing import Any

import acts

_ROWS, _SAVING = "yoked.train.data.rows", "yoked.train.checkpoint"


class _Wrapping:
    """Finds the two modules as everybody does, and changes them once they are loaded."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        del path, target
        if name not in _CHANGES:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            _CHANGES[name](module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _change_rows(module: Any) -> None:
    batch = module.SampleStream.batch

    @functools.wraps(batch)
    def with_act(*args: Any) -> Any:
        acts.do(acts.due())
        return batch(*args)

    module.SampleStream.batch = with_act


def _change_saving(module: Any) -> None:
    save = module.CheckpointStore.save

    @functools.wraps(save)
    def with_stamp(*args: Any, **words: Any) -> None:
        try:
            save(*args, **words)
        except module.CheckpointError:
            acts.stamp()
            raise

    module.CheckpointStore.save = with_stamp


_CHANGES = {_ROWS: _change_rows, _SAVING: _change_saving}
sys.meta_path.insert(0, _Wrapping())
