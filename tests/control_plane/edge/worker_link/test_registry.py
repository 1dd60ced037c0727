"""Many workers: static and announced, held and foreign."""

import asyncio
import logging

import grpc
import pytest
from fakes.worker.fake_worker import FakeWorkerOptions, Tamper

from control_plane.edge.worker_link.link import LinkPhase
from control_plane.edge.worker_link.options import Backoff
from control_plane.edge.worker_link.registry import AnnounceServicer
from pypto_serving.worker.v1 import worker_pb2, worker_pb2_grpc


async def _until(condition):
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_one_bad_worker_leaves_the_others_alone(start_worker, make_registry, events):
    good = await start_worker()
    foreign = await start_worker(FakeWorkerOptions(model_fingerprint="other"))
    registry = make_registry(foreign.address, "127.0.0.1:1", good.address)
    assert (await events.expect("worker_joined")).worker.description.address == good.address
    await _until(lambda: "other" in registry.states()[0].trouble and registry.states()[1].trouble)
    assert [state.phase for state in registry.states()] == [LinkPhase.REFUSED, LinkPhase.CONNECTING, LinkPhase.IN_SESSION]


async def test_refusal_is_retried_and_logged_once(start_worker, make_registry, events, caplog):
    worker = await start_worker()
    worker.holder, worker.is_held = "another", True
    with caplog.at_level(logging.WARNING):
        make_registry(worker.address)
        await _until(lambda: len(worker.hellos) >= 4)
        worker.is_held = False
        await events.expect("worker_joined")
    assert [record.getMessage() for record in caplog.records] == ["FAILED_PRECONDITION: held by another for another 3 s"]


async def test_takeover_is_asked_for_once(start_worker, make_registry, events):
    worker = await start_worker()
    worker.holder, worker.is_held = "another", True
    make_registry(worker.address, takeover=True)
    await events.expect("worker_joined")
    await worker.kill()
    await events.expect("worker_lost")
    await worker.start()
    await events.expect("worker_joined")
    assert [hello.takeover for hello in worker.hellos] == [True, False]


async def test_nonsense_in_a_welcome_is_refused(start_worker, make_registry, events):
    worker = await start_worker(FakeWorkerOptions(max_lanes=0))
    registry = make_registry(worker.address)
    await _until(lambda: registry.states()[0].phase is LinkPhase.REFUSED)
    assert registry.states()[0].trouble == "protocol error: limits.max_lanes: 0, must be from 1 to 65536"
    assert events.num_pending == 0


async def test_other_model_of_a_lenient_worker_is_refused_here(start_worker, make_registry, events):
    worker = await start_worker(FakeWorkerOptions(model_fingerprint="other"))
    worker.is_lenient = True
    registry = make_registry(worker.address)
    await _until(lambda: registry.states()[0].phase is LinkPhase.REFUSED)
    assert registry.states()[0].trouble == "protocol error: model_fingerprint is 'other', ours is 'model'"


async def test_an_engine_that_fails_while_a_worker_joins_is_told_of_its_end(start_worker, make_registry, events, monkeypatch):
    monkeypatch.setattr(events, "worker_joined", lambda worker: 1 / 0)
    worker = await start_worker()
    make_registry(worker.address)
    assert "division" in (await events.expect("worker_lost")).detail


async def test_the_same_worker_at_two_addresses_is_used_once(start_worker, make_registry, events):
    worker = await start_worker()
    port = worker.address.rpartition(":")[2]
    registry = make_registry(worker.address)
    await events.expect("worker_joined")
    registry.announce(f"localhost:{port}", worker.incarnation)
    await _until(lambda: registry.states()[1].phase is LinkPhase.REFUSED)
    assert (worker.num_streams, events.num_pending) == (1, 0)


async def test_announced_worker_is_dialled_and_forgotten_after_its_lease(start_worker, make_registry, events, metrics):
    worker = await start_worker()
    registry = make_registry(announce_lease_seconds=0.5)
    registry.announce(worker.address, worker.incarnation)
    await events.expect("worker_joined")
    await asyncio.sleep(0.75)
    assert registry.states()[0].phase is LinkPhase.IN_SESSION
    await worker.kill()
    await events.expect("worker_lost")
    await _until(lambda: registry.states() == [])
    assert metrics.forgotten == [worker.address]


