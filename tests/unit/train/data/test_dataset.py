import json
import shlex
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from yoked.cli.main import main
from yoked.errors import DataError
from yoked.train.data.corpus import climbmix_folder
from yoked.train.data.dataset import DATASET_NAME, Dataset, list_datasets, load_dataset
from yoked.train.data.prepare import prepare
from yoked.train.data.verify import Verification
from yoked.train.tokenizer import JSON_NAME, Tokenizer


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_flipped_bit_is_found_by_verification(
    prepared: Dataset, cache: Path, split: str, snapshot: SnapshotAssertion
) -> None:
    path = prepared.folder / f"{split}.rows"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)

    with pytest.raises(DataError) as caught:
        Verification(load_dataset(prepared.folder), cache).finish()
    assert str(caught.value) == snapshot


def test_the_fix_of_damaged_rows_makes_them_again(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YOKED_CACHE", str(cache))
    text, tokenizer = tmp_path / "my farm.txt", tmp_path / "tokenizer"
    text.write_text("the oxen pull\n" * 500)
    Tokenizer.train(["the oxen sleep"], 270).save(tokenizer)
    made = prepare(str(text), max_seq_len=16, packing="bestfit", tokenizer=tokenizer)
    shutil.rmtree(tokenizer)
    content = bytearray(made.train.path.read_bytes())
    content[-1] ^= 1
    made.train.path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        Verification(load_dataset(made.folder), cache).finish()

    for line in caught.value.fix:
        words = shlex.split(line)
        if words[0] == "yoked":
            assert main(words[1:]) == 0
        else:
            subprocess.run(words, check=True)

    again = load_dataset(made.folder)
    Verification(again, cache).finish()
    assert again.info == made.info
    assert [folder.name for folder in made.folder.parent.iterdir()] == [made.folder.name]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (DATASET_NAME, None),
        (DATASET_NAME, "{"),
        (DATASET_NAME, "[]"),
        (DATASET_NAME, '{"format": 2, "name": "x"}'),
        (DATASET_NAME, '{"format": 99, "source": "sotu"}'),
        ("train.rows", None),
        ("val.rows", "PAR1"),
    ],
)
def test_a_damaged_folder_says_what_is_wrong(
    prepared: Dataset, name: str, content: str | None, snapshot: SnapshotAssertion
) -> None:
    path = prepared.folder / name
    if content is None:
        path.unlink()
    else:
        path.write_text(content)

    with pytest.raises(DataError) as caught:
        load_dataset(prepared.folder)
    assert str(caught.value) == snapshot

    assert caught.value.fix


def test_a_damaged_tokenizer_of_prepared_rows_says_how_to_make_both_again(
    prepared: Dataset,
) -> None:
    assert prepared.tokenizer().fingerprint == prepared.info.tokenizer_fingerprint
    (prepared.tokenizer_folder / JSON_NAME).write_text("{}")

    with pytest.raises(DataError) as caught:
        prepared.tokenizer()
    assert caught.value.fix == (f"remove the folder {prepared.folder} and prepare the data again",)


def test_row_files_of_another_dataset_are_noticed(
    prepared: Dataset, snapshot: SnapshotAssertion
) -> None:
    val = (prepared.folder / "val.rows").read_bytes()
    (prepared.folder / "train.rows").write_bytes(val)

    with pytest.raises(DataError) as caught:
        load_dataset(prepared.folder)
    assert str(caught.value) == snapshot


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda deeper: st.lists(deeper) | st.dictionaries(st.text(), deeper),
    max_leaves=5,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), value=JSON)
def test_a_dataset_json_with_any_other_value_is_an_error_or_of_no_consequence(
    prepared: Dataset, data: st.DataObject, value: object
) -> None:
    path = prepared.folder / DATASET_NAME
    form = prepared.info.to_json()
    part = data.draw(st.sampled_from([form, form["train"], form["val"]]))
    part[data.draw(st.sampled_from(sorted(part)))] = value
    path.write_text(json.dumps(form))

    try:
        found = load_dataset(prepared.folder)
    except DataError:
        return

    every = range(prepared.train.num_rows)
    with suppress(DataError):
        assert found.train.rows(every).tolist() == prepared.train.rows(every).tolist()


def test_a_dataset_json_without_end_is_damaged(
    prepared: Dataset, snapshot: SnapshotAssertion
) -> None:
    (prepared.folder / DATASET_NAME).write_text("[" * 100_000)

    with pytest.raises(DataError) as caught:
        load_dataset(prepared.folder)
    assert str(caught.value) == snapshot


def test_the_list_shows_what_is_there_in_which_state(prepared: Dataset, cache: Path) -> None:
    (cache / "data" / "torn").mkdir()
    (cache / "data" / ".staging-later-0123").mkdir()
    climbmix_folder(cache).mkdir(parents=True)
    (climbmix_folder(cache) / "shard_00000.parquet").write_bytes(b"1234")

    found = {(entry.name, entry.state): entry for entry in list_datasets(cache)}

    assert set(found) == {
        ("sotu", "embedded"),
        ("climbmix", "downloaded"),
        (prepared.folder.name, "prepared"),
        ("torn", "damaged"),
        ("later-0123", "unfinished"),
    }
    listed = found[prepared.folder.name, "prepared"]
    assert listed.folder == prepared.folder
    assert listed.size_bytes > prepared.train.path.stat().st_size
    assert "rows of 16 tokens" in listed.detail
    assert found["climbmix", "downloaded"].size_bytes == 4


def test_prepared_data_is_found_by_its_name_in_the_list(prepared: Dataset, cache: Path) -> None:
    (name,) = [entry.name for entry in list_datasets(cache) if entry.state == "prepared"]

    found = prepare(name, max_seq_len=16, cache=cache)

    assert found.info.fingerprint == prepared.info.fingerprint


def test_an_empty_cache_lists_what_can_be_had(cache: Path) -> None:
    assert [(entry.name, entry.state) for entry in list_datasets(cache)] == [
        ("sotu", "embedded"),
        ("climbmix", "available"),
    ]
    assert not cache.exists()
