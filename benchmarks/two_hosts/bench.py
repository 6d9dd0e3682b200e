"""Two lab hosts of one core each against one of them, in turns: A B A B.

usage: bench.py [--link 1gbit] [--tokens 2048] [--sync exact] [--dtype float32] [--rounds 3]
                [--steps 14] [--speeds 1:1] [--wifi delay=4ms,jitter=3ms,loss=0.2%] [--unshaped]
                [--nanochat CHECKOUT] [--ddp] [--losses] [--add] [--smoke]

A round is: each host alone, both at the same time; nanochat on both, with --nanochat; PyTorch's
own DDP alone and on both, with --ddp; both with yoked, once for each --sync, and, with --unshaped,
in exact on a network as fast as the machine; and each host alone again, which also begins the next
round. With --losses, runs of --steps steps by one process and by both hosts are compared by their
loss instead.
As root; each configuration has a file in results/.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import nanochat_side as side  # noqa: E402
from stage import HOSTS, UNSHAPED, WARM_UP_STEPS, Run, Stage  # noqa: E402

from yoked.costmodel.model_shape import ModelShape, count_parameters  # noqa: E402
from yoked.lab.topology import parse_rate  # noqa: E402
from yoked.units import format_bytes  # noqa: E402

RESULTS = HERE / "results"
LAST_STEPS = 20
ALONE = "one process"
VOCABULARY = 32_768  # yoked's default
# What each arm is compared with besides the hosts alone.
OTHERS = {"nanochat": "nanochat", "ddp": "ddp", "unshaped": UNSHAPED}
DDP_STEPS = 5  # on a slow link one takes a quarter of a minute


def measure(stage: Stage, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Rounds of all arms in turn, after one of each that warms caches up; the result so far."""
    facts = _facts(stage, options)
    rounds = earlier_rounds(facts["configuration"], options)
    _warm_up(stage, options)
    alone = stage.both_alone(options.steps)
    for run in alone:
        print(f"before   {_line(run)}", flush=True)
    for number in range(len(rounds), len(rounds) + options.rounds):
        turn = list(alone)
        if options.nanochat:
            turn.append(stage.nanochat(options.steps))
        if options.ddp:
            turn += stage.ddp(min(options.steps, DDP_STEPS))
        turn += [stage.together(sync, options.steps) for sync in options.sync]
        if options.unshaped:
            turn.append(stage.unshaped(options.steps))
        alone = stage.both_alone(options.steps)
        turn += alone
        rounds.append(turn)
        for run in turn[len(HOSTS) :]:
            print(f"round {number + 1}  {_line(run)}", flush=True)
        facts["configuration"]["rounds"] = len(rounds)
        yield {
            **facts,
            "rho": rho(rounds, options),
            "summary": summarise(rounds),
            "rounds": [[asdict(run) for run in turn] for turn in rounds],
        }


def earlier_rounds(configuration: dict[str, Any], options: argparse.Namespace) -> list[list[Run]]:
    """With --add: the rounds that are kept of the same configuration."""
    path = result_path(options)
    if not options.add or not path.exists():
        return []
    kept = json.loads(path.read_text())
    if {**kept["configuration"], "rounds": options.rounds} != configuration:
        raise SystemExit(f"--add: {path} is of another configuration")
    return [[Run(**run) for run in turn] for turn in kept["rounds"]]


def _warm_up(stage: Stage, options: argparse.Namespace) -> None:
    """What the hosts compile and receive once is there from now on."""
    stage.both_alone(WARM_UP_STEPS)
    for sync in options.sync:
        stage.together(sync, WARM_UP_STEPS)
    if options.nanochat:
        stage.nanochat(WARM_UP_STEPS)


def summarise(rounds: list[list[Run]]) -> dict[str, Any]:
    """By arm: medians over the rounds; ratios are taken round by round.

    What an arm took part in twice, as the hosts alone do, counts with its mean speed: the machine's
    own may have changed in between. undisturbed: the ratio of what the fastest fifth of all steps
    takes at most.
    """
    summary: dict[str, Any] = {}
    by_arm = [_speeds(turn) for turn in rounds]
    alone = [[speeds[f"{host} alone"] for host in HOSTS] for speeds in by_arm]
    fast_alone_s = min(_fast_step_s(rounds, f"{host} alone") for host in HOSTS)
    for arm in by_arm[0]:
        runs = [next(run for run in turn if run.arm == arm) for turn in rounds]
        speeds = [each[arm] for each in by_arm]
        ours: dict[str, Any] = {
            "tokens_per_second": statistics.median(speeds),
            "speedups": [speed / max(one) for speed, one in zip(speeds, alone, strict=True)],
            "efficiencies": [speed / sum(one) for speed, one in zip(speeds, alone, strict=True)],
            "sent": runs[-1].sent,
            "payload_bytes": runs[-1].payload_bytes,
            "last_loss": runs[-1].losses[-1],
        }
        ours["speedup"] = statistics.median(ours["speedups"])
        ours["efficiency"] = statistics.median(ours["efficiencies"])
        ours["undisturbed"] = fast_alone_s / _fast_step_s(rounds, arm)
        for name in ("compute_s", "comm_s", "wait_s"):
            by_rank = zip(*(getattr(run, name) for run in runs), strict=True)
            ours[name] = [statistics.median(values) for values in by_rank]
        for name, other in OTHERS.items():
            if other in by_arm[0]:
                ratios = [each[arm] / each[other] for each in by_arm]
                ours[f"over_{name}"] = statistics.median(ratios)
        summary[arm] = ours
    return summary


