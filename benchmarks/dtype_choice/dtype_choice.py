"""Which dtype yoked chooses on this CPU, and on the same CPU held to AVX2.

usage: python benchmarks/dtype_choice/dtype_choice.py

Prints the choices with their measured ratio and writes results/results.json; exit status 1 when
a choice contradicts its own measurement.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import nanochat_side as side  # noqa: E402

# Below this ratio yoked keeps float32, whose sums are more precise.
WORTHWHILE = 1.1
# What `yoked train` starts; unlike that, it is there without an installed script.
COMMAND = [
    *(sys.executable, "-m", "yoked.train"),
    *("--dry-run", "--json", "--device-type=cpu", "--depth=4", "--aspect-ratio=64"),
    *("--head-dim=64", "--max-seq-len=512", "--window-pattern=L"),
]
# oneDNN and ATen take no wider instructions than these let them.
HELD = {
    "as it is": {},
    "held to AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
}


def choice(limits: dict[str, str]) -> dict[str, Any]:
    """yoked's choice of dtype under these limits, with the ratio that it measured."""
    done = subprocess.run(
        COMMAND, env=os.environ | limits, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(COMMAND)} ended with {done.returncode}:\n{done.stderr}")
    found = next(c for c in json.loads(done.stdout)["choices"] if c["name"] == "dtype")
    measured = found["measured"]
    ratio = measured["float32_s_per_token"] / measured["bfloat16_s_per_token"]
    return {**found, "bfloat16_over_float32": ratio}


def main() -> int:
    results = {name: choice(limits) for name, limits in HELD.items()}
    wrong = 0
    for name, found in results.items():
        fits = (found["value"] == "bfloat16") == (found["bfloat16_over_float32"] >= WORTHWHILE)
        wrong += not fits
        verdict = "" if fits else "  <- contradicts the measurement"
        print(
            f"{name:14} {found['value']:9} "
            f"bfloat16 {found['bfloat16_over_float32']:.2f}x float32{verdict}"
        )
    (HERE / "results").mkdir(exist_ok=True)
    content = {"machine": side.machine_facts(), "choices": results}
    (HERE / "results" / "results.json").write_text(json.dumps(content, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
