from __future__ import annotations

import pytest

from yoked.core.torchnoise import is_noise, without_noise

HEAD = "[W1126 08:02:59.334758623 socket.cpp:207] [c10d] "
NO_IPV6 = "[localhost]:29500 (errno: 97 - Address family not supported by protocol)."
UNKNOWN = "(alpha, 29500) cannot be retrieved (gai error: -2 - Name or service not known)."
HARMLESS = (
    f"{HEAD}The hostname of the client socket cannot be retrieved. err=-3",
    f"[rank3]:{HEAD}The hostname of the client socket cannot be retrieved. err=-3\n",
    "[W socket.cpp:464] [c10d] The hostname of the client socket cannot be retrieved. err=-2",
    f"{HEAD}The client socket cannot be initialized to connect to {NO_IPV6}",
    f"{HEAD}The server socket cannot be initialized on {NO_IPV6}",
    f"{HEAD}The IPv6 network addresses of {UNKNOWN}",
)
TELLING = (
    f"{HEAD}The client socket has failed to connect to [a]:1 (errno: 111 - Connection refused).",
    f"{HEAD}The IPv4 network addresses of {UNKNOWN}",
    f"{HEAD}The server socket cannot be initialized on [::]:1 (errno: 24 - Too many open files).",
    f"loading {HARMLESS[0]}",
    f"{HARMLESS[0]} Traceback",
    "step 1/60  loss 5.1",
)


@pytest.mark.parametrize("line", HARMLESS)
def test_warnings_of_what_torch_does_otherwise_then_are_noise(line: str) -> None:
    assert is_noise(line)


@pytest.mark.parametrize("line", TELLING)
def test_what_may_be_the_cause_of_a_failure_is_none(line: str) -> None:
    assert not is_noise(line)


def test_other_lines_of_a_text_stay_to_the_byte() -> None:
    text = f"a\r\n{HARMLESS[0]}\n{TELLING[0]}\n\nno end"

    assert without_noise(text) == f"a\r\n{TELLING[0]}\n\nno end"
