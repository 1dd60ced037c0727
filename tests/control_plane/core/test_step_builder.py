"""What a step contains, and at whose cost; driven by an engine with fake workers."""

import pytest
from fakes.control_plane.engine_doubles import Bench
from fakes.worker.strict_worker import describe, solo

from control_plane.engine.ports import Failure


def finish_order(bench: Bench) -> list[str]:
    return [name for name, _ in bench.front_end.finished]


# Budget


def test_every_decode_runs_in_every_step_beside_a_long_prefill():
    bench = Bench(max_step_tokens=16, max_steps_in_flight=1)
    for index in range(4):
        bench.submit(f"decode{index}", (index, 1), max_tokens=40)
    bench.run(2)
    bench.submit("long", tuple(range(90)) * 2, max_tokens=1)
    before = len(bench.front_end.output_of("decode3"))
    bench.run(10)
    assert len(bench.front_end.output_of("decode3")) == before + 10


def test_a_short_request_starts_while_a_huge_prompt_prefills():
    bench = Bench(max_step_tokens=32, max_steps_in_flight=1)
    bench.submit("huge", tuple(range(90)) * 2, max_tokens=1)
    bench.run(1)
    bench.submit("short", max_tokens=1)
    bench.run(2)
    assert ("short", 0) in bench.front_end.finished
    assert ("huge", 0) not in bench.front_end.finished


def test_a_lone_prefill_takes_the_whole_budget():
    bench = Bench(max_step_tokens=32)
    bench.submit("r", tuple(range(80)), max_tokens=1)
    bench.run()
    assert [step.num_tokens for step in bench.worker.history if step.num_tokens] == [32, 32, 16]


def test_a_long_prefill_takes_half_of_the_budget_while_others_wait_and_what_they_leave():
    bench = Bench(max_step_tokens=32, max_steps_in_flight=1)
    for name in ("a", "b", "c"):
        bench.submit(name, tuple(range(80)), cache_salt=name)
    bench.turn()
    assert list(bench.worker.steps[0].chunk_tokens) == [24, 8]
    bench.run()
    bench.submit("long", tuple(range(80)), cache_salt="d")
    bench.submit("short", (1, 2, 3, 4))
    bench.turn()
    assert list(bench.worker.steps[0].chunk_tokens) == [28, 4]


def test_no_more_sequences_run_than_the_budget_has_tokens():
    bench = Bench(max_step_tokens=3)
    for index in range(6):
        bench.submit(f"r{index}", (index, 1))
    bench.run()
    assert all(len(bench.front_end.output_of(f"r{index}")) == 8 for index in range(6))


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
    steady = [step for step in bench.worker.history[4:20] if not step.grown_lanes]
    assert len(steady) >= 8
    assert all(not (step.chunk_lanes or step.admissions or step.released_lanes or step.trimmed_lanes) for step in steady)


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
    assert bench.front_end.finished["important", 0].num_readmissions == 0
    assert bench.front_end.finished["other", 0].num_readmissions > 0
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
    assert list(step.chunk_tokens) == [0, 0]
    assert not step.grown_lanes
    bench.run()
    assert bench.metrics.total("preemptions") == 0
    assert [len(bench.front_end.output_of(name)) for name in ("first", "second")] == [8, 8]


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
    assert list(step.chunk_tokens) == [0, 2]
    assert not step.grown_lanes
    bench.run()
    assert bench.front_end.output_of("decode") == solo((1, 2, 3, 4), 8)
    assert bench.front_end.output_of("prefill") == solo(tuple(range(20)), 8)


def test_a_sequence_alone_uses_the_whole_pool():
    bench = Bench(describe(groups=[(4, 10, None)]))
    bench.submit("r", max_tokens=37)
    bench.run()
    assert bench.front_end.output_of("r") == solo((1, 2, 3), 37)
    assert bench.metrics.total("preemptions") == 0


def test_a_preempted_request_can_be_aborted():
    bench = Bench(describe(groups=[(4, 12, None)]))
    bench.submit("a", (1, 2), max_tokens=40)
    bench.submit("b", (3, 4), max_tokens=40)
    while not bench.metrics.total("preemptions") if bench.metrics.passes else True:
        bench.run(1)
    bench.engine.abort("b")
    bench.run()
    assert bench.front_end.failed["b"].failure is Failure.CANCELLED
    assert bench.front_end.output_of("a") == solo((1, 2), 40)
    bench.assert_at_rest()


# Prefix cache


@pytest.mark.parametrize(("length", "cached"), [(4, 0), (8, 4), (12, 8), (13, 12)])
def test_a_hit_leaves_a_token_to_compute(length, cached):
    bench = Bench()
    for name in ("first", "second"):
        bench.submit(name, tuple(range(length)), max_tokens=2)
        bench.run()
    assert bench.front_end.finished["second", 0].num_cached_tokens == cached
    assert bench.front_end.output_of("second") == solo(tuple(range(length)), 2)


def test_salts_separate_caches():
    bench = Bench()
    found = []
    for index, salt in enumerate(["a", "b", "", "a"]):
        bench.submit(f"r{index}", tuple(range(12)), cache_salt=salt)
        bench.run()
        found.append(bench.front_end.finished[f"r{index}", 0].num_cached_tokens)
    assert found == [0, 0, 0, 8]


def test_generated_pages_are_found_by_the_next_turn_of_a_conversation():
    bench = Bench()
    bench.submit("first", (1, 2, 3), max_tokens=14)
    bench.run()
    prompt = (1, 2, 3, *bench.front_end.output_of("first"), 4, 5)
    bench.submit("second", prompt)
    bench.run()
    assert bench.front_end.finished["second", 0].num_cached_tokens == 16


def test_preemption_does_not_change_the_cached_tokens_that_are_told():
    bench = Bench(describe(groups=[(4, 12, None)]))
    bench.submit("a", (1, 2), max_tokens=40)
    bench.submit("b", (3, 4), max_tokens=40)
    bench.run()
    assert bench.front_end.finished["b", 0].num_readmissions > 0
    assert bench.front_end.finished["b", 0].num_cached_tokens == 0


def test_the_cache_can_be_switched_off():
    bench = Bench(prefix_caching=False)
    for name in ("first", "second"):
        bench.submit(name, tuple(range(12)))
        bench.run()
    assert bench.front_end.finished["second", 0].num_cached_tokens == 0
