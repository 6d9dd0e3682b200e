"""The flags of one rank that torchrun starts. A module of its own: few ranks are started so, and
cyclopts takes a tenth of a second to import.
"""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, CycloptsError, Parameter

from yoked.errors import UsageError
from yoked.train.config import TrainConfig


def parse_flags(argv: list[str], *, help_text: str | None) -> TrainConfig:
    """The configuration that flags mean. Raises UsageError, and SystemExit after --help."""
    app = App(name="python -m yoked.train", help=help_text, result_action="return_value")

    @app.default
    def read(
        *,
        config: Annotated[TrainConfig, Parameter(name="*")] = TrainConfig(),  # noqa: B008
    ) -> TrainConfig:
        return config

    try:
        config = app(argv, exit_on_error=False, print_error=False)
    except CycloptsError as problem:
        raise UsageError(str(problem), fix="python -m yoked.train --help") from problem
    if not isinstance(config, TrainConfig):
        # --help was asked for and printed.
        raise SystemExit(0)
    return config
