"""Ranks that compute in unlike dtypes learn what one process learns, and hold the same weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.distributed.conftest import PINNED, result_of

pytestmark = pytest.mark.distributed


def test_each_host_computes_in_its_own_dtype_and_the_run_goes_on_with_the_same_bits(
    far: Callable[..., Any], lab: Any
) -> None:
    pinned = {"balance": "off", "sync": "exact", **PINNED}
    alone = lab.train("alone", *lab.flags(dtype="bfloat16", **pinned)).end()
    flags = lab.flags(dtype="auto", **pinned)

    ended = far("2e7:2e7", "--run=unlike", "--verbose", *flags, FASTEST="float32:bfloat16").end()
    before = lab.curve("unlike").losses
    again = far(
        *("2e7:2e7", "--run=unlike", "--resume-from-step=8"), FASTEST="bfloat16:float32"
    ).end()

    found, told = result_of(ended), json.loads((lab.runs / "unlike" / "run.json").read_text())
    assert [each["dtype"] for each in found["hosts"]] == ["float32", "bfloat16"]
    assert len({each["tables_dtype"] for each in told["hosts"]}) == 1
    assert "float32 and bfloat16" in ended.stderr
    assert "host1 computes in bfloat16" in ended.stderr
    assert alone.status == 0
    assert before == pytest.approx(lab.curve("alone").losses, abs=2e-2)
    # What was chosen is kept, whatever is measured now.
    assert result_of(again)["steps"] == 12
    assert lab.curve("unlike").losses == before
