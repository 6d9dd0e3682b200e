"""Hosts train with the versions that are here, or it is said what differs."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.failures import raises_fault
from tests.installing import install_environment

from yoked.core.fs import sha256_of
from yoked.core.torchbuild import torch_build
from yoked.errors import HostError
from yoked.fleet.model import Device, Host
from yoked.launch import requirements
from yoked.launch.environment import (
    Difference,
    Versions,
    all_versions,
    check_versions,
    differences,
    environment_python,
    host_versions,
)
from yoked.launch.install import (
    HostEnvironment,
    InstallOptions,
    InstallPlan,
    check_environment,
    environments_of,
    plan_environment,
)
from yoked.launch.requirements import closure, requirements_digest, train_requirements
from yoked.launch.wheels import WheelSizes, fetch_wheels, platform_tags, wheel_sizes
from yoked.remote.client import AgentClient
from yoked.remote.transport import connect_here

DEADLINE_S = 20.0
WANTED = ("tinyone==1.0", "tinytwo==2.0")
# Stands for a Python: what its pip does, and which versions it has, lies in files beside it.
FAKE_PYTHON = """#!{python}
import json, shutil, sys
from pathlib import Path
beside = Path({beside!r})
words = sys.argv[1:]
if "venv" in words:
    target = Path(words[-1]) / "bin"
    target.mkdir(parents=True)
    shutil.copy(__file__, target / "python")
elif "pip" in words:
    with (beside / "pip-calls").open("a") as file:
        print(*words[2:], file=file)
    exec((beside / "pip").read_text())
elif "-I" in words:
    print(json.dumps([{version}, __file__, {able}]))
else:
    print((beside / "versions").read_text())
"""
# Reaches no index, and takes the wheel that is sent.
OFFLINE_PIP = """
if "--find-links" in words:
    folder = Path(words[words.index("--find-links") + 1])
    assert (folder / "tinyone-1.0-py3-none-any.whl").read_bytes() == b"a wheel"
else:
    print("WARNING: Retrying after connection broken by 'NewConnectionError'", file=sys.stderr)
    sys.exit("ERROR: No matching distribution found for tinyone==1.0")
"""


@dataclass(frozen=True)
class FakeBase:
    """A host's Python that is none, and the folder of what it does."""

    python: Path
    folder: Path

    def pip_does(self, script: str) -> None:
        (self.folder / "pip").write_text(script)

    def has(self, build: str | None = None, **packages: str | None) -> None:
        """build: for what its torch is built."""
        told = {"python": "3.12.1", "packages": packages, "torch": {"build": build}}
        (self.folder / "versions").write_text(json.dumps(told))

    def pip_calls(self) -> list[str]:
        return (self.folder / "pip-calls").read_text().splitlines()


def fake_base(folder: Path, *, version: list[int] | None = None, able: bool = True) -> FakeBase:
    folder.mkdir(parents=True, exist_ok=True)
    python = folder / "python"
    python.write_text(
        FAKE_PYTHON.format(
            python=sys.executable, beside=str(folder), version=version or [3, 12], able=able
        )
    )
    python.chmod(0o755)
    base = FakeBase(python, folder)
    base.pip_does("")
    base.has(tinyone="1.0", tinytwo="2.0")
    return base


