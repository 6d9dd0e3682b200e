"""`yoked train` with fake ranks: prints its JSON and exits with its status."""

from __future__ import annotations

import sys
from pathlib import Path

from yoked.cli.commands.train import Result, run_training
from yoked.cli.output import Output
from yoked.launch.local import LocalLaunch, run_ranks
from yoked.train.config import TrainConfig


def ranks(config: TrainConfig, output: Output) -> Result:
    assert config.run is not None
    return run_ranks(
        LocalLaunch(
            run_dir=config.runs_dir / config.run,
            ranks=config.local_ranks,
            config=config.to_dict(),
            module="fake_rank",
        )
    )


if __name__ == "__main__":
    config = TrainConfig(run="r", runs_dir=Path(sys.argv[1]), ranks=2)
    output = Output(json_mode=True)
    try:
        status = run_training(config, output, ranks=ranks, plot=lambda run_dir: run_dir / "l.png")
    except KeyboardInterrupt:
        status = output.interrupted()
    sys.exit(status)
