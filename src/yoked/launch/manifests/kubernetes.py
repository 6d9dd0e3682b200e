"""Manifests for Kubernetes: an indexed Job, a headless Service, and a Secret.

kubernetes.yaml is their text. Each pod is a node: its completion index is the node's rank, and the
pod with index 0 has a name that the others can look up, because the Service makes one for each pod.
The Secret is made anew for each manifest; by it the ranks know each other.
"""

from __future__ import annotations

import json
import re
import secrets
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from string import Template

from yoked.launch.manifests.spec import POD_STORAGE, Manifest, ManifestSpec, require_match
from yoked.ranks.secret import SECRET_BYTES, TEXT_VARIABLE

_HERE = Path(__file__).parent
_MASTER_PORT = 29500
_SAVE_LIMIT_S = 90
# A label of DNS; the pod's name has the index behind it, and 63 characters at most.
_LABEL_LENGTH = 52
_LABEL = re.compile(rf"[a-z0-9]([-a-z0-9]{{0,{_LABEL_LENGTH - 2}}}[a-z0-9])?")
_IMAGE = re.compile(r"[\w][\w.:@/-]*")
# What YAML does not take as it is: control characters, and what is a line's end to some parsers.
_NOT_YAML = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


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
    label = label_of(spec.run)
    metadata = [f"name: {label}", "labels:", f"  app.kubernetes.io/name: {label}"]
    if options.namespace is not None:
        metadata.append(f"namespace: {_quoted(options.namespace)}")
    storage = "emptyDir: {}"
    if options.storage is not None:
        storage = f"persistentVolumeClaim: {{claimName: {_quoted(options.storage)}}}"
    text = Template((_HERE / "kubernetes.yaml").read_text(encoding="utf-8")).substitute(
        label=label,
        metadata=_indented(metadata, 2),
        secret=secrets.token_hex(SECRET_BYTES),
        secret_variable=TEXT_VARIABLE,
        port=_MASTER_PORT,
        nodes=spec.nodes,
        restarts=spec.restarts,
        grace_s=_SAVE_LIMIT_S + 30,
        image=_quoted(options.image),
        script=_block(_literal(_script(spec, label)), 14),
        args=_list(map(_literal, spec.program.args), 12),
        env=_indented(_environment(spec), 12),
        resources=json.dumps(_resources(spec)),
        storage_path=POD_STORAGE,
        storage=storage,
    )
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


def _script(spec: ManifestSpec, label: str) -> str:
    """The container's program; the person's arguments stay a list, behind the script's name."""
    program = spec.program
    lines = ["set -eu"]
    if spec.interface is not None:
        lines += (_HERE / "pick_interface.sh").read_text(encoding="utf-8").splitlines()
        lines += _PICK
    if program.run_folder is not None:
        lines += [
            "# A pod before this one may have begun the run.",
            f"if [ -f {shlex.quote(program.run_folder + '/run.json')} ]; then",
            f"    set -- {shlex.join(program.resume_args)}",
            "fi",
        ]
    torchrun = [
        f"exec {shlex.quote(spec.python)} -m torch.distributed.run",
        f"--nnodes={spec.nodes}",
        f"--nproc-per-node={spec.ranks_per_node}",
        '--node-rank="$JOB_COMPLETION_INDEX"',
        f"--master-addr={label}-0.{label}",
        f"--master-port={_MASTER_PORT}",
        f'{shlex.join(program.torchrun_target)} "$@"',
    ]
    return "\n".join([*lines, " \\\n    ".join(torchrun)]) + "\n"


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


def _environment(spec: ManifestSpec) -> list[str]:
    """Lines of a list of `env`."""
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
    return [
        line
        for name, value in values.items()
        for line in (f"- name: {name}", f"  value: {_quoted(_literal(value))}")
    ]


def _resources(spec: ManifestSpec) -> dict[str, dict[str, str]]:
    resources: dict[str, dict[str, str]] = {}
    if spec.cpus_per_node is not None:
        resources["requests"] = {"cpu": str(spec.cpus_per_node)}
    if spec.gpus_per_node is not None:
        resources["limits"] = {"nvidia.com/gpu": str(spec.gpus_per_node)}
    return resources


# --- YAML


def _quoted(text: str) -> str:
    """A string of JSON, which is one of YAML too, for all parsers."""
    json_text = json.dumps(text, ensure_ascii=False)
    return _NOT_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", json_text)


def _block(text: str, indent: int) -> str:
    """Lines as they are where YAML has them so, else a string."""
    if _NOT_YAML.search(text.replace("\n", "").replace("\t", "")):
        return _quoted(text)
    return "|\n" + _indented(text.rstrip("\n").split("\n"), indent)


def _list(words: Iterable[str], indent: int) -> str:
    """What stands behind a key that has a list of strings."""
    lines = [f"- {_quoted(word)}" for word in words]
    return "\n" + _indented(lines, indent) if lines else " []"


def _indented(lines: Iterable[str], indent: int) -> str:
    return "\n".join(" " * indent + line if line else "" for line in lines)
