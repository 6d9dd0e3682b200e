import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from tests.unit.train.trained_models import make_model, make_run

from yoked.errors import CheckpointError, UsageError
from yoked.runs import mark_copy
from yoked.train.checkpoint_files import find_model_folder
from yoked.train.sample import (
    CachedDecoder,
    Sampling,
    decode_stream,
    generate,
    load_trained,
)
from yoked.train.tokenizer import Tokenizer

TEXT = "Was wäre, wenn der Bär größer wär? Über den Flüssen läge Öl; für süße Mäuse käme Käse. "


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train([TEXT * 3], vocab_size=300)


@torch.inference_mode()
def uncached_logits(model, ids):
    return model.logits(model(torch.tensor([ids])))[0]


def random_ids(count, vocab_size=300):
    generator = torch.Generator().manual_seed(3)
    return torch.randint(vocab_size, (count,), generator=generator).tolist()


@pytest.mark.parametrize("n_kv_head", [1, 2])
@pytest.mark.parametrize("portions", [[1] * 30, [7, 1, 1, 5], [200, 30, *[1] * 20]])
def test_reading_in_portions_gives_the_logits_of_the_training_forward(portions, n_kv_head):
    # A short layer sees 128 tokens back, so 250 tokens go well beyond its window.
    model = make_model(n_kv_head=n_kv_head)
    ids = random_ids(sum(portions))
    whole = uncached_logits(model, ids)
    decoder = CachedDecoder(model)

    stop = 0
    for portion in portions:
        logits = decoder.advance(ids[stop : stop + portion])
        stop += portion

        torch.testing.assert_close(logits, whole[stop - 1], rtol=0, atol=1e-4)


def test_the_short_window_matters_in_the_comparison_above():
    ids = random_ids(250)

    short = uncached_logits(make_model(pattern="SL"), ids)[-1]
    full = uncached_logits(make_model(pattern="L"), ids)[-1]

    assert (short - full).abs().max() > 1e-2


def test_greedy_text_is_that_of_the_uncached_model():
    model = make_model()
    ids = random_ids(10)

    written = list(generate(model, ids, max_tokens=150, temperature=0))

    for token in written:
        assert token == int(uncached_logits(model, ids)[-1].argmax())
        ids.append(token)


def test_bfloat16_models_can_write():
    model = make_model(dtype=torch.bfloat16)
    ids = random_ids(140)

    logits = CachedDecoder(model).advance(ids)

    torch.testing.assert_close(logits, uncached_logits(model, ids)[-1], rtol=0, atol=0.15)


def test_text_may_be_longer_than_the_rows_of_training():
    model = make_model()

    written = list(generate(model, random_ids(290), max_tokens=40))

    assert len(written) == 40
    assert all(0 <= token < 300 for token in written)


def test_beyond_the_rows_of_training_the_oldest_tokens_are_forgotten():
    # One layer: what it sees is exactly its window. Positions matter relatively alone.
    model = make_model(n_layer=1)
    tail = random_ids(301)
    one, other = CachedDecoder(model), CachedDecoder(model)

    one.advance([5, 6, 7, *tail])
    other.advance([250, 7, 251, *tail])

    torch.testing.assert_close(one.advance([9]), other.advance([9]), rtol=0, atol=1e-5)


def test_one_seed_writes_one_text_and_another_seed_another():
    model = make_model()

    texts = [list(generate(model, [1], max_tokens=30, seed=seed)) for seed in (1, 1, 2)]

    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


def test_top_k_draws_among_the_likeliest_alone():
    model = make_model()
    ids = random_ids(5)
    likeliest = set(uncached_logits(model, ids)[-1].topk(3).indices.tolist())

    drawn = {
        next(generate(model, ids, max_tokens=1, top_k=3, temperature=5.0, seed=seed))
        for seed in range(60)
    }

    assert drawn == likeliest


def test_writing_ends_before_a_stop_token():
    model = make_model()
    free = list(generate(model, [1], max_tokens=30, temperature=0))
    stop = free[10]

    stopped = list(generate(model, [1], max_tokens=30, temperature=0, stop_ids={stop}))

    assert stopped == free[: free.index(stop)]


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        ([], {}),
        ([300], {}),
        ([-1], {}),
        ([1], {"temperature": -0.1}),
        ([1], {"top_k": 0}),
        ([1], {"temperature": float("nan")}),
        ([1], {"seed": 2**64}),
        ([1], {"max_tokens": -1}),
    ],
)
def test_a_wrong_request_is_refused_before_the_first_token(prompt, options):
    with pytest.raises(UsageError):
        generate(make_model(), prompt, **{"max_tokens": 1, **options})


def test_a_character_that_spans_tokens_appears_when_it_is_whole(tokenizer):
    # Characters whose bytes the tokenizer has never merged: each byte is a token.
    text = "a 東京 b"
    ids = tokenizer.encode(text)
    assert len(ids) > len(text), "every token is a whole character: the test shows nothing"

    pieces = list(decode_stream(iter(ids), tokenizer))

    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces)


def test_a_text_that_ends_inside_a_character_says_so_at_its_end(tokenizer):
    ids = tokenizer.encode("東")

    pieces = list(decode_stream(iter(ids[:-1]), tokenizer))

    assert pieces == ["\ufffd"]


@pytest.fixture
def run(tmp_path, tokenizer):
    """A run's folder with one checkpoint, of step 5."""
    return make_run(tmp_path / "runs" / "first", tokenizer)


