from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.errors import LabError
from yoked.lab import tools


def test_each_tool_gets_its_lines_in_one_go(tools_with: Callable[..., Any]) -> None:
    where = tools_with()

    tools.run_ip(where, ["link set dev lo up", "address"])
    tools.run_tc(where, ["qdisc"])
    tools.run_nft(where, ["list ruleset"])

    assert where.calls == [
        (["ip", "-batch", "-"], "link set dev lo up\naddress\n"),
        (["tc", "-batch", "-"], "qdisc\n"),
        (["nft", "-f", "-"], "list ruleset\n"),
    ]


def test_no_lines_start_no_tool(tools_with: Callable[..., Any]) -> None:
    where = tools_with()

    tools.run_nft(where, [])

    assert where.calls == []


@pytest.mark.parametrize(
    ("status", "stderr", "message"),
    [
        (
            1,
            'Cannot find device "nope"\nCommand failed -:2\n',
            '`ip link set dev nope up` was refused: Cannot find device "nope"',
        ),
        (
            1,
            "RTNETLINK answers: File exists\nCommand failed -:1\n",
            "`ip link set dev lo up` was refused: File exists",
        ),
        (
            255,
            'Command "foo" is unknown, try "ip link help".\n',
            '`ip` failed with status 255: Command "foo" is unknown, try "ip link help".',
        ),
        (137, "", "`ip` failed with status 137: it gave no reason"),
    ],
)
def test_the_line_that_ip_refused_is_named(
    tools_with: Callable[..., Any], status: int, stderr: str, message: str
) -> None:
    where = tools_with(status, stderr)

    with pytest.raises(LabError) as caught:
        tools.run_ip(where, ["link set dev lo up", "link set dev nope up"])

    assert caught.value.what == message


def test_the_line_that_nft_refused_is_named(
    tools_with: Callable[..., Any], snapshot: SnapshotAssertion
) -> None:
    said = "/dev/stdin:2:1-9: Error: Could not process rule: No such file or directory\nadd rule\n"

    with pytest.raises(LabError) as caught:
        tools.run_nft(
            tools_with(1, said), ["add table bridge yoked", "add rule bridge yoked x drop"]
        )

    assert caught.value.what == snapshot


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("Error: Specified qdisc kind is unknown.\nCommand failed -:1", "modprobe"),
        ("RTNETLINK answers: Operation not permitted\nCommand failed -:1", "as root"),
    ],
)
def test_a_refusal_with_a_known_cause_comes_with_its_remedy(
    tools_with: Callable[..., Any], said: str, fix: str
) -> None:
    with pytest.raises(LabError) as caught:
        tools.run_tc(tools_with(2, said), ["qdisc replace dev eth0 root netem delay 1ms"])

    assert fix in caught.value.fix[0]
