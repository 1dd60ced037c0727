"""Random operation sequences: whatever happens, every token comes once, in order, and is the right one; no page is lost or shared wrongly.

The fake worker asserts the rest: no page in two lanes unless it is full and only read, none reused before its last step was acknowledged.
"""

from fakes.engine_doubles import Bench
from fakes.engine_worker import describe, solo
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from control_plane.core.sampling import SamplingParams
from control_plane.engine.ports import Failure

GROUPS = [
    [(4, 12, None)],
    [(2, 24, None), (4, 12, None)],
    [(4, 12, None), (4, 5, 6)],
    [(4, 14, None), (2, 6, 3), (1, 9, 5)],
    [(4, 40, None)],
]
MAX_LEN = 48


class RandomOperations(RuleBasedStateMachine):
    @initialize(
        groups=st.sampled_from(GROUPS),
        depth=st.integers(1, 2),
        budget=st.sampled_from([3, 7, 16, 64]),
        partitions=st.integers(1, 2),
        caching=st.booleans(),
    )
    def start(self, groups, depth, budget, partitions, caching) -> None:
        self.description = {"groups": groups, "num_partitions": partitions, "max_lanes": 6}
        self.bench = Bench(
            describe(**self.description),
            max_steps_in_flight=depth,
            max_step_tokens=budget,
            prefix_caching=caching,
            max_model_len=MAX_LEN,
            max_losses=10**6,
        )
        self.requests: dict[str, tuple] = {}
        self.aborted: set[str] = set()
        self.joined = 1

    @rule(
        prompt=st.builds(lambda family, length: tuple(range(family * 11, family * 11 + length)), st.integers(0, 2), st.integers(1, 30)),
        max_tokens=st.integers(0, 18),
        min_tokens=st.integers(0, 4),
        priority=st.integers(-1, 1),
        ends=st.booleans(),
    )
    def submit(self, prompt, max_tokens, min_tokens, priority, ends) -> None:
        name = f"r{len(self.requests)}"
        end_token_ids = frozenset(range(0, 90, 6)) if ends else frozenset()
        self.requests[name] = (prompt, max_tokens, end_token_ids, min_tokens)
        sampling = SamplingParams(prompt_logprobs=0 if len(prompt) % 4 == 0 else None)
        changes = {"end_token_ids": end_token_ids, "min_tokens": min_tokens, "priority": priority, "sampling": sampling}
        self.bench.submit(name, prompt, max_tokens=max_tokens, **changes)

    @precondition(lambda self: self.requests)
    @rule(pick=st.integers(0, 1000))
    def abort(self, pick) -> None:
        name = f"r{pick % len(self.requests)}"
        if self.bench.engine.abort(name):
            self.aborted.add(name)

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
    @rule()
    def join(self) -> None:
        self.joined += 1
        self.bench.join(describe(address=f"worker:{self.joined}", **self.description))

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

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.bench.join(describe(address="worker:last", **self.description))
        for _ in range(3):
            self.finish_resets()
            self.bench.run()
        self.bench.assert_at_rest()
        for name, (prompt, max_tokens, end_token_ids, min_tokens) in self.requests.items():
            expected = solo(prompt, max_tokens, end_token_ids, min_tokens)
            found = self.bench.sink.output_of(name)
            if name in self.aborted:
                assert found == expected[: len(found)]
                assert self.bench.sink.failed[name].failure is Failure.CANCELLED
            else:
                assert found == expected
                assert (name in self.bench.sink.prompt_logprobs) == (len(prompt) % 4 == 0)
                assert (name, 0) in self.bench.sink.finished


RandomOperations.TestCase.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
TestRandomOperations = RandomOperations.TestCase
