"""Random operation sequences: whatever happens, every token comes once, in order, and is the right one; no page is lost or shared wrongly.

The fake worker asserts the rest: no page in two lanes unless it is full and only read, none reused before its last step was acknowledged,
a mask for every constrained lane that draws and for no other.
"""

from dataclasses import dataclass, field

import pytest
from fakes.control_plane.engine_doubles import Bench, RecordingFrontEnd, make_choice
from fakes.control_plane.subset_constraint import SubsetConstraint
from fakes.worker.strict_worker import describe, solo
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from control_plane.core.sampling import SamplingParams
from control_plane.engine.ports import ChoiceSpec, Failure

GROUPS = [
    [(4, 12, None)],
    [(2, 24, None), (4, 12, None)],
    [(4, 12, None), (4, 5, 6)],
    [(4, 14, None), (2, 6, 3), (1, 9, 5)],
    [(4, 40, None)],
]
MAX_LEN = 48
NUMERICS_IDS = ["fake", "other"]


@dataclass
class Submitted:
    """A request, what its choices have to generate, and what became known of them before the present front end had it."""

    prompt: tuple[int, ...]
    max_tokens: int
    end_token_ids: frozenset[int]
    min_tokens: int
    constrained: bool
    num_resumed: list[int]  # tokens per choice
    front_end: RecordingFrontEnd = field(default_factory=RecordingFrontEnd)
    known: list[list[int]] = field(init=False)
    numerics_ids: dict[int, str] = field(default_factory=dict)  # of known tokens
    ended: set[int] = field(default_factory=set)  # choices whose end is known
    has_prompt_logprobs: bool = False

    def __post_init__(self) -> None:
        self.known = [self.expected(choice)[:num] for choice, num in enumerate(self.num_resumed)]
        self.numerics_ids = {choice: "fake" for choice, num in enumerate(self.num_resumed) if num}
        self.ended = {choice for choice, known in enumerate(self.known) if known and known == self.expected(choice)}

    @property
    def open_choices(self) -> list[int]:
        return [choice for choice in range(len(self.known)) if choice not in self.ended]

    @property
    def wants_prompt_logprobs(self) -> bool:
        return len(self.prompt) % 4 == 0

    def constraint(self, choice: int) -> SubsetConstraint | None:
        return SubsetConstraint(choice) if self.constrained else None

    def expected(self, choice: int) -> list[int]:
        constraint = self.constraint(choice)
        return solo(self.prompt, self.max_tokens, self.end_token_ids, self.min_tokens, choice, constraint)

    def learn(self, name: str) -> None:
        """Know what the front end was told, which forgets it."""
        told = self.front_end
        for choice, known in enumerate(self.known):
            known += told.tokens.pop((name, choice), [])
            self.numerics_ids.update((choice, numerics_id) for numerics_id in told.numerics_ids.pop((name, choice), []))
            if told.finished.pop((name, choice), None):
                self.ended.add(choice)
        self.has_prompt_logprobs |= told.prompt_logprobs.pop(name, None) is not None

    def choices(self) -> list[ChoiceSpec]:
        prompt_logprobs = 0 if self.wants_prompt_logprobs and not self.has_prompt_logprobs else None
        return [
            make_choice(
                choice,
                sampling=SamplingParams(seed=choice, prompt_logprobs=prompt_logprobs),
                resumed=tuple(self.known[choice]),
                numerics_id=self.numerics_ids.get(choice),
            )
            for choice in self.open_choices
        ]


REQUESTS = st.builds(
    Submitted,
    prompt=st.builds(lambda family, length: tuple(range(family * 11, family * 11 + length)), st.integers(0, 2), st.integers(1, 30)),
    max_tokens=st.integers(0, 18),
    end_token_ids=st.sampled_from([frozenset(), frozenset(range(0, 90, 6))]),
    min_tokens=st.integers(0, 4),
    constrained=st.booleans(),
    num_resumed=st.one_of(st.just([0]), st.lists(st.integers(0, 5), min_size=1, max_size=4)),
)


