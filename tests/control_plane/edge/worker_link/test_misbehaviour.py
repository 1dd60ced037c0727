"""Engine and links against workers that misbehave while they prefill or decode: every request gets its tokens, and no page is lost."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from fakes.worker.fake_worker import FakeWorker, FakeWorkerOptions
from fakes.worker.strict_worker import VOCAB_SIZE, next_token, solo
from fakes.worker.worker_faults import WorkerFault
from harness.linked_engine import LinkedEngine
from harness.waiting import until

from control_plane.core.sampling import SamplingParams
from control_plane.edge.worker_link.options import Backoff
from control_plane.engine.ports import Failure
from pypto_serving.worker.v1 import worker_pb2

_OPTIONS = FakeWorkerOptions(vocab_size=VOCAB_SIZE, max_step_tokens=16, lease_ms=400, beat_seconds=0.02, next_token=next_token)
_PROMPTS = {f"r{number}": [number + 1] * (5 * number + 3) for number in range(5)}
_STEP = {"prefill": 1, "decode": 6}
_DEADLY = [WorkerFault.CRASH, WorkerFault.HANG, WorkerFault.FREEZE, WorkerFault.OTHER_EPOCH]


@contextlib.asynccontextmanager
async def _workers(*faults: dict[int, WorkerFault], **options: object) -> AsyncIterator[list[FakeWorker]]:
    workers = [FakeWorker(replace(_OPTIONS, name=f"worker {index}", **options), each) for index, each in enumerate(faults)]
    async with contextlib.AsyncExitStack() as cleanup:
        for worker in workers:
            await worker.start()
            cleanup.push_async_callback(worker.stop)
        yield workers


async def _revive(workers: list[FakeWorker]) -> None:
    while True:
        await asyncio.sleep(0.3)
        for worker in workers:
            await worker.revive()


def _submit_all(engine: LinkedEngine) -> None:
    for name, prompt in _PROMPTS.items():
        engine.submit(name, prompt, max_tokens=12)


async def _assert_all_get_their_tokens(engine: LinkedEngine) -> None:
    assert {name: await engine.tokens(name) for name in _PROMPTS} == {name: solo(prompt, 12) for name, prompt in _PROMPTS.items()}
    await engine.assert_comes_to_rest()


@pytest.mark.parametrize("phase", _STEP)
@pytest.mark.parametrize("fault", [fault for fault in WorkerFault if fault is not WorkerFault.LANE_ERROR], ids=lambda fault: fault.name)
async def test_wrk_01_the_only_worker_comes_back_and_the_streams_go_on(fault: WorkerFault, phase: str) -> None:
    async with _workers({_STEP[phase]: fault}) as workers, LinkedEngine(workers[0].address) as engine:
        reviving = asyncio.create_task(_revive(workers))
        _submit_all(engine)
        await _assert_all_get_their_tokens(engine)
        reviving.cancel()
        assert not (workers[0].faults or workers[0].broken_rules)


async def test_wrk_01_a_supervisor_leaves_a_worker_alone_that_starts_again_by_itself() -> None:
    async with _workers({6: WorkerFault.RESTART}) as (worker,), LinkedEngine(worker.address) as engine:
        _submit_all(engine)
        while worker.is_alive:
            await asyncio.sleep(0)
        while not worker.is_alive:
            await worker.revive()
            await asyncio.sleep(0)
        await _assert_all_get_their_tokens(engine)
        assert worker.incarnation == "worker 0-2"


@pytest.mark.parametrize("phase", _STEP)
@pytest.mark.parametrize("fault", _DEADLY, ids=lambda fault: fault.name)
async def test_wrk_02_another_worker_takes_over_from_one_that_is_dead_or_stuck(fault: WorkerFault, phase: str) -> None:
    async with _workers({_STEP[phase]: fault}, {}) as workers, LinkedEngine(*(worker.address for worker in workers)) as engine:
        await until(lambda: engine.num_workers == 2)
        _submit_all(engine)
        await _assert_all_get_their_tokens(engine)
        assert not workers[0].faults
        assert not workers[1].broken_rules


async def test_wrk_02_a_stuck_worker_gets_no_work_until_it_moves() -> None:
    async with _workers({1: WorkerFault.HANG}) as (worker,), LinkedEngine(worker.address) as engine:
        _submit_all(engine)
        await until(lambda: worker.num_streams == 2)
        await asyncio.sleep(0.2)
        assert engine.num_workers == 0 and len(worker.steps) == 2
        worker.release()
        await _assert_all_get_their_tokens(engine)


async def test_wrk_03_a_worker_that_was_away_for_long_is_taken_in_again() -> None:
    async with _workers({}) as (worker,), LinkedEngine(worker.address) as engine:
        await until(lambda: engine.num_workers == 1)
        await worker.kill()
        await until(lambda: engine.num_workers == 0)
        await asyncio.sleep(1.0)  # several leases and every pause between dials
        await worker.start()
        _submit_all(engine)
        await _assert_all_get_their_tokens(engine)


async def test_wrk_04_results_of_an_earlier_life_reach_nobody() -> None:
    early: list[worker_pb2.ExecuteResponse] = []

    def record(frame: worker_pb2.ExecuteResponse) -> list[worker_pb2.ExecuteResponse]:
        if frame.result.step_id >= 4:
            return []
        early.append(frame)  # one less than a worker may get wrong before it is given up
        return [frame]

    def repeat(frame: worker_pb2.ExecuteResponse) -> list[worker_pb2.ExecuteResponse]:
        held_back = early if frame.HasField("result") else []
        return [*(late for late in held_back if late.HasField("result")), frame]

    async with _workers({}) as (worker,), LinkedEngine(worker.address) as engine:
        worker.tamper = record
        _submit_all(engine)
        await until(lambda: len(worker.steps) == 5)
        await worker.kill()
        worker.tamper = repeat
        await worker.start()
        await _assert_all_get_their_tokens(engine)


async def test_wrk_04_a_frame_of_another_epoch_is_dropped_and_told(caplog: pytest.LogCaptureFixture) -> None:
    async with _workers({3: WorkerFault.STALE_EPOCH}) as (worker,), LinkedEngine(worker.address) as engine:
        _submit_all(engine)
        await _assert_all_get_their_tokens(engine)
        assert not worker.faults
        assert (engine.link_metrics.num_mismatches, engine.scheduler.counters.worker_losses, worker.num_streams) == (0, 0, 1)
        assert [message for message in caplog.messages if message.startswith("dropped a frame of epoch")]


async def test_wrk_05_a_worker_at_two_addresses_has_one_session() -> None:
    async with _workers({}) as (worker,):
        port = worker.address.rpartition(":")[2]
        async with LinkedEngine(worker.address, f"localhost:{port}") as engine:
            _submit_all(engine)
            await _assert_all_get_their_tokens(engine)
            assert (engine.num_workers, len(engine.link_metrics.epochs)) == (1, 1)


async def test_wrk_05_a_successor_on_the_same_port_replaces_the_worker() -> None:
    async with _workers({3: WorkerFault.RESTART}) as (worker,), LinkedEngine(worker.address) as engine:
        _submit_all(engine)
        await _assert_all_get_their_tokens(engine)
        (replica,) = engine.scheduler.replicas
        assert replica.description.incarnation == worker.incarnation == "worker 0-2"


async def test_after_two_to_the_32_admissions_everything_goes_on() -> None:
    async with _workers({}) as (worker,), LinkedEngine(worker.address, max_losses=3) as engine:
        engine.scheduler._generations = itertools.count(2**32 - 3)
        _submit_all(engine)
        await _assert_all_get_their_tokens(engine)
        assert engine.link_metrics.num_resets == 0


async def test_wrk_07_no_request_suffers_from_the_death_of_one_of_two_workers() -> None:
    async with _workers({}, {}) as workers, LinkedEngine(*(worker.address for worker in workers), max_losses=2) as engine:
        await until(lambda: engine.num_workers == 2)
        names = [f"short {number}" for number in range(40)]
        for number, name in enumerate(names):
            if number == 12:
                await workers[0].kill()
            engine.submit(name, [number, 7], max_tokens=3)
            await asyncio.sleep(0.005)
        assert [await engine.tokens(name) for name in names] == [solo([number, 7], 3) for number in range(40)]
        await engine.assert_comes_to_rest()


async def test_wrk_08_workers_come_and_go_under_load() -> None:
    async with _workers({}, {}, {}) as workers, LinkedEngine(*(worker.address for worker in workers)) as engine:
        names = [f"request {number}" for number in range(60)]
        for number, name in enumerate(names):
            leaving = workers[number // 10 % 3]
            if number % 10 == 5:
                await leaving.kill()
            elif number % 10 == 9:
                await leaving.start()
            engine.submit(name, [number, 9, 9, 9, 9], max_tokens=10)
            await asyncio.sleep(0.01)
        assert [await engine.tokens(name) for name in names] == [solo([number, 9, 9, 9, 9], 10) for number in range(60)]
        await engine.assert_comes_to_rest()


@pytest.mark.parametrize("step", [1, 2, 3], ids=["first chunk", "last chunk", "decode"])
async def test_log_probabilities_that_are_missing_are_made_again(step: int) -> None:
    async with _workers({step: WorkerFault.NO_LOGPROBS}) as (worker,), LinkedEngine(worker.address) as engine:
        sampling = SamplingParams(logprobs=True, top_logprobs=2, prompt_logprobs=1)
        engine.submit("r", [7] * 20, max_tokens=3, sampling=sampling)
        assert await engine.tokens("r") == solo([7] * 20, 3)
        assert len(engine.front_end.prompt_logprobs["r"]) == 20 and engine.link_metrics.num_mismatches == 1


async def test_without_a_worker_requests_end_after_the_grace() -> None:
    async with _workers({4: WorkerFault.CRASH}) as (worker,), LinkedEngine(worker.address, grace_seconds=0.2) as engine:
        await until(lambda: engine.num_workers == 1)
        _submit_all(engine)
        await until(lambda: all(engine.has_ended(name) for name in _PROMPTS))
        assert {failed.failure for failed in engine.front_end.failed.values()} == {Failure.UNAVAILABLE}
        await worker.start()
        await until(lambda: engine.num_workers == 1)
        engine.submit("later", [5], max_tokens=4)
        assert await engine.tokens("later") == solo([5], 4)
        await engine.assert_comes_to_rest()


async def test_a_lane_that_cannot_go_on_takes_nobody_with_it() -> None:
    async with _workers({6: WorkerFault.LANE_ERROR}) as (worker,), LinkedEngine(worker.address) as engine:
        _submit_all(engine)
        await until(lambda: all(engine.has_ended(name) for name in _PROMPTS))
        ((name, failed),) = engine.front_end.failed.items()
        assert failed.failure is Failure.INTERNAL
        for other in _PROMPTS.keys() - {name}:
            assert engine.front_end.output_of(other) == solo(_PROMPTS[other], 12)
        await engine.assert_comes_to_rest()


@pytest.mark.parametrize("fault", [WorkerFault.STEP_ERROR, WorkerFault.NO_FRAME, WorkerFault.NO_BYTES], ids=lambda fault: fault.name)
async def test_a_worker_that_fails_every_step_is_no_pit_for_requests(fault: WorkerFault) -> None:
    async with _workers({}, {}) as workers:
        workers[0].faults = dict.fromkeys(range(1, 1000), fault)
        pauses = {"refused": Backoff(0.02, 0.5)}
        async with LinkedEngine(*(worker.address for worker in workers), links=pauses, max_losses=3) as engine:
            await until(lambda: engine.num_workers == 2)
            for number in range(30):
                engine.submit(f"request {number}", [number, 5], max_tokens=3)
                await asyncio.sleep(0.005)
            assert [await engine.tokens(f"request {number}") for number in range(30)] == [solo([number, 5], 3) for number in range(30)]
            workers[0].faults.clear()
            await until(lambda: engine.num_workers == 2)
            await engine.assert_comes_to_rest()


async def test_a_worker_that_time_and_again_forgets_to_draw_is_given_up() -> None:
    async with _workers(dict.fromkeys(range(1, 1000), WorkerFault.ENDED_LANES)) as (worker,), LinkedEngine(worker.address) as engine:
        _submit_all(engine)
        await until(lambda: worker.num_streams == 2)
        assert engine.link_metrics.num_resets == 4
        worker.faults.clear()
        await _assert_all_get_their_tokens(engine)


@pytest.mark.parametrize("every", [1, 2, 5])
async def test_a_worker_whose_results_do_not_fit_time_and_again_is_given_up(every: int) -> None:
    async with (
        _workers(dict.fromkeys(range(1, 1000, every), WorkerFault.WRONG_DIGEST)) as (worker,),
        LinkedEngine(worker.address) as engine,
    ):
        _submit_all(engine)
        await until(lambda: worker.num_streams == 2)
        assert engine.link_metrics.num_mismatches == 4
        worker.faults.clear()
        await _assert_all_get_their_tokens(engine)
