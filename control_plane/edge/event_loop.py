"""The event loop of a thread that speaks gRPC."""

import fcntl
import termios
from array import array
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from socket import socket
from threading import Lock
from typing import Any

import uvloop

_GRPC_READER = "PollerCompletionQueue"

#: All loops of a process read from one pair: two at once could take each other the byte that is left for the look.
_READING = Lock()


class EventLoop(uvloop.Loop):
    """Takes in as many of gRPC's events in a turn as there are.

    gRPC's thread puts a byte into a socket pair for each event, and waits while that is full; its reader takes out one byte in a turn, and
    all events. So bytes pile up under load, until there is one event a turn, be it of a write or of a new call, and turns follow each
    other without a pause. Here the bytes go with their events.
    """

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]  # looser
        """As in any loop."""
        handler = getattr(callback, "func", callback)
        if type(getattr(handler, "__self__", None)).__name__ == _GRPC_READER:
            callback = partial(_read_all, fd, callback)
        super().add_reader(fd, callback, *args)


def _read_all(pair: socket, callback: Callable[..., Any], *args: Any) -> None:
    """Call back with one byte left of those that are there: it takes that one out, and then all events.

    A byte is put in after its event, so that none is forgotten, as long as a look follows all bytes that are taken out.
    """
    num_bytes = array("i", [0])
    with _READING, suppress(BlockingIOError):  # another loop may have been faster
        fcntl.ioctl(pair, termios.FIONREAD, num_bytes)
        if num_bytes[0] > 1:
            pair.recv(num_bytes[0] - 1)
        callback(*args)


def new_event_loop() -> EventLoop:
    """For `asyncio.Runner`."""
    return EventLoop()
