"""Is yoked's model, optimizer, packing and checkpoint format nanochat's? Compares the two.

usage: python benchmarks/nanochat_parity/parity.py --nanochat PATH [--only CASE] [--keep FOLDER]

Prints a table and writes results/results.json; exit status 1 when a check fails.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import nanochat_side as side  # noqa: E402
import yoked_side as ours  # noqa: E402

from yoked.costmodel.model_shape import count_parameters, flops_per_token  # noqa: E402
from yoked.train.data.prepare import prepare  # noqa: E402
from yoked.train.model.gpt import GPT  # noqa: E402
from yoked.train.nanochat_format import from_nanochat  # noqa: E402
from yoked.train.resume import build_trainer  # noqa: E402
from yoked.train.sample import load_trained  # noqa: E402
from yoked.train.setup import RunSetup  # noqa: E402
from yoked.train.tokenizer import Tokenizer  # noqa: E402

STEPS, SAVED = ours.STEPS, 10
LOGITS_LIMIT = 1e-4
LOSS_LIMIT = 1e-3
# A bfloat16 has 8 bits of precision: a relative rounding of 4e-3 at every operation.
BFLOAT16_LOSS_LIMIT = 5e-3
PROMPTS = ["The state of the Union is", "Fellow citizens,", "In the year 1848 the army of"]
COMPARED_ROWS = {"train": 1500, "val": 300}

CASES = (
    ours.Case(
        "anchor",
        "depth 4, window L, 32,768 tokens",
        32_768,
        {
            "depth": 4,
            "aspect_ratio": 64,
            "head_dim": 64,
            "max_seq_len": 512,
            "window_pattern": "L",
            "device_batch_size": 2,
            "total_batch_size": 2048,
        },
    ),
    # A padded vocabulary, a width rounded up, an odd depth, short windows, and no rate as it is
    # by default; 20 steps that see the rise, the plateau and the fall of the learning rate.
    ours.Case(
        "short-windows",
        "depth 5, windows SSSL, 1,000 tokens, other rates",
        1_000,
        {
            "depth": 5,
            "aspect_ratio": 48,
            "head_dim": 64,
            "max_seq_len": 512,
            "window_pattern": "SSSL",
            "device_batch_size": 2,
            "total_batch_size": 2048,
            "warmup_steps": 5,
            "warmdown_ratio": 0.5,
            "final_lr_frac": 0.1,
            "matrix_lr": 0.03,
            "embedding_lr": 0.2,
            "unembedding_lr": 0.005,
            "scalar_lr": 0.3,
            "weight_decay": 0.2,
        },
        steady_steps=8,
    ),
)


@dataclass(frozen=True)
class Check:
    """One line of the table. value is compared with limit where there is one.

    losses: by step, ours and nanochat's.
    """

    case: str
    name: str
    passed: bool
    figures: str
    value: float | None = None
    limit: float | None = None
    losses: tuple[list[float], list[float]] | None = None


class Parity:
    """The comparison of one case, with its folders."""

    def __init__(self, case: ours.Case, checkout: side.Checkout, scratch: Path) -> None:
        self.case, self.checkout = case, checkout
        self.scratch = scratch / case.name
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.checks: list[Check] = []
        self.their_steps: dict[str, list[side.PrintedStep]] = {}
        self.beside_itself = math.nan
        shards = side.into_shards(side.embedded_paragraphs())
        self.data = side.write_shards(self.scratch / "text", shards)
        # What nanochat's loader gives when it resumes where our checkpoints tell it to: all but
        # the first row group.
        shards[0] = shards[0][1:]
        self.rest_data = side.write_shards(self.scratch / "rest", shards)
        self.setup = ours.open_session(case.config(self.data, "float32"))
        self.tokenizer = self.setup.data.tokenizer_folder
        self.base = side.make_base(self.scratch / "nanochat", self.data, self.tokenizer)
        self.ids = self.scratch / "ids.pt"
        torch.save(
            torch.from_numpy(self.setup.data.val.rows([0, 1, 2]))[:, :-1].contiguous(), self.ids
        )

    # --- running and noting

    def note(self, name: str, passed: bool, figures: str) -> None:
        self._add(Check(self.case.name, name, passed, figures))

    def note_value(self, name: str, value: float, limit: float, figures: str) -> None:
        # `<=` is False for NaN.
        self._add(Check(self.case.name, name, value <= limit, figures, value, limit))

    def _add(self, check: Check) -> None:
        self.checks.append(check)
        print(_line(check), flush=True)

    def nanochat_trains(
        self,
        base: Path,
        dtype: str,
        *flags: str,
        smooth_loss: float = 0.0,
        limits: dict[str, str] | None = None,
    ) -> list[side.PrintedStep]:
        """Run base_train, without compiling; the losses of its steps.

        limits: environment variables that make it use other instructions.
        """
        length = (f"--num-iterations={STEPS}", f"--save-every={SAVED}")
        printed = self._run(
            side.train_command([*self.case.command_line(), *length, *flags]), base, dtype, limits
        )
        return side.read_steps(printed.splitlines(), smooth_loss)

    def nanochat_answers(
        self, base: Path, dtype: str, requests: Iterable[dict[str, Any]]
    ) -> list[Any]:
        """Run jobs of nanochat_worker.py in one process; their answers in order."""
        asked = [
            {**request, "out": str(self.scratch / f"answer{number}.pt")}
            for number, request in enumerate(requests)
        ]
        file = self.scratch / "requests.json"
        file.write_text(json.dumps(asked), encoding="utf-8")
        self._run([sys.executable, str(HERE / "nanochat_worker.py"), str(file)], base, dtype)
        return [torch.load(request["out"]) for request in asked]

    def _run(
        self, command: list[str], base: Path, dtype: str, limits: dict[str, str] | None = None
    ) -> str:
        env = self.checkout.environment(base, dtype, threads=1, eager=True) | (limits or {})
        done = subprocess.run(
            command, env=env, cwd=self.scratch, capture_output=True, text=True, check=False
        )
        if done.returncode:
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-25:])
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{tail}")
        return done.stdout

    def _setup(self, dtype: str) -> RunSetup:
        if dtype == "float32":
            return self.setup
        return ours.open_session(self.case.config(self.data, dtype))

    def _base(self, dtype: str) -> Path:
        """nanochat's base folder for one dtype: each has checkpoints of its own."""
        if dtype == "float32":
            return self.base
        return side.make_base(self.scratch / f"nanochat-{dtype}", self.data, self.tokenizer)

    # --- the comparison

    def run(self) -> list[Check]:
        """All checks of the case, in order."""
        self.fresh_weights_and_rows()
        self.same_batches("float32", LOSS_LIMIT)
        self.nanochat_beside_itself()
        self.nanochats_checkpoint_here()
        self.nanochats_run_goes_on_here("float32", LOSS_LIMIT)
        folder = self.our_run()
        self.our_checkpoint_there(folder)
        self.our_optimizer_file(folder)
        self.our_run_goes_on_there(folder)
        self.same_batches("bfloat16", BFLOAT16_LOSS_LIMIT)
        self.nanochats_run_goes_on_here("bfloat16", BFLOAT16_LOSS_LIMIT)
        return self.checks

    def fresh_weights_and_rows(self) -> None:
        config = vars(self.setup.model_config)
        fresh = {"job": "fresh_weights", "model_config": config}
        rows = [
            {"job": "rows", "split": split, "row_tokens": 513, "count": count}
            for split, count in COMPARED_ROWS.items()
        ]
        theirs, *their_rows = self.nanochat_answers(self.base, "float32", [fresh, *rows])
        (theirs_bf16,) = self.nanochat_answers(self.base, "bfloat16", [fresh])
        for name, dtype, answer in (
            ("float32", torch.float32, theirs),
            ("bfloat16", torch.bfloat16, theirs_bf16),
        ):
            model = GPT(self.setup.model_config, dtype)
            model.init_weights()
            self._compare_weights(
                f"one seed, one model, {name}", model.state_dict(), answer["state"]
            )
        counts = count_parameters(self.setup.model_config)
        same = all(theirs["counts"][group] == count for group, count in asdict(counts).items())
        flops = flops_per_token(self.setup.model_config)
        self.note(
            "parameter counts, FLOPs a token",
            same and flops == theirs["flops_per_token"],
            f"{counts.total:,} parameters, {flops:.6e} FLOPs",
        )
        for (split, count), answer in zip(COMPARED_ROWS.items(), their_rows, strict=True):
            file = getattr(self.setup.data, split)
            mine = torch.from_numpy(file.rows(list(range(count))))
            equal = int((mine == answer).all(dim=1).sum())
            self.note(f"rows of --packing bestfit, {split}", equal == count, f"{equal} of {count}")

    def _compare_weights(
        self, name: str, mine: dict[str, Tensor], theirs: dict[str, Tensor]
    ) -> None:
        equal = [
            key
            for key in mine.keys() & theirs.keys()
            if mine[key].dtype == theirs[key].dtype and torch.equal(mine[key], theirs[key])
        ]
        passed = list(mine) == list(theirs) and len(equal) == len(mine)
        self.note(name, passed, f"{len(equal)} of {len(theirs)} tensors equal bit for bit")

    def same_batches(self, dtype: str, limit: float) -> None:
        """The first steps of both on nanochat's rows, in nanochat's order."""
        setup, base = self._setup(dtype), self._base(dtype)
        printed = self.nanochat_trains(base, dtype)
        self.their_steps[dtype] = printed
        steps = self.case.steady_steps
        trainer = build_trainer(setup)
        trainer.stream = ours.InOrder(setup.data.train)
        mine = ours.train(trainer, range(steps))
        self._compare_losses(
            f"{steps} steps on the same rows, {dtype}", mine, printed[:steps], limit
        )
        state = torch.load(base / self._tag() / f"optim_{STEPS:06d}_rank0.pt")
        shapes = {name: tuple(p.shape) for name, p in trainer.buffers.parameters.items()}
        theirs = from_nanochat(state, shapes)["adamw"]
        differ = [
            name
            for name, moment in trainer.optimizer.exp_avg.items()
            if theirs[name]["exp_avg"].dtype != moment.dtype
        ]
        self.note(
            f"dtypes of AdamW's moments, {dtype}",
            not differ,
            f"differ: {', '.join(differ)}" if differ else f"{len(theirs)} equal",
        )

    def nanochat_beside_itself(self) -> None:
        """What rounding alone does to 20 steps of nanochat: a measure for the other figures."""
        held = {"MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
        base = side.make_base(self.scratch / "nanochat-avx2", self.data, self.tokenizer)
        there = self.nanochat_trains(base, "float32", limits=held)
        pairs = zip(there, self.their_steps["float32"], strict=True)
        apart = max(abs(a.loss - b.loss) / b.loss for a, b in pairs)
        print(f"      {self.case.name:14} nanochat beside itself with AVX2: relative {apart:.1e}")
        self.beside_itself = apart

    def _compare_losses(
        self, name: str, mine: list[float], theirs: list[side.PrintedStep], limit: float
    ) -> None:
        losses = [step.loss for step in theirs]
        assert len(losses) == len(mine), f"{len(losses)} steps there, {len(mine)} here"
        apart = [abs(a - b) / abs(b) for a, b in zip(mine, losses, strict=True)]
        figures = f"relative {max(apart):.1e}; last {mine[-1]:.5f}, there {losses[-1]:.5f}"
        check = Check(
            self.case.name, name, max(apart) <= limit, figures, max(apart), limit, (mine, losses)
        )
        self._add(check)

    def _tag(self) -> str:
        return f"base_checkpoints/d{self.case.flags['depth']}"

    def _use(self, step: int | None) -> dict[str, Any]:
        return {
            "job": "use",
            "model_tag": f"d{self.case.flags['depth']}",
            "step": step,
            "ids_file": str(self.ids),
            "prompts": PROMPTS,
        }

    def nanochats_checkpoint_here(self) -> None:
        (theirs,) = self.nanochat_answers(self.base, "float32", [self._use(STEPS)])
        self._compare_use("nanochat's checkpoint here", self.base, theirs)

    def _compare_use(self, name: str, folder: Path, theirs: dict[str, Any]) -> None:
        trained = load_trained(folder)
        model, tokenizer, meta = trained.model, trained.tokenizer, trained.meta
        assert meta["step"] == theirs["step"], (meta["step"], theirs["step"])
        assert isinstance(tokenizer, Tokenizer)
        mine = ours.continuations(model, tokenizer, PROMPTS)
        ours.compute_as_in_training(model, self.setup)
        logits = ours.logits_of(model, torch.load(self.ids))
        difference = float((logits - theirs["logits"]).abs().max())
        spread = float(logits.std())
        self.note_value(
            f"{name}: logits",
            difference,
            LOGITS_LIMIT,
            f"largest difference {difference:.1e}, standard deviation {spread:.2f}",
        )
        equal = sum(a == b for a, b in zip(mine, theirs["samples"], strict=True))
        tokens = sum(map(len, mine))
        self.note(
            f"{name}: greedy text",
            equal == len(PROMPTS),
            f"{equal} of {len(PROMPTS)} equal ({tokens} tokens)",
        )

    def nanochats_run_goes_on_here(self, dtype: str, limit: float) -> None:
        """Ours takes nanochat's step 10; nanochat's own steps 10 to 19 are the measure."""
        folder = self.scratch / f"step-{SAVED}-{dtype}" / self._tag()
        folder.mkdir(parents=True, exist_ok=True)
        for file in (self._base(dtype) / self._tag()).glob(f"*_{SAVED:06d}*"):
            shutil.copy(file, folder)
        setup = self._setup(dtype)
        trainer = ours.started_from(setup, folder)
        trainer.stream = ours.InOrder(setup.data.train)
        mine = ours.train(trainer, range(SAVED, STEPS))
        theirs = self.their_steps[dtype][SAVED:]
        self._compare_losses(f"nanochat's run goes on here, {dtype}", mine, theirs, limit)

    def our_run(self) -> Path:
        """A run by the command line, saved at steps 10 and 20; its folder of checkpoints."""
        command = [
            *(sys.executable, "-m", "yoked.train"),
            *self.case.command_line(),
            *(f"--num-iterations={STEPS}", f"--save-every={SAVED}", "--eval-every=-1"),
            *(f"--data={self.data}", f"--tokenizer={self.tokenizer}", "--packing=bestfit"),
            *(
                "--dtype=float32",
                "--threads=1",
                "--run=parity",
                f"--runs-dir={self.scratch / 'runs'}",
            ),
        ]
        subprocess.run(command, check=True, capture_output=True, cwd=self.scratch)
        return self.scratch / "runs" / "parity" / "checkpoints"

    def our_checkpoint_there(self, folder: Path) -> None:
        (theirs,) = self.nanochat_answers(folder, "float32", [self._use(None)])
        self._compare_use("our checkpoint there", folder, theirs)

    def our_optimizer_file(self, folder: Path) -> None:
        """nanochat takes rates and settings from the file when it resumes: are they the run's?"""
        name = f"{self._tag()}/optim_{SAVED:06d}_rank0.pt"
        mine, theirs = torch.load(folder / name), torch.load(self.base / name)
        # What it computes anew at every step.
        scheduled = {"adamw": {"lr"}, "muon": {"lr", "momentum", "weight_decay"}}
        differ = []
        for number, (here, there) in enumerate(
            zip(mine["param_groups"], theirs["param_groups"], strict=True)
        ):
            for key in here.keys() | there.keys():
                if key in scheduled[there["kind"]] or _close(here.get(key), there.get(key)):
                    continue
                differ.append(f"group {number} {key}: {here.get(key)}, there {there.get(key)}")
        kinds = {
            index: {key: getattr(v, "shape", type(v)) for key, v in entry.items()}
            for index, entry in theirs["state"].items()
        }
        for index, entry in mine["state"].items():
            if {key: getattr(v, "shape", type(v)) for key, v in entry.items()} != kinds.get(index):
                differ.append(f"state {index} has other shapes")
        figures = "; ".join(differ) if differ else f"{len(mine['param_groups'])} groups equal"
        self.note("our optimizer file has nanochat's settings", not differ, figures)

    def our_run_goes_on_there(self, folder: Path) -> None:
        """base_train resumes our step 10; the measure is our own run, never interrupted.

        nanochat then reads its files from the second row group on, so ours gets those rows too.
        """
        side.make_base(folder, self.data, self.tokenizer)
        meta = json.loads((folder / self._tag() / f"meta_{SAVED:06d}.json").read_text())
        resumed = self.nanochat_trains(
            folder,
            "float32",
            f"--resume-from-step={SAVED}",
            smooth_loss=meta["loop_state"]["smooth_train_loss"],
        )
        rest = prepare(
            str(self.rest_data),
            max_seq_len=self.setup.data.info.max_seq_len,
            tokenizer=self.tokenizer,
            packing="bestfit",
        )
        trainer = build_trainer(self.setup)
        stream = trainer.stream
        assert isinstance(stream, ours.SampleStream)
        until = SAVED * self.setup.rows_per_step
        trainer.stream = ours.Continued(stream, until, rest.train)
        mine = ours.train(trainer, range(STEPS))[SAVED:]
        self._compare_losses("our run goes on there", mine, resumed, LOSS_LIMIT)


def _close(here: Any, there: Any) -> bool:
    if isinstance(here, float) and isinstance(there, float):
        return abs(here - there) <= 1e-9 * abs(there)
    return bool(here == there)


def _line(check: Check) -> str:
    verdict = "PASS" if check.passed else "FAIL"
    limit = f" (limit {check.limit:g})" if check.limit is not None else ""
    return f"{verdict}  {check.case:14} {check.name:44} {check.figures}{limit}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nanochat", type=Path, required=True, help="a nanochat checkout")
    parser.add_argument("--only", choices=[case.name for case in CASES], help="one case")
    parser.add_argument("--keep", type=Path, help="work in this folder and leave it there")
    args = parser.parse_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="yoked-parity-") as temporary:
        scratch = (args.keep or Path(temporary)).resolve()
        # All that is prepared here is small and of no use later.
        os.environ["YOKED_CACHE"] = str(scratch / "cache")
        checkout = side.Checkout.open(args.nanochat, scratch)
        cases = [case for case in CASES if args.only in (None, case.name)]
        parities = [Parity(case, checkout, scratch) for case in cases]
        checks = [check for parity in parities for check in parity.run()]
    failed = [check for check in checks if not check.passed]
    result = {
        "nanochat": checkout.commit(),
        "machine": side.machine_facts(),
        "took_s": round(time.perf_counter() - started),
        "nanochat_beside_itself": {p.case.name: p.beside_itself for p in parities},
        "checks": [asdict(check) for check in checks],
    }
    if args.only is None:
        (HERE / "results").mkdir(exist_ok=True)
        (HERE / "results" / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"{len(checks) - len(failed)} of {len(checks)} checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
