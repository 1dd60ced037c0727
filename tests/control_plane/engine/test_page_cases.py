"""Cases of requests that want more pages or a larger share of the budget than there is."""

from fakes.control_plane.engine_doubles import Bench
from fakes.worker.strict_worker import describe, solo

from control_plane.engine.ports import Failure, FinishReason


def small_pool(num_pages: int, **options) -> Bench:
    """One worker with pages of 16 tokens."""
    return Bench(describe(groups=[(16, num_pages, None)]), **options)


def test_kvx_01_a_prompt_that_can_never_fit_is_refused_at_once_and_blocks_nobody():
    bench = small_pool(10)
    bench.submit("huge", tuple(range(90)) + tuple(range(90)) + tuple(range(20)))
    bench.submit("short")
    bench.run()
    refusal = bench.front_end.failed["huge"]
    assert refusal.failure is Failure.INVALID_ARGUMENT
    assert "208" in refusal.message and "160" in refusal.message
    assert bench.front_end.output_of("short") == solo((1, 2, 3), 8)


def test_kvx_02_output_beyond_the_pool_is_refused_and_output_up_to_its_end_runs():
    bench, prompt = small_pool(10), tuple(range(90)) + tuple(range(10))
    bench.submit("more", prompt, max_tokens=1000)
    bench.submit("all", prompt, max_tokens=60)
    bench.run()
    assert bench.front_end.failed["more"].failure is Failure.INVALID_ARGUMENT
    assert bench.front_end.finished["all", 0].reason is FinishReason.LENGTH
    assert bench.front_end.output_of("all") == solo(prompt, 60)
    assert bench.metrics.total("preemptions") == 0
    bench.submit("canary")
    bench.run()
    assert bench.front_end.output_of("canary") == solo((1, 2, 3), 8)


def test_kvx_03_preempted_requests_generate_the_same_tokens_each_once():
    bench = small_pool(11)
    prompts = {f"r{index}": tuple(range(index, index + 20)) for index in range(4)}
    for name, prompt in prompts.items():
        bench.submit(name, prompt, max_tokens=60)
    bench.run()
    assert bench.metrics.total("preemptions") >= 1
    for name, prompt in prompts.items():
        assert bench.front_end.output_of(name) == solo(prompt, 60)
        assert bench.front_end.finished[name, 0].num_generated_tokens == 60


def test_kvx_04_a_long_prefill_shuts_nobody_out():
    bench = Bench(describe(groups=[(16, 600, None)], max_model_len=8192), max_step_tokens=64)
    for index in range(4):
        bench.submit(f"decode{index}", (index, 1), max_tokens=200)
    bench.run(3)
    bench.submit("long", tuple(index % 97 for index in range(6400)), max_tokens=1)
    bench.run(2)
    before = len(bench.front_end.output_of("decode3"))
    bench.submit("newcomer", tuple(range(10)), max_tokens=2)
    bench.run(4)
    assert len(bench.front_end.output_of("decode3")) == before + 4
    assert ("newcomer", 0) in bench.front_end.finished
    assert ("long", 0) not in bench.front_end.finished


def rounds_of_short_requests(with_huge: bool) -> list[int]:
    """How many rounds each of some short requests takes beside running ones, and a huge prompt that came before."""
    bench = Bench(describe(groups=[(16, 600, None)], max_model_len=8192, max_lanes=20), max_step_tokens=64)
    for index in range(4):
        bench.submit(f"decode{index}", (index, 1), max_tokens=300)
    bench.run(3)
    if with_huge:
        bench.submit("huge", tuple(index % 97 for index in range(6400)), max_tokens=1)
    taken = []
    for index in range(12):
        bench.run(index % 4)
        bench.submit(f"short{index}", (index, *range(19)), max_tokens=1)
        taken.append(0)
        while (f"short{index}", 0) not in bench.front_end.finished:
            bench.run(1)
            taken[-1] += 1
    assert ("huge", 0) not in bench.front_end.finished
    return taken


def test_kvx_04_one_huge_prompt_delays_short_ones_by_one_step_at_most():
    alone, beside = rounds_of_short_requests(False), rounds_of_short_requests(True)
    assert all(slow - quick <= 1 for quick, slow in zip(alone, beside, strict=True)), (alone, beside)


def test_kvx_06_a_preempted_request_that_is_cancelled_is_gone():
    bench = Bench(describe(groups=[(4, 8, None)]))
    for index in range(100):
        a, b = f"a{index}", f"b{index}"
        bench.submit(a, (1, 2, 3, 4), max_tokens=24, priority=-1)
        bench.submit(b, (5, 6, 7, 8), max_tokens=24)
        bench.turn()
        while bench.scheduler.counters.preemptions == index:
            bench.run(1)
        assert bench.engine.abort(b)
        bench.run()
        assert bench.front_end.failed[b].failure is Failure.CANCELLED
        assert bench.front_end.output_of(a) == solo((1, 2, 3, 4), 24)
        bench.assert_at_rest()
