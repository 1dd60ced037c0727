"""Requests with several choices."""

import pytest
from fakes.control_plane.engine_doubles import Bench, make_choice
from fakes.control_plane.subset_constraint import SubsetConstraint
from fakes.worker.strict_worker import describe, prompt_logprob, solo

from control_plane.core.sampling import SamplingParams
from control_plane.engine.options import EngineOptions
from control_plane.engine.ports import Failure, FinishReason

PROMPT = tuple(range(1, 20))


def choices(num: int, **changes):
    """Choices 0 to num - 1, each with a seed of its own; choice 0 has none."""
    return [make_choice(index, sampling=SamplingParams(seed=index), **changes) for index in range(num)]


def expected(choice: int, num_tokens: int = 20) -> list[int]:
    return solo(PROMPT, num_tokens, seed=choice)


def assert_all_equal_solo(bench: Bench, num: int, num_tokens: int = 20) -> None:
    for index in range(num):
        assert bench.front_end.output_of("r", index) == expected(index, num_tokens)
        assert bench.front_end.finished["r", index].num_generated_tokens == num_tokens
    bench.assert_at_rest()


@pytest.mark.parametrize("options", [{}, {"max_steps_in_flight": 1}, {"max_step_tokens": 5}, {"prefix_caching": False}], ids=str)
def test_each_choice_equals_a_request_of_its_own(options):
    bench = Bench(**options)
    bench.submit("r", PROMPT, max_tokens=20, choices=choices(5))
    bench.run()
    assert_all_equal_solo(bench, 5)
    assert len({tuple(expected(index)) for index in range(5)}) == 5


def test_choices_survive_preemptions():
    bench = Bench(describe(groups=[(4, 20, None)]))
    bench.submit("r", PROMPT, max_tokens=40, choices=choices(4))
    bench.run()
    assert bench.metrics.total("preemptions") >= 1
    assert_all_equal_solo(bench, 4, 40)


@pytest.mark.parametrize("rounds", range(1, 9))
def test_choices_survive_a_lost_worker(rounds):
    bench = Bench(max_step_tokens=8)
    bench.submit("r", PROMPT, max_tokens=20, choices=choices(4))
    bench.run(rounds)
    bench.lose(bench.worker)
    bench.join(describe(incarnation="b"))
    bench.run()
    assert_all_equal_solo(bench, 4)


def test_idn_02_each_choice_ends_on_its_own():
    end = expected(0, 2)[-1]
    bench = Bench()
    bench.submit("r", PROMPT, max_tokens=10, choices=choices(2), end_token_ids=frozenset({end}))
    bench.run()
    first, second = bench.front_end.finished["r", 0], bench.front_end.finished["r", 1]
    assert (first.reason, first.num_generated_tokens) == (FinishReason.STOP, 2)
    assert (second.reason, second.num_generated_tokens) == (FinishReason.LENGTH, 10)
    assert bench.front_end.output_of("r", 0) == expected(0, 2)
    assert bench.front_end.output_of("r", 1) == expected(1, 10)
    assert bench.metrics.total("prompt_tokens") == len(PROMPT)
    assert bench.metrics.total("generation_tokens") == 12


@pytest.mark.parametrize("rounds", [0, 1, 2, 3, 4, 8])
def test_idn_03_cancelling_ends_every_choice(rounds):
    bench = Bench(max_step_tokens=8)
    bench.submit("r", PROMPT, max_tokens=200, choices=choices(4))
    bench.run(rounds)
    num_sent = len(bench.worker.history)
    assert bench.engine.abort("r")
    bench.run()
    assert bench.front_end.failed["r"].failure is Failure.CANCELLED
    assert all(step.num_tokens == 0 for step in bench.worker.history[num_sent:])
    bench.assert_at_rest()


