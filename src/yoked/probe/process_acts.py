"""Acts of a process: see yoked.probe.acts, which sends this as text."""

from __future__ import annotations

import contextlib
import functools
import importlib
import mmap
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from yoked.probe.folder_acts import (
    IN_FOLDERS,
    MARK,
    FailedError,
    UntriedError,
    folder_for_files,
    folders,
    in_folder,
    in_words,
    is_busy,
    require,
)

_FILE_BYTES = 1 << 20
# To a server on this very host, and until a proxy is given up.
_REQUEST_S = 1.5
_SLEEP_S, _LONGEST_SLEEP_S = 0.001, 0.1
# What is locked in memory for a buffer: less than `ulimit -l` of any system that is left as it was.
_LOCKED_BYTES = 16_384
# An argument, and a variable, of this size are less than MAX_ARG_STRLEN of execve(2).
_LARGE_BYTES = 100_000
# A module beside a program. It tells its parent, how many arguments it has, and how large the last
# one is, and a variable.
_BESIDE = "yoked_beside"
_OF_BESIDE = """import os, sys
print("\\nbeside", os.getppid(), len(sys.argv), len(sys.argv[-1]),
      len(os.environ.get("YOKED_LARGE", "")))
"""
_SCRIPT_BYTES = 65_536
_MODULES = ("bz2", "ctypes", "lzma", "sqlite3", "ssl", "uuid", "zlib")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
# sun_path of unix(7), of Linux and macOS.
_LONGEST_SOCKET = 103
# Of linux/auxvec.h.
_AT_SECURE = 23
_MOST_HOLDERS, _MOST_SAID = 3, 160

Act = Callable[[], None]


def acts(modules: Sequence[str] = ()) -> dict[str, Act]:
    """All acts of this system, by name; those of a folder as FOLDER.ACT. modules: of Python's own,
    which are imported too.
    """
    found: dict[str, Act] = {
        "thread": _thread,
        "child": _child,
        "program": _program,
        "semaphore": _semaphore,
        "queue": _queue,
        "shared-memory": _shared_memory,
        "socketpair": _socketpair,
        "unix-socket": _unix_socket,
        "request": _request,
        "terminal": _terminal,
        "signals": _signals,
        "user": _user,
        "random": lambda: require(len(os.urandom(16)) == 16, "too few bytes"),
        "clock": _clock,
        "md5": lambda: require(importlib.import_module("hashlib").md5(b"").digest(), "none"),
        "certificates": _certificates,
        "locale": _locale,
        **{f"module-{name}": functools.partial(_module, name) for name in (*_MODULES, *modules)},
    }
    if sys.platform.startswith("linux"):
        found.update(
            {
                "secure": _secure,
                "epoll": _epoll,
                "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close(),
                "memfd": _memfd,
                "inotify": _inotify,
                "eventfd": functools.partial(_descriptor, "eventfd", 0, 0),
                "timerfd": functools.partial(_descriptor, "timerfd_create", 1, 0),
                "locked-memory": _locked_memory,
                "affinity": lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)),
                "priority": lambda: require(os.nice(1) is not None, "none"),
            }
        )
    for folder in folders():
        for name, act in IN_FOLDERS.items():
            found[f"{folder}.{name}"] = functools.partial(in_folder, folder, name, act)
    return found


def _thread() -> None:
    ran: list[int] = []
    each = threading.Thread(target=ran.append, args=(1,))
    each.start()
    each.join()
    require(ran, "a thread that was started did not run")


def _child() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        # SIGCHLD is ignored, which yoked.probe.interpreter tells.
        raise UntriedError from None
    require(os.WIFEXITED(status) and os.WEXITSTATUS(status) == 7, f"it ended with {status}")


