"""A program on trial: it starts now and is told later what to do, or to end.

It reads one line from the descriptor in its last argument. The end of that descriptor, without a
line or after it, means that nobody waits for it any more: so it ends with this agent too.
"""

from __future__ import annotations

import json
import os
import threading
from typing import Any

from yoked.agent.programs import run_program
from yoked.agent.server import Call

_lock = threading.Lock()
# The other ends, by trial: closed with this process.
_ends: dict[str, int] = {}


def answer_trial(call: Call) -> None:
    """Run `argv` and a descriptor. args: trial, its name; argv; env; limit_s.

    Parts: {"line": ...} for each line of its output, at last {"end": its outcome}. Raises HostError
    where it cannot be started.
    """
    name = call.args["trial"]
    source, sink = os.pipe()
    with _lock:
        _ends[name] = sink
    try:
        outcome = run_program(
            [*call.args["argv"], str(source)],
            env=call.args.get("env"),
            # Somebody's torch.py in his home, where we are, is no torch.
            cwd="/",
            limit_s=call.args["limit_s"],
            cancelled=call.cancelled,
            on_line=lambda line: call.send({"line": line}),
            pass_fds=(source,),
        )
    finally:
        os.close(source)
        _end(name)
    # Its lines have been sent.
    call.send({"end": {**outcome.to_json(), "stdout": ""}})


def answer_trial_go(call: Call) -> bool:
    """Tell a trial what to do: `spec`, or null to end. Returns whether it was still there."""
    spec: Any = call.args["spec"]
    if spec is None:
        return _end(call.args["trial"])
    with _lock:
        sink = _ends.get(call.args["trial"])
        if sink is None:
            return False
        try:
            os.write(sink, json.dumps(spec).encode() + b"\n")
        except BrokenPipeError:
            return False
    return True


def _end(name: str) -> bool:
    with _lock:
        sink = _ends.pop(name, None)
        if sink is not None:
            os.close(sink)
    return sink is not None
