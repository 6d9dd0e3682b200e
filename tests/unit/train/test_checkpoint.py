import contextlib
import copy
import json
import os
import resource
import socket
import threading

import pytest
import torch
from syrupy.assertion import SnapshotAssertion

from yoked.errors import CheckpointError
from yoked.records.manifest import content_digest
from yoked.train import checkpoint as checkpoint_module
from yoked.train.checkpoint import CheckpointStore, check_matches
from yoked.train.checkpoint_files import CheckpointFolder, staged_path

FILES = ("model_{:06d}.pt", "optim_{:06d}_rank0.pt", "meta_{:06d}.json", "manifest_{:06d}.json")


@pytest.fixture
def state(tiny_state):
    return tiny_state(seed=1)


@pytest.fixture
def store(tmp_path):
    with CheckpointStore(tmp_path / "base_checkpoints" / "d2") as store:
        yield store


def save(store, step, state, **options):
    store.save(step, state.model, state.saved, state.meta, extra={"rows": step}, **options)
    store.wait()


def names(store):
    return sorted(path.name for path in store.folder.iterdir() if path.name != ".yoked-lock")


@contextlib.contextmanager
def largest_file(size_bytes):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("background", [True, False])
def test_what_was_saved_is_loaded(store, state, same, background):
    save(store, 10, state, background=background)

    loaded = store.load(10)

    assert loaded.step == 10
    assert same(loaded.model_state, state.model)
    assert same(loaded.optim_state, state.optim)
    assert loaded.meta == {"step": 10, **state.meta, "yoked": {"rows": 10}}


def test_the_files_have_the_names_that_nanochat_looks_for(store, state):
    save(store, 10, state)

    assert names(store) == sorted(pattern.format(10) for pattern in FILES)


def test_tables_in_bfloat16_stay_in_bfloat16(store, state, same):
    for tensors in (state.model, state.optim["adamw"]["lm_head.weight"]):
        for name, value in tensors.items():
            if isinstance(value, torch.Tensor):
                tensors[name] = value.bfloat16()

    save(store, 1, state)

    loaded = store.load(1)
    assert same(loaded.model_state, state.model)
    assert same(loaded.optim_state, state.optim)


def test_training_on_does_not_change_what_is_saved(store, state, same, monkeypatch):
    # The writer is held until training has changed every tensor.
    may_write = threading.Event()
    write = torch.save

    def held_save(*arguments):
        assert may_write.wait(timeout=30)
        write(*arguments)

    monkeypatch.setattr(checkpoint_module.torch, "save", held_save)
    before = copy.deepcopy((state.model, state.optim))

    store.save(1, state.model, state.saved, state.meta, extra={})
    assert store.poll(), "the save was over before it could be disturbed"
    for tensor in state.model.values():
        tensor.add_(1)
    for kind in state.optim.values():
        for entry in kind.values():
            for value in entry.values():
                if isinstance(value, torch.Tensor):
                    value.zero_()
    may_write.set()
    store.wait()

    loaded = store.load(1)
    assert same(loaded.model_state, before[0])
    assert same(loaded.optim_state, before[1])


def test_a_second_save_does_not_change_the_first(store, tiny_state, same):
    first, second = tiny_state(seed=1), tiny_state(seed=2)

    store.save(1, first.model, first.saved, first.meta, extra={})
    store.save(2, second.model, second.saved, second.meta, extra={})
    store.wait()

    assert same(store.load(1).model_state, first.model)
    assert same(store.load(2).model_state, second.model)


def test_a_view_is_saved_without_the_storage_behind_it(store, state):
    flat = torch.zeros(1_000_000)
    state.model["resid_lambdas"] = flat[:2]

    save(store, 1, state, background=False)

    assert (store.folder / "model_000001.pt").stat().st_size < flat.nbytes


