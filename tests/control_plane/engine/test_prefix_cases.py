"""Cases of the prefix cache: what may be found, and what is told about it."""

import pytest
from fakes.control_plane.engine_doubles import Bench
from fakes.worker.strict_worker import describe, solo

X, Y, Z = (tuple(range(first, first + 16)) for first in (0, 20, 40))


def bench_of(num_pages: int = 64) -> Bench:
    """One worker with pages of 16 tokens."""
    return Bench(describe(groups=[(16, num_pages, None)]))


def cached(bench: Bench, name: str, prompt: tuple[int, ...], **changes) -> int:
    """Run a request alone, check its tokens, and tell how many of its prompt's came from the cache."""
    bench.submit(name, prompt, **{"max_tokens": 2, **changes})
    bench.run()
    assert bench.front_end.output_of(name) == solo(prompt, changes.get("max_tokens", 2))
    return bench.front_end.finished[name, 0].num_cached_tokens


@pytest.mark.parametrize("length", [16, 32, 48])
def test_pfx_01_a_prompt_wholly_in_the_cache_computes_one_token_at_least(length):
    bench, prompt = bench_of(), (X + Y + Z)[:length]
    assert [cached(bench, f"r{index}", prompt) for index in range(3)] == [0, length - 16, length - 16]


def test_pfx_01_cached_prompts_of_all_lengths_run_at_the_same_time():
    bench, prompt = bench_of(), X + Y + Z
    for turn in range(2):
        for length in (16, 32, 48):
            bench.submit(f"{turn}:{length}", prompt[:length], max_tokens=2)
        bench.run()
        assert all(bench.front_end.output_of(f"{turn}:{length}") == solo(prompt[:length], 2) for length in (16, 32, 48))


@pytest.mark.parametrize("second", [Y + X, Z + Y, Y])
def test_pfx_02_a_block_is_found_behind_the_same_history_only(second):
    bench = bench_of()
    assert [cached(bench, "first", X + Y), cached(bench, "second", (*second, 90))] == [0, 0]


def test_pfx_03_prompts_that_collide_under_weak_hashes_share_nothing():
    bench, prompt = bench_of(), (*range(32, 48), 90)
    found = [cached(bench, "r", prompt)]
    for index in range(15):
        changed = list(prompt)
        changed[index] += 31
        changed[index + 1] -= 1
        found.append(cached(bench, f"r{index}", tuple(changed)))
    assert found == [0] * 16


def test_pfx_06_evicted_pages_lose_their_names():
    bench = bench_of(num_pages=8)
    prompts = {name: tuple(range(first, first + 64)) for name, first in (("p", 0), ("q", 7), ("r", 14), ("s", 21))}
    found = [cached(bench, f"{name}{index}", prompts[name]) for index, name in enumerate("pqrspqq")]
    assert found[:6] == [0] * 6
    assert found[6] == 48


@pytest.mark.parametrize("cancels", [False, True])
def test_pfx_07_a_page_is_found_once_the_step_that_fills_it_is_acknowledged(cancels):
    bench, prompt = Bench(describe(groups=[(4, 64, None)]), max_step_tokens=8), X + Y
    bench.submit("first", prompt, max_tokens=2)
    bench.turn()
    bench.worker.run_step()
    assert [step.num_tokens for step in bench.worker.steps] == [8]
    if cancels:
        bench.turn()
        bench.engine.abort("first")
        bench.worker.run_step()
    bench.submit("second", prompt, max_tokens=2)
    bench.turn()
    (admission,) = bench.worker.steps[-1].admissions
    assert admission.num_computed_tokens == 8
    bench.run()
    assert bench.front_end.output_of("second") == solo(prompt, 2)


def test_pfx_07_pages_of_a_step_that_failed_are_not_found():
    bench, prompt = Bench(describe(groups=[(4, 64, None)]), max_step_tokens=8), X + Y
    bench.worker.failing_lanes[0] = "not a number"  # in the last chunk, which draws
    bench.submit("first", prompt, max_tokens=2)
    bench.run()
    assert "first" in bench.front_end.failed
    assert cached(bench, "second", prompt) == 0


def test_pfx_08_cached_tokens_are_those_of_the_first_admission():
    bench, prompt = bench_of(), (X + Y + Z)[:40]
    assert [cached(bench, f"r{index}", prompt) for index in range(3)] == [0, 32, 32]
    bench.submit("preempted", prompt, max_tokens=20)
    bench.run(3)
    sequence = bench.scheduler.replicas[0].running[0]
    bench.scheduler.readmit(sequence, bench.clock.now)
    bench.run()
    assert sequence.num_admissions == 2
    assert bench.front_end.finished["preempted", 0].num_cached_tokens == 32
    assert bench.front_end.output_of("preempted") == solo(prompt, 20)
