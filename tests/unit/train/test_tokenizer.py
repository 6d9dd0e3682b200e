import base64
import json
import logging
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from yoked.errors import DataError, UsageError
from yoked.train.tokenizer import (
    JSON_NAME,
    PICKLE_NAME,
    SPECIAL_TOKENS,
    SPLIT_PATTERN,
    Tokenizer,
)

TEXTS = ["the cat sat on the mat, the cat did", "the théâtre at the mat: 1234 cats"] * 3


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS, 290)


@given(st.text())
def test_decoding_gives_back_any_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)

    assert tokenizer.decode(ids) == text
    assert all(0 <= token < tokenizer.vocab_size for token in ids)


@given(st.text())
def test_token_bytes_add_up_to_the_bytes_of_the_text(tokenizer: Tokenizer, text: str) -> None:
    sizes = tokenizer.token_bytes()

    assert sizes[tokenizer.encode(text)].sum() == len(text.encode())


def test_special_tokens_follow_the_merges_and_have_no_bytes(tokenizer: Tokenizer) -> None:
    first = tokenizer.vocab_size - len(SPECIAL_TOKENS)

    specials = [tokenizer.decode([number]) for number in range(first, tokenizer.vocab_size)]
    assert specials == list(SPECIAL_TOKENS)
    assert tokenizer.bos_id == first
    sizes = tokenizer.token_bytes()
    assert sizes.shape == (tokenizer.vocab_size,)
    assert sizes[first:].sum() == 0
    assert sizes[:first].min() == 1


def test_a_special_token_written_in_a_text_is_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("the <|bos|> cat")

    assert tokenizer.bos_id not in ids
    assert tokenizer.decode(ids) == "the <|bos|> cat"


def test_a_batch_is_encoded_like_its_texts_whatever_the_threads(tokenizer: Tokenizer) -> None:
    one_by_one = [tokenizer.encode(text) for text in TEXTS]

    assert tokenizer.encode_batch(TEXTS) == one_by_one
    assert tokenizer.encode_batch(TEXTS, threads=3) == one_by_one


def test_bytes_of_a_split_character_are_given_as_they_are(tokenizer: Tokenizer) -> None:
    first, second = "é".encode()

    assert tokenizer.decode_bytes([first]) == bytes([first])
    assert tokenizer.decode([first]) == "\N{REPLACEMENT CHARACTER}"
    assert tokenizer.decode([first, second]) == "é"


def test_a_text_with_few_pairs_gives_a_smaller_vocabulary_and_says_so() -> None:
    found = Tokenizer.train(["ab ab ab"], 1_000)

    assert found.requested_vocab_size == 1_000
    assert found.vocab_size == 256 + 2 + len(SPECIAL_TOKENS)


def test_a_vocabulary_below_the_bytes_and_special_tokens_is_refused(
    snapshot: SnapshotAssertion,
) -> None:
    with pytest.raises(UsageError) as caught:
        Tokenizer.train(TEXTS, 264)
    assert str(caught.value) == snapshot

    assert Tokenizer.train(TEXTS, 265).vocab_size == 265


def test_training_again_in_another_process_gives_the_same_tokenizer(tokenizer: Tokenizer) -> None:
    # rustbpe counts in parallel and in hash maps, whose order differs from process to process.
    script = (
        "import sys, json; from yoked.train.tokenizer import Tokenizer;"
        "print(Tokenizer.train(json.loads(sys.argv[1]), 290).fingerprint)"
    )
    command = [sys.executable, "-c", script, json.dumps(TEXTS)]
    path = str(Path(__file__).parents[3] / "src")

    found = subprocess.run(
        command, env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )

    assert found.stdout.strip() == tokenizer.fingerprint


def test_training_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        Tokenizer.train(TEXTS, 280)

    assert [record for record in caplog.records if "rustbpe" in record.name] == []


def test_saved_and_loaded_it_is_the_same(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "made" / "for it")

    found = Tokenizer.load(tmp_path / "made" / "for it")

    assert found.fingerprint == tokenizer.fingerprint
    assert found.requested_vocab_size == 290
    assert found.encode(TEXTS[1]) == tokenizer.encode(TEXTS[1])
    assert sorted(p.name for p in (tmp_path / "made" / "for it").iterdir()) == [
        PICKLE_NAME,
        JSON_NAME,
    ]


def test_the_pickle_is_the_encoding_that_nanochat_expects(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    tokenizer.save(tmp_path)

    encoding = pickle.loads((tmp_path / PICKLE_NAME).read_bytes())

    assert isinstance(encoding, tiktoken.Encoding)
    assert encoding.n_vocab == tokenizer.vocab_size
    assert encoding.encode_single_token("<|bos|>") == tokenizer.bos_id
    assert encoding.encode_ordinary(TEXTS[0]) == tokenizer.encode(TEXTS[0])


def test_a_folder_with_nanochats_pickle_alone_is_loaded(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    tokenizer.save(tmp_path)
    (tmp_path / JSON_NAME).unlink()

    found = Tokenizer.load(tmp_path)

    assert found.fingerprint == tokenizer.fingerprint
    assert found.requested_vocab_size is None


class Harmful:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path("harm was done"),))