def test_parameters_that_were_never_updated_have_no_state(store, state, same):
    state.saved = {"adamw": {}, "muon": {}, "settings": state.settings}

    save(store, 0, state)

    assert store.load(0).optim_state == {"adamw": {}, "muon": {}}


def test_only_the_newest_are_kept(tmp_path, state):
    with CheckpointStore(tmp_path / "d2", keep_last=2) as store:
        for step in (1, 2, 3, 4):
            save(store, step, state)

        assert store.steps() == [3, 4]
        assert names(store) == sorted(pattern.format(s) for s in (3, 4) for pattern in FILES)


def test_the_best_is_kept_beside_the_newest(tmp_path, state):
    with CheckpointStore(tmp_path / "d2", keep_last=2) as store:
        for step, val_bpb in ((1, 1.5), (2, 1.2), (3, 1.3), (4, None), (5, 1.4)):
            save(store, step, state, val_bpb=val_bpb)

        assert store.steps() == [2, 4, 5]
        assert store.best() == (2, 1.2)
        assert store.newest() == 5


def test_what_is_saved_for_its_validation_alone_takes_no_other_ones_place(tmp_path, state):
    with CheckpointStore(tmp_path / "d2", keep_last=2) as store:
        save(store, 4, state)
        save(store, 6, state, val_bpb=1.5, aside=True)
        save(store, 8, state)
        assert store.steps() == [4, 6, 8]
        save(store, 9, state, val_bpb=1.4, aside=True)

        assert store.steps() == [4, 8, 9]
        assert store.newest() == 9


def test_what_a_run_would_go_on_from_stays_though_it_was_saved_aside(tmp_path, state):
    with CheckpointStore(tmp_path / "d2", keep_last=1) as store:
        save(store, 4, state, val_bpb=1.5)
        save(store, 6, state, val_bpb=1.6, aside=True)

        assert store.steps() == [4, 6]


def test_a_better_one_takes_the_place_of_the_best(tmp_path, state):
    with CheckpointStore(tmp_path / "d2", keep_last=1) as store:
        for step, val_bpb in ((1, 1.5), (2, 1.6), (3, 1.4), (4, 1.7)):
            save(store, step, state, val_bpb=val_bpb)

        assert store.steps() == [3, 4]


def test_a_run_that_goes_on_from_an_earlier_step_forgets_what_was_best_beyond_it(tmp_path, state):
    with CheckpointStore(tmp_path / "d2", keep_last=3) as store:
        for step, val_bpb in ((10, 1.5), (20, 1.4), (30, 1.1)):
            save(store, step, state, val_bpb=val_bpb)
    with CheckpointStore(tmp_path / "d2", keep_last=1) as store:
        store.mark_newest(20)
        save(store, 25, state, val_bpb=1.45)

        assert store.best() == (20, 1.4)
        assert store.steps() == [20, 25]


def test_without_an_evaluation_there_is_no_best(store, state, snapshot: SnapshotAssertion):
    save(store, 10, state)

    assert store.best() is None
    with pytest.raises(CheckpointError) as caught:
        store.find("best")
    assert str(caught.value).replace(str(store.folder), "FOLDER") == snapshot


def test_a_checkpoint_is_found_by_what_it_is_called(store, state):
    for step, val_bpb in ((10, 1.2), (20, 1.3)):
        save(store, step, state, val_bpb=val_bpb)

    assert [store.find(which) for which in ("best", "10", "latest")] == [10, 10, None]
    with pytest.raises(CheckpointError, match="no checkpoint of step 15; there are: 10, 20"):
        store.find("15")


def test_a_manifest_of_a_yoked_that_kept_no_best_is_read(store, state):
    save(store, 10, state)
    path = store.folder / "manifest_000010.json"
    content = {k: v for k, v in json.loads(path.read_text()).items() if k != "sha256"}
    del content["val_bpb"]
    path.write_text(json.dumps({**content, "sha256": content_digest(content)}))

    assert store.load(10).step == 10
    assert store.best() is None


