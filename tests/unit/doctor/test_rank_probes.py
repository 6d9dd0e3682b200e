"""The doctor's rank is text that a bare Python runs: what of ours it imports is in that text."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import yoked
from yoked.doctor.rank_probes import program

PATH = {"PYTHONPATH": str(Path(yoked.__file__).parents[1])}
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


def test_the_broken_package_is_named_by_the_file_that_failed(tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    (packages / "mine").mkdir(parents=True)
    (packages / "mine" / "__init__.py").write_text(
        "try:\n    raise OSError('mine.so: cannot open')\n"
        "except OSError as problem:\n    raise ImportError('\\nA page\\nof advice') from problem\n"
    )
    program = (
        f"import sys; sys.path.insert(0, {str(packages)!r})\n"
        "from yoked.probe.origins import blame\n"
        "from yoked.probe.smoke_test import _first_cause, in_words\n"
        "try:\n    import mine\nexcept ImportError as problem:\n"
        "    cause = _first_cause(problem)\n    print([in_words(cause), blame(cause)])"
    )

    words, told = eval(output(program))

    assert words == "OSError: mine.so: cannot open"
    assert (told["package"], told["of_python"]) == ("mine", False)
    assert told["file"] == str(packages / "mine" / "__init__.py")


def test_what_is_missing_of_python_itself_is_told_apart() -> None:
    program = (
        "import sys; sys.modules['_ssl'] = None\n"
        "from yoked.probe.origins import blame\n"
        "try:\n    import ssl\nexcept ImportError as problem:\n    print(blame(problem))"
    )

    told = eval(output(program))

    assert (told["missing"], told["of_python"], told["package"]) == ("_ssl", True, None)


def test_a_module_is_known_by_its_sources_wherever_it_lies(tmp_path: Path) -> None:
    for name, scale in (("a", 1.0), ("b", 1.0), ("c", 0.5)):
        (tmp_path / name / "rows" / "deep").mkdir(parents=True)
        (tmp_path / name / "rows" / "__init__.py").write_text("")
        (tmp_path / name / "rows" / "notes.txt").write_text(name)
        (tmp_path / name / "rows" / "deep" / "scale.py").write_text(f"SCALE = {scale}\n")
        (tmp_path / name / "single.py").write_text("import rows\n")
    for number in range(70):
        (tmp_path / "a" / "rows" / "deep" / f"m{number}.py").touch()

    def told(name: str) -> dict[str, Any]:
        program = (
            f"import sys; sys.path.insert(0, {str(tmp_path / name)!r})\n"
            "from yoked.probe.origins import modules\n"
            "print(modules(['rows', 'single', 'no_such_module']))"
        )
        found: dict[str, Any] = eval(output(program))
        return found

    a, b, c = map(told, "abc")

    assert b["rows"]["path"] == str(tmp_path / "b" / "rows" / "__init__.py")
    assert b["single"]["digest"] == c["single"]["digest"]
    assert b["rows"]["digest"] != c["rows"]["digest"]
    assert (a["rows"]["digest"], b["rows"]["version"], c["no_such_module"]) == (None, None, None)


def test_a_python_that_keeps_nothing_that_it_compiles_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    (tmp_path / "torch.py").write_text("")
    program = (
        "from yoked.probe.smoke_test import _is_compiled\n"
        f"print(_is_compiled({str(tmp_path / 'torch.py')!r}))"
    )
    imports = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import torch"

    kept_elsewhere = output(program, PYTHONPYCACHEPREFIX=str(tmp_path / "cache"))
    kept_nowhere = output(program, PYTHONPYCACHEPREFIX="/dev/null/cache")
    before = output(program)
    output(imports)

    assert (kept_elsewhere, kept_nowhere) == ("True\n", "False\n")
    assert (before, output(program)) == ("False\n", "True\n")


@pytest.mark.skipif(not hasattr(signal, "sigtimedwait"), reason="asks who sent a signal")
def test_who_stops_and_continues_a_rank_is_told() -> None:
    program = (
        "import sys; from yoked.probe.smoke_test import watch_stops\n"
        "watch_stops(); print('ready', flush=True); sys.stdin.read()"
    )
    with started(program) as rank:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "ready\n"
        rank.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, rank.pid, os.WSTOPPED)
        # Several beats long.
        time.sleep(0.3)
        rank.send_signal(signal.SIGCONT)
        said = json.loads(rank.stdout.readline())
        assert rank.stdin is not None
        rank.stdin.close()

    stops = said["has"]["stops"]
    assert (stops["times"], stops["pid"]) == (1, os.getpid())
    assert stops["lost_s"] > 0
    assert "python" in stops["command"]


def test_settings_that_forbid_tls_1_3_are_seen(tmp_path: Path) -> None:
    settings = tmp_path / "openssl.cnf"
    settings.write_text(
        "openssl_conf = d\n[d]\nssl_conf = s\n[s]\nsystem_default = x\n[x]\nMaxProtocol = TLSv1.2\n"
    )
    program = "from yoked.probe.smoke_test import tls_limit; print(tls_limit())"

    assert eval(output(program)) == {}
    assert eval(output(program, OPENSSL_CONF=str(settings))) == {
        "tls_most": "TLSv1_2",
        "tls_file": str(settings),
    }


def started(program: str) -> subprocess.Popen[str]:
    """A program that has this yoked, and goes on."""
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, **PATH},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def output(program: str, **environment: str) -> str:
    """What a program says that has this yoked."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **PATH, **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
