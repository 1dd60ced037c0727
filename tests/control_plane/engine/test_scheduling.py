"""Who runs when, where, and at whose cost."""

import pytest
from fakes.engine_doubles import Bench
from fakes.engine_worker import describe, solo
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.engine.ports import Failure


def admission_order(bench: Bench) -> list[tuple[int, ...]]:
    return [tuple(admission.token_ids) for step in bench.worker.history for admission in step.admissions]


def finish_order(bench: Bench) -> list[str]:
    return [name for name, _ in bench.sink.finished]


def two_workers(**changes) -> Bench:
    return Bench(describe(address="a:1"), describe(address="b:1", **changes))


# Order


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
    assert ("small", 0) in bench.sink.finished


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
    while ("small", 0) not in bench.sink.finished:
        bench.run(1)
    assert ("running", 0) not in bench.sink.finished
    assert len(bench.worker.history) - num_sent < 8 + num_big / 8


def test_a_newcomer_is_looked_at_at_once_however_many_wait():
    bench = short_of_pages(110)
    submit_big(bench, 0, 200)
    bench.run(40)
    bench.submit("small", (1, 2), max_tokens=2)
    bench.run(5)
    assert ("small", 0) in bench.sink.finished


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
    assert len(bench.sink.finished) > 20


def test_the_tokens_hashed_in_one_pass_are_bounded():
    bench = Bench(describe(groups=[(4, 1100, None)], max_step_tokens=4096), max_step_tokens=4096, max_steps_in_flight=1)
    bench.submit("warm", tuple(range(4000)), max_tokens=1)
    bench.run()
    for index in range(8):
        bench.submit(f"r{index}", (*range(3980), index), max_tokens=1)
    bench.turn()
    assert sum(sequence.hashes.num_tokens for sequence in bench.engine._requests.sequences) <= 16_384 + 4000
    bench.run()
    assert len(bench.sink.finished) == 9


# Budget


def test_every_decode_runs_in_every_step_beside_a_long_prefill():
    bench = Bench(max_step_tokens=16, max_steps_in_flight=1)
    for index in range(4):
        bench.submit(f"decode{index}", (index, 1), max_tokens=40)
    bench.run(2)
    bench.submit("long", tuple(range(90)) * 2, max_tokens=1)
    before = len(bench.sink.output_of("decode3"))
    bench.run(10)
    assert len(bench.sink.output_of("decode3")) == before + 10


def test_a_short_request_starts_while_a_huge_prompt_prefills():
    bench = Bench(max_step_tokens=32, max_steps_in_flight=1)
    bench.submit("huge", tuple(range(90)) * 2, max_tokens=1)
    bench.run(1)
    bench.submit("short", max_tokens=1)
    bench.run(2)
    assert ("short", 0) in bench.sink.finished
    assert ("huge", 0) not in bench.sink.finished


def test_a_lone_prefill_takes_the_whole_budget():
    bench = Bench(max_step_tokens=32)
    bench.submit("r", tuple(range(80)), max_tokens=1)
    bench.run()
    assert [step.num_tokens for step in bench.worker.history if step.num_tokens] == [32, 32, 16]


def test_a_prefill_takes_half_of_the_budget_while_others_wait_and_what_they_leave():
    bench = Bench(max_step_tokens=32, max_steps_in_flight=1)
    for name in ("a", "b", "c"):
        bench.submit(name, tuple(range(80)), cache_salt=name)
    bench.turn()
    assert [chunk.num_tokens for chunk in bench.worker.steps[0].chunks] == [16, 8, 8]
    bench.run()
    bench.submit("long", tuple(range(80)), cache_salt="d")
    bench.submit("short", (1, 2, 3, 4))
    bench.turn()
    assert [chunk.num_tokens for chunk in bench.worker.steps[0].chunks] == [28, 4]


