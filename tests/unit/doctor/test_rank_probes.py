"""The doctor's rank is text that a bare Python runs: what of ours it imports is in that text."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import yoked
from yoked.doctor.rank_probes import program

OURS = re.compile(r"^(?:from|import) (yoked[\w.]*)", re.MULTILINE)


def test_every_module_comes_before_those_that_import_it(tmp_path: Path) -> None:
    # -I: no folder of ours is on the path, and -S: no package of anybody's.
    text = f"__name__ = 'looked at'\nexec({program()!r})\nprint(list(SOURCES))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", text],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    names = eval(done.stdout)
    assert len(names) > 3
    for at, name in enumerate(names):
        path = Path(yoked.__file__).parents[1].joinpath(*name.split("."))
        if (path / "__init__.py").exists():
            continue
        imported = OURS.findall(path.with_suffix(".py").read_text())
        assert set(imported) <= set(names[:at]), name
