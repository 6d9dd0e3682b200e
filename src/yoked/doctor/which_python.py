"""Which Python of a host would train, or why there is none."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

from yoked.errors import YokedError
from yoked.fleet.model import HERE, Host
from yoked.records.examination import Need


def python_of(
    host: Host, need: Need, ask: Callable[..., Any], call: Callable[..., Any]
) -> dict[str, Any]:
    """python, its path; or error, and what else shows why a run would find none.

    ask, call: a call of its agent, which gives None, or raises YokedError, where nothing comes.
    """
    here = host.name == HERE and host.python is None
    if here and importlib.util.find_spec("torch") is not None:
        return {"python": sys.executable}
    wanted = host.python
    told = ask("environment", digest=need.environment or "none", configured=wanted)
    if told is None:
        return {"error": "the host did not say which Python it has"}
    if wanted is not None and told["configured"] is None:
        if why := told.get("unusable"):
            return {"python": wanted, "error": why, "imported": False}
        return {"python": wanted, "error": f"there is no {wanted}"}
    python = told["configured"] or told["made"] or told["system"]
    if python:
        return {"python": python}
    return {"error": "no Python there has torch", "no_base": _why_no_base(host, call)}


def _why_no_base(host: Host, call: Callable[..., Any]) -> str | None:
    """Why `yoked install` could make no environment there; None: it could, or nobody says."""
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    try:
        call("environment_base", named=None, minor=minor)
    except YokedError as problem:
        told = problem.what.removeprefix(f"{host.name}: ")
        return told if "Python" in told else None
    return None
