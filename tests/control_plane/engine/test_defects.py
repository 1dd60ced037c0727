"""Defects of ours, of workers and of listeners: who suffers from them, and that the loop goes on."""

import pytest
from fakes.control_plane.engine_doubles import Bench, make_choice, make_request
from fakes.worker.strict_worker import describe, solo

from control_plane.engine.ports import Failure

PROMPT = (1, 2, 3)


def failure_of(bench: Bench, request_id: str = "r") -> Failure:
    return bench.front_end.failed[request_id].failure


def test_a_number_that_is_taken_fails_its_request_only():
    bench, choice = Bench(), make_choice()
    bench.submit("a", choices=[choice])
    bench.engine.submit(make_request("b", choices=[choice]), bench.front_end)
    bench.run()
    assert failure_of(bench, "b") is Failure.INTERNAL
    assert bench.front_end.output_of("a") == solo(PROMPT, 8)


def test_a_defect_in_the_loop_ends_everything_and_the_loop_goes_on(monkeypatch):
    bench = Bench()
    bench.submit("a", max_tokens=20)
    bench.run(2)
    with monkeypatch.context() as patch:
        patch.setattr(bench.scheduler, "schedule", lambda now: 1 / 0)
        bench.engine.turn()
    assert failure_of(bench, "a") is Failure.INTERNAL
    assert not bench.engine.state().snapshot.healthy
    bench.worker.finish_reset()
    bench.submit("b", max_tokens=5)
    bench.engine.turn()
    bench.worker.run_step()
    bench.run()
    assert bench.front_end.output_of("b") == solo(PROMPT, 5)
    assert bench.engine.state().snapshot.healthy


def test_health_comes_back_without_traffic_once_the_workers_are_reset(monkeypatch):
    bench = Bench(describe(), describe(address="worker:2"))
    with monkeypatch.context() as patch:
        patch.setattr(bench.scheduler, "schedule", lambda now: 1 / 0)
        bench.engine.turn()
    bench.workers[0].finish_reset()
    bench.engine.turn()
    assert not bench.engine.state().snapshot.healthy
    bench.workers[1].finish_reset()
    bench.clock.now += 1.0
    bench.engine.turn()
    assert bench.engine.snapshot.healthy


def test_a_defect_while_a_worker_goes_ends_everything_and_leaves_no_ghost_of_it(monkeypatch):
    bench = Bench()
    bench.submit("a", max_tokens=20)
    bench.turn()
    bench.worker.run_step()
    with monkeypatch.context() as patch:
        patch.setattr(bench.scheduler, "update", lambda replica, result: 1 / 0)
        bench.lose(bench.worker)
    bench.engine.turn()
    assert failure_of(bench, "a") is Failure.INTERNAL
    assert not bench.engine.state().snapshot.workers
    bench.join(describe())
    bench.submit("b", max_tokens=5)
    bench.engine.turn()
    bench.worker.run_step()
    bench.run()
    assert bench.front_end.output_of("b") == solo(PROMPT, 5)


@pytest.mark.parametrize(
    ("broken", "act"),
    [
        ("finish", lambda bench: bench.end("a", Failure.CANCELLED, "why")),
        ("hold", lambda bench: bench.hold("a")),
        ("drain_replica", lambda bench: bench.engine.worker_draining(bench.worker)),
        ("reset_replica", lambda bench: bench.engine.digest_mismatch(bench.worker, 1)),
        ("_move_all", lambda bench: bench.lose(bench.worker)),
    ],
)
def test_a_defect_outside_a_pass_ends_everything_too(broken, act, monkeypatch):
    bench = Bench(describe(), describe(address="worker:2"))
    for name in "ab":
        bench.submit(name, max_tokens=20)
    bench.run(2)
    with monkeypatch.context() as patch:
        patch.setattr(bench.scheduler, broken, lambda *_: 1 / 0)
        act(bench)
    bench.engine.turn()
    assert [failure_of(bench, name) for name in "ab"] == [Failure.INTERNAL] * 2
    assert not bench.engine.state().snapshot.healthy
    for worker in bench.workers:
        worker.finish_reset()
    bench.submit("c")
    bench.run()
    assert bench.front_end.output_of("c") == solo(PROMPT, 8)


