from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from syrupy.assertion import SnapshotAssertion

from yoked.costmodel.model_shape import ModelShape, count_parameters
from yoked.errors import DeviceError
from yoked.train import kernels
from yoked.train.config import TrainConfig
from yoked.train.decisions import compute, products, timing
from yoked.train.decisions.compute import (
    choose_attention,
    choose_compile,
    configure_model,
    measured_compute,
    why_not_compiled,
)
from yoked.train.decisions.decision import Decision
from yoked.train.decisions.products import (
    KINDS,
    ProductChoice,
    ProductTimes,
    _shapes,
    _times_slower,
    choose_dtype,
    choose_products,
    libraries_for,
    measure_dtypes,
)
from yoked.train.decisions.timing import best_time_s, thread_time_clock, time_interleaved
from yoked.train.device import pick_device
from yoked.train.model.gpt import GPT
from yoked.train.model.linear import MatmulBackends, onednn_available

CPU, CUDA, MPS = (torch.device(kind) for kind in ("cpu", "cuda", "mps"))
TINY = ModelShape(
    sequence_len=16, vocab_size=64, n_layer=2, n_head=2, n_kv_head=2, n_embd=32, window_pattern="L"
)
needs_onednn = pytest.mark.skipif(not onednn_available(), reason="this PyTorch has no oneDNN")


@pytest.fixture(autouse=True)
def passes_on_again():
    yield
    kernels.switch_on()


def make_times(**seconds: tuple[float, ...]) -> ProductTimes:
    """Times by library: (layers forward, grad_input, grad_weight, then the head's three)."""
    keys = [(place, kind) for place in ("layers", "head") for kind in KINDS]
    return ProductTimes(
        {
            key: {library: times[i] for library, times in seconds.items()}  # type: ignore[misc]
            for i, key in enumerate(keys)
        }
    )


# --- dtype


def test_bfloat16_is_chosen_where_it_is_faster_with_the_ratio():
    choice = choose_dtype([{"float32": 2.1e-6, "bfloat16": 1e-6}], "auto")

    assert str(choice) == "dtype: bfloat16 (2.1x float32 here)"
    assert choice.measured == {"float32_s_per_token": 2.1e-6, "bfloat16_s_per_token": 1e-6}


def test_float32_is_chosen_where_bfloat16_is_slower_with_the_ratio():
    choice = choose_dtype([{"float32": 1e-6, "bfloat16": 5e-6}], "auto")

    assert str(choice) == "dtype: float32 (bfloat16 is 0.2x here)"


def test_bfloat16_that_gains_next_to_nothing_is_not_worth_its_precision():
    assert choose_dtype([{"float32": 1.05, "bfloat16": 1.0}], "auto").value == "float32"
    assert choose_dtype([{"float32": 1.15, "bfloat16": 1.0}], "auto").value == "bfloat16"


def test_the_dtype_is_that_in_which_all_ranks_together_compute_most(snapshot: SnapshotAssertion):
    gpu, laptop = {"float32": 1.0, "bfloat16": 0.5}, {"float32": 100.0, "bfloat16": 3500.0}
    new, old = {"float32": 1.0, "bfloat16": 0.7}, {"float32": 1.0, "bfloat16": 8.0}

    assert str(choose_dtype([gpu, laptop], "auto")) == snapshot
    assert str(choose_dtype([new, old], "auto")) == snapshot


def test_what_was_asked_for_wins_over_the_measurement(snapshot: SnapshotAssertion):
    choice = choose_dtype([{"float32": 1.0, "bfloat16": 9.0}], "bfloat16")

    assert str(choice) == snapshot


def test_a_device_with_one_dtype_has_no_choice(snapshot: SnapshotAssertion):
    assert choose_dtype([{"float32": 1.0}], "auto").reason == snapshot


# --- libraries


def test_each_kind_of_product_has_its_fastest_library(snapshot: SnapshotAssertion):
    times = make_times(default=(1, 1, 4, 1, 1, 1), onednn=(4, 0.5, 1, 1, 1, 1))

    layers, head, choice = choose_products(times, "auto")

    assert layers == MatmulBackends("default", "onednn", "onednn")
    assert head == MatmulBackends()
    assert choice.value == "layers default/onednn/onednn, head default"
    assert choice.reason == snapshot
    assert choice.measured == {
        "default_s_per_token": 9,
        "onednn_s_per_token": 8.5,
        "best_s_per_token": 5.5,
    }


def test_a_library_that_is_hardly_faster_is_not_chosen():
    layers, head, choice = choose_products(
        make_times(default=(1.0,) * 6, onednn=(0.98,) * 6), "auto"
    )

    assert layers == head == MatmulBackends()
    assert choice.value == "default"