def test_a_pickle_that_would_run_code_is_refused_and_runs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / PICKLE_NAME).write_bytes(pickle.dumps(Harmful()))

    with pytest.raises(DataError) as caught:
        Tokenizer.load(tmp_path)
    assert str(caught.value) == snapshot

    assert not (tmp_path / "harm was done").exists()


def encoding_state(**changes: object) -> dict[str, object]:
    state: dict[str, object] = {
        "name": "x",
        "pat_str": SPLIT_PATTERN,
        "mergeable_ranks": {bytes([value]): value for value in range(256)},
        "special_tokens": {"<|bos|>": 256},
    }
    return {**state, **changes}


@pytest.mark.parametrize(
    ("state", "complaint"),
    [
        ("gpt2", "does not hold an encoding"),
        (encoding_state(mergeable_ranks=None), "merges, pattern or special tokens are missing"),
        (encoding_state(mergeable_ranks={"a": 0}), "neither bytes"),
        (encoding_state(special_tokens={"<|bos|>": 300}), "are not 0 to 256"),
        (encoding_state(special_tokens={"<|endoftext|>": 256}), "no <|bos|>"),
        (encoding_state(mergeable_ranks={b"a": 0}, special_tokens={"<|bos|>": 1}), "byte 0x00"),
        (encoding_state(pat_str="(["), "split pattern is wrong"),
    ],
)
def test_a_pickled_encoding_with_wrong_parts_is_named(
    state: object, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiktoken.Encoding, "__getstate__", lambda encoding: state)
    pickled = pickle.dumps(tiktoken.Encoding.__new__(tiktoken.Encoding))
    (tmp_path / PICKLE_NAME).write_bytes(pickled)

    with pytest.raises(DataError) as caught:
        Tokenizer.load(tmp_path)

    assert complaint in caught.value.what
    assert str(tmp_path / PICKLE_NAME) in caught.value.what
    assert caught.value.fix


@pytest.mark.parametrize("keep", [0, 10, 1_000, -1])
def test_a_truncated_pickle_is_named(
    tokenizer: Tokenizer, tmp_path: Path, keep: int, snapshot: SnapshotAssertion
) -> None:
    tokenizer.save(tmp_path)
    (tmp_path / JSON_NAME).unlink()
    path = tmp_path / PICKLE_NAME
    path.write_bytes(path.read_bytes()[:keep])

    with pytest.raises(DataError) as caught:
        Tokenizer.load(tmp_path)
    assert str(caught.value) == snapshot


def test_a_changed_merge_in_our_file_is_noticed(
    tokenizer: Tokenizer, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    tokenizer.save(tmp_path)
    form = json.loads((tmp_path / JSON_NAME).read_text())
    form["tokens_base64"][260] = base64.b64encode(b"zzz").decode()
    (tmp_path / JSON_NAME).write_text(json.dumps(form))

    with pytest.raises(DataError) as caught:
        Tokenizer.load(tmp_path)
    assert str(caught.value) == snapshot


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format": 1}', '{"format": 99}'])
def test_a_damaged_file_of_ours_is_named(
    content: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / JSON_NAME).write_text(content)

    with pytest.raises(DataError) as caught:
        Tokenizer.load(tmp_path)
    assert str(caught.value) == snapshot


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(DataError) as caught:
        Tokenizer.load(tmp_path / "nowhere")
    assert str(caught.value) == snapshot


@pytest.mark.parametrize("blank", [" ", "\u3000", " \t"])
def test_a_million_blanks_are_encoded_and_trained_on(tokenizer: Tokenizer, blank: str) -> None:
    # tiktoken's and rustbpe's regular expressions overflow their stack on such a run.
    text = f"the cat{blank * 1_100_000}sat"

    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert Tokenizer.train([text], 266).vocab_size == 266


@pytest.mark.parametrize("mark", ["", "\n", "\n\n\n"])
def test_the_whole_of_a_long_document_is_trained_on(mark: str) -> None:
    # The pair is in the last of the sections in which it is counted.
    text = f"1 2 3 4 5 6 7 8 9{mark} " * 60_000 + "xyxyxy"

    assert Tokenizer.train([text], 280).encode("xyxyxy") != list(b"xyxyxy")


def test_the_fingerprint_depends_on_merges_pattern_and_special_tokens() -> None:
    ranks = {bytes([value]): value for value in range(256)}
    variants = [
        Tokenizer(ranks),
        Tokenizer({**ranks, b"ab": 256}),
        Tokenizer(ranks, r"\s+|\S+"),
        Tokenizer(ranks, specials={"<|bos|>": 256}),
    ]

    assert len({variant.fingerprint for variant in variants}) == len(variants)
