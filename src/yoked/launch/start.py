"""Start a job on the hosts of a fleet: all of them, or none.

What a person would type for torchrun is worked out here: addresses, interfaces, ports, ranks,
threads and paths. A job is prepared on every host first, where a supervisor waits for the word;
if one host cannot, or this process dies, what was prepared removes itself.
"""

from __future__ import annotations

import json
import os
import site
import socket
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

import yoked
from yoked.agent.ask import user_name
from yoked.agent.jobfolder import NOTIFY_NAME, WORK
from yoked.channel.credentials import make_credentials
from yoked.core.faults import fault
from yoked.core.parallel import at_once
from yoked.errors import YokedError
from yoked.fleet.devices import Gpu, default_ranks, device_type, training_gpus
from yoked.fleet.discover import require_distinct, require_interface
from yoked.fleet.model import HERE, Fleet, Host, Notify
from yoked.launch.bootstrap.notice import SILENCE_S, WAIT_S
from yoked.launch.environment import environment_python, host_versions
from yoked.launch.launching import Stage
from yoked.launch.program import Program
from yoked.remote.client import AgentClient, RemoteBug
from yoked.units import listed

if TYPE_CHECKING:
    from yoked.launch.trees import Tree

HOST_MODULE = "yoked.launch.bootstrap.host"
PREPARE_S = 60.0

# What is done about a run whose ranks do not get on.
OnFault = Literal["report", "stop", "restart", "wait"]


@dataclass(frozen=True)
class Home:
    """Where a job of this machine alone runs: in the person's own folder, of which nothing is
    copied. run_dir: what it trains into; None: it leaves nothing.
    """

    folder: Path
    run_dir: Path | None


@dataclass(frozen=True)
class JobRequest:
    """What to start. ranks: on each host, instead of what yoked.toml says. device: what they are
    told to compute on; auto: what yoked.toml says. nice: of the ranks, instead of yoked.toml's.

    threads: OMP_NUM_THREADS of each rank; None: the host's cores shared out, unless own_threads
    says that the program finds out by itself. on_fault: what hosts do that find out why ranks do
    not get on; stop, restart: they end them, where it is sure; wait: a silent host has longer.
    env: added on every host. withheld: names that ranks on this machine do not have either.
    trains: the run of `yoked train` that this job is a part of; a run that is resumed has several.
    file_store: the ranks of one host can meet through a file. notify: who is told by node 0 how it
    ends, or why it stands. files: {name: text} of the job's folder. home: it stays on this machine.
    outputs: patterns of what `yoked fetch` brings home.
    """

    run: str
    program: Program
    ranks: int | None = None
    device: str = "auto"
    restarts: int = 0
    on_fault: OnFault = "report"
    nice: int | None = None
    threads: int | None = None
    own_threads: bool = False
    bootstrap: bool = True
    env: Mapping[str, str] = field(default_factory=dict)
    withheld: Sequence[str] = ()
    trains: str | None = None
    file_store: bool = False
    files: Mapping[str, str] = field(default_factory=dict)
    home: Home | None = None
    notify: Notify | None = None
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodePlan:
    """A host as it takes part: how it is reached, what trains there, and with what.

    device_type, gpus: what its ranks will train on, as far as is known before they start. versions:
    of Python and of packages there, by name, as far as somebody asked. data: variables with the
    paths of what was pushed there.
    """

    host: Host
    client: AgentClient
    facts: Mapping[str, Any]
    ranks: int
    python: str
    interface: str
    address: str
    device_type: str = "cpu"
    gpus: Sequence[Gpu] = ()
    versions: Mapping[str, str | None] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)

    @property
    def job_root(self) -> str:
        """Where this host keeps its jobs."""
        return f"{self.facts['state']}/jobs"


@dataclass(frozen=True)
class Started:
    """A job that was started. took_s: seconds by stage, for whoever asks where they went.

    sent: the person's folder, as it went to the hosts; None: none did.
    """

    run: str
    launch_id: str
    nodes: tuple[NodePlan, ...]
    took_s: dict[str, float]
    sent: Tree | None = None


