"""Ranks that share nothing: each trains a model of its own, and the run ends well all the same.

It is a warning, and never a failure: a sweep does so on purpose. Two facts together are needed:

- After the same step of the same optimizer the ranks' parameters differ; or they are equal though
  each computed them by itself, so that all ranks do the same work.
- Until then no call of torch.distributed has carried as much as a gradient.

Ranks that share hold unlike parameters too, where those are sharded, differ by stage, or are
averaged now and then. Something of a gradient's size travels in all of these before the first step
or in it, but for programs that average now and then: those have a process group, and as a rule
ranks that begin with the same parameters. Of such ranks nothing is said before they have taken many
steps, or have ended.

Pure: what ranks told in, a verdict and its sentences out. Standard library alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from yoked.diagnosis.history import Place
from yoked.diagnosis.vitals import Learning, Trained
from yoked.diagnosis.words import Words
from yoked.units import plural

CODE = "ranks-alone"
# Modules that train, as they are called when they are loaded; the first that a rank has is asked
# for its flag. transformers and accelerate lie beneath the trainers of others.
LIBRARIES = (
    "lightning.pytorch",
    "pytorch_lightning",
    "lightning.fabric",
    "lightning_fabric",
    "deepspeed",
    "fastai.learner",
    "ignite.engine",
    "transformers.trainer",
    "accelerate",
)
# By which ranks may share what torch.distributed does not see.
OTHER_WAYS = ("horovod", "mpi4py", "ray", "hivemind", "torchft", "jax")
# DiLoCo averages every 500 steps; in so many there are two averages. Whose ranks begin unlike has
# to average from the first step on to learn anything together.
_PATIENT_STEPS, _UNLIKE_STEPS = 1024, 2
# A call is as large as a gradient that carries a thousandth of the parameters, or this many. Fewer
# than the least are losses and metrics.
_LEAST, _MOST, _PART = 9, 4096, 1000
# Whole numbers are words of the program, rows, or gradients that were made smaller.
_LEAST_WHOLES, _WHOLES_PART = 4096, 100


@dataclass(frozen=True)
class Alone:
    """Ranks that share nothing. step: after which they were compared, the last that all took.

    models: apart: their parameters differ; alike: they are equal, and nobody told them so.
    has_group: the program has started a process group. most: real numbers in the largest call.
    library: of LIBRARIES, by which they train; None: none of them.
    """

    ranks: tuple[int, ...]
    step: int
    models: Literal["apart", "alike"]
    has_group: bool
    most: int
    library: str | None


def alone(learning: Mapping[int, Learning], *, finished: bool = False) -> Alone | None:
    """What is to be said of ranks by what they told; None: nothing, as far as can be told.

    learning: of the ranks that have taken steps. finished: the run has ended well.
    """
    if len(learning) < 2 or any(map(_may_share, learning.values())):
        return None
    deepest = max(len(each.optimizers) for each in learning.values())
    found = [_compared(learning, number, finished=finished) for number in range(deepest)]
    verdicts = [verdict for verdict in found if verdict is not None]
    # Of one that trains apart it is known; of one that is alike another may differ.
    return next((one for one in verdicts if one.models == "apart"), next(iter(verdicts), None))


def _may_share(one: Learning) -> bool:
    """Whether a rank has shared something with others, or may have."""
    if one.floats is None or one.wholes is None or one.other_ways:
        return True
    elements = sum(each.elements for each in one.optimizers)
    largest = max((each.largest for each in one.optimizers), default=0)
    # A model of a few parameters has gradients of a few numbers.
    as_gradient = min(largest, max(_LEAST, elements // _PART), _MOST)
    return one.floats >= as_gradient or one.wholes >= max(_LEAST_WHOLES, elements // _WHOLES_PART)


def _compared(learning: Mapping[int, Learning], number: int, *, finished: bool) -> Alone | None:
    """By one optimizer, that which stepped as the n-th for the first time."""
    have = {
        rank: one.optimizers[number]
        for rank, one in learning.items()
        if len(one.optimizers) > number and any(step for step, _ in one.optimizers[number].sums)
    }
    if len(have) < 2 or len({each.layout for each in have.values()}) > 1:
        # Ranks that have nothing in common are different programs: stages, roles, sizes of a sweep.
        return None
    sums = _common_sums(list(have.values()))
    if not (steps := [step for step in sums if step]):
        return None
    step = max(steps)
    ranks = [learning[rank] for rank in have]
    has_group = any(one.group == "program" for one in ranks)
    began_alike = len(set(sums.get(0, (0,)))) == 1
    patience = _PATIENT_STEPS if began_alike else _UNLIKE_STEPS
    if has_group and step < patience and not finished:
        return None
    models: Literal["apart", "alike"] = "apart" if len(set(sums[step])) > 1 else "alike"
    if models == "alike" and not _moved(sums, step):
        # A learning rate that begins at 0: they may part yet.
        return None
    return Alone(
        ranks=tuple(sorted(have)),
        step=step,
        models=models,
        has_group=has_group,
        most=max(one.floats or 0 for one in ranks),
        library=next((one.libraries[0] for one in ranks if one.libraries), None),
    )


def _common_sums(trained: Sequence[Trained]) -> dict[int, tuple[int, ...]]:
    """The sums of all of them by step, of the steps that all have taken."""
    each = [dict(one.sums) for one in trained]
    common = set(each[0]).intersection(*each[1:])
    return {step: tuple(sums[step] for sums in each) for step in sorted(common)}


def _moved(sums: Mapping[int, tuple[int, ...]], step: int) -> bool:
    """Whether the parameters were others before, on all ranks alike, after a step of training.

    One step is not enough: rows may begin alike everywhere, such as a first one for warming up.
    """
    before = [sums[earlier] for earlier in sums if 0 < earlier < step]
    return any(len(set(each)) == 1 and each != sums[step] for each in before)


def words_of_alone(found: Alone, places: Sequence[Place]) -> Words:
    """What is said of it. places: the hosts of the run."""
    carried = "torch.distributed has carried no gradient between them"
    if found.most:
        carried += f" ({plural(found.most, 'number')} in its largest call)"
    if found.models == "apart":
        what = (
            f"its ranks share nothing: after step {found.step:,} each has weights of its own, and "
            f"{carried}. Each trains a model of its own"
        )
    else:
        what = (
            f"its ranks share nothing and do the same work: after step {found.step:,} they have "
            f"the same weights, though {carried}. Each trains the same model on the same rows"
        )
    meant = "a sweep, in which each rank is to train by itself, needs nothing"
    return Words(what, (*_fix(found, places), meant))


def _fix(found: Alone, places: Sequence[Place]) -> Iterator[str]:
    """How the program shares, by the library that it trains with."""
    library = found.library or ""
    wrap = "model = torch.nn.parallel.DistributedDataParallel(model)"
    if "lightning" in library:
        size = f'{_lightning_size(places)}, strategy="ddp"'
        # The package lightning loads both.
        both = "    Fabric takes the same" if library == "lightning.pytorch" else ""
        yield f"{'Fabric' if library.endswith('fabric') else 'Trainer'}({size}){both}"
    elif library == "deepspeed":
        yield "train with the engine that deepspeed.initialize(model=...) returns"
    elif library == "fastai.learner":
        yield "with learn.distrib_ctx(): learn.fit(...)    from fastai.distributed"
    elif library == "ignite.engine":
        yield "model = ignite.distributed.auto_model(model), in ignite.distributed.Parallel"
    elif library == "transformers.trainer":
        yield 'TrainingArguments(use_cpu=True, ddp_backend="gloo") where ranks have no GPU'
        yield "a loop of your own: model, optimizer = Accelerator().prepare(model, optimizer)"
    elif library == "accelerate":
        yield "model, optimizer, rows = Accelerator().prepare(model, optimizer, rows)"
    elif found.has_group:
        yield f"{wrap}, and train with that"
    else:
        yield f'torch.distributed.init_process_group("gloo"), then {wrap}'
        yield "a DistributedSampler gives each rank rows of its own (docs/guides/own-program.md)"


def _lightning_size(places: Sequence[Place]) -> str:
    """The arguments by which Lightning expects as many ranks as there are."""
    counts = {len(place.ranks) for place in places}
    devices, nodes = sum(len(place.ranks) for place in places), 1
    if len(counts) == 1:
        # It wants as many on each host; where they differ, it takes all for those of one.
        devices, nodes = counts.pop(), len(places)
    return f"devices={devices}, num_nodes={nodes}"