@pytest.fixture(autouse=True)
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("YOKED_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def no_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asks an index how large it would be."""
    monkeypatch.setattr("yoked.launch.install.wheel_sizes", lambda *_: None)


@pytest.fixture
def base(tmp_path: Path) -> FakeBase:
    return fake_base(tmp_path / "base")


@pytest.fixture
def agent() -> Iterator[AgentClient]:
    with connect_here(host="attic") as client:
        yield client


def install(agent: AgentClient, base: FakeBase, **more: Any) -> HostEnvironment:
    wishes = InstallOptions(WANTED, python=str(base.python), **more)
    return install_environment(agent, Host("attic"), wishes, lambda line: None)


def environments(own_data: Path) -> list[str]:
    """Folders of environments, whole or not."""
    return [path.name for path in own_data.glob("envs/*/")]


def test_an_environment_is_made_once(agent: AgentClient, base: FakeBase, own_data: Path) -> None:
    first, second = install(agent, base), install(agent, base)

    folder = own_data / "envs" / requirements_digest(WANTED)
    assert first.python == second.python == str(folder / "bin" / "python")
    assert (first.state, second.state) == ("made", "present")
    assert first.differences == ()
    assert len(base.pip_calls()) == 1
    assert (folder / "requirements.txt").read_text() == "tinyone==1.0\ntinytwo==2.0\n"


def test_an_environment_that_does_not_work_is_made_anew(
    agent: AgentClient, base: FakeBase, own_data: Path
) -> None:
    broken = Path(install(agent, base).python).parents[1] / "broken"
    broken.touch()

    again = install(agent, base, anew=True)

    assert again.state == "made"
    assert len(base.pip_calls()) == 2
    assert not broken.exists()
    assert environments(own_data) == [requirements_digest(WANTED)]


def test_another_build_is_another_environment(agent: AgentClient, base: FakeBase) -> None:
    install(agent, base, build="cpu", torch_index="file:///cpu")

    again = install(agent, base, build="cuda")

    assert again.state == "made"
    first, second = base.pip_calls()
    assert "--extra-index-url file:///cpu" in first
    assert "--extra-index-url file:///cpu" not in second


def index_of(base: FakeBase) -> str | None:
    """Where else than at its own index pip looked in the end."""
    words = base.pip_calls()[-1].split()
    return words[words.index("--extra-index-url") + 1] if "--extra-index-url" in words else None


PYTORCH = "https://download.pytorch.org/whl"
NEW = {"name": "RTX 4070", "driver": "580.95.05", "capability": "8.9"}
OLD = {"name": "GTX 1080", "driver": "470.256.02", "capability": "6.1"}


def gpu(**more: Any) -> dict[str, Any]:
    return {"vendor": "nvidia", "memory_bytes": 12 << 30, **NEW, **more}


@pytest.fixture
def has_gpus(monkeypatch: pytest.MonkeyPatch, base: FakeBase) -> Callable[..., Any]:
    """Has a host's facts name these GPUs, and the environment made by `install` on it."""

    def install_with(
        *gpus: dict[str, Any], system: str = "Linux", device: Device = "auto", **wishes: Any
    ) -> tuple[HostEnvironment, list[str]]:
        said: list[str] = []
        with connect_here(host="attic") as client:
            answer = client.call
            facts = {**answer("facts"), "gpus": list(gpus), "os": system}

            def call(name: str, **args: Any) -> Any:
                return facts if name == "facts" else answer(name, **args)

            monkeypatch.setattr(client, "call", call)
            options = InstallOptions(WANTED, python=str(base.python), **wishes)
            made = install_environment(client, Host("attic", device=device), options, said.append)
        return made, said

    return install_with


@pytest.mark.parametrize(
    ("gpus", "device", "index"),
    [
        ([], "auto", "cpu"),
        ([gpu()], "auto", "cu130"),
        ([gpu(driver="550.54.14")], "auto", "cu126"),
        ([gpu(capability="6.1")], "auto", "cu126"),
        ([gpu()], "cpu", "cpu"),
        ([{"vendor": "amd", "name": "gfx1036", "integrated": True}], "auto", "cpu"),
        ([gpu(driver=None, capability=None)], "auto", "cu130"),
    ],
)
def test_a_host_gets_the_torch_that_its_gpu_and_driver_run(
    has_gpus: Callable[..., Any],
    base: FakeBase,
    gpus: list[dict[str, Any]],
    device: Device,
    index: str,
) -> None:
    has_gpus(*gpus, device=device)

    assert index_of(base) == f"{PYTORCH}/{index}"


def test_a_driver_that_runs_no_build_is_said_and_the_cpus_is_installed(
    has_gpus: Callable[..., Any], base: FakeBase, snapshot: SnapshotAssertion
) -> None:
    _, said = has_gpus(gpu(**OLD))

    assert index_of(base) == f"{PYTORCH}/cpu"
    assert said[0] == snapshot


@pytest.mark.parametrize(
    ("given", "gpus", "build", "index"),
    [
        ("file:///cpu", [], None, "file:///cpu"),
        ("file:///mirror", [], None, "file:///mirror"),
        ("file:///cpu", [gpu()], None, f"{PYTORCH}/cu130"),
        ("file:///cu132/", [gpu()], None, "file:///cu132/"),
        ("file:///cu132", [], None, f"{PYTORCH}/cpu"),
        ("file:///mirror", [gpu()], "cuda", "file:///mirror"),
        ("file:///cu132", [], "cpu", "file:///cu132"),
        (None, [], "cuda", f"{PYTORCH}/cu130"),
        (None, [gpu()], "cpu", f"{PYTORCH}/cpu"),
        (None, [gpu(**OLD)], "cuda", None),
    ],
)
def test_an_index_that_is_given_goes_to_the_hosts_that_it_is_for(
    has_gpus: Callable[..., Any],
    base: FakeBase,
    given: str | None,
    gpus: list[dict[str, Any]],
    build: str | None,
    index: str | None,
) -> None:
    has_gpus(*gpus, torch_index=given, build=build)

    assert index_of(base) == index


def test_a_mac_takes_the_one_build_that_there_is(
    has_gpus: Callable[..., Any], base: FakeBase
) -> None:
    has_gpus(system="Darwin")

    assert index_of(base) is None


def test_a_build_that_is_not_the_one_that_was_meant_is_said(
    has_gpus: Callable[..., Any], base: FakeBase, snapshot: SnapshotAssertion
) -> None:
    base.has(tinyone="1.0", tinytwo="2.0", build="cuda")

    made, said = has_gpus()

    assert made.torch_build == "cuda"
    assert said[-1] == snapshot


@pytest.mark.parametrize(
    ("does", "said", "fix"),
    [
        (
            'sys.exit("ERROR: Could not install: [Errno 28] No space left on device")',
            "No space left on device",
            "bytes are free; make room",
        ),
        (
            'sys.exit("ERROR: No matching distribution found for tinyone==1.0")',
            "No matching distribution",
            "--python PATH",
        ),
        ('print("went wrong"); sys.exit(2)', "went wrong", "run the same command again"),
        ("import os; os.kill(os.getpid(), 9)", "pip install failed", "run the same command again"),
    ],
)
def test_what_pip_said_is_shown_and_nothing_is_left(
    agent: AgentClient, base: FakeBase, own_data: Path, does: str, said: str, fix: str
) -> None:
    base.pip_does(does)

    with pytest.raises(HostError) as problem:
        install(agent, base)

    assert problem.value.what.startswith("attic: ")
    assert said in problem.value.what
    assert fix in problem.value.fix[0]
    assert environments(own_data) == []


def test_an_installation_that_fell_short_is_told(agent: AgentClient, base: FakeBase) -> None:
    base.has(tinyone="1.1", tinytwo=None)

    found = install(agent, base)

    assert [str(each) for each in found.differences] == [
        "tinyone is 1.1, should be 1.0",
        "tinytwo is missing, should be 2.0",
    ]


def test_a_host_without_an_index_gets_its_wheels_from_here(
    agent: AgentClient,
    base: FakeBase,
    own_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wheel = tmp_path / "tinyone-1.0-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    wheels = {sha256_of(wheel): wheel}
    monkeypatch.setattr("yoked.launch.install.fetch_wheels", lambda *order: wheels)
    base.pip_does(OFFLINE_PIP)

    found = install(agent, base)

    assert found.state == "made"
    assert ["--no-index" in call for call in base.pip_calls()] == [False, True]
    # What is installed need not lie there twice.
    assert list((tmp_path / "cache" / "blobs").glob("*/*")) == []
    assert list((tmp_path / "cache").rglob("*.whl")) == []
    assert list(own_data.glob("envs/*/.wheels")) == []


# Brings the package that is asked for besides.
ADDING_PIP = """
told = json.loads((beside / "versions").read_text())
told["packages"]["peft"] = "0.15.0" if "-c" in words else None
(beside / "versions").write_text(json.dumps(told))
"""


def test_what_a_program_needs_besides_comes_into_the_environment_that_is_there(
    agent: AgentClient, base: FakeBase, own_data: Path
) -> None:
    base.pip_does(ADDING_PIP)
    first = install(agent, base)

    added = install(agent, base, added=("peft>=0.14",))
    again = install(agent, base, added=("peft>=0.14",))

    folder = own_data / "envs" / requirements_digest(WANTED)
    assert first.python == added.python == again.python
    assert (added.state, again.state) == ("made", "present")
    assert added.packages["peft"] == "0.15.0"
    assert len(base.pip_calls()) == 2
    words = f"-r {folder}/added.txt -c {folder}/constraints.txt"
    assert base.pip_calls()[-1].endswith(words)
    assert (folder / "added.txt").read_text() == "peft>=0.14\n"
    assert (folder / "constraints.txt").read_text() == "tinyone==1.0\ntinytwo==2.0\n"


def test_a_new_environment_gets_both(agent: AgentClient, base: FakeBase) -> None:
    base.pip_does(ADDING_PIP)

    found = install(agent, base, added=("peft>=0.14",))

    assert (found.state, found.differences) == ("made", ())
    assert len(base.pip_calls()) == 2


def test_extras_are_asked_for_again_as_no_version_tells_of_them(
    agent: AgentClient, base: FakeBase
) -> None:
    base.pip_does(ADDING_PIP)
    install(agent, base, added=("peft[tests]",))

    install(agent, base, added=("peft[tests]",))

    assert len(base.pip_calls()) == 3


def test_what_cannot_be_added_leaves_the_environment_as_it_is(
    agent: AgentClient, base: FakeBase
) -> None:
    base.has(tinyone="1.0", tinytwo="2.0", peft=None)
    first = install(agent, base)
    base.pip_does("sys.exit('ERROR: ResolutionImpossible: peft wants another tinyone')")

    with pytest.raises(HostError) as caught:
        install(agent, base, added=("peft",))

    assert caught.value.fix[0].startswith("allow the versions that train: ")
    assert install(agent, base) == replace(first, state="present")
    assert not (Path(first.python).parents[1] / ".downloads").exists()


def test_a_host_without_an_index_gets_what_is_added_as_wheels_and_not_what_it_has(
    agent: AgentClient, base: FakeBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base.has(tinyone="1.0", tinytwo="2.0", peft=None)
    install(agent, base)
    wheel = tmp_path / "tinyone-1.0-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    orders: list[tuple[Any, ...]] = []

    def fetch(*order: Any) -> dict[str, Path]:
        orders.append(order)
        return {sha256_of(wheel): wheel}

    monkeypatch.setattr("yoked.launch.install.fetch_wheels", fetch)
    base.pip_does(OFFLINE_PIP)

    found = install(agent, base, added=("peft",))

    assert found.state == "made"
    assert ["--no-index" in call for call in base.pip_calls()] == [False, False, True]
    assert orders[0][2] == (*WANTED, "peft")
    assert orders[0][-1] == {"tinyone", "tinytwo"}


def test_an_interrupted_installation_ends_and_is_made_anew(base: FakeBase, own_data: Path) -> None:
    base.pip_does("import time; (beside / 'started').touch(); time.sleep(600)")
    agent = connect_here(host="attic")

    def attempt() -> None:
        with pytest.raises(HostError):
            install(agent, base)

    thread = threading.Thread(target=attempt)
    thread.start()
    wait_for(base.folder / "started")
    agent.close()
    thread.join(timeout=DEADLINE_S)
    assert not thread.is_alive()
    base.pip_does("")

    with connect_here(host="attic") as again:
        found = install(again, base)

    assert found.state == "made"


def test_two_installations_at_once_do_not_mix(agent: AgentClient, base: FakeBase) -> None:
    base.pip_does(
        "import time; (beside / 'started').touch()\n"
        "while not (beside / 'go').exists(): time.sleep(0.01)"
    )
    made: list[HostEnvironment] = []
    first = threading.Thread(target=lambda: made.append(install(agent, base)))
    first.start()
    wait_for(base.folder / "started")

    try:
        with (
            connect_here(host="attic") as other,
            raises_fault("install-running"),
        ):
            install(other, base)
    finally:
        (base.folder / "go").touch()
        first.join(timeout=DEADLINE_S)

    assert [each.state for each in made] == ["made"]


def wait_for(path: Path) -> None:
    waited = threading.Event()
    for _ in range(int(DEADLINE_S / 0.01)):
        if path.exists():
            return
        waited.wait(0.01)
    raise AssertionError(f"{path} did not appear in {DEADLINE_S} s")


@pytest.mark.parametrize(
    ("version", "able", "fix"),
    [
        ([3, 9], True, "uv python install"),
        ([3, 99], True, "uv python install"),
        ([3, 12], False, "apt install python3.12-venv"),
    ],
)
def test_a_python_that_will_not_do_is_named(
    agent: AgentClient,
    tmp_path: Path,
    version: list[int],
    able: bool,
    fix: str,
    snapshot: SnapshotAssertion,
) -> None:
    with pytest.raises(HostError) as problem:
        install(agent, fake_base(tmp_path / "bad", version=version, able=able))
    assert str(problem.value) == snapshot

    assert fix in problem.value.fix[0]


def test_a_python_that_is_named_but_not_there_is_said(
    agent: AgentClient, snapshot: SnapshotAssertion
) -> None:
    wishes = InstallOptions(WANTED, python="/no/such/python")

    with pytest.raises(HostError) as caught:
        install_environment(agent, Host("attic"), wishes, lambda line: None)
    assert str(caught.value) == snapshot


def test_a_host_with_a_python_of_its_own_is_only_looked_at(
    agent: AgentClient, base: FakeBase, own_data: Path
) -> None:
    base.has(tinyone="1.0", tinytwo="2.5")
    host = Host("attic", python=str(base.python))

    found = install_environment(agent, host, InstallOptions(WANTED), lambda line: None)

    assert found.state == "named"
    assert found.differences == (Difference("tinytwo", "2.0", "2.5"),)
    assert not own_data.exists()


def test_the_interpreter_is_the_files_then_ours_then_one_with_torch(
    agent: AgentClient, base: FakeBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yoked.launch.environment.train_requirements", lambda: WANTED)
    nothing = Host("attic")
    with raises_fault("torch-missing") as problem:
        environment_python_without_torch(nothing, tmp_path, monkeypatch)
    assert problem.value.fix == ("yoked install --host attic",)

    install(agent, base)

    assert environment_python(agent, nothing).endswith("/bin/python")
    assert "/envs/" in environment_python(agent, nothing)
    named = Host("attic", python=str(base.python))
    assert environment_python(agent, named) == str(base.python)
    assert environment_python(agent, Host(".")) == sys.executable


def environment_python_without_torch(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """As on a host whose python3 has no torch."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "python3").symlink_to("/bin/false")
    with monkeypatch.context() as changed:
        changed.setenv("PATH", f"{tmp_path / 'path'}{os.pathsep}{os.environ['PATH']}")
        with connect_here(host="attic") as agent:
            return environment_python(agent, host)


def test_a_named_interpreter_that_is_gone_is_said(agent: AgentClient) -> None:
    host = Host("attic", python="~/no-such-venv/bin/python")

    with raises_fault("python-missing", python="~/no-such-venv/bin/python"):
        check_environment(agent, host, WANTED)


def test_hosts_must_agree_on_torch_but_not_on_its_build(
    agent: AgentClient, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    bases = {name: fake_base(tmp_path / name) for name in ("desk", "attic", "old", "bare")}
    for name, version in (("desk", "2.13.0+cu130"), ("attic", "2.13.0+cpu"), ("old", "2.12.1")):
        bases[name].has(torch=version)
    bases["bare"].has(torch=None)

    interpreters = [(Host(name), agent, str(base.python)) for name, base in bases.items()]
    problems = check_versions(interpreters, all_versions(interpreters))

    assert [problem.host for problem in problems] == ["old", "bare"]
    assert "torch is 2.12.1 on old" in problems[0].what
    assert "2.13.0+cu130 on desk" in problems[0].what
    assert problems[1].what == snapshot
    assert problems[1].fix[0] == "yoked install --host bare"


def test_a_named_interpreter_without_torch_is_left_to_the_person(
    agent: AgentClient, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    bases = [fake_base(tmp_path / name) for name in ("desk", "attic")]
    bases[0].has(torch="2.13.0+cpu")
    bases[1].has(torch=None)
    hosts = [Host("desk"), Host("attic", python="~/venv/bin/python")]

    interpreters = [
        (host, agent, str(base.python)) for host, base in zip(hosts, bases, strict=True)
    ]
    problems = check_versions(interpreters, all_versions(interpreters))

    assert [problem.fix[0] for problem in problems] == snapshot


def test_versions_of_a_real_interpreter_are_those_of_its_metadata(agent: AgentClient) -> None:
    found = host_versions(agent, sys.executable, ["rich", "no-such-package"])

    assert found.python == platform.python_version()
    assert found.packages == {"rich": metadata.version("rich"), "no-such-package": None}
    assert found.torch == torch_build()


def test_an_interpreter_that_does_not_start_is_named(agent: AgentClient) -> None:
    with raises_fault("python-broken", python="/bin/false"):
        host_versions(agent, "/bin/false", ["torch"])


def test_why_an_interpreter_does_not_start_is_said_by_the_line_that_tells(
    agent: AgentClient, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec env PYTHONHASHSEED=random0 {sys.executable} "$@"\n')
    python.chmod(0o755)

    with pytest.raises(HostError, match="PYTHONHASHSEED must be"):
        host_versions(agent, str(python), ["torch"])


def test_what_a_start_file_of_python_prints_is_no_version(
    agent: AgentClient, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho managed by IT\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)

    assert host_versions(agent, str(python), []).python == platform.python_version()


def test_a_difference_is_in_versions_not_in_builds() -> None:
    found = Versions("3.12.4", {"torch": "2.13.0+cpu", "numpy": "2.1"})

    result = differences(["numpy==2.0", "rich>=14", "torch==2.13.0"], found)

    assert result == [
        Difference("numpy", "2.0", "2.1"),
        Difference("rich", ">=14", None),
    ]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is searched for packages before all others."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def add_package(folder: Path, name: str, version: str, *needs: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {n}" for n in needs)]
    (info / "METADATA").write_text("Metadata-Version: 2.1\n" + "\n".join(lines) + "\n")


def test_a_closure_follows_needs_extras_and_markers(installed: Path) -> None:
    add_package(
        installed,
        "tinyone",
        "1.0+cpu",
        "tinytwo[fast]>=2",
        'tinymac; sys_platform == "elsewhere"',
        "nvidia-tiny==9",
        "tinyabsent<5",
    )
    add_package(installed, "tinytwo", "2.5", 'tinythree; extra == "fast"', "tinyone")
    add_package(installed, "tinythree", "3.0")

    assert closure(["tinyone"]) == {
        "tinyone==1.0",
        "tinytwo==2.5",
        "tinythree==3.0",
        "tinyabsent<5",
    }


def test_what_hosts_need_is_what_is_installed_here() -> None:
    lines = train_requirements()

    assert f"rich=={metadata.version('rich')}" in lines
    assert any(line.startswith("torch==") for line in lines)
    assert lines == train_requirements()
    assert len(requirements_digest(lines)) == 16


def test_an_installation_here_is_noticed(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "own_requirements", lambda: ["tinyone"])
    add_package(installed, "tinyone", "1.0")
    before = train_requirements()

    add_package(installed, "tinynew", "1.0")
    (installed / "tinyone-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: tinyone\nVersion: 1.0\nRequires-Dist: tinynew\n"
    )

    assert before == ("tinyone==1.0",)
    assert train_requirements() == ("tinynew==1.0", "tinyone==1.0")


def test_wheels_fit_the_systems_c_library() -> None:
    linux = {"system": "Linux", "machine": "x86_64", "libc": "glibc", "libc_version": "2.18"}
    mac = {"system": "Darwin", "machine": "arm64", "libc": "", "mac_version": "12.6"}

    assert platform_tags(linux)[:3] == [
        "manylinux_2_18_x86_64",
        "manylinux_2_17_x86_64",
        "manylinux2014_x86_64",
    ]
    assert platform_tags(linux)[-2:] == ["manylinux1_x86_64", "linux_x86_64"]
    assert platform_tags(mac) == [
        "macosx_12_0_arm64",
        "macosx_12_0_universal2",
        "macosx_11_0_arm64",
        "macosx_11_0_universal2",
    ]
    for unknown in ({**linux, "libc": ""}, {**linux, "libc_version": ""}):
        with raises_fault("wheels-unknown", system="Linux"):
            platform_tags(unknown)
    with raises_fault("wheels-unknown", system="Darwin"):
        platform_tags({**mac, "mac_version": ""})


DEBIAN = {
    "system": "Linux",
    "machine": "x86_64",
    "libc": "glibc",
    "libc_version": "2.36",
    "version": "3.12",
}


def test_wheels_that_nobody_has_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))

    with raises_fault("wheels-not-found"):
        fetch_wheels("attic", DEBIAN, ["tinyone==1.0"], [])


def test_an_environment_without_pip_takes_that_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = fake_base(tmp_path / "bin")
    base.python.rename(tmp_path / "bin" / "python3")
    base.pip_does("Path(words[words.index('--dest') + 1], 'tinyone.whl').write_bytes(b'a wheel')")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr("yoked.launch.wheels.importlib.util.find_spec", lambda name: None)

    found = fetch_wheels("attic", DEBIAN, ["tinyone==1.0"], [])

    assert [path.name for path in found.values()] == ["tinyone.whl"]


def test_wheels_of_what_a_host_has_are_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = fake_base(tmp_path / "bin")
    base.pip_does(
        "for name in ('Tiny_One-1.0-py3-none-any.whl', 'peft-0.15-py3-none-any.whl'):\n"
        "    Path(words[words.index('--dest') + 1], name).write_text(name)"
    )
    monkeypatch.setattr("yoked.launch.wheels.sys.executable", str(base.python))

    found = fetch_wheels("attic", DEBIAN, ["tiny-one==1.0", "peft"], [], there={"tiny-one"})
    sizes = wheel_sizes(DEBIAN, ["tiny-one==1.0", "peft"], [], {"tiny-one"})

    assert [path.name for path in found.values()] == ["peft-0.15-py3-none-any.whl"]
    assert sizes == WheelSizes(1, len("peft-0.15-py3-none-any.whl"))


def test_fetching_wheels_here_says_how_many_bytes_have_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = fake_base(tmp_path / "bin")
    base.pip_does(
        "import os, time; Path(os.environ['TMPDIR'], 'part').write_bytes(bytes(4000)); "
        "time.sleep(1); Path(words[words.index('--dest') + 1], 'tinyone.whl').write_bytes(b'')"
    )
    monkeypatch.setattr("yoked.launch.wheels.sys.executable", str(base.python))
    monkeypatch.setattr("yoked.launch.wheels._LOOK_S", 0.05)
    told: list[tuple[object, ...]] = []

    class Seen:
        def update(self, *words: object) -> None:
            told.append(words)

    (wheel,) = fetch_wheels("attic", DEBIAN, ["tinyone==1.0"], [], Seen(), 3000).values()

    assert ("fetching", 3000, 3000, "bytes") in told
    assert not (wheel.parent / ".downloads").exists()


# ---- how much, how far, and away again ----


def test_a_plan_says_what_would_be_made_and_makes_nothing(
    agent: AgentClient, base: FakeBase, own_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "yoked.launch.install.wheel_sizes", lambda *_: WheelSizes(54, 331_000_000, 1)
    )
    wishes = InstallOptions(WANTED, python=str(base.python))

    plan = plan_environment(agent, Host("attic"), wishes, lambda line: None)

    assert isinstance(plan, InstallPlan)
    assert "54 packages, 331 MB and 1 of unknown size" in plan.lines[0]
    assert environments(own_data) == []


def test_a_host_that_unpacks_tells_how_far_it_is(agent: AgentClient, base: FakeBase) -> None:
    told: list[tuple[str, int, int | None, str]] = []

    class Bar:
        def update(self, stage: str, done: int, total: int | None, unit: str) -> None:
            told.append((stage, done, total, unit))

    base.pip_does(
        """
import os, time, zipfile
downloads = Path(os.environ["TMPDIR"])
with zipfile.ZipFile(downloads / "tinyone-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("tinyone.py", "#" * 5_000)
time.sleep(1.3)
print("Installing collected packages: tinyone", flush=True)
packages = Path(sys.argv[0]).parents[1] / "lib"
packages.mkdir()
(packages / "tinyone.py").write_text("#" * 5_000)
time.sleep(1.3)
"""
    )
    wishes = InstallOptions(WANTED, python=str(base.python))

    install_environment(agent, Host("attic"), wishes, lambda line: None, Bar())

    assert {stage for stage, *_ in told} == {"downloading", "unpacking"}
    assert told[-1][0] == "unpacking"
    assert told[-1][2:] == (5_000, "bytes")


def test_what_install_made_is_removed_and_nothing_else(
    agent: AgentClient, base: FakeBase, own_data: Path
) -> None:
    made = Path(install(agent, base).python).parents[1]
    (own_data / "other").mkdir()

    there = environments_of(agent)
    removed = environments_of(agent, remove=True)

    assert [(each["path"], each["removed"]) for each in there] == [(str(made), False)]
    assert [(each["path"], each["removed"]) for each in removed] == [(str(made), True)]
    assert sorted(path.name for path in own_data.rglob("*")) == ["envs", "other"]
    assert install(agent, base).state == "made"


def test_an_environment_that_a_process_uses_stays(
    agent: AgentClient, base: FakeBase, own_data: Path
) -> None:
    made = Path(install(agent, base).python).parents[1]
    user = subprocess.Popen(
        ["sh", "-c", f"echo; sleep 60; : {made}/bin/python"], stdout=subprocess.PIPE
    )
    assert user.stdout is not None
    with user.stdout:
        # The kernel has its command line a moment after it begins.
        user.stdout.readline()
        try:
            (left,) = environments_of(agent, remove=True)
        finally:
            user.kill()
            user.wait()

    assert (left["removed"], left["why"]) == (False, "used")
    assert made.is_dir()


def test_sizes_are_those_of_the_wheels_that_pip_would_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YOKED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    made = tiny_wheel(tmp_path)

    sizes = wheel_sizes(LINUX, ("tinyone==1.0",), ())
    missing = wheel_sizes(LINUX, ("tinytwo==1.0",), ())
    there = wheel_sizes(LINUX, ("tinyone==1.0",), (), {"tinyone"})

    assert sizes == WheelSizes(1, made.stat().st_size)
    assert missing is None
    assert there == WheelSizes(0, 0)
    assert not list((tmp_path / "cache").rglob("*.whl"))


LINUX = {
    "version": "3.12",
    "system": "Linux",
    "machine": "x86_64",
    "libc": "glibc",
    "libc_version": "2.36",
    "mac_version": "",
}


def tiny_wheel(folder: Path) -> Path:
    path = folder / "tinyone-1.0-py3-none-any.whl"
    info = "tinyone-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("tinyone.py", "VERSION = 1\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tinyone\nVersion: 1.0\n")
        tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{info}/WHEEL", tags)
        wheel.writestr(f"{info}/RECORD", "")
    return path
