"""A measurement as JSON text, and back: how it is kept, and how it may be handed around.

The keys are the fields of yoked.records.measurement; `version` is that of this layout.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, Union

from yoked.errors import YokedError
from yoked.records.measurement import Measurement

VERSION = 1
_PROBE_AGAIN = "yoked probe    measures the fleet anew"


def measurement_to_dict(measurement: Measurement) -> dict[str, Any]:
    """A measurement as plain data, with the version of its layout."""
    return {"version": VERSION, **dataclasses.asdict(measurement)}


def measurement_to_json(measurement: Measurement) -> str:
    """A measurement as text that `measurement_from_json` reads; it ends with a newline."""
    # NaN is not JSON (RFC 8259): other programs could not read it.
    return json.dumps(measurement_to_dict(measurement), indent=1, allow_nan=False) + "\n"


def measurement_from_json(text: str, *, where: str = "the measurement") -> Measurement:
    """The measurement in a text. where: the file, for the error.

    Raises YokedError for a text that is damaged, or of another version; keys that this version
    does not know are passed over.
    """
    try:
        content = json.loads(text)
    except ValueError as problem:
        raise YokedError(f"{where} is not JSON: {problem}", fix=_PROBE_AGAIN) from problem
    version = content.get("version") if isinstance(content, dict) else None
    if version != VERSION:
        raise YokedError(
            f"{where} has version {version!r}; this yoked reads version {VERSION}",
            fix=_PROBE_AGAIN,
        )
    try:
        measurement: Measurement = _build(Measurement, content, "")
    except (TypeError, ValueError) as problem:
        raise YokedError(f"{where} is damaged: {problem}", fix=_PROBE_AGAIN) from problem
    return measurement


def _build(kind: Any, value: Any, path: str) -> Any:
    """A value of one of the records' types. Raises TypeError that names what is not one."""
    if dataclasses.is_dataclass(kind):
        return _build_record(kind, value, path)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        _require(isinstance(value, list), path, "a list", value)
        return tuple(_build(inner[0], item, f"{path}[{n}]") for n, item in enumerate(value))
    if origin is dict:
        _require(isinstance(value, dict), path, "an object", value)
        return {key: _build(inner[1], item, f"{path}.{key}") for key, item in value.items()}
    if origin in (types.UnionType, Union):
        # The records have no union but `X | None`.
        known = next(each for each in inner if each is not type(None))
        return None if value is None else _build(known, value, path)
    if kind is float:
        # `type`, because True is an int too. JSON may have 1 for 1.0.
        _require(type(value) in (int, float), path, "a number", value)
        return float(value)
    _require(type(value) is kind, path, {int: "a whole number", str: "a text"}[kind], value)
    return value


def _build_record(kind: Any, value: Any, path: str) -> Any:
    _require(isinstance(value, Mapping), path, "an object", value)
    fields = _field_types(kind)
    missing = [f"{path}.{name}".lstrip(".") for name in fields if name not in value]
    if missing:
        raise TypeError(f"{', '.join(missing)} missing")
    return kind(**{name: _build(fields[name], value[name], f"{path}.{name}") for name in fields})


@cache
def _field_types(kind: Any) -> dict[str, Any]:
    # Annotations are texts here, which each call evaluates anew.
    return typing.get_type_hints(kind)


def _require(holds: bool, path: str, wanted: str, value: Any) -> None:
    if not holds:
        raise TypeError(f"{path.lstrip('.') or 'it'} is {value!r:.60}, not {wanted}")
