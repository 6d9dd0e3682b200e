"""What is known of a lab: here, and in its lab.json, from which other processes know it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from yoked.core.fs import locked, read_json, write_json
from yoked.core.proc import ProcessId
from yoked.errors import LabError
from yoked.lab import cgroups
from yoked.lab.host import LabHost
from yoked.lab.hostgroup import HostGroup
from yoked.lab.inside import Inside
from yoked.lab.shaping import Features
from yoked.lab.topology import Topology, to_json

_LOCK_TIMEOUT_S = 10.0


@dataclass
class LabState:
    """A lab whose first process is there. notes: what a person should know of it."""

    name: str
    id: str
    folder: Path
    topology: Topology
    user: tuple[int, int] | None
    keeper: ProcessId
    init: ProcessId
    hosts: dict[str, LabHost]
    notes: list[str]
    features: Features

    @property
    def is_root(self) -> bool:
        """Whether root made it; otherwise an ordinary user, in a user namespace."""
        return self.user is None

    @property
    def switch(self) -> Inside:
        """The namespaces in which the hosts are plugged together."""
        return Inside(self.init, not self.is_root)

    @property
    def ssh_config(self) -> Path:
        """For `ssh -F`."""
        return self.folder / "ssh_config"

    @property
    def fleet_file(self) -> Path:
        """The fleet's `yoked.toml`."""
        return self.folder / "yoked.toml"

    def note(self, notes: Iterable[str]) -> None:
        """Add what a person should know, each thing once."""
        self.notes += [note for note in dict.fromkeys(notes) if note not in self.notes]

    def save(self, booted: Iterable[str] = ()) -> None:
        """Write lab.json, from which other processes know the lab.

        booted: the hosts that this process has started; all others are as the file knows them.
        """
        with locked(self.folder / "lab.lock", _LOCK_TIMEOUT_S):
            saved = read_json(self.folder / "lab.json") or {}
            self._adopt({**saved.get("hosts", {}), **{name: self._entry(name) for name in booted}})
            self.note(saved.get("notes", []))
            data: dict[str, Any] = {
                "name": self.name,
                "id": self.id,
                "user": self.user,
                "keeper": self.keeper.to_json(),
                "init": self.init.to_json(),
                "notes": self.notes,
                "features": asdict(self.features),
                "topology": to_json(self.topology),
                "hosts": {name: self._entry(name) for name in self.hosts},
            }
            write_json(self.folder / "lab.json", data)

    def refresh(self) -> None:
        """Learn which hosts other processes have started anew."""
        saved = read_json(self.folder / "lab.json") or {}
        if saved.get("id") != self.id:
            raise LabError(f"the lab {self.name} is no longer up", fix=f"yoked lab up {self.name}")
        self._adopt(saved["hosts"])

    def _adopt(self, entries: dict[str, Any]) -> None:
        """Have the hosts that these entries of lab.json tell of."""
        new = [name for name in entries if self._entry(name) != entries[name]]
        groups = {}
        if new:
            groups = {group.name: group for group in cgroups.Cgroups.open(self.id).hosts()}
        for name in new:
            process, cpus = ProcessId.from_json(entries[name]), tuple(entries[name]["cpus"])
            self.hosts[name] = self.as_host(name, process, cpus, groups.get(name))

    def _entry(self, name: str) -> dict[str, Any] | None:
        """A host as it stands in lab.json; None: it was not started yet."""
        if name not in self.hosts:
            return None
        host = self.hosts[name]
        return {**host.process.to_json(), "cpus": list(host.cpus)}

    def as_host(
        self, name: str, process: ProcessId, cpus: tuple[int, ...], group: HostGroup | None
    ) -> LabHost:
        """A host of this lab by its PID 1."""
        storage = Path(f"/proc/{self.init.pid}/root/run/hosts/{name}")
        return LabHost(self.topology.host(name), self.id, process, cpus, self.user, group, storage)
