"""Cost of a step in the control plane at 256 running decodes, with few and with many waiting sequences.

Run with `python -m benchmarks.bench_scheduler`. "schedule + update" is the scheduler alone, against a budget of 1 ms per step whatever the
length of the queue; "engine pass" adds text, deltas and metrics; "lockstep" is the worst case, in which every sequence fills a page in the
same step. Times are those of the thread, so that other work on the machine does not count.
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

    def __init__(self) -> None:
        group = CacheGroup("all", page_tokens=16, num_pages=NUM_RUNNING * 512, page_bytes=1)
        self.description = WorkerDescription(
            address="echo:1",
            incarnation="echo",
            epoch=1,
            numerics_id="echo",
            vocab_size=50_000,
            max_model_len=8192,
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

    def reset(self) -> None:
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

    def __init__(self, num_waiting: int, lockstep: bool = False) -> None:
        options = SchedulerOptions(max_sequences=NUM_RUNNING, max_step_tokens=NUM_RUNNING * PROMPT_TOKENS)
        self.scheduler = Scheduler(options)
        self.worker = EchoWorker()
        self.engine = Engine(self.scheduler, Discard(), Discard(), EngineOptions(max_queued_requests=10**9, max_queued_tokens=10**9))
        self.engine.worker_joined(self.worker)
        for index in range(NUM_RUNNING + num_waiting):
            self.engine.submit(_request(index, PROMPT_TOKENS if lockstep else PROMPT_TOKENS - index % 16))
        for _ in range(20):
            self.run_engine_pass()
        assert len(self.scheduler.replicas[0].running) == NUM_RUNNING
        assert len(self.scheduler.waiting) == num_waiting

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


def _request(index: int, num_tokens: int) -> GenerationRequest:
    prompt = [index % 50_000, *range(num_tokens - 1)]
    return GenerationRequest(
        request_id=f"r{index}",
        resume_key=b"",
        prompt_token_ids=prompt,
        choices=(ChoiceSpec(0, SamplingParams(), FlatText()),),
        max_tokens=8000,
        min_tokens=0,
        end_token_ids=frozenset({2}),
        arrival_time=time.monotonic(),
    )


def _report(name: str, num_waiting: int, measure: Callable[[], float], num_steps: int) -> None:
    micros = sorted(measure() for _ in range(num_steps))
    p50, p99 = statistics.median(micros), micros[int(len(micros) * 0.99)]
    verdict = "within" if p50 <= BUDGET_US else "ABOVE"
    numbers = f"p50 {p50:6.0f} us   p99 {p99:6.0f} us   {verdict} the budget of {BUDGET_US:.0f} us"
    print(f"{name:28} {NUM_RUNNING:4} running {num_waiting:6} waiting   {numbers}")


def main() -> None:
    """Print p50 and p99 per step for each length of the queue."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, nargs="+", default=[100, 10_000], help="lengths of the queue")
    parser.add_argument("--steps", type=int, default=1000, help="steps measured for each")
    arguments = parser.parse_args()
    for num_waiting in arguments.waiting:
        load = Load(num_waiting)
        _report("schedule + update", num_waiting, load.run_scheduler, arguments.steps)
        _report("engine pass", num_waiting, load.run_engine_pass, arguments.steps)
    load = Load(arguments.waiting[-1], lockstep=True)
    _report("schedule + update, lockstep", arguments.waiting[-1], load.run_scheduler, arguments.steps)


if __name__ == "__main__":
    main()
