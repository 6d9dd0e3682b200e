"""Which ranks share nothing, by what they told; programs that differ on purpose are left alone."""

from __future__ import annotations

from typing import Any

import pytest

from yoked.diagnosis.alone import Alone, alone, words_of_alone
from yoked.diagnosis.history import Place
from yoked.diagnosis.vitals import Learning, Trained

# Of a model of 10,000 parameters, the largest of which has 5,000.
SAME = 7
# A rank's sums after its steps: equal numbers are equal parameters.
DIFFERS = ({0: 1, 1: 10, 2: 20}, {0: 1, 1: 11, 2: 21})
EQUAL = ({0: 1, 1: 10, 2: 20},) * 2


def trained(sums: dict[int, int], **changes: Any) -> Trained:
    return Trained(**{"layout": SAME, "elements": 10_000, "largest": 5_000,
                      "sums": tuple(sums.items()), **changes})  # fmt: skip


def learning(*sums: dict[int, int], **changes: Any) -> Learning:
    """A rank with an optimizer for each of these, which shares nothing."""
    optimizers = tuple(each if isinstance(each, Trained) else trained(each) for each in sums)
    return Learning(**{"optimizers": optimizers, "group": "none", "floats": 0, "wholes": 0,
                       **changes})  # fmt: skip


def ranks(*sums: dict[int, int], **changes: Any) -> dict[int, Learning]:
    return {rank: learning(each, **changes) for rank, each in enumerate(sums)}


def found(told: dict[int, Learning], *, finished: bool = False) -> tuple[str, int] | None:
    verdict = alone(told, finished=finished)
    return None if verdict is None else (verdict.models, verdict.step)


@pytest.mark.parametrize("step", [1, 2])
def test_ranks_of_unlike_weights_that_shared_nothing_are_told_from_the_first_step_on(
    step: int,
) -> None:
    told = ranks(*({0: rank, step: 10 + rank} for rank in range(2)))

    assert found(told) == ("apart", step)


def test_ranks_that_began_alike_part_with_their_first_rows() -> None:
    assert found(ranks(*DIFFERS)) == ("apart", 2)


def test_ranks_with_equal_weights_that_nobody_told_them_do_the_same_work() -> None:
    assert found(ranks(*EQUAL)) == ("alike", 2)


def test_equal_weights_that_have_not_moved_or_moved_once_are_no_verdict() -> None:
    warming_up = {0: 1, 1: 1, 2: 1}

    assert found(ranks({0: 1, 1: 10}, {0: 1, 1: 10})) is None
    assert found(ranks(warming_up, warming_up)) is None
    assert found(ranks({**warming_up, 4: 30}, {**warming_up, 4: 30})) == ("alike", 4)
    assert found(ranks({**warming_up, 4: 30}, {**warming_up, 4: 31})) == ("apart", 4)


def test_one_rank_is_no_run_and_ranks_without_steps_are_none() -> None:
    assert found(ranks(DIFFERS[0])) is None
    assert found({0: learning(DIFFERS[0]), 1: learning({0: 5})}) is None
    # Rank 0 alone trains: the others have no optimizer.
    assert found({0: learning(DIFFERS[0]), 1: learning(), 2: learning()}) is None


def test_of_ranks_with_unequal_numbers_of_steps_the_last_common_one_counts() -> None:
    fast = {0: 1, 1: 10, 2: 20, 4: 40, 8: 80}

    assert found(ranks(fast, DIFFERS[1])) == ("apart", 2)
    # They are compared at one step, and not each at its last.
    assert found(ranks(fast, EQUAL[0])) == ("alike", 2)