def plan_nodes(
    fleet: Fleet,
    clients: Mapping[str, AgentClient],
    ranks: int | None,
    find_addresses: Callable[[], Mapping[str, tuple[str, str]]],
    device: str = "auto",
) -> list[NodePlan]:
    """Look at every host once: its facts, its interpreter, its interface as it is today.

    ranks, device: on each host, instead of yoked.toml's. find_addresses: finds (interface, address)
    by traffic, for a fleet whose file does not have them.
    Raises HostError for a host that cannot take part, and FleetError for two names of one
    machine, with the fix.
    """
    alone = len(fleet.hosts) == 1
    unknown = not alone and any(host.interface is None for host in fleet.hosts)
    found = find_addresses() if unknown else {}

    def take(host: Host) -> NodePlan:
        client = clients[host.name]
        facts = client.call("facts")
        _require_proc(host, facts)
        if alone:
            interface, address = "lo", "127.0.0.1"
        elif host.name in found:
            interface, address = found[host.name]
        else:
            interface, address = _address_today(host, client)
        python = environment_python(client, host)
        asked = host.device if device == "auto" else device
        # Where no GPU is in question, nobody need ask what that torch is built for.
        in_question = facts.get("gpus") and asked not in ("cpu", "mps")
        torch = host_versions(client, python, ()).torch if in_question else {}
        return NodePlan(
            host=host,
            client=client,
            facts=facts,
            ranks=ranks or host.ranks or default_ranks(asked, facts, torch),
            python=python,
            interface=interface,
            address=address,
            device_type=device_type(asked, facts, torch),
            gpus=training_gpus(asked, facts, torch),
        )

    nodes = at_once(take, fleet.hosts)
    require_distinct({node.host.name: node.facts for node in nodes})
    return nodes


def _require_proc(host: Host, facts: Mapping[str, Any]) -> None:
    """Raise HostError for a Mac: what runs of a job is recognised by its entries in /proc.

    Beside Linux, Gloo is in the way too: libuv on macOS, sockets of its own on Linux (gloo#383).
    """
    if facts.get("has_proc") is False:
        raise fault("no-proc", host=host.name)


def _address_today(host: Host, client: AgentClient) -> tuple[str, str]:
    """The address that the interface of yoked.toml has now: leases change."""
    assert host.interface is not None
    address = require_interface(host, client.call("interfaces"))["gloo_address"]
    if address is None:
        raise fault("no-address", host=host.name, interface=host.interface)
    return host.interface, str(address)


def start_job(
    request: JobRequest,
    nodes: list[NodePlan],
    say: Callable[[str], None],
    *,
    stage: Stage | None = None,
    approve: Callable[[Started], None] = lambda _: None,
) -> Started:
    """Start a job on all hosts. Raises JobError or HostError, and then nothing is left of it.

    stage: is told what goes on, and on which hosts. approve: called while the hosts load what ranks
    need, which takes them seconds; what it raises ends the job again.
    """
    stage = stage or Stage("starting")
    took_s: dict[str, float] = {}
    launch_id = uuid.uuid4().hex[:12]
    # This machine has this very yoked, unless another interpreter is to train.
    installed = request.home is not None and nodes[0].python == sys.executable
    packages, work = [installed_package()] * len(nodes), None
    if not installed or request.program.folder is not None:
        packages, work = _send(request, nodes, say, stage, took_s, installed=installed)

        if request.program.folder is not None and request.program.is_limited:
            nodes = _with_pushed_data(nodes, say)
    began_s = time.monotonic()
    credentials = make_credentials(launch_id, len(nodes))
    took_s["credentials"] = time.monotonic() - began_s
    began_s = time.monotonic()
    port = _prepare_all(request, nodes, launch_id, packages, work, credentials, stage)
    took_s["prepare"] = time.monotonic() - began_s
    began_s = time.monotonic()
    # What yoked made itself is no news to a person.
    sent = work if request.program.is_limited else None
    started = Started(request.run, launch_id, tuple(nodes), took_s, sent)
    stage.doing(f"starting the launcher on {listed(node.host.name for node in nodes)}")
    try:
        at_once(lambda node: node.client.call("job_go", run=request.run), nodes)
        took_s["go"] = time.monotonic() - began_s
        approve(started)
        _tell_start(request, nodes, port, say)
    except BaseException:
        _remove_all(request.run, nodes, launch_id, stop=True)
        raise
    return started


