"""SIGTERM, SIGINT and SIGHUP while the event loop runs."""

import asyncio
import logging
import signal

_log = logging.getLogger(__name__)


class StopRequests:
    """SIGTERM and SIGINT: the first one asks to drain, the second one to stop at once. SIGHUP leaves a line in the log."""

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.at_once = asyncio.Event()

    def listen(self) -> None:
        """Take the signals over from Python."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.request_stop)
        ignored = "SIGHUP ignored: keys and certificates are read anew by themselves; to stop, send SIGTERM"
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _log.info, ignored)

    def request_stop_at_once(self) -> None:
        """Ask to stop without a drain."""
        self.drain.set()
        self.at_once.set()

    def request_stop(self) -> None:
        """Ask to drain; the second time, to stop at once."""
        (self.at_once if self.drain.is_set() else self.drain).set()
