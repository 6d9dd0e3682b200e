"""What small packages ask of a host that the program here imports: settings of theirs above all.

Their sources come from the hosts, since this machine need not have them; what the program itself
asks is in wants.py. A package does without what it asks for, so hosts are compared, and no more.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

from yoked.doctor.rank_probes import RankProbe
from yoked.doctor.wants import MOST_ASKED, Asks, asks, to_hosts
from yoked.records.rules import CONTROL

_AWAITED_S = 1.0
_MOST_CHARS, _MOST_FILES = 200_000, 64
# Below the home: each host's own, and nobody's settings.
_OF_A_HOST = re.compile(
    r"~?/?|~/\.(cache|ssh|netrc|_netrc|pypirc|aws|docker|kaggle|bash\w*|profile|python_history)\b.*"
    r"|~/\.local/(share|state)\b.*"
)
# Of variables those that are about a terminal, a network or this user.
_OF_A_LOGIN = re.compile(
    r"\w*PROXY\w*|LINES|COLUMNS|(NO|FORCE|CLICOLOR)_?\w*COLOR\w*|CI|DEBUG|USERNAME|USERPROFILE"
    r"|PYTHON\w*|TZ|MAIL|PAGER|BROWSER|VISUAL|\w*(TOKEN|SECRET|PASSWORD|KEY)\w*"
    r"|\w*(CERT|CA_BUNDLE)\w*|CONDA\w*|VIRTUAL_ENV",
    re.IGNORECASE,
)
_NO_NAMES = frozenset({"site-packages", "dist-packages", "__init__", "src", "lib", "utils", "core",
                       "config", "data", "main", "io", "os", "home", "opt", "usr"})  # fmt: skip
_one_at_a_time = threading.Lock()


def asks_of_packages(trial: RankProbe | None) -> Asks:
    """What the packages of a host ask of it, as its first rank tells them, where there is one."""
    if trial is None:
        return {}
    until_s = time.monotonic() + _AWAITED_S
    told = trial.await_any("asking", "ready", "failed", "ended", until_s=until_s) or {}
    return asks_of(told.get("asking"))


def asks_of(told: Any) -> Asks:
    """settings and reads of the sources that a host sent: {path: text}."""
    sources = [(name, text) for name, text in told.items() if _is_source(name, text)] if isinstance(
        told, dict
    ) else []  # fmt: skip
    if len(sources) > _MOST_FILES or sum(len(text) for _, text in sources) > _MOST_CHARS:
        return {}
    # All hosts have the same, and ask at the same time.
    with _one_at_a_time:
        return _read(tuple(sources))


def _is_source(name: object, text: object) -> bool:
    is_text = isinstance(name, str) and isinstance(text, str)
    return is_text and str(name).startswith("/") and not CONTROL.search(str(name))


@lru_cache(maxsize=8)
def _read(sources: tuple[tuple[str, str], ...]) -> Asks:
    found = asks(dict(sources))
    modules = {part.lower() for name, _ in sources
               for part in PurePosixPath(name).with_suffix("").parts[-2:]} - _NO_NAMES  # fmt: skip
    settings = {**found.get("variables", {}), **found.get("settings", {})}
    return {
        "settings": {
            name: place for name, place in settings.items() if not _OF_A_LOGIN.fullmatch(name)
        },
        "reads": {
            path: place
            for path, place in found.get("reads", {}).items()
            if not _OF_A_HOST.fullmatch(path)
            # What has the name of a package elsewhere is its own too.
            and (path.startswith("~") or any(each in path.lower() for each in modules))
        },
    }


def with_asks(
    own: Mapping[str, Sequence[str]], trial: RankProbe | None
) -> Mapping[str, Sequence[str]]:
    """What a host is asked: what the program asks, and then what its packages do."""
    more = to_hosts(asks_of_packages(trial))
    return {
        kind: list(dict.fromkeys((*own.get(kind, ()), *more.get(kind, ()))))[:MOST_ASKED]
        for kind in dict.fromkeys((*own, *more))
    }


def with_places(own: Asks, trials: Iterable[RankProbe | None]) -> Asks:
    """What the program asks, and what packages of any host do, each with its place."""
    found = dict(own)
    for more in map(asks_of_packages, trials):
        for kind, names in more.items():
            known = {**own.get("variables", {}), **own.get("settings", {}),
                     **own.get("reads_below", {})}  # fmt: skip
            told = {name: place for name, place in names.items() if name not in known}
            found[kind] = {**told, **found.get(kind, {})}
    return found
