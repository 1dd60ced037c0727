"""An engine whose workers are real links, on the event loop of the test."""

import asyncio
import time
from types import TracebackType
from typing import Any

from fakes.control_plane.engine_doubles import GivenConstraints, RecordingFrontEnd, RecordingMetrics, make_request
from fakes.worker.recorded_events import RecordedLinkMetrics
from harness.waiting import until

from control_plane.core.options import SchedulerOptions
from control_plane.core.scheduler import Scheduler
from control_plane.edge.worker_link.options import Backoff, LinkOptions
from control_plane.edge.worker_link.registry import WorkerRegistry
from control_plane.edge.worker_link.session import LinkContext
from control_plane.engine.engine import Engine

#: Short pauses and little patience, so that tests take milliseconds.
_HASTE: dict[str, Any] = {
    "redial": Backoff(0.005, 0.02),
    "refused": Backoff(0.01, 0.02),
    "handshake_seconds": 0.5,
    "min_hang_seconds": 0.15,
    "max_hang_seconds": 0.15,
}


class LinkedEngine:
    """Engine, scheduler and links of one control plane, without clients; to be used in `async with`.

    `links` are fields of LinkOptions, the other keywords those of SchedulerOptions.
    """

    def __init__(self, *addresses: str, links: dict[str, Any] | None = None, **scheduler_options: Any) -> None:
        options = {"control_plane_id": "ours", "model_fingerprint": "model", **_HASTE, **(links or {})}
        self.front_end = RecordingFrontEnd()
        self.constraints = GivenConstraints()
        self.link_metrics = RecordedLinkMetrics()
        self.scheduler = Scheduler(SchedulerOptions(**{"max_losses": 1000, **scheduler_options}))
        self.engine = Engine(self.scheduler, RecordingMetrics(), self.constraints)
        self.registry = WorkerRegistry(LinkOptions(**options), LinkContext(self.engine, self.link_metrics, time.monotonic))
        self._addresses = addresses

    async def __aenter__(self) -> "LinkedEngine":
        self._running = asyncio.create_task(self.engine.run())
        self.registry.start(self._addresses)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.engine.stop()
        await self._running
        await self.registry.stop()

    @property
    def num_workers(self) -> int:
        """Workers that the engine may use."""
        return len(self.scheduler.replicas)

    def submit(self, request_id: str, prompt: list[int], **changes: Any) -> None:
        """Send a request; `changes` as for make_request, and constraints."""
        request = make_request(request_id, prompt, arrival_time=time.monotonic(), **self.constraints.take(changes))
        self.front_end.submit(self.engine, request)

    def has_ended(self, request_id: str) -> bool:
        """Whether a request has its end."""
        return (request_id, 0) in self.front_end.finished or request_id in self.front_end.failed

    async def tokens(self, request_id: str) -> list[int]:
        """Wait for a request that succeeds; returns what it generated."""
        await until(lambda: self.has_ended(request_id))
        assert request_id not in self.front_end.failed, self.front_end.failed[request_id]
        return self.front_end.output_of(request_id)

    async def assert_comes_to_rest(self) -> None:
        """Wait until nothing is in flight; then every page has to be free or cached."""
        await until(lambda: not any(replica.num_steps_in_flight or replica.resetting for replica in self.scheduler.replicas))
        self.scheduler.check_integrity()
        snapshot = self.engine.state().snapshot
        assert snapshot.healthy
        assert (snapshot.num_running, snapshot.num_waiting_for_capacity, snapshot.num_waiting_for_worker) == (0, 0, 0)
        assert all((worker.pages.referenced, worker.pages.fenced) == (0, 0) for worker in snapshot.workers)
