"""One rank of the doctor's smoke test: a real process group over the chosen interfaces.

    python -c THIS_FILE [MODULE ...] HOW DESCRIPTOR

This file is sent as text and needs no other module of yoked, because a host has none yet. HOW:
versions: report the versions of this interpreter's packages, without loading them.
connect: also form a Gloo process group.
train: import all of torch, form a process group on Gloo or NCCL, and all-reduce tensors.
MODULE: told is what a program that imports it would get.

"connect" and "train" wait for one line of JSON from DESCRIPTOR: rank, world, address and port of
rank 0 (0: any), backend, env, patience_s, launch_id and credentials (private files, by name). The
process exits when DESCRIPTOR ends, whatever it is doing. Ranks connect as in a run: torch's store
is on loopback, and hosts have one connection in mutual TLS.

Each line on standard output is a JSON object: has (versions and backends), looked (of "train": at
what is installed), ready (for the line), doing, port (of rank 0), done (seconds that the process
group took) or failed (why) with blame (whose fault it may be).
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import queue
import signal
import socket
import sys
import sysconfig
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

_BULK_BYTES = 1 << 20
# Of float32: 1 kB and 1 MB.
_SMALL, _LARGE = 256, 262_144
_NICE = 10
# How often it is looked whether this process was stopped.
_BEAT_S = 0.05

# Sources of the modules of yoked that it imports, by name. The sender of this file fills them in.
SOURCES: dict[str, str] = {}
# The first of them, which alone are needed for versions.
_FOR_VERSIONS = (
    "yoked", "yoked.core", "yoked.core.torchbuild", "yoked.core.unusable", "yoked.probe",
    "yoked.probe.origins", "yoked.probe.own_library", "yoked.probe.interpreter",
)  # fmt: skip

Spec = Mapping[str, Any]
World = Callable[[Spec], None]


def main(argv: list[str]) -> int:
    """Report versions, then take part in a process group; returns the exit status."""
    *names, how = argv[:-1]
    descriptor = int(argv[-1])
    try:
        _install_modules(_FOR_VERSIONS)
        from yoked.probe.interpreter import at_start, installed
        from yoked.probe.origins import asking, modules

        told = {**as_told(at_start), **versions()}
        tell(has={**told, **({"modules": modules(names)} if names else {})})
        if how == "versions":
            return 0
        if how == "connect":
            tell(asking=as_told(lambda: asking(names)))
        watch_stops()
        specs: queue.Queue[Spec] = queue.Queue()
        threading.Thread(target=_read_specs, args=(descriptor, specs), daemon=True).start()
        # A Python may lack ssl, which these import.
        _install_modules(SOURCES)
        tell(has=tls_limit())
        if how == "train":
            # From here on everything else on this host goes first: it takes seconds of CPU time.
            os.nice(_NICE)
            tell(has=as_told(lambda: installed(names)), looked=True)
        began_s = time.perf_counter()
        world, has = load_all() if how == "train" else load_communication()
        if how == "train":
            has["took_s"] = time.perf_counter() - began_s
        tell(has=has, ready=True)
        if how == "train":
            # Packages that may not even be imported; a world is not held up by them.
            rest = threading.Thread(
                target=lambda: tell(has=as_told(lambda: installed(others=True))), daemon=True
            )
            rest.start()
        spec = specs.get()
        # Gloo and NCCL read the name of their interface from it when ranks connect.
        os.environ.update(spec["env"])
        began_s = time.perf_counter()
        world(spec)
        tell(done=time.perf_counter() - began_s)
    except Exception as problem:  # noqa: BLE001 - reported to the doctor
        from yoked.probe.origins import blame

        cause = _first_cause(problem)
        tell(failed=in_words(cause), blame=blame(cause))
        return 1
    return 0


def as_told(look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a look at this interpreter tells; nothing where it fails, for torch does not."""
    try:
        return look()
    except Exception:  # noqa: BLE001 - whatever an odd file or a patched module does
        return {}


