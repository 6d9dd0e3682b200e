"""Pages for users, typed in a lab from top to bottom, each by somebody who read that one alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.documents import IN_A_LAB, sections
from tests.walk import learner

# To a person `ssh laptop` works: as if the lab's ssh_config were ~/.ssh/config.
SSH = """\
#!/bin/sh
exec /usr/bin/ssh -F "$HOME/.local/state/yoked/lab/home/ssh_config" "$@"
"""


@pytest.mark.slow
@pytest.mark.parametrize("page", IN_A_LAB)
def test_what_a_page_says_is_what_happens(page: str, tmp_path: Path) -> None:
    with learner(tmp_path) as walk:
        (walk.home / "bin" / "ssh").write_text(SSH)
        (walk.home / "bin" / "ssh").chmod(0o755)
        walk.type("cd ~", *IN_A_LAB[page])
        for section in sections(page):
            walk.perform(section)
