"""What the health service says: whether the process lives, a worker works, and a request would succeed now."""

import asyncio
import logging
from collections.abc import Callable

from control_plane.edge.service.engine_port import EngineView
from pypto_serving.process.health import HealthService

_log = logging.getLogger(__name__)

#: Names by which health is asked for beside "" and our services, which both mean that a request would succeed now.
LIVENESS = "liveness"  # the event loops of clients and engine turn
DEVICE = "device"  # a worker is in session: one that has work and makes no progress is thrown out of it

_UPDATE_SECONDS = 0.05
_DRAINING = "draining"
_NO_WORKER = "no worker is in session"

#: An engine that is this late at two updates in a row is stuck; at one, the whole process may have been stopped for a while.
_STUCK_SECONDS = 1.5


class Readiness:
    """Keeps the health service in step with the engine, and the limit that workers set. At first only the process lives."""

    def __init__(self, health: HealthService, services: tuple[str, ...], set_limit: Callable[[int], None]) -> None:
        self._health = health
        self._services = ("", *services)
        self._set_limit = set_limit
        self._is_draining = False
        self._num_late_updates = 0
        self._was_ready = False
        self.trouble = _NO_WORKER  # why a request would not succeed now; may be read on any thread
        self._publish(is_live=True, has_worker=False, is_healthy=True, absence=_NO_WORKER)

    def drain(self) -> None:
        """No request will succeed any more."""
        self._is_draining = True
        self.trouble = _DRAINING
        for service in self._services:
            self._health.set(service, False)

    def update(self, engine: EngineView) -> None:
        """Set every state, and the context limit, by what the engine shows now."""
        snapshot = engine.snapshot
        if snapshot.max_model_len:
            self._set_limit(snapshot.max_model_len)
        self._num_late_updates = self._num_late_updates + 1 if engine.seconds_since_turn() > _STUCK_SECONDS else 0
        self._publish(self._num_late_updates < 2, bool(snapshot.workers), snapshot.healthy, snapshot.trouble or _NO_WORKER)

    async def keep_updated(self, engine: EngineView) -> None:
        """Update every 50 ms until cancelled."""
        while True:
            self.update(engine)
            await asyncio.sleep(_UPDATE_SECONDS)

    def _publish(self, is_live: bool, has_worker: bool, is_healthy: bool, absence: str) -> None:
        self._note(self._trouble(is_live, has_worker, is_healthy, absence))
        self._health.set(LIVENESS, is_live)
        self._health.set(DEVICE, is_live and has_worker)
        for service in self._services:
            self._health.set(service, not self.trouble)

    def _note(self, trouble: str) -> None:
        if trouble == self.trouble:
            return
        self.trouble = trouble
        if not trouble:
            self._was_ready = True
            _log.info("ready")
        elif self._was_ready:  # who is not there yet at the start is no trouble, and whoever waits for them says so in time
            _log.warning("not ready: %s", trouble)

    def _trouble(self, is_live: bool, has_worker: bool, is_healthy: bool, absence: str) -> str:
        if self._is_draining:
            return _DRAINING
        if not is_live:
            return f"the engine's event loop has not turned for {_STUCK_SECONDS:g} s"
        if not has_worker:
            return absence
        return "" if is_healthy else "the engine has had no clean pass since an unexpected error, which the log has"
