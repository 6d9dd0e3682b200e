from __future__ import annotations

import sys
from pathlib import Path

import pytest

from yoked.lab import filetree, keeper
from yoked.lab.filetree import FileTree

MOUNTINFO = r"""
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:21 / /proc rw,nosuid shared:13 - proc proc rw
24 22 0:22 / /sys rw - sysfs sysfs rw
25 22 0:23 / /home/ada/my\040disk rw shared:1 master:2 - ext4 /dev/vdb rw
26 22 0:24 / /mnt/caf\303\251\011tab rw - fuseblk /dev/vdc rw
27 23 0:25 / /proc/sys/fs/binfmt_misc rw - autofs systemd-1 rw
"""


@pytest.fixture
def machine_mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Path.read_text

    def read_text(path: Path, *arguments: object, **more: object) -> str:
        if str(path) == "/proc/self/mountinfo":
            return MOUNTINFO.lstrip()
        return own(path, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "read_text", read_text)


@pytest.mark.usefixtures("machine_mounts")
def test_mount_points_are_read_with_their_blanks_and_accents() -> None:
    assert keeper.mounts() == [
        ("/", "ext4"),
        ("/proc", "proc"),
        ("/sys", "sysfs"),
        ("/home/ada/my disk", "ext4"),
        ("/mnt/café\ttab", "fuseblk"),
        ("/proc/sys/fs/binfmt_misc", "autofs"),
    ]


@pytest.mark.usefixtures("machine_mounts")
def test_mounts_that_hold_no_files_are_not_shown_to_hosts(tmp_path: Path) -> None:
    tree = FileTree(tmp_path, user_namespace=False, home="/home/ada")

    assert tree._mounts == ["/", "/home/ada/my disk", "/mnt/café\ttab"]
    assert tree._virtual == {"/proc", "/sys", "/proc/sys/fs/binfmt_misc"}


@pytest.mark.skipif(sys.platform != "linux", reason="mounts as Linux has them")
def test_the_root_of_this_machine_is_among_its_mounts() -> None:
    assert "/" in [path for path, _ in keeper.mounts()]


@pytest.mark.parametrize(
    ("path", "option"),
    [
        ("/home/ada", "/home/ada"),
        ("/srv/a:b", r"/srv/a\:b"),
        ("/srv/a,b", r"/srv/a\,b"),
        ("/srv/a\\b", r"/srv/a\\b"),
    ],
)
def test_what_parts_options_is_escaped(path: str, option: str) -> None:
    assert filetree._escaped(path) == option
