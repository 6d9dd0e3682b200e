from __future__ import annotations

import pytest

from yoked.costmodel.model_shape import ModelShape


@pytest.fixture
def anchor() -> ModelShape:
    """The reference model: depth 4, width 256, 512 tokens a row."""
    return ModelShape(512, 32_768, 4, 4, 4, 256, "L")
