"""Which package of a distribution has a program, and the line that installs it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

# By package manager, in the order in which they are named where it is not known which one is there.
_INSTALL = {
    "apt": "apt install {}",
    "dnf": "dnf install {}",
    "pacman": "pacman -S {}",
    "apk": "apk add {}",
    "zypper": "zypper install {}",
}
# Words of ID and ID_LIKE of os-release(5).
_DISTRIBUTIONS = {
    "apt": ("debian", "ubuntu"),
    "dnf": ("fedora", "rhel", "centos"),
    "pacman": ("arch",),
    "apk": ("alpine",),
    "zypper": ("suse", "opensuse"),
}
# In the order of _INSTALL; "": as apt has it.
_PACKAGES = {
    "gcc": ("gcc", "", "", "build-base", ""),
    "ip": ("iproute2", "iproute", "", "", ""),
    "libfaketime": ("libfaketime", "", "", "", ""),
    "nft": ("nftables", "", "", "", ""),
    "openssl": ("openssl", "", "", "", ""),
    "python3": ("python3", "", "python", "", ""),
    "ssh": ("openssh-client", "openssh-clients", "openssh", "", "openssh-clients"),
    "ssh-keygen": ("openssh-client", "openssh", "openssh", "openssh-keygen", "openssh-common"),
    "sshd": ("openssh-server", "", "openssh", "", ""),
    "tc": ("iproute2", "iproute-tc", "", "iproute2-tc", ""),
    "venv": ("python3-venv", "python3", "python", "python3", "python3"),
}


def read_distribution(os_release: str) -> tuple[str, ...]:
    """ID, then the words of ID_LIKE, of a text as in os-release(5)."""
    pairs = (line.partition("=") for line in os_release.splitlines())
    values = {key.strip(): value.strip().strip("\"'") for key, _, value in pairs}
    return tuple(f"{values.get('ID', '')} {values.get('ID_LIKE', '')}".lower().split())


def this_distribution() -> tuple[str, ...]:
    """That of this machine; () where it does not say."""
    try:
        return read_distribution(Path("/etc/os-release").read_text("utf-8", "replace"))
    except OSError:
        return ()


def package_manager(distribution: Iterable[str]) -> str | None:
    """The one of a distribution, by its names, the nearest first; None: another one."""
    for name in distribution:
        for manager, names in _DISTRIBUTIONS.items():
            if name in names or (manager == "zypper" and name.startswith("opensuse")):
                return manager
    return None


def package_of(program: str, manager: str) -> str:
    """The package, or packages, that a program comes with."""
    packages = _PACKAGES[program]
    return packages[list(_INSTALL).index(manager)] or packages[0]


def install_line(program: str, distribution: Iterable[str]) -> str:
    """The line for a distribution; for one that is not known, a sentence with Debian's package."""
    manager = package_manager(distribution)
    if manager is None:
        return f"install the package that has {program}; on Debian it is {_PACKAGES[program][0]}"
    return "sudo " + _INSTALL[manager].format(package_of(program, manager))


def install_lines(program: str) -> str:
    """For a host of which it is not known what it runs: the lines of three distributions."""
    lines = [
        "`sudo " + _INSTALL[manager].format(package_of(program, manager)) + f"` ({name})"
        for manager, name in (("apt", "Debian, Ubuntu"), ("dnf", "Fedora"), ("pacman", "Arch"))
    ]
    return ", ".join(lines)
