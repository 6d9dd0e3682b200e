"""Which variables of a shell go along."""

from __future__ import annotations

import pytest

from yoked.fleet.variables import carried, secrets


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_HUB_OFFLINE", "1"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("WANDB_MODE", "offline"),
        ("TORCH_LOGS", "recompiles"),
        ("TORCHINDUCTOR_MAX_AUTOTUNE", "1"),
        ("NCCL_DEBUG", "INFO"),
        ("PYTHONHASHSEED", "0"),
    ],
)
def test_what_tells_a_program_goes_along(name: str, value: str) -> None:
    assert carried({name: value}) == {name: value}
    assert secrets({name: value}) == []


@pytest.mark.parametrize("name", ["HF_TOKEN", "WANDB_API_KEY", "HUGGINGFACE_HUB_TOKEN"])
def test_a_secret_is_named_and_stays(name: str) -> None:
    assert carried({name: "x"}) == {}
    assert secrets({name: "x"}) == [name]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_HOME", "models"),
        ("WANDB_DIR", "/data"),
        ("TRANSFORMERS_CONFIG", "~/config"),
        ("CUDA_VISIBLE_DEVICES", "0"),
        ("OMP_NUM_THREADS", "4"),
        ("NCCL_SOCKET_IFNAME", "eth0"),
        ("LD_LIBRARY_PATH", "/opt"),
        ("PATH", "/bin"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("TORCHELASTIC_RUN_ID", "none"),
    ],
)
def test_what_belongs_to_a_machine_or_to_no_program_is_left_alone(name: str, value: str) -> None:
    assert carried({name: value}) == {}
    assert secrets({name: value}) == []
