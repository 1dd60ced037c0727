"""What surrounds an engine in tests: time, text, output, metrics, and builders for requests."""

from typing import Any

from fakes.worker.strict_worker import StrictWorker, describe

from control_plane.core.options import SchedulerOptions
from control_plane.core.sampling import SamplingParams
from control_plane.core.scheduler import Scheduler
from control_plane.core.step import TokenLogprob
from control_plane.engine.engine import Engine
from control_plane.engine.options import EngineOptions
from control_plane.engine.ports import (
    ChoiceSpec,
    Failure,
    GenerationRequest,
    RequestAccepted,
    RequestFailed,
    SequenceDelta,
    SequenceFinished,
)
from control_plane.engine.replay import Replay


class FakeClock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class PieceText:
    """Text of ids as `<id>`; holds back what may become a stop string."""

    def __init__(self, stop: tuple[str, ...] = (), broken_at: int | None = None) -> None:
        self.matched_stop: str | None = None
        self._stop = stop
        self._held = ""
        self._broken_at = broken_at

    def push(self, token_id: int) -> str:
        assert self.matched_stop is None
        if token_id == self._broken_at:
            raise RuntimeError("broken text")
        self._held += f"<{token_id}>"
        for stop in self._stop:
            if stop in self._held:
                self.matched_stop = stop
                return self._held[: self._held.index(stop)]
        keep = max((len(stop) - 1 for stop in self._stop), default=0)
        shown = self._held[: len(self._held) - keep]
        self._held = self._held[len(shown) :]
        return shown

    def finish(self) -> str:
        shown, self._held = self._held, ""
        return shown


class RecordingMetrics:
    """Sums up what it is told."""

    def __init__(self) -> None:
        self.passes = []

    def observe(self, observed) -> None:
        self.passes.append(observed)

    def total(self, name: str):
        values = [getattr(observed, name) for observed in self.passes]
        return sum(values) if not isinstance(values[0], list) else [item for value in values for item in value]


class RecordingSink:
    """Keeps the output, and checks that it is in order, exactly once, and that nothing follows an end."""

    def __init__(self) -> None:
        self.accepted: set[str] = set()
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.texts: dict[tuple[str, int], str] = {}
        self.logprobs: dict[tuple[str, int], list[TokenLogprob]] = {}
        self.finished: dict[tuple[str, int], SequenceFinished] = {}
        self.failed: dict[str, RequestFailed] = {}
        self.prompt_logprobs: dict[str, list[TokenLogprob]] = {}
        self.first_index: dict[tuple[str, int], int] = {}
        self.numerics_ids: dict[tuple[str, int], list[str]] = {}

    def publish(self, outputs) -> None:
        for output in outputs:
            if isinstance(output, SequenceDelta):
                self._take_delta(output)
            elif isinstance(output, SequenceFinished):
                assert (output.request_id, output.choice) not in self.finished
                self.finished[output.request_id, output.choice] = output
            elif isinstance(output, RequestFailed):
                self.failed[output.request_id] = output
            elif isinstance(output, RequestAccepted):
                assert output.request_id not in self.accepted or output.request_id in self.failed
                self.accepted.add(output.request_id)
            else:
                assert output.request_id not in self.prompt_logprobs
                self.prompt_logprobs[output.request_id] = list(output.entries)

    def _take_delta(self, delta: SequenceDelta) -> None:
        key = (delta.request_id, delta.choice)
        assert key not in self.finished
        first = self.first_index.setdefault(key, delta.first_index)
        tokens = self.tokens.setdefault(key, [])
        assert delta.first_index == first + len(tokens), "a token is missing or comes twice"
        tokens.extend(delta.token_ids)
        self.numerics_ids.setdefault(key, []).append(delta.numerics_id)
        self.texts[key] = self.texts.get(key, "") + delta.text
        self.logprobs.setdefault(key, []).extend(delta.logprobs)

    def output_of(self, request_id: str, choice: int = 0) -> list[int]:
        return self.tokens.get((request_id, choice), [])


_CHOICE_FIELDS = {
    "sampling": "sampling",
    "text": "text",
    "constraint": "constraint",
    "resumed": "resumed_token_ids",
    "numerics_id": "resumed_numerics_id",
}


def make_choice(index: int = 0, **changes) -> ChoiceSpec:
    """A choice; `stop` goes to its text."""
    stop = changes.pop("stop", ())
    fields = {"sampling": SamplingParams(), "text": PieceText(stop), **changes}
    return ChoiceSpec(index, **{_CHOICE_FIELDS[name]: value for name, value in fields.items()})


def make_request(request_id: str = "r", prompt=(1, 2, 3), **changes) -> GenerationRequest:
    """A request as the engine takes it: what it resumes has been replayed. See `received_request`."""
    replay = Replay(received_request(request_id, prompt, **changes))
    replay.advance(1_000_000)
    return replay.request


def received_request(request_id: str = "r", prompt=(1, 2, 3), **changes) -> GenerationRequest:
    """A request with one choice, to which `stop`, `sampling`, `resumed`, `numerics_id`, `constraint` and `text` go, or with `choices`."""
    choice = {name: changes.pop(name) for name in (*_CHOICE_FIELDS, "stop") if name in changes}
    fields = {
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
        self.sink = RecordingSink()
        self.metrics = metrics or RecordingMetrics()
        self.scheduler = Scheduler(SchedulerOptions(**scheduler_options))
        self.engine = Engine(self.scheduler, self.sink, self.metrics, engine_options, self.clock)
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

    def submit(self, request_id: str = "r", prompt=(1, 2, 3), **changes) -> None:
        self.engine.submit(make_request(request_id, prompt, **changes))

    def abort(self, request_id: str) -> bool:
        return self.engine.end(request_id, Failure.CANCELLED, "request aborted")

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
