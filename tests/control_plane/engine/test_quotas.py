"""Who is refused over a quota, and what is charged to whom."""

import pytest
from fakes.control_plane.engine_doubles import Bench, RecordingFrontEnd, make_choice
from fakes.worker.strict_worker import describe, solo

from control_plane.core.sampling import SamplingParams
from control_plane.engine import quotas
from control_plane.engine.options import EngineOptions
from control_plane.engine.ports import Failure, Quota, Tenant
from control_plane.engine.stats import UNNAMED

PROMPT = (1, 2, 3)


def acme(tokens_per_minute: int | None = None, max_requests: int | None = None) -> Tenant:
    return Tenant("acme", Quota(tokens_per_minute, max_requests))


def used(bench: Bench, name: str = "acme") -> float:
    account = bench.engine._requests._quotas._accounts[name]
    return account.bucket.used(bench.clock.now)


def submit(bench: Bench, name: str, tenant: Tenant | None, **fields) -> None:
    bench.submit(name, fields.pop("prompt", PROMPT), tenant=tenant, arrival_time=bench.clock.now, **fields)


def refusals(bench: Bench, front_end: RecordingFrontEnd | None = None) -> dict[str, str]:
    """Messages of what was refused over a quota."""
    failed = (front_end or bench.front_end).failed.values()
    return {one.request_id: one.message for one in failed if one.failure is Failure.OVER_QUOTA}


def usage(bench: Bench, field: str, name: str = "acme") -> int:
    """What the metrics were told so far."""
    return sum(getattr(observed.usage[name], field) for observed in bench.metrics.passes if name in observed.usage)


def test_prompt_and_generated_tokens_of_all_choices_are_used():
    bench = Bench()
    choices = [make_choice(index, sampling=SamplingParams(seed=index)) for index in range(3)]
    submit(bench, "r", acme(6000), choices=choices, max_tokens=5)
    assert used(bench) == 3
    start = bench.clock.now
    bench.run()
    assert used(bench) == pytest.approx(3 + 3 * 5 - 100 * (bench.clock.now - start))


def test_a_request_that_the_bucket_cannot_hold_is_refused_until_it_can():
    bench = Bench()
    submit(bench, "first", acme(60), prompt=range(50))
    submit(bench, "second", acme(60), prompt=range(25))
    bench.turn()
    failed = bench.front_end.failed["second"]
    assert failed.retry_after_seconds == 15
    assert failed.message == ("key 'acme' is over its quota of tokens a minute: 50 are used, the prompt has 25, limit 60; retry in 15.0 s")
    bench.clock.now += 15
    submit(bench, "third", acme(60), prompt=range(25))
    bench.run()
    assert ("third", 0) in bench.front_end.finished
    assert next(observed.usage["acme"].refusals for observed in bench.metrics.passes if observed.usage) == {"tokens": 1}


def test_what_runs_is_not_cut_and_its_debt_is_paid_by_who_comes_later():
    bench = Bench()
    submit(bench, "long", acme(60), max_tokens=30, prompt=range(50))
    bench.run()
    assert len(bench.front_end.output_of("long")) == 30
    assert used(bench) > 60
    submit(bench, "next", acme(60))
    bench.turn()
    assert bench.front_end.failed["next"].retry_after_seconds == pytest.approx(used(bench) + 3 - 60)


def test_a_prompt_that_no_minute_holds_is_the_requests_own_fault():
    bench = Bench()
    submit(bench, "r", acme(40), prompt=range(41))
    bench.turn()
    failed = bench.front_end.failed["r"]
    assert failed.failure is Failure.INVALID_ARGUMENT
    assert failed.message == "the prompt has 41 tokens, and key 'acme' may use 40 a minute: send a shorter one"


def test_of_many_that_come_at_once_as_many_are_taken_in_as_may_run():
    bench, others = Bench(), [RecordingFrontEnd() for _ in range(3)]
    for index in range(40):
        submit(bench, f"r{index}", acme(max_requests=7), front_end=others[index % 3])
    bench.turn()
    refused = {name: text for front_end in others for name, text in refusals(bench, front_end).items()}
    assert len(refused) == 33
    assert set(refused.values()) == {"key 'acme' is over its quota of requests at once: 7 run or wait, limit 7; retry in 1.0 s"}
    bench.run()
    submit(bench, "later", acme(max_requests=7))
    bench.turn()
    assert "later" not in bench.front_end.failed


def test_tenants_and_those_without_a_key_are_apart():
    bench = Bench()
    for index in range(3):
        submit(bench, f"a{index}", acme(max_requests=1))
        submit(bench, f"b{index}", Tenant("other", Quota(None, 2)))
        submit(bench, f"c{index}", None)
    bench.turn()
    assert set(refusals(bench)) == {"a1", "a2", "b2"}


