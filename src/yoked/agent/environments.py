"""Virtual environments on this host: complete, with a marker that says so, or absent.

    <data>/envs/<digest>/             one for each list of requirements
    <data>/envs/<digest>/yoked.json   written last: what it was made of
    <data>/envs/<digest>/.downloads/  what pip fetches, while it works
    <data>/envs/<digest>/.wheels/     names of wheels that were sent, while pip reads them
    <data>/envs/<digest>.lock         held by whoever makes it, and by the pip that works for him

<data> is `paths.data_root`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from yoked.agent.files import blob_path, require, sync_tree, writing_to
from yoked.agent.install_progress import InstallWatch, folder_bytes
from yoked.agent.programs import Outcome, run_program
from yoked.agent.server import Call
from yoked.core.faults import fault
from yoked.core.fs import free_bytes, read_json, write_json
from yoked.core.names import path_word
from yoked.core.packages import install_line, package_manager, this_distribution
from yoked.core.proc import all_processes
from yoked.errors import HostError
from yoked.paths import data_root, private_folder

MARKER = "yoked.json"
OLDEST, NEWEST = (3, 11), (3, 14)
_DESCRIBE = (
    "import sys, json; from importlib.util import find_spec;"
    "print(json.dumps([sys.version_info[:2], sys.executable,"
    " bool(find_spec('venv') and find_spec('ensurepip'))]))"
)
# What pip says when it cannot reach its index, as against an index that lacks something.
_UNREACHABLE = re.compile(
    r"connection broken|NewConnectionError|NameResolutionError|ConnectTimeoutError|"
    r"Network is unreachable|Temporary failure in name resolution|Connection refused"
)
_SAID_LINES = 6
_QUICK_S = 20.0


def whole_environment(digest: str) -> Path | None:
    """The Python of an environment on this machine; None: it is not there, or not whole."""
    folder = _folder(digest)
    return None if _read_marker(folder) is None else _python_of(folder)


def answer_environment(call: Call) -> dict[str, Any]:
    """Which interpreters could train here.

    args: digest of the requirements; configured: `python` of yoked.toml, or null.
    Gives paths, or null: made (ours, when it is complete), configured (when it can be started) and
    system (a python3 that has torch; looked for when there is no other); and marker, what ours is
    made of; unusable, why what is configured cannot be started, though something is there.
    """
    folder = _folder(call.args["digest"])
    marker = _read_marker(folder)
    configured = call.args.get("configured")
    made = str(_python_of(folder)) if marker is not None else None
    return {
        "made": made,
        "marker": marker,
        "configured": _absolute(configured),
        "system": None if configured or made else _python_with_torch(),
        "unusable": why_unusable(configured),
    }


def answer_environment_base(call: Call) -> dict[str, Any]:
    """The Python to make an environment with, and what decides which wheels fit it.

    args: named, a path, or null for the best there is; minor: the preferred version, "3.12".
    Raises HostError when none is new enough, or none can make environments.
    """
    path, version = _choose_python(call.args.get("named"), call.args["minor"])
    libc, libc_version = platform.libc_ver()
    return {
        "python": path,
        "version": version,
        "system": platform.system(),
        "machine": platform.machine(),
        "libc": libc,
        "libc_version": libc_version,
        "mac_version": platform.mac_ver()[0],
    }


def answer_environment_make(call: Call) -> None:
    """Make the environment `digest` with `python`, and tell about it in parts.

    args: requirements (lines for pip), options (for pip), build ("cpu" or "cuda"), wheels
    ([[file name, sha256], ...] that are here as blobs; null: pip asks its index), anew (although
    there is one); added, lines for what is installed besides, also where the environment is there,
    under constraints, lines that pin what is not to change.
    Parts: {"line": ...} as pip speaks, {"stage", "done", "total"} in bytes (`InstallWatch`), at the
    end {"made": path of its interpreter}, or {"unreachable": ...} where pip could not reach its
    index. Raises HostError.
    """
    folder = _folder(call.args["digest"])
    with writing_to(folder, None), _locked(folder) as lock:
        pip = _Pip(call, folder, lock)
        # Whoever held the lock before may have made it, or left it half made.
        found = _read_marker(folder)
        fits = found is not None and found["build"] == call.args["build"]
        unreachable = None
        if not fits or call.args.get("anew"):
            shutil.rmtree(folder, ignore_errors=True)
            try:
                unreachable = _make(call, folder, pip)
            finally:
                if _read_marker(folder) is None:
                    shutil.rmtree(folder, ignore_errors=True)
        if unreachable is None and call.args.get("added"):
            unreachable = _add(call, folder, pip)
        if unreachable is not None:
            call.send({"unreachable": unreachable})
            return
        # 200 MB and more need not lie here twice.
        for _, digest in call.args.get("wheels") or ():
            with contextlib.suppress(FileNotFoundError):
                blob_path(digest).unlink()
    call.send({"made": str(_python_of(folder))})


def answer_environment_remove(call: Call) -> list[dict[str, Any]]:
    """The environments that are here, whole or half made; all are ours. They go where `remove`.

    Gives for each its path, its size_bytes, whether it was removed, and why not: "" or `used`, by a
    process that runs or by whoever makes it.
    """
    folders = sorted(path for path in (data_root() / "envs").glob("*/") if path.name.isalnum())
    return [_remove(folder, really=bool(call.args.get("remove"))) for folder in folders]


def _remove(folder: Path, *, really: bool) -> dict[str, Any]:
    told = {"path": str(folder), "size_bytes": folder_bytes(folder), "removed": False, "why": ""}
    # Its interpreter is named by its path, as agents and ranks are started.
    if any(str(folder) in process.command() for process in all_processes()):
        return {**told, "why": "used"}
    try:
        with _locked(folder):
            if really:
                # Without its marker it is not whole, whatever happens next.
                (folder / MARKER).unlink(missing_ok=True)
                shutil.rmtree(folder)
                Path(f"{folder}.lock").unlink(missing_ok=True)
                told["removed"] = True
    except HostError:
        told["why"] = "used"
    return told


class _Pip:
    """The pip of an environment, and its Python; each line that they print is told."""

    def __init__(self, call: Call, folder: Path, lock: int) -> None:
        self._call, self._folder, self._lock = call, folder, lock
        self._downloads = folder / ".downloads"

    def run(self, argv: Sequence[str], on_line: Callable[[str], None] = lambda _: None) -> Outcome:
        """Run a program; what it was."""

        def told(line: str) -> None:
            self._call.send({"line": line})
            on_line(line)

        return run_program(
            argv,
            # The lock is pip's too: an agent that is killed leaves it working.
            pass_fds=(self._lock,),
            # A person's PYTHONPATH would count as installed. /tmp may be too small for torch.
            env={"PYTHONPATH": None, "PYTHONHOME": None, "TMPDIR": str(self._downloads)},
            cancelled=self._call.cancelled,
            on_line=told,
        )

    def install(self, *words: str) -> str | None:
        """Install what the words name; what pip said where it could not reach its index."""
        # An agent that was killed may have left some.
        shutil.rmtree(self._downloads, ignore_errors=True)
        private_folder(self._downloads)
        try:
            return self._install(words)
        finally:
            shutil.rmtree(self._downloads, ignore_errors=True)

    def _install(self, words: Sequence[str]) -> str | None:
        args = self._call.args
        with (
            _wheel_folder(self._folder, args.get("wheels")) as wheels,
            InstallWatch(self._folder, self._downloads, wheels, self._call.send) as watch,
        ):

            def follow(line: str) -> None:
                if line.startswith("Installing collected"):
                    watch.unpacking()

            command = _pip_command(self._folder, args["options"], wheels)
            installed = self.run([*command, *words], follow)
        if not installed.ok:
            said = (installed.stderr + b"\n" + installed.stdout).decode(errors="replace")
            if _UNREACHABLE.search(said) and wheels is None:
                return _last_lines(installed)
            raise _failed(self._folder, "pip install", installed)
        return None


def _make(call: Call, folder: Path, pip: _Pip) -> str | None:
    """Make it; returns what pip said where it could not reach its index."""
    private_folder(folder / ".downloads")
    made = pip.run([call.args["python"], "-m", "venv", str(folder)])
    if not made.ok:
        raise _failed(folder, f"{call.args['python']} -m venv", made)
    wanted = _write_lines(folder / "requirements.txt", call.args["requirements"])
    unreachable = pip.install("-r", wanted)
    if unreachable is None:
        # What is imported is compiled now, and not while the first run waits for it.
        pip.run([str(_python_of(folder)), "-c", "import torch"])
        _write_marker(folder, call)
    return unreachable


def _add(call: Call, folder: Path, pip: _Pip) -> str | None:
    """Install what a person's file names beside what trains; returns as `_make` does.

    The environment stays whole, whatever becomes of this: nothing that it vouches for is changed.
    """
    added = _write_lines(folder / "added.txt", call.args["added"])
    pinned = _write_lines(folder / "constraints.txt", call.args.get("constraints") or ())
    return pip.install("-r", added, "-c", pinned)


def _write_lines(path: Path, lines: Sequence[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def _pip_command(folder: Path, options: Sequence[str], wheels: Path | None) -> list[str]:
    command = [str(_python_of(folder)), "-m", "pip", "install", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--retries", "1"]
    # Most of it is never imported: bytecode for all would take longer than the rest.
    command += ["--no-compile"]
    if wheels is not None:
        command += ["--no-index", "--find-links", str(wheels)]
    return [*command, *options]


@contextlib.contextmanager
def _wheel_folder(
    environment: Path, wheels: Sequence[tuple[str, str]] | None
) -> Iterator[Path | None]:
    """A folder with the wheels under their names, for as long as pip reads it.

    It lies in the environment: what a killed agent leaves goes with it.
    """
    if wheels is None:
        yield None
        return
    folder = environment / ".wheels"
    shutil.rmtree(folder, ignore_errors=True)
    private_folder(folder)
    try:
        for name, digest in wheels:
            (folder / Path(name).name).symlink_to(blob_path(digest))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[int]:
    """Hold the lock of an environment; the descriptor may be passed on. Raises HostError."""
    private_folder(folder.parent)
    descriptor = os.open(f"{folder}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise fault("install-running", folder=folder) from None
        yield descriptor
    finally:
        os.close(descriptor)


def _failed(folder: Path, what: str, outcome: Outcome) -> HostError:
    """The error of a step, in the program's own words."""
    said = _last_lines(outcome)
    if "No space left on device" in said or "Disk quota exceeded" in said:
        where = path_word(folder.parent)
        fix = f"df -h {where}    there: {free_bytes(folder):,} bytes are free; make room"
    elif "ResolutionImpossible" in said or "conflicting dependencies" in said:
        fix = f"allow the versions that train: {_python_of(folder)} -m pip list    has them"
    elif "from versions: none" in said or "No matching distribution" in said:
        fix = "another Python may have that wheel: yoked install --python PATH"
    else:
        fix = "run the same command again once that is put right; nothing half made is left"
    return HostError(f"{what} failed for {folder}:\n{said}", fix=fix)


