"""Who is admitted before whom; driven by an engine with fake workers."""

import pytest
from fakes.control_plane.engine_doubles import Bench
from fakes.worker.strict_worker import describe
from hypothesis import given, settings
from hypothesis import strategies as st


def admission_order(bench: Bench) -> list[tuple[int, ...]]:
    return [tuple(admission.token_ids) for step in bench.worker.history for admission in step.admissions]


def finish_order(bench: Bench) -> list[str]:
    return [name for name, _ in bench.front_end.finished]


def two_workers(**changes) -> Bench:
    return Bench(describe(address="a:1"), describe(address="b:1", **changes))


def test_a_lower_priority_number_runs_first():
    bench = Bench(describe(max_lanes=1))
    bench.submit("running")
    bench.turn()
    for name, priority in (("last", 5), ("first", -1), ("middle", 0)):
        bench.submit(name, priority=priority)
    bench.run()
    assert finish_order(bench) == ["running", "first", "middle", "last"]


def test_equal_priorities_run_in_order_of_arrival():
    bench = Bench(describe(max_lanes=1))
    for name in "abc":
        bench.submit(name)
    bench.run()
    assert finish_order(bench) == ["a", "b", "c"]


def test_waiting_improves_the_priority():
    bench = Bench(describe(max_lanes=1), ageing_seconds=10.0)
    bench.submit("running")
    bench.turn()
    bench.submit("patient", priority=3, arrival_time=100.0)
    bench.submit("urgent", priority=0, arrival_time=140.0)
    bench.run()
    assert finish_order(bench) == ["running", "patient", "urgent"]


def test_a_request_that_does_not_fit_is_overtaken_only_so_often():
    bench = Bench(describe(groups=[(4, 20, None)], max_lanes=4), max_overtakes=5)
    bench.submit("running", (1,), max_tokens=60)
    bench.run(20)
    bench.submit("big", tuple(range(60)), max_tokens=5)
    for index in range(20):
        bench.submit(f"small{index}", (index, 2), max_tokens=2)
    bench.run()
    assert admission_order(bench).index(tuple(range(60))) == 1 + 5
    assert len(finish_order(bench)) == 22


def test_a_request_that_does_not_fit_blocks_nobody():
    bench = Bench(describe(groups=[(4, 20, None)]))
    bench.submit("running", (1,), max_tokens=60)
    bench.run(20)
    bench.submit("big", tuple(range(60)), max_tokens=5)
    bench.submit("small", max_tokens=2)
    bench.run(5)
    assert ("small", 0) in bench.front_end.finished


def submit_big(bench: Bench, first: int, num: int, num_tokens: int = 140) -> None:
    for index in range(first, first + num):
        bench.submit(f"big{index}", (index, *range(num_tokens)), max_tokens=5)


def short_of_pages(num_rounds: int) -> Bench:
    """A worker that is half full, and gets fuller by one token in each round."""
    bench = Bench(describe(groups=[(4, 60, None)], max_model_len=240))
    bench.submit("running", (1,), max_tokens=230)
    bench.run(num_rounds)
    return bench


@pytest.mark.parametrize("num_big", [20, 1000])
def test_many_requests_that_do_not_fit_block_nobody(num_big):
    bench = short_of_pages(110)
    submit_big(bench, 0, num_big)
    bench.submit("small", (1, 2), max_tokens=2)
    num_sent = len(bench.worker.history)
    while ("small", 0) not in bench.front_end.finished:
        bench.run(1)
    assert ("running", 0) not in bench.front_end.finished
    assert len(bench.worker.history) - num_sent < 8 + num_big / 8


def test_a_newcomer_is_looked_at_at_once_however_many_wait():
    bench = short_of_pages(110)
    submit_big(bench, 0, 200)
    bench.run(40)
    bench.submit("small", (1, 2), max_tokens=2)
    bench.run(5)
    assert ("small", 0) in bench.front_end.finished