async def test_announce_service_answers_the_lease_and_refuses_nonsense(make_registry, cleanup):
    registry = make_registry(announce_lease_seconds=2.5)
    server = grpc.aio.server()
    worker_pb2_grpc.add_AnnounceServiceServicer_to_server(AnnounceServicer(registry), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    cleanup.push_async_callback(server.stop, None)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = worker_pb2_grpc.AnnounceServiceStub(channel)
        assert (await stub.Announce(worker_pb2.AnnounceRequest(address="127.0.0.1:1", incarnation="x"))).lease_ms == 2500
        with pytest.raises(grpc.aio.AioRpcError, match="'nowhere' is not host:port"):
            await stub.Announce(worker_pb2.AnnounceRequest(address="nowhere"))
    assert [state.address for state in registry.states()] == ["127.0.0.1:1"]


def test_address_of_a_static_worker_is_checked(make_registry):
    with pytest.raises(ValueError, match="'localhost' is not host:port"):
        make_registry("localhost")


async def test_an_announcement_during_a_dial_cuts_the_pause_after_it_short(make_registry) -> None:
    """Whoever listens hangs up at once, so that the dial fails; the pause would last a minute."""
    connections = asyncio.Queue()

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        await connections.put(writer)

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    registry = make_registry(address, redial=Backoff(60.0, 60.0))
    async with asyncio.timeout(10):
        await connections.get()
        registry.announce(address, "another incarnation")
        for _ in range(3):
            await connections.get()
    server.close()


async def test_a_worker_whose_weights_differ_in_a_bit_is_refused_while_another_is_there(start_worker, make_registry, events):
    first = await start_worker(FakeWorkerOptions(weights_digest="a" * 64))
    registry = make_registry(first.address)
    await events.expect("worker_joined")
    other = await start_worker(FakeWorkerOptions(name="other", weights_digest="b" * 64))
    older = await start_worker(FakeWorkerOptions(name="older"))  # does not say
    registry.announce(other.address, "other-1")
    registry.announce(older.address, "older-1")
    assert (await events.expect("worker_joined")).worker.description.address == older.address
    await _until(lambda: registry.states()[1].phase is LinkPhase.REFUSED)
    assert f"weights_digest is {'b' * 64!r}, that of {first.address} in session is {'a' * 64!r}" in registry.states()[1].trouble
    await first.kill()
    await events.expect("worker_lost")
    assert (await events.expect("worker_joined")).worker.description.address == other.address


async def test_the_pages_of_all_workers_are_bounded(start_worker, make_registry, events):
    workers = [await start_worker(FakeWorkerOptions(name=f"worker {number}", num_pages=2**21)) for number in range(9)]
    registry = make_registry(*(worker.address for worker in workers))
    for _ in range(8):
        await events.expect("worker_joined")
    await _until(lambda: [state.phase for state in registry.states()].count(LinkPhase.REFUSED) == 1)
    (trouble,) = {state.trouble for state in registry.states()} - {""}
    assert trouble == "the workers would have 18874368 pages in all, limit 16777216"


async def test_weights_that_turn_out_to_differ_end_a_session(start_worker, make_registry, events):
    workers = [await start_worker(FakeWorkerOptions(name=name)) for name in ("first", "second")]
    registry = make_registry(*(worker.address for worker in workers))
    joined = [(await events.expect("worker_joined")).worker for _ in workers]

    def tell(digest: str) -> Tamper:
        def tell_progress(frame: worker_pb2.ExecuteResponse) -> list[worker_pb2.ExecuteResponse]:
            if frame.HasField("progress"):
                frame.progress.weights_digest = digest
            return [frame]

        return tell_progress

    workers[0].tamper = tell("a")
    await asyncio.sleep(0.1)
    workers[1].tamper = tell("b")
    lost = await events.expect("worker_lost")
    assert "weights_digest is 'b'" in lost.detail and lost.worker.description.address == workers[1].address
    assert lost.worker in joined and registry.states()[0].phase is LinkPhase.IN_SESSION