def test_the_limits_of_the_newest_request_count_and_keep_the_counts():
    bench = Bench()
    submit(bench, "a", acme(100, 5), prompt=range(50))
    submit(bench, "b", acme(40, 5))
    bench.turn()
    assert "50 are used, the prompt has 3, limit 40" in refusals(bench)["b"]
    bench.submit("late", PROMPT, tenant=acme(100, 5), arrival_time=bench.clock.now - 1)
    bench.turn()
    assert "limit 40" in refusals(bench)["late"]
    submit(bench, "c", acme(None, 1))
    bench.turn()
    assert "1 run or wait, limit 1" in refusals(bench)["c"]


def test_what_never_ran_is_not_charged():
    bench = Bench(describe(max_lanes=1))
    submit(bench, "runs", acme(1000), max_tokens=20)
    bench.turn()
    submit(bench, "waits", acme(1000), prompt=range(40))
    assert used(bench) == 43
    bench.engine.abort("waits")
    assert used(bench) == 3
    bench.engine.abort("runs")
    assert used(bench) == 3


def test_a_refusal_for_another_reason_is_not_charged():
    bench = Bench(describe(max_lanes=1), engine_options=EngineOptions(max_queued_requests=1))
    for index in range(4):
        submit(bench, f"r{index}", acme(1000, 4), max_tokens=20)
        bench.turn()
    assert {failed.failure for failed in bench.front_end.failed.values()} == {Failure.QUEUE_FULL}
    assert (used(bench), usage(bench, "requests")) == (6, 2)


# Resumes


def run_at_once(bench: Bench, num_rounds: int = 1000) -> None:
    """Run without any time passing: what was used stays as it is."""
    bench.turn()
    for _ in range(num_rounds):
        if bench.worker.steps:
            bench.worker.run_step()
        bench.turn()


@pytest.fixture
def bench() -> Bench:
    """An engine that has served for a while: of resumes no more is believed than what is known."""
    bench = Bench()
    submit(bench, "early", acme())
    bench.run()
    bench.clock.now += 130
    return bench


def resume(bench: Bench, num_known: int, tenant: Tenant, prompt=PROMPT, name: str = "r", **fields) -> None:
    resumed = {"resumed": solo(prompt, num_known), "numerics_id": "fake"} if num_known else {}
    submit(bench, name, tenant, prompt=prompt, takes_over=True, **resumed, **fields)


def lose_front_end(bench: Bench) -> None:
    bench.engine.close_front_end(bench.front_end)
    bench.front_end = RecordingFrontEnd()


@pytest.mark.parametrize(("num_rounds", "num_known"), [(5, 3), (5, 0), (1000, 6), (1000, 0)])
def test_a_resume_of_what_broke_is_charged_no_token_twice(bench, num_rounds, num_known):
    submit(bench, "r", acme(100))
    run_at_once(bench, num_rounds)
    assert used(bench) == 3 + len(bench.front_end.output_of("r"))
    lose_front_end(bench)
    resume(bench, num_known, acme(100))
    run_at_once(bench)
    assert bench.front_end.output_of("r") == solo(PROMPT, 8)[num_known:]
    assert used(bench) == 3 + 8


def test_a_resume_is_taken_in_though_newcomers_have_taken_its_place_and_all_tokens(bench):
    submit(bench, "r", acme(100, 1))
    run_at_once(bench, 5)
    lose_front_end(bench)
    submit(bench, "newcomer", acme(100, 1), prompt=range(40), max_tokens=90)
    run_at_once(bench, 62)
    assert used(bench) > 100
    resume(bench, 2, acme(100, 1))
    resume(bench, 2, acme(100, 1), name="other")
    bench.turn()
    assert bench.front_end.accepted == {"newcomer", "r"}
    assert "2 run or wait, limit 1" in refusals(bench)["other"]


def test_a_live_request_that_is_taken_over_keeps_its_place_and_charges(bench):
    submit(bench, "r", acme(100, 1))
    run_at_once(bench, 5)
    resume(bench, 1, acme(100, 1))
    run_at_once(bench)
    assert bench.front_end.output_of("r")[-7:] == solo(PROMPT, 8)[1:]
    assert used(bench) == 3 + 8


