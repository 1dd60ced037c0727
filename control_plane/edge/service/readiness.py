"""Whether a request would succeed now, told to the health service and to whoever waits for the first worker."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from grpc_health.v1 import health_pb2

from control_plane.edge.service.context_limit import ContextLimit
from control_plane.engine.metrics_port import EngineGauges

_PULSE_SECONDS = 0.05


class HealthStates(Protocol):
    """The health service, as we write to it."""

    async def set(self, service: str, status: health_pb2.HealthCheckResponse.ServingStatus.ValueType) -> None:
        """Set the state of a service."""


class Readiness:
    """Follows the engine's gauges and keeps the health of `services` (and of "") in step: NOT_SERVING until a worker is in session."""

    def __init__(self, states: HealthStates, services: tuple[str, ...], context_limit: ContextLimit) -> None:
        self._states = states
        self._services = ("", *services)
        self._context_limit = context_limit
        self._is_ready: bool | None = None

    async def set(self, is_ready: bool) -> None:
        """Report a state."""
        if is_ready == self._is_ready:
            return
        self._is_ready = is_ready
        status = health_pb2.HealthCheckResponse.SERVING if is_ready else health_pb2.HealthCheckResponse.NOT_SERVING
        for service in self._services:
            await self._states.set(service, status)

    async def follow(self, gauges: Callable[[], EngineGauges], observe_loop_lag: Callable[[float], None]) -> None:
        """Keep up until cancelled; reports how late its own timer ran."""
        while True:
            picture = gauges()
            if picture.max_model_len:
                self._context_limit.set(picture.max_model_len)
            await self.set(bool(picture.workers) and picture.healthy)
            due = time.monotonic() + _PULSE_SECONDS
            await asyncio.sleep(_PULSE_SECONDS)
            observe_loop_lag(max(0.0, time.monotonic() - due))
