"""Manifests for Kubernetes: an indexed Job, a headless Service, and a Secret.

Each pod is a node: its completion index is the node's rank, and the pod with index 0 has a name
that the others can look up, because the Service makes one for each pod. The Secret is made anew for
each manifest; by it the ranks know each other.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from yoked.launch.manifests.spec import (
    POD_STORAGE,
    Manifest,
    ManifestSpec,
    require_match,
)
from yoked.ranks.secret import SECRET_BYTES, TEXT_VARIABLE

Body = dict[str, Any]

_MASTER_PORT = 29500
_SAVE_LIMIT_S = 90
_NAME_OF_VALUE = "ranks"
# A label of DNS; the pod's name has the index behind it, and 63 characters at most.
_LABEL_LENGTH = 52
_LABEL = re.compile(rf"[a-z0-9]([-a-z0-9]{{0,{_LABEL_LENGTH - 2}}}[a-z0-9])?")
_IMAGE = re.compile(r"[\w][\w.:@/-]*")
# Some parsers take more words for numbers than YAML does, 1e3 and no among them.
_NEEDS_NO_QUOTES = re.compile(r"[A-Za-z][\w./-]{2,}")


@dataclass(frozen=True, kw_only=True)
class KubernetesOptions:
    """What only Kubernetes is asked for. storage: a claim that all nodes can mount at once."""

    image: str
    namespace: str | None = None
    storage: str | None = None

    def __post_init__(self) -> None:
        require_match("--image", self.image, _IMAGE, "an image such as registry/name:tag")
        require_match("--namespace", self.namespace, _LABEL, "the name of a namespace")
        require_match("--storage", self.storage, _LABEL, "the name of a PersistentVolumeClaim")


def manifest(spec: ManifestSpec, options: KubernetesOptions) -> Manifest:
    """The run as documents for `kubectl apply`."""
    documents = [_secret(spec, options), _service(spec, options), _job(spec, options)]
    text = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)
    return Manifest("job", text, tuple(_notes(spec, options)), holds_secret=True)


def label_of(run: str) -> str:
    """A run's name as a label of DNS, which names of Kubernetes must be."""
    label = re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")
    return f"yoked-{label}"[:_LABEL_LENGTH].rstrip("-")


def _notes(spec: ManifestSpec, options: KubernetesOptions) -> Iterable[str]:
    yield "the text holds the secret by which the run's ranks know each other: not for a repository"
    if options.storage is None:
        yield (
            f"without --storage, {POD_STORAGE} ends with each pod: checkpoints are lost, "
            "and a restart begins anew"
        )
    elif spec.nodes > 1:
        yield f"the claim {options.storage} must have the access mode ReadWriteMany"


# --- documents


def _metadata(spec: ManifestSpec, options: KubernetesOptions) -> Body:
    label = label_of(spec.run)
    metadata: Body = {"name": label, "labels": {"app.kubernetes.io/name": label}}
    if options.namespace is not None:
        metadata["namespace"] = options.namespace
    return metadata


def _secret(spec: ManifestSpec, options: KubernetesOptions) -> Body:
    """What the ranks prove to each other that they know."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(spec, options),
        "type": "Opaque",
        "stringData": {_NAME_OF_VALUE: secrets.token_hex(SECRET_BYTES)},
    }


def _service(spec: ManifestSpec, options: KubernetesOptions) -> Body:
    """Gives each pod of the job a name of its own; nothing is balanced."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(spec, options),
        "spec": {
            "clusterIP": "None",
            "selector": {"batch.kubernetes.io/job-name": label_of(spec.run)},
            # Ranks look for each other before any is ready.
            "publishNotReadyAddresses": True,
            "ports": [{"name": "rendezvous", "port": _MASTER_PORT}],
        },
    }


def _job(spec: ManifestSpec, options: KubernetesOptions) -> Body:
    label = label_of(spec.run)
    rendezvous = [
        f"--nnodes={spec.nodes}",
        f"--nproc-per-node={spec.ranks_per_node}",
        '--node-rank="$JOB_COMPLETION_INDEX"',
        f"--master-addr={label}-0.{label}",
        f"--master-port={_MASTER_PORT}",
    ]
    container = {
        "name": "node",
        "image": options.image,
        **_command(spec, rendezvous),
        "env": _environment(spec),
        "resources": _resources(spec),
        "volumeMounts": _mounts(),
    }
    pod = {
        "subdomain": label,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _SAVE_LIMIT_S + 30,
        "containers": [container],
        "volumes": _volumes(options),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(spec, options),
        "spec": {
            "completionMode": "Indexed",
            "completions": spec.nodes,
            "parallelism": spec.nodes,
            # All nodes fail with one; each has its own tries, and the job ends with the first
            # that has none left.
            "backoffLimitPerIndex": spec.restarts,
            "maxFailedIndexes": 0,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": [_EVICTION_IS_NO_FAILURE]},
            "template": {"metadata": {"labels": _metadata(spec, options)["labels"]}, "spec": pod},
        },
    }