@pytest.mark.parametrize(
    "changed", [{"resume_key": b"other"}, {"prompt": (3, 2, 1)}, {"min_tokens": 1}, {"end_token_ids": frozenset([90])}, {"name": "unheard"}]
)
def test_what_only_claims_to_be_a_resume_is_like_a_new_request(bench, changed):
    submit(bench, "r", acme(60))
    run_at_once(bench, 5)
    lose_front_end(bench)
    submit(bench, "newcomer", acme(60), prompt=range(57 - 3), max_tokens=1)
    resume(bench, 0, acme(60), **changed)
    bench.turn()
    assert "is over its quota of tokens" in next(iter(refusals(bench).values()))


def claimed(bench: Bench, token_ids: list[int], name: str = "r", limit: int = 100, **fields) -> None:
    """A resume whose client says that it has received these tokens."""
    submit(bench, name, acme(limit), takes_over=True, resumed=tuple(token_ids), numerics_id="fake", **fields)


@pytest.mark.parametrize("num_told", [0, 3, 8])
@pytest.mark.parametrize("lie", [[91], [91, 92, 93], [91] * 7])
def test_tokens_that_were_never_generated_are_charged_with_what_follows_them(bench, num_told, lie):
    """They have to be computed like a prompt, and what follows them is news."""
    submit(bench, "r", acme(100))
    run_at_once(bench)
    told = solo(PROMPT, 8)[:num_told]
    assert bench.front_end.output_of("r")[:num_told] == told and used(bench) == 3 + 8
    lose_front_end(bench)
    claimed(bench, told + lie, max_tokens=20)
    run_at_once(bench)
    num_claimed = num_told + len(lie)
    assert used(bench) == 3 + 8 + 3 + num_claimed + (20 - num_claimed)


def test_a_lie_does_not_make_a_request_go_on_that_would_be_refused(bench):
    submit(bench, "r", acme(60))
    run_at_once(bench)
    lose_front_end(bench)
    submit(bench, "newcomer", acme(60), prompt=range(60 - 11), max_tokens=1)
    claimed(bench, [*solo(PROMPT, 8)[:5], 91], limit=60)
    bench.turn()
    assert "is over its quota of tokens" in refusals(bench)["r"]


def test_a_prompt_is_not_smuggled_in_as_what_was_generated(bench):
    claimed(bench, [1] * 98, name="unheard", max_tokens=99)
    bench.turn()
    assert "the prompt, with what is resumed, has 101 tokens" in bench.front_end.failed["unheard"].message
    claimed(bench, [1] * 50, name="unheard", max_tokens=51)
    run_at_once(bench)
    assert used(bench) == 3 + 51


def test_a_choice_that_is_told_as_much_as_was_generated_of_it_is_believed_alone(bench):
    seeds = [SamplingParams(seed=index) for index in range(2)]
    submit(bench, "r", acme(100), choices=[make_choice(index, sampling=seed) for index, seed in enumerate(seeds)])
    run_at_once(bench, 5)
    known = [bench.front_end.output_of("r", index) for index in range(2)]
    lose_front_end(bench)
    tokens = (known[0], [*known[1][:-1], 91])
    choices = [make_choice(index, sampling=seeds[index], resumed=tuple(tokens[index]), numerics_id="fake") for index in range(2)]
    before = used(bench)
    submit(bench, "r", acme(100), takes_over=True, choices=choices)
    assert used(bench) == before + 3 + sum(map(len, tokens)), "one lie, and nothing of it is taken for a resume"


def test_of_what_has_ended_only_so_much_is_remembered(bench, monkeypatch):
    monkeypatch.setattr(quotas, "_MAX_KNOWN_TOKENS", 20)
    for name in ("a", "b", "c"):
        submit(bench, name, acme(1000))
        run_at_once(bench)
    lose_front_end(bench)
    for name in ("c", "b", "a"):
        before = used(bench)
        resume(bench, 8 - 1, acme(1000), name=name)
        run_at_once(bench)
        assert used(bench) - before == (0 if name != "a" else 3 + 8)


def test_other_tokens_than_before_are_charged(bench):
    submit(bench, "r", acme(100), sampling=SamplingParams(seed=0))
    run_at_once(bench)
    lose_front_end(bench)
    resume(bench, 0, acme(100), sampling=SamplingParams(seed=1))
    run_at_once(bench)
    assert used(bench) == 3 + 8 + 8


@pytest.mark.parametrize(
    ("changed", "refused"),
    [({}, False), ({"max_tokens": 7}, False), ({"max_tokens": 9}, True), ({"sampling": SamplingParams(seed=1)}, True)],
)
def test_a_resume_that_may_bring_more_than_before_needs_tokens_that_are_left(bench, changed, refused):
    submit(bench, "r", acme(60))
    run_at_once(bench)
    lose_front_end(bench)
    submit(bench, "newcomer", acme(60), prompt=range(60 - 11), max_tokens=1)
    resume(bench, 5, acme(60), **changed)
    run_at_once(bench)
    assert ("r" in refusals(bench)) == refused


