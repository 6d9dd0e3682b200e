"""A file of flags, and the record of a run that is to be repeated. Nothing here imports torch.

A flag on the command line comes before the file, and the file before the default.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import tomllib
import types
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from yoked.errors import UsageError
from yoked.runs import no_training
from yoked.shape import amount, misfit
from yoked.train.config import TrainConfig
from yoked.train.limits import LENGTHS

# What a run cannot change while it goes on.
OF_THE_MODEL = (
    "depth",
    "aspect_ratio",
    "head_dim",
    "max_seq_len",
    "window_pattern",
    "vocab_size",
)
# Of a run's configuration, what was a matter of its start alone.
_OF_A_START = (
    "run",
    "runs_dir",
    "resume",
    "resume_from_step",
    "dry_run",
    "verbose",
    "json_output",
    "config_file",
    "planned",
    "repeats",
    "passed",
)
# What was measured before holds only as long as these are as they were.
_MEASURED_FOR = (*OF_THE_MODEL, "dtype", "device_type", "total_batch_size", "data")
# A file cannot say where it is, and stdout is settled before it is read.
_LINE_ALONE = ("config", "json")
# Of a run.json, which may be anybody's: what is read of it here, and by the ranks.
_RANK = {"name": str, "rank": amount}
_BACKENDS = {"forward": str, "grad_input": str, "grad_weight": str}
_RECORD = {
    "config": {"passed?": [str]},
    "hosts": [
        {
            **_RANK,
            "dtype": str,
            "tables_dtype": str,
            "compute": {"layers": _BACKENDS, "head": _BACKENDS, "attention": str},
        }
    ],
    "idle_hosts": [_RANK],
    "model": {
        "n_layer": amount,
        "n_embd": amount,
        "n_head": lambda value: amount(value) and value > 0,
        "sequence_len": amount,
        "window_pattern": str,
    },
    "horizon": {"total_batch_size": amount, "num_iterations": amount},
    "rows?": [amount],
    "attempt": amount,
}
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


class FileFlags(NamedTuple):
    """config: with the file's flags below those of the command line. others: the file's flags that
    are none of training's, by field.
    """

    config: TrainConfig
    others: dict[str, Any]


def with_config_file(config: TrainConfig, others: type | None = None) -> FileFlags:
    """The configuration with what its `--config` says. Raises UsageError with the file's line.

    others: a dataclass of further flags that the command has, and its file may.
    """
    path = config.config_file
    if path is None:
        return FileFlags(config, {})
    if path.is_dir():
        path = path / "run.json"
        if not path.exists():
            raise UsageError(
                f"--config {config.config_file}: this folder has no run.json",
                fix="name a file of flags, or the folder of a run",
            )
    text, content = _read(path)
    more: dict[str, Any] = {}
    if content.get("trains") is False:
        raise no_training(path.parent)
    if {"config", "hosts"} <= content.keys():
        below = repeated(content, path)
    else:
        values, more = _checked(content, path, text, others)
        below = TrainConfig(**values)
    return FileFlags(_on_top(config, below), more)


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        # Editors of Windows begin a file with a byte order mark.
        text = path.read_text(encoding="utf-8-sig")
        content = tomllib.loads(text) if path.suffix == ".toml" else _json_or_toml(text)
    except OSError as problem:
        raise UsageError(
            f"--config {path}: it cannot be read: {problem.strerror}",
            fix="name a file of flags, or the run.json of a run",
        ) from problem
    except (ValueError, RecursionError) as problem:
        raise UsageError(
            f"--config {path} is neither TOML nor JSON: {problem}",
            fix='a line for each flag, such as: depth = 8, or data = "texts"',
        ) from problem
    if not isinstance(content, dict):
        raise UsageError(f"--config {path} is not an object of flags", fix='{"depth": 8}')
    return text, content


def _json_or_toml(text: str) -> Any:
    return json.loads(text) if text.lstrip().startswith(("{", "[", '"')) else tomllib.loads(text)


def flag_names(of: type) -> dict[str, str]:
    """Fields by the names of their flags, without dashes in front."""
    from cyclopts import Parameter

    names = {}
    for field, hint in get_type_hints(of, include_extras=True).items():
        found = [each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Parameter)]
        if found and found[0].parse is not False:
            name = next(iter(found[0].name or ()), field.replace("_", "-"))
            names[name.removeprefix("--")] = field
    return names


def _checked(
    content: Mapping[str, Any], path: Path, text: str, others: type | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The file's values by field: of training, and others."""
    known: dict[str, tuple[type, str]] = {}
    for of in (TrainConfig, others):
        if of is not None:
            known.update({name: (of, field) for name, field in flag_names(of).items()})
    found: dict[type, dict[str, Any]] = {TrainConfig: {}, others or TrainConfig: {}}
    for key, value in content.items():
        name = key.replace("_", "-")
        where = f"{path}{_line_of(key, text)}"
        if isinstance(value, dict):
            raise UsageError(
                f"{where}: {key!r} is a table", fix="write flags at the top of the file, in none"
            )
        if name not in known or name in _LINE_ALONE:
            raise _unknown(where, key, known.keys() - _LINE_ALONE)
        of, field = known[name]
        if value is not None:
            found[of][field] = _fitting(value, get_type_hints(of)[field], f"{where}: {key}")
    return found[TrainConfig], {} if others is None else found[others]


