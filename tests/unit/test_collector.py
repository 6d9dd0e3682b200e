from __future__ import annotations

import gc

import pytest

from yoked.collector import without_collector


@pytest.mark.parametrize("was_on", [True, False])
def test_the_collector_is_off_while_loading_and_then_as_it_was(was_on: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if was_on else gc.disable)()
        with without_collector():
            assert not gc.isenabled()

        assert gc.isenabled() is was_on
    finally:
        (gc.enable if before else gc.disable)()
