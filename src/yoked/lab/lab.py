"""A lab that is up: its hosts, its switch, its folder; bringing it up and taking it down.

with Lab.up(load("two-hosts-1gbe")) as lab:
    lab.host("alpha").run(["hostname"])
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from yoked.core.fs import locked, read_json
from yoked.core.names import path_word
from yoked.core.proc import ProcessId, all_processes
from yoked.errors import LabError, UsageError
from yoked.lab import boot, cgroups
from yoked.lab.host import LabHost
from yoked.lab.inside import Inside
from yoked.lab.keeper import KEEP, remove_folder
from yoked.lab.process import own_program
from yoked.lab.shaping import Features
from yoked.lab.state import LabState
from yoked.lab.topology import Topology, from_json
from yoked.lab.topology_load import shipped
from yoked.paths import private_folder, state_root

DOWN_DEADLINE_S = 10.0
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


def labs_folder() -> Path:
    """Where each lab has its folder."""
    return state_root() / "lab"


@dataclass
class Lab(LabState):
    """A lab that is up. Use `up`, `open` or `all`."""

    tether: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        """Whether the lab is up."""
        return self.init.alive

    def host(self, name: str) -> LabHost:
        """Raises UsageError, with the nearest name, when there is none."""
        if name not in self.hosts:
            near = difflib.get_close_matches(name, self.hosts, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(
                f"the lab {self.name} has no host {name!r}{hint}",
                fix=f"its hosts: {', '.join(self.hosts)}",
            )
        return self.hosts[name]

    @classmethod
    def up(cls, topology: Topology, *, name: str | None = None, tethered: bool = False) -> Lab:
        """Bring a lab up.

        name: the topology's when not given; labs of one user have different names.
        tethered: the lab ends with this process, however that ends. Where $YOKED_LAB_OWNER is
        the PID of another one, as in tests of the command line, it ends with that one too.
        Raises LabError when the machine cannot have it, or a lab of that name is up.
        """
        name = name or topology.name
        if not NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} cannot be the name of a lab",
                fix="lower-case letters, digits and hyphens, at most 40",
            )
        lab_id = secrets.token_hex(4)
        folder = _claim_folder(name, lab_id)
        user = None if os.getuid() == 0 else (os.getuid(), os.getgid())
        tether = _start_keeper(folder, lab_id, user)
        try:
            init = _read_init(tether)
            # What follows is done to the network of this process: it must not be the machine's.
            assert os.readlink(f"/proc/{init.pid}/ns/net") != os.readlink("/proc/self/ns/net")
            lab = cls(
                name=name,
                id=lab_id,
                folder=folder,
                topology=topology,
                user=user,
                keeper=ProcessId.of(tether.pid),
                init=init,
                hosts={},
                notes=[],
                features=Features.probe(Inside(init, user is not None)),
                tether=tether,
            )
            others = [host for other in cls.all() for host in other.hosts.values()]
            boot.bring_up(lab, [cpu for host in others for cpu in host.cpus])
            lab.save()
            if not tethered:
                lab._let_go()
        except BaseException:
            _end_keeper(tether)
            _remove_rest(folder, lab_id)
            raise
        return lab

    def _let_go(self) -> None:
        assert self.tether is not None
        assert self.tether.stdin is not None
        self.tether.stdin.write(KEEP)
        self.tether.stdin.close()
        if self.tether.stdout is not None:
            self.tether.stdout.close()
        # It goes on without us; nobody need wait for it.
        self.tether.returncode = 0
        self.tether = None

    @classmethod
    def _read(cls, folder: Path) -> Lab:
        data = json.loads((folder / "lab.json").read_text(encoding="utf-8"))
        user = None if data["user"] is None else (data["user"][0], data["user"][1])
        init = ProcessId.from_json(data["init"])
        topology = from_json(data["topology"])
        lab = cls(
            name=data["name"],
            id=data["id"],
            folder=folder,
            topology=topology,
            user=user,
            keeper=ProcessId.from_json(data["keeper"]),
            init=init,
            hosts={},
            notes=list(data["notes"]),
            features=Features(**data["features"]),
        )
        lab._adopt(data["hosts"])
        return lab

    @classmethod
    def all(cls) -> list[Lab]:
        """The labs of this user that are up."""
        labs = []
        for folder in sorted(labs_folder().glob("*/")):
            # It may be coming up or going, or be of another version.
            with contextlib.suppress(FileNotFoundError, KeyError, TypeError, ValueError):
                lab = cls._read(folder)
                if lab.alive:
                    labs.append(lab)
        return labs

    @classmethod
    def open(cls, name: str | None = None) -> Lab:
        """The lab of that name, or the only one that is up."""
        labs = cls.all()
        names = ", ".join(lab.name for lab in labs)
        if name is not None:
            for lab in labs:
                if lab.name == name:
                    return lab
            up = f"; up: {names}" if labs else ""
            raise LabError(
                f"no lab {name!r} is up{up}",
                fix=f"yoked lab up {name}" if name in shipped() else "yoked lab list",
            )
        if not labs:
            raise LabError("no lab is up", fix="yoked lab up two-hosts-1gbe")
        if len(labs) > 1:
            raise UsageError(f"several labs are up: {names}", fix=f"--lab {labs[0].name}")
        return labs[0]

    def stop_host(self, name: str) -> None:
        """Power gone: the host falls silent first, then all its processes end at once."""
        self.refresh()
        host = self.host(name)
        for interface in host.spec.interfaces:
            if interface.port:
                # Dying sockets say goodbye; a machine without power does not.
                self.switch.tool(["ip", "link", "set", interface.port, "down"], check=False)
        if host.group is not None:
            host.group.kill()  # also when it is frozen
        if not host.process.kill():
            raise LabError(f"{name} did not end", fix=f"yoked lab down {self.name}")

    def start_host(self, name: str) -> None:
        """Start a host that is down; its files are those that it had."""
        self.refresh()
        host = self.host(name)
        if host.alive:
            return
        boot.boot_hosts(self, [host.spec])

    def down(self) -> None:
        """Take the lab down; returns when nothing of it is left."""
        if self.tether is not None:
            _end_keeper(self.tether)
            self.tether = None
        else:
            self.init.kill()
            self.keeper.wait(DOWN_DEADLINE_S)
            self.keeper.kill()
        _remove_rest(self.folder, self.id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()


def down_all() -> list[str]:
    """Take down all labs of this user, and what killed ones left; returns their names."""
    gone = []
    for folder in sorted(labs_folder().glob("*/")):
        _clear(folder)
        gone.append(folder.name)
    for lab_id in cgroups.leftovers():
        # Groups whose lab has no folder here: another user's, or what a killed one left.
        if not any(_processes(lab_id)):
            cgroups.remove_lab(lab_id)
    return gone


def _processes(lab_id: str) -> Iterator[ProcessId]:
    """The processes of a lab, as far as this user may see."""
    for process in all_processes():
        if process.environment().get("YOKED_LAB") == lab_id:
            yield process


def _clear(folder: Path) -> None:
    """Remove a lab in whatever state it is."""
    claim, started, up = (
        read_json(folder / name) or {} for name in ("claim.json", "keeper.json", "lab.json")
    )
    lab_id = claim.get("id") or started.get("id") or up.get("id")
    for data in (started, up.get("keeper")):
        if data:
            ProcessId.from_json(data).terminate(DOWN_DEADLINE_S)
    for data in (started, up):
        if "init" in data:
            ProcessId.from_json(data["init"]).kill()
    if lab_id is not None:
        # Programs of ours that just begin do not know yet that the lab has ended.
        for process in _processes(lab_id):
            if "from yoked.lab import" in process.command():
                process.terminate(DOWN_DEADLINE_S)
    _remove_rest(folder, lab_id)


def _remove_rest(folder: Path, lab_id: str | None) -> None:
    if lab_id is not None:
        cgroups.remove_lab(lab_id)
    if not remove_folder(folder):
        raise LabError(f"{folder} cannot be removed", fix=f"rm -r {path_word(folder)}")


def _claim_folder(name: str, lab_id: str) -> Path:
    """The new, empty folder of a lab; what a killed one left under that name is cleared."""
    folder = labs_folder() / name
    private_folder(labs_folder())
    with locked(labs_folder() / ".lock", 30.0):
        if folder.exists():
            if _anybody_in(folder):
                raise LabError(
                    f"the lab {name} is up",
                    fix=[f"yoked lab status --lab {name}", f"yoked lab down {name}"],
                )
            _clear(folder)
        folder.mkdir(mode=0o700)
        # Who claimed it, until the keeper has written its own.
        claim = {"id": lab_id, "claimant": ProcessId.of(os.getpid()).to_json()}
        (folder / "claim.json").write_text(json.dumps(claim))
    return folder


def _anybody_in(folder: Path) -> bool:
    """Whether its keeper lives, or who claimed it and has not started one yet."""
    claim = read_json(folder / "claim.json") or {}
    holder = read_json(folder / "keeper.json") or claim.get("claimant")
    return holder is not None and ProcessId.from_json(holder).alive


def _start_keeper(
    folder: Path, lab_id: str, user: tuple[int, int] | None
) -> subprocess.Popen[bytes]:
    keeper = subprocess.Popen(
        own_program("keeper"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd="/",
        env={"YOKED_LAB": lab_id, "PATH": os.environ.get("PATH", os.defpath)},
    )
    assert keeper.stdin is not None
    owner = os.environ.get("YOKED_LAB_OWNER")
    config = {
        "folder": str(folder),
        "id": lab_id,
        "user": user,
        "owner": ProcessId.of(int(owner)).to_json() if owner else None,
    }
    keeper.stdin.write(json.dumps(config).encode() + b"\n")
    keeper.stdin.flush()
    return keeper


def _read_init(keeper: subprocess.Popen[bytes]) -> ProcessId:
    assert keeper.stdout is not None
    message = json.loads(keeper.stdout.readline() or b"{}")
    if "init" not in message:
        why = message.get("error") or "it ended without a word"
        raise LabError(
            f"the lab's namespaces could not be made: {why}",
            fix="yoked lab list    names what is missing",
        )
    return ProcessId.of(int(message["init"]))


def _end_keeper(keeper: subprocess.Popen[bytes]) -> None:
    """Break the tether, and wait until the keeper has taken everything away."""
    for pipe in (keeper.stdin, keeper.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    try:
        keeper.wait(DOWN_DEADLINE_S)
    except subprocess.TimeoutExpired:
        keeper.kill()
        keeper.wait()
