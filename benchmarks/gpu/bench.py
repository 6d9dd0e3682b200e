"""A GPU's figures: a step alone and beside nanochat's, its parts, its copies, and a mixed run.

usage: python benchmarks/gpu/bench.py --nanochat PATH_TO_A_CHECKOUT [--card-gb 12] [--only solo ...]
       python benchmarks/gpu/bench.py --device cpu --tiny          # the same code, without a GPU

Every figure is written to results/<device>.json as soon as it is there: a command that is cut off
loses nothing that was measured.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import mixed  # noqa: E402
import nanochat_side as side  # noqa: E402
import parts  # noqa: E402
import solo  # noqa: E402
import staging  # noqa: E402
from sides import Options  # noqa: E402

from yoked.train.device import DTYPES, device_name, prepare_cuda  # noqa: E402

SECTIONS = {"solo": solo, "parts": parts, "staging": staging, "mixed": mixed}


def parser() -> argparse.ArgumentParser:
    """The command line; what is left out fits a GPU and 20 minutes."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    words.add_argument("--nanochat", type=Path, help="a checkout, to be measured beside")
    words.add_argument("--only", nargs="*", choices=list(SECTIONS), default=list(SECTIONS))
    words.add_argument("--depth", type=int, nargs="+", default=None, help="12 and 20")
    words.add_argument("--rows", type=int, nargs="+", default=None, help="at once: 1 4 8 16 32")
    words.add_argument("--step-rows", type=int, default=None, help="of a step: 32")
    words.add_argument("--ways", nargs="+", choices=["eager", "compiled"], default=None)
    words.add_argument("--dtype", choices=list(DTYPES), default=None, help="bfloat16")
    words.add_argument("--windows", default="L", help="attention windows: L, SSSL and the like")
    words.add_argument("--seconds", type=float, default=None, help="of a program's turn: 4")
    words.add_argument("--rounds", type=int, default=3, help="turns of each program")
    words.add_argument("--minutes", type=float, default=20.0, help="nothing begins after that")
    words.add_argument("--card-gb", type=float, help="use so much of the GPU's memory")
    words.add_argument("--data", default="sotu", help="text of the mixed run")
    words.add_argument("--tiny", action="store_true", help="see that it works")
    words.add_argument("--results", type=Path, default=HERE / "results")
    return words


def parse(argv: list[str]) -> argparse.Namespace:
    """The arguments, with defaults that fit."""
    args = parser().parse_args(argv)
    large = {"depth": [12, 20], "rows": [1, 4, 8, 16, 32], "step_rows": 32, "seconds": 4.0}
    large |= {"ways": ["eager", "compiled"], "dtype": "bfloat16"}
    small = {"depth": [2], "rows": [1, 2], "step_rows": 4, "seconds": 0.0}
    small |= {"ways": ["eager"], "dtype": "float32"}
    for name, value in (small if args.tiny else large).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return args


def prepare(args: argparse.Namespace, options: Options) -> dict[str, Any]:
    """Make the device ready; what a reader must know of it."""
    facts = {**side.machine_facts(), "device": device_name(options.device)}
    if options.nanochat is not None:
        facts["nanochat"] = side.Checkout(options.nanochat.resolve(), HERE).commit()
    if not options.on_gpu:
        return facts
    prepare_cuda(options.device)
    total = torch.cuda.get_device_properties(options.device).total_memory
    if args.card_gb is not None:
        torch.cuda.set_per_process_memory_fraction(min(1.0, args.card_gb * 1e9 / total))
    major, minor = torch.cuda.get_device_capability(options.device)
    card = {"memory_bytes": total, "card_gb": args.card_gb, "capability": f"{major}.{minor}"}
    return {**facts, **card, "cuda": torch.version.cuda}


def main(argv: list[str]) -> int:
    args = parse(argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("no CUDA device here; --device cpu --tiny shows that it works")
    options = Options.of(args)
    facts = prepare(args, options)
    card = "" if args.card_gb is None else f"-{args.card_gb:g}gb"
    file = args.results / (re.sub(r"\W+", "-", facts["device"]).strip("-").lower() + card + ".json")
    args.results.mkdir(parents=True, exist_ok=True)
    results = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    failed = False
    for name in args.only:
        results[name] = {"machine": facts, "options": vars(args), "rows": []}
        try:
            for row in SECTIONS[name].measure(options):
                results[name]["rows"].append(row)
                print(f"{name:8} {json.dumps(row)[:300]}", flush=True)
                file.write_text(json.dumps(results, indent=1, default=str) + "\n", encoding="utf-8")
        except Exception:
            # The other sections are worth their time all the same.
            failed = True
            traceback.print_exc()
    print(f"wrote {file}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
