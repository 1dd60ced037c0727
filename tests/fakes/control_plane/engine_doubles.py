"""What surrounds an engine in tests: time, front ends, constraints, metrics, and builders for requests."""

import itertools
from collections.abc import Sequence
from typing import Any

from fakes.worker.strict_worker import StrictWorker, describe

from control_plane.core.constraint import Constraint
from control_plane.core.options import SchedulerOptions
from control_plane.core.sampling import SamplingParams
from control_plane.core.scheduler import Scheduler
from control_plane.core.step import TokenLogprob
from control_plane.engine.engine import Engine
from control_plane.engine.options import EngineOptions
from control_plane.engine.ports import ChoiceSpec, Failure, GenerationRequest, Outputs, RequestFailed, SequenceFinished

_numbers = itertools.count(1)


class FakeClock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class GivenConstraints:
    """Implements ConstraintMaker: a grammar is the name of constraints that a test has made."""

    def __init__(self) -> None:
        self._given: dict[str, Sequence[Constraint]] = {}

    def take(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Changes of a request, in which a grammar stands for the `constraint` of its choice, or the `constraints` of its choices."""
        constraint, constraints = changes.pop("constraint", None), changes.pop("constraints", ())
        given = [one for one in (constraint, *constraints) if one is not None]
        if not given:
            return changes
        name = f"grammar {len(self._given)}"
        self._given[name] = given
        return {**changes, "grammar": name}

    def begin(self, grammar: str, generated: Sequence[Sequence[int]]) -> Sequence[Constraint]:
        for constraint, token_ids in zip(self._given[grammar], generated, strict=True):
            for token_id in token_ids:
                constraint.push(token_id)
        return self._given[grammar]


class RecordingMetrics:
    """Sums up what it is told."""

    def __init__(self) -> None:
        self.passes = []

    def observe(self, observed) -> None:
        self.passes.append(observed)

    def total(self, name: str):
        values = [getattr(observed, name) for observed in self.passes]
        return sum(values) if not isinstance(values[0], list) else [item for value in values for item in value]


class RecordingFrontEnd:
    """Submits requests, keeps the output, and checks that nothing follows the end of a choice."""

    def __init__(self) -> None:
        self.accepted: set[str] = set()
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.logprobs: dict[tuple[str, int], list[TokenLogprob]] = {}
        self.finished: dict[tuple[str, int], SequenceFinished] = {}
        self.failed: dict[str, RequestFailed] = {}
        self.prompt_logprobs: dict[str, list[TokenLogprob]] = {}
        self.numerics_ids: dict[tuple[str, int], list[str]] = {}  # of each token
        self._live: dict[int, tuple[str, int]] = {}  # choices by number
        self._numerics: dict[int, str] = {}

    def submit(self, engine: Engine, request: GenerationRequest) -> None:
        """Send a request, whose output is kept by its id and the indices of its choices."""
        self._live.update((choice.number, (request.request_id, choice.index)) for choice in request.choices)
        engine.submit(request, self)

    def number_of(self, request_id: str, choice: int = 0) -> int:
        """The number of a live choice."""
        return max(number for number, key in self._live.items() if key == (request_id, choice))

    def forget(self) -> None:
        """Forget what was told, but not which choices are live."""
        live, numerics = self._live, self._numerics
        self.__init__()  # type: ignore[misc]
        self._live, self._numerics = live, numerics

    def publish(self, outputs: Outputs) -> None:
        assert not outputs.is_empty
        self.accepted.update(outputs.accepted)
        for prompt in outputs.prompt_logprobs:
            assert prompt.request_id not in self.prompt_logprobs
            self.prompt_logprobs[prompt.request_id] = list(prompt.entries)
        self._numerics.update(outputs.numerics)
        logprobs = dict(outputs.logprobs)
        assert all(0 <= place < len(outputs.numbers) for place in logprobs)
        for place, (number, token_id) in enumerate(zip(outputs.numbers, outputs.token_ids, strict=True)):
            self._take_token(number, token_id, logprobs.get(place))
        for finished in outputs.finished:
            key = self._live.pop(finished.number)
            assert key not in self.finished
            self.finished[key] = finished
        for failed in outputs.failed:
            self.failed[failed.request_id] = failed

    def _take_token(self, number: int, token_id: int, logprob: TokenLogprob | None) -> None:
        key = self._live[number]
        self.tokens.setdefault(key, []).append(token_id)
        self.numerics_ids.setdefault(key, []).append(self._numerics[number])
        if logprob is not None:
            assert logprob.token_id == token_id
            self.logprobs.setdefault(key, []).append(logprob)

    def output_of(self, request_id: str, choice: int = 0) -> list[int]:
        return self.tokens.get((request_id, choice), [])


_CHOICE_FIELDS = {"sampling": "sampling", "resumed": "resumed_token_ids", "numerics_id": "resumed_numerics_id"}


def make_choice(index: int = 0, **changes: Any) -> ChoiceSpec:
    """A choice with a number of its own."""
    fields = {"sampling": SamplingParams(), **changes}
    return ChoiceSpec(index, next(_numbers), **{_CHOICE_FIELDS[name]: value for name, value in fields.items()})


def make_request(request_id: str = "r", prompt: Sequence[int] = (1, 2, 3), **changes: Any) -> GenerationRequest:
    """A request with one choice, to which `sampling`, `resumed` and `numerics_id` go, or with `choices`."""
    choice = {name: changes.pop(name) for name in _CHOICE_FIELDS if name in changes}
    fields: dict[str, Any] = {
        "request_id": request_id,
        "resume_key": b"key",
        "prompt_token_ids": tuple(prompt),
        "choices": (make_choice(**choice),),
        "max_tokens": 8,
        "min_tokens": 0,
        "end_token_ids": frozenset(),
        "arrival_time": 100.0,
    }
    return GenerationRequest(**{**fields, **changes})


class Bench:
    """An engine with fake workers, driven by hand."""

    def __init__(self, *descriptions, engine_options: EngineOptions | None = None, metrics=None, **scheduler_options) -> None:
        self.clock = FakeClock()
        self.front_end = RecordingFrontEnd()
        self.metrics = metrics or RecordingMetrics()
        self.constraints = GivenConstraints()
        self.scheduler = Scheduler(SchedulerOptions(**scheduler_options))
        self.engine = Engine(self.scheduler, self.metrics, self.constraints, engine_options, self.clock)
        self.workers: list[Any] = []
        for description in descriptions or (describe(),):
            self.join(description)

    @property
    def worker(self) -> StrictWorker:
        return self.workers[0]

    def join(self, description) -> StrictWorker:
        worker = StrictWorker(self.engine, description)
        self.engine.worker_joined(worker)
        self.workers.append(worker)
        return worker

    def lose(self, worker: StrictWorker) -> None:
        self.workers.remove(worker)
        worker.lose()

    def submit(self, request_id: str = "r", prompt=(1, 2, 3), front_end: RecordingFrontEnd | None = None, **changes) -> None:
        (front_end or self.front_end).submit(self.engine, make_request(request_id, prompt, **self.constraints.take(changes)))

    def end(self, request_id: str, failure: Failure, message: str = "ended") -> None:
        self.engine.end(self.front_end, request_id, failure, message)

    def finish(self, request_id: str, choice: int = 0) -> None:
        """A stop string was found."""
        self.engine.finish(self.front_end, self.front_end.number_of(request_id, choice))

    def hold(self, request_id: str) -> None:
        self.engine.hold(self.front_end, request_id)

    def unhold(self, request_id: str) -> None:
        self.engine.unhold(self.front_end, request_id)

    def turn(self) -> None:
        self.engine.turn()
        self.scheduler.check_integrity()
        assert self.engine.state().snapshot.healthy
        for worker in self.workers:
            for error in worker.broken_rules:
                raise error

    def run(self, num_rounds: int = 100_000) -> None:
        """Run until nothing is in flight, or for some rounds of one step per worker."""
        self.turn()
        for _ in range(num_rounds):
            busy = [worker for worker in self.workers if worker.steps]
            if not busy:
                return
            for worker in busy:
                if worker.steps:
                    worker.run_step()
            self.clock.now += 0.01
            self.turn()

    def assert_at_rest(self) -> None:
        """Nothing runs, nothing waits, and every page is free or cached."""
        snapshot = self.engine.state().snapshot
        assert (snapshot.num_running, snapshot.num_waiting_for_capacity, snapshot.num_waiting_for_worker) == (0, 0, 0)
        for worker in snapshot.workers:
            assert worker.steps_in_flight == 0
            assert (worker.pages.referenced, worker.pages.fenced) == (0, 0)
