"""What commands print with --json, against the schemas in docs/reference/schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

SCHEMAS = Path(__file__).parents[1] / "docs" / "reference" / "schemas"


def conforms(name: str, payload: dict[str, Any]) -> dict[str, Any]:
    """The payload, if it is what the schema of that name promises; an error has its own."""
    name = "error" if "error" in payload else name
    schema = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
    flaws = [
        f"{'.'.join(map(str, flaw.absolute_path))}: {flaw.message}"
        for flaw in Draft202012Validator(schema).iter_errors(payload)
    ]
    assert flaws == [], f"not as docs/reference/schemas/{name}.json has it"
    return payload
