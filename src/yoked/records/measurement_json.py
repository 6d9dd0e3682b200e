"""A measurement as JSON text, and back: how it is kept, and how it may be handed around.

The keys are the fields of yoked.records.measurement; `version` is that of this layout.
"""

from __future__ import annotations

import dataclasses
import json

from yoked.core.schema import decode
from yoked.costmodel.model_shape import check_shape
from yoked.errors import YokedError
from yoked.records.measurement import Measurement

VERSION = 2
_PROBE_AGAIN = "yoked probe    measures the fleet anew"


def measurement_to_json(measurement: Measurement) -> str:
    """A measurement as text that `measurement_from_json` reads; it ends with a newline."""
    # NaN is not JSON (RFC 8259): other programs could not read it.
    content = {"version": VERSION, **dataclasses.asdict(measurement)}
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def measurement_from_json(text: str, *, where: str = "the measurement") -> Measurement:
    """The measurement in a text. where: the file, for the error.

    Raises YokedError for a text that is damaged, or of another version; keys that this version
    does not know are passed over.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise YokedError(f"{where} is not JSON: {problem}", fix=_PROBE_AGAIN) from problem
    version = content.get("version") if isinstance(content, dict) else None
    if version != VERSION:
        raise YokedError(
            f"{where} has version {version!r}; this yoked reads version {VERSION}",
            fix=_PROBE_AGAIN,
        )
    try:
        measurement: Measurement = decode(Measurement, content)
        for cost in measurement.step_costs:
            check_shape(cost.model)
    except ValueError as problem:
        raise YokedError(f"{where} is damaged: {problem}", fix=_PROBE_AGAIN) from problem
    return measurement
