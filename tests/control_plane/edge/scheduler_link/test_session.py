"""What both sides of a session tell each other beside requests."""

from fakes.control_plane.front_end_calls import make_request
from harness.waiting import until

from control_plane.core.pages.page_pool import PageCounts
from control_plane.edge.scheduler_link.options import FrontEndNumbers
from control_plane.engine.ports import Failure
from control_plane.engine.snapshot import EngineSnapshot, RefusedWorker, WorkerSnapshot
from pypto_serving.log.v1 import log_pb2

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
WORKER = WorkerSnapshot("host:1", "i", 2, "n", 3, 4, 5, 6, PageCounts(1, 2, 3, 4))


async def test_the_snapshot_is_that_of_the_scheduler(front_end, scheduler):
    scheduler.engine.snapshot = EngineSnapshot((WORKER,), 1, 2, 3, 4, 5, 6, 7, 8.5, True)
    await until(lambda: front_end.link.snapshot == scheduler.engine.snapshot)
    await scheduler.kill()
    await until(lambda: not front_end.link.snapshot.healthy)
    assert front_end.link.snapshot.workers == () and front_end.link.snapshot.max_model_len == 7


async def test_numbers_are_stale_once_the_process_has_waited_for_new_ones(make_scheduler, start_front_end):
    clock, active_clock = [100.0], [0.0]
    scheduler = make_scheduler(heartbeat_seconds=3600.0)  # it tells them at the beginning of the session only
    await scheduler.start()
    scheduler.engine.snapshot = EngineSnapshot((WORKER,))
    front_end = start_front_end(scheduler, clock=lambda: clock[0], active_clock=lambda: active_clock[0])
    await until(lambda: front_end.link.snapshot.workers)
    clock[0] += 3600.0  # the process stood still
    assert front_end.link.snapshot.workers == (WORKER,) and front_end.link.snapshot.healthy
    active_clock[0] += 1.6
    assert front_end.link.snapshot.workers == () and not front_end.link.snapshot.healthy
    assert front_end.link.snapshot.trouble == "the scheduler has not said for 1.5 s how it is"


async def test_the_scheduler_is_told_numbers_and_metrics(front_end, scheduler):
    front_end.numbers = FrontEndNumbers(1, 2, 3)
    await until(lambda: scheduler.service.front_ends and scheduler.service.front_ends[0].num_calls)
    view = scheduler.service.front_ends[0]
    assert (view.num_calls, view.num_held_back, view.num_unwritten_bytes, view.metrics) == (1, 2, 3, b"series 1\n")


async def test_a_new_scheduler_is_told_metrics_at_once(start_front_end, scheduler):
    start_front_end(scheduler, metrics_seconds=3600.0)
    for _ in range(2):
        await until(lambda: scheduler.service.front_ends and scheduler.service.front_ends[0].metrics)
        await scheduler.kill()
        await scheduler.start()


async def test_a_drain_of_the_operator_is_told(front_end, scheduler):
    await until(lambda: scheduler.service.front_ends)
    scheduler.service.drain()
    await until(lambda: front_end.num_drains)


async def test_a_log_level_is_told(front_end, scheduler):
    await until(lambda: scheduler.service.front_ends)
    [session] = scheduler.service._profiler.participants
    assert session.knows_log_levels
    session.set_log_level(log_pb2.LevelChange(level=log_pb2.LEVEL_DEBUG))
    await until(lambda: front_end.log_levels == [log_pb2.LEVEL_DEBUG])


async def test_refused_workers_are_those_of_the_scheduler(front_end, scheduler):
    scheduler.refused_workers = [RefusedWorker(f"w:{index}", "another model") for index in range(40)]
    await until(lambda: front_end.link._session and front_end.link._session.refused_workers)
    assert await front_end.link.refused_workers() == scheduler.refused_workers[:16]
    scheduler.refused_workers = []
    await until(lambda: not front_end.link._session.refused_workers)
    await scheduler.kill()
    await until(lambda: front_end.link.trouble)
    assert await front_end.link.refused_workers() == []


async def test_a_front_end_that_drains_does_so_at_the_next_scheduler_too(front_end, scheduler):
    running = front_end.submit(make_request("a", max_tokens=6))
    await scheduler.step(running, 2)
    front_end.link.drain()
    await scheduler.kill()
    late = front_end.submit(make_request("b"))
    await scheduler.start()
    await until(lambda: late.has_ended)
    assert late.failed.failure is Failure.UNAVAILABLE
    await scheduler.step_to_end(running)
    assert running.finished


async def test_a_front_end_that_ends_in_good_order_says_so(front_end, scheduler, caplog):
    caplog.set_level("INFO")
    await until(lambda: not front_end.link.trouble)
    await front_end.close()
    await until(lambda: not scheduler.service.front_ends)
    assert [record.reason for record in caplog.records if record.message == "front end gone"] == ["closed by the front end"]
    assert not any("no session with the scheduler" in record.message for record in caplog.records)


async def test_only_a_scheduler_that_was_there_before_is_missed(make_scheduler, start_front_end, caplog):
    caplog.set_level("INFO", "control_plane.edge.scheduler_link.dialler")
    scheduler = make_scheduler()
    front_end = start_front_end(scheduler)
    await until(lambda: caplog.records)
    await scheduler.start()
    await until(lambda: not front_end.link.trouble)
    await scheduler.kill()
    await until(lambda: front_end.link.trouble)
    levels = [record.levelname for record in caplog.records if "no session with the scheduler: " in record.message]
    assert levels[0] == "INFO" and levels[-1] == "WARNING"
