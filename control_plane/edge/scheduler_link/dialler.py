"""Finds a scheduler that takes this front end."""

import asyncio
import logging
import time
from collections.abc import Callable

from control_plane.edge.scheduler_link.options import SchedulerLinkOptions
from control_plane.edge.scheduler_link.stream import SessionLost, SessionStream, open_stream
from pypto_serving.process.trouble_log import TroubleLog
from pypto_serving.scheduler.v1 import scheduler_pb2 as pb

_log = logging.getLogger(__name__)

#: A session that was shorter was no success: the next dial waits.
_PROVEN_SECONDS = 1.0


class Dialler:
    """Dials all addresses in turn, the last one first, until one welcomes us. Belongs to the link's task."""

    def __init__(self, options: SchedulerLinkOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._next_address = 0
        self._outage_since = clock()
        self._welcomed_at = 0.0
        self._num_unproven = 0  # sessions in a row that were no success
        self._troubles = {address: TroubleLog(_log, clock) for address in options.addresses}
        self.trouble = "not dialled yet"

    async def dial(self) -> tuple[SessionStream, pb.Welcome]:
        """Wait for the next session."""
        addresses = self._options.addresses
        await asyncio.sleep(self._options.pause_seconds(self._num_unproven / 10) if self._num_unproven > 1 else 0.0)
        while True:
            for _ in addresses:
                address = addresses[self._next_address % len(addresses)]
                try:
                    stream, welcome = await open_stream(address, self._options)
                except SessionLost as error:
                    self._note(address, error)
                    self._next_address += 1
                else:
                    for log in self._troubles.values():
                        log.reached()
                    self._welcomed_at = self._clock()
                    return stream, welcome
            await asyncio.sleep(self._options.pause_seconds(self._clock() - self._outage_since))

    def lose(self, address: str, error: Exception) -> None:
        """The session has ended."""
        now = self._clock()
        self._num_unproven = 0 if now - self._welcomed_at > _PROVEN_SECONDS else self._num_unproven + 1
        self._outage_since = now
        if not (isinstance(error, SessionLost) and error.may_be_back):
            self._next_address += 1
        self._note(address, error)

    def _note(self, address: str, error: Exception) -> None:
        self.trouble = f"{address}: {error}"
        is_missing = isinstance(error, SessionLost) and error.is_missing
        self._troubles[address].note(f"no session with the scheduler: {error}", is_missing, address=address)