def rho(rounds: list[list[Run]], options: argparse.Namespace) -> float:
    """The time of the whole float32 gradient on the link, over that of a host's part of a step."""
    shape = ModelShape.from_depth(
        options.depth, sequence_len=options.seq_len, vocab_size=VOCABULARY
    )
    gradient_s = 8 * 4 * count_parameters(shape).total / parse_rate(options.link)
    both_alone = [sum(_speeds(turn)[f"{host} alone"] for host in HOSTS) for turn in rounds]
    return gradient_s * statistics.median(both_alone) / options.tokens


def _speeds(turn: list[Run]) -> dict[str, float]:
    """Tokens a second by arm, in the order of their first runs."""
    arms = dict.fromkeys(run.arm for run in turn)
    return {
        arm: statistics.mean(run.tokens_per_second for run in turn if run.arm == arm)
        for arm in arms
    }


def _fast_step_s(rounds: list[list[Run]], arm: str) -> float:
    steps_s = [step_s for turn in rounds for run in turn if run.arm == arm for step_s in run.step_s]
    return statistics.quantiles(steps_s, n=5, method="inclusive")[0]


def compare_losses(stage: Stage, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Mean loss of the last steps, one process against both hosts, by seed and sync.

    Other seeds of an earlier run stay in the result, so that a long one can be done in parts.
    """
    facts = _facts(stage, options)
    found = earlier_losses(facts["configuration"], options)
    for seed, reference in dict(_references(stage, options)).items():
        found[seed] = losses = {ALONE: reference}
        print(f"seed {seed}  {ALONE}: {_final(reference):.4f}", flush=True)
        for sync in options.sync:
            losses[sync] = stage.together(sync, options.steps, seed).losses
            print(f"seed {seed}  {sync}: {_off_percent(losses, sync):+.3f}%", flush=True)
        yield {
            **facts,
            "loss_off_percent": {
                sync: {seed: _off_percent(losses, sync) for seed, losses in found.items()}
                for sync in options.sync
            },
            "losses": found,
        }


def earlier_losses(
    configuration: dict[str, Any], options: argparse.Namespace
) -> dict[int, dict[str, list[float]]]:
    """What is kept of other seeds in the same configuration."""
    path = result_path(options)
    kept = json.loads(path.read_text()) if path.exists() else {}
    if kept.get("configuration") != configuration:
        return {}
    return {
        int(seed): losses
        for seed, losses in kept["losses"].items()
        if int(seed) not in options.seeds and {*options.sync} <= {*losses}
    }


def _references(stage: Stage, options: argparse.Namespace) -> Iterator[tuple[int, list[float]]]:
    """(seed, losses) of one process: two seeds at a time, one on each host."""
    for seeds in zip_longest(options.seeds[::2], options.seeds[1::2]):
        wanted = [seed for seed in seeds if seed is not None]
        totals = dict.fromkeys(HOSTS[: len(wanted)], options.steps)
        for seed, run in zip(wanted, stage.alone(totals, wanted), strict=True):
            yield seed, run.losses


def _final(losses: list[float]) -> float:
    return statistics.mean(losses[-LAST_STEPS:])


def _off_percent(losses: dict[str, list[float]], sync: str) -> float:
    """How far a strategy's final loss is above that of one process."""
    return 100 * (_final(losses[sync]) / _final(losses[ALONE]) - 1)


def _facts(stage: Stage, options: argparse.Namespace) -> dict[str, Any]:
    """What a reader of the figures must know."""
    names = ("link", "tokens", "dtype", "depth", "seq_len", "rows", "steps", "rounds", "speeds")
    checkout = options.nanochat and side.Checkout.open(options.nanochat, stage.scratch)
    return {
        "configuration": {name: getattr(options, name) for name in names}
        | {"train": options.train_flags}
        | ({"wifi": options.wifi} if options.wifi else {}),
        "machine": side.machine_facts(),
        "nanochat": checkout.commit() if checkout else None,
    }


def _line(run: Run) -> str:
    line = f"{run.arm:16} {run.tokens_per_second:7.0f} tokens/s"
    if run.compute_s:
        for what in ("compute", "comm", "wait"):
            seconds = " ".join(f"{value:.2f}" for value in getattr(run, f"{what}_s"))
            line += f", {what} {seconds} s"
    if run.sent:
        most = max(run.sent.values(), key=lambda sent: sent["wire"])
        line += f", sent {format_bytes(most['wire'])} a step"
    return f"{line}, last loss {run.losses[-1]:.4f}"


def report(result: dict[str, Any]) -> None:
    """The verdict: ratios of each arm."""
    print(f"rho {result['rho']:.2g}")
    for arm, figures in result["summary"].items():
        ratios = ", ".join(f"{ratio:.2f}" for ratio in figures["speedups"])
        over = {name: figures.get(f"over_{name}") for name in OTHERS}
        print(
            f"{arm:16} {figures['tokens_per_second']:7.0f} tokens/s, "
            f"{figures['speedup']:.2f}x the faster host alone (by round: {ratios}), "
            f"{figures['efficiency']:.0%} of the sum of both, "
            f"undisturbed {figures['undisturbed']:.2f}x"
            + "".join(f", {ratio:.2f}x {name}" for name, ratio in over.items() if ratio)
        )


def settings(text: str) -> dict[str, str]:
    """KEY=VALUE,KEY=VALUE."""
    return dict(each.split("=", 1) for each in text.split(","))


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--link", default="1gbit", help="rate of the network, as tc writes it")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens a step")
    parser.add_argument("--sync", default="exact", help="strategies, with commas between them")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--rows", type=int, default=2, help="rows that a rank computes at once")
    parser.add_argument("--steps", type=int, help="of each run (default: 14; 300 with --losses)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--speeds", default="1:1", help="of the hosts, such as 4:1")
    parser.add_argument("--data", help="a folder or a data set (default: the embedded corpus)")
    parser.add_argument("--nanochat", type=Path, help="a checkout: measure it on both hosts too")
    parser.add_argument("--ddp", action="store_true", help="measure PyTorch's DDP on both too")
    parser.add_argument(
        "--unshaped", action="store_true", help="measure exact on an unshaped network too"
    )
    parser.add_argument(
        "--wifi",
        type=settings,
        default={},
        help="of beta's link, such as delay=4ms,jitter=3ms,loss=0.2%%",
    )
    parser.add_argument("--losses", action="store_true", help="compare losses instead of speeds")
    parser.add_argument("--seeds", default="42,43,44", help="of --losses")
    parser.add_argument("--add", action="store_true", help="rounds to those of an earlier result")
    parser.add_argument("--smoke", action="store_true", help="see that it works; nothing is kept")
    parser.add_argument(
        "--with",
        dest="train_flags",
        action="append",
        default=[],
        help="a flag more for yoked's runs on both hosts, such as --with=--shares=4:1",
    )
    options = parser.parse_args(argv)
    if options.smoke:
        options.depth, options.rounds, options.seq_len, options.tokens = 2, 1, 128, 512
    options.steps = options.steps or (6 if options.smoke else 300 if options.losses else 14)
    if options.steps < WARM_UP_STEPS:
        parser.error(f"--steps: {WARM_UP_STEPS} at least, the first does not count")
    if options.unshaped and options.wifi:
        parser.error("--unshaped: not with --wifi, which delays the link whatever its rate")
    options.sync = options.sync.split(",")
    options.seeds = [int(seed) for seed in options.seeds.split(",")]
    try:
        options.speeds = [float(speed) for speed in options.speeds.split(":")]
    except ValueError:
        options.speeds = []
    if len(options.speeds) != 2 or min(options.speeds) <= 0:
        parser.error("--speeds: two numbers above 0 with a colon between them, such as 4:1")
    return options


