"""Saves checkpoints in child processes and kills them; prints what was left, as JSON.

Run by test_checkpoint_kill.py, in a process of its own because it forks. Every child ends by
SIGKILL: nothing in it gets the chance to clean up.

usage: checkpoint_under_kill.py everywhere|at-random FOLDER
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import torch

from yoked.errors import CheckpointError
from yoked.train.checkpoint import CheckpointStore
from yoked.train.optim.groups import parameter_groups

KEEP_LAST = 2
# One layer, width 32, vocabulary 2,048: about a megabyte with the optimizer's state.
SHAPES = {
    "transformer.wte.weight": (2048, 32),
    "lm_head.weight": (2048, 32),
    "value_embeds.0.weight": (2048, 32),
    "resid_lambdas": (1,),
    "x0_lambdas": (1,),
    "smear_gate.weight": (1, 24),
    "smear_lambda": (1,),
    "backout_lambda": (1,),
    "transformer.h.0.mlp.c_fc.weight": (128, 32),
    "transformer.h.0.mlp.c_proj.weight": (32, 128),
}
META = {"model_config": {"n_embd": 32}, "total_batch_size": 32}


def state_of(mark):
    """Model and optimizer state in which every number is `mark`."""
    model = {name: torch.full(shape, mark) for name, shape in SHAPES.items()}
    tables = ("value_embeds.0.weight", "lm_head.weight", "transformer.wte.weight")
    adamw = {
        name: {"step": int(mark), "exp_avg": model[name], "exp_avg_sq": model[name]}
        for name in tables
    }
    settings = {group.name: {} for group in parameter_groups(SHAPES)}
    return model, {"adamw": adamw, "muon": {}, "settings": settings}


def save(store, step, mark, *, background=False):
    model, optim = state_of(mark)
    store.save(step, model, optim, META, extra={"mark": mark}, background=background)


def marks(store):
    """{step: the number that fills it}; a checkpoint that is torn fills in "torn"."""
    found = {}
    for step in store.steps():
        try:
            loaded = store.load(step)
        except CheckpointError as error:
            found[step] = f"torn: {error.what}"
            continue
        numbers = {t.unique().item() for t in loaded.model_state.values()}
        numbers |= {float(e["exp_avg"].unique()) for e in loaded.optim_state["adamw"].values()}
        numbers.add(loaded.meta["yoked"]["mark"])
        found[step] = numbers.pop() if len(numbers) == 1 else f"torn: holds {numbers}"
    return found


def observe(folder):
    """What is there before and after recovery, and which files are then no one's."""
    store = CheckpointStore(folder, KEEP_LAST)
    before = marks(store)
    store.recover()
    after = marks(store)
    owned = {f"{kind}_{s:06d}" for s in after for kind in ("model", "meta", "optim", "manifest")}
    strays = [
        path.name
        for path in folder.iterdir()
        if path.name != ".yoked-lock"
        and path.name.split(".")[0].removesuffix("_rank0") not in owned
    ]
    store.close()
    return {"before": before, "after": after, "strays": strays}


def run_child(work):
    """Fork; the child does `work` and is gone by SIGKILL. Returns its process id."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    return child


def kill_before_operation(number, folder):
    """Die at this process's number-th operation on a file in the folder."""
    count = 0

    def hook(event, arguments):
        nonlocal count
        if event in ("open", "os.rename", "os.remove") and str(folder) in str(arguments[0]):
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def everywhere(root):
    """Kill a save over an old step, and one that removes an old step, at every operation."""
    template = root / "template"
    with CheckpointStore(template, KEEP_LAST) as store:
        save(store, 1, 1.0)
        save(store, 2, 2.0)
    observations = []
    while not observations or not observations[-1]["survived"]:
        number = len(observations) + 1
        folder = root / f"kill-{number}"
        shutil.copytree(template, folder)

        def work(number=number, folder=folder):
            kill_before_operation(number, folder)
            store = CheckpointStore(folder, KEEP_LAST)
            save(store, 2, 2.5)
            save(store, 3, 3.0)
            (folder.parent / "survived").touch()

        os.waitpid(run_child(work), 0)
        survived = (root / "survived").exists()
        observations.append({"survived": survived, **observe(folder)})
        shutil.rmtree(folder)
    return observations


def one_save_s(folder):
    """What a process takes for one save, on this machine at this hour."""

    def work():
        with CheckpointStore(folder, KEEP_LAST) as store:
            save(store, 1, 1.0)

    began_s = time.monotonic()
    os.waitpid(run_child(work), 0)
    return time.monotonic() - began_s


def at_random(root):
    """Kill a process that saves without end, and let the next go on from what is left."""
    folder = root / "run"
    dice = random.Random(20260701)
    save_s = one_save_s(root / "pace")
    observations = []
    for _ in range(15):

        def work():
            store = CheckpointStore(folder, KEEP_LAST)
            newest = store.load_newest_good()
            step = 0 if newest is None else newest.step
            while True:
                step += 1
                save(store, step, float(step), background=True)

        child = run_child(work)
        time.sleep(dice.uniform(0.3, 10) * save_s)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        observations.append(observe(folder))
    return observations


if __name__ == "__main__":
    torch.set_num_threads(1)
    way = {"everywhere": everywhere, "at-random": at_random}[sys.argv[1]]
    print(json.dumps(way(Path(sys.argv[2]))))
