"""Results that do not belong: the engine is told, resets, and goes on."""

import pytest
from fakes.control_plane.core_admission import core_admission
from fakes.worker.fake_worker import WorkerFault
from fakes.worker.recorded_events import token_ids

from control_plane.core.step import Step


@pytest.mark.parametrize("fault", [WorkerFault.WRONG_DIGEST, WorkerFault.WRONG_TOKEN, WorkerFault.GARBAGE])
async def test_wrong_result_is_a_mismatch_and_a_reset_heals_it(start_worker, make_registry, events, metrics, fault):
    worker = await start_worker(faults={1: fault})
    make_registry(worker.address)
    link = (await events.expect("worker_joined")).worker
    link.submit(Step(1, 0, admissions=[core_admission()]))
    link.submit(Step(2, 0))
    assert (await events.expect("digest_mismatch")).detail == 1
    link.reset()
    await events.expect("reset_done")
    link.submit(Step(3, 2, admissions=[core_admission(tokens=[8], generation=2)]))
    assert token_ids((await events.expect("step_done")).detail) == [9]
    assert metrics.num_mismatches == 1


async def test_missing_result_is_a_mismatch(start_worker, make_registry, events):
    worker = await start_worker(faults={1: WorkerFault.SKIP})
    make_registry(worker.address)
    link = (await events.expect("worker_joined")).worker
    link.submit(Step(1, 0, admissions=[core_admission()]))
    link.submit(Step(2, 0))
    assert (await events.expect("digest_mismatch")).detail == 2


@pytest.mark.parametrize("fault", [WorkerFault.DUPLICATE, WorkerFault.STALE_EPOCH, WorkerFault.LATE])
async def test_second_stale_and_late_results_do_no_harm(start_worker, make_registry, events, metrics, fault):
    worker = await start_worker(faults={1: fault})
    make_registry(worker.address)
    link = (await events.expect("worker_joined")).worker
    link.submit(Step(1, 0, admissions=[core_admission(tokens=[5])]))
    link.submit(Step(2, 0))
    results = [(await events.expect("step_done")).detail for _ in range(2)]
    assert [token_ids(result) for result in results] == [[6], [7]]
    assert metrics.num_mismatches == 0


async def test_frame_without_meaning_ends_the_session_but_not_the_link(start_worker, make_registry, events):
    worker = await start_worker(faults={1: WorkerFault.NO_FRAME})
    make_registry(worker.address)
    link = (await events.expect("worker_joined")).worker
    link.submit(Step(1, 0, admissions=[core_admission()]))
    assert "protocol error" in (await events.expect("worker_lost")).detail
    assert (await events.expect("worker_joined")).worker is not link
