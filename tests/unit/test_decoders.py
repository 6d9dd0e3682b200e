"""A hundred hostile examples for each decoder; `make test-all` gives each two minutes of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fuzz.decoders import DECODERS, fuzz


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore:Generating overly large repr")
@pytest.mark.parametrize("name", DECODERS)
def test_hostile_bytes_are_decoded_or_refused(name: str, tmp_path: Path) -> None:
    fuzz(name, tmp_path / "here" / "folder", examples=100)
