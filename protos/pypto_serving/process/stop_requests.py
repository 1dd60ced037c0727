"""Signals that end the process."""

import asyncio
import signal


class StopRequests:
    """SIGTERM and SIGINT: the first one asks to drain, the second one to stop at once."""

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.at_once = asyncio.Event()

    def listen(self) -> None:
        """Take the signals over from Python."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.take)

    def take(self) -> None:
        """Take one request to stop."""
        (self.at_once if self.drain.is_set() else self.drain).set()