@pytest.mark.parametrize(("asked", "library"), [("onednn", "onednn"), ("mkl", "default")])
def test_a_library_that_was_asked_for_is_used_for_everything(
    asked, library, snapshot: SnapshotAssertion
):
    # Only the library that was asked for is measured.
    times = make_times(**{library: (1.0,) * 6})

    layers, head, choice = choose_products(times, asked)

    assert layers == head == MatmulBackends.all(library)
    assert str(choice) == snapshot


def test_a_library_of_cpus_is_not_asked_of_a_gpu():
    # Without windows and compiled blocks, nothing is tried on the device.
    config = TrainConfig(matmul="onednn", compile="off")
    dtype, threads = Decision("dtype", "float32", ""), Decision("threads", "1", "")
    measured = ProductChoice({"float32": make_times(default=(1.0,) * 6)})

    found = measured_compute(config, TINY, CUDA, dtype, measured, threads)

    assert found.layers == found.head == MatmulBackends()
    assert found.choices[1].value == "default"


def test_a_single_library_is_named_as_such(snapshot: SnapshotAssertion):
    _, _, choice = choose_products(make_times(default=(1.0,) * 6), "auto")

    assert str(choice) == snapshot


def test_only_float32_on_a_cpu_has_two_libraries(monkeypatch):
    monkeypatch.setattr(products, "onednn_available", lambda: True)

    assert libraries_for(CPU, torch.float32, "auto") == ("default", "onednn")
    assert libraries_for(CPU, torch.float32, "mkl") == ("default",)
    assert libraries_for(CPU, torch.float32, "onednn") == ("onednn",)
    assert libraries_for(CPU, torch.bfloat16, "auto") == ("default",)
    assert libraries_for(CUDA, torch.float32, "auto") == ("default",)


def test_onednn_that_is_asked_for_in_vain_is_an_error(monkeypatch, snapshot: SnapshotAssertion):
    monkeypatch.setattr(products, "onednn_available", lambda: False)

    assert libraries_for(CPU, torch.float32, "auto") == ("default",)
    with pytest.raises(DeviceError) as caught:
        libraries_for(CPU, torch.float32, "onednn")
    assert str(caught.value) == snapshot


# --- measuring


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_measured_is_every_product_of_the_model(dtype):
    for config in (TINY, ModelShape.from_depth(8, vocab_size=26_758)):
        multiplied = sum(i * o * count for _, i, o, count in _shapes(config, CPU, dtype))

        counts = count_parameters(config)
        gates = config.n_layer // 2 * 12 * config.n_kv_head
        assert multiplied == pytest.approx(counts.dense - gates)


