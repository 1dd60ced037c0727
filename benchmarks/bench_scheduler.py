"""Cost of a step in the control plane at 256 running decodes, with few and with many waiting sequences.

Run with `python -m benchmarks.bench_scheduler`. "schedule + update" is the scheduler alone, against a budget of 1 ms per step whatever the
length of the queue; "engine pass" adds output and metrics, "with frames" what the link to the worker reads, checks and writes; "lockstep"
is the worst case, in which every sequence fills a page in the same step; "burst" is a queue of prompts of 8,000 tokens that arrive at once
and lack pages, while 16 sequences run: all different, or with the first half in the prefix cache, on one worker or on ten; "100 workers"
have 256 sequences each and somebody waiting; "idle" is a pass with nothing to do and a cache of a million pages, which is when its books
are audited. Times are those of the thread, so that other work on the machine does not count.
"""

import argparse
import gc
import itertools
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from control_plane.core.options import SchedulerOptions
from control_plane.core.sampling import SamplingParams
from control_plane.core.scheduler import Scheduler
from control_plane.core.step import CacheGroup, Step, StepResult, WorkerDescription
from control_plane.edge.metrics.counts import LinkCounts
from control_plane.edge.worker_link.session import LinkContext, WorkerSession
from control_plane.edge.worker_link.watchdog import FaultBudget, Watchdog
from control_plane.engine.engine import Engine
from control_plane.engine.options import EngineOptions
from control_plane.engine.ports import ChoiceSpec, Failure, GenerationRequest, Outputs
from control_plane.engine.stats import PassObservation
from pypto_serving.wire.columns import U32, generation_of, pack_generations, pack_ids
from pypto_serving.wire.digest import StateDigest
from pypto_serving.worker.v1 import worker_pb2

NUM_RUNNING = 256
NUM_WORKERS = 100
PROMPT_TOKENS = 64
MAX_MODEL_LEN = 8192
PAGE_TOKENS = 16
NUM_PAGES, IDLE_PAGES = NUM_RUNNING * 512, 1 << 20
NUM_BURST_RUNNING, NUM_BURST, BURST_TOKENS, NUM_BURST_STEPS = 16, 64, 8000, 100
BUDGET_US = 1000.0

_numbers = itertools.count()


class Discard:
    """A front end and metrics that keep nothing."""

    def publish(self, outputs: Outputs) -> None:
        """Drop it."""

    def observe(self, observed: PassObservation) -> None:
        """Drop it."""


class EchoWorker:
    """Answers each step with one token per lane; its budget lets every prompt run in one step."""

    def __init__(self, num_pages: int, address: str = "echo:1") -> None:
        group = CacheGroup(PAGE_TOKENS, num_pages)
        self.description = WorkerDescription(
            address=address,
            incarnation="echo",
            epoch=1,
            numerics_id="echo",
            vocab_size=50_000,
            max_model_len=MAX_MODEL_LEN,
            max_lanes=NUM_RUNNING,
            max_step_tokens=NUM_RUNNING * PROMPT_TOKENS,
            max_steps_in_flight=2,
            lease_seconds=10.0,
            num_partitions=1,
            cache_groups=(group,),
        )
        self.steps: deque[Step] = deque()
        self._lanes: set[int] = set()

    def submit(self, step: Step) -> None:
        self.steps.append(step)

    def reset(self, blame: str = "") -> None:
        raise AssertionError("the engine disagrees with the worker")

    def join(self, engine: Engine) -> None:
        """Begin to work for an engine."""
        self._engine = engine
        engine.worker_joined(self)

    @property
    def is_busy(self) -> bool:
        """Whether a step is to be executed."""
        return bool(self.steps)

    def answer(self) -> StepResult:
        """Execute the oldest step."""
        step = self.steps.popleft()
        self._lanes.update(admission.lane for admission in step.admissions)
        return StepResult(step.step_id, dict.fromkeys(self._lanes, 7))

    def run_step(self) -> Callable[[], None]:
        """Execute the oldest step; returns how the engine gets its result."""
        result = self.answer()
        return lambda: self._engine.step_done(self, result)


