"""For what a torch is built is read in its folder; nothing of it is imported."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from yoked.core.torchbuild import torch_build, torch_version

CPU = "cuda: Optional[str] = None\nhip: Optional[str] = None\n"
CUDA = "cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"
ROCM = "cuda: Optional[str] = None\nhip: Optional[str] = '7.2.26015'\n"
OLD = "cuda = '11.8'\n"


@pytest.mark.parametrize(
    ("said", "build", "cuda"),
    [
        (CPU, "cpu", None),
        (CUDA, "cuda", "13.0"),
        (ROCM, "rocm", None),
        (OLD, "cuda", "11.8"),
        ("__version__ = '2.13.0'\n", None, None),
        (None, None, None),
    ],
    ids=["cpu", "cuda", "rocm", "without types", "tells nothing", "no such file"],
)
def test_the_build_is_that_of_its_version_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: str | None,
    build: str | None,
    cuda: str | None,
) -> None:
    folder = tmp_path / "torch"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise ImportError('it was imported')\n")
    if said is not None:
        (folder / "version.py").write_text(f"from typing import Optional\n{said}")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    importlib.invalidate_caches()

    assert torch_build() == {"build": build, "cuda_build": cuda}
    assert torch_version() == ("2.13.0" if said and "2.13.0" in said else None)


def test_where_there_is_no_torch_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    assert torch_build() == {"build": None, "cuda_build": None}
    assert torch_version() is None


def test_of_the_torch_that_is_here_it_says_what_torch_says() -> None:
    program = (
        "from yoked.core.torchbuild import torch_build, torch_version; told = torch_build();"
        "version = torch_version(); import sys;"
        "assert 'torch' not in sys.modules; import torch;"
        "assert version == torch.__version__, version;"
        "assert told['cuda_build'] == torch.version.cuda, told;"
        "assert (told['build'] == 'cpu') == (torch.version.cuda is torch.version.hip is None), told"
    )

    subprocess.run([sys.executable, "-c", program], check=True)
