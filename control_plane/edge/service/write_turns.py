"""Which streams may write in which turn of the event loop: writes are many, and a new call needs some turns to be taken up."""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from control_plane.edge.service.request_stream import RequestStream

#: Streams that are let go in one turn: so it takes a fraction of a millisecond. A call that is new needs about five turns.
_WRITES_PER_TURN = 8

#: By so much the loop may run a timer too early.
_TIMER_SECONDS = 0.001


class Window(Protocol):
    """For how long streams gather output."""

    @property
    def window_seconds(self) -> float:
        """From one write of a stream to its next, at least; 0 while there is time for all of them."""


class WriteTurns:
    """Lets streams go that have something to write: each once per window, and a few in each turn. Belongs to the clients' event loop.

    add --its window is over--> ready --its turn--> let go
     '--not yet--> gathering ----^
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, window: Window) -> None:
        self._loop = loop
        self._window = window
        self._ready: deque[RequestStream] = deque()
        self._gathering: deque[RequestStream] = deque()  # by the end of their windows, which change slowly
        self._is_turning = False
        self._timer: asyncio.TimerHandle | None = None

    def add(self, streams: Iterable[RequestStream]) -> None:
        """Output has come for streams; what ends is not gathered."""
        now = self._loop.time()
        for stream in streams:
            if stream.is_ending or (stream.next_write_time <= now and not stream.is_in_turn):
                self._ready.append(stream)
            elif not stream.is_in_turn:
                self._gathering.append(stream)
            stream.is_in_turn = True
        self._plan()

    def _plan(self) -> None:
        if self._ready and not self._is_turning:
            self._is_turning = True
            self._loop.call_soon(self._turn)
        if self._gathering and self._timer is None:
            self._timer = self._loop.call_at(self._gathering[0].next_write_time, self._end_windows)

    def _end_windows(self) -> None:
        self._timer = None
        now = self._loop.time() + _TIMER_SECONDS
        while self._gathering and self._gathering[0].next_write_time <= now:
            self._ready.append(self._gathering.popleft())
        self._plan()

    def _turn(self) -> None:
        self._is_turning = False
        next_write_time = self._loop.time() + self._window.window_seconds
        for _ in range(min(_WRITES_PER_TURN, len(self._ready))):
            stream = self._ready.popleft()
            stream.is_in_turn = False
            stream.next_write_time = next_write_time
            stream.let_go()
        self._plan()