def _last_lines(outcome: Outcome) -> str:
    """The end of what a program said against it: stderr, and where that is empty, stdout."""
    return last_errors((outcome.stderr.strip() or outcome.stdout).decode(errors="replace"))


def last_errors(said: str) -> str:
    """The last lines with errors of what pip said, or where there are none, its last lines."""
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR", "error"))]
    return "\n".join(f"  {line.strip()}" for line in (errors or lines)[-_SAID_LINES:])


def _choose_python(named: str | None, minor: str) -> tuple[str, str]:
    """(path, "3.12.3"-like version) of the interpreter to take. Raises HostError."""
    wanted = [f"python{minor}", "python3"]
    wanted += [f"python3.{number}" for number in range(NEWEST[1], OLDEST[1] - 1, -1)]
    bare: str | None = None
    seen: list[str] = []
    for name in [named] if named else wanted:
        found = _describe(_absolute(name))
        if found is None:
            continue
        version, path, able = found
        text = f"{version[0]}.{version[1]}"
        if not OLDEST <= tuple(version) <= NEWEST:
            seen.append(f"{path} is {text}")
        elif able:
            return path, text
        else:
            bare = bare or text
    if bare is not None:
        raise fault("venv-missing", version=bare, install=_install_venv(bare))
    raise HostError(
        f"there is no Python from {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}: "
        + ("; ".join(seen) or f"{named or 'python3'} is not there"),
        fix=(
            "install one there, such as by `uv python install 3.12`",
            "or name one: yoked install --python PATH",
        ),
    )


