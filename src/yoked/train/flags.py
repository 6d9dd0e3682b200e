"""The flags of training that `yoked train` does not read: of one rank that torchrun starts, and in
a manifest. A module of its own: cyclopts takes a tenth of a second to import.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from cyclopts import App, CycloptsError, Parameter

from yoked.errors import UsageError
from yoked.train.config import TrainConfig
from yoked.train.config_file import with_config_file


def parse_flags(
    argv: Sequence[str], *, program: str = "python -m yoked.train", help_text: str | None = None
) -> TrainConfig:
    """The configuration that flags mean. Raises UsageError, and SystemExit after --help."""
    app = App(name=program, help=help_text, result_action="return_value")

    @app.default
    def read(
        *,
        config: Annotated[TrainConfig, Parameter(name="*")] = TrainConfig(),  # noqa: B008
    ) -> TrainConfig:
        return config

    try:
        config = app(list(argv), exit_on_error=False, print_error=False)
    except CycloptsError as problem:
        raise UsageError(" ".join(str(problem).split()), fix=f"{program} --help") from problem
    if not isinstance(config, TrainConfig):
        # --help was asked for and printed.
        raise SystemExit(0)
    return with_config_file(config).config