@pytest.mark.parametrize(
    "part", ["", "checkpoints", "checkpoints/base_checkpoints", "checkpoints/base_checkpoints/d3"]
)
def test_a_model_is_found_from_any_folder_around_it(run, tokenizer, part):
    trained = load_trained(run / part)
    model, found, meta = trained.model, trained.tokenizer, trained.meta

    ids = random_ids(20)
    torch.testing.assert_close(
        uncached_logits(model, ids), uncached_logits(make_model(), ids), rtol=0, atol=0
    )
    assert found.fingerprint == tokenizer.fingerprint
    assert meta["step"] == 5


def test_the_exported_tokenizer_is_what_nanochat_wants(run, tokenizer):
    folder = run / "checkpoints" / "tokenizer"

    token_bytes = torch.load(folder / "token_bytes.pt", weights_only=True)

    assert (folder / "tokenizer.pkl").is_file()
    assert token_bytes.dtype == torch.int32
    assert token_bytes.shape == (tokenizer.vocab_size,)
    assert token_bytes[tokenizer.bos_id] == 0
    ids = tokenizer.encode(TEXT)
    assert int(token_bytes[ids].sum()) == len(TEXT.encode())


@pytest.mark.parametrize("named", ["", "checkpoints", "checkpoints/base_checkpoints"])
def test_of_several_models_the_one_that_was_saved_last_is_taken(run, named):
    base = run / "checkpoints" / "base_checkpoints"
    for saved_at_s, tag in enumerate(("d4", "notes", "d12")):
        shutil.copytree(base / "d3", base / tag)
        for file in (base / tag).glob("model_*.pt"):
            os.utime(file, (saved_at_s, saved_at_s) if tag != "notes" else None)

    assert find_model_folder(run / named) == base / "notes"


def test_the_stream_goes_on_from_the_prompt_with_the_same_text_for_the_same_seed(run):
    first, again = (
        "".join(load_trained(run).write("Der Bär", Sampling(40, top_k=20, seed=7)))
        for _ in range(2)
    )

    assert first == again
    assert first


def test_a_folder_without_a_checkpoint_says_what_to_name(tmp_path, snapshot: SnapshotAssertion):
    with pytest.raises(CheckpointError) as caught:
        load_trained(tmp_path)
    assert str(caught.value) == snapshot

    assert "run's folder" in caught.value.fix[0]


@pytest.mark.parametrize("copied", [False, True])
def test_a_run_that_has_saved_nothing_says_so(tmp_path, copied, snapshot: SnapshotAssertion):
    night = tmp_path / "night"
    night.mkdir()
    (night / "run.json").write_text("{}")
    if copied:
        mark_copy(night, tmp_path / "yoked.toml")

    with pytest.raises(CheckpointError) as caught:
        load_trained(night)

    assert str(caught.value) == snapshot


def test_a_tokenizer_of_another_size_is_refused(run, tokenizer, snapshot: SnapshotAssertion):
    other = Tokenizer.train([TEXT], vocab_size=280)
    shutil.rmtree(run / "checkpoints" / "tokenizer")
    other.save(run / "checkpoints" / "tokenizer")

    with pytest.raises(CheckpointError) as caught:
        load_trained(run)
    assert str(caught.value) == snapshot


@pytest.mark.parametrize(
    "odd", [{"n_layer": "three"}, {"n_head": 0}, {"n_layer": 10**9}, {"window_pattern": ""}]
)
def test_a_meta_file_that_describes_no_model_is_refused(run, odd):
    (meta,) = (run / "checkpoints").rglob("meta_*.json")
    (manifest,) = (run / "checkpoints").rglob("manifest_*.json")
    manifest.unlink()
    content = json.loads(meta.read_text())
    content["model_config"] |= odd
    meta.write_text(json.dumps(content))

    with pytest.raises(CheckpointError, match="does not describe a model"):
        load_trained(run)


def test_weights_that_are_not_those_of_the_meta_file_are_refused(run, snapshot: SnapshotAssertion):
    folder = run / "checkpoints" / "base_checkpoints" / "d3"
    (folder / "manifest_000005.json").unlink()
    model = make_model(n_kv_head=1)
    torch.save(model.state_dict(), folder / "model_000005.pt")

    with pytest.raises(CheckpointError) as caught:
        load_trained(run)
    assert str(caught.value) == snapshot


def test_a_meta_file_of_a_model_that_no_memory_holds_is_refused(run):
    (meta,) = (run / "checkpoints").rglob("meta_*.json")
    (manifest,) = (run / "checkpoints").rglob("manifest_*.json")
    manifest.unlink()
    content = json.loads(meta.read_text())
    # A matrix of 2^52 bytes, in a file of some kilobytes.
    content["model_config"] |= {"n_embd": 2**24}
    meta.write_text(json.dumps(content))

    with pytest.raises(CheckpointError, match="does not fit"):
        load_trained(run)


@pytest.mark.skipif(
    "NANOCHAT_BASE" not in os.environ, reason="NANOCHAT_BASE names no base folder of nanochat's"
)
def test_a_model_that_nanochat_trained_writes_text():
    trained = load_trained(Path(os.environ["NANOCHAT_BASE"]))
    text = "".join(trained.write("The", Sampling(max_tokens=20, seed=1)))

    assert text
