"""The engine loop."""

import time
from collections.abc import Callable

from control_plane.core.scheduler import Scheduler
from control_plane.core.step import StepResult
from control_plane.engine.metrics_port import EngineGauges, EngineMetrics
from control_plane.engine.options import EngineOptions
from control_plane.engine.ports import GenerationRequest, OutputSink, Worker
from control_plane.engine.state import EngineState


class Engine:
    """Schedule, execute, update, publish. Implements WorkerEvents.

    Every method is to be called on the engine's event loop; only the property `gauges` may be read on any thread.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        sink: OutputSink,
        metrics: EngineMetrics,
        options: EngineOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None: ...

    @property
    def gauges(self) -> EngineGauges:
        """The latest picture; may be read on any thread."""
        raise NotImplementedError

    async def run(self) -> None:
        """Serve until `stop`."""

    def stop(self) -> None:
        """End `run` after the pass under way; live requests get no further output."""

    def submit(self, request: GenerationRequest) -> None:
        """Take a request. Refusals arrive as RequestFailed at the sink, like every other outcome."""

    def abort(self, request_id: str) -> bool:
        """End a live request with RequestFailed CANCELLED; returns whether it was live."""
        raise NotImplementedError

    def drain(self) -> None:
        """Refuse new requests and end those that never ran with UNAVAILABLE; the others run to their end."""

    async def drained(self) -> None:
        """Return when no request is live."""

    def snapshot(self, with_sequences: bool = False) -> EngineState:
        """Take a consistent picture."""
        raise NotImplementedError

    def reset_prefix_cache(self) -> int:
        """Forget every cached page that no sequence uses; returns how many pages that were."""
        raise NotImplementedError

    def worker_joined(self, worker: Worker) -> None:
        """See WorkerEvents."""

    def step_done(self, worker: Worker, result: StepResult) -> None:
        """See WorkerEvents."""

    def digest_mismatch(self, worker: Worker, step_id: int) -> None:
        """See WorkerEvents."""

    def reset_done(self, worker: Worker) -> None:
        """See WorkerEvents."""

    def worker_draining(self, worker: Worker) -> None:
        """See WorkerEvents."""

    def worker_lost(self, worker: Worker, reason: str) -> None:
        """See WorkerEvents."""
