"""Fixtures of the tests of this folder."""

from __future__ import annotations

import pytest
from tests.unit.probe.made_up import two_hosts

from yoked.records.measurement import Measurement


@pytest.fixture
def measurement() -> Measurement:
    return two_hosts()
