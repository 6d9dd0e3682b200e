"""Names of data sets of the Hugging Face hub, and where they lie here. See `hub`."""

from __future__ import annotations

import glob
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from yoked.errors import UsageError

HUB = "hf:"
_NAME = re.compile(
    r"hf:(?P<repository>[\w.-]{1,96}(?:/[\w.-]{1,96})?)(?P<folder>(?:/[\w.=-]+)*)"
    r"(?:@(?P<revision>[\w./-]{1,200}))?(?::(?P<column>[^:@]{1,200}))?"
)
COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class HubName:
    """A data set as it was named. folder: of its files, where it has several sets of them.

    revision: branch, tag or commit; None: what was fetched last, else the newest. column: of the
    text; None: to be found.
    """

    repository: str
    folder: str = ""
    revision: str | None = None
    column: str | None = None

    def __str__(self) -> str:
        revision = "" if self.revision is None else f"@{self.revision}"
        column = "" if self.column is None else f":{self.column}"
        return f"{HUB}{self.repository}{self.folder}{revision}{column}"

    @property
    def label(self) -> str:
        """What its folders begin with: a plain name, and of no other data set or column."""
        path = f"{self.repository}{self.folder}".replace("/", "--")
        # No name of a data set has a plus.
        return path if self.column is None else f"{path}+{quote(self.column, safe='')}"

    def folder_of(self, cache: Path, commit: str, files: int) -> Path:
        """Where it lies with so many of its files."""
        return cache / "corpora" / f"hf-{self.label}@{commit}-{files}"

    def fetched(self, cache: Path) -> Path | None:
        """The folder that was fetched last; None: it is not here, or only the hub knows.

        Only the hub knows what a branch or tag means.
        """
        if self.revision is not None and not COMMIT.fullmatch(self.revision):
            return None
        pattern = f"hf-{glob.escape(self.label)}@{self.revision or ''}*"
        found = (cache / "corpora").glob(pattern)
        return max(found, key=lambda folder: folder.stat().st_mtime_ns, default=None)

    @staticmethod
    def commit_of(folder: Path) -> str:
        """The commit in the name of such a folder."""
        return folder.name.rpartition("@")[2].partition("-")[0]


def parse_hub_name(text: str) -> HubName:
    """`hf:OWNER/NAME`, with a folder, a revision and a column. Raises UsageError."""
    match = _NAME.fullmatch(text)
    if match is None or ".." in text:
        raise UsageError(
            f"--data {text}: a data set of the hub is hf:OWNER/NAME, hf:OWNER/NAME@REVISION or "
            "hf:OWNER/NAME:COLUMN",
            fix="--data hf:roneneldan/TinyStories",
        )
    # Of a name with one slash only the hub knows whether it has an owner; nearly all have one.
    return HubName(match["repository"], match["folder"], match["revision"], match["column"])
