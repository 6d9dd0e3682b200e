from __future__ import annotations

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.core import packages


@pytest.mark.parametrize(
    ("os_release", "line"),
    [
        ("ID=debian\n", "sudo apt install openssh-client"),
        ('ID=linuxmint\nID_LIKE="ubuntu debian"\n', "sudo apt install openssh-client"),
        ("ID=fedora\n", "sudo dnf install openssh-clients"),
        ('ID=rocky\nID_LIKE="rhel centos fedora"\n', "sudo dnf install openssh-clients"),
        ("ID=arch\n", "sudo pacman -S openssh"),
        ("ID=alpine\n", "sudo apk add openssh-client"),
        (
            'ID="opensuse-tumbleweed"\nID_LIKE="opensuse suse"\n',
            "sudo zypper install openssh-clients",
        ),
        ("ID=nixos\n", "install the package that has ssh; on Debian it is openssh-client"),
        ("", "install the package that has ssh; on Debian it is openssh-client"),
    ],
)
def test_the_line_is_that_of_the_distribution(os_release: str, line: str) -> None:
    assert packages.install_line("ssh", packages.read_distribution(os_release)) == line


def test_the_distribution_is_read_with_what_it_is_like() -> None:
    text = 'NAME="Linux Mint"\nID=linuxmint\nID_LIKE="ubuntu debian"\n'

    assert packages.read_distribution(text) == ("linuxmint", "ubuntu", "debian")
    assert packages.read_distribution("") == ()


def test_for_a_host_that_is_not_known_there_is_a_line_for_each(snapshot: SnapshotAssertion) -> None:
    assert packages.install_lines("python3") == snapshot