def test_no_more_sequences_run_than_the_budget_has_tokens():
    bench = Bench(max_step_tokens=3)
    for index in range(6):
        bench.submit(f"r{index}", (index, 1))
    bench.run()
    assert all(len(bench.sink.output_of(f"r{index}")) == 8 for index in range(6))


# Steps


def test_two_steps_are_in_flight_and_nothing_runs_beyond_the_length():
    bench = Bench(max_steps_in_flight=2)
    bench.submit("r", max_tokens=3)
    bench.turn()
    assert [step.num_tokens for step in bench.worker.steps] == [3, 1]
    bench.run()
    assert sum(step.num_tokens for step in bench.worker.history) == 3 + 2


def test_a_worker_may_allow_fewer_steps_in_flight():
    bench = Bench(describe(max_steps_in_flight=1))
    bench.submit()
    bench.turn()
    assert len(bench.worker.steps) == 1


def test_steady_decodes_send_next_to_nothing():
    bench = Bench()
    for index in range(8):
        bench.submit(f"r{index}", (index, 1), max_tokens=30)
    bench.run(20)
    steady = [step for step in bench.worker.history[4:20] if not step.growths]
    assert len(steady) >= 8
    assert all(not (step.chunks or step.admissions or step.released_lanes or step.trims) for step in steady)


def test_an_undisturbed_load_never_resets_the_worker():
    bench = Bench(describe(groups=[(4, 17, None)]))
    for index in range(6):
        ends = frozenset(range(0, 90, 9)) if index % 2 else frozenset()
        bench.submit(f"r{index}", (index, 1, 2), max_tokens=40, end_token_ids=ends)
    bench.run(7)
    bench.engine.abort("r5")
    bench.run()
    assert bench.worker.num_resets == 0
    assert bench.metrics.total("preemptions") > 0


# Pages


def test_the_last_in_the_order_is_preempted():
    bench = Bench(describe(groups=[(4, 12, None)]))
    bench.submit("important", (1, 2), max_tokens=40, priority=-1)
    bench.submit("other", (3, 4), max_tokens=40)
    bench.run()
    assert bench.sink.finished["important", 0].num_readmissions == 0
    assert bench.sink.finished["other", 0].num_readmissions > 0
    assert finish_order(bench) == ["important", "other"]


def test_one_victim_is_enough_while_its_pages_are_fenced():
    bench = Bench(describe(groups=[(4, 12, None)], max_lanes=3))
    for name in "abc":
        bench.submit(name, (ord(name) - 90, 2), max_tokens=20)
    bench.run()
    assert bench.metrics.total("preemptions") == 1


def test_a_later_sequence_leaves_the_pages_that_an_earlier_one_waits_for():
    # Page tables before the step in which the first needs a page of either group, and the second one of the smaller pages:
    #   first  8 tokens  xx  xxxx     second  6 tokens  xx  xxx     gone  xx  xxx     free  -  x
    bench = Bench(describe(groups=[(4, 6, None), (2, 11, None)]), prefix_caching=False)
    for name, prompt in (("first", (1, 2, 3, 4)), ("second", (5, 6)), ("gone", (7,))):
        bench.submit(name, prompt, max_tokens=8)
    bench.turn()
    while len(bench.worker.history) < 5:
        bench.worker.run_step()
        bench.turn()
    bench.engine.abort("gone")
    bench.worker.run_step()
    bench.turn()
    step = bench.worker.history[-1]
    assert [chunk.num_tokens for chunk in step.chunks] == [0, 0]
    assert not step.growths
    bench.run()
    assert bench.metrics.total("preemptions") == 0
    assert [len(bench.sink.output_of(name)) for name in ("first", "second")] == [8, 8]


