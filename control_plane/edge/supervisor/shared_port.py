"""The port that the front ends of a control plane share."""

import contextlib
import socket
from collections.abc import Iterator

from pypto_serving.process.address import join_address
from pypto_serving.process.start_up import StartUpError


@contextlib.contextmanager
def shared_port(host: str, port: int) -> Iterator[int]:
    """Keep host:port (0: any free port) for processes of this user that bind it with SO_REUSEPORT, and get no connection; its number.

    Raises StartUpError with one line when somebody else has it.
    """
    with contextlib.ExitStack() as stack:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            keeper = stack.enter_context(socket.socket(family))
            keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # over connections that have just ended
            # Bound for itself alone, so that it fails if anybody has the port, and opened for others afterwards.
            keeper.bind(address)
            keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
            keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        except OSError as error:
            raise StartUpError(f"cannot listen on {join_address(host, port)}: {error.strerror}", exit_code=1) from None
        yield int(keeper.getsockname()[1])