def _tell_start(
    request: JobRequest, nodes: Sequence[NodePlan], port: int, say: Callable[[str], None]
) -> None:
    """Say what runs where, and where its outputs will be."""
    ranks = sum(node.ranks for node in nodes)
    say(
        f"run {request.run}: {ranks} rank{'s' * (ranks != 1)} on "
        + ", ".join(f"{s.host.name} ({s.ranks} at {s.address}, {s.interface})" for s in nodes)
        + (f", which meet at {nodes[0].address}:{port}" if len(nodes) > 1 else "")
    )
    if request.outputs:
        from yoked.launch.outputs import tell_place

        folders = {node.host.name: work_folder(request, node) for node in nodes}
        say(
            f"{tell_place(request.outputs, folders)}; at the end, or by `yoked fetch "
            f"{request.run}`, they come to runs/{request.run}/outputs here"
        )


def _with_pushed_data(nodes: list[NodePlan], say: Callable[[str], None]) -> list[NodePlan]:
    """The same, with what `yoked push` brought to each host."""
    from yoked.launch.pushed import pushed_there, tell_pushed, variables

    found = at_once(lambda node: pushed_there(node.client), nodes)
    tell_pushed({node.host.name: each for node, each in zip(nodes, found, strict=True)}, say)
    return [replace(node, data=variables(each)) for node, each in zip(nodes, found, strict=True)]


def _send(
    request: JobRequest,
    nodes: list[NodePlan],
    say: Callable[[str], None],
    stage: Stage,
    took_s: dict[str, float],
    *,
    installed: bool,
) -> tuple[list[str], Tree | None]:
    """Send this yoked and the program's folder; (what each host has in PYTHONPATH, the folder)."""
    # Not above: a run on this machine sends nothing, and need not wait for it.
    from yoked.launch.gitignore import NO_GIT, has_git
    from yoked.launch.trees import Tree, package_tree, push_tree

    began_s = time.monotonic()
    stage.doing("reading the program's folder")
    package, work = None if installed else package_tree(), None
    if request.program.folder is not None:
        if not has_git():
            say(NO_GIT)
        program = request.program
        work = Tree.scan(
            request.program.folder, is_limited=program.is_limited, include=program.include
        )
        if program.is_limited:
            for line in work.lines():
                say(line)
    took_s["scan"] = time.monotonic() - began_s
    began_s = time.monotonic()

    def push(what: str, tree: Tree) -> list[str]:
        clients = {node.host.name: node.client for node in nodes}
        return stage.at_once(f"copying {what} to", lambda client: push_tree(client, tree), clients)

    packages = [installed_package()] if package is None else push("yoked", package)
    if work is not None:
        push("the program", work)
    took_s["send"] = time.monotonic() - began_s
    return packages, work


def _prepare_all(
    request: JobRequest,
    nodes: list[NodePlan],
    launch_id: str,
    packages: list[str],
    work: Tree | None,
    credentials: list[dict[str, str]],
    stage: Stage,
) -> int:
    """Prepare the job on every host; returns the port at which node 0 hears the others."""

    def prepare(number: int, port: int) -> int:
        node = nodes[number]
        kept: int = node.client.call(
            "job_start",
            timeout_s=PREPARE_S,
            spec=job_spec(request, nodes, launch_id, number, port),
            argv=[node.python, "-m", HOST_MODULE, f"{node.job_root}/{request.run}/job.json"],
            env=rank_environment(request, node, launch_id, packages[number], nodes[0].address),
            cwd=work_folder(request, node),
            tree=None if work is None else work.digest,
            files={**credentials[number], **request.files, **notify_file(request, number)},
        )
        return kept

    names = [node.host.name for node in nodes]
    try:
        # Node 0 keeps a port; the others are told which.
        stage.doing(f"preparing the job on {names[0]}")
        port = prepare(0, 0)
        stage.doing(f"preparing the job on {listed(names[1:])}")
        at_once(lambda number: prepare(number, port), range(1, len(nodes)))
    except BaseException:
        _remove_all(request.run, nodes, launch_id, stop=False)
        raise
    return port


def notify_file(request: JobRequest, number: int) -> dict[str, str]:
    """A private file, on the host that sends: a URL may be all that keeps others out."""
    if request.notify is None or number:
        return {}
    content = {"run": request.trains or request.run, **asdict(request.notify)}
    return {NOTIFY_NAME: json.dumps(content)}


def _remove_all(run: str, nodes: list[NodePlan], launch_id: str, *, stop: bool) -> None:
    """Undo what was prepared, on the hosts that still answer.

    By launch id: another run of that name, of before or after, is not ours to end or remove.
    """

    def remove(node: NodePlan) -> None:
        try:
            if stop:
                node.client.call("job_stop", run=run, how="kill", launch_id=launch_id)
            node.client.call("job_remove", run=run, launch_id=launch_id)
        except (YokedError, RemoteBug):
            # It was not prepared there, or it ends by itself when the word does not come. Why the
            # launch failed is what is told, and not what else the host cannot do.
            return

    at_once(remove, nodes)