def _first_cause(problem: BaseException) -> BaseException:
    """What began it: numpy raises a page of advice from what says which file is broken."""
    while problem.__cause__ is not None:
        problem = problem.__cause__
    return problem


def in_words(problem: BaseException) -> str:
    """An exception in one line: its kind, and the first line of what it says."""
    said = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return f"{type(problem).__name__}: {said[0] if said else ''}"


def tls_limit() -> dict[str, Any]:
    """tls_most and tls_file, where the settings of this host's OpenSSL allow no TLS 1.3."""
    import ssl

    most = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).maximum_version
    if most == ssl.TLSVersion.MAXIMUM_SUPPORTED or most >= ssl.TLSVersion.TLSv1_3:
        return {}
    usual = Path(ssl.get_default_verify_paths().openssl_cafile).with_name("openssl.cnf")
    return {"tls_most": most.name, "tls_file": os.environ.get("OPENSSL_CONF") or str(usual)}


def tell(**message: Any) -> None:
    """Write one line for the doctor."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def versions() -> dict[str, Any]:
    """Versions of this interpreter's packages, from metadata: importing torch takes seconds; and
    what Triton would find here.
    """
    from yoked.core.torchbuild import torch_build, torch_version
    from yoked.probe.interpreter import stale_info
    from yoked.probe.origins import version_of

    found = importlib.util.find_spec("torch")
    told, own = version_of("torch"), torch_version()
    origin = found.origin if found else None
    stale = stale_info(Path(origin).parent, own, told) if origin and own else None
    return {
        "python": sys.executable,
        "python_version": ".".join(map(str, sys.version_info[:3])),
        "torch": own if stale else told,
        "stale": stale,
        "torch_path": origin,
        "numpy": version_of("numpy"),
        "stranded": _stranded(),
        "compiled": _is_compiled(origin) if origin else None,
        "headers": Path(sysconfig.get_paths()["include"], "Python.h").exists(),
        **torch_build(),
    }


def _stranded() -> str | None:
    """The packages beside this interpreter, torch among them, that it takes no notice of.

    So it is where an environment has lost its pyvenv.cfg: its link is the Python that it leads to.
    """
    folder = Path(sys.executable).parent.parent
    minor = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    place = folder / "lib" / minor / "site-packages"
    if str(place) in sys.path or (folder / "pyvenv.cfg").exists():
        return None
    return str(place) if (place / "torch").is_dir() else None


def _is_compiled(source: str) -> bool:
    """Whether Python keeps what it compiles of a source, or has begun to keep any elsewhere."""
    sources = [source, json.__file__] if sys.pycache_prefix else [source]
    return any(Path(importlib.util.cache_from_source(each)).exists() for each in sources)


def watch_stops() -> None:
    """From now on tell how often somebody stopped and continued this very process, and who."""
    # macOS has none.
    if hasattr(signal, "sigtimedwait"):
        # For the thread that waits for it: one that nobody blocks is dropped.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})
        threading.Thread(target=_follow_stops, daemon=True).start()


def _follow_stops() -> None:
    times, lost_s, seen_s = 0, 0.0, time.monotonic()
    while True:
        sent = signal.sigtimedwait({signal.SIGCONT}, _BEAT_S)
        if sent is not None and sent.si_signo != signal.SIGCONT:
            # Where a stop outlasts the timeout, Python gives a record that nobody has filled, and
            # the signal next time.
            continue
        now_s = time.monotonic()
        # The time from the last beat until it was continued; what it stood shorter does no harm.
        if sent is not None and now_s - seen_s > 2 * _BEAT_S:
            times, lost_s = times + 1, lost_s + now_s - seen_s
            stops = {"times": times, "lost_s": round(lost_s, 3)}
            # 0: from outside of this container.
            sender = {"pid": sent.si_pid, "command": _command(sent.si_pid)} if sent.si_pid else {}
            tell(has={"stops": {**stops, **sender}})
        seen_s = now_s


def _command(pid: int) -> str | None:
    try:
        said = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    return said.decode(errors="replace").replace("\0", " ").strip() or None


def _read_specs(descriptor: int, specs: queue.Queue[Spec]) -> None:
    """Pass on lines from the descriptor; exit at its end, since the doctor has gone."""
    with open(descriptor, "rb") as source:
        for line in source:
            specs.put(json.loads(line))
    # At once, whatever other threads do. To the doctor 3 is no failure.
    os._exit(3)


def load_communication() -> tuple[World, dict[str, Any]]:
    """Load only torch's C library with Gloo, without the 2 s of Python around it."""
    tell(doing="loading Gloo")
    from yoked.ranks.store import load_libtorch

    load_libtorch()
    from torch._C import _distributed_c10d as communication

    from yoked.probe.origins import loaded_from_elsewhere

    gloo = hasattr(communication, "ProcessGroupGloo")
    return connect, {**as_told(loaded_from_elsewhere), "gloo": gloo}


