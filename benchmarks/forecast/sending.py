"""What a byte sent or received costs a core that computes meanwhile.

usage: sending.py [--link 1gbit]

Two lab hosts, a core each, on one link: `sending_rank.py` on both. As root, in a quiet hour.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "two_hosts")]

import nanochat_side as side  # noqa: E402
import stage as two_hosts  # noqa: E402

PROGRAM = HERE / "sending_rank.py"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--link", default="1gbit")
    options = parser.parse_args()
    options.speeds = (1, 1)
    # The hosts have a /tmp of their own, and are to see what lies here.
    with tempfile.TemporaryDirectory(prefix="yoked-sending-", dir="/var/tmp") as folder:
        scratch = Path(folder).resolve()
        shutil.copy(PROGRAM, scratch)
        with two_hosts.Stage.up(scratch, options) as stage:
            done = subprocess.run(
                [
                    *two_hosts.YOKED,
                    *("run", "--fleet", str(stage.lab.fleet_file), "--run=sending"),
                    *("--", PROGRAM.name),
                ],
                cwd=scratch,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
    told = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    by_rank = []
    for rank, turns in enumerate(told["without_and_with_s"]):
        each = [1e9 * (with_s - without_s) / told["bytes_a_head"] for without_s, with_s in turns]
        by_rank.append(statistics.median(each))
        listed = ", ".join(f"{ns:.2f}" for ns in each)
        print(f"rank {rank}: {by_rank[-1]:.2f} ns a byte (by turn: {listed})")
    result = {"machine": side.machine_facts(), "link": options.link, "ns_a_byte": by_rank, **told}
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "sending.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
