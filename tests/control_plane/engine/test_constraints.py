"""Requests whose output is restricted."""

import pytest
from fakes.control_plane.engine_doubles import Bench
from fakes.control_plane.subset_constraint import SubsetConstraint
from fakes.worker.strict_worker import describe, solo

from control_plane.engine.ports import Failure, FinishReason

PROMPT = (1, 2, 3)


def expected(num_tokens: int, salt: int = 0) -> list[int]:
    return solo(PROMPT, num_tokens, constraint=SubsetConstraint(salt))


def test_a_constraint_restricts_every_token():
    bench = Bench()
    bench.submit("r", PROMPT, max_tokens=20, constraint=SubsetConstraint())
    bench.submit("free", PROMPT, max_tokens=20)
    bench.run()
    assert bench.front_end.output_of("r") == expected(20)
    assert bench.front_end.output_of("free") == solo(PROMPT, 20) != expected(20)


def test_an_end_token_ends_it_where_the_constraint_allows_one():
    end = expected(7)[-1]
    bench = Bench()
    bench.submit("r", PROMPT, max_tokens=20, constraint=SubsetConstraint(), end_token_ids=frozenset({end}))
    bench.run()
    assert bench.front_end.finished["r", 0].reason is FinishReason.STOP
    assert bench.front_end.output_of("r") == expected(7)


def test_a_resume_goes_on_under_its_constraint():
    bench = Bench()
    bench.submit("r", PROMPT, max_tokens=20, resumed=expected(9), constraint=SubsetConstraint())
    bench.run()
    assert bench.front_end.output_of("r") == expected(20)[9:]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"constraint": SubsetConstraint(empty_at=4)}, "constraint and min_tokens leave none"),
        ({"constraint": SubsetConstraint(exhausted_at=4)}, "constraint: too complex: 501 items"),
        ({"end_token_ids": frozenset(range(97)), "min_tokens": 8, "resumed": [1, 2, 3, 4]}, "constraint and min_tokens leave none"),
    ],
)
def test_smp_06_a_request_that_excludes_every_token_names_the_fields_that_can(changes, reason):
    bench = Bench()
    bench.submit("r", max_tokens=20, **changes)
    bench.submit("other", max_tokens=20)
    bench.run()
    failed = bench.front_end.failed["r"]
    assert failed.failure is Failure.INVALID_ARGUMENT
    assert failed.message == f"choice 0 can draw no token at index 4: {reason}"
    assert bench.front_end.output_of("other") == solo(PROMPT, 20)
    bench.assert_at_rest()


def test_a_constraint_that_breaks_ends_its_request_only():
    bench = Bench()
    bench.submit("r", max_tokens=20, constraint=SubsetConstraint(broken_at=3))
    bench.submit("other", max_tokens=20)
    bench.run()
    assert bench.front_end.failed["r"].failure is Failure.INTERNAL
    assert bench.front_end.output_of("other") == solo(PROMPT, 20)
    bench.assert_at_rest()


@pytest.mark.parametrize("depth", [1, 2])
def test_other_sequences_and_preemption_do_not_matter(depth):
    bench = Bench(describe(groups=[(4, 17, None)]), max_steps_in_flight=depth)
    for index in range(4):
        constraint = SubsetConstraint(index) if index % 2 else None
        bench.submit(f"r{index}", (index, 1, 2, 3, 4), max_tokens=45, constraint=constraint)
    bench.run()
    assert bench.metrics.total("preemptions") >= 2
    for index in range(4):
        constraint = SubsetConstraint(index) if index % 2 else None
        assert bench.front_end.output_of(f"r{index}") == solo((index, 1, 2, 3, 4), 45, constraint=constraint)


@pytest.mark.parametrize("rounds", [1, 2, 5, 9])
def test_a_worker_lost_midway_does_not_matter(rounds):
    bench = Bench()
    bench.submit("r", PROMPT, max_tokens=20, constraint=SubsetConstraint())
    bench.run(rounds)
    bench.lose(bench.worker)
    bench.join(describe(incarnation="b"))
    bench.run()
    assert bench.front_end.output_of("r") == expected(20)
