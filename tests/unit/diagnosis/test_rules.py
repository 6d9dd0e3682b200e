"""Causes by what hosts told, as soon as they can be known; and none where nothing is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.unit.diagnosis.made_up import (
    IN_PROGRAM,
    PERIOD_S,
    Told,
    awaiting,
    in_backward,
    in_collective,
    link,
    rank,
    recorded,
)

from yoked.diagnosis.activity import activity_of
from yoked.diagnosis.cause import Cause
from yoked.diagnosis.rules import causes
from yoked.diagnosis.vitals import Ended, Flight, Frame, Group, RankVitals, Vitals
from yoked.diagnosis.words import words_of

# Age of what began just after the look before.
Look = Callable[[float], tuple[Vitals | None, ...]]


def first_told(look: Look, *, hosts: int = 2, limit_s: float = 10.0) -> tuple[Cause, float]:
    """The first cause, and after how many seconds of a run that was well it was told."""
    told = Told(hosts).steps()
    age_s = 0.0
    while age_s < limit_s:
        age_s += PERIOD_S
        told.look(*look(age_s))
        if found := causes(told.history):
            return found[0], age_s
    raise AssertionError("nothing was told")


def alive(each: RankVitals, **more: object) -> Vitals:
    return Vitals(0, 0, (each,), **more)  # type: ignore[arg-type]


def waits(number: int, age_s: float, **changes: object) -> Vitals:
    """A host whose rank is in a collective for so long, using no core."""
    return alive(rank(number, recorded=in_collective(77, age_s), **changes))


def test_a_run_that_steps_has_no_cause() -> None:
    told = Told()
    for _ in range(60):
        told.steps(1)
        assert causes(told.history) == []


def test_a_stopped_rank_is_told_with_its_process() -> None:
    cause, after_s = first_told(lambda age_s: (waits(0, age_s), alive(rank(1, state="T"))))

    assert (cause.code, cause.nodes, cause.rank) == ("rank-stopped", (1,), 1)
    assert cause.params["pid"] == 101
    assert after_s <= 2.0


def test_a_rank_that_cpulimit_stops_at_each_look_and_that_gets_on_is_not_stopped() -> None:
    told = Told().steps()
    for look in range(10):
        told.look(alive(rank(0)), alive(rank(1, state="T", cpu_s=5.0 + 0.05 * look)))

    assert causes(told.history) == []


def test_a_rank_that_was_stopped_at_the_last_word_of_its_host_is_not_known_to_be_so_since() -> None:
    told = Told().steps()
    told.look(alive(rank(0)), alive(rank(1, state="T")))
    for _ in range(10):
        told.look(alive(rank(0)), None)

    assert [cause.code for cause in causes(told.history)] == ["host-asleep"]


def test_a_rank_in_a_debugger_is_no_fault() -> None:
    traced = recorded(frames=(Frame("/usr/lib/python3.11/pdb.py", 3, "cmdloop"), IN_PROGRAM))
    with pytest.raises(AssertionError, match="nothing was told"):
        first_told(lambda age_s: (waits(0, age_s), alive(rank(1, state="t"))))
    with pytest.raises(AssertionError, match="nothing was told"):
        first_told(lambda age_s: (waits(0, age_s), alive(rank(1, recorded=traced))))


def test_a_rank_that_a_debugger_stops_while_it_waits_is_no_fault() -> None:
    def look(age_s: float) -> tuple[Vitals, Vitals]:
        # Its recorder stands, too, and has it wait for the other.
        stood = replace(awaiting("rank 0's gradients", (0,), 0.1), age_s=age_s)
        other = awaiting("rank 1's gradients", (1,), age_s)
        return alive(rank(0, recorded=other)), alive(rank(1, state="t", recorded=stood))

    with pytest.raises(AssertionError, match="nothing was told"):
        first_told(look)


def test_a_mount_that_does_not_answer_is_told_with_the_line() -> None:
    stuck = recorded(frames=(IN_PROGRAM,), frames_age_s=3.0)
    cause, after_s = first_told(
        lambda age_s: (
            waits(0, age_s),
            alive(rank(1, state="D", cpu_s=3.6, recorded=stuck)),
        )
    )

    assert (cause.code, cause.rank) == ("disk-stands", 1)
    assert cause.params["line"] == 41
    assert after_s <= 3.0


def test_a_host_whose_kernel_answers_and_whose_programs_do_not_is_asleep() -> None:
    cause, after_s = first_told(lambda age_s: (waits(0, age_s, cpu_s=3.6), None))

    assert (cause.code, cause.nodes, cause.certainty) == ("host-asleep", (1,), "likely")
    assert after_s <= 2.0


def test_a_host_that_acknowledges_nothing_is_gone_or_cut_off() -> None:
    way = link(1, backoff=3, unsent_bytes=4000)
    cause, after_s = first_told(
        lambda age_s: (alive(rank(0, recorded=in_collective(7, age_s)), control=(way,)), None)
    )

    assert (cause.code, cause.nodes, cause.link) == ("host-unheard", (1, 0), (0, 1))
    assert after_s <= 2.0


@pytest.mark.parametrize(
    ("here", "cut", "told"),
    [
        pytest.param(0, 1, (1, 0), id="one-is-cut-as-node-0-sees-it"),
        pytest.param(2, 1, (1, 0), id="one-is-cut-as-a-third-sees-it"),
        pytest.param(1, 1, (0, 1), id="one-is-cut-as-it-sees-itself"),
        pytest.param(2, 0, (0, 2), id="node-0-is-cut"),
    ],
)
def test_of_three_hosts_the_cut_one_is_told_alone_with_one_end_of_its_link(
    here: int, cut: int, told: tuple[int, int]
) -> None:
    """Hosts hear of each other by way of node 0, and have no connection among themselves."""
    run = Told(3, here).steps()
    found = []
    for look in range(1, 12):
        seen: list[Vitals | None] = []
        for node in range(3):
            others = (1, 2) if node == 0 else (0,)
            control = tuple(
                link(other, backoff=min(look, 4), unsent_bytes=4000)
                if cut in (node, other)
                else link(other)
                for other in others
            )
            # What comes of a host passes its cable, and node 0's.
            hears = node == here or (cut not in (node, here) and (cut != 0 or here == 0))
            vitals = alive(rank(node, recorded=in_collective(77, look / 2)), control=control)
            seen.append(vitals if hears else None)
        run.look(*seen)
        found += causes(run.history)

    assert {(cause.code, cause.nodes) for cause in found} == {("host-unheard", told)}


def test_a_host_that_was_asleep_itself_does_not_say_so_of_the_others() -> None:
    told = Told(2, here=1).steps()
    told.now_s += 60.0
    for _ in range(4):
        told.look(None, waits(1, 0.5, cpu_s=3.6))
        if told.history.silent_s(0) < 1.4:
            assert causes(told.history) == []

    assert [cause.code for cause in causes(told.history)] == ["host-asleep"]


def test_a_host_that_is_asleep_is_so_for_a_third_one_too() -> None:
    told = Told(3, here=2).steps()
    for _ in range(4):
        told.look(waits(0, 1.0, cpu_s=3.6), None, waits(2, 1.0, cpu_s=3.6))

    assert [(cause.code, cause.nodes) for cause in causes(told.history)] == [("host-asleep", (1,))]


def test_what_is_unheard_for_long_is_sure() -> None:
    told = Told().steps()
    for _ in range(62):
        told.look(waits(0, 1.0), None)

    assert [cause.certainty for cause in causes(told.history)] == ["sure"]


def test_a_rank_that_stands_in_a_lock_is_told_with_its_line() -> None:
    cause, after_s = first_told(
        lambda age_s: (
            waits(0, age_s, cpu_s=3.6),
            alive(rank(1, cpu_s=3.6, recorded=recorded(frames_age_s=age_s))),
        )
    )

    assert (cause.code, cause.nodes, cause.rank) == ("rank-stands", (1,), 1)
    assert (cause.params["file"], cause.params["line"]) == (IN_PROGRAM.file, 41)
    assert cause.params["what"] == "gloo:all_reduce"
    assert after_s <= 3.0


def test_a_rank_that_computes_for_long_is_not_said_to_stand() -> None:
    with pytest.raises(AssertionError, match="nothing was told"):
        first_told(lambda age_s: (waits(0, age_s, cpu_s=3.6), alive(rank(1, cpu_s=3.6 + age_s))))


@pytest.mark.parametrize("phase", ["saving", "evaluating", "compiling"])
def test_what_takes_as_long_as_it_takes_is_no_fault(phase: str) -> None:
    busy = recorded(phase=phase, frames_age_s=5.0)
    with pytest.raises(AssertionError, match="nothing was told"):
        first_told(
            lambda age_s: (waits(0, age_s, cpu_s=3.6), alive(rank(1, cpu_s=3.6, recorded=busy)))
        )


def test_a_rank_that_waits_for_the_compiler_of_an_extension_compiles() -> None:
    # The compiler is a process of its own, and the rank uses no CPU. DeepSpeed builds a part of
    # itself at its first start on a host.
    build = Frame("/venv/lib/python3.11/site-packages/torch/utils/cpp_extension.py", 2694, "build")
    busy = recorded(frames=(build, IN_PROGRAM), frames_age_s=5.0)
    with pytest.raises(AssertionError, match="nothing was told"):
        first_told(
            lambda age_s: (waits(0, age_s, cpu_s=3.6), alive(rank(1, cpu_s=3.6, recorded=busy)))
        )


def test_a_rank_that_computes_on_while_the_others_wait_is_late() -> None:
    cause, after_s = first_told(
        lambda age_s: (waits(0, age_s, cpu_s=3.6), alive(rank(1, cpu_s=3.6 + age_s))), limit_s=90
    )

    assert (cause.code, cause.rank, cause.certainty) == ("rank-late", 1, "likely")
    assert cause.params["doing"] == "computing"
    assert 60 <= after_s <= 62


@pytest.mark.parametrize(("before_s", "late_s"), [(0, 600), (10, 70), (100, 300)])
def test_what_takes_much_longer_than_ever_is_late(before_s: int, late_s: int) -> None:
    def look(phase: str, age_s: float) -> tuple[Vitals, ...]:
        busy = recorded(steps=20, phase=phase, frames_age_s=0.0)
        return waits(0, age_s, cpu_s=3.6), alive(rank(1, cpu_s=3.6, recorded=busy))

    told = Told().steps()
    for times in range(int(before_s / PERIOD_S)):
        told.look(*look("saving", times * PERIOD_S))
        assert causes(told.history) == []
    told.look(alive(rank(0)), alive(rank(1)))
    began_s, found = told.now_s, list[Cause]()
    while not found:
        told.look(*look("saving", told.now_s - began_s))
        found = causes(told.history)

    assert (found[0].code, found[0].rank, found[0].certainty) == ("rank-late", 1, "likely")
    assert found[0].params["doing"] == "saving"
    assert told.now_s - began_s == pytest.approx(late_s, abs=3.0)


def test_a_rank_whose_record_is_gone_after_long_training_is_not_late() -> None:
    told = Told().steps()
    for look in range(1300):
        unknown = rank(1, cpu_s=3.6, recorded=None if look > 1296 else recorded())
        told.look(waits(0, 9.0, cpu_s=3.6), alive(unknown))

    assert causes(told.history) == []


@pytest.mark.parametrize("waits_in", ["inet_csk_accept", "hrtimer_nanosleep", "futex_wait", ""])
def test_wherever_a_late_rank_waits_there_is_a_sentence_of_it(waits_in: str) -> None:
    saves = rank(1, cpu_s=3.6, waits_in=waits_in, recorded=recorded(steps=20, phase="saving"))
    told = Told().steps()
    while not (found := causes(told.history)):
        told.look(waits(0, 60.0, cpu_s=3.6), alive(saves))

    assert found[0].code == "rank-late"
    assert words_of(found[0], ("alpha", "beta")).fix


@pytest.mark.parametrize("seen_in", ["the program", "a backward pass"])
def test_a_rank_whose_python_does_not_run_is_told_as_in_native_code(seen_in: str) -> None:
    told = Told().steps()
    for age_s in range(1, 6):
        # What it was about before it went there says nothing.
        last = recorded() if seen_in == "the program" else in_backward(76, 0.0)
        last = replace(last, age_s=age_s)
        holds = rank(1, cpu_s=3.6, recorded=last, waits_in="hrtimer_nanosleep")
        told.look(waits(0, age_s, cpu_s=3.6), alive(holds))
        told.now_s += 0.5
    (cause,) = causes(told.history)

    assert (cause.code, cause.rank) == ("rank-stands", 1)
    assert "native code keeps the interpreter's lock" in words_of(cause, ("alpha", "beta")).what


def test_ranks_in_calls_of_two_process_groups_wait_for_each_other() -> None:
    def look(age_s: float) -> tuple[Vitals, ...]:
        odd = in_collective(3, age_s, op="gloo:barrier")
        assert odd.groups is not None
        odd = replace(odd, groups=(replace(odd.groups[0], name="1"),))
        step = alive(rank(1, cpu_s=3.6, recorded=in_collective(77, age_s)))
        return alive(rank(0, cpu_s=3.6, recorded=odd)), step

    cause, _ = first_told(look)

    assert (cause.code, cause.rank, cause.certainty) == ("collective-mismatch", 0, "likely")
    said = words_of(cause, ("alpha", "beta")).what
    assert "call 3 of process group 1, gloo:barrier" in said
    assert "rank 1 in call 77 of the default group" in said


def test_a_rank_that_ended_well_while_others_wait_is_told() -> None:
    cause, _ = first_told(
        lambda age_s: (waits(0, age_s, cpu_s=3.6), Vitals(0, 0, (), (Ended(1, 0, age_s),)))
    )

    assert (cause.code, cause.nodes, cause.rank) == ("rank-ended-early", (1,), 1)


def test_a_rank_that_waited_when_another_ended_may_be_through_by_now() -> None:
    # It was seen last before the other ended, and both are about to end.
    told = Told(2).steps()
    for number in range(1, 5):
        told.look(waits(0, number * PERIOD_S, cpu_s=3.6), waits(1, number * PERIOD_S, cpu_s=3.6))
    for ended_s in (0.2, 0.7):
        old = replace(in_collective(77, 2.0), age_s=ended_s + 0.1)
        told.look(
            alive(rank(0, recorded=old, cpu_s=3.6)), Vitals(0, 0, (), (Ended(1, 0, ended_s),))
        )
        assert causes(told.history) == []


def test_collectives_of_unlike_sizes_are_told_with_both_calls() -> None:
    cause, _ = first_told(
        lambda age_s: (
            waits(0, age_s, cpu_s=3.6),
            alive(rank(1, cpu_s=3.6, recorded=in_collective(77, age_s, sizes=(64, 64)))),
        )
    )

    assert (cause.code, cause.rank) == ("collective-mismatch", 1)
    assert cause.params["said"] == (
        "its collective 77 is all_reduce of [64, 64] Float, and rank 0's all_reduce of [1000] Float"
    )


def test_bytes_that_are_not_acknowledged_though_both_hosts_are_heard_are_of_the_link() -> None:
    stuck = link(1, backoff=2, unsent_bytes=200_000, acked_age_s=2.0)
    cause, _ = first_told(
        lambda age_s: (
            alive(rank(0, cpu_s=3.6, recorded=in_collective(77, age_s)), links=(stuck,)),
            alive(rank(1, cpu_s=3.6, recorded=in_collective(77, age_s)), links=(link(0),)),
        )
    )

    assert (cause.code, set(cause.nodes)) == ("link-stands", {0, 1})


@pytest.mark.parametrize(
    ("lost", "backoff", "told"),
    [
        # Of 1,000 packets a second.
        (0, 2, ["link-stands"]),
        # One or two may be sent again on any network.
        (1, 2, ["link-stands"]),
        (50, 2, []),
        (50, 4, []),
        (50, 5, ["link-stands"]),
    ],
)
@pytest.mark.parametrize("lossy", [0, 1])
def test_a_link_that_lost_packets_before_stands_only_after_longer(
    lost: int, backoff: int, told: list[str], lossy: int
) -> None:
    def look(sent_s: float, stood_s: float, **changes: object) -> list[Vitals]:
        again = [0, 0]
        again[lossy] = lost * int(sent_s)
        # Those that it sends while it stands are lost anywhere.
        return [
            alive(
                rank(node, cpu_s=3.6, recorded=in_collective(76 + bool(stood_s), stood_s)),
                links=(
                    link(
                        1 - node,
                        retransmitted=again[node] + int(2 * stood_s),
                        segments=int(1000 * sent_s),
                        **changes,
                    ),
                ),
            )
            for node in (0, 1)
        ]

    run = Told().steps()
    for number in range(8):
        run.look(*look(number * PERIOD_S, 0.0))
    for number in range(1, 6):
        stood_s = number * PERIOD_S
        run.look(*look(4.0, stood_s, backoff=backoff, unsent_bytes=4096, acked_age_s=stood_s))

    assert [cause.code for cause in causes(run.history)] == told


def test_ranks_that_wait_within_the_backward_pass_of_ddp_wait() -> None:
    def look(age_s: float) -> tuple[Vitals, ...]:
        stuck = [link(1, backoff=3, unsent_bytes=4096)], [link(0, backoff=3, unsent_bytes=4096)]
        return tuple(
            alive(rank(node, cpu_s=3.6, recorded=in_backward(77, age_s)), links=tuple(stuck[node]))
            for node in (0, 1)
        )

    cause, after_s = first_told(look)

    assert (cause.code, set(cause.nodes)) == ("link-stands", {0, 1})
    assert after_s <= 4.0


def test_a_rank_that_is_idle_in_the_backward_pass_waits_though_no_call_of_it_is_known() -> None:
    def look(age_s: float) -> tuple[Vitals, ...]:
        idle = replace(in_backward(77, age_s), groups=None)
        first = alive(
            rank(0, cpu_s=3.6, recorded=idle, waits_in="futex_wait_queue"),
            links=(link(1, backoff=3, unsent_bytes=4096),),
        )
        return first, alive(rank(1, cpu_s=3.6, recorded=in_collective(77, age_s)))

    cause, _ = first_told(look)

    assert (cause.code, set(cause.nodes)) == ("link-stands", {0, 1})


def test_a_rank_that_computes_a_long_backward_pass_waits_for_nobody() -> None:
    def look(age_s: float) -> tuple[Vitals, ...]:
        slow = rank(1, cpu_s=3.6 + age_s, recorded=in_backward(77, age_s))
        return alive(rank(0, cpu_s=3.6, recorded=in_backward(77, age_s))), alive(slow)

    with pytest.raises(AssertionError, match="nothing was told"):
        first_told(look)


# torch 2.13: DDP sends its buffers in C++ called here, and wait() of a work or future is in C.
IN_BUFFERS = Frame("/v/site-packages/torch/nn/parallel/distributed.py", 2363, "_distributed_bro")
AT_A_WORK = Frame("/v/site-packages/nanochat/optim.py", 300, "step")


@pytest.mark.parametrize("frame", [IN_BUFFERS, AT_A_WORK])
def test_a_rank_that_waits_for_a_collective_in_cpp_is_not_the_one_that_stands(frame: Frame) -> None:
    def look(age_s: float) -> tuple[Vitals, ...]:
        waiting = replace(in_collective(77, age_s), frames=(frame, IN_PROGRAM))
        return (
            alive(rank(0, cpu_s=3.6, recorded=waiting, waits_in="futex_wait_queue")),
            alive(rank(1, cpu_s=3.6, recorded=waiting, waits_in="futex_wait_queue")),
            alive(rank(2, cpu_s=3.6, recorded=recorded(frames_age_s=age_s))),
        )

    cause, after_s = first_told(look, hosts=3)

    assert (cause.code, cause.rank) == ("rank-stands", 2)
    assert after_s <= 4.0


def test_a_message_that_is_on_its_way_is_no_wait_of_the_rank_that_sends_it() -> None:
    sends = (Group("0", 77, (Flight(5, "gloo:send"),)),)

    def look(age_s: float) -> tuple[Vitals, ...]:
        stands = recorded(frames_age_s=age_s, groups=sends)
        return waits(0, age_s, cpu_s=3.6), alive(rank(1, cpu_s=3.6, recorded=stands))

    cause, _ = first_told(look)

    assert (cause.code, cause.rank) == ("rank-stands", 1)


def test_a_rank_that_computes_while_its_collective_is_on_its_way_waits_for_nobody() -> None:
    def look(age_s: float) -> tuple[Vitals, ...]:
        computes = replace(in_collective(77, age_s), frames=(IN_PROGRAM,))
        ranks = (rank(node, cpu_s=3.6 + age_s, recorded=computes) for node in (0, 1))
        return tuple(map(alive, ranks))

    with pytest.raises(AssertionError, match="nothing was told"):
        first_told(look)


OF_TORCH = "/v/lib/python3.12/site-packages/torch/"
OF_RECORD = (f"{OF_TORCH}distributed/elastic/multiprocessing/errors/__init__.py", "wrapper")


@pytest.mark.parametrize(
    ("frames", "doing"),
    [
        pytest.param(
            [("train.py", "main"), OF_RECORD],
            "training", id="under torchrun's @record",
        ),
        pytest.param(
            [(f"{OF_TORCH}utils/data/dataloader.py", "__next__"), ("train.py", "main"),
             OF_RECORD],
            "loading data", id="loading under @record",
        ),
        pytest.param(
            [(f"{OF_TORCH}nn/modules/linear.py", "forward"),
             (f"{OF_TORCH}distributed/fsdp/fully_sharded_data_parallel.py", "forward")],
            "training", id="a layer within FSDP's forward",
        ),
        pytest.param(
            [("/usr/lib/python3.12/threading.py", "wait"), (f"{OF_TORCH}_ops.py", "__call__"),
             (f"{OF_TORCH}distributed/_functional_collectives.py", "wait_tensor"),
             ("train.py", "main")],
            "waiting for peers", id="a functional collective",
        ),
        pytest.param(
            [("/tmp/torchinductor_me/ab/cab.py", "call"),
             (f"{OF_TORCH}_inductor/utils.py", "run"),
             (f"{OF_TORCH}_inductor/output_code.py", "__call__"),
             (f"{OF_TORCH}_functorch/_aot_autograd/runtime_wrappers.py", "runtime_wrapper"),
             (f"{OF_TORCH}_functorch/aot_autograd.py", "forward"),
             (f"{OF_TORCH}_dynamo/eval_frame.py", "compile_wrapper"), ("train.py", "main")],
            "training", id="what was compiled",
        ),
        pytest.param(
            [(f"{OF_TORCH}_inductor/scheduler.py", "codegen"),
             (f"{OF_TORCH}_inductor/compile_fx.py", "bw_compiler"),
             (f"{OF_TORCH}_functorch/_aot_autograd/runtime_wrappers.py", "backward")],
            "compiling", id="a backward pass that is compiled when it is met",
        ),
    ],
)  # fmt: skip
def test_what_a_rank_is_about_is_told_by_its_innermost_lines(
    frames: list[tuple[str, str]], doing: str
) -> None:
    stack = tuple(Frame(file, 1, function) for file, function in frames)

    assert activity_of(rank(0, recorded=recorded(frames=stack))) == doing


def test_of_three_ranks_the_one_that_waits_for_nobody_is_the_cause() -> None:
    cause, _ = first_told(
        lambda age_s: (
            alive(rank(0, cpu_s=3.6, recorded=awaiting("gradient 3", (1,), age_s))),
            alive(rank(1, cpu_s=3.6, recorded=awaiting("gradient 2", (2,), age_s))),
            alive(rank(2, cpu_s=3.6, recorded=recorded(frames_age_s=age_s))),
        ),
        hosts=3,
    )

    assert (cause.code, cause.rank) == ("rank-stands", 2)


def test_a_rank_that_waits_too_is_no_root_though_its_host_looked_earlier() -> None:
    for late in (0.3, 0.5, 0.7):
        cause, _ = first_told(
            lambda age_s, late=late: (
                waits(0, max(0.0, age_s - late), cpu_s=3.6),
                waits(1, age_s, cpu_s=3.6),
                alive(rank(2, cpu_s=3.6, recorded=recorded(frames_age_s=age_s))),
            ),
            hosts=3,
        )

        assert (cause.code, cause.rank) == ("rank-stands", 2)


def test_a_host_tells_of_its_own_ranks_and_of_links_to_other_hosts_alone() -> None:
    foreign = (rank(0, state="T"), rank(7, state="T"))
    ways = tuple(link(node, backoff=4, unsent_bytes=4096) for node in (1, 2))

    def look(age_s: float) -> tuple[Vitals, ...]:
        told = alive(rank(1, recorded=in_collective(77, age_s)), links=ways, control=ways)
        return waits(0, age_s), replace(told, ranks=(*told.ranks, *foreign))

    cause, _ = first_told(look)

    assert (cause.code, cause.rank, cause.link) == ("cannot-tell", None, None)


@pytest.mark.parametrize(
    ("bytes_per_s", "from_s", "said"),
    [
        pytest.param(2_400_000, 10.0, "bytes come, 2.40 MB/s", id="a-slow-network"),
        pytest.param(1_000, 1.0, "nothing tells why", id="a-word-now-and-then"),
    ],
)
def test_ranks_whose_bytes_come_are_told_of_when_that_has_lasted(
    bytes_per_s: int, from_s: float, said: str
) -> None:
    def look(age_s: float) -> tuple[Vitals, ...]:
        received = 10**9 + int(bytes_per_s * age_s)
        return tuple(
            alive(
                rank(node, cpu_s=3.6, recorded=in_collective(77, age_s)),
                links=(link(1 - node, received_bytes=received),),
            )
            for node in (0, 1)
        )

    cause, after_s = first_told(look, limit_s=15.0)

    assert cause.code == "cannot-tell"
    assert from_s <= after_s < from_s + 2.0
    assert said in words_of(cause, ["alpha", "beta"]).what


def test_absent_records_are_no_evidence() -> None:
    silent = alive(rank(1, cpu_s=3.6, recorded=None))
    for told in (silent, Vitals(0, 0)):
        with pytest.raises(AssertionError, match="nothing was told"):
            first_told(lambda age_s, told=told: (waits(0, age_s, cpu_s=3.6), told))


@pytest.mark.parametrize(
    ("steps", "waits_in", "for_s", "certainty"),
    [
        pytest.param(12, "futex_wait_queue", 15, "sure", id="a-lock"),
        pytest.param(12, "do_sys_poll", 15, "likely", id="data-of-a-connection"),
        pytest.param(12, "do_sys_poll", 75, "sure", id="data-that-have-not-come-for-long"),
        pytest.param(12, "hrtimer_nanosleep", 75, "likely", id="a-sleep"),
        pytest.param(12, "hrtimer_nanosleep", 615, "sure", id="a-long-sleep"),
        pytest.param(0, "futex_wait_queue", 15, "likely", id="before-the-first-step"),
    ],
)
def test_only_a_lock_amid_steps_is_sure_within_seconds(
    steps: int, waits_in: str, for_s: int, certainty: str
) -> None:
    told = Told().steps()
    for look in range(int(for_s / PERIOD_S)):
        age_s = look * PERIOD_S
        stands = recorded(steps=steps, frames_age_s=age_s)
        told.look(
            waits(0, age_s, cpu_s=3.6),
            alive(rank(1, cpu_s=3.6, recorded=stands, waits_in=waits_in)),
        )

    assert [cause.certainty for cause in causes(told.history)] == [certainty]
