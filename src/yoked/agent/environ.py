"""What a program that comes in by ssh, and so a rank, finds: variables, compilers, its shell."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

from yoked.agent.ask import text

# Those that torch, its libraries or Python act upon.
_MATTER = re.compile(
    r"(GLOO|NCCL|TORCH|TORCHELASTIC|TP|OMP|KMP|MKL|GOMP|OPENBLAS|MASTER|PYTHON|PYTORCH|LC|YOKED)_.*"
    r"|PYTHON\w*|RANK|WORLD_SIZE|LOCAL_RANK|LD_PRELOAD|LD_LIBRARY_PATH|CUDA_VISIBLE_DEVICES"
    r"|TMPDIR|HOME|LANG|TZ|CC|CXX|(REQUESTS|CURL)_CA_BUNDLE|\w+_proxy|\w+_PROXY"
    # By which programs find their data, unless it is that of desktops.
    r"|(?!XDG_)(\w+_)?DATA(SET)?S?(_(DIR|PATH|ROOT|HOME|FOLDER))?"
    r"|(ONEDNN|DNNL|NPY|NUMEXPR|VECLIB|BLIS|MALLOC|OPENSSL|SSL|CUDA|HIP|ROCR|HSA)_.*"
    r"|GLIBC_TUNABLES|SSLKEYLOGFILE"
)
# Whoever reads what a host tells of itself reads no secret: its name is enough.
_SECRET = re.compile(r"SECRET|TOKEN|PASSW|CREDENTIAL|KEY|AUTH", re.IGNORECASE)
# What sshd runs at each login, the second where there is no first: sshd(8).
_RC = (Path("~/.ssh/rc"), Path("/etc/ssh/sshrc"))
# A proxy may be named with user and password.
_USER = re.compile(r"//[^/@\s]*@")


def probe_environment() -> dict[str, str]:
    """Variables that matter. Secrets and users of proxies are masked."""
    return {
        name: value
        for name in sorted(os.environ)
        if _MATTER.fullmatch(name) and (value := plain_value(name)) is not None
    }


def plain_value(name: str) -> str | None:
    """The value of a variable, with secrets and users of proxies masked; None: it is not set."""
    value = os.environ.get(name)
    if value is None or not _SECRET.search(name):
        return None if value is None else _USER.sub("//***@", value)
    return "***"


def probe_preload(settings: Path = Path("/etc/ld.so.preload")) -> list[str]:
    """The libraries that the loader puts into every program here, by its settings: ld.so(8)."""
    said = re.sub(r"#.*", "", text(settings))
    # That of Raspberry Pi OS, on each of them, has faster ways to copy memory.
    return [each for each in re.split(r"[\s:]+", said) if each and "libarmmem" not in each]


def probe_compiler() -> dict[str, Any]:
    """cc and cxx: paths, or None."""
    return {
        "cc": _first(os.environ.get("CC"), "cc", "gcc", "clang"),
        "cxx": _first(os.environ.get("CXX"), "c++", "g++", "clang++"),
    }


def probe_shell() -> dict[str, Any]:
    """rc: what sshd runs before it; sources_noise is the controller's to tell, who hears it."""
    rc = next((str(path) for path in _RC if path.expanduser().is_file()), None)
    return {"rc": rc, "sources_noise": None}


def _first(*names: str | None) -> str | None:
    """The path of the first program that is there; a name may have arguments."""
    words = [name.split() for name in names if name and name.split()]
    return next((path for each in words if (path := shutil.which(each[0])) is not None), None)
