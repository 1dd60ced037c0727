"""Constrained sequences draw only with a mask, and cost nobody else anything."""

import pytest
from fakes.control_plane.engine_doubles import Bench
from fakes.control_plane.subset_constraint import SubsetConstraint
from fakes.worker.strict_worker import chunks_of, describe, solo

from control_plane.engine.ports import Failure

PROMPT = (1, 2, 3)


def constrained(bench: Bench, name: str = "r", prompt=PROMPT, **changes) -> SubsetConstraint:
    constraint = changes.pop("constraint", None) or SubsetConstraint()
    bench.submit(name, prompt, constraint=constraint, **changes)
    return constraint


def allowed_solo(prompt=PROMPT, max_tokens: int = 8) -> list[int]:
    return solo(prompt, max_tokens, constraint=SubsetConstraint())


@pytest.mark.parametrize("depth", [1, 2])
def test_tokens_are_those_of_an_unhurried_run(depth):
    bench = Bench(max_steps_in_flight=depth)
    constraint = constrained(bench)
    bench.run()
    assert bench.front_end.output_of("r") == constraint.token_ids == allowed_solo()
    assert allowed_solo() != solo(PROMPT, 8)
    assert bench.worker.num_resets == 0


def test_a_lane_sits_out_while_its_last_token_is_not_known_and_others_run_on():
    bench = Bench(max_steps_in_flight=2)
    bench.submit("free", (7, 8, 9))
    constrained(bench)
    bench.turn()
    first, second = bench.worker.steps
    assert (len(first.masks), len(second.masks)) == (1, 0)
    assert chunks_of(second) == [(next(iter(first.masks)), 0)]
    assert (first.num_tokens, second.num_tokens) == (6, 1)
    bench.run()
    num_steps = len([step for step in bench.worker.history if step.num_tokens])
    assert num_steps == 8 + 4  # the free one runs in eight steps, the constrained one in every other of them


def test_chunks_that_draw_nothing_are_pipelined_and_need_no_mask():
    bench = Bench(max_step_tokens=4, max_steps_in_flight=2)
    constrained(bench, prompt=tuple(range(10)))
    bench.turn()
    assert [(step.num_tokens, len(step.masks)) for step in bench.worker.steps] == [(4, 0), (4, 0)]
    bench.run()
    assert bench.front_end.output_of("r") == allowed_solo(tuple(range(10)))


def test_nothing_is_masked_when_no_tokens_are_wanted():
    bench = Bench()
    constrained(bench, max_tokens=0)
    bench.run()
    assert ("r", 0) in bench.front_end.finished
    assert not any(step.masks for step in bench.worker.history)


def test_a_preempted_sequence_goes_on_within_its_constraint():
    bench = Bench(describe(groups=[(4, 12, None)]))
    bench.submit("important", (5, 6), max_tokens=40, priority=-1)
    constrained(bench, max_tokens=40)
    bench.run()
    assert bench.metrics.total("preemptions") > 0
    assert bench.front_end.output_of("r") == allowed_solo(max_tokens=40)


def test_a_lost_worker_does_not_matter_to_a_constraint():
    bench = Bench()
    constrained(bench, max_tokens=20)
    bench.run(7)
    bench.lose(bench.worker)
    bench.join(describe(incarnation="b"))
    bench.run()
    assert bench.front_end.output_of("r") == allowed_solo(max_tokens=20)


def test_a_resume_continues_within_the_constraint():
    bench, expected = Bench(), allowed_solo(max_tokens=20)
    constrained(bench, max_tokens=20, resumed=expected[:9])
    bench.run()
    assert bench.front_end.output_of("r") == expected[9:]


@pytest.mark.parametrize("num_tokens", [0, 3])
def test_a_constraint_that_gives_no_mask_fails_its_own_request_only(num_tokens):
    bench = Bench()
    bench.submit("other", (7, 8, 9))
    constrained(bench, constraint=SubsetConstraint(broken_at=num_tokens))
    bench.run()
    assert bench.front_end.failed["r"].failure is Failure.INTERNAL
    assert "the constraint gives no mask" in bench.front_end.failed["r"].message
    assert bench.front_end.output_of("r") == allowed_solo()[:num_tokens]
    assert bench.front_end.output_of("other") == solo((7, 8, 9), 8)
    assert bench.worker.num_resets == 0
    bench.assert_at_rest()


def test_a_mask_of_another_vocabulary_never_reaches_the_worker():
    bench = Bench(describe(vocab_size=200))
    constrained(bench)
    bench.run()
    assert "13 bytes instead of 25" in bench.front_end.failed["r"].message
    assert not any(step.masks for step in bench.worker.history)
    bench.assert_at_rest()


def test_a_token_that_breaks_the_constraint_fails_its_own_request_only():
    bench = Bench()
    bench.submit("other", (7, 8, 9))
    constraint = constrained(bench)
    bench.run(2)
    constraint.push = SubsetConstraint(empty_at=0).push
    bench.run()
    assert bench.front_end.failed["r"].failure is Failure.INTERNAL
    assert "breaks the constraint" in bench.front_end.failed["r"].message
    assert bench.front_end.output_of("r") == allowed_solo()[:1]
    assert bench.front_end.output_of("other") == solo((7, 8, 9), 8)
    bench.assert_at_rest()
