"""A session over a real stream to a fake worker."""

import pytest
from fakes.control_plane.core_admission import core_admission
from fakes.worker.fake_worker import FakeWorkerOptions, WorkerFault
from fakes.worker.recorded_events import token_ids

from control_plane.core.sampling import SamplingParams
from control_plane.core.step import Step
from pypto_serving.worker.v1 import worker_pb2


async def test_handshake_describes_the_worker(start_worker, make_registry, events):
    worker = await start_worker(FakeWorkerOptions(max_lanes=5, lease_ms=7000, num_groups=2))
    make_registry(worker.address)
    description = (await events.expect("worker_joined")).worker.description
    assert (description.address, description.incarnation, description.epoch) == (worker.address, "incarnation-1", 1)
    assert (description.max_lanes, description.lease_seconds, description.numerics_id) == (5, 7.0, "fake")
    assert [group.page_tokens for group in description.cache_groups] == [4] * 2


async def test_two_steps_in_flight_answer_in_order(start_worker, make_registry, events, metrics):
    worker = await start_worker()
    make_registry(worker.address)
    link = (await events.expect("worker_joined")).worker
    link.submit(Step(1, 0, admissions=[core_admission(tokens=[5])]))
    link.submit(Step(2, 0))
    results = [(await events.expect("step_done")).detail for _ in range(2)]
    assert [(result.step_id, result.tokens) for result in results] == [(1, {0: 6}), (2, {0: 7})]
    assert len(metrics.step_bytes) == 2


async def test_digests_agree_through_chunks_growth_and_release(start_worker, make_registry, events, metrics):
    worker = await start_worker()
    make_registry(worker.address)
    link = (await events.expect("worker_joined")).worker
    steps = [
        Step(1, 0, admissions=[core_admission(tokens=[1, 2, 3, 4], pages=[0])], chunk_lanes=[0], chunk_tokens=[3]),
        Step(2, 1, admissions=[core_admission(lane=1, tokens=[9], pages=[5])]),
        Step(3, 2, grown_lanes=[0], grown_groups=[0], grown_pages=[1]),
        Step(4, 3, released_lanes=[1], chunk_lanes=[0], chunk_tokens=[0]),
        Step(5, 4, admissions=[core_admission(lane=1, tokens=[7], pages=[5], generation=2)]),
    ]
    sampled = []
    for step in steps:
        link.submit(step)
        result = (await events.expect("step_done")).detail
        assert not result.error
        sampled.append(result.tokens)
    assert sampled == [{}, {0: 5, 1: 10}, {0: 6, 1: 11}, {}, {0: 7, 1: 8}]
    assert metrics.num_mismatches == 0


async def test_logprobs_of_prompt_and_output(start_worker, make_registry, events):
    worker = await start_worker()
    make_registry(worker.address)
    link = (await events.expect("worker_joined")).worker
    sampling = SamplingParams(logprobs=True, top_logprobs=2, prompt_logprobs=1)
    link.submit(Step(1, 0, admissions=[core_admission(tokens=[1, 2, 3], sampling=sampling)], chunk_lanes=[0], chunk_tokens=[3]))
    result = (await events.expect("step_done")).detail
    assert (result.logprobs[0].token_id, result.logprobs[0].top) == (4, ((4, -0.5), (5, -1.5)))
    (chunk,) = result.prompt_logprobs
    assert (chunk.first_index, [entry.token_id for entry in chunk.entries]) == (1, [2, 3])
    assert [entry.top for entry in chunk.entries] == [((2, -0.5),), ((3, -0.5),)]


async def test_lane_error_reaches_the_engine(start_worker, make_registry, events):
    worker = await start_worker(faults={1: WorkerFault.LANE_ERROR})
    make_registry(worker.address)
    link = (await events.expect("worker_joined")).worker
    link.submit(Step(1, 0, admissions=[core_admission(lane=3)]))
    (error,) = (await events.expect("step_done")).detail.lane_errors
    assert (error.lane, error.generation, error.message) == (3, 1, "not a number")