@pytest.mark.parametrize(
    "carried",
    [
        pytest.param({"floats": 10_000}, id="DDP: all gradients"),
        pytest.param({"floats": 5_000}, id="a loop that reduces each parameter"),
        pytest.param({"floats": 5_000 // 4}, id="FSDP, ZeRO: a part of the parameters"),
        pytest.param({"floats": 64}, id="tensors or stages in parallel: activations"),
        pytest.param({"floats": 10}, id="gradients of a thousandth"),
        pytest.param({"wholes": 10_000}, id="gradients of a byte each"),
    ],
)
def test_ranks_between_which_something_like_gradients_travels_may_differ(
    carried: dict[str, int],
) -> None:
    assert found(ranks(*DIFFERS, group="program", **carried), finished=True) is None
    assert found(ranks(*EQUAL, group="program", **carried), finished=True) is None


def test_it_is_enough_that_one_rank_shares() -> None:
    told = {**ranks(*DIFFERS), 2: learning({0: 1, 1: 12}, group="program", floats=10_000)}

    assert found(told) is None


def test_losses_and_words_of_the_program_are_no_gradients() -> None:
    told = ranks({0: 1, 2: 10}, {0: 2, 2: 11}, group="program", floats=8, wholes=4_000)

    assert found(told) == ("apart", 2)


@pytest.mark.parametrize(("largest", "shares"), [(1, True), (4, True), (8, False)])
def test_the_gradients_of_a_tiny_model_are_tiny(largest: int, shares: bool) -> None:
    def rank(sums: dict[int, int]) -> Learning:
        own = trained(sums, elements=largest + 1, largest=largest)
        return learning(own, floats=4)  # type: ignore[arg-type]

    assert found({0: rank(DIFFERS[0]), 1: rank(DIFFERS[1])}) == (None if shares else ("apart", 2))


def test_a_large_model_is_known_to_share_by_activations_of_few_rows() -> None:
    def rank(sums: dict[int, int], floats: int) -> Learning:
        own = trained(sums, elements=10**9, largest=10**8)
        return learning(own, group="program", floats=floats)  # type: ignore[arg-type]

    def told(floats: int) -> dict[int, Learning]:
        return {0: rank({0: 1, 2: 10}, floats), 1: rank({0: 2, 2: 11}, floats)}

    assert found(told(2 * 2048)) is None
    assert found(told(2 * 1024)) == ("apart", 2)


@pytest.mark.parametrize("floats", [None, 0])
@pytest.mark.parametrize("other_ways", [True, False])
def test_what_is_not_known_is_no_evidence(floats: int | None, other_ways: bool) -> None:
    told = ranks(*DIFFERS, floats=floats, other_ways=other_ways)

    assert (found(told) is None) == (floats is None or other_ways)


def test_ranks_with_unlike_parameters_are_different_programs() -> None:
    stage = learning(trained({0: 3, 1: 30}, layout=8))  # type: ignore[arg-type]

    assert found({0: learning(DIFFERS[0]), 1: stage}) is None
    # Three of a sweep over sizes, of which two are of one size.
    assert found({**ranks(*DIFFERS), 2: stage}) is None


def test_programs_that_average_now_and_then_are_waited_for() -> None:
    """Local SGD and DiLoCo: a group, equal parameters at first, no call for hundreds of steps."""
    steps = [2**power for power in range(11)]
    local = [{0: 1, **{step: 10 * step + rank for step in steps}} for rank in range(2)]
    early = [{step: each for step, each in sums.items() if step <= 512} for sums in local]

    assert found(ranks(*early, group="program")) is None
    # It has ended, or should have averaged by now, and nothing was carried.
    assert found(ranks(*early, group="program"), finished=True) == ("apart", 512)
    assert found(ranks(*local, group="program")) == ("apart", 1024)
    # Without a group of the program's there is nothing to wait for.
    assert found(ranks(*early, group="bootstrap")) == ("apart", 512)
    assert found(ranks(*early)) == ("apart", 512)


def test_ranks_that_begin_unlike_are_given_the_time_to_average_after_their_first_step() -> None:
    sums = ({0: 1, 1: 10}, {0: 2, 1: 11})
    later = ({**sums[0], 2: 20}, {**sums[1], 2: 21})

    assert found(ranks(*sums, group="program")) is None
    assert found(ranks(*later, group="program")) == ("apart", 2)
    assert found(ranks(*sums, group="program"), finished=True) == ("apart", 1)


def test_a_gan_is_compared_optimizer_by_optimizer() -> None:
    """The one of the generator steps once in five steps of the other's."""
    critic, generator = {0: 1, 1: 10, 2: 20, 4: 40}, {0: 2, 1: 12}

    def rank(*sums: dict[int, int], **changes: Any) -> Learning:
        return learning(*sums, **changes)

    apart = {0: rank(critic, generator), 1: rank({**critic, 4: 41}, {**generator, 1: 13})}
    one_apart = {0: rank(critic, generator), 1: rank(critic, {**generator, 1: 13})}
    shared = {
        number: rank(critic, {**generator, 1: 12 + number}, floats=10_000) for number in range(2)
    }

    assert found(apart) == ("apart", 4)
    assert found(one_apart) == ("apart", 1)
    assert found(shared) is None
    # Rank 1 has not come to its generator yet.
    assert found({0: rank(critic, generator), 1: rank(critic)}) == ("alike", 4)


TWO = (Place("i9", (0,)), Place("pi", (1,)))
WRAP = "model = torch.nn.parallel.DistributedDataParallel(model)"
UNEVEN = (Place("i9", (0, 1)), Place("pi", (2,)))


def fix(
    library: str | None, *, has_group: bool = False, places: tuple[Place, ...] = TWO
) -> tuple[str, ...]:
    return words_of_alone(Alone((0, 1), 1, "apart", has_group, 0, library), places).fix


@pytest.mark.parametrize(
    ("library", "line"),
    [
        (
            "lightning.pytorch",
            'Trainer(devices=1, num_nodes=2, strategy="ddp")    Fabric takes the same',
        ),
        ("pytorch_lightning", 'Trainer(devices=1, num_nodes=2, strategy="ddp")'),
        ("lightning_fabric", 'Fabric(devices=1, num_nodes=2, strategy="ddp")'),
        (
            "transformers.trainer",
            'TrainingArguments(use_cpu=True, ddp_backend="gloo") where ranks have no GPU',
        ),
        ("accelerate", "model, optimizer, rows = Accelerator().prepare(model, optimizer, rows)"),
        ("deepspeed", "train with the engine that deepspeed.initialize(model=...) returns"),
        ("fastai.learner", "with learn.distrib_ctx(): learn.fit(...)    from fastai.distributed"),
        (None, 'torch.distributed.init_process_group("gloo"), then ' + WRAP),
    ],
)
def test_the_flag_is_that_of_the_library_that_trains(library: str | None, line: str) -> None:
    assert fix(library)[0] == line


def test_lightning_is_told_as_many_ranks_as_there_are() -> None:
    assert fix("pytorch_lightning", places=UNEVEN)[0].startswith("Trainer(devices=3, num_nodes=1,")


def test_a_program_with_a_group_lacks_the_wrapper_alone() -> None:
    assert fix(None, has_group=True)[0] == f"{WRAP}, and train with that"


def test_a_sweep_is_told_that_nothing_is_to_be_done() -> None:
    for library in (None, "accelerate", "lightning.pytorch"):
        assert "sweep" in fix(library)[-1]


def test_the_sentence_has_the_step_and_what_was_carried() -> None:
    apart = words_of_alone(Alone((0, 1), 1024, "apart", True, 1, None), TWO).what
    alike = words_of_alone(Alone((0, 1), 2, "alike", False, 0, None), TWO).what

    assert apart == (
        "its ranks share nothing: after step 1,024 each has weights of its own, and "
        "torch.distributed has carried no gradient between them (1 number in its largest call). "
        "Each trains a model of its own"
    )
    assert alike == (
        "its ranks share nothing and do the same work: after step 2 they have the same weights, "
        "though torch.distributed has carried no gradient between them. Each trains the same model "
        "on the same rows"
    )
