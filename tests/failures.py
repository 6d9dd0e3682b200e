"""Expect a failure by its code and parameters, and leave its words alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from yoked.errors import YokedError


@contextmanager
def raises_fault(code: str, **params: object) -> Iterator[pytest.ExceptionInfo[YokedError]]:
    """A fault of this code is raised, with at least these parameters; see `yoked.core.faults`."""
    with pytest.raises(YokedError) as caught:
        yield caught
    problem = caught.value
    assert problem.code == code, problem
    assert {name: problem.params.get(name) for name in params} == params