def test_a_request_in_the_middle_is_looked_at_again_when_pages_become_free():
    bench = Bench(describe(groups=[(4, 60, None)], max_model_len=240))
    bench.submit("running", (1,), max_tokens=230)
    bench.submit("gone", tuple(range(30)), max_tokens=200)
    bench.run(84)
    submit_big(bench, 0, 40)
    bench.submit("middle", tuple(range(40)), max_tokens=2, cache_salt="middle")
    submit_big(bench, 40, 40)
    bench.run(12)
    assert len(admission_order(bench)) == 2
    bench.engine.abort("gone")
    bench.run(25)
    assert admission_order(bench)[2:] == [tuple(range(40))]


@pytest.mark.parametrize("num_big", [1, 30])
def test_nobody_starves_under_a_steady_stream_of_small_requests(num_big):
    bench = Bench(describe(groups=[(4, 20, None)]))
    for index in range(230):
        if index == 30:
            submit_big(bench, 0, num_big, num_tokens=60)
        bench.submit(f"small{index}", (index, 2), max_tokens=6)
        bench.run(1)
    order = [len(tokens) for tokens in admission_order(bench)]
    assert order.index(61) == 30 + 64
    bench.run()
    assert len(finish_order(bench)) == 230 + num_big


@given(
    st.lists(st.tuples(st.integers(1, 70), st.integers(0, 3)), min_size=10, max_size=60),
    st.integers(0, 6),
    st.sampled_from([5, 16, 64]),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_nobody_is_overtaken_more_often_than_allowed(arrivals, max_overtakes, budget):
    bench = Bench(describe(groups=[(4, 20, None)], max_lanes=8), max_overtakes=max_overtakes, max_step_tokens=budget)
    for index, (length, num_rounds) in enumerate(arrivals):
        bench.submit(f"r{index}", (index, *range(length)), max_tokens=1)
        bench.run(num_rounds)
    bench.run()
    order = [token_ids[0] for token_ids in admission_order(bench)]
    assert sorted(order) == list(range(len(arrivals)))
    for place, name in enumerate(order):
        assert sum(other > name for other in order[:place]) <= max_overtakes


def test_a_worker_that_does_not_answer_keeps_nobody_from_another_one():
    bench = two_workers()
    for name in ("a", "b", "c", "d"):
        bench.submit(name, max_tokens=60)
    bench.turn()
    silent, other = bench.workers
    bench.engine.abort("a")  # the silent worker has less to do, and takes no step
    for index in range(40):
        bench.submit(f"r{index}", (index, 2), max_tokens=1)
    for _ in range(10):
        other.run_step()
        bench.turn()
    assert len(silent.steps) == len(silent.history) == 2
    assert len(bench.front_end.finished) > 20


def test_the_tokens_hashed_in_one_pass_are_bounded():
    bench = Bench(describe(groups=[(4, 1100, None)], max_step_tokens=4096), max_step_tokens=4096, max_steps_in_flight=1)
    bench.submit("warm", tuple(range(4000)), max_tokens=1)
    bench.run()
    for index in range(8):
        bench.submit(f"r{index}", (*range(3980), index), max_tokens=1)
    bench.turn()
    assert sum(sequence.hashes.num_tokens for sequence in bench.engine._requests._choices) <= 16_384 + 4000
    bench.run()
    assert len(bench.front_end.finished) == 9


def test_prompts_that_cost_no_budget_make_no_step_of_any_size(monkeypatch):
    monkeypatch.setattr("control_plane.core.step_builder._MAX_ADMITTED_TOKENS", 100)
    bench = Bench()
    prompt = tuple(range(40))
    bench.submit("first", prompt)
    bench.run()
    for number in range(20):
        bench.submit(f"cached {number}", (*prompt, number))
    bench.run()
    admitted = [sum(len(admission.token_ids) for admission in step.admissions) for step in bench.worker.history[1:]]
    assert max(admitted) == 3 * 41 and len(bench.front_end.finished) == 21
