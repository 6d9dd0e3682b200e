"""The newest measurement of each fleet, in a file on the controller.

The file's name contains a hash of the hosts and their interfaces: other links are measured anew.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from yoked.core.faults import fault
from yoked.core.fs import write_bytes
from yoked.errors import YokedError
from yoked.fleet.model import Fleet
from yoked.paths import private_folder, state_root
from yoked.records.measurement import Measurement
from yoked.records.measurement_json import measurement_from_json, measurement_to_json


def path_for(fleet: Fleet) -> Path:
    """The file of a fleet's measurement; it may not exist."""
    # On another device, or among more ranks, a step costs something else.
    hosts = [[host.name, host.interface, host.device, host.ranks] for host in fleet.hosts]
    digest = hashlib.sha256(json.dumps(hosts).encode()).hexdigest()[:12]
    # A slash in the fleet's name would lead to another folder.
    name = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in fleet.name)
    return state_root() / "probe" / f"{name}-{digest}.json"


def save(fleet: Fleet, measurement: Measurement) -> Path:
    """Save a measurement in place of the last one; returns its file. Raises YokedError."""
    path = path_for(fleet)
    try:
        private_folder(path.parent)
        write_bytes(path, measurement_to_json(measurement).encode())
    except OSError as problem:
        raise fault("measurement-unwritable", path=path, reason=problem.strerror) from problem
    return path


def load_newest(fleet: Fleet) -> Measurement | None:
    """The newest measurement of a fleet; None: there is none for its present hosts.

    Raises YokedError for a damaged file.
    """
    path = path_for(fleet)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as problem:
        raise YokedError(f"{path} cannot be read: {problem}", fix="yoked probe") from problem
    return measurement_from_json(text, where=str(path))