class FramedWorker(EchoWorker):
    """The same at the other end of a link, without the wire. No lane is released. Implements FrameSink."""

    def __init__(self, num_pages: int) -> None:
        super().__init__(num_pages)
        self.frames: deque[bytes] = deque()
        self._digest = StateDigest(NUM_RUNNING, 1)
        self._generations: dict[int, int] = {}

    def join(self, engine: Engine) -> None:
        context = LinkContext(engine, LinkCounts(), time.monotonic)
        self._session = WorkerSession(self.description, Watchdog(10.0, 3.0, 3.0), FaultBudget("echo"), context)
        self._session.open(self)

    def send(self, frame: worker_pb2.ExecuteRequest) -> None:
        self.frames.append(frame.SerializeToString())

    @property
    def is_busy(self) -> bool:
        return bool(self.frames)

    def run_step(self) -> Callable[[], None]:
        step = worker_pb2.ExecuteRequest.FromString(self.frames.popleft()).step
        for admission in step.admissions:
            self._generations[admission.lane] = generation_of(admission)
            tables = [np.frombuffer(table.page_ids, U32) for table in admission.page_tables]
            self._digest.admit(admission.lane, generation_of(admission), np.frombuffer(admission.token_ids, U32), tables)
        self._digest.grow(*(np.frombuffer(column, U32) for column in (step.grown_lanes, step.grown_groups, step.grown_pages)))
        lanes = np.array(list(self._generations), U32)
        token_ids = np.full_like(lanes, 7)
        self._digest.append(lanes, token_ids)
        result = worker_pb2.StepResult(
            step_id=step.step_id,
            lanes=pack_ids(lanes),
            generations=pack_generations(np.array(list(self._generations.values())))[0],
            token_ids=pack_ids(token_ids),
            digest=self._digest.value,
        )
        frame = worker_pb2.ExecuteResponse(epoch=1, result=result).SerializeToString()
        return lambda: self._session.receive(worker_pb2.ExecuteResponse.FromString(frame))


class Load:
    """An engine at full load with a queue behind it."""

    def __init__(
        self,
        num_waiting: int,
        lockstep: bool = False,
        num_running: int = NUM_RUNNING,
        workers: Sequence[EchoWorker] = (),
    ) -> None:
        self.workers = list(workers) or _workers(NUM_PAGES)
        self.num_running = num_running * len(self.workers)
        self.scheduler = Scheduler(SchedulerOptions(max_sequences=NUM_RUNNING, max_step_tokens=NUM_RUNNING * PROMPT_TOKENS))
        self.front_end = Discard()
        options = EngineOptions(max_queued_requests=10**9, max_queued_tokens=10**9)
        self.engine = Engine(self.scheduler, self.front_end, options=options)
        for number, worker in enumerate(self.workers[:]):  # each is filled before the next one comes
            worker.join(self.engine)
            first, is_last = number * num_running, number + 1 == len(self.workers)
            for index in range(first, first + num_running + num_waiting * is_last):
                self.submit(index, range(PROMPT_TOKENS - 1 if lockstep else PROMPT_TOKENS - 1 - index % 16))
            for _ in range(20):
                self.run_engine_pass()
        assert sum(len(replica.running) for replica in self.scheduler.replicas) == self.num_running
        assert len(self.scheduler.waiting) == num_waiting

    def submit(self, index: int, rest: Sequence[int]) -> None:
        """Submit a request whose first token is its index."""
        self.send(_request(index, [index % 50_000, *rest]))

    def send(self, request: GenerationRequest) -> None:
        """Submit a request."""
        self.engine.submit(request, self.front_end)

    def run_engine_pass(self) -> float:
        """One result of the next worker, one pass; returns its microseconds."""
        self.workers.append(worker := self.workers.pop(0))
        tell = worker.run_step() if worker.is_busy else None
        start = time.thread_time()
        if tell:
            tell()
        self.engine.turn()
        return (time.thread_time() - start) * 1e6

    def run_scheduler(self) -> float:
        """One update and one schedule; returns their microseconds."""
        worker, replica = self.workers[0], self.scheduler.replicas[0]
        result = worker.answer()
        start = time.thread_time()
        self.scheduler.update(replica, result)
        steps = self.scheduler.schedule(0.0)
        elapsed = (time.thread_time() - start) * 1e6
        for _, step in steps:
            worker.submit(step)
        return elapsed