@pytest.mark.parametrize(("broken", "num_failed"), [("submit", 2), ("finish", 1)])
def test_a_defect_while_a_resume_takes_over_ends_each_request_once(broken, num_failed, monkeypatch):
    bench = Bench()
    bench.submit("r", max_tokens=20)
    bench.run(2)
    with monkeypatch.context() as patch:
        patch.setattr(bench.scheduler, broken, lambda *_: 1 / 0)
        bench.submit("r", max_tokens=20, takes_over=True)
    bench.engine.turn()
    assert len(bench.metrics.total("failed")) == num_failed
    bench.worker.finish_reset()
    bench.front_end.forget()
    bench.run()
    assert bench.front_end.output_of("r") == (solo(PROMPT, 20) if num_failed == 1 else [])


def test_a_defect_before_a_digest_differs_resets_the_worker(monkeypatch):
    bench = Bench()
    bench.submit("a", max_tokens=20)
    bench.turn()
    bench.worker.run_step()
    with monkeypatch.context() as patch:
        patch.setattr(bench.scheduler, "update", lambda replica, result: 1 / 0)
        bench.engine.digest_mismatch(bench.worker, 2)
    bench.engine.turn()
    assert failure_of(bench, "a") is Failure.INTERNAL
    assert bench.worker.num_resets == 1


def test_a_lost_page_is_noticed_once_nothing_is_left_to_do():
    bench = Bench()
    bench.submit()
    bench.run()
    bench.scheduler.replicas[0].kv._pools[0][0].allocate()
    bench.clock.now += 1.0
    bench.engine.turn()
    assert not bench.engine.state().snapshot.healthy
    bench.worker.finish_reset()
    bench.scheduler.check_integrity()


def test_a_front_end_that_fails_does_not_stop_the_loop(monkeypatch):
    bench = Bench()
    bench.submit("r", max_tokens=20)
    bench.run(2)
    bench.submit("other")
    with monkeypatch.context() as patch:
        patch.setattr(bench.front_end, "publish", lambda outputs: 1 / 0)
        bench.engine.turn()
    assert not bench.engine.state().snapshot.healthy
    bench.engine.turn()
    assert bench.engine.state().snapshot.healthy
    bench.run()
    assert bench.front_end.output_of("r") == solo(PROMPT, 20)


def test_a_step_that_cannot_be_sent_resets_the_worker(monkeypatch):
    bench = Bench()
    bench.submit(max_tokens=20)
    with monkeypatch.context() as patch:
        patch.setattr(bench.worker, "submit", lambda step: 1 / 0)
        bench.turn()
    assert bench.worker.num_resets == 1
    bench.worker.finish_reset()
    bench.run()
    assert bench.front_end.output_of("r") == solo(PROMPT, 20)


def test_a_request_whose_steps_can_never_be_sent_is_given_up(monkeypatch):
    bench = Bench()
    bench.submit(max_tokens=20)
    monkeypatch.setattr(bench.worker, "submit", lambda step: 1 / 0)
    for _ in range(3):
        assert not bench.front_end.failed
        bench.turn()
        bench.worker.finish_reset()
    bench.turn()
    assert failure_of(bench) is Failure.ABORTED


def test_a_failed_step_of_a_worker_that_is_lost_resets_nobody():
    bench = Bench()
    bench.submit(max_tokens=20)
    bench.turn()
    bench.worker.failing = "out of memory"
    bench.worker.run_step()
    bench.lose(bench.worker)
    bench.join(describe())
    bench.run()
    assert bench.front_end.output_of("r") == solo(PROMPT, 20)
