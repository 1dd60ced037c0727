import contextlib
import socket
from collections.abc import Iterator

import pytest

from control_plane.edge.supervisor.shared_port import shared_port
from pypto_serving.process.start_up import StartUpError


@contextlib.contextmanager
def listening(port: int, shares: bool) -> Iterator[socket.socket]:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shares)
        server.bind(("127.0.0.1", port))
        server.listen()
        server.setblocking(False)
        yield server


def test_those_who_listen_get_every_connection() -> None:
    with (
        shared_port("127.0.0.1", 0) as port,
        listening(port, shares=True) as first,
        listening(port, shares=True) as second,
        contextlib.ExitStack() as connections,
    ):
        for _ in range(20):
            connections.enter_context(socket.create_connection(("127.0.0.1", port)))
        num_accepted = 0
        for server in (first, second):
            with contextlib.suppress(BlockingIOError):
                while True:
                    connections.enter_context(server.accept()[0])
                    num_accepted += 1
        assert num_accepted == 20


def test_nobody_else_gets_it_while_nobody_listens() -> None:
    with shared_port("127.0.0.1", 0) as port:
        with pytest.raises(OSError, match="in use"), listening(port, shares=False):
            pass
        with pytest.raises(StartUpError, match=rf"cannot listen on 127\.0\.0\.1:{port}: "), shared_port("127.0.0.1", port):
            pass
    with listening(port, shares=False) as server:
        assert server.getsockname()[1] == port


@pytest.mark.parametrize("shares", [False, True])
def test_a_port_that_somebody_listens_on_is_refused(shares: bool) -> None:
    with listening(0, shares) as somebody, pytest.raises(StartUpError, match="in use"), shared_port("127.0.0.1", somebody.getsockname()[1]):
        pass