def connect(spec: Spec) -> None:
    """Exchange a megabyte through the store, form a Gloo process group, and pass a barrier."""
    from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo

    patience = timedelta(seconds=spec["patience_s"])
    store = _store(spec, patience)
    tell(doing="sending 1 MB through the store of rank 0")
    store.set(f"bulk/{spec['rank']}", os.urandom(_BULK_BYTES))
    assert len(store.get("bulk/0")) == _BULK_BYTES
    tell(doing="connecting to the others through Gloo")
    group = ProcessGroupGloo(PrefixStore("world", store), spec["rank"], spec["world"], patience)
    tell(doing="waiting for all in a barrier")
    group.barrier().wait()  # type: ignore[attr-defined]
    _exit_together(spec, store)


def load_all() -> tuple[World, dict[str, Any]]:
    """Import all of torch, as training does."""
    tell(doing="importing torch")
    import torch
    import torch.distributed
    import torch.utils.data

    from yoked.probe.interpreter import after_import
    from yoked.probe.origins import loaded_from_elsewhere

    return reduce_tensors, {
        **as_told(lambda: after_import(torch)),
        **as_told(loaded_from_elsewhere),
        "imported": True,
        "gloo": torch.distributed.is_gloo_available(),
        "nccl": torch.distributed.is_nccl_available(),
        "cuda_build": torch.version.cuda,
        "cuda_available": torch.cuda.is_available(),
    }


def reduce_tensors(spec: Spec) -> None:
    """Two all-reduces on the backend that training would use, and a check of their sums."""
    import torch
    import torch.distributed as dist
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    patience = timedelta(seconds=spec["patience_s"])
    store = _store(spec, patience)
    tell(doing=f"connecting to the others through {spec['backend']}")
    dist.init_process_group(
        spec["backend"],
        store=PrefixStore("world", store),
        rank=spec["rank"],
        world_size=spec["world"],
        timeout=patience,
    )
    # The smoke test has one rank on each host.
    device = torch.device("cuda", 0) if spec["backend"] == "nccl" else torch.device("cpu")
    for numbers in (_SMALL, _LARGE):
        tell(doing=f"an all-reduce of {4 * numbers} bytes")
        tensor = torch.full((numbers,), spec["rank"] + 1.0, device=device)
        dist.all_reduce(tensor)
        expected = spec["world"] * (spec["world"] + 1) / 2
        assert bool((tensor == expected).all()), f"the sum is {tensor[0]:g}, not {expected:g}"
    _exit_together(spec, store)
    dist.destroy_process_group()


