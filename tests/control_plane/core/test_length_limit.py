"""How long a request may be beside workers of different sizes; driven by an engine with fake workers."""

import pytest
from fakes.control_plane.engine_doubles import Bench
from fakes.worker.strict_worker import describe, solo

from control_plane.engine.ports import Failure


def pages(num_pages: int, address: str = "a:1", page_tokens: int = 16, **changes):
    return describe(address=address, groups=[(page_tokens, num_pages, None)], max_model_len=100_000, **changes)


def limit(bench: Bench) -> int:
    return bench.engine.state().snapshot.max_model_len


@pytest.mark.parametrize(("num_pages", "expected"), [(250, 3968), (249, 3968), (248, 3968), (247, 3840), (3, 48), (65_536, 2**17 * 8)])
def test_the_limit_that_pages_set_is_rounded_down_by_a_sixteenth_at_most(num_pages, expected):
    found = limit(Bench(pages(num_pages, page_tokens=16)))
    assert found == min(expected, 100_000)
    assert num_pages * 16 >= found >= min(100_000, num_pages * 16 * 15 / 16)


def test_a_worker_that_comes_back_one_page_smaller_is_taken():
    bench = Bench(pages(250))
    bench.submit("r", max_tokens=3000)
    bench.run(20)
    bench.lose(bench.worker)
    bench.join(pages(249))
    bench.run(100)
    assert len(bench.front_end.output_of("r")) > 100
    bench.submit("long", max_tokens=3965)
    bench.turn()
    assert not bench.front_end.failed


def test_what_fits_runs_on_a_small_worker_and_the_rest_on_a_large_one():
    bench = Bench(pages(20, "large:1"), pages(4, "small:1"))
    for index in range(4):
        bench.submit(f"long{index}", (index, 1), max_tokens=200)
    bench.submit("short", max_tokens=40)
    bench.run(3)
    assert [worker.num_running for worker in bench.engine.state().snapshot.workers] == [4, 1]
    bench.run()
    assert len(bench.front_end.finished) == 5
    assert limit(bench) == 320


def test_the_limit_falls_when_no_large_worker_has_been_there_for_the_grace_time():
    bench = Bench(pages(20), grace_seconds=30.0)
    bench.submit("running", max_tokens=200)
    bench.run(10)
    bench.lose(bench.worker)
    bench.join(pages(4))
    bench.submit("early", max_tokens=200)
    bench.submit("short", max_tokens=20)
    bench.run()
    assert bench.front_end.output_of("short") == solo((1, 2, 3), 20)
    assert (limit(bench), bench.front_end.failed) == (320, {})
    bench.clock.now += 30.0
    bench.turn()
    assert limit(bench) == 64
    for name in ("running", "early"):
        assert bench.front_end.failed[name].failure is Failure.UNAVAILABLE
        assert bench.front_end.failed[name].message.endswith(" that holds 203 tokens (the largest holds 64) within 30 s")
    bench.submit("late", max_tokens=200)
    bench.turn()
    assert bench.front_end.failed["late"].failure is Failure.INVALID_ARGUMENT
    bench.submit("resumed", max_tokens=200, resumed=[4, 5], takes_over=True)
    bench.turn()
    assert bench.front_end.failed["resumed"].failure is Failure.UNAVAILABLE


def test_a_large_worker_that_comes_back_in_time_goes_on_and_the_limit_stays():
    bench = Bench(pages(20), grace_seconds=30.0)
    bench.submit("r", max_tokens=200)
    bench.run(10)
    bench.lose(bench.worker)
    bench.join(pages(4, "small:1"))
    bench.clock.now += 20.0
    bench.turn()
    bench.join(pages(20))
    bench.run()
    bench.clock.now += 20.0
    bench.turn()
    assert bench.front_end.output_of("r") == solo((1, 2, 3), 200)
    assert limit(bench) == 320


def test_the_limit_rises_when_a_larger_worker_comes():
    bench = Bench(pages(4))
    bench.join(pages(20, "large:1"))
    bench.submit("r", max_tokens=200)
    bench.run()
    assert bench.front_end.output_of("r") == solo((1, 2, 3), 200)


def test_a_small_worker_that_drains_is_no_place_for_what_a_large_one_runs():
    bench = Bench(pages(20, "large:1"))
    bench.submit("r", max_tokens=200)
    bench.run(10)
    bench.join(pages(4, "small:1"))
    bench.engine.worker_draining(bench.worker)
    bench.run()
    assert bench.front_end.finished["r", 0].num_readmissions == 0
