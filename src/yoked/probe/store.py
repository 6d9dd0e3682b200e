"""What was measured of a fleet, kept on the controller: one file a fleet, the newest alone.

A file belongs to hosts with their interfaces: another link is another measurement.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from yoked.core.fs import write_bytes
from yoked.errors import YokedError
from yoked.fleet.model import Fleet
from yoked.paths import private_folder, state_root
from yoked.records.measurement import Measurement
from yoked.records.measurement_json import measurement_from_json, measurement_to_json


def path_for(fleet: Fleet) -> Path:
    """The file of a fleet, which need not be there."""
    hosts = [[host.name, host.interface, host.device, host.ranks] for host in fleet.hosts]
    digest = hashlib.sha256(json.dumps(hosts).encode()).hexdigest()[:12]
    name = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in fleet.name)
    return state_root() / "probe" / f"{name}-{digest}.json"


def save(fleet: Fleet, measurement: Measurement) -> Path:
    """Keep a measurement instead of the one before it; returns its file. Raises YokedError."""
    path = path_for(fleet)
    try:
        private_folder(path.parent)
        write_bytes(path, measurement_to_json(measurement).encode())
    except OSError as problem:
        raise YokedError(
            f"the measurement cannot be kept in {path}: {problem.strerror}",
            fix="free space there, or set YOKED_STATE to another folder",
        ) from problem
    return path


def load_newest(fleet: Fleet) -> Measurement | None:
    """What was measured last of a fleet as it is now; None: it never was.

    Raises YokedError for a file that is damaged.
    """
    path = path_for(fleet)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as problem:
        raise YokedError(f"{path} cannot be read: {problem}", fix="yoked probe") from problem
    return measurement_from_json(text, where=str(path))
