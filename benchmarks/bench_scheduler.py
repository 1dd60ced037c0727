"""Cost of a step in the control plane at 256 running decodes, with few and with many waiting sequences.

Run with `python -m benchmarks.bench_scheduler`. "schedule + update" is the scheduler alone, against a budget of 1 ms per step whatever the
length of the queue; "engine pass" adds text, deltas and metrics; "lockstep" is the worst case, in which every sequence fills a page in the
same step; "burst" is a queue of prompts of 8,000 tokens that arrive at once and lack pages, while 16 sequences run: all different, or with
the first half in the prefix cache. Times are those of the thread, so that other work on the machine does not count.
"""

import argparse
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence

from control_plane.core.options import SchedulerOptions
from control_plane.core.sampling import SamplingParams
from control_plane.core.scheduler import Scheduler
from control_plane.core.step import CacheGroup, Step, StepResult, WorkerDescription
from control_plane.engine.engine import Engine
from control_plane.engine.metrics_port import PassObservation
from control_plane.engine.options import EngineOptions
from control_plane.engine.ports import ChoiceSpec, GenerationRequest, Output

NUM_RUNNING = 256
PROMPT_TOKENS = 64
MAX_MODEL_LEN = 8192
PAGE_TOKENS = 16
NUM_BURST_RUNNING, NUM_BURST, BURST_TOKENS, NUM_BURST_STEPS = 16, 64, 8000, 100
BUDGET_US = 1000.0


class FlatText:
    """A text stream that costs nothing."""

    matched_stop: str | None = None

    def push(self, _token_id: int) -> str:
        """See TextStream."""
        return "x"

    def finish(self) -> str:
        """See TextStream."""
        return ""


class Discard:
    """Sink and metrics that keep nothing."""

    def publish(self, outputs: Sequence[Output]) -> None:
        """See OutputSink."""

    def observe(self, observed: PassObservation) -> None:
        """See EngineMetrics."""


class EchoWorker:
    """Answers each step with one token per lane; its budget lets every prompt run in one step."""

    def __init__(self, num_pages: int) -> None:
        group = CacheGroup("all", PAGE_TOKENS, num_pages, page_bytes=1)
        self.description = WorkerDescription(
            address="echo:1",
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
        self._generations: dict[int, int] = {}

    def submit(self, step: Step) -> None:
        """See Worker."""
        self.steps.append(step)

    def reset(self, blame: str = "") -> None:
        """See Worker."""
        raise AssertionError("the engine disagrees with the worker")

    def answer(self) -> StepResult:
        """Execute the oldest step."""
        step = self.steps.popleft()
        self._generations.update((admission.lane, admission.generation) for admission in step.admissions)
        lanes, generations = list(self._generations), list(self._generations.values())
        return StepResult(step.step_id, lanes, generations, [7] * len(lanes))


class Load:
    """An engine at full load with a queue behind it."""

    def __init__(
        self, num_waiting: int, lockstep: bool = False, num_pages: int = NUM_RUNNING * 512, num_running: int = NUM_RUNNING
    ) -> None:
        options = SchedulerOptions(max_sequences=NUM_RUNNING, max_step_tokens=NUM_RUNNING * PROMPT_TOKENS)
        self.num_running = num_running
        self.scheduler = Scheduler(options)
        self.worker = EchoWorker(num_pages)
        self.engine = Engine(self.scheduler, Discard(), Discard(), EngineOptions(max_queued_requests=10**9, max_queued_tokens=10**9))
        self.engine.worker_joined(self.worker)
        for index in range(num_running + num_waiting):
            self.submit(index, range(PROMPT_TOKENS - 1 if lockstep else PROMPT_TOKENS - 1 - index % 16))
        for _ in range(20):
            self.run_engine_pass()
        assert len(self.scheduler.replicas[0].running) == num_running
        assert len(self.scheduler.waiting) == num_waiting

    def submit(self, index: int, rest: Sequence[int]) -> None:
        """Submit a request whose first token is its index."""
        self.engine.submit(_request(index, [index % 50_000, *rest]))

    def run_engine_pass(self) -> float:
        """One result, one pass; returns its microseconds."""
        results = [self.worker.answer()] if self.worker.steps else []
        start = time.thread_time()
        for result in results:
            self.engine.step_done(self.worker, result)
        self.engine.turn()
        return (time.thread_time() - start) * 1e6

    def run_scheduler(self) -> float:
        """One update and one schedule; returns their microseconds."""
        result, replica = self.worker.answer(), self.scheduler.replicas[0]
        start = time.thread_time()
        self.scheduler.update(replica, result)
        steps = self.scheduler.schedule(0.0)
        elapsed = (time.thread_time() - start) * 1e6
        for _, step in steps:
            self.worker.submit(step)
        return elapsed


def _burst(half_cached: bool) -> Load:
    """A load with pages left for the steps to be measured, but not for one of the prompts that arrive."""
    half = list(range(BURST_TOKENS // 2))
    num_pages = (NUM_BURST_RUNNING * 2 * PROMPT_TOKENS + len(half)) // PAGE_TOKENS + 200
    load = Load(0, num_pages=num_pages, num_running=NUM_BURST_RUNNING)
    load.engine.submit(_request(-1, half))
    load.run_engine_pass()
    load.run_engine_pass()
    for index in range(NUM_BURST):
        load.engine.submit(_request(NUM_RUNNING + index, [*(half if half_cached else reversed(half)), index, *half[1:]]))
    return load


def _request(index: int, prompt: Sequence[int]) -> GenerationRequest:
    return GenerationRequest(
        request_id=f"r{index}",
        resume_key=b"",
        prompt_token_ids=prompt,
        choices=(ChoiceSpec(0, SamplingParams(), FlatText()),),
        max_tokens=MAX_MODEL_LEN - max(len(prompt), 192),
        min_tokens=0,
        end_token_ids=frozenset({2}),
        arrival_time=time.monotonic(),
    )


def _report(name: str, load: Load, measure: Callable[[], float], num_steps: int) -> None:
    num_waiting = len(load.scheduler.waiting)
    micros = sorted(measure() for _ in range(num_steps))
    p50, p99 = statistics.median(micros), micros[int(len(micros) * 0.99)]
    verdict = "within" if p50 <= BUDGET_US else "ABOVE"
    numbers = f"p50 {p50:5.0f}   p99 {p99:5.0f}   max {micros[-1]:5.0f} us   {verdict} the budget of {BUDGET_US:.0f} us"
    print(f"{name:28} {load.num_running:4} running {num_waiting:6} waiting   {numbers}")


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
    load = Load(arguments.waiting[-1], lockstep=True)
    _report("schedule + update, lockstep", load, load.run_scheduler, arguments.steps)
    for name, half_cached in (("burst, all different", False), ("burst, half cached", True)):
        load = _burst(half_cached)
        _report(name, load, load.run_engine_pass, NUM_BURST_STEPS)


if __name__ == "__main__":
    main()
