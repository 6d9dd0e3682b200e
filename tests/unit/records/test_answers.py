"""Answers of hosts that end in a command line."""

from __future__ import annotations

from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.records.answers import understood
from yoked.records.rules import OddError

BASE = {
    "python": "/usr/bin/python3.12",
    "version": "3.12",
    "system": "Linux",
    "machine": "x86_64",
    "libc": "glibc",
    "libc_version": "2.36",
    "mac_version": "",
    "gpu": False,
}


@pytest.mark.parametrize("more", [{}, {"libc": "", "libc_version": ""}, {"libc_version": "2.5.1"}])
def test_a_hosts_python_is_understood(more: dict[str, Any]) -> None:
    assert understood("environment_base", {**BASE, **more}, []) == {**BASE, **more}


def test_a_macs_python_is_understood() -> None:
    mac = {"system": "Darwin", "machine": "arm64", "libc": "", "libc_version": ""}
    base = {**BASE, **mac, "mac_version": "14.5"}

    assert understood("environment_base", base, []) == base


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", "--index-url=x"),
        ("version", "3.12\n"),
        ("version", None),
        ("machine", "x86_64 --pre"),
        ("libc_version", "2.999999999"),
        ("libc_version", "2"),
        ("mac_version", "1e9"),
        ("python", "relative; touch x"),
        ("gpu", "yes"),
    ],
)
def test_a_hosts_word_that_is_none_of_pips_is_refused(
    field: str, value: Any, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(OddError) as caught:
        understood("environment_base", {**BASE, field: value}, [])
    assert str(caught.value) == snapshot
