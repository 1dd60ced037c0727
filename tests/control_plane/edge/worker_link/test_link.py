"""Broken streams, dead and stuck workers."""

import asyncio

import pytest
from fakes.control_plane.core_admission import core_admission
from fakes.network.tcp_proxy import TcpProxy
from fakes.worker.fake_worker import FakeWorkerOptions, WorkerFault
from fakes.worker.recorded_events import token_ids

from control_plane.core.step import Step
from control_plane.edge.worker_link.link import LinkPhase


async def test_cut_stream_resumes_unnoticed(start_worker, make_registry, events, metrics, cleanup):
    worker = await start_worker(FakeWorkerOptions(step_seconds=0.05))
    proxy = TcpProxy(worker.address)
    await proxy.start()
    cleanup.push_async_callback(proxy.stop)
    make_registry(proxy.address)
    link = (await events.expect("worker_joined")).worker
    tokens = []
    for step_id in range(1, 7, 2):
        link.submit(Step(step_id, step_id - 1, admissions=[core_admission(tokens=[5])] if step_id == 1 else ()))
        link.submit(Step(step_id + 1, step_id - 1))
        proxy.cut()
        tokens += [token_ids((await events.expect("step_done")).detail)[0] for _ in range(2)]
    assert tokens == [6, 7, 8, 9, 10, 11]
    assert metrics.num_resumed == 3


async def test_steps_submitted_without_a_stream_are_sent_after_it(start_worker, make_registry, events):
    worker = await start_worker(faults={1: WorkerFault.END_OF_STREAM})
    registry = make_registry(worker.address)
    link = (await events.expect("worker_joined")).worker
    link.submit(Step(1, 0, admissions=[core_admission(tokens=[5])]))
    while registry.states()[0].phase is not LinkPhase.RESUMING:
        await asyncio.sleep(0)
    link.submit(Step(2, 0))
    assert [token_ids((await events.expect("step_done")).detail) for _ in range(2)] == [[6], [7]]


async def test_worker_that_let_go_is_lost_and_joins_again_over_the_same_stream(start_worker, make_registry, events):
    worker = await start_worker(faults={2: WorkerFault.END_OF_STREAM})
    worker.is_resumable = False
    make_registry(worker.address)
    first = (await events.expect("worker_joined")).worker
    first.submit(Step(1, 0, admissions=[core_admission()]))
    await events.expect("step_done")
    first.submit(Step(2, 1))
    lost = await events.expect("worker_lost")
    assert (lost.worker, lost.detail) == (first, "the worker let go of the session")
    second = (await events.expect("worker_joined")).worker
    first.submit(Step(3, 2))
    second.submit(Step(1, 0, admissions=[core_admission(tokens=[30])]))
    assert token_ids((await events.expect("step_done")).detail) == [31]
    assert worker.num_streams == 2


async def test_dead_worker_is_lost_at_once_and_its_successor_joins(start_worker, make_registry, events, metrics):
    worker = await start_worker(faults={1: WorkerFault.CRASH})
    registry = make_registry(worker.address)
    link = (await events.expect("worker_joined")).worker
    link.submit(Step(1, 0, admissions=[core_admission()]))
    assert (await events.expect("worker_lost")).detail == "connection refused"
    assert metrics.epochs == {}
    await worker.start()
    assert (await events.expect("worker_joined")).worker.description.incarnation == "incarnation-2"
    assert registry.states()[0].trouble == ""


async def test_worker_that_hangs_is_lost_and_joins_again_when_it_moves(start_worker, make_registry, events):
    worker = await start_worker(FakeWorkerOptions(beat_seconds=0.01), faults={1: WorkerFault.HANG})
    make_registry(worker.address, min_hang_seconds=0.1)
    link = (await events.expect("worker_joined")).worker
    link.submit(Step(1, 0, admissions=[core_admission()]))
    assert "hangs" in (await events.expect("worker_lost")).detail
    while worker.num_streams < 2:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert events.num_pending == 0
    worker.release()
    await events.expect("worker_joined")


async def test_frozen_worker_is_lost_by_its_silence(start_worker, make_registry, events, metrics):
    worker = await start_worker(FakeWorkerOptions(lease_ms=400, beat_seconds=0.01), faults={1: WorkerFault.FREEZE})
    make_registry(worker.address)
    link = (await events.expect("worker_joined")).worker
    link.submit(Step(1, 0, admissions=[core_admission()]))
    assert "silent" in (await events.expect("worker_lost")).detail
    assert metrics.longest_silence >= 0.2
    worker.release()
    await events.expect("worker_joined")


async def test_dead_network_is_lost_by_its_silence(start_worker, make_registry, events, cleanup):
    worker = await start_worker(FakeWorkerOptions(lease_ms=400, beat_seconds=0.01))
    proxy = TcpProxy(worker.address)
    await proxy.start()
    cleanup.push_async_callback(proxy.stop)
    make_registry(proxy.address, handshake_seconds=0.1)
    await events.expect("worker_joined")
    proxy.hold()
    assert "silent" in (await events.expect("worker_lost")).detail
    proxy.let_go()
    await events.expect("worker_joined")


@pytest.mark.parametrize("is_resumable", [True, False])
async def test_reset_survives_a_cut(start_worker, make_registry, events, cleanup, is_resumable):
    worker = await start_worker()
    worker.is_resumable = is_resumable
    proxy = TcpProxy(worker.address)
    await proxy.start()
    cleanup.push_async_callback(proxy.stop)
    make_registry(proxy.address)
    link = (await events.expect("worker_joined")).worker
    link.submit(Step(1, 0, admissions=[core_admission()]))
    await events.expect("step_done")
    proxy.cut()
    link.reset()
    await events.expect("reset_done")
    link.submit(Step(2, 1, admissions=[core_admission(tokens=[20], generation=2)]))
    assert token_ids((await events.expect("step_done")).detail) == [21]


async def test_first_steps_are_sent_again_to_a_worker_that_let_go(start_worker, make_registry, events):
    worker = await start_worker(faults={1: WorkerFault.END_OF_STREAM})
    worker.is_resumable = False
    make_registry(worker.address)
    link = (await events.expect("worker_joined")).worker
    link.submit(Step(1, 0, admissions=[core_admission(tokens=[5])]))
    link.submit(Step(2, 0))
    assert [token_ids((await events.expect("step_done")).detail) for _ in range(2)] == [[6], [7]]
    assert worker.num_streams == 2


async def test_steps_out_of_order_end_the_session_without_a_resume(start_worker, make_registry, events):
    worker = await start_worker()
    make_registry(worker.address)
    link = (await events.expect("worker_joined")).worker
    link.submit(Step(1, 0, admissions=[core_admission()]))
    await events.expect("step_done")
    link.submit(Step(3, 1))
    assert (await events.expect("worker_lost")).detail == "INVALID_ARGUMENT: step 3 after step 1"
    await events.expect("worker_joined")


async def test_heartbeats_keep_the_lease(start_worker, make_registry, events):
    worker = await start_worker(FakeWorkerOptions(lease_ms=200))
    make_registry(worker.address)
    await events.expect("worker_joined")
    while worker.num_heartbeats < 3:
        await asyncio.sleep(0.01)
    assert events.num_pending == 0