def _workers(num_pages: int, count: int = 1) -> list[EchoWorker]:
    return [EchoWorker(num_pages, f"echo:{index}") for index in range(count)]


def _burst(half_cached: bool, num_workers: int = 1) -> Load:
    """A load with pages left for the steps to be measured, but not for one of the prompts that arrive."""
    half = list(range(BURST_TOKENS // 2))
    num_pages = (NUM_BURST_RUNNING * 2 * PROMPT_TOKENS + len(half)) // PAGE_TOKENS + 200
    load = Load(0, num_running=NUM_BURST_RUNNING, workers=_workers(num_pages, num_workers))
    for index in range(num_workers):
        load.send(_request(-1 - index, half))
    for _ in range(2 * num_workers):
        load.run_engine_pass()
    for index in range(NUM_BURST):
        load.send(_request(NUM_RUNNING + index, [*(half if half_cached else reversed(half)), index, *half[1:]]))
    return load


def _request(index: int, prompt: Sequence[int]) -> GenerationRequest:
    return GenerationRequest(
        request_id=f"r{index}",
        resume_key=b"",
        prompt_token_ids=prompt,
        choices=(ChoiceSpec(0, next(_numbers), SamplingParams()),),
        max_tokens=MAX_MODEL_LEN - max(len(prompt), 192),
        min_tokens=0,
        end_token_ids=frozenset({2}),
        arrival_time=time.monotonic(),
    )


def _busy_fleet() -> Load:
    """Many workers with a lane left each, and prompts that lack pages everywhere."""
    load = Load(0, workers=_workers(NUM_RUNNING * 2 * PROMPT_TOKENS // PAGE_TOKENS, NUM_WORKERS))
    for number in range(NUM_WORKERS):
        load.engine.end(load.front_end, f"r{number * NUM_RUNNING}", Failure.CANCELLED, "lane freed")
    load.num_running -= NUM_WORKERS
    for index in range(NUM_BURST):
        load.send(_request(-1 - index, range(index, BURST_TOKENS)))
    return load


def _idle() -> Load:
    """A load without requests, whose snapshot is due in every pass."""
    load = Load(0, num_running=0, workers=_workers(IDLE_PAGES))
    load.engine._stats._snapshot_seconds = 0.0
    return load


def _report(name: str, load: Load, measure: Callable[[], float], num_steps: int) -> None:
    gc.collect()  # what the load before this one left behind is not its cost
    num_waiting = len(load.scheduler.waiting)
    micros = sorted(measure() for _ in range(num_steps))
    p50, p99 = statistics.median(micros), micros[int(len(micros) * 0.99)]
    verdict = "within" if p50 <= BUDGET_US else "ABOVE"
    numbers = f"p50 {p50:5.0f}   p99 {p99:5.0f}   max {micros[-1]:5.0f} us   {verdict} the budget of {BUDGET_US:.0f} us"
    print(f"{name:31} {load.num_running:4} running {num_waiting:6} waiting   {numbers}")


def main() -> None:
    """Print the median, the 99th percentile and the most that a step costs, for each length of the queue."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, nargs="+", default=[100, 10_000], help="lengths of the queue")
    parser.add_argument("--steps", type=int, default=1000, help="steps measured for each")
    arguments = parser.parse_args()
    for num_waiting in arguments.waiting:
        load = Load(num_waiting)
        _report("schedule + update", load, load.run_scheduler, arguments.steps)
        _report("engine pass", load, load.run_engine_pass, arguments.steps)
    load = Load(0, workers=[FramedWorker(NUM_PAGES)])
    _report("engine pass with frames", load, load.run_engine_pass, arguments.steps)
    load = Load(arguments.waiting[-1], lockstep=True)
    _report("schedule + update, lockstep", load, load.run_scheduler, arguments.steps)
    for name, half_cached, num_workers in (
        ("burst, all different", False, 1),
        ("burst, half cached", True, 1),
        ("burst, half cached, 10 workers", True, 10),
    ):
        load = _burst(half_cached, num_workers)
        _report(name, load, load.run_engine_pass, NUM_BURST_STEPS)
    load = _busy_fleet()
    _report("100 workers", load, load.run_engine_pass, arguments.steps)
    load = _idle()
    _report("idle, a million pages", load, load.run_engine_pass, NUM_BURST_STEPS)


if __name__ == "__main__":
    main()