def _store(spec: Spec, patience: timedelta) -> Any:
    """Open rank 0's store, on this host's loopback. Rank 0 tells the port for the others."""
    from torch._C._distributed_c10d import TCPStore

    first = spec["rank"] == 0
    where = f"{spec['address']} port {spec['port']}"
    tell(doing="opening the store" if first else f"meeting at {where}")
    descriptor = None
    if first:
        listener = socket.socket()
        # torch's store would listen on all addresses; it takes this socket instead.
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        store_port, descriptor = listener.getsockname()[1], listener.detach()
        tell(port=_serve_store(spec, store_port))
    else:
        store_port = _connect_to_rank0(spec)
    return TCPStore(
        "127.0.0.1",
        store_port,
        spec["world"],
        first,
        patience,
        wait_for_workers=False,
        master_listen_fd=descriptor,
    )


def _serve_store(spec: Spec, store_port: int) -> int:
    """Serve the store to the other hosts at this host's address; returns the port."""
    import asyncio

    from yoked.channel.hub import Hub
    from yoked.channel.tls import server_context

    listener = socket.create_server(
        (spec["address"], 0), family=socket.AF_INET6 if ":" in spec["address"] else socket.AF_INET
    )
    port: int = listener.getsockname()[1]

    async def serve() -> None:
        hub = Hub(
            _with_credential_files(spec, server_context),
            spec["launch_id"],
            spec["world"],
            on_word=lambda *_: None,
            # The peer waits for this word: it says that the handshake succeeded.
            on_peer=lambda peer: peer.send_word({}),
            on_end=lambda _: None,
            connect=lambda: asyncio.open_connection("127.0.0.1", store_port),
        )
        await hub.serve(listener)

    threading.Thread(target=asyncio.run, args=(serve(),), daemon=True).start()
    return port


def _connect_to_rank0(spec: Spec) -> int:
    """Connect to rank 0's host; returns the loopback port at which its store is served here."""
    import asyncio

    from yoked.channel.dial import dial, port_of, serve_store
    from yoked.channel.tls import client_context, node_name

    ends: queue.Queue[int | Exception] = queue.Queue()

    async def connect_store() -> None:
        peer = await dial(
            spec["address"],
            spec["port"],
            node_name(spec["launch_id"], 0),
            _with_credential_files(spec, client_context),
            spec["patience_s"],
        )
        server = await serve_store(peer)
        await peer.listen(lambda _: ends.put(port_of(server)))
        ends.put(ConnectionError("rank 0 closed the connection"))

    def run() -> None:
        try:
            asyncio.run(connect_store())
        except Exception as problem:  # noqa: BLE001 - raised in the main thread
            ends.put(problem)

    threading.Thread(target=run, daemon=True).start()
    end = ends.get()
    if isinstance(end, Exception):
        raise end
    return end


def _with_credential_files(spec: Spec, make: Callable[[Path], Any]) -> Any:
    """Call make with a folder of the credentials' files, which is removed afterwards."""
    # TemporaryDirectory has mode 0700: nobody else may enter it.
    with tempfile.TemporaryDirectory(prefix="yoked-world-") as folder:
        for name, text in spec["credentials"].items():
            Path(folder, name).write_text(text, encoding="utf-8")
        return make(Path(folder))


def _exit_together(spec: Spec, store: Any) -> None:
    """Rank 0 waits for all others before it exits, because it serves the store."""
    key = f"through/{spec['rank']}"
    store.set(key, "")
    if spec["rank"] == 0:
        store.wait([f"through/{rank}" for rank in range(spec["world"])])
    else:
        # The answer shows that the key was sent. Rank 0 may be gone before the answer comes.
        with contextlib.suppress(RuntimeError):
            store.get(key)


def _install_modules(names: Iterable[str]) -> None:
    """Make modules of yoked importable from their source texts."""
    for name in names:
        if name in sys.modules or name not in SOURCES:
            continue
        text = SOURCES[name]
        module = sys.modules[name] = types.ModuleType(name)
        module.__path__ = []
        exec(compile(text, f"<{name}>", "exec"), vars(module))  # noqa: S102 - it came with us


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