def _program() -> None:
    """Start the same interpreter as a launch starts ranks: with a module to which PYTHONPATH alone
    leads, a large argument and a large variable.
    """
    import subprocess

    if not sys.executable:
        raise UntriedError
    large = "x" * _LARGE_BYTES
    with folder_for_files(folders()["tmp"]) as folder:
        if os.pathsep in str(folder):
            # As PYTHONPATH it would be two.
            raise UntriedError
        (folder / f"{_BESIDE}.py").write_text(_OF_BESIDE, encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", _BESIDE, "two words", large],
            env={
                **os.environ,
                "PYTHONPATH": str(folder),
                "PYTHONDONTWRITEBYTECODE": "1",
                "YOKED_LARGE": large,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = process.communicate()
    said = err.decode(errors="replace").strip().splitlines()
    words = f"status {process.returncode}: {' '.join(said[-1:])}"[:_MOST_SAID]
    blame = _of_interpreter()
    require(process.returncode == 0, words, **blame)
    # Where it was started past a script, it has none of the script's options.
    require("by" not in blame, "it takes no notice of PYTHONPATH", **blame)
    # Start files may print, too.
    line = next((each for each in out.splitlines() if each.startswith(b"beside ")), b"")
    require(line, "it prints nothing", **blame)
    parent, *given = (int(each) for each in line.split()[1:])
    arguments, variable = given[:2] == [3, len(large)], given[2:] == [len(large)]
    require(arguments, "it does not get the arguments that it is given", **blame)
    require(variable, "it does not get the variables that it is given", **blame)
    # A rank ends with the process that started it, and would end at once.
    require(parent == os.getpid(), "it is a child of the process that was started", **blame)


def _of_interpreter() -> dict[str, Any]:
    """by: why this interpreter looks into no folder that it is told; file: its own, where that is a
    script; command: the last line of that.
    """
    found: dict[str, Any] = {}
    if sys.flags.ignore_environment:
        found["by"] = "isolated"
    with contextlib.suppress(OSError):
        with open(sys.executable, "rb") as stream:  # noqa: PTH123 - it is named as a text
            script = stream.read(_SCRIPT_BYTES)
        if script.startswith(b"#!"):
            lines = script.decode(errors="replace").strip().splitlines()
            found |= {"file": sys.executable, "command": lines[-1].strip()[:_MOST_SAID]}
    return found


def _semaphore() -> None:
    from multiprocessing import get_context

    lock = get_context("fork").Lock()
    with lock:
        require(not lock.acquire(block=False), "a lock that is held was taken once more")


def _queue() -> None:
    from multiprocessing import get_context

    queue = get_context("fork").SimpleQueue()
    queue.put("word")
    require(queue.get() == "word", "what comes out is not what was put in")


def _shared_memory() -> None:
    # SharedMemory itself starts a process that stays, before Python 3.13.
    shared = importlib.import_module("_posixshmem")
    name = f"/{MARK[1:]}"
    descriptor = shared.shm_open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode=0o600)
    shared.shm_unlink(name)
    _map_anew(descriptor)


def _map_anew(descriptor: int) -> None:
    """Grow an empty file, map it, and write to its end."""
    try:
        os.ftruncate(descriptor, _FILE_BYTES)
        with mmap.mmap(descriptor, _FILE_BYTES) as whole:
            whole[-1] = 7
            require(whole[-1] == 7, "what is read is not what was written")
    finally:
        os.close(descriptor)


def _memfd() -> None:
    _map_anew(os.memfd_create("yoked"))


def _socketpair() -> None:
    """Hand an open file on, as workers of a DataLoader do."""
    one, other = socket.socketpair()
    with one, other:
        socket.send_fds(one, [b"x"], [one.fileno()])
        _, found, _, _ = socket.recv_fds(other, 1, 1)
        require(found, "no open file came with it")
        os.close(found[0])


def _unix_socket() -> None:
    with folder_for_files(folders()["tmp"]) as folder:
        path = str(folder / "listener-x")
        if len(path) > _LONGEST_SOCKET:
            # The folder's name is told by itself: `tmp-missing` of the doctor.
            raise UntriedError
        with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
            server.bind(path)
            server.listen()
            client.connect(path)


def _request() -> None:
    """Ask a server on this host, as programs ask one for metrics, or a tokenizer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = server.getsockname()
        threading.Thread(target=_answer, args=(server,), daemon=True).start()
        proxy = _proxy_before(here[1])
        if proxy is None:
            require(_asks(here, "/"), "another server answered")
            return
        names = [each for each in os.environ if each.lower() == "http_proxy"]
        # It may be named with user and password.
        words = f"it goes to the proxy //{proxy[0]}:{proxy[1]}"
        # No packet of ours leaves this host for a look. A proxy of another host asks its own
        # 127.0.0.1; one that is here may know better.
        try:
            if not _is_loopback(proxy[0]) or not _asks(proxy, f"http://127.0.0.1:{here[1]}/"):
                raise FailedError(words[:_MOST_SAID], variables=names)
        except OSError as problem:
            said = f"{in_words(problem)}; {words}"
            raise FailedError(said[:_MOST_SAID], variables=names) from problem


def _asks(server: tuple[str, int], path: str) -> bool:
    """Whether the answer is that of `_answer`. Raises OSError."""
    with socket.create_connection(server, _REQUEST_S) as client:
        client.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        with client.makefile("rb") as answer:
            return answer.read().endswith(b"ok")


def _proxy_before(port: int) -> tuple[str, int] | None:
    """The proxy to which urllib and requests send what is for 127.0.0.1 at this port; None: none.

    Source: urllib.request of Python, getproxies_environment and proxy_bypass_environment.
    """
    named = os.environ.get("http_proxy") or os.environ.get("HTTP_PROXY", "")
    exempt = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
    itself = {"*", "127.0.0.1", f"127.0.0.1:{port}", "127.0.0.0/8"}
    if not named or itself & {each.strip() for each in exempt.split(",")}:
        return None
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(named if "//" in named else f"//{named}")
        return (parts.hostname, parts.port or 80) if parts.hostname else None
    except ValueError:
        return None


def _is_loopback(host: str) -> bool:
    """Whether an address or a name is this host's own, without asking anybody for it."""
    return host == "localhost" or host.startswith("127.") or host == "::1"


def _answer(server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection, _ = server.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok")


def _terminal() -> None:
    for each in os.openpty():
        os.close(each)


def _signals() -> None:
    """Whether signals arrive for which a program has a handler: one may be blocked from before."""
    lost = []
    for name in ("SIGALRM", "SIGTERM", "SIGINT", "SIGCHLD", "SIGUSR1"):
        number = getattr(signal, name)
        came: list[int] = []
        before = signal.signal(number, functools.partial(_came, came))
        os.kill(os.getpid(), number)
        # Python calls a handler between two of its steps.
        time.sleep(0)
        signal.signal(number, before)
        lost += [] if came else [name]
    require(not lost, f"{', '.join(lost)} blocked (SigBlk of /proc/self/status)")


def _came(numbers: list[int], number: int, _: object) -> None:
    numbers.append(number)


def _user() -> None:
    import getpass

    getpass.getuser()


def _clock() -> None:
    shortest_s = 9.0
    for _ in range(3):
        began_s = time.monotonic()
        time.sleep(_SLEEP_S)
        took_s = time.monotonic() - began_s
        require(took_s > 0, f"the clock stood, or went back, in time.sleep({_SLEEP_S})")
        shortest_s = min(shortest_s, took_s)
        if shortest_s < _LONGEST_SLEEP_S:
            return
    if is_busy():
        raise UntriedError
    raise FailedError(f"time.sleep({_SLEEP_S}) takes {shortest_s:.2g} s")


def _certificates() -> None:
    import ssl

    # Reading all that a system trusts would take longer than all the rest.
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for name in _CERTIFICATES:
        value = os.environ.get(name)
        # SSL_CERT_DIR may name several.
        if value and not any(Path(each).exists() for each in value.split(os.pathsep)):
            raise FailedError(f"{name} names {value[:80]}, which is not there", variables=[name])
    # Each context that has Python's own settings opens it.
    log = os.environ.get("SSLKEYLOGFILE")
    if log and not os.access(log if Path(log).exists() else Path(log).parent, os.W_OK):
        said = f"SSLKEYLOGFILE names {log[:80]}, which cannot be written"
        raise FailedError(said, variables=["SSLKEYLOGFILE"])


def _locale() -> None:
    import locale

    try:
        locale.setlocale(locale.LC_ALL, "")
    except locale.Error as problem:
        named = [each for each in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(each)][:1]
        wanted = "".join(f": {each}={os.environ[each][:80]}" for each in named)
        raise FailedError(f"{problem}{wanted}", variables=named) from None


def _module(name: str) -> None:
    importlib.import_module(name)


def _secure() -> None:
    """Whether the loader trusts this interpreter's variables: ld.so(8), secure-execution mode."""
    if not _libc().getauxval(_AT_SECURE):
        return
    file = os.path.realpath(sys.executable)
    by = None
    with contextlib.suppress(OSError):
        by = "mode" if Path(file).stat().st_mode & 0o6000 else None
        os.getxattr(file, "security.capability")
        by = "capability"
    raise FailedError(
        "the kernel says AT_SECURE of it, so the loader takes no notice of LD_LIBRARY_PATH and "
        "LD_PRELOAD",
        file=file,
        by=by,
    )


def _epoll() -> None:
    source, sink = os.pipe()
    with select.epoll() as poll:
        poll.register(source, select.EPOLLIN)
        os.write(sink, b"x")
        require(poll.poll(1), "it did not tell that a pipe can be read")
    os.close(source)
    os.close(sink)


@functools.cache
def _libc() -> Any:
    try:
        import ctypes
    except ImportError:
        raise UntriedError from None
    return ctypes.CDLL(None, use_errno=True)


def _called(name: str, *args: Any) -> int:
    """What a function of the C library returns. Raises OSError where that is -1."""
    import ctypes

    found = getattr(_libc(), name, None)
    if found is None:
        raise UntriedError
    result: int = found(*args)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _descriptor(name: str, *args: int) -> None:
    _libc()
    os.close(_called(name, *args))


def _inotify() -> None:
    _libc()
    try:
        descriptor = _called("inotify_init1", os.O_CLOEXEC)
        try:
            _called("inotify_add_watch", descriptor, b"/", 0x400)
        finally:
            os.close(descriptor)
    except OSError as problem:
        raise FailedError(in_words(problem), holders=_holders()) from problem


def _holders() -> list[dict[str, Any]]:
    """Who of this user's programs has most inotify instances: pid, command and count."""
    found: list[dict[str, Any]] = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            links = [os.readlink(each) for each in (process / "fd").iterdir()]  # noqa: PTH115
            if count := links.count("anon_inode:inotify"):
                said = (process / "cmdline").read_bytes().decode(errors="replace")
                command = " ".join(said.split("\0")).strip()[:_MOST_SAID]
                found.append({"pid": int(process.name), "command": command, "count": count})
    return sorted(found, key=lambda each: each["count"], reverse=True)[:_MOST_HOLDERS]


def _locked_memory() -> None:
    _libc()
    import ctypes

    with mmap.mmap(-1, _LOCKED_BYTES) as pages:
        own = ctypes.c_char.from_buffer(pages)
        where, size = ctypes.c_void_p(ctypes.addressof(own)), ctypes.c_size_t(_LOCKED_BYTES)
        try:
            _called("mlock", where, size)
            _called("munlock", where, size)
        except OSError as problem:
            soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
            by = {"limit": "l"} if 0 <= soft < _LOCKED_BYTES else {}
            raise FailedError(in_words(problem), **by) from problem
        finally:
            # Pages that something points into cannot be given back.
            del own