_EVICTION_IS_NO_FAILURE: Body = {
    "action": "Ignore",
    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
}


# --- the pod


def _command(spec: ManifestSpec, rendezvous: Iterable[str]) -> Body:
    """The container's program; the person's arguments stay a list, behind the script's name."""
    program = spec.program
    lines = ["set -eu"]
    if spec.interface is not None:
        picked = (Path(__file__).parent / "pick_interface.sh").read_text(encoding="utf-8")
        lines += [*picked.rstrip().splitlines(), *_PICK]
    if program.run_folder is not None:
        lines += [
            "# A pod before this one may have begun the run.",
            f"if [ -f {shlex.quote(program.run_folder + '/run.json')} ]; then",
            f"    set -- {shlex.join(program.resume_args)}",
            "fi",
        ]
    torchrun = f"{shlex.quote(spec.python)} -m torch.distributed.run"
    target = f'{shlex.join(program.torchrun_target)} "$@"'
    lines.append(_CONTINUED.join([f"exec {torchrun}", *rendezvous, target]))
    script = "\n".join(lines) + "\n"
    command = ["/bin/sh", "-c", _literal(script), "yoked"]
    return {"command": command, "args": [_literal(word) for word in program.args]}


_CONTINUED = " \\\n    "
_PICK = (
    'GLOO_SOCKET_IFNAME=$(pick_interface "$YOKED_INTERFACE")',
    "# NCCL takes a bare name for the beginning of one.",
    'export GLOO_SOCKET_IFNAME NCCL_SOCKET_IFNAME="=$GLOO_SOCKET_IFNAME"',
)


def _literal(word: str) -> str:
    """A word that Kubernetes hands on as it is.

    It would put the value of a variable for $(NAME), and makes one dollar of two.
    """
    return re.sub(r"\$(?=[$(])", "$$", word)


def _environment(spec: ManifestSpec) -> list[Body]:
    values = {
        "YOKED_CACHE": f"{POD_STORAGE}/cache",
        "PYTHONUNBUFFERED": "1",
        # An evicted pod's ranks save; torchrun would give them 30 s.
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(_SAVE_LIMIT_S),
    }
    if spec.cpus_per_node is not None:
        values["OMP_NUM_THREADS"] = str(max(1, spec.cpus_per_node // spec.ranks_per_node))
    if spec.interface is not None:
        values["YOKED_INTERFACE"] = spec.interface
    if spec.adapters is not None:
        values["NCCL_IB_HCA"] = spec.adapters
    plain: list[Body] = [{"name": name, "value": _literal(value)} for name, value in values.items()]
    known = {"secretKeyRef": {"name": label_of(spec.run), "key": _NAME_OF_VALUE}}
    return [*plain, {"name": TEXT_VARIABLE, "valueFrom": known}]


def _resources(spec: ManifestSpec) -> Body:
    resources: Body = {}
    if spec.cpus_per_node is not None:
        resources["requests"] = {"cpu": str(spec.cpus_per_node)}
    if spec.gpus_per_node is not None:
        resources["limits"] = {"nvidia.com/gpu": str(spec.gpus_per_node)}
    return resources


def _mounts() -> list[Body]:
    return [
        {"name": "storage", "mountPath": POD_STORAGE},
        {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 - a mount, no file
    ]


def _volumes(options: KubernetesOptions) -> list[Body]:
    storage: Body = (
        {"emptyDir": {}}
        if options.storage is None
        else {"persistentVolumeClaim": {"claimName": options.storage}}
    )
    return [
        {"name": "storage", **storage},
        # NCCL and data loaders need more than the 64 MB that a container has.
        {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
    ]


# --- YAML


class _Dumper(yaml.SafeDumper):
    """Scripts as blocks, words that some parser could misread in quotes, no references."""

    def ignore_aliases(self, data: object) -> bool:
        del data
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Set items of lists off from their key, as examples of manifests do."""
        del indentless
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    if "\n" in value:
        style: str | None = "|"
    else:
        style = None if _NEEDS_NO_QUOTES.fullmatch(value) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)
