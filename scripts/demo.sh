#!/usr/bin/env bash
# From nothing to text: data, tokenizer, training on two ranks, a sample, a plot.
# The numbers are chosen to take about two minutes on two cores. A small vocabulary, because
# at the reference 32,768 the lm_head alone would be two thirds of the work.
set -euo pipefail
cd "$(dirname "$0")/.."

yoked=.venv/bin/yoked
runs=runs
run=demo-$(date +%Y%m%d-%H%M%S)

"$yoked" train --run "$run" --runs-dir "$runs" --ranks 2 \
    --depth 4 --vocab-size 4096 --max-seq-len 256 --device-batch-size 8 \
    --total-batch-size 4096 --num-iterations 240

echo
"$yoked" sample "$run" --runs-dir "$runs" --prompt "The state of the Union is" --max-tokens 100
echo
echo "loss curve: $runs/$run/loss.png (and loss.svg)"