class RandomOperations(RuleBasedStateMachine):
    @initialize(
        description=st.fixed_dictionaries(
            {"groups": st.sampled_from(GROUPS), "num_partitions": st.integers(1, 2), "max_lanes": st.sampled_from([1, 2, 6])}
        ),
        options=st.fixed_dictionaries(
            {
                "max_steps_in_flight": st.integers(1, 2),
                "max_step_tokens": st.sampled_from([3, 7, 16, 64]),
                "prefix_caching": st.booleans(),
                "continue_on_numerics_change": st.booleans(),
            }
        ),
    )
    def start(self, description, options) -> None:
        self.description = description
        self.bench = Bench(describe(**description), max_model_len=MAX_LEN, max_losses=10**6, grace_seconds=10**6, **options)
        self.requests: dict[str, Submitted] = {}
        self.cut_short: set[str] = set()  # aborted, or forgotten with their front end
        self.stopped: set[tuple[str, int]] = set()  # choices that their front end finished
        self.front_ends = [self.bench.front_end, RecordingFrontEnd()]
        self.joined = 1

    @property
    def live(self) -> list[str]:
        """Requests that the engine has."""
        return sorted({state.request_id for state in self.bench.engine.state(with_sequences=True).sequences})

    def send(self, name: str, front_end: RecordingFrontEnd, **changes) -> None:
        submitted = self.requests[name]
        submitted.front_end = front_end
        self.bench.submit(
            name,
            submitted.prompt,
            front_end=front_end,
            max_tokens=submitted.max_tokens,
            min_tokens=submitted.min_tokens,
            end_token_ids=submitted.end_token_ids,
            choices=submitted.choices(),
            constraints=[submitted.constraint(choice) for choice in submitted.open_choices],
            **changes,
        )

    @rule(submitted=REQUESTS, priority=st.integers(-1, 1), front_end=st.integers(0, 1))
    def submit(self, submitted, priority, front_end) -> None:
        name = f"r{len(self.requests)}"
        self.requests[name] = submitted
        self.send(name, self.front_ends[front_end], priority=priority)

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0, 1000))
    def take_over(self, pick) -> None:
        """Resume a request at the other front end."""
        self.bench.turn()  # a front end uses an id again when it knows the end of the last request with it
        name = self.live[pick % len(self.live)] if self.live else None
        if name is None:
            return
        former = self.requests[name].front_end
        self.requests[name].learn(name)
        self.send(name, next(other for other in self.front_ends if other is not former), takes_over=True)
        self.bench.turn()
        assert former.failed.pop(name).failure is Failure.CANCELLED

    @rule(pick=st.integers(0, 1), goes_on=st.booleans())
    def close(self, pick, goes_on) -> None:
        """Lose a front end; its successor knows what it was told."""
        lost, self.front_ends[pick] = self.front_ends[pick], RecordingFrontEnd()
        self.bench.engine.close_front_end(lost)
        for name in [name for name, submitted in self.requests.items() if submitted.front_end is lost and name not in self.cut_short]:
            submitted = self.requests[name]
            submitted.learn(name)
            submitted.ended |= {choice for stopped, choice in self.stopped if stopped == name}
            if submitted.open_choices and goes_on:
                self.send(name, self.front_ends[pick], takes_over=True, was_accepted=True)
            elif submitted.open_choices:
                self.cut_short.add(name)

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0, 1000))
    def finish(self, pick) -> None:
        """Find a stop string in a choice."""
        states = self.bench.engine.state(with_sequences=True).sequences
        state = states[pick % len(states)]
        front_end = self.requests[state.request_id].front_end
        self.bench.engine.finish(front_end, front_end.number_of(state.request_id, state.choice))
        self.stopped.add((state.request_id, state.choice))

    @precondition(lambda self: self.requests)
    @rule(pick=st.integers(0, 1000))
    def abort(self, pick) -> None:
        name = f"r{pick % len(self.requests)}"
        if self.bench.engine.abort(name):
            self.cut_short.add(name)

    @precondition(lambda self: self.requests)
    @rule(pick=st.integers(0, 1000), front_end=st.integers(0, 1))
    def hold(self, pick, front_end) -> None:
        self.bench.engine.hold(self.front_ends[front_end], f"r{pick % len(self.requests)}")

    @precondition(lambda self: self.requests)
    @rule(pick=st.integers(0, 1000), front_end=st.integers(0, 1))
    def unhold(self, pick, front_end) -> None:
        self.bench.engine.unhold(self.front_ends[front_end], f"r{pick % len(self.requests)}")

    @rule()
    def turn(self) -> None:
        self.bench.turn()

    @rule(pick=st.integers(0, 1000), turns=st.booleans())
    def step(self, pick, turns) -> None:
        busy = [worker for worker in self.bench.workers if worker.steps]
        if busy:
            busy[pick % len(busy)].run_step()
            self.bench.clock.now += 0.01
        if turns:
            self.bench.turn()

    @rule(num_rounds=st.integers(1, 12))
    def run_on(self, num_rounds) -> None:
        self.bench.run(num_rounds)

    @precondition(lambda self: len(self.bench.workers) < 3)
    @rule(numerics_id=st.sampled_from(NUMERICS_IDS))
    def join(self, numerics_id) -> None:
        self.joined += 1
        self.bench.join(describe(address=f"worker:{self.joined}", numerics_id=numerics_id, **self.description))

    @precondition(lambda self: self.bench.workers)
    @rule(pick=st.integers(0, 1000))
    def lose(self, pick) -> None:
        self.bench.lose(self.bench.workers[pick % len(self.bench.workers)])

    @precondition(lambda self: self.bench.workers)
    @rule(pick=st.integers(0, 1000))
    def disagree(self, pick) -> None:
        self.bench.engine.digest_mismatch(self.bench.workers[pick % len(self.bench.workers)], 1)

    @precondition(lambda self: self.bench.workers)
    @rule(pick=st.integers(0, 1000))
    def fail_step(self, pick) -> None:
        self.bench.workers[pick % len(self.bench.workers)].failing = "out of memory"

    @precondition(lambda self: self.bench.workers)
    @rule(pick=st.integers(0, 1000))
    def drain_worker(self, pick) -> None:
        self.bench.engine.worker_draining(self.bench.workers[pick % len(self.bench.workers)])

    @rule()
    def finish_resets(self) -> None:
        for worker in self.bench.workers:
            if worker.resetting:
                worker.finish_reset()

    @rule()
    def forget_cache(self) -> None:
        self.bench.engine.reset_prefix_cache()

    @invariant()
    def pages_are_conserved(self) -> None:
        if hasattr(self, "bench"):
            self.bench.scheduler.check_integrity()

    @invariant()
    def every_choice_runs_waits_or_is_held(self) -> None:
        if hasattr(self, "bench"):
            state = self.bench.engine.state(with_sequences=True)
            snapshot = state.snapshot
            places = (snapshot.num_running, snapshot.num_waiting_for_capacity, snapshot.num_waiting_for_worker, snapshot.num_held)
            assert sum(places) == len(state.sequences)

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        for name, submitted in self.requests.items():
            self.bench.engine.unhold(submitted.front_end, name)
        self.run_to_the_end()
        assert self.bench.engine.state().snapshot.num_running == 0
        assert not self.bench.scheduler.waiting.is_open, "nothing happens any more, and somebody waits who could run"
        for numerics_id in NUMERICS_IDS:
            self.bench.join(describe(address=f"last:{numerics_id}", numerics_id=numerics_id, **self.description))
        self.run_to_the_end()
        self.bench.assert_at_rest()
        self.bench.engine.reset_prefix_cache()
        assert all(worker.pages.cached == 0 for worker in self.bench.engine.state().snapshot.workers)
        total = self.bench.metrics.total
        assert total("requests_received") == len(total("finished")) + len(total("failed"))
        for name, submitted in self.requests.items():
            self.check_output(name, submitted)

    def run_to_the_end(self) -> None:
        for _ in range(3):
            self.finish_resets()
            self.bench.run()

    def check_output(self, name: str, submitted: Submitted) -> None:
        has_failed = name in submitted.front_end.failed
        submitted.learn(name)
        for choice, known in enumerate(submitted.known):
            expected = submitted.expected(choice)
            if name in self.cut_short or (name, choice) in self.stopped:
                expected = expected[: len(known)]
            assert known == expected
            assert name in self.cut_short or choice in submitted.ended
        assert has_failed <= (name in self.cut_short)
        is_whole = name not in self.cut_short and not any(name == stopped for stopped, _ in self.stopped)
        if is_whole and not any(submitted.num_resumed):
            assert submitted.has_prompt_logprobs == submitted.wants_prompt_logprobs


def run_random_operations(num_examples: int, num_steps: int) -> None:
    run_state_machine_as_test(
        RandomOperations,
        settings=settings(
            max_examples=num_examples,
            stateful_step_count=num_steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
        ),
    )


def test_kvx_05_no_page_is_lost_and_no_token_is_wrong_whatever_happens():
    run_random_operations(80, 50)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kvx_05_twenty_thousand_random_operations():
    run_random_operations(400, 50)