def job_spec(
    request: JobRequest, nodes: list[NodePlan], launch_id: str, number: int, port: int
) -> dict[str, Any]:
    """job.json of one host; see yoked.launch.bootstrap.job."""
    folder = f"{nodes[number].job_root}/{request.run}"
    return {
        "version": 1,
        "run": request.run,
        "trains": request.trains,
        "run_dir": None if request.home is None else _text(request.home.run_dir),
        "by": f"{user_name(os.getuid())}@{socket.gethostname()}",
        "launch_id": launch_id,
        "folder": folder,
        "node_rank": number,
        "nodes": [
            {"host": node.host.name, "address": node.address, "ranks": node.ranks} for node in nodes
        ],
        "control_port": port,
        "control_fd": None,
        "restarts": request.restarts,
        "resume_args": list(request.program.resume_args),
        "program": request.program.to_dict(),
        "cwd": work_folder(request, nodes[number]),
        "outputs": list(request.outputs),
        "bootstrap": request.bootstrap,
        "file_store": request.file_store and len(nodes) == 1,
        "ends_held_up": request.on_fault in ("stop", "restart"),
        "silence_s": WAIT_S if request.on_fault == "wait" else SILENCE_S,
        "nice": nodes[number].host.nice if request.nice is None else request.nice,
    }


def work_folder(request: JobRequest, node: NodePlan) -> str:
    """Where ranks run: in the job's own copy of the program, or where the person is."""
    if request.home is not None:
        return str(request.home.folder)
    return f"{node.job_root}/{request.run}/{WORK}"


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def installed_package() -> str:
    """What has to stand in PYTHONPATH for this interpreter to find this yoked; empty: nothing."""
    root = str(Path(yoked.__file__).parent.parent)
    # There it is found anyway, and before the standard library it could hide modules of that.
    if root in (*site.getsitepackages(), site.getusersitepackages()):
        return ""
    return root


def rank_environment(
    request: JobRequest, node: NodePlan, launch_id: str, package: str, node0_address: str
) -> dict[str, str | None]:
    """What the ranks of one host find in their environment, beside what ssh gives them.

    None: what they do not have, although this machine's shell has it.
    """
    env: dict[str, str] = {
        # This very yoked, whatever is installed there.
        "PYTHONPATH": package,
        "PYTHONUNBUFFERED": "1",
        "YOKED_RUN": request.run,
        "YOKED_LAUNCH_ID": launch_id,
        **node.data,
        # For programs that listen on node 0 by themselves: MASTER_ADDR is each host's own.
        "YOKED_NODE0_ADDR": node0_address,
        # Gloo picks the hostname's interface, often loopback on Debian; name it.
        "GLOO_SOCKET_IFNAME": node.interface,
        # Without the sign it is how names begin: eth0.100 as well.
        "NCCL_SOCKET_IFNAME": f"={node.interface}",
        "TP_SOCKET_IFNAME": node.interface,
    }
    if request.own_threads:
        # Our own program. Torch remarks on each connection from an address without a name.
        env["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    if node.host.device != "auto":
        # What `yoked train` computes on where no flag says it.
        env["YOKED_DEVICE"] = node.host.device
    if node.host.device in ("cpu", "mps"):
        # Programs that take a GPU wherever they see one.
        env["CUDA_VISIBLE_DEVICES"] = ""
    threads = request.threads
    if threads is None and not request.own_threads:
        threads = max(1, int(node.facts["usable_cores"]) // node.ranks)
    if threads is not None:
        env["OMP_NUM_THREADS"] = str(threads)
    if request.home is None:
        # Programs that a rank starts (ninja, torchrun) are those of its own environment.
        env["PATH"] = f"{PurePosixPath(node.python).parent}:{node.facts['path']}"
    else:
        # All else is as in the person's shell.
        paths = [package, os.environ.get("PYTHONPATH", "")]
        env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        # A torch.py in the folder where the person is must not run as if it were torch.
        env["PYTHONSAFEPATH"] = "1"
    added = dict(request.env)
    if path := added.pop("PYTHONPATH", ""):
        env["PYTHONPATH"] += f":{path}"
    withheld = request.withheld if node.host.name == HERE else ()
    return {**dict.fromkeys(withheld), **env, **added}