def _install_venv(version: str) -> str:
    """Debian and Ubuntu have a package of it for each Python; elsewhere it is a part of Python."""
    distribution = this_distribution()
    if package_manager(distribution) == "apt":
        return f"sudo apt install python{version}-venv"
    return install_line("venv", distribution)


def _describe(path: str | None) -> tuple[list[int], str, bool] | None:
    """(version, path, whether it makes environments) of an interpreter that starts."""
    if path is None:
        return None
    try:
        outcome = run_program([path, "-I", "-c", _DESCRIBE], limit_s=_QUICK_S)
        # A sitecustomize of that Python may have printed something before.
        version, executable, able = json.loads(b"".join(outcome.stdout.splitlines()[-1:]))
    except (HostError, TypeError, ValueError):
        return None
    return version, executable, able


def _python_with_torch() -> str | None:
    path = shutil.which("python3")
    if path is None:
        return None
    # Somebody's checkout of PyTorch in his home, where we are, is no torch.
    script = (
        "import sys; sys.path[:] = filter(None, sys.path); from importlib.util import find_spec;"
        "sys.exit(not find_spec('torch'))"
    )
    return path if run_program([path, "-c", script], limit_s=_QUICK_S).ok else None


def _absolute(program: str | None) -> str | None:
    """The path of a program by path, `~/` or name; None: there is none. Links stay links, for what
    is run through one is another environment.
    """
    if program is None:
        return None
    path = Path.home() / Path(program).expanduser() if "/" in program else program
    return shutil.which(str(path))


def why_unusable(program: str | None) -> str | None:
    """Why a program that is named by its path cannot be started; None: it can, or is not there."""
    if program is None or "/" not in program or _absolute(program) is not None:
        return None
    path = Path.home() / Path(program).expanduser()
    try:
        path.stat()
    except FileNotFoundError:
        if not path.is_symlink():
            return None
        return f"it is a link to {os.path.realpath(path)}, which is not there"
    except OSError as problem:
        return problem.strerror
    return os.strerror(errno.EACCES)


def _folder(digest: str) -> Path:
    require(digest.isalnum(), f"an environment {digest!r}")
    return data_root() / "envs" / digest


def _python_of(folder: Path) -> Path:
    return folder / "bin" / "python"


def _read_marker(folder: Path) -> dict[str, Any] | None:
    """What an environment was made of; None: it is not complete, or its Python is gone."""
    # Its Python is a link to the system's, which an upgrade may have taken away.
    return read_json(folder / MARKER) if _python_of(folder).exists() else None


def _write_marker(folder: Path, call: Call) -> None:
    marker = {"requirements": call.args["requirements"], "build": call.args["build"]}
    # It must not survive a loss of power that what it vouches for did not.
    sync_tree(folder)
    write_json(folder / MARKER, marker)
