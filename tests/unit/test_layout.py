"""What the project promises about its own shape."""

from __future__ import annotations

import ast
import importlib.util
import re
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from yoked import __version__

REPOSITORY = Path(__file__).parents[2]


def test_torch_is_pinned_and_only_an_extra() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]

    assert "torch==2.13.0" in project["optional-dependencies"]["train"]
    assert not any(line.startswith(("torch", "numpy")) for line in project["dependencies"])


def test_the_changelog_knows_this_version() -> None:
    assert f"## {__version__} " in (REPOSITORY / "CHANGELOG.md").read_text()


HOUSE = [
    "ARCHITECTURE.md",
    *sorted(str(page.relative_to(REPOSITORY)) for page in REPOSITORY.glob("src/yoked/*/README.md")),
]


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        *HOUSE,
        *sorted(str(page.relative_to(REPOSITORY)) for page in REPOSITORY.glob("docs/**/*.md")),
    ],
)
def test_links_between_the_documents_lead_somewhere(name: str) -> None:
    document = REPOSITORY / name
    for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
        assert (document.parent / target).exists(), f"{name} points to {target}"


@pytest.mark.parametrize("page", HOUSE)
def test_every_file_that_the_architecture_names_is_there(page: str) -> None:
    named = set(re.findall(r"\b([\w/]+\.(?:py|c))\b", (REPOSITORY / page).read_text()))
    there = [
        str(path)
        for folder in ("benchmarks", "scripts", "src", "tests")
        for path in (REPOSITORY / folder).rglob("*.[pc]*")
    ]

    assert [name for name in sorted(named) if not any(p.endswith(f"/{name}") for p in there)] == []


def test_the_architecture_is_read_in_one_sitting() -> None:
    assert len((REPOSITORY / "ARCHITECTURE.md").read_text().splitlines()) <= 250


def test_where_architecture_sends_a_reader_is_what_it_says() -> None:
    _, _, rest = (REPOSITORY / "ARCHITECTURE.md").read_text().partition("## Where to go")
    table, _, _ = rest.partition("\n## ")
    places = re.findall(r"\b([\w/]+\.py):(\w+)", table)

    assert len(places) >= 15
    for path, name in places:
        source = (REPOSITORY / "src/yoked" / path).read_text()
        assert re.search(rf"(?m)^(def {name}\(|class {name}\b|{name}\b.*=)", source), (path, name)


def test_the_tests_that_the_picture_of_the_house_names_are_there() -> None:
    _, _, rest = (REPOSITORY / "ARCHITECTURE.md").read_text().partition("must not lose")
    table, _, _ = rest.partition("\n## ")
    named = re.findall(r"^\|.*?\| (.*) \|$", table, re.MULTILINE)
    tests = [name for line in named for name in re.findall(r"`(\w+)`", line)]
    source = "".join(path.read_text() for path in (REPOSITORY / "tests").rglob("test_*.py"))

    assert len(tests) >= 10
    assert [name for name in tests if f"def test_{name}(" not in source] == []


# They run on no CI, so a name that moved would be missed only by whoever measures next.
@pytest.mark.parametrize(
    "path",
    [
        str(path.relative_to(REPOSITORY))
        for folder in ("benchmarks", "scripts")
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
    ],
)
def test_what_benchmarks_and_scripts_import_from_yoked_is_there(path: str) -> None:
    for node in ast.walk(ast.parse((REPOSITORY / path).read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "yoked":
            module = importlib.import_module(node.module or "")
            for name in (each.name for each in node.names):
                assert hasattr(module, name) or importlib.util.find_spec(
                    f"{module.__name__}.{name}"
                ), f"{module.__name__} has no {name}"


def imports_of(path: Path) -> set[str]:
    """Modules that a file names in imports, in functions and for types too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {f"{node.module}.{each.name}" for each in node.names}
    return found


def test_no_modules_import_each_other_in_a_circle() -> None:
    modules = {
        ".".join(path.relative_to(REPOSITORY / "src").with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in (REPOSITORY / "src" / "yoked").rglob("*.py")
    }
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        # `from yoked.lab import boot` names a module, `from yoked.lab.boot import start` does not.
        named = {each if each in modules else each.rpartition(".")[0] for each in imports_of(path)}
        graph[name] = {each for each in named if each in modules and each != name}

    # Raises CycleError, which names the modules.
    tuple(TopologicalSorter(graph).static_order())
