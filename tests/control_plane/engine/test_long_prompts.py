"""How long a short prompt waits for huge ones."""

import pytest
from fakes.control_plane.engine_doubles import Bench
from fakes.worker.strict_worker import describe


def rounds_of(length: int, num_huge: int, budget: int, together: bool = False) -> int:
    """How many rounds a prompt takes that comes behind huge ones, beside running requests."""
    worker = describe(groups=[(16, 4000, None)], max_lanes=64, max_step_tokens=budget)
    bench = Bench(worker, max_step_tokens=budget, max_steps_in_flight=1)
    for index in range(4):
        bench.submit(f"decode{index}", (index, 1), max_tokens=40)
    bench.run(3)
    for index in range(num_huge):
        bench.submit(f"huge{index}", (index, *(token % 97 for token in range(12 * budget))), max_tokens=1)
    if num_huge and not together:
        bench.run(4)
    bench.submit("short", (90, *range(length - 1)), max_tokens=1)
    num_rounds = 0
    while ("short", 0) not in bench.front_end.finished:
        bench.run(1)
        num_rounds += 1
        assert num_rounds < 10
    return num_rounds


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(("num_huge", "budget"), [(1, 64), (10, 128), (20, 64), (60, 24)])
def test_a_prompt_that_ends_within_two_steps_waits_no_longer_than_two_steps_for_huge_ones(num_huge, budget, together):
    left = budget - 4
    for length in (2, left // 4, left // 2, left):
        alone, beside = rounds_of(length, 0, budget), rounds_of(length, num_huge, budget, together)
        assert beside - alone <= 2, (length, alone, beside)


def test_few_huge_prompts_run_at_the_same_time_and_all_of_them_end_in_order():
    bench = Bench(describe(groups=[(16, 4000, None)], max_model_len=4096, max_lanes=32), max_step_tokens=64)
    for index in range(8):
        bench.submit(f"huge{index}", (index, *range(90), *range(90), *range(90)), max_tokens=1)
    while len(bench.front_end.finished) < 8:
        bench.run(1)
        assert sum(sequence.num_prefill_tokens > 64 for sequence in bench.scheduler.replicas[0].running) <= 2
    assert [name for name, _ in bench.front_end.finished] == [f"huge{index}" for index in range(8)]


def test_huge_prompts_go_on_under_a_steady_stream_of_short_ones():
    bench = Bench(describe(groups=[(16, 4000, None)], max_model_len=4096, max_lanes=32), max_step_tokens=64, max_steps_in_flight=1)
    bench.submit("huge", tuple(token % 97 for token in range(1600)), max_tokens=1)
    for index in range(60):
        for part in range(2):
            bench.submit(f"short{index}.{part}", (part, *range(31)), max_tokens=1, cache_salt=f"{index}.{part}")
        bench.run(1)
    assert ("huge", 0) in bench.front_end.finished, "half of the budget is its own: 1600 / 32 = 50 steps"


def test_one_request_more_than_a_worker_has_lanes_for_does_not_matter_to_long_ones():
    bench = Bench(describe(groups=[(16, 4000, None)], max_model_len=4096, max_lanes=2), max_step_tokens=64)
    for index in range(6):
        bench.submit(f"r{index}", (index, *range(90), *range(90)), max_tokens=3)
    bench.run()
    assert len(bench.front_end.finished) == 6
