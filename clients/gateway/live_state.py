"""The state of the service for whoever looks: read once for all of them."""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from clients.connection import Credentials
from clients.service_state.observer import ServiceObserver
from clients.service_state.reader import ServiceReader
from clients.service_state.state import ServiceState

#: A reading younger than that serves whoever comes. Viewers come once a second.
_FRESH_SECONDS = 0.9
#: How often it is read for nobody, so that the first viewer sees the last minute.
_IDLE_SECONDS = 10.0
#: For how long a key that a control plane has taken is not asked about again.
_KEY_SECONDS = 30.0
_MAX_KEYS = 1024


class LiveState:
    """At most one reading a second, however many look at it. All its methods run on one event loop."""

    def __init__(
        self,
        admin_targets: Sequence[str],
        metrics_urls: Sequence[str],
        credentials: Credentials,
        ask_with_key: Callable[[str | None], Awaitable[object]],
    ) -> None:
        """`credentials` are for admin services; `ask_with_key` raises ServingError where no control plane takes a call with the key."""
        self.shows_workers, self.shows_activity = bool(admin_targets), bool(metrics_urls)
        self._reader = ServiceReader(admin_targets, metrics_urls, credentials)
        self._observer = ServiceObserver()
        self._ask_with_key = ask_with_key
        self._taken_keys: OrderedDict[bytes, float] = OrderedDict()  # digests, and when they were taken, oldest first
        self._reading: asyncio.Task[ServiceState] | None = None
        self._read_at = float("-inf")
        self._idling: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to remember, if there is something to read."""
        if self.shows_workers or self.shows_activity:
            self._idling = asyncio.create_task(self._keep_reading())

    async def close(self) -> None:
        """Close all connections."""
        tasks = [task for task in (self._idling, self._reading) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._reader.close()

    async def check_key(self, api_key: str | None) -> None:
        """Return if a control plane takes calls with the key, or took one lately; raises ServingError."""
        digest, now = hashlib.sha256((api_key or "").encode()).digest(), time.monotonic()
        if now - self._taken_keys.get(digest, float("-inf")) < _KEY_SECONDS:
            return
        await self._ask_with_key(api_key)
        self._taken_keys[digest] = now
        self._taken_keys.move_to_end(digest)
        if len(self._taken_keys) > _MAX_KEYS:
            self._taken_keys.popitem(last=False)

    async def current(self) -> ServiceState:
        """The state, about a second old at most."""
        now = time.monotonic()
        if self._reading is None or (self._reading.done() and now - self._read_at > _FRESH_SECONDS):
            self._read_at = now
            self._reading = asyncio.create_task(self._read())
        return await asyncio.shield(self._reading)

    async def _read(self) -> ServiceState:
        return self._observer.observe(await self._reader.read())

    async def _keep_reading(self) -> None:
        while True:
            with suppress(Exception):  # whoever looks is told
                await self.current()
            await asyncio.sleep(_IDLE_SECONDS)
