"""Requests whose reader is slow: they pause, and lose and repeat nothing."""

import pytest
from fakes.control_plane.engine_doubles import Bench, make_choice
from fakes.control_plane.subset_constraint import SubsetConstraint
from fakes.worker.strict_worker import describe, solo

from control_plane.core.sampling import SamplingParams
from control_plane.engine.ports import Failure

PROMPT = tuple(range(1, 10))
EXPECTED = solo(PROMPT, 20)


def held_bench(rounds: int = 5, **changes) -> Bench:
    """A bench whose request `r` is held after some rounds."""
    bench = Bench(max_step_tokens=8)
    bench.submit("r", PROMPT, max_tokens=20, **changes)
    bench.run(rounds)
    bench.hold("r")
    return bench


@pytest.mark.parametrize("arrives_first", [False, True])
@pytest.mark.parametrize("rounds", range(8))
def test_no_token_is_missing_and_none_comes_twice(rounds, arrives_first):
    bench = Bench(max_step_tokens=8)
    bench.submit("r", PROMPT, max_tokens=20)
    bench.run(rounds)
    if arrives_first and bench.worker.steps:
        bench.worker.run_step()  # the engine has not taken its result in
    bench.hold("r")
    bench.run()
    num_told = len(bench.front_end.output_of("r"))
    assert num_told < 20
    bench.run()
    assert len(bench.front_end.output_of("r")) == num_told
    bench.unhold("r")
    bench.run()
    assert bench.front_end.output_of("r") == EXPECTED
    bench.assert_at_rest()


def test_a_held_request_holds_no_page_and_comes_back_by_a_prefix_hit():
    bench = held_bench(8)
    bench.run()
    bench.assert_at_rest()
    bench.unhold("r")
    bench.run()
    readmission = next(step.admissions[0] for step in reversed(bench.worker.history) if step.admissions)
    assert readmission.num_computed_tokens == (len(readmission.token_ids) - 1) // 4 * 4 > len(PROMPT)


def test_pages_of_a_held_request_are_evicted_before_older_ones():
    bench, older = Bench(describe(groups=[(4, 16, None)])), tuple(range(40, 60))
    bench.submit("older", older, max_tokens=2)
    bench.run()
    bench.submit("held", tuple(range(20)), max_tokens=20)
    bench.run(3)
    bench.hold("held")
    bench.run()
    bench.submit("large", tuple(range(50, 82)), max_tokens=4)
    bench.submit("older again", older, max_tokens=2)
    bench.run()
    assert bench.front_end.finished["older again", 0].num_cached_tokens == 16
    bench.unhold("held")
    bench.run()
    assert bench.front_end.output_of("held") == solo(tuple(range(20)), 20)


def test_a_held_request_disturbs_nobody():
    bench = held_bench()
    bench.submit("other", (7, 8), max_tokens=30)
    bench.run()
    assert bench.front_end.output_of("other") == solo((7, 8), 30)


def test_a_held_request_is_live_and_shown():
    bench = held_bench(8)
    bench.run()
    state = bench.engine.state(with_sequences=True)
    assert (state.snapshot.num_held, state.snapshot.num_running, state.snapshot.num_waiting_for_capacity) == (1, 0, 0)
    assert [(sequence.request_id, sequence.is_held, sequence.worker) for sequence in state.sequences] == [("r", True, "")]
    bench.submit("r")
    bench.turn()
    assert bench.front_end.failed["r"].failure is Failure.ALREADY_EXISTS


@pytest.mark.parametrize("failure", [Failure.CANCELLED, Failure.READER_TOO_SLOW, Failure.DEADLINE_EXCEEDED])
def test_a_held_request_can_be_ended(failure):
    bench = held_bench()
    bench.run()
    bench.end("r", failure, "why")
    bench.run()
    assert (bench.front_end.failed["r"].failure, bench.front_end.failed["r"].message) == (failure, "why")
    assert bench.engine.snapshot.num_held == 0
    bench.assert_at_rest()


def test_a_held_request_survives_its_worker_and_outlasts_the_grace_time():
    bench = held_bench()
    bench.lose(bench.worker)
    bench.clock.now += 1000.0
    bench.turn()
    bench.join(describe(incarnation="b"))
    bench.unhold("r")
    bench.run()
    assert bench.front_end.output_of("r") == EXPECTED


def test_a_request_let_go_without_a_worker_waits_for_one_as_long_as_the_grace_time():
    bench = held_bench()
    bench.lose(bench.worker)
    bench.unhold("r")
    bench.clock.now += 31.0
    bench.turn()
    assert bench.front_end.failed["r"].failure is Failure.UNAVAILABLE


def test_a_held_request_outlives_a_reset():
    bench = held_bench()
    bench.engine.digest_mismatch(bench.worker, 1)
    bench.worker.finish_reset()
    bench.unhold("r")
    bench.run()
    assert bench.front_end.output_of("r") == EXPECTED


def test_a_held_request_finishes_in_a_drain():
    bench = held_bench(8)
    bench.engine.drain(bench.front_end)
    bench.run()
    bench.unhold("r")
    bench.run()
    assert bench.front_end.output_of("r") == EXPECTED


def test_a_held_request_can_be_taken_over():
    bench = held_bench(8)
    bench.front_end.forget()
    bench.submit("r", PROMPT, max_tokens=20, resumed=EXPECTED[:2], takes_over=True)
    bench.run()
    assert bench.front_end.output_of("r") == EXPECTED[2:]


def test_a_request_can_be_held_while_it_waits_for_its_first_step():
    bench = Bench(describe(max_lanes=1))
    bench.submit("running", PROMPT, max_tokens=5)
    bench.submit("r", PROMPT, max_tokens=20)
    bench.turn()
    bench.hold("r")
    bench.run()
    assert bench.front_end.output_of("r") == []
    bench.unhold("r")
    bench.run()
    assert bench.front_end.output_of("r") == EXPECTED


def test_holding_twice_and_what_is_not_live_changes_nothing():
    bench = held_bench()
    for name in ("r", "unknown"):
        bench.hold(name)
    bench.unhold("unknown")
    bench.run()
    for _ in range(2):
        bench.unhold("r")
    bench.run()
    assert bench.front_end.output_of("r") == EXPECTED


@pytest.mark.parametrize("rounds", range(8))
def test_every_choice_of_a_held_request_pauses(rounds):
    choices = [make_choice(index, sampling=SamplingParams(seed=index)) for index in range(3)]
    bench = held_bench(rounds, choices=choices)
    bench.submit("other", PROMPT, max_tokens=20)
    bench.run()
    bench.assert_at_rest()
    assert bench.engine.state().snapshot.num_held == 3
    bench.unhold("r")
    bench.run()
    for index in range(3):
        assert bench.front_end.output_of("r", index) == solo(PROMPT, 20, seed=index)
    bench.assert_at_rest()


@pytest.mark.parametrize("rounds", range(3, 8))
def test_a_constraint_does_not_notice_a_pause(rounds):
    bench = held_bench(rounds, constraint=SubsetConstraint())
    bench.run()
    bench.unhold("r")
    bench.run()
    assert bench.front_end.output_of("r") == solo(PROMPT, 20, constraint=SubsetConstraint())


def test_prompt_logprobs_come_once_with_a_pause_in_the_prompt():
    bench = held_bench(1, sampling=SamplingParams(prompt_logprobs=0))
    bench.run()
    bench.unhold("r")
    bench.run()
    assert [entry.token_id for entry in bench.front_end.prompt_logprobs["r"]] == list(PROMPT)
    assert bench.front_end.output_of("r") == EXPECTED