def test_after_a_resume_the_newest_is_the_one_saved_last_not_the_highest_step(tmp_path, state):
    with CheckpointStore(tmp_path / "d2", keep_last=3) as store:
        for step in (10, 20, 30):
            save(store, step, state)
    with CheckpointStore(tmp_path / "d2", keep_last=2) as store:
        store.load(10)
        save(store, 15, state)

        assert store.load().step == 15
        assert store.steps() == [15, 30]


def test_what_a_run_goes_on_from_is_the_newest_though_it_is_killed_before_it_saves(
    tmp_path, state, same
):
    with CheckpointStore(tmp_path / "d2") as store:
        for step in (10, 20, 30):
            save(store, step, state)
    with CheckpointStore(tmp_path / "d2") as store:
        store.recover()
        store.mark_newest(10)
        store.mark_newest(10)
    with CheckpointStore(tmp_path / "d2", keep_last=2) as store:
        assert store.load().step == 10
        assert same(store.load_newest_good().model_state, state.model)
        assert store.steps() == [10, 20, 30]
        save(store, 12, state)
        assert store.steps() == [10, 12]


def test_saving_a_step_anew_replaces_it(store, tiny_state, same):
    save(store, 1, tiny_state(seed=1))
    anew = tiny_state(seed=2)

    save(store, 1, anew)

    assert store.steps() == [1]
    assert same(store.load(1).model_state, anew.model)


# Without its manifest a checkpoint reads as one of nanochat's, which has a test of its own.
DAMAGE = [(damage, name) for damage in ("flip", "truncate") for name in FILES]
DAMAGE += [("remove", name) for name in FILES if "manifest" not in name]


@pytest.mark.parametrize(("damage", "pattern"), DAMAGE)
def test_damage_to_any_file_names_it_and_the_steps_that_are_fine(
    store, state, damage, pattern, snapshot: SnapshotAssertion
):
    for step in (10, 20, 30):
        save(store, step, state)
    path = store.folder / pattern.format(30)
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 0x10
        path.write_bytes(content)
    elif damage == "truncate":
        path.write_bytes(content[:-7])
    else:
        path.unlink()

    with pytest.raises(CheckpointError) as caught:
        store.load()

    assert str(path) in caught.value.what
    assert caught.value.fix == snapshot


def test_a_step_without_a_manifest_is_loaded_as_nanochats(store, state, same):
    save(store, 10, state)
    (store.folder / "manifest_000010.json").unlink()

    loaded = store.load()

    assert same(loaded.optim_state, state.optim)


def test_a_checkpoint_of_nanochat_without_optimizer_state_is_loaded(tmp_path, state, same):
    compiled = {f"_orig_mod.{name}": tensor for name, tensor in state.model.items()}
    torch.save(compiled, tmp_path / "model_000007.pt")
    (tmp_path / "meta_000007.json").write_text(json.dumps(state.meta))

    loaded = CheckpointStore(tmp_path).load()

    assert loaded.step == 7
    assert loaded.optim_state is None
    assert same(loaded.model_state, state.model)


def test_a_checkpoint_of_nanochat_that_is_cut_short_is_named(
    tmp_path, state, snapshot: SnapshotAssertion
):
    path = tmp_path / "model_000007.pt"
    torch.save(state.model, path)
    path.write_bytes(path.read_bytes()[:-1000])
    (tmp_path / "meta_000007.json").write_text(json.dumps(state.meta))

    with pytest.raises(CheckpointError) as caught:
        CheckpointStore(tmp_path).load(7)
    assert str(caught.value) == snapshot


def test_a_file_that_would_run_code_is_refused(tmp_path, state, snapshot: SnapshotAssertion):
    class Trap:
        def __reduce__(self):
            return (print, ("sprung",))

    torch.save({"lm_head.weight": Trap()}, tmp_path / "model_000007.pt")
    (tmp_path / "meta_000007.json").write_text(json.dumps(state.meta))

    with pytest.raises(CheckpointError) as caught:
        CheckpointStore(tmp_path).load(7)
    assert str(caught.value) == snapshot


