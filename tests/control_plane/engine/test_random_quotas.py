"""Random requests, ends, losses and resumes, in no time: every token is charged once, and every place is given back."""

from collections import Counter
from dataclasses import dataclass, field

from fakes.control_plane.engine_doubles import Bench, RecordingFrontEnd, make_choice
from fakes.worker.strict_worker import describe, solo
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from control_plane.core.sampling import SamplingParams
from control_plane.engine.ports import Quota, Tenant

LIMITS = {"acme": 3, "other": None}  # requests at once, by name


@dataclass
class Sent:
    """A request, and what was ever told of it."""

    tenant: str
    prompt: tuple[int, ...]
    max_tokens: int
    num_told: list[int]  # tokens of each choice, by whatever attempt
    ran: bool = False
    num_resumed: list[int] = field(default_factory=list)  # by the present attempt


class RandomQuotas(RuleBasedStateMachine):
    @initialize(max_lanes=st.sampled_from([1, 2, 6]))
    def start(self, max_lanes) -> None:
        self.bench = Bench(describe(max_lanes=max_lanes), max_losses=10**6, grace_seconds=10**6)
        self.sent: dict[str, Sent] = {}
        self.bench.submit("early", tenant=Tenant("acme"), max_tokens=0)
        self.bench.run()
        self.bench.clock.now += 130.0  # no resume is believed any more

    def live(self, tenant: str | None = None) -> list[str]:
        """Requests that the engine has."""
        names = {state.request_id for state in self.bench.engine.state(with_sequences=True).sequences}
        return sorted(name for name in names if tenant in (None, self.sent[name].tenant))

    def send(self, name: str, takes_over: bool) -> None:
        sent, choices = self.sent[name], []
        for index, count in enumerate(sent.num_resumed):
            known = solo(sent.prompt, sent.max_tokens, seed=index)[:count]
            choices.append(make_choice(index, sampling=SamplingParams(seed=index), resumed=known, numerics_id="fake"))
        tenant, now = Tenant(sent.tenant, Quota(10**9, LIMITS[sent.tenant])), self.bench.clock.now
        fields = {"choices": choices, "max_tokens": sent.max_tokens, "takes_over": takes_over, "arrival_time": now}
        self.bench.submit(name, sent.prompt, tenant=tenant, **fields)

    def learn(self) -> None:
        """Take note of what was told, and of what has begun to run."""
        for state in self.bench.engine.state(with_sequences=True).sequences:
            self.sent[state.request_id].ran |= state.worker != ""
        for (name, index), tokens in self.bench.front_end.tokens.items():
            sent = self.sent.get(name)
            if sent:
                sent.num_told[index] = max(sent.num_told[index], sent.num_resumed[index] + len(tokens))

    def new_front_end(self) -> None:
        self.bench.engine.close_front_end(self.bench.front_end)
        self.bench.front_end = RecordingFrontEnd()

    @rule(tenant=st.sampled_from(sorted(LIMITS)), length=st.integers(1, 20), num_choices=st.integers(1, 3), max_tokens=st.integers(0, 9))
    def submit(self, tenant, length, num_choices, max_tokens) -> None:
        name, others = f"r{len(self.sent)}", len(self.live(tenant))
        self.sent[name] = Sent(tenant, tuple(range(length)), max_tokens, [0] * num_choices, num_resumed=[0] * num_choices)
        self.send(name, takes_over=False)
        limit = LIMITS[tenant]
        assert (name in self.live()) == (limit is None or others < limit)

    @precondition(lambda self: self.sent)
    @rule(pick=st.integers(0, 1000), forgotten=st.integers(0, 9))
    def lose_and_resume(self, pick, forgotten) -> None:
        """Lose the front end; its client goes on with a request, of which it has received a part."""
        self.learn()
        self.new_front_end()
        name = f"r{pick % len(self.sent)}"
        sent = self.sent[name]
        if sent.ran:
            sent.num_resumed = [max(0, min(told, sent.max_tokens - 1) - forgotten) for told in sent.num_told]
            self.send(name, takes_over=True)
            assert name in self.live()

    @precondition(lambda self: self.live())
    @rule(pick=st.integers(0, 1000))
    def abort(self, pick) -> None:
        self.learn()
        live = self.live()
        self.bench.engine.abort(live[pick % len(live)])

    @rule(num_rounds=st.integers(1, 12))
    def run_on(self, num_rounds) -> None:
        self.bench.turn()
        for _ in range(num_rounds):
            self.learn()
            if self.bench.worker.steps:
                self.bench.worker.run_step()
            self.bench.turn()

    @invariant()
    def every_token_is_charged_once_and_places_are_those_of_live_requests(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.bench.turn()
        self.learn()
        live, due = self.live(), Counter[str]()
        for name, sent in self.sent.items():
            due[sent.tenant] += sum(sent.num_told) + len(sent.prompt) * (sent.ran or name in live)
        for name, account in self.bench.engine._requests._quotas._accounts.items():
            assert account.bucket.used(self.bench.clock.now) == due[name]
            assert account.num_live == len(self.live(name))


def test_no_token_is_charged_twice_and_no_place_is_lost_whatever_happens():
    run_state_machine_as_test(
        RandomQuotas,
        settings=settings(
            max_examples=30, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
        ),
    )
