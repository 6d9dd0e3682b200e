"""What no line can do."""

from __future__ import annotations

from yoked.doctor.repairs.named import repair
from yoked.records.examination import Fix
from yoked.records.shell import shell_line


@repair
def by_hand(host: str, words: str, /, **values: object) -> Fix:
    """What only a person can do. host "": wherever. words, values: as of `shell_line`: a person
    pastes what stands there.
    """
    return Fix(host, shell_line(words, **values), by_hand=True)