def _line_of(key: str, text: str) -> str:
    place = re.search(rf"""^\s*[{{,]?\s*["']?{re.escape(key)}["']?\s*[=:]""", text, re.MULTILINE)
    return "" if place is None else f":{text.count(chr(10), 0, place.end()) + 1}"


def _unknown(where: str, key: str, known: Collection[str]) -> UsageError:
    if key.replace("_", "-") in _LINE_ALONE:
        return UsageError(f"{where}: {key} is for the command line alone", fix="remove it there")
    nearest = difflib.get_close_matches(key.replace("_", "-"), known, n=1, cutoff=0.6)
    return UsageError(
        f"{where}: {key!r} is no flag of training",
        fix=f"write {nearest[0]}" if nearest else "yoked train --help    has all of them",
    )


def _fitting(value: Any, hint: Any, where: str) -> Any:
    """A value of the file as the field has it."""
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    for kind in kinds:
        if get_origin(kind) is Literal and value in get_args(kind):
            return value
        if kind is Path and isinstance(value, str):
            return Path(value)
        if kind in (int, str, bool) and type(value) is kind:
            return value
        if kind is float and type(value) in (int, float):
            return float(value)
    # Such as threads = 2, where auto is text.
    if str in kinds and type(value) is int:
        return str(value)
    wanted = _expected(kinds)
    raise UsageError(f"{where} = {json.dumps(value, default=str)}", fix=f"write {wanted} there")


def _expected(kinds: Collection[Any]) -> str:
    choices = [str(choice) for kind in kinds for choice in get_args(kind)]
    words = [_WORDS.get(str if kind is Path else kind) for kind in kinds]
    return f"one of {', '.join(choices)}" if choices else " or ".join(filter(None, words))


def _on_top(config: TrainConfig, below: TrainConfig) -> TrainConfig:
    """What the command line names, on what the file says."""
    given, repeats = config.given(), below.repeats
    if any(name in given and given[name] != getattr(below, name) for name in _MEASURED_FOR):
        repeats = None
    passed = ((below.passed or frozenset()) | (config.passed or frozenset())) - {"config_file"}
    return dataclasses.replace(
        below, **{**config.changes(), "config_file": None, "repeats": repeats, "passed": passed}
    )


def repeated(record: Mapping[str, Any], path: Path) -> TrainConfig:
    """The configuration of a run that repeats another, by its run.json, with all that it chose."""
    require_record(record, f"--config {path}", fix="name a run.json")
    saved = TrainConfig.from_dict(dict(_plain(record["config"], f"--config {path}")))
    config, hosts = as_it_began(saved, record, TrainConfig()), record["hosts"]
    ranks = len(hosts) + len(record["idle_hosts"])
    if len({host["name"] for host in hosts}) == 1 and config.ranks is None:
        config = dataclasses.replace(config, ranks=ranks)
    chosen = {name: record.get(name, []) for name in ("hosts", "idle_hosts", "rows")}
    return dataclasses.replace(config, repeats=chosen)


def require_record(record: Mapping[str, Any], where: str, *, fix: str) -> None:
    """Raise UsageError for a run.json that no run wrote. where: the file, for the error."""
    if (why := misfit(dict(record), _RECORD)) is not None:
        raise UsageError(f"{where} is no run's record: {why}", fix=fix)


def _plain(saved: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    """The values of a run's configuration that another run takes over, each as its field has it."""
    hints = get_type_hints(TrainConfig)
    yield "passed", set(saved.get("passed", ())) - set(_OF_A_START)
    for name, value in saved.items():
        if name not in _OF_A_START and value is not None:
            # One that this version does not know is refused by its name.
            hint = hints.get(name)
            yield name, value if hint is None else _fitting(value, hint, f"{where}: {name}")


def as_it_began(
    saved: TrainConfig, recorded: Mapping[str, Any], config: TrainConfig
) -> TrainConfig:
    """The saved configuration with what its devices decided: others would decide otherwise.

    recorded: a run.json that `require_record` has seen. config: what is asked for now; another
    length of the run is worked out anew.
    """
    model, schedule = recorded["model"], recorded["horizon"]
    decided = {
        "depth": model["n_layer"],
        "head_dim": model["n_embd"] // model["n_head"],
        "max_seq_len": model["sequence_len"],
        "window_pattern": model["window_pattern"],
        "total_batch_size": schedule["total_batch_size"],
        "num_iterations": schedule["num_iterations"],
    }
    if any(getattr(saved, name) is not None or name in config.given() for name in LENGTHS):
        del decided["num_iterations"]
    left_open = {name: value for name, value in decided.items() if getattr(saved, name) is None}
    return dataclasses.replace(saved, **left_open)