def test_a_choice_that_fails_ends_the_request_with_its_error():
    bench = Bench()
    bench.submit("r", PROMPT, max_tokens=20, choices=choices(2), constraints=[SubsetConstraint(), SubsetConstraint(broken_at=4)])
    bench.submit("other", PROMPT, max_tokens=20)
    bench.run()
    assert bench.front_end.failed["r"].failure is Failure.INTERNAL
    assert ("r", 0) not in bench.front_end.finished
    assert bench.front_end.output_of("other") == expected(0)
    bench.assert_at_rest()


@pytest.mark.parametrize("max_tokens", [0, 4])
def test_prompt_logprobs_are_told_once(max_tokens):
    bench = Bench(max_step_tokens=7)
    sampling = SamplingParams(prompt_logprobs=0)
    bench.submit("r", PROMPT, max_tokens=max_tokens, choices=[make_choice(index, sampling=sampling) for index in range(3)])
    bench.run()
    entries = bench.front_end.prompt_logprobs["r"]
    assert [entry.logprob for entry in entries] == [None, *(prompt_logprob(PROMPT, index) for index in range(1, len(PROMPT)))]
    assert [bench.front_end.finished["r", index].num_generated_tokens for index in range(3)] == [max_tokens] * 3


def test_cached_tokens_are_those_of_the_prompt_and_not_what_choices_share():
    bench = Bench()
    bench.submit("first", PROMPT[:9], max_tokens=1)
    bench.run()
    bench.submit("r", PROMPT, choices=choices(3))
    bench.run()
    assert [bench.front_end.finished["r", index].num_cached_tokens for index in range(3)] == [8, 8, 8]


def test_a_resume_leaves_out_what_has_finished_and_replays_the_rest():
    bench = Bench()
    rest = [
        make_choice(index, sampling=SamplingParams(seed=index), resumed=expected(index)[:num]) for index, num in ((1, 3), (4, 0), (7, 11))
    ]
    bench.submit("r", PROMPT, max_tokens=20, choices=rest)
    bench.run()
    for index, num in ((1, 3), (4, 0), (7, 11)):
        assert bench.front_end.output_of("r", index) == expected(index)[num:]
        assert bench.front_end.finished["r", index].num_generated_tokens == 20
    assert len(bench.front_end.finished) == 3


def test_the_queue_counts_every_choice():
    bench = Bench(describe(max_lanes=1), engine_options=EngineOptions(max_queued_requests=3))
    bench.submit("running", PROMPT, max_tokens=50)
    bench.turn()
    bench.submit("waiting", PROMPT)
    bench.submit("two", PROMPT, choices=choices(2))
    bench.submit("three", PROMPT, choices=choices(3))
    bench.turn()
    assert bench.front_end.failed["three"].failure is Failure.QUEUE_FULL
    assert "3 sequences wait, 3 would come, limit 3" in bench.front_end.failed["three"].message
    assert "two" not in bench.front_end.failed


def test_a_request_with_more_choices_than_the_queue_holds_runs_when_nobody_waits():
    bench = Bench(engine_options=EngineOptions(max_queued_requests=3))
    bench.submit("r", PROMPT, max_tokens=20, choices=choices(5))
    bench.run()
    assert_all_equal_solo(bench, 5)


def test_a_drain_lets_every_choice_of_a_running_request_finish():
    bench = Bench(describe(max_lanes=2))
    bench.submit("r", PROMPT, max_tokens=20, choices=choices(4))
    bench.run(1)
    bench.engine.drain(bench.front_end)
    bench.run()
    assert_all_equal_solo(bench, 4)


def test_each_choice_has_a_constraint_of_its_own():
    bench = Bench()
    constraints = [SubsetConstraint(index) for index in range(2)]
    bench.submit("r", PROMPT, max_tokens=20, choices=[make_choice(index) for index in range(2)], constraints=constraints)
    bench.run()
    for index in range(2):
        assert bench.front_end.output_of("r", index) == solo(PROMPT, 20, constraint=SubsetConstraint(index))