async def test_reset_drops_what_is_in_flight_and_starts_clean(start_worker, make_registry, events, metrics):
    worker = await start_worker(FakeWorkerOptions(step_seconds=0.05))
    make_registry(worker.address)
    link = (await events.expect("worker_joined")).worker
    link.submit(Step(1, 0, admissions=[core_admission(tokens=[5])]))
    link.submit(Step(2, 0))
    link.reset()
    await events.expect("reset_done")
    link.submit(Step(3, 2, admissions=[core_admission(tokens=[50], generation=2)]))
    assert token_ids((await events.expect("step_done")).detail) == [51]
    assert metrics.num_resets == 1


async def test_step_error_is_delivered_and_mutes_the_worker_until_reset(start_worker, make_registry, events):
    worker = await start_worker(faults={1: WorkerFault.STEP_ERROR})
    make_registry(worker.address)
    link = (await events.expect("worker_joined")).worker
    link.submit(Step(1, 0, admissions=[core_admission()]))
    link.submit(Step(2, 0))
    assert (await events.expect("step_done")).detail.error == "out of memory"
    link.reset()
    await events.expect("reset_done")


@pytest.mark.parametrize(("drains", "levels"), [(True, {"INFO"}), (False, {"WARNING"})])
async def test_the_end_of_a_worker_that_drains_is_no_warning(start_worker, make_registry, events, caplog, drains, levels):
    worker = await start_worker()
    make_registry(worker.address)
    await events.expect("worker_joined")
    worker.is_draining = drains
    if drains:
        await events.expect("worker_draining")
    caplog.set_level("INFO")
    await worker.kill()
    await events.expect("worker_lost")
    assert {record.levelname for record in caplog.records if "lost" in record.getMessage() or "broke" in record.getMessage()} == levels


async def test_draining_is_told_once(start_worker, make_registry, events):
    worker = await start_worker()
    make_registry(worker.address)
    link = (await events.expect("worker_joined")).worker
    worker.is_draining = True
    assert (await events.expect("worker_draining")).worker is link
    link.submit(Step(1, 0, admissions=[core_admission()]))
    await events.expect("step_done")
    assert events.num_pending == 0


async def test_frames_and_fields_of_a_newer_worker_are_ignored(start_worker, make_registry, events):
    worker = await start_worker()
    unknown = b"\xfa\x01\x03new"  # field 31, a message
    epoch = worker_pb2.ExecuteResponse(epoch=1).SerializeToString()

    def of_tomorrow(frame: worker_pb2.ExecuteResponse) -> list[bytes]:
        kind = frame.WhichOneof("frame")
        getattr(frame, kind).MergeFromString(unknown)
        return [frame.SerializeToString(), *([] if kind == "welcome" else [epoch + unknown])]

    worker.tamper = of_tomorrow
    make_registry(worker.address)
    link = (await events.expect("worker_joined")).worker
    link.submit(Step(1, 0, admissions=[core_admission(tokens=[5])]))
    assert token_ids((await events.expect("step_done")).detail) == [6]
    assert worker.num_streams == 1


async def test_generations_beyond_32_bits_are_as_good_as_others(start_worker, make_registry, events):
    worker = await start_worker()
    make_registry(worker.address)
    link = (await events.expect("worker_joined")).worker
    sampling = SamplingParams(prompt_logprobs=1)
    for step_id, generation in enumerate((2**32 - 1, 2**32, 2**40 + 7), start=1):
        released = [0] if step_id > 1 else []
        lane = core_admission(tokens=[5, 6], generation=generation, sampling=sampling)
        link.submit(Step(step_id, step_id - 1, released, admissions=[lane], chunk_lanes=[0], chunk_tokens=[2]))
        result = (await events.expect("step_done")).detail
        assert (list(result.tokens), result.prompt_logprobs[0].generation) == ([0], generation)