def test_nanochats_checkpoints_are_not_counted_and_not_removed(tmp_path, state):
    torch.save(state.model, tmp_path / "model_000001.pt")
    (tmp_path / "meta_000001.json").write_text(json.dumps(state.meta))
    with CheckpointStore(tmp_path, keep_last=1) as store:
        save(store, 2, state)
        save(store, 3, state)

        assert store.steps() == [1, 3]


def test_a_restart_takes_the_newest_that_is_whole_and_tells_what_it_passed_over(store, state):
    for step in (10, 20, 30):
        save(store, step, state)
    (store.folder / "model_000030.pt").write_bytes(b"")
    (store.folder / "manifest_000020.json").write_bytes(b"{}")

    loaded = store.load_newest_good()

    assert loaded.step == 10
    assert len(loaded.passed_over) == 2
    assert any("model_000030.pt" in message for message in loaded.passed_over)
    assert any("manifest_000020.json" in message for message in loaded.passed_over)


def test_a_restart_before_the_first_save_begins_at_the_start(store):
    assert store.load_newest_good() is None


def test_a_restart_with_nothing_but_damage_says_so(store, state, snapshot: SnapshotAssertion):
    save(store, 10, state)
    (store.folder / "meta_000010.json").write_bytes(b"")

    with pytest.raises(CheckpointError) as caught:
        store.load_newest_good()
    assert str(caught.value) == snapshot


def test_a_step_that_is_not_there_lists_those_that_are(store, state, snapshot: SnapshotAssertion):
    save(store, 10, state)
    save(store, 20, state)

    with pytest.raises(CheckpointError) as caught:
        store.load(15)

    assert caught.value.what == snapshot
    assert caught.value.fix == snapshot


def test_an_empty_folder_has_no_checkpoint_to_load(store, snapshot: SnapshotAssertion):
    with pytest.raises(CheckpointError) as caught:
        store.load()
    assert str(caught.value) == snapshot


def test_a_file_that_cannot_grow_leaves_the_old_checkpoint_and_no_rest(
    store, state, same, snapshot: SnapshotAssertion
):
    save(store, 10, state)
    there = names(store)

    with largest_file(20_000):
        store.save(20, state.model, state.saved, state.meta, extra={})
        with pytest.raises(CheckpointError) as caught:
            store.wait()
        assert str(caught.value) == snapshot

    assert "complete there: 10" in caught.value.what
    assert names(store) == there
    assert same(store.load().model_state, state.model)


