"""Who listens on a port, without this agent itself."""

from __future__ import annotations

import os
import socket

from yoked.agent.listeners import leave_out, listener_owners


def test_the_agents_own_listeners_take_no_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        before = listener_owners(port)
        leave_out(server)
        after = listener_owners(port)

    assert [each["pid"] for each in before] == [os.getpid()]
    assert after == []
