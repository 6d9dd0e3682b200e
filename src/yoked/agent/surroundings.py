"""Variables of this host's environment that torch, its libraries or Python act upon."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

_MATTER = re.compile(
    r"(GLOO|NCCL|TORCH|TORCHELASTIC|TP|OMP|KMP|MKL|GOMP|OPENBLAS|MASTER|PYTHON|PYTORCH|LC|YOKED)_.*"
    r"|PYTHON\w*|RANK|WORLD_SIZE|LOCAL_RANK|LD_PRELOAD|LD_LIBRARY_PATH|CUDA_VISIBLE_DEVICES"
    r"|TMPDIR|HOME|LANG|CC|CXX|\w+_proxy|\w+_PROXY"
)
# Whoever reads what a host tells of itself reads no secret: its name is enough.
_SECRET = re.compile(r"SECRET|TOKEN|PASSW|CREDENTIAL|KEY|AUTH", re.IGNORECASE)
# A proxy may be named with user and password.
_USER = re.compile(r"//[^/@\s]*@")


def part_environment(args: Mapping[str, Any]) -> dict[str, str]:
    """What a program that comes in by ssh, and so a rank, finds. Secrets and users of proxies
    are masked.
    """
    del args
    return {
        name: "***" if _SECRET.search(name) else _USER.sub("//***@", value)
        for name, value in sorted(os.environ.items())
        if _MATTER.fullmatch(name)
    }