class Clock:
    """Stands in for `time`; `takes` makes a function that passes these seconds, call by call."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.calls: list[str] = []

    def perf_counter(self) -> float:
        return self.now_s

    def takes(self, name: str, *seconds: float):
        left = list(seconds)

        def run() -> None:
            self.calls.append(name)
            self.now_s += left.pop(0) if len(left) > 1 else left[0]

        return run


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    return clock


def test_what_is_compared_takes_turns(clock):
    runs = {"a": clock.takes("a", 0.001), "b": clock.takes("b", 0.002)}

    assert time_interleaved(runs, CPU) == pytest.approx({"a": 0.001, "b": 0.002})
    assert clock.calls == ["a", "b"] * 6


def test_a_run_that_the_machine_held_up_does_not_decide(clock):
    # The first that counts takes 0.2 s instead of 2 ms: as long as all of them may.
    runs = {"a": clock.takes("a", 0.5, 0.2, 0.002), "b": clock.takes("b", 0.005)}

    assert time_interleaved(runs, CPU) == pytest.approx({"a": 0.002, "b": 0.005})


def test_long_runs_are_few(clock):
    assert best_time_s(clock.takes("a", 3.0), CPU) == pytest.approx(3.0)
    assert len(clock.calls) == 3


def test_where_one_thread_computes_standing_still_does_not_decide():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        clock = thread_time_clock(CPU)
        times = time_interleaved({"stands still": lambda: time.sleep(0.02)}, CPU, clock)
    finally:
        torch.set_num_threads(threads)

    assert times["stands still"] < 0.01
    assert thread_time_clock(CUDA) is time.perf_counter


@pytest.mark.parametrize("asked", ["auto", "mkl", pytest.param("onednn", marks=needs_onednn)])
def test_both_dtypes_are_measured_for_each_kind_and_place(asked, monkeypatch):
    # As on a CPU that is not hopeless at either.
    monkeypatch.setattr(products, "_times_slower", lambda *_: 1.0)

    choice = measure_dtypes(TINY, CPU, dtype="auto", matmul=asked)

    assert set(choice.times) == {"float32", "bfloat16"}
    for times in choice.times.values():
        assert set(times.by_kind) == {(p, k) for p in ("layers", "head") for k in KINDS}
        assert all(
            took > 0 for by_library in times.by_kind.values() for took in by_library.values()
        )
    for times in choice.times.values():
        layers, head, _ = choose_products(times, asked)
        assert isinstance(layers, MatmulBackends)
        assert isinstance(head, MatmulBackends)


def test_a_dtype_that_is_hopeless_here_is_estimated_from_one_small_product(monkeypatch):
    monkeypatch.setattr(products, "_times_slower", lambda *_: 30.0)

    choice = measure_dtypes(TINY, CPU, dtype="auto", matmul="mkl")

    assert list(choice.times) == ["float32"]
    assert choice.best_s["bfloat16"] == 30 * choice.best_s["float32"]
    assert choose_dtype([choice.best_s], "auto").value == "float32"


def test_how_much_slower_a_dtype_is_is_measured():
    assert _times_slower(TINY, CPU, torch.bfloat16) > 0


def test_only_the_dtype_that_was_asked_for_is_measured():
    choice = measure_dtypes(TINY, CPU, dtype="bfloat16", matmul="auto")

    assert list(choice.best_s) == ["bfloat16"]


def test_the_best_time_counts_the_fastest_library_of_each_product():
    times = make_times(default=(1, 1, 4, 1, 1, 1), onednn=(4, 0.5, 1, 1, 1, 1))

    assert times.best_s == 1 + 0.5 + 1 + 3
    assert times.total_s("default") == 9


# --- attention


def test_a_gpu_has_pytorchs_kernels():
    choice = choose_attention(TINY, CUDA, torch.float32)

    assert choice.value == "sdpa"
    assert "cuda" in choice.reason


def test_long_rows_do_not_keep_their_probabilities(snapshot: SnapshotAssertion):
    choice = choose_attention(replace(TINY, sequence_len=1025), CPU, torch.float32)

    assert choice.value == "sdpa"
    assert choice.reason == snapshot


@pytest.mark.parametrize("faster", ["sdpa", "blocked"])
def test_the_faster_attention_is_taken_with_the_ratio(monkeypatch, faster):
    def timed(runs, device, clock):
        for run in runs.values():
            run()
        return {path: 1.0 if path == faster else 1.5 for path in runs}

    monkeypatch.setattr(compute, "time_interleaved", timed)
    choice = choose_attention(TINY, CPU, torch.float32)

    slower = "blocked" if faster == "sdpa" else "sdpa"
    assert choice.value == faster
    assert choice.reason == f"1.50x {slower} here"


@pytest.mark.parametrize("asked", ["sdpa", "blocked"])
def test_the_attention_that_is_asked_for_is_taken_unmeasured(
    monkeypatch, asked, snapshot: SnapshotAssertion
):
    monkeypatch.setattr(compute, "time_interleaved", None)
    choice = choose_attention(TINY, CPU, torch.float32, asked)

    assert choice.value == asked
    assert choice.reason == snapshot


# --- compiling


def test_compile_off_switches_the_passes_off(snapshot: SnapshotAssertion):
    choice = choose_compile("off", CPU)

    assert (choice.value, choice.reason) == snapshot
    assert not kernels.kernels().available


def test_without_a_compiler_training_is_eager_and_says_why(
    monkeypatch, snapshot: SnapshotAssertion
):
    monkeypatch.setattr(kernels, "_load", lambda: kernels.Kernels(None, "no C compiler"))

    assert str(choose_compile("auto", CPU)) == snapshot


def test_compile_on_without_a_compiler_is_an_error_with_the_way_out(
    monkeypatch, snapshot: SnapshotAssertion
):
    monkeypatch.setattr(kernels, "_load", lambda: kernels.Kernels(None, "no C compiler"))

    with pytest.raises(DeviceError) as caught:
        choose_compile("on", CPU)
    assert str(caught.value) == snapshot


@pytest.mark.parametrize("asked", ["auto", "on"])
def test_passes_that_are_there_are_used(asked):
    if not kernels.kernels().available:
        pytest.skip(f"no compiled passes: {kernels.kernels().reason}")

    choice = choose_compile(asked, CPU)

    assert choice == Decision("compile", "fused passes", kernels.kernels().reason)


def test_cuda_compiles_blocks_where_triton_is(monkeypatch, snapshot: SnapshotAssertion):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(compute, "why_not_compiled", lambda device: None)
    assert choose_compile("auto", CUDA).value == "blocks"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert str(choose_compile("auto", CUDA)) == snapshot
    with pytest.raises(DeviceError) as caught:
        choose_compile("on", CUDA)
    assert str(caught.value) == snapshot


def test_a_compiler_that_fails_on_a_few_lines_is_not_relied_upon(
    monkeypatch, snapshot: SnapshotAssertion
):
    import importlib.util

    def without_gcc(function):
        def run(x):
            raise RuntimeError("Failed to find C compiler.\nPlease specify via CC.")

        return run

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(torch, "compile", without_gcc)
    monkeypatch.setattr(compute, "this_distribution", lambda: ["debian"])
    reason = why_not_compiled(CPU)
    monkeypatch.setattr(compute, "why_not_compiled", lambda device: reason)

    assert str(choose_compile("auto", CUDA)) == snapshot
    with pytest.raises(DeviceError) as caught:
        choose_compile("on", CUDA)
    assert caught.value.fix == snapshot


def test_a_compiler_that_computes_wrongly_is_not_relied_upon(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function: lambda x: function(x) + 1)

    assert why_not_compiled(CPU) is not None


def test_compiling_for_metal_is_an_error_only_when_asked_for(snapshot: SnapshotAssertion):
    assert str(choose_compile("auto", MPS)) == snapshot
    with pytest.raises(DeviceError) as caught:
        choose_compile("on", MPS)
    assert str(caught.value) == snapshot


# --- devices


def test_a_gpu_that_is_not_there_is_an_error_with_the_way_out(
    monkeypatch, snapshot: SnapshotAssertion
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)

    assert pick_device("auto", 1) == torch.device("cuda", 1)
    with pytest.raises(DeviceError) as caught:
        pick_device("cuda", 2)
    assert str(caught.value) == snapshot
    with pytest.raises(DeviceError) as caught:
        pick_device("mps", 0)
    assert str(caught.value) == snapshot


def test_a_gpu_that_was_not_asked_for_is_not_used(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)

    assert pick_device("cpu", 0) == CPU


def test_without_any_gpu_auto_is_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)

    assert pick_device("auto", 3) == CPU


# --- applying


def test_choices_reach_every_layer():
    model = GPT(TINY)

    configure_model(model, MatmulBackends.all("onednn"), "blocked", compile_blocks=False)

    for block in model.blocks:
        assert block.attn.path == "blocked"
        matrices = [m for n, m in block.named_modules() if n.split(".")[-1].startswith("c_")]
        assert len(matrices) == 6
        assert all(matrix.backends == MatmulBackends.all("onednn") for matrix in matrices)


def test_yoked_toml_says_where_a_host_computes_and_a_flag_says_more(
    monkeypatch, snapshot: SnapshotAssertion
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("YOKED_DEVICE", "cpu")

    assert pick_device("auto", 0) == CPU
    assert pick_device("cuda", 0) == torch.device("cuda", 0)
    with pytest.raises(DeviceError) as caught:
        pick_device("cuda", 1)
    assert str(caught.value) == snapshot


def test_a_host_that_is_to_have_a_gpu_and_has_none_is_an_error(
    monkeypatch, snapshot: SnapshotAssertion
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("YOKED_DEVICE", "cuda")

    with pytest.raises(DeviceError) as caught:
        pick_device("auto", 0)
    assert str(caught.value) == snapshot


def test_a_dtype_that_one_device_cannot_use_is_not_chosen(snapshot: SnapshotAssertion):
    linux, mac = {"float32": 2e-6, "bfloat16": 1e-6}, {"float32": 1e-6}

    for by_rank in ([linux, mac], [mac, linux]):
        choice = choose_dtype(by_rank, "auto")
        assert choice.value == "float32"
        assert choice.reason == snapshot


UNDER_A_LIMIT = """
import resource
import torch
from yoked.train.decisions.timing import thread_time_clock, time_interleaved

_, hard = resource.getrlimit(resource.RLIMIT_CPU)
resource.setrlimit(resource.RLIMIT_CPU, (100_000, hard))
torch.set_num_threads(1)
cpu = torch.device("cpu")
print(time_interleaved({"little": lambda: None}, cpu, thread_time_clock(cpu))["little"] > 0)
"""


def test_little_is_timed_too_where_the_time_of_a_process_is_limited():
    said = subprocess.run(
        [sys.executable, "-c", UNDER_A_LIMIT], stdout=subprocess.PIPE, check=True, text=True
    )

    assert said.stdout == "True\n"
