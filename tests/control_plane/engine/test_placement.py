"""Which worker runs a sequence, and what happens when it goes."""

from fakes.engine_doubles import Bench
from fakes.engine_worker import describe, solo

from control_plane.engine.ports import Failure


def two_workers(**changes) -> Bench:
    return Bench(describe(address="a:1"), describe(address="b:1", **changes))


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
    assert bench.metrics.total("replays_exhausted") == 1
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