def prepare_data(scratch: Path, options: argparse.Namespace) -> None:
    """The corpus as files that both programs read, before the hosts' copies are taken."""
    text = scratch / "text"
    if options.data is None or options.nanochat:
        side.write_shards(text, side.into_shards(side.embedded_paragraphs()))
        options.data = options.data or str(text)
    if not options.nanochat:
        return
    from yoked.train.data.prepare import prepare

    side.Checkout.open(options.nanochat, scratch)
    dataset = prepare(str(text), max_seq_len=options.seq_len)
    side.make_base(scratch / "nanochat", text, dataset.tokenizer_folder)


def result_path(options: argparse.Namespace) -> Path:
    """The file of a configuration."""
    kind = "losses" if options.losses else "speed"
    speeds = "to".join(f"{speed:g}" for speed in options.speeds)
    wifi = [f"{key}-{value}".replace("%", "-percent") for key, value in options.wifi.items()]
    link = "-".join([options.link, *wifi])
    return RESULTS / f"{kind}-{link}-{options.tokens}-{options.dtype}-{speeds}.json"


def keep(result: dict[str, Any], options: argparse.Namespace) -> None:
    """Write what is measured so far, in the place of an earlier measurement."""
    RESULTS.mkdir(exist_ok=True)
    result_path(options).write_text(json.dumps(result, indent=1) + "\n")


def main() -> int:
    options = parse()
    # The hosts have a /tmp of their own, and are to see what lies here.
    with tempfile.TemporaryDirectory(prefix="yoked-two-", dir="/var/tmp") as folder:
        scratch = Path(folder).resolve()
        prepare_data(scratch, options)
        result = None
        with Stage.up(scratch, options, options.wifi) as stage:
            try:
                for result in (compare_losses if options.losses else measure)(stage, options):
                    if not options.smoke:
                        keep(result, options)
            except SystemExit:
                print((scratch / "errors.log").read_text()[-4000:], file=sys.stderr)
                raise
    if result is not None and not options.losses:
        report(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
