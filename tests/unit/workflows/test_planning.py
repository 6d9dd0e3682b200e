from __future__ import annotations

import pytest

from yoked.train.config import TrainConfig
from yoked.workflows.planning import PlannedDevice, resolve_run


@pytest.mark.parametrize(("probed_with", "planned"), [(True, "SSSL"), (False, "L")])
def test_a_run_on_gpus_is_planned_with_the_windows_that_its_probe_had(
    probed_with: bool, planned: str
) -> None:
    gpus = [PlannedDevice("cuda", 12e9), PlannedDevice("cuda", 24e9, probed_with)]

    assert resolve_run(TrainConfig(), gpus).shape.window_pattern == planned
    assert resolve_run(TrainConfig(window_pattern="SL"), gpus).shape.window_pattern == "SL"
