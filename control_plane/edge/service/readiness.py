"""What the health service says: whether the process lives, a worker works, and a request would succeed now."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from control_plane.edge.service.admission.context_limit import ContextLimit
from control_plane.engine.snapshot import EngineSnapshot
from pypto_serving.process.health import HealthService

#: Names by which health is asked for beside "" and our services, which both mean that a request would succeed now.
LIVENESS = "liveness"  # the event loops of clients and engine turn
DEVICE = "device"  # a worker is in session: one that has work and makes no progress is thrown out of it

_PULSE_SECONDS = 0.05

#: An engine that is seen like this twice in a row is stuck; once can be the first look of a process that was stopped for a while.
_STUCK_SECONDS = 1.5


class EngineSigns(Protocol):
    """What can be seen of the engine from outside."""

    @property
    def snapshot(self) -> EngineSnapshot:
        """Its latest snapshot."""

    def seconds_since_turn(self) -> float:
        """How long ago its event loop turned."""


class Readiness:
    """Keeps the health service in step with the engine, and the limit that workers set. At first only the process lives."""

    def __init__(self, health: HealthService, services: tuple[str, ...], context_limit: ContextLimit) -> None:
        self._health = health
        self._services = ("", *services)
        self._context_limit = context_limit
        self._is_draining = False
        self._num_late_looks = 0
        self._tell(is_live=True, has_worker=False, is_healthy=True)

    def drain(self) -> None:
        """No request will succeed any more."""
        self._is_draining = True
        for service in self._services:
            self._health.set(service, False)

    def look(self, engine: EngineSigns) -> None:
        """Take the engine's signs in."""
        snapshot = engine.snapshot
        if snapshot.max_model_len:
            self._context_limit.set(snapshot.max_model_len)
        self._num_late_looks = self._num_late_looks + 1 if engine.seconds_since_turn() > _STUCK_SECONDS else 0
        self._tell(is_live=self._num_late_looks < 2, has_worker=bool(snapshot.workers), is_healthy=snapshot.healthy)

    async def follow(self, engine: EngineSigns, observe_loop_lag: Callable[[float], None]) -> None:
        """Keep up until cancelled; reports how late its own timer ran."""
        while True:
            self.look(engine)
            due = time.monotonic() + _PULSE_SECONDS
            await asyncio.sleep(_PULSE_SECONDS)
            observe_loop_lag(max(0.0, time.monotonic() - due))

    def _tell(self, is_live: bool, has_worker: bool, is_healthy: bool) -> None:
        self._health.set(LIVENESS, is_live)
        self._health.set(DEVICE, is_live and has_worker)
        for service in self._services:
            self._health.set(service, is_live and has_worker and is_healthy and not self._is_draining)