def test_a_request_is_not_made_longer_and_longer_for_nothing(bench):
    submit(bench, "r", acme(60), max_tokens=20)
    for length in range(40, 100, 20):
        run_at_once(bench)
        lose_front_end(bench)
        resume(bench, length - 20, acme(60), max_tokens=length)
    bench.turn()
    assert "is over its quota of tokens" in refusals(bench)["r"]
    assert used(bench) <= 60 + 20


def test_after_a_restart_resumes_are_believed_and_charged_with_all_that_is_computed():
    bench = Bench()
    submit(bench, "newcomer", acme(60, 1), prompt=range(40), max_tokens=20)
    resume(bench, 3, acme(60, 1), prompt=tuple(range(50)))
    run_at_once(bench)
    assert not refusals(bench)
    assert used(bench) == 40 + 20 + 50 + 3 + 5


def test_after_a_restart_no_more_is_believed_than_two_minutes_tokens():
    bench = Bench()
    for index in range(20):
        resume(bench, 1, acme(60), name=f"r{index}", prompt=tuple(range(50)), max_tokens=2)
        run_at_once(bench, 20)
    assert used(bench) == 3 * 52
    assert set(refusals(bench)) == {f"r{index}" for index in range(3, 20)}
    assert "tokens a minute: 156 are used, the prompt, with what is resumed, has 51, limit 60; retry in 147.0 s" in refusals(bench)["r3"]


def test_what_is_submitted_again_before_anybody_heard_of_it_is_charged_no_token_twice(bench):
    submit(bench, "r", acme(60))
    run_at_once(bench, 5)
    num_generated = len(bench.front_end.output_of("r"))
    lose_front_end(bench)
    submit(bench, "newcomer", acme(60), prompt=range(60 - round(used(bench))), max_tokens=1)
    submit(bench, "r", acme(60))
    run_at_once(bench)
    assert not refusals(bench)
    assert used(bench) == 60 + 1 + 8 - num_generated
    assert usage(bench, "prompt_tokens") == 3 + 3 + 60 - 3 - num_generated, "each prompt once"


def test_what_a_lost_engine_had_accepted_is_never_refused(bench):
    for index in range(5):
        resume(bench, 4, acme(10, 1), name=f"r{index}", was_accepted=True)
    run_at_once(bench)
    assert not refusals(bench)
    assert used(bench) == 5 * 4


def test_a_client_may_have_less_than_its_front_end_brought_after_the_loss_of_an_engine(bench):
    resume(bench, 6, acme(100), was_accepted=True)
    run_at_once(bench)
    lose_front_end(bench)
    resume(bench, 4, acme(100))
    run_at_once(bench)
    assert used(bench) == 2


def test_a_resume_with_nothing_to_run_costs_nothing(bench):
    submit(bench, "r", acme(10, 1), choices=(), takes_over=True, prompt=range(40))
    bench.turn()
    assert "r" in bench.front_end.accepted
    assert used(bench) == 0


# Usage


def test_usage_of_all_names_adds_up_to_that_of_the_engine(bench):
    for index in range(12):
        tenant = (acme(), Tenant("other"), Tenant("key-1", is_named=False), Tenant("key-2", is_named=False))[index % 4]
        submit(bench, f"r{index}", tenant, max_tokens=index)
    bench.engine.abort("r3")
    bench.run()
    names = ("acme", "other", UNNAMED)
    for field in ("prompt_tokens", "generation_tokens"):
        assert sum(usage(bench, field, name) for name in names) == bench.metrics.total(field) + 3 * (field == "prompt_tokens")
    assert [usage(bench, "requests", name) for name in names] == [usage(bench, "ended", name) for name in names] == [4, 3, 6]


def test_accounts_that_are_as_good_as_new_are_forgotten():
    bench = Bench()
    for index in range(200):
        submit(bench, f"r{index}", Tenant(f"t{index}", Quota(60)), max_tokens=0)
        bench.run()
        bench.clock.now += 1
    assert len(bench.engine._requests._quotas._accounts) < 100


def test_a_defect_leaves_no_place_taken():
    bench = Bench()
    submit(bench, "r", acme(100, 1), choices=[make_choice(index) for index in range(2)])
    bench.turn()
    bench.engine._requests.abandon()
    bench.scheduler.abandon()
    submit(bench, "next", acme(100, 1))
    bench.turn()
    assert not refusals(bench)
