"""The doctor's rank is text that a bare Python runs: what of ours it imports is in that text."""

from __future__ import annotations

import os
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


def test_the_broken_package_is_named_by_the_file_that_failed(tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    (packages / "mine").mkdir(parents=True)
    (packages / "mine" / "__init__.py").write_text(
        "try:\n    raise OSError('mine.so: cannot open')\n"
        "except OSError as problem:\n    raise ImportError('\\nA page\\nof advice') from problem\n"
    )
    program = (
        f"import sys; sys.path.insert(0, {str(packages)!r})\n"
        "from yoked.probe.smoke_test import _first_cause, blame, in_words\n"
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
        "from yoked.probe.smoke_test import blame\n"
        "try:\n    import ssl\nexcept ImportError as problem:\n    print(blame(problem))"
    )

    told = eval(output(program))

    assert (told["missing"], told["of_python"], told["package"]) == ("_ssl", True, None)


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


def output(program: str, **environment: str) -> str:
    """What a program says that has this yoked."""
    path = {"PYTHONPATH": str(Path(yoked.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **path, **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
