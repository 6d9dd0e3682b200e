"""Hosts that differ in what lies on them; the machine's own files stay as they are."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from yoked.errors import LabError

HASHES = """
import hashlib, json, pathlib, sys
top = pathlib.Path(sys.argv[1])
found = {
    str(path.relative_to(top)): hashlib.sha256(path.read_bytes()).hexdigest()
    for path in top.rglob("*") if path.is_file() and path.suffix != ".pyc"
}
print(json.dumps(found))
"""
# A package that says of itself what torch does, in the host's own copy of site-packages.
MAKE_TORCH = """
import pathlib, site
place = pathlib.Path(site.getsitepackages()[0])
package, about = place / "torch", place / "torch-2.13.0.dist-info"
package.mkdir(), about.mkdir()
(package / "__init__.py").write_text("from .version import __version__\\n")
(package / "version.py").write_text("__all__ = []\\n__version__ = '2.13.0+cpu'\\ndebug = False\\n")
(about / "METADATA").write_text("Metadata-Version: 2.4\\nName: torch\\nVersion: 2.13.0+cpu\\n")
print(place)
"""
VERSIONS = """
import importlib.metadata, torch
print(torch.__version__, importlib.metadata.version("torch"))
"""


def hashes(acts: Any, host: str, folder: str | Path) -> dict[str, str]:
    found: dict[str, str] = json.loads(acts.python(host, HASHES, folder))
    return found


def machine_hashes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


SHARDS = "/var/tmp/shards"
MAKE_SHARDS = f"""
import pathlib
folder = pathlib.Path("{SHARDS}/train")
folder.mkdir(parents=True, exist_ok=True)
for number in range(4):
    (folder / f"shard_{{number}}.bin").write_bytes(bytes([number]) * 5000)
"""


@pytest.fixture
def torch(acts: Any) -> str:
    """Where the Python of alpha has a torch; without one it gets a small likeness."""
    alpha = acts.lab.host("alpha")
    if alpha.run(["python3", "-c", "import torch"], check=False).returncode:
        place = alpha.run(["python3", "-c", MAKE_TORCH], as_root=True).stdout.strip()
        assert not (Path(place) / "torch").exists()
    versions: str = alpha.run(["python3", "-c", VERSIONS]).stdout
    return versions


def test_torch_and_its_metadata_report_another_version(acts: Any, torch: str) -> None:
    alpha = acts.lab.host("alpha")

    acts.fault("different-torch", "alpha", "2.12.1+cpu")
    seen = alpha.run(["python3", "-c", VERSIONS]).stdout
    acts.heal("alpha")

    assert seen == "2.12.1+cpu 2.12.1+cpu\n"
    assert torch != seen
    assert alpha.run(["python3", "-c", VERSIONS]).stdout == torch


def test_data_has_a_file_less_and_other_bytes_and_comes_back_whole(acts: Any) -> None:
    acts.python("alpha", MAKE_SHARDS)
    before = hashes(acts, "alpha", SHARDS)

    fault = acts.fault("different-data", "alpha", SHARDS)
    seen = hashes(acts, "alpha", SHARDS)
    acts.heal("alpha")

    gone = before.keys() - seen.keys()
    other = {name for name in seen if seen[name] != before[name]}
    assert (len(gone), len(other)) == (1, 1)
    assert all(f"{SHARDS}/{name}" in fault.text for name in gone | other)
    assert hashes(acts, "alpha", SHARDS) == before


def test_a_seed_decides_which_data_differs(acts: Any) -> None:
    acts.python("alpha", MAKE_SHARDS)
    told = []

    for _ in range(2):
        told.append(acts.fault("different-data", "alpha", SHARDS, seed=5).text)
        acts.heal()

    assert told[0] == told[1]


def test_data_that_a_person_copied_anew_is_not_overwritten_by_healing(acts: Any) -> None:
    acts.python("alpha", MAKE_SHARDS)
    acts.fault("different-data", "alpha", SHARDS)
    anew = (
        "import pathlib; p = pathlib.Path('{0}/train'); [f.write_text('new') for f in p.iterdir()]"
    )
    acts.python("alpha", anew.format(SHARDS))
    mended = hashes(acts, "alpha", SHARDS)

    acts.heal()

    after = hashes(acts, "alpha", SHARDS)
    assert mended.items() <= after.items()
    assert len(after) == 4


def test_a_folder_without_data_is_refused(acts: Any) -> None:
    with pytest.raises(LabError) as refused:
        acts.fault("different-data", "alpha", "/var/tmp/nothing")

    assert {"alpha", "/var/tmp/nothing"} <= set(refused.value.what.split())
    assert acts.heal() == []


def test_code_differs_by_a_line_in_one_host_and_nowhere_else(acts: Any) -> None:
    # Files of the machine that all hosts see.
    folder = Path(json.__file__).parent
    machine = machine_hashes(folder)
    before = hashes(acts, "alpha", folder)

    acts.fault("different-code", "alpha", folder)
    seen = {host: hashes(acts, host, folder) for host in ("alpha", "beta")}
    acts.heal("alpha")

    assert len(before.items() - seen["alpha"].items()) == 1
    assert seen["beta"] == before
    assert machine_hashes(folder) == machine
    assert hashes(acts, "alpha", folder) == before


def test_code_differs_in_yoked_itself_unless_told_otherwise(acts: Any) -> None:
    fault = acts.fault("different-code", "alpha")

    path = fault.text.split()[2]
    assert "/yoked/" in path
    assert acts.lab.host("alpha").read_text(path).endswith("never committed.\n")
