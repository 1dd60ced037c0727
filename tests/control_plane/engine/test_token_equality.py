"""The same request gives the same tokens, whatever happens around it."""

import pytest
from fakes.control_plane.engine_doubles import Bench
from fakes.worker.strict_worker import describe, solo

PROMPT = tuple(range(1, 20))
EXPECTED = solo(PROMPT, 40)


def prompt_of(index: int) -> tuple[int, ...]:
    return tuple((index * 7 + position * 3) % 90 for position in range(5 + index % 13))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("budget", [1, 3, 4, 5, 64])
def test_chunk_size_and_pipelining_do_not_matter(depth, budget):
    bench = Bench(max_step_tokens=budget, max_steps_in_flight=depth)
    bench.submit("r", PROMPT, max_tokens=40)
    bench.run()
    assert bench.front_end.output_of("r") == EXPECTED
    bench.assert_at_rest()


@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9])
@pytest.mark.parametrize("budget", [3, 4, 5])
def test_prompts_around_the_edges_of_pages_and_chunks(length, budget):
    bench = Bench(max_step_tokens=budget)
    bench.submit("r", PROMPT[:length], max_tokens=10)
    bench.run()
    assert bench.front_end.output_of("r") == solo(PROMPT[:length], 10)


@pytest.mark.parametrize("depth", [1, 2])
def test_other_sequences_do_not_matter(depth):
    bench = Bench(max_steps_in_flight=depth)
    for index in range(31):
        bench.submit(f"other{index}", prompt_of(index), max_tokens=10 + index)
    bench.submit("r", PROMPT, max_tokens=40)
    bench.run()
    assert bench.front_end.output_of("r") == EXPECTED
    for index in range(31):
        assert bench.front_end.output_of(f"other{index}") == solo(prompt_of(index), 10 + index)
    bench.assert_at_rest()


@pytest.mark.parametrize("depth", [1, 2])
def test_preemption_does_not_matter(depth):
    bench = Bench(describe(groups=[(4, 17, None)]), max_steps_in_flight=depth)
    for index in range(4):
        bench.submit(f"r{index}", prompt_of(index), max_tokens=45)
    bench.run()
    assert bench.metrics.total("preemptions") >= 2
    assert max(bench.front_end.finished[f"r{index}", 0].num_readmissions for index in range(4)) >= 2
    for index in range(4):
        assert bench.front_end.output_of(f"r{index}") == solo(prompt_of(index), 45)
    bench.assert_at_rest()


def test_a_prefix_hit_does_not_matter():
    bench = Bench()
    bench.submit("first", PROMPT, max_tokens=40)
    bench.run()
    bench.submit("second", PROMPT, max_tokens=40)
    bench.run()
    assert bench.front_end.finished["second", 0].num_cached_tokens == 16
    assert bench.front_end.output_of("second") == EXPECTED


@pytest.mark.parametrize("rounds", [1, 2, 5, 9])
def test_a_worker_lost_midway_does_not_matter(rounds):
    bench = Bench(describe(), max_step_tokens=8)
    bench.submit("r", PROMPT, max_tokens=40)
    bench.run(rounds)
    bench.lose(bench.worker)
    bench.join(describe(incarnation="b"))
    bench.run()
    assert bench.front_end.output_of("r") == EXPECTED
    assert bench.front_end.finished["r", 0].num_readmissions == 1


@pytest.mark.parametrize("rounds", [1, 4])
def test_a_reset_midway_does_not_matter(rounds):
    bench = Bench(max_step_tokens=8)
    bench.submit("r", PROMPT, max_tokens=40)
    bench.run(rounds)
    bench.engine.digest_mismatch(bench.worker, 1)
    bench.worker.finish_reset()
    bench.run()
    assert bench.front_end.output_of("r") == EXPECTED


@pytest.mark.parametrize("group", [(4, 7, 6), (4, 64, 6), (4, 6, 16), (1, 16, 3)])
def test_sliding_groups_do_not_matter(group):
    bench = Bench(describe(groups=[(4, 64, None), group]))
    bench.submit("r", PROMPT, max_tokens=40)
    bench.submit("again", PROMPT, max_tokens=40, priority=1)
    bench.run()
    assert bench.front_end.output_of("r") == bench.front_end.output_of("again") == EXPECTED
    bench.assert_at_rest()


def test_a_resume_continues_with_the_same_tokens():
    bench = Bench()
    bench.submit("r", PROMPT, max_tokens=40, resumed=EXPECTED[:13])
    bench.run()
    assert bench.front_end.output_of("r") == EXPECTED[13:]
