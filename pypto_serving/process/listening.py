"""Binding a gRPC server to its port."""

import socket
from pathlib import Path

import grpc
import grpc.aio

from pypto_serving.process.address import join_address
from pypto_serving.process.start_up import StartUpError

#: Without it two processes could share a port, and requests would reach either of them.
EXCLUSIVE_PORT = ("grpc.so_reuseport", 0)
SHARED_PORT = ("grpc.so_reuseport", 1)


def bind(server: grpc.aio.Server, host: str, port: int, credentials: grpc.ServerCredentials | None = None) -> int:
    """Bind `server` to host:port (0: any free port) and return the port; raises StartUpError with one line when that fails.

    gRPC reports a failed bind as an exception or as port 0, depending on the cause.
    """
    address = join_address(host, port)
    try:
        bound = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    except RuntimeError:
        bound = 0
    if not bound:
        causes = "the port is taken or the address is not of this machine"
        if credentials:
            causes += ", or gRPC cannot use such a certificate"
        raise StartUpError(f"cannot listen on {address}: {_why_no_address(host) or causes}", exit_code=1)
    return bound


def _why_no_address(host: str) -> str | None:
    """What the system says of a host that it does not know; None of one that it does."""
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        return error.strerror
    return None


def bind_socket(server: grpc.aio.Server, path: Path) -> None:
    """Bind `server` to a socket in the file system, in place of one that a process left there; raises StartUpError with one line.

    gRPC takes a socket away from whoever listens on it, and removes that of its successor when it stops: so nobody may.
    """
    if _is_listened_on(path):
        raise StartUpError(f"cannot listen on {path}: another process does", exit_code=1)
    try:
        bound = server.add_insecure_port(f"unix:{path}")
    except RuntimeError:
        bound = 0
    if not bound:
        raise StartUpError(f"cannot listen on {path}: its directory is missing or closed to us, or its path is too long", exit_code=1)


def _is_listened_on(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:  # more wait there already than it has room for
            return True
        except OSError:
            return False
    return True


def check_port(host: str, port: int) -> None:
    """Raise StartUpError when host:port cannot be listened on now: better known before a model is loaded than after."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise StartUpError(f"cannot listen on {join_address(host, port)}: {error.strerror}", exit_code=1) from None
