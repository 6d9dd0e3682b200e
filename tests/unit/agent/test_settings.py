"""Settings of the kernel are told where they are out of bounds that all systems keep."""

from __future__ import annotations

from pathlib import Path

import pytest

from yoked.agent.settings import SETTINGS, Setting, is_odd, probe_settings, setting_of


def write(root: Path, **values: str) -> None:
    for name, value in values.items():
        path = root / "net/ipv4" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")


def test_a_host_that_set_nothing_tells_nothing(tmp_path: Path) -> None:
    write(
        tmp_path, tcp_rmem="4096\t131072\t33554432", tcp_retries2="15", conf__eth0__arp_ignore="1"
    )

    assert probe_settings(tmp_path) == {}
    assert probe_settings(tmp_path / "none") is None


def test_what_is_out_of_bounds_is_told_by_its_name(tmp_path: Path) -> None:
    write(tmp_path, tcp_rmem="2304\t2304\t2304", conf__eth0__arp_ignore="8", tcp_wmem="no number")

    assert probe_settings(tmp_path) == {
        "net/ipv4/tcp_rmem": "2304 2304 2304",
        "net/ipv4/conf/eth0/arp_ignore": "8",
    }


@pytest.mark.parametrize("setting", SETTINGS, ids=[each.name for each in SETTINGS])
def test_what_is_written_back_is_in_its_bounds_and_the_name_leads_to_it(setting: Setting) -> None:
    assert not is_odd(setting, setting.usual)
    assert setting_of(setting.name.replace("*", "eth0")) == setting


def test_a_name_that_is_not_in_the_list_leads_to_nothing() -> None:
    assert setting_of("net/ipv4/ip_forward") is None
    assert setting_of("x") is None
