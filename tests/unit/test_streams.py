"""A program whose output goes into a file outlives a disk that is full for a while."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

SOURCE = Path(__file__).parents[2] / "src"
# Files may grow to 1,000 bytes for a while; the kernel's EFBIG goes the way of ENOSPC.
PROGRAM = """\
import os, resource, sys
sys.path.insert(0, {source!r})
from yoked.streams import outlive_full_disk
if {patient}:
    outlive_full_disk()
print("first")
before = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))
for _ in range(50):
    print("x" * 99)
    print("y" * 99, file=sys.stderr)
resource.setrlimit(resource.RLIMIT_FSIZE, before)
print("there is room again")
assert sys.stdout.fileno() == 1 and sys.stderr.fileno() == 2
os._exit(0 if sys.__stdout__ is sys.stdout or not {patient} else 9)
"""


def run(folder: Path, *flags: str, patient: bool) -> tuple[int, str, str]:
    out, err = folder / "out", folder / "err"
    with out.open("wb") as to_out, err.open("wb") as to_err:
        ended = subprocess.run(
            [sys.executable, *flags, "-c", PROGRAM.format(source=str(SOURCE), patient=patient)],
            stdout=to_out,
            stderr=to_err,
            check=False,
            timeout=60,
        )
    return ended.returncode, out.read_text(), err.read_text()


@pytest.mark.parametrize("flags", [(), ("-u",)], ids=["buffered", "unbuffered"])
def test_what_finds_no_room_is_counted_and_the_program_goes_on(
    tmp_path: Path,
    flags: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)

    status, out, err = run(tmp_path, *flags, patient=True)

    assert status == 0, err
    written, _, after = out.partition("\n[yoked: ")
    lost, _, rest = after.partition(" bytes found no room on the disk]\n")
    assert written.startswith("first\nxxx")
    assert len(written) + int(lost.replace(",", "")) == len("first\n") + 50 * 100
    assert rest == snapshot


def test_without_it_the_program_ends(tmp_path: Path) -> None:
    status, _, err = run(tmp_path, patient=False)

    assert status != 0
    assert "there is room again" not in err


def test_a_pipe_is_left_as_it_is() -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(SOURCE)!r}); before = sys.stdout\n"
        "from yoked.streams import outlive_full_disk; outlive_full_disk()\n"
        "print(sys.stdout is before)"
    )

    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout

    assert said == "True\n"
