"""Which worker runs a sequence, and what happens when it goes; driven by an engine with fake workers."""

from fakes.control_plane.engine_doubles import Bench
from fakes.worker.strict_worker import StrictWorker, describe, solo

from control_plane.engine.ports import Failure


def two_workers(**changes) -> Bench:
    return Bench(describe(address="a:1"), describe(address="b:1", **changes))


def test_requests_spread_over_workers():
    bench = two_workers()
    for index in range(6):
        bench.submit(f"r{index}", (index, 1))
    bench.turn()
    assert [worker.num_running for worker in bench.engine.state().snapshot.workers] == [3, 3]


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
    assert bench.engine.state().snapshot.num_waiting_for_worker == 1
    bench.join(home.description)
    bench.run()
    assert bench.front_end.output_of("r") == solo((1, 2, 3), 20)


def test_a_sequence_whose_numerics_are_gone_ends_after_the_grace_time():
    bench = two_workers(numerics_id="other")
    bench.submit(max_tokens=20)
    bench.run(3)
    bench.lose(next(worker for worker in bench.workers if worker.history))
    bench.clock.now += 31.0
    bench.run()
    assert bench.front_end.failed["r"].failure is Failure.UNAVAILABLE


def test_a_change_of_numerics_can_be_allowed_and_is_counted():
    bench = Bench(describe(), describe(numerics_id="other"), continue_on_numerics_change=True)
    bench.submit(max_tokens=20)
    bench.run(3)
    bench.lose(next(worker for worker in bench.workers if worker.history))
    bench.run()
    assert bench.front_end.output_of("r") == solo((1, 2, 3), 20)
    assert bench.metrics.total("numerics_changes") == 1


def test_a_request_that_takes_every_worker_down_is_given_up():
    bench = Bench(describe(), max_losses=3)
    bench.submit(max_tokens=20)
    for _ in range(3):
        bench.turn()
        bench.lose(bench.worker)
        bench.join(describe())
    bench.run()
    assert bench.front_end.failed["r"].failure is Failure.ABORTED
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
    assert bench.front_end.output_of("r") == solo((1, 2, 3), 20)


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
    assert bench.front_end.failed["r"].failure is Failure.ABORTED
    assert "out of memory" in bench.front_end.failed["r"].message


def test_a_draining_worker_hands_its_sequences_over():
    bench = two_workers()
    bench.submit(max_tokens=20)
    bench.run(3)
    home = next(worker for worker in bench.workers if worker.history)
    bench.engine.worker_draining(home)
    bench.run()
    assert not home.lanes
    assert bench.front_end.output_of("r") == solo((1, 2, 3), 20)
    assert bench.front_end.finished["r", 0].num_readmissions == 1


def test_the_last_draining_worker_finishes_its_sequences():
    bench = Bench()
    bench.submit(max_tokens=20)
    bench.run(3)
    bench.engine.worker_draining(bench.worker)
    bench.submit("new")
    bench.run()
    assert bench.front_end.output_of("r") == solo((1, 2, 3), 20)
    assert bench.engine.state().snapshot.num_waiting_for_worker == 1


def test_lanes_spread_over_the_partitions_of_a_worker():
    bench = Bench(describe(groups=[(4, 200, None)], num_partitions=4, max_lanes=64), max_step_tokens=64)
    for index in range(64):
        bench.submit(f"r{index}", (index, 1))
    bench.run(6)
    partitions = [sequence.pages.partition for sequence in bench.scheduler.replicas[0].running]
    assert [partitions.count(partition) for partition in range(4)] == [16] * 4


def test_requests_that_want_a_busy_worker_hide_nobody_from_an_idle_one():
    bench, prefix = two_workers(), tuple(range(160))
    bench.submit("warm", prefix, max_tokens=1)
    bench.run()
    busy = next(worker for worker in bench.workers if worker.history)
    for index in range(2):
        bench.submit(f"first{index}", (*prefix, index), max_tokens=60)
        bench.turn()
    num_sent = len(busy.steps)
    for index in range(40):
        bench.submit(f"same{index}", (*prefix, 2 + index), max_tokens=1)
    bench.submit("other", max_tokens=1)
    bench.turn()
    (idle,) = [worker for worker in bench.workers if worker is not busy]
    assert len(busy.steps) == num_sent == 2
    assert (1, 2, 3) in [tuple(admission.token_ids) for step in idle.steps for admission in step.admissions]
    bench.run()
    assert len(bench.front_end.finished) == 44


def home_of(bench: Bench, *token_ids: int) -> StrictWorker:
    """The worker that a request was admitted to."""
    admitted = ((worker, admission) for worker in bench.workers for step in worker.history for admission in step.admissions)
    return next(worker for worker, admission in admitted if tuple(admission.token_ids) == token_ids)


def test_pages_for_a_big_request_are_saved_on_the_worker_that_can_promise_them_soonest():
    bench = Bench(*(describe(address=f"{name}:1", groups=[(4, 60, None)], max_model_len=240) for name in "abcd"), max_overtakes=5)
    for index, max_tokens in enumerate((200, 120, 180, 160)):
        bench.submit(f"running{index}", (index,), max_tokens=max_tokens)
    bench.run(100)
    big = tuple(token % 97 for token in range(200))
    bench.submit("big", big, max_tokens=1)
    soonest = home_of(bench, 1)
    before = {worker: len(worker.history) for worker in bench.workers}
    for index in range(19):
        bench.submit(f"small{index}", (index, 2), max_tokens=2)
        bench.run(1)
    assert len(bench.front_end.finished) > 10, "small ones run elsewhere all the time"
    small = {worker: sum(len(step.admissions) for step in worker.history[before[worker] :]) for worker in bench.workers}
    assert small.pop(soonest) <= 3
    assert min(small.values()) > 3
    bench.run()
    assert home_of(bench, *big) is soonest


def test_a_newcomer_starts_within_a_round_of_workers_that_answer_one_after_the_other():
    bench = Bench(*(describe(address=f"w{index}:1", groups=[(4, 400, None)], max_lanes=12) for index in range(6)), max_step_tokens=64)
    for index in range(60):
        bench.submit(f"r{index}", (index, 1), max_tokens=100)
    bench.run(3)
    for index in range(8):
        bench.submit(f"new{index}", (90, index), max_tokens=100)
        for worker in bench.workers:
            worker.run_step()
            bench.turn()
        assert not bench.scheduler.waiting
