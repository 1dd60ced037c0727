"""What may wait, and what is in nobody's way."""

from fakes.control_plane.engine_doubles import Bench
from fakes.worker.strict_worker import describe, solo

from control_plane.engine.options import EngineOptions
from control_plane.engine.ports import Failure

PROMPT = (1, 2, 3)


def full_bench(limit: int = 10) -> Bench:
    """One lane that is taken, and a queue that newcomers have filled."""
    bench = Bench(describe(max_lanes=1), engine_options=EngineOptions(max_queued_requests=limit))
    bench.submit("runs", max_tokens=60)
    bench.turn()
    for index in range(limit + 3):
        bench.submit(f"new{index}")
    bench.turn()
    assert {failed.failure for failed in bench.front_end.failed.values()} == {Failure.QUEUE_FULL}
    assert len(bench.front_end.failed) == 3
    return bench


def resume(bench: Bench, name: str, numerics_id: str = "fake") -> None:
    bench.submit(name, PROMPT, resumed=solo(PROMPT, 3), numerics_id=numerics_id, takes_over=True)


def test_resumes_find_room_in_a_queue_that_newcomers_filled_but_not_without_end():
    bench = full_bench()
    for index in range(8):
        resume(bench, f"old{index}")
    bench.turn()
    refused = [name for name in bench.front_end.failed if name.startswith("old")]
    assert refused == ["old5", "old6", "old7"]
    assert "limit 15" in bench.front_end.failed["old5"].message
    bench.run()
    assert all(bench.front_end.output_of(f"old{index}") == solo(PROMPT, 8)[3:] for index in range(5))


def test_what_no_worker_can_take_keeps_nobody_out_and_is_bounded_too():
    bench = Bench(describe(max_lanes=1), describe(address="b:1", numerics_id="gone"), engine_options=EngineOptions(max_queued_requests=10))
    bench.lose(bench.workers[1])
    bench.submit("runs", max_tokens=60)
    bench.turn()
    for index in range(20):
        resume(bench, f"old{index}", "gone")
    for index in range(10):
        bench.submit(f"new{index}")
    bench.turn()
    assert sorted(bench.front_end.failed) == sorted(f"old{index}" for index in range(15, 20))
    bench.run()
    assert sum(name.startswith("new") for name, _ in bench.front_end.finished) == 10


def test_a_resume_under_numerics_never_seen_waits_after_a_start_and_is_refused_later():
    bench = Bench(grace_seconds=30.0)
    resume(bench, "early", "other")
    bench.clock.now += 29.0
    bench.turn()
    assert not bench.front_end.failed
    bench.clock.now += 1.0
    resume(bench, "late", "other")
    bench.turn()
    assert bench.front_end.failed["late"].failure is Failure.UNAVAILABLE
    assert bench.front_end.failed["late"].message == "no worker with numerics id 'other' has been in session"


def test_made_up_numerics_ids_are_few_at_a_time():
    bench = Bench()
    for index in range(100):
        resume(bench, f"r{index}", f"made up {index}")
    resume(bench, "r3 again", "made up 3")
    bench.turn()
    assert len(bench.front_end.failed) == 84
    assert "r3 again" not in bench.front_end.failed
    assert bench.engine.state().snapshot.num_waiting_for_worker == 17


def test_numerics_that_were_there_are_waited_for_at_any_time():
    bench = Bench(describe(), describe(address="b:1", numerics_id="other"), grace_seconds=30.0)
    bench.lose(bench.workers[1])
    bench.clock.now += 100.0
    resume(bench, "r", "other")
    bench.turn()
    assert not bench.front_end.failed
    bench.join(describe(address="b:1", numerics_id="other"))
    bench.run()
    assert bench.front_end.output_of("r") == solo(PROMPT, 8)[3:]