def test_a_prefill_leaves_the_pages_that_a_decode_waits_for():
    # Page tables before the step in which the decode needs a page of either group, and the next chunk one of the sliding group:
    #   decode  8 tokens  xx  xx     prefill  14 of 20 tokens  xxxxxx  xxxx    gone  xx  xx     free  -  x
    bench = Bench(describe(groups=[(4, 10, None), (4, 9, 8)]), prefix_caching=False, max_step_tokens=9)
    bench.submit("decode", (1, 2, 3, 4))
    bench.submit("gone", (7,))
    bench.run(1)
    bench.submit("prefill", tuple(range(20)))
    bench.run(2)
    bench.engine.abort("gone")
    bench.run(1)
    step = bench.worker.history[-1]
    assert [chunk.num_tokens for chunk in step.chunks] == [0, 2]
    assert not step.growths
    bench.run()
    assert bench.sink.output_of("decode") == solo((1, 2, 3, 4), 8)
    assert bench.sink.output_of("prefill") == solo(tuple(range(20)), 8)


def test_a_sequence_alone_uses_the_whole_pool():
    bench = Bench(describe(groups=[(4, 10, None)]))
    bench.submit("r", max_tokens=37)
    bench.run()
    assert bench.sink.output_of("r") == solo((1, 2, 3), 37)
    assert bench.metrics.total("preemptions") == 0


def test_a_preempted_request_can_be_aborted():
    bench = Bench(describe(groups=[(4, 12, None)]))
    bench.submit("a", (1, 2), max_tokens=40)
    bench.submit("b", (3, 4), max_tokens=40)
    while not bench.metrics.total("preemptions") if bench.metrics.passes else True:
        bench.run(1)
    bench.engine.abort("b")
    bench.run()
    assert bench.sink.failed["b"].failure is Failure.CANCELLED
    assert bench.sink.output_of("a") == solo((1, 2), 40)
    bench.assert_at_rest()


# Prefix cache


@pytest.mark.parametrize(("length", "cached"), [(4, 0), (8, 4), (12, 8), (13, 12)])
def test_a_hit_leaves_a_token_to_compute(length, cached):
    bench = Bench()
    for name in ("first", "second"):
        bench.submit(name, tuple(range(length)), max_tokens=2)
        bench.run()
    assert bench.sink.finished["second", 0].num_cached_tokens == cached
    assert bench.sink.output_of("second") == solo(tuple(range(length)), 2)


def test_salts_separate_caches():
    bench = Bench()
    found = []
    for index, salt in enumerate(["a", "b", "", "a"]):
        bench.submit(f"r{index}", tuple(range(12)), cache_salt=salt)
        bench.run()
        found.append(bench.sink.finished[f"r{index}", 0].num_cached_tokens)
    assert found == [0, 0, 0, 8]


def test_generated_pages_are_found_by_the_next_turn_of_a_conversation():
    bench = Bench()
    bench.submit("first", (1, 2, 3), max_tokens=14)
    bench.run()
    prompt = (1, 2, 3, *bench.sink.output_of("first"), 4, 5)
    bench.submit("second", prompt)
    bench.run()
    assert bench.sink.finished["second", 0].num_cached_tokens == 16


def test_preemption_does_not_change_the_cached_tokens_that_are_told():
    bench = Bench(describe(groups=[(4, 12, None)]))
    bench.submit("a", (1, 2), max_tokens=40)
    bench.submit("b", (3, 4), max_tokens=40)
    bench.run()
    assert bench.sink.finished["b", 0].num_readmissions > 0
    assert bench.sink.finished["b", 0].num_cached_tokens == 0


def test_the_cache_can_be_switched_off():
    bench = Bench(prefix_caching=False)
    for name in ("first", "second"):
        bench.submit(name, tuple(range(12)))
        bench.run()
    assert bench.sink.finished["second", 0].num_cached_tokens == 0


# Workers


def test_requests_spread_over_workers():
    bench = two_workers()
    for index in range(6):
        bench.submit(f"r{index}", (index, 1))
    bench.turn()
    assert [worker.num_running for worker in bench.engine.snapshot().gauges.workers] == [3, 3]