def test_ctrl_c_when_the_manifest_is_in_place_keeps_the_checkpoint(store, state, same, monkeypatch):
    publish = CheckpointFolder._publish

    def interrupted(folder, manifest):
        publish(folder, manifest)
        raise KeyboardInterrupt

    monkeypatch.setattr(CheckpointFolder, "_publish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(store, 10, state, background=False)

    assert same(store.load(10).model_state, state.model)


def test_the_failure_of_a_save_surfaces_at_the_next_one_and_only_once(
    store, state, snapshot: SnapshotAssertion
):
    with largest_file(20_000):
        store.save(10, state.model, state.saved, state.meta, extra={})
        with pytest.raises(CheckpointError) as caught:
            store.save(20, state.model, state.saved, state.meta, extra={})
        assert str(caught.value) == snapshot

    save(store, 20, state)

    assert store.steps() == [20]


def test_a_disk_without_room_is_told_before_anything_is_written(
    store, state, snapshot: SnapshotAssertion
):
    save(store, 10, state)
    there = names(store)
    # A tensor of a petabyte that takes four bytes of memory.
    state.model["lm_head.weight"] = torch.zeros(1).expand(10**15 // 4)

    with pytest.raises(CheckpointError) as caught:
        store.save(20, state.model, state.saved, state.meta, extra={})
    assert str(caught.value) == snapshot

    assert caught.value.fix[0] == snapshot
    assert names(store) == there


def test_a_folder_that_another_run_writes_to_is_refused(
    store, state, monkeypatch, snapshot: SnapshotAssertion
):
    save(store, 10, state)
    monkeypatch.setattr("yoked.train.checkpoint_files.LOCK_WAIT_S", 0.0)

    with CheckpointStore(store.folder) as other, pytest.raises(CheckpointError) as caught:
        save(other, 20, state)
    holder = f"process {os.getpid()} on {socket.gethostname()}"
    assert holder in str(caught.value)
    assert str(caught.value).replace(holder, "HOLDER") == snapshot

    (store.folder / ".yoked-lock").write_text("\x1b[2J")
    with CheckpointStore(store.folder) as other, pytest.raises(CheckpointError) as caught:
        save(other, 20, state)
    assert "another process saves" in str(caught.value)


def test_reading_needs_no_lock_and_changes_nothing(store, state):
    save(store, 10, state)
    stray = store.folder / ".yoked-000020-0123abcd-model_000020.pt.part"
    stray.write_bytes(b"a save in flight")
    there = names(store)

    CheckpointStore(store.folder).load()

    assert names(store) == there


def test_what_an_interrupted_save_left_is_removed_and_strangers_files_stay(store, state):
    save(store, 10, state)
    stray = store.folder / ".yoked-000020-0123abcd-model_000020.pt.part"
    stray.write_bytes(b"half a model")
    strangers = store.folder / "notes.part"
    strangers.write_text("mine")

    store.recover()

    assert not stray.exists()
    assert strangers.exists()
    assert store.steps() == [10]


def test_a_folder_that_cannot_be_made_is_told_at_the_start(tmp_path, snapshot: SnapshotAssertion):
    (tmp_path / "checkpoints").write_text("a file where a folder should be")

    with pytest.raises(CheckpointError) as caught:
        CheckpointStore(tmp_path / "checkpoints" / "d2").recover()
    assert str(caught.value) == snapshot


def test_another_models_checkpoint_is_refused_with_each_difference(snapshot: SnapshotAssertion):
    saved = {"n_layer": 8, "n_embd": 512, "vocab_size": 32768, "window_pattern": "L"}
    wanted = {"n_layer": 4, "n_embd": 512, "vocab_size": 26758, "window_pattern": "L"}

    with pytest.raises(CheckpointError) as caught:
        check_matches({"model_config": saved}, wanted)

    assert caught.value.what == snapshot
    assert "n_embd" not in caught.value.what


def test_the_same_models_checkpoint_is_accepted():
    config = {"n_layer": 4, "window_pattern": "L"}

    check_matches({"model_config": {"n_layer": 4}}, config)


def test_a_manifest_that_names_files_elsewhere_replaces_none_of_them(tmp_path, store, state):
    save(store, 10, state)
    store.close()
    victim = tmp_path / "victim"
    victim.write_text("mine")
    path = store.folder / "manifest_000010.json"
    forged = {k: v for k, v in json.loads(path.read_text()).items() if k != "sha256"}
    forged["files"].append({"name": "x/victim", "size_bytes": 6, "sha256": "0" * 64})
    path.write_text(json.dumps({**forged, "sha256": content_digest(forged)}))
    # Its staged name lies in a folder of the one that was given, its own behind a link.
    planted = staged_path(store.folder, 10, forged["token"], "x/victim")
    planted.parent.mkdir()
    planted.write_text("theirs")
    (store.folder / "x").symlink_to(tmp_path)

    with CheckpointStore(store.folder) as given, contextlib.suppress(CheckpointError):
        given.recover()

    assert victim.read_text() == "mine"
