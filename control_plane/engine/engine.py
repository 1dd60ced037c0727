"""The engine loop: update, schedule, execute, publish."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from control_plane.core.constraint import Constraint
from control_plane.core.replica import Replica, StateMismatch, StepFailed
from control_plane.core.scheduler import Scheduler
from control_plane.core.step import StepResult
from control_plane.engine.live_requests import LiveRequests
from control_plane.engine.options import EngineOptions
from control_plane.engine.ports import ConstraintMaker, Failure, FrontEnd, GenerationRequest, Worker
from control_plane.engine.quotas import Quotas
from control_plane.engine.request import LiveChoice
from control_plane.engine.snapshot import EngineSnapshot, EngineState
from control_plane.engine.stats import EngineMetrics, EngineStats
from control_plane.engine.tracer import Tracers

_log = logging.getLogger(__name__)

#: After a result the next steps wait so long for masks: most take a fifth of it, and a step without its lanes would be worth less.
_MASK_SECONDS = 0.001


class Engine:
    """Drives the scheduler. Implements WorkerEvents.

    Every method is to be called on the engine's event loop; only the property `snapshot` may be read on any thread. Every submitted request
    gets exactly one end, unless its front end is closed: RequestFailed, or SequenceFinished for each choice. What a front end says of a
    request that is not live, or another's, is ignored. It submits an id again when it was told the end of the last request with it.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        metrics: EngineMetrics,
        constraints: ConstraintMaker | None = None,
        options: EngineOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        options = options or EngineOptions()
        self._clock = clock
        self._stats = EngineStats(scheduler, metrics, options.snapshot_seconds, clock())
        self._requests = LiveRequests(scheduler, self._stats, Quotas(self._stats, clock), constraints, options)
        self._replicas: dict[Worker, Replica] = {}
        self._workers: dict[Replica, Worker] = {}
        self._results: deque[tuple[Worker, StepResult]] = deque()
        self._expected_masks: list[Constraint] = []
        self._masks_due = 0.0
        self._stopping = False
        self._healthy = True
        self._turn_failed = False
        self._woken = asyncio.Event()
        self._woken_time = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._due: float | None = None  # when it wakes us up

    # The loop

    async def run(self) -> None:
        """Serve until `stop`."""
        while not self._stopping:
            await self._woken.wait()
            self._woken.clear()
            self._stats.observed.loop_lag_seconds = self._clock() - self._woken_time
            self.turn()
            self._set_timer()
        if self._timer:
            self._timer.cancel()

    def turn(self) -> None:
        """One pass of the loop."""
        now = self._clock()
        self.tracers.pass_begun()
        self._turn_failed = False
        with self._recovering():
            self._apply_results(now)
            self._requests.fail_overdue(now)
            while not self._awaits_masks(now) and self._run_steps(now):
                pass
            if self._stats.is_snapshot_due(now) and not self._requests and not self._scheduler.has_steps_in_flight:
                self._scheduler.audit()
        self._publish(now)

    def stop(self) -> None:
        """End `run` after the pass under way; live requests get no further output."""
        self._stopping = True
        self._wake()

    def _apply_results(self, now: float, lost: Worker | None = None) -> None:
        while self._results:
            worker, result = self._results.popleft()
            replica = self._replicas.get(worker)
            if replica is None or replica.resetting:
                continue
            try:
                updates = self._scheduler.update(replica, result)
            except StateMismatch as error:
                if worker is not lost:
                    failed = isinstance(error, StepFailed)
                    self._reset(worker, str(error), counts=failed, blame="" if failed else str(error))
                continue
            self._stats.count_step(updates, result, now)
            self._requests.apply(updates, now)
            self.tracers.result_applied(replica, result.step_id, len(updates.token_ids))
            constraints = [sequence.constraint for sequence in updates.sequences if sequence.constraint is not None]
            if constraints:
                self._expected_masks += constraints
                self._masks_due = now + _MASK_SECONDS

    def _awaits_masks(self, now: float) -> bool:
        """Whether lanes would miss a step only because their masks take a moment."""
        if now < self._masks_due and not all(constraint.is_ready for constraint in self._expected_masks):
            return True
        self._expected_masks.clear()
        return False

    def _apply_arrived(self, lost: Worker | None = None) -> None:
        """Apply what has arrived before something makes it void."""
        with self._recovering():
            self._apply_results(self._clock(), lost)

    def _run_steps(self, now: float) -> bool:
        """Send at most one step to every worker; returns whether there may be another."""
        steps, failed = self._scheduler.schedule(now), self._scheduler.pop_failed()
        self.tracers.scheduled()
        for replica, step in steps:
            worker = self._workers[replica]
            try:
                worker.submit(step)
            except Exception:
                _log.exception("step %d cannot be sent to %s", step.step_id, replica.description.address)
                self._reset(worker, "step not sent", counts=True)
            else:
                self.tracers.step_sent(replica, step)
        self._requests.fail_sequences(failed)
        return bool(steps or failed)

    def _publish(self, now: float) -> None:
        started = self._scheduler.pop_started()
        self._requests.note_started(started)
        for front_end, outputs in self._requests.pop_outputs():
            self._guard(partial(front_end.publish, outputs))
        self._stats.count_started(started)
        self._stats.publish()
        if not self._turn_failed and not any(replica.resetting for replica in self._scheduler.replicas):
            self._healthy = True
        self._stats.refresh_snapshot(now, self._healthy)
        self.tracers.published()

    def _guard(self, call: Callable[[], None]) -> None:
        """Call a listener, whose failure is not to stop the loop."""
        try:
            call()
        except Exception:
            _log.exception("a listener of the engine failed")
            self._turn_failed, self._healthy = True, False

    @contextmanager
    def _recovering(self) -> Iterator[None]:
        """Go on after a defect of ours that no request can be blamed for: all of them end, and everybody starts from nothing."""
        try:
            yield
        except Exception:
            _log.exception("engine failed; every request ends")
            self._turn_failed, self._healthy = True, False
            self._results.clear()
            self._requests.abandon()
            self._scheduler.abandon()
            for worker in self._replicas:
                self._guard(worker.reset)

    # Requests

    def submit(self, request: GenerationRequest, front_end: FrontEnd) -> None:
        """Accept a request or refuse it. Refusals are published as RequestFailed, like every other outcome."""
        self._stats.observed.requests_received += 1
        with self._recovering():
            self._requests.end_replaced(request)
        with self._recovering():
            self._requests.submit(request, front_end, self._clock())
        self._wake()

    def finish(self, front_end: FrontEnd, number: int) -> None:
        """End a choice with STOP: its front end has found a stop string."""
        with self._recovering():
            self._requests.finish(front_end, number, self._clock())
        self._wake()

    def end(self, front_end: FrontEnd, request_id: str, failure: Failure, message: str) -> None:
        """End a request with RequestFailed, whether it waits, runs or is held."""
        with self._recovering():
            self._requests.end(front_end, request_id, failure, message)
        self._wake()

    def abort(self, request_id: str) -> bool:
        """End a request of whatever front end with CANCELLED; returns whether it was live."""
        was_live = True
        with self._recovering():  # which ends it as well
            was_live = self._requests.abort(request_id)
        self._wake()
        return was_live

    def hold(self, front_end: FrontEnd, request_id: str) -> None:
        """Stop the output of a request: it stays live, and gives its lanes and pages back.

        At most the tokens of results that have arrived already still come. What was in flight is dropped and sampled again later, so that
        no token comes twice and none is missing.
        """
        with self._recovering():
            self._requests.hold(front_end, request_id, self._clock())
        self._wake()

    def unhold(self, front_end: FrontEnd, request_id: str) -> None:
        """Let a held request go on, in its old place in the order."""
        with self._recovering():
            self._requests.unhold(front_end, request_id, self._clock())
        self._wake()

    def drain(self, front_end: FrontEnd) -> None:
        """Refuse new requests of a front end and end those that never ran with UNAVAILABLE; the others run to their end."""
        with self._recovering():
            self._requests.drain(front_end)
        self._wake()

    def close_front_end(self, front_end: FrontEnd) -> None:
        """Forget a front end with all its requests: nothing more is published to it. It may not submit any more."""
        with self._recovering():
            self._requests.close(front_end)
        self._wake()

    def mask_ready(self) -> None:
        """A constraint has its next mask."""
        self._wake()

    # For operators

    @property
    def tracers(self) -> Tracers:
        """Who hears what the engine does."""
        return self._stats.tracers

    @property
    def live_choices(self) -> Sequence[LiveChoice]:
        """The choices that have not ended."""
        return self._requests.live_choices

    @property
    def snapshot(self) -> EngineSnapshot:
        """The latest snapshot; may be read on any thread."""
        return self._stats.snapshot

    def take_snapshot(self) -> EngineSnapshot:
        """Replace the snapshot by one of this moment; returns it."""
        return self._stats.take_snapshot(self._clock(), self._healthy)

    def state(self, with_sequences: bool = False, with_token_ids: bool = False) -> EngineState:
        """Describe this moment, with every live sequence if wanted."""
        numbers = EngineSnapshot.of(self._scheduler, self._healthy, self._stats.retry_after_seconds)
        return EngineState(numbers, self._requests.states(self._clock(), with_token_ids) if with_sequences else ())

    def reset_prefix_cache(self) -> int:
        """Forget every cached page that no sequence uses; returns how many pages that were."""
        return self._scheduler.forget_cached()

    # Worker events

    def worker_joined(self, worker: Worker) -> None:
        is_first = self._scheduler.max_model_len is None
        replica = self._scheduler.add_replica(worker.description, self._clock())
        self._replicas[worker], self._workers[replica] = replica, worker
        self._warn_of_short(replica)
        if is_first:
            with self._recovering():
                self._requests.fail_too_long()
        self.take_snapshot()
        self._wake()

    def _warn_of_short(self, replica: Replica) -> None:
        wanted, held = self._scheduler.options.max_model_len, replica.max_length
        if wanted is not None and held < wanted:
            own = replica.description.max_model_len
            why = f"it takes {own} tokens of a request itself" if own == held else "its KV cache has no pages for more"
            facts = {"worker": replica.description.address, "max_model_len": held}
            _log.warning("--max-model-len %d is more than this worker takes: %s", wanted, why, extra=facts)

    def step_done(self, worker: Worker, result: StepResult) -> None:
        self._results.append((worker, result))
        if replica := self._replicas.get(worker):
            self.tracers.result_arrived(replica, result.step_id)
        self._wake()

    def digest_mismatch(self, worker: Worker, step_id: int) -> None:
        self._apply_arrived()
        with self._recovering():
            if worker in self._replicas:
                self._reset(worker, f"digest mismatch after step {step_id}")
        self._wake()

    def reset_done(self, worker: Worker) -> None:
        if worker in self._replicas:
            self._scheduler.reset_done(self._replicas[worker])
        self._wake()

    def worker_draining(self, worker: Worker) -> None:
        with self._recovering():
            if worker in self._replicas:
                self._scheduler.drain_replica(self._replicas[worker], self._clock())
        self._wake()

    def worker_lost(self, worker: Worker, reason: str) -> None:
        self._apply_arrived(lost=worker)
        replica = self._replicas.pop(worker, None)
        if replica is not None:
            del self._workers[replica]
            with self._recovering():
                self._requests.fail_exhausted(self._scheduler.remove_replica(replica, self._clock()), f"worker lost: {reason}")
            self.take_snapshot()
        self._wake()

    def _reset(self, worker: Worker, reason: str, counts: bool = False, blame: str = "") -> None:
        replica = self._replicas[worker]
        _log.warning("worker %s is reset: %s", replica.description.address, reason)
        if not replica.resetting:
            self._requests.fail_exhausted(self._scheduler.reset_replica(replica, self._clock(), counts), reason)
            worker.reset(blame)

    # Waking

    def _wake(self) -> None:
        if not self._woken.is_set():
            self._woken_time = self._clock()
            self._woken.set()

    def _set_timer(self) -> None:
        """Wake up by itself when a sequence is overdue, the snapshot is old, or a clean pass would show that all is well again."""
        masks_due = self._masks_due if self._expected_masks else None
        dues = [self._scheduler.next_overdue(), masks_due, self._stats.next_snapshot(self._healthy)]
        due = min((due for due in dues if due is not None), default=None)
        if due == self._due and self._timer:
            return  # as after most passes
        if self._timer:
            self._timer.cancel()
        self._due = due
        self._timer = None
        if due is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, due - self._clock()), self._be_due)

    def _be_due(self) -> None:
        self._timer = None
        self._wake()