def test_a_cached_prefix_attracts_unless_the_worker_is_busy():
    bench = two_workers()
    prompt = tuple(range(60))
    bench.submit("warm", prompt)
    bench.run()
    warm = next(worker for worker in bench.workers if worker.history)
    bench.submit("again", (*prompt, 1))
    bench.turn()
    assert len(warm.steps[0].admissions) == 1
    for index in range(5):
        bench.submit(f"load{index}", (*prompt, index + 2))
    bench.run()
    assert all(worker.history for worker in bench.workers)


def test_generated_tokens_keep_their_numerics_id():
    bench = two_workers(numerics_id="other")
    bench.submit(max_tokens=20)
    bench.run(3)
    home = next(worker for worker in bench.workers if worker.history)
    bench.lose(home)
    bench.run()
    assert bench.engine.snapshot().gauges.num_waiting_for_worker == 1
    bench.join(home.description)
    bench.run()
    assert bench.sink.output_of("r") == solo((1, 2, 3), 20)


def test_a_sequence_whose_numerics_are_gone_ends_after_the_grace_time():
    bench = two_workers(numerics_id="other")
    bench.submit(max_tokens=20)
    bench.run(3)
    bench.lose(next(worker for worker in bench.workers if worker.history))
    bench.clock.now += 31.0
    bench.run()
    assert bench.sink.failed["r"].failure is Failure.UNAVAILABLE


def test_a_change_of_numerics_can_be_allowed_and_is_counted():
    bench = Bench(describe(), describe(numerics_id="other"), continue_on_numerics_change=True)
    bench.submit(max_tokens=20)
    bench.run(3)
    bench.lose(next(worker for worker in bench.workers if worker.history))
    bench.run()
    assert bench.sink.output_of("r") == solo((1, 2, 3), 20)
    assert bench.metrics.total("numerics_changes") == 1


def test_a_request_that_takes_every_worker_down_is_given_up():
    bench = Bench(describe(), max_losses=3)
    bench.submit(max_tokens=20)
    for _ in range(3):
        bench.turn()
        bench.lose(bench.worker)
        bench.join(describe())
    bench.run()
    assert bench.sink.failed["r"].failure is Failure.ABORTED
    bench.assert_at_rest()


def test_losses_with_tokens_in_between_do_not_count():
    bench = Bench(describe(), max_losses=3)
    bench.submit(max_tokens=20)
    for _ in range(6):
        bench.run(2)
        bench.lose(bench.worker)
        bench.join(describe())
    bench.run()
    assert bench.sink.output_of("r") == solo((1, 2, 3), 20)


def test_a_step_that_always_fails_does_not_run_for_ever():
    bench = Bench(max_losses=3)
    bench.submit(max_tokens=20)
    bench.turn()
    for _ in range(3):
        bench.worker.failing = "out of memory"
        bench.worker.run_step()
        bench.turn()
        bench.worker.finish_reset()
        bench.turn()
    assert bench.sink.failed["r"].failure is Failure.ABORTED
    assert "out of memory" in bench.sink.failed["r"].message


def test_a_draining_worker_hands_its_sequences_over():
    bench = two_workers()
    bench.submit(max_tokens=20)
    bench.run(3)
    home = next(worker for worker in bench.workers if worker.history)
    bench.engine.worker_draining(home)
    bench.run()
    assert not home.lanes
    assert bench.sink.output_of("r") == solo((1, 2, 3), 20)
    assert bench.sink.finished["r", 0].num_readmissions == 1


def test_the_last_draining_worker_finishes_its_sequences():
    bench = Bench()
    bench.submit(max_tokens=20)
    bench.run(3)
    bench.engine.worker_draining(bench.worker)
    bench.submit("new")
    bench.run()
    assert bench.sink.output_of("r") == solo((1, 2, 3), 20)
    assert bench.engine.snapshot().gauges.num_waiting_for_worker == 1
