"""Masks take time: a lane without its mask sits the step out, and costs the others next to nothing."""

import pytest
from fakes.control_plane.engine_doubles import Bench
from fakes.control_plane.subset_constraint import SubsetConstraint
from fakes.worker.strict_worker import describe, solo

PROMPT = (1, 2, 3)


class SlowConstraint(SubsetConstraint):
    """Has its next mask when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.is_ready = False

    def push(self, token_id: int) -> None:
        super().push(token_id)
        self.is_ready = False

    def mask(self) -> bytes:
        assert self.is_ready, "nobody asks for a mask that is not known"
        return super().mask()


def expected(num_tokens: int) -> list[int]:
    return solo(PROMPT, num_tokens, constraint=SubsetConstraint())


def run_step_beside_a_free_one(bench: Bench) -> SlowConstraint:
    """Run one step of a constrained request and of a free one; the mask after it is not there."""
    constraint = SlowConstraint()
    constraint.is_ready = True
    bench.submit("r", PROMPT, max_tokens=20, constraint=constraint)
    bench.submit("free", (7, 8, 9), max_tokens=20)
    bench.turn()
    bench.worker.run_step()
    bench.turn()
    return constraint


@pytest.fixture
def bench() -> Bench:
    return Bench(describe(max_steps_in_flight=1))


def test_a_prompt_runs_but_for_its_last_token_until_there_is_a_mask(bench: Bench) -> None:
    constraint = SlowConstraint()
    bench.submit("r", PROMPT, constraint=constraint)
    bench.run()
    assert [(step.num_tokens, len(step.masks)) for step in bench.worker.history] == [(2, 0)]
    constraint.is_ready = True
    bench.engine.mask_ready()
    bench.run(1)
    assert next(iter(bench.worker.history[-1].masks.values())) == SubsetConstraint().mask()
    assert bench.front_end.output_of("r") == constraint.token_ids == expected(1)


def test_a_lane_without_its_mask_sits_out_and_others_run_on(bench: Bench) -> None:
    constraint = SlowConstraint()
    bench.submit("r", PROMPT, constraint=constraint)
    bench.submit("free", (7, 8, 9), max_tokens=20)
    bench.run()
    assert bench.front_end.output_of("free") == solo((7, 8, 9), 20)
    assert not bench.front_end.output_of("r")
    while len(constraint.token_ids) < 8:
        constraint.is_ready = True
        bench.run(1)
    assert bench.front_end.output_of("r") == expected(8)


def test_steps_wait_for_masks_for_a_millisecond_at_most(bench: Bench) -> None:
    run_step_beside_a_free_one(bench)
    assert not bench.worker.steps  # the mask may come any moment
    bench.clock.now += 0.0009
    bench.turn()
    assert not bench.worker.steps
    bench.clock.now += 0.0002
    bench.turn()
    assert [step.num_tokens for step in bench.worker.steps] == [1]


def test_a_mask_that_comes_in_time_makes_the_step(bench: Bench) -> None:
    constraint = run_step_beside_a_free_one(bench)
    constraint.is_ready = True
    bench.turn()
    assert [(step.num_tokens, len(step.masks)) for step in bench.worker.steps] == [(2, 1)]


def test_a_request_that_ends_is_not_waited_for_again(bench: Bench) -> None:
    constraint = SlowConstraint()
    constraint.is_ready = True
    bench.submit("r", PROMPT, max_tokens=1, constraint=constraint)
    bench.run(1)
    bench.clock.now += 0.002
    bench.submit("free", (7, 8, 9), max_tokens=4)
    bench.run()
    assert bench.front_end.output_of("free") == solo((7, 8, 9), 4)
    bench.assert_at_rest()
