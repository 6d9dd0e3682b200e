"""`yoked plan --params`: what the network costs any model, by arithmetic alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from cyclopts import Group

from yoked.cli.flags import flag, given_flags
from yoked.cli.output import Output
from yoked.errors import UsageError
from yoked.units import format_count, parse_count, parse_link_bit_per_s

ANY_MODEL = Group("Any model: arithmetic without a fleet", sort_key=2)
_DEFAULT_LINK_BIT_PER_S = 1e9


@dataclass(frozen=True)
class AnyModelFlags:
    """A model of which the number of parameters is known, and its network."""

    params: Annotated[
        str | None, flag(ANY_MODEL, "Parameters of any model, such as 760M or 1.5B.")
    ] = None
    trainable: Annotated[
        str | None,
        flag(ANY_MODEL, "Parameters that are trained, such as LoRA's 1.1M. Default: all."),
    ] = None
    payload: Annotated[
        Literal["fp32", "bf16", "fp16", "int8", "int4"] | None,
        flag(ANY_MODEL, "Number format in which gradients travel. Default: fp32, as in DDP."),
    ] = None
    hosts: Annotated[int | None, flag(ANY_MODEL, "Hosts, of one rank each. Default: 2.")] = None
    link: Annotated[
        str | None,
        flag(ANY_MODEL, "The line between them: 1gbit, 2.5GbE, 400G. Default: 1gbit."),
    ] = None
    step_s: Annotated[
        float | None,
        flag(ANY_MODEL, "Seconds of a forward and backward pass on one rank, without the network."),
    ] = None
    efficiency: Annotated[
        float | None,
        flag(ANY_MODEL, "Part of the line that an all-reduce reaches. Default: 0.95, as Gloo's."),
    ] = None


def require_alone(flags: AnyModelFlags, others: list[str]) -> None:
    """Raise UsageError for --params beside flags of a fleet, or for its flags without it."""
    if flags.params is None and (given := given_flags(flags)):
        raise UsageError(
            f"{next(iter(given))} belongs to --params, which is missing",
            fix="yoked plan --params 760M --payload bf16 --hosts 2 --link 1gbit --step-s 1.5",
        )
    if flags.params is not None and others:
        raise UsageError(
            f"--params is about any model on any network, {others[0]} about yoked's model on a "
            "fleet",
            fix=f"leave out --params, or {' and '.join(others)}",
        )


def plan_any_model(flags: AnyModelFlags, output: Output) -> None:
    """Print bytes, times and levers. Raises UsageError for values that cannot be meant."""
    from yoked.cli.commands.plan_params_text import lines, payload, verdict
    from yoked.plan.comm_cost import GLOO_LINE_FRACTION, Training

    assert flags.params is not None, "require_alone comes first"
    params = _checked_params(flags.params, "--params")
    training = Training(
        params=params,
        trainable=_checked_trainable(flags.trainable, params),
        payload=flags.payload or "fp32",
        hosts=_checked(flags.hosts, 2, "--hosts", "2 or more", lambda hosts: hosts >= 2),
        efficiency=_checked(
            flags.efficiency,
            GLOO_LINE_FRACTION,
            "--efficiency",
            "above 0 and at most 1",
            lambda efficiency: 0 < efficiency <= 1,
        ),
        step_s=_checked(
            flags.step_s, None, "--step-s", "above 0", lambda step_s: 0 < step_s < math.inf
        ),
    )
    link = (
        _DEFAULT_LINK_BIT_PER_S
        if flags.link is None
        else parse_link_bit_per_s(flags.link, "--link")
    )
    measured = flags.efficiency is None
    output.result(
        payload(training, link, measured=measured),
        verdict=verdict(training, link),
        evidence=lines(training, link, measured=measured),
    )


def _checked_params(text: str, name: str) -> float:
    try:
        params = parse_count(text)
    except UsageError as problem:
        raise UsageError(
            f"{name} {text!r} is not a number of parameters", fix=problem.fix
        ) from problem
    if params < 1:
        raise UsageError(f"{name} {text!r} is less than one parameter", fix=f"{name} 760M")
    return params


def _checked_trainable(text: str | None, params: float) -> float | None:
    if text is None:
        return None
    trainable = _checked_params(text, "--trainable")
    if trainable > params:
        raise UsageError(
            f"--trainable {text} is more than the model has, --params {format_count(params)}",
            fix="--params counts all parameters, --trainable those of them that are trained",
        )
    return trainable


def _checked(given: Any, default: Any, name: str, allowed: str, is_allowed: Any) -> Any:
    if given is None:
        return default
    if not is_allowed(given):
        raise UsageError(f"{name} {given} is not {allowed}", fix=f"give {name} a value {allowed}")
    return given
