"""What a host may tell of the Python that would train there: see yoked.probe.interpreter."""

from __future__ import annotations

from yoked.records.host_rules import BARRED, MOUNT, OTHER_HOME, PLACE
from yoked.records.rules import (
    complete,
    count,
    each,
    fields,
    flag,
    label,
    library_file,
    line,
    named,
    number,
    one_of,
    optional,
    path,
    pid,
    text,
    variable,
    version,
    word,
)

# What keeps an interpreter from working: see yoked.agent.culprits.
CULPRITS = fields(
    {
        "what": one_of("start", "import"),
        "late": flag,
        "variables": each(
            fields({"name": variable, "places": each(PLACE)}, needed=("name", "places"))
        ),
        "files": each(path),
        "home": OTHER_HOME,
    }
)

_MODULE = fields({"path": path, "version": version, "digest": word}, needed=("path",))
_FOREIGN = fields({"file": path, "hides": path, "set_by": line}, needed=("file", "hides"))
_FAILED_ACT = fields(
    {
        "said": label,
        "variables": each(variable),
        "limit": one_of("l"),  # of ulimit
        "file": path,
        "by": optional(one_of("capability", "isolated", "mode")),
        "command": label,
        "holders": each(complete({"pid": pid, "command": label, "count": count})),
        "mount": optional(MOUNT),
    },
    needed=("said",),
)

TORCH = fields(
    {
        "python": line,
        "python_version": version,
        "torch": version,
        "torch_path": line,
        "numpy": version,
        "gloo": flag,
        "nccl": flag,
        "headers": flag,
        "build": one_of("cpu", "cuda", "rocm"),
        "cuda_build": version,
        "cuda_available": flag,
        "imported": flag,
        "error": text,
        "no_base": text,
        "took_s": number,
        # What pip takes for this torch, and is left of another one.
        "stale": complete({"folder": path, "version": version}),
        "stranded": path,  # packages beside it that it takes no notice of
        "tls_most": word,  # where the settings of OpenSSL allow no newer one
        "tls_file": path,
        "silent_s": number,  # for how long it had not begun
        "blame": fields(
            {
                "file": path,
                "line": count,
                "package": word,
                "missing": word,
                "of_python": flag,
                "libraries": each(_FOREIGN),
                "barred": BARRED,
            }
        ),
        "compiled": flag,  # whether what Python made of torch's sources is kept
        "modules": named(variable, optional(_MODULE)),  # of programs here; None: it finds none
        # What yoked.probe.interpreter tells.
        "starts": each(
            fields({"file": path, "digest": word, "because": path}, needed=("file", "digest"))
        ),
        "plugins": each(
            fields(
                {
                    "name": label,
                    "value": label,
                    "package": label,
                    "version": version,
                    "folder": path,
                    "file": path,
                },
                needed=("value", "package", "folder"),
            )
        ),
        "settings": named(label, label),
        "replaced": named(label, path),
        "torch_settings": named(label, label),
        "torch_replaced": named(label, path),
        "foreign": each(_FOREIGN),
        "altered": each(
            fields(
                {
                    "file": path,
                    "package": word,
                    "version": version,
                    "how": one_of(
                        "content", "empty", "missing", "dangling", "unreadable", "bytecode", "cut"
                    ),
                    "found": word,
                },
                needed=("file", "how"),
            )
        ),
        "more": count,  # files that are altered
        "library": fields(
            {
                "build": word,
                "home": path,
                "files": named(library_file, word),
                "younger": each(library_file),
            },
            needed=("build", "home", "files"),
        ),
        "stops": fields(
            {"times": count, "lost_s": number, "pid": pid, "command": text},
            needed=("times", "lost_s"),
        ),
        "culprits": CULPRITS,
        # What yoked.probe.acts tells.
        "acts": fields(
            {
                "worked": each(word),
                "failed": named(word, _FAILED_ACT),
                "seccomp": flag,
            },
            needed=("worked", "failed"),
        ),
    },
    strict=("torch", "torch_path", "numpy"),
)
