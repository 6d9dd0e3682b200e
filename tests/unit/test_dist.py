"""What people install is whole, holds nothing else, and is the same however often it is built."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata

from yoked import __version__
from yoked.core.source import SOURCE

REPOSITORY = Path(__file__).parents[2]
# Kinds of files that are read while yoked runs: without them an installation breaks late.
NEEDED = {
    "yoked/py.typed",
    "yoked/launch/manifests/slurm.sh",
    "yoked/launch/manifests/kubernetes.yaml",
    "yoked/plan/fleets/two-laptops.toml",
    "yoked/lab/topologies/two-hosts-1gbe.toml",
    "yoked/train/kernels/codecs.c",
    "yoked/train/kernels/adamw.cu",
    "yoked/report/page/page.html",
    "yoked/report/page/vendor/uPlot.iife.min.js",
    "yoked/report/page/vendor/LICENSE",
}


def build(checkout: Path, folder: Path) -> Path:
    """Build both archives of a checkout; returns their folder."""
    argv = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(argv, cwd=checkout, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(REPOSITORY, tmp_path_factory.mktemp("dist"))


def the_wheel(dist: Path) -> Path:
    return dist / f"yoked-{__version__}-py3-none-any.whl"


def members_of_sdist(dist: Path) -> list[str]:
    """Paths below the folder that it unpacks to."""
    with tarfile.open(dist / f"yoked-{__version__}.tar.gz") as archive:
        return [each.name.partition("/")[2] for each in archive.getmembers()]


def tracked(*below: str) -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *below],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("this is no checkout of git")
    return {name for name in listed.stdout.splitlines() if (REPOSITORY / name).exists()}


def test_the_wheel_has_what_is_in_src_and_nothing_else(dist: Path) -> None:
    info = f"yoked-{__version__}.dist-info"
    with zipfile.ZipFile(the_wheel(dist)) as archive:
        names = set(archive.namelist())

    own = {name for name in names if not name.startswith(info)}
    assert own == {name.removeprefix("src/") for name in tracked("src/yoked")}
    assert own >= NEEDED
    assert f"{info}/licenses/LICENSE" in names


def test_the_source_archive_has_no_results_and_nothing_untracked(dist: Path) -> None:
    names = set(members_of_sdist(dist))

    assert names <= tracked() | {"PKG-INFO"}
    assert names >= tracked("src", "tests", "docs", "scripts") | {"pyproject.toml", "LICENSE"}
    assert not any(name.startswith("benchmarks/") for name in names)


def test_the_wheel_says_what_an_index_needs(dist: Path) -> None:
    with zipfile.ZipFile(the_wheel(dist)) as archive:
        said = archive.read(f"yoked-{__version__}.dist-info/METADATA")

    found = Metadata.from_email(said, validate=True)

    assert found.name == "yoked"
    assert {"train"} <= set(found.provides_extra or ())
    assert found.description_content_type == "text/markdown"


def test_the_archive_of_sources_builds_the_same_wheel(dist: Path, tmp_path: Path) -> None:
    with tarfile.open(dist / f"yoked-{__version__}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")

    again = build(tmp_path / f"yoked-{__version__}", tmp_path / "dist")

    for first in dist.iterdir():
        assert first.read_bytes() == (again / first.name).read_bytes(), first.name


def test_the_wheel_is_named_as_errors_and_docs_have_it(dist: Path) -> None:
    assert SOURCE in ("yoked", f"dist/{the_wheel(dist).name}")
