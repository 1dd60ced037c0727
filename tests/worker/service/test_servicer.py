import asyncio
import logging

import grpc
import grpc.aio
import pytest
from fakes.control_plane.hand_control_plane import FINGERPRINT, HandControlPlane, wire_admission
from harness.waiting import until
from harness.worker_rig import Rig

from pypto_serving.wire.columns import pack_ids, unpack_ids
from pypto_serving.worker.v1 import worker_pb2 as pb


async def test_welcome_describes_the_worker(rig: Rig) -> None:
    welcome = await rig.control_plane().open()
    assert (welcome.epoch, welcome.incarnation, welcome.resumed, welcome.last_step_id) == (1, "worker-1", False, 0)
    assert (welcome.model_fingerprint, welcome.numerics_id) == (FINGERPRINT, "float32/fake")
    assert (welcome.limits.max_lanes, welcome.limits.max_steps_in_flight, welcome.limits.lease_ms) == (4, 2, 400)
    group = welcome.cache_groups[0]
    assert (group.name, group.page_tokens, group.num_pages) == ("full", 16, 8)
    assert not group.HasField("window_tokens")


async def test_welcome_has_what_earlier_control_planes_require(rig: Rig) -> None:
    group = (await rig.control_plane().open()).cache_groups[0]
    assert (group.num_layers, group.rows_per_page, group.row_bytes) == (2, 16, 256)


async def test_a_refusal_is_logged_once_however_often_it_is_tried(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    await rig.control_plane().open()
    for other, times in (("cp-2", 3), ("", 2), ("cp-2", 1)):
        for _ in range(times):
            rig.clock.now += 0.01
            with pytest.raises(grpc.aio.AioRpcError):
                await rig.control_plane().open(control_plane_id=other)
    reasons = [vars(record)["reason"][:20] for record in caplog.records if record.levelno == logging.WARNING]
    assert reasons == ["the worker is held b", "hello.control_plane_", "the worker is held b"]


async def test_steps_are_answered_in_order(rig: Rig) -> None:
    plane = rig.control_plane()
    await plane.open()
    await plane.step(1, admissions=[wire_admission(2, [5, 6], pages=[3])])
    await plane.step(2, released_lanes=pack_ids([2]))
    first, second = await plane.result(), await plane.result()
    assert (first.step_id, second.step_id, first.digest, first.error) == (1, 2, 1, "")
    assert [unpack_ids(column, "").tolist() for column in (first.lanes, first.generations, first.token_ids)] == [[2], [1], [7]]
    assert rig.runner.steps[0].admissions[0].token_ids.tolist() == [5, 6]
    assert rig.runner.threads == {"device"}


async def test_step_error_fails_what_follows_until_a_reset(rig: Rig) -> None:
    rig.runner.failing = {1}
    plane = rig.control_plane()
    await plane.open()
    await plane.step(1)
    await plane.step(2)
    assert (await plane.result()).error == "ValueError: step 1 is cursed"
    assert (await plane.result()).error == "not executed, as step 1 failed: ValueError: step 1 is cursed"
    await plane.reset()
    assert (await plane.read("reset_done")).reset_done.last_step_id == 2
    await plane.step(3, acked_step_id=2)
    assert (await plane.result()).error == ""
    assert rig.runner.step_ids == [1, 3]


async def test_reset_drops_queued_steps_and_their_results(rig: Rig) -> None:
    rig.runner.gate.clear()
    plane = rig.control_plane()
    await plane.open()
    await plane.step(1)
    await plane.step(2)
    await until(rig.runner.entered.is_set)
    await plane.reset()
    await plane.step(3, acked_step_id=2)
    await until(lambda: rig.servicer._session.last_step_id == 3)
    rig.runner.gate.set()
    assert (await plane.read("result", "reset_done")).reset_done.last_step_id == 2
    assert (await plane.result()).step_id == 3
    assert rig.runner.step_ids == [1, 3]


async def test_every_reset_is_answered(rig: Rig) -> None:
    plane = rig.control_plane()
    await plane.open()
    await plane.reset()
    await plane.reset()
    assert [(await plane.read("reset_done")).epoch for _ in range(2)] == [1, 1]


async def test_steps_go_on_without_a_stream_and_their_results_come_after_the_resume(rig: Rig) -> None:
    rig.runner.gate.clear()
    plane = rig.control_plane()
    await plane.open()
    await plane.step(1)
    await plane.step(2)
    await until(lambda: rig.metric("steps_in_flight") == 2)
    plane.cut()
    await until(lambda: rig.metric("session_state", state="detached") == 1)
    rig.runner.gate.set()
    await until(lambda: rig.metric("steps_in_flight") == 0)
    again = rig.control_plane()
    welcome = await again.open(resume_incarnation="worker-1")
    assert (welcome.resumed, welcome.epoch, welcome.last_step_id) == (True, 1, 2)
    assert [(await again.result()).step_id for _ in range(2)] == [1, 2]
    await again.step(3, acked_step_id=2)
    assert (await again.result()).step_id == 3


async def test_reconnect_without_resume_starts_from_nothing(rig: Rig) -> None:
    plane = rig.control_plane()
    await plane.open()
    await plane.step(1, admissions=[wire_admission(0, [1], pages=[0])])
    await plane.result()
    again = rig.control_plane()
    welcome = await again.open()
    assert (welcome.resumed, welcome.epoch, welcome.last_step_id) == (False, 1, 0)
    await again.step(1)
    await again.result()
    assert rig.metric("lanes") == 0
    assert rig.runner.num_resets == 2


async def test_newer_stream_of_the_same_control_plane_ends_the_older(rig: Rig) -> None:
    old, new = rig.control_plane(), rig.control_plane()
    await old.open()
    await new.open()
    assert await old.end() == (grpc.StatusCode.ABORTED, "replaced by a newer stream of control plane cp-1, epoch 1")
    await new.step(1)
    assert (await new.result()).step_id == 1


async def test_second_control_plane_is_refused_with_the_holders_name(rig: Rig) -> None:
    holder, other = rig.control_plane(), rig.control_plane()
    await holder.open("cp-1")
    with pytest.raises(grpc.aio.AioRpcError, match=r"held by control plane cp-1, whose lease runs for another 0\.4 s") as refusal:
        await other.open("cp-2")
    assert refusal.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    await holder.step(1)
    assert (await holder.result()).step_id == 1


async def test_takeover_ends_the_holders_stream_and_fences_its_frames(rig: Rig) -> None:
    holder, other = rig.control_plane(), rig.control_plane()
    await holder.open("cp-1")
    welcome = await other.open("cp-2", takeover=True)
    assert welcome.epoch == 2
    assert await holder.end() == (grpc.StatusCode.ABORTED, "replaced by a newer stream of control plane cp-2, epoch 2")


async def test_frames_of_another_epoch_are_dropped(rig: Rig) -> None:
    plane = rig.control_plane()
    await plane.open()
    await plane.step(1, epoch=7)
    await plane.step(1)
    assert (await plane.result()).step_id == 1
    assert rig.runner.step_ids == [1]
    assert rig.metric("stale_frames_total") == 1


async def test_silent_owner_loses_lease_lanes_and_stream(rig: Rig) -> None:
    plane = rig.control_plane()
    await plane.open()
    await plane.step(1, admissions=[wire_admission(0, [1], pages=[0])])
    await plane.result()
    rig.clock.now += 0.5
    assert await plane.end() == (grpc.StatusCode.ABORTED, "no frame for 0.4 s: the lease ran out")
    assert (rig.metric("session_state", state="free"), rig.metric("lanes"), rig.metric("lease_expirations_total")) == (1, 0, 1)
    assert (await rig.control_plane().open("cp-2")).epoch == 2


async def test_heartbeats_keep_the_lease(rig: Rig) -> None:
    plane = rig.control_plane()
    await plane.open()
    for _ in range(4):
        rig.clock.now += 0.3
        await plane.send(pb.ExecuteRequest(epoch=1, heartbeat=pb.Heartbeat()))
        await plane.reset()
        await plane.read("reset_done")
    assert rig.metric("session_state", state="connected") == 1


async def test_progress_says_how_far_the_device_is(rig: Rig) -> None:
    rig.runner.gate.clear()
    plane = rig.control_plane()
    await plane.open()
    await plane.step(1)
    assert (await plane.read("progress")).progress.progress < 2
    rig.runner.gate.set()
    async with asyncio.timeout(10):
        while (progress := (await plane.read("progress")).progress).progress < 2:
            pass
    assert progress.slowest_unit_us > 0


async def test_drain_is_told_and_does_not_stop_work(rig: Rig) -> None:
    plane = rig.control_plane()
    await plane.open()
    await plane.step(1, admissions=[wire_admission(0, [1], pages=[0])])
    await plane.result()
    rig.servicer.drain()
    async with asyncio.timeout(10):
        while not (await plane.read("progress")).progress.draining:
            pass
    assert not rig.servicer.is_idle
    await plane.step(2, acked_step_id=1, released_lanes=pack_ids([0]))
    await plane.result()
    await until(lambda: rig.servicer.is_idle)
    rig.servicer.end_stream("the worker stops")
    assert await plane.end() == (grpc.StatusCode.UNAVAILABLE, "the worker stops")


async def test_draining_worker_goes_on_with_its_owner_and_takes_no_other(rig: Rig) -> None:
    plane = rig.control_plane()
    await plane.open()
    await plane.step(1, admissions=[wire_admission(0, [1], pages=[0])])
    await plane.result()
    rig.servicer.drain()
    with pytest.raises(grpc.aio.AioRpcError, match="the worker drains") as refusal:
        await rig.control_plane().open("cp-2", takeover=True)
    assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
    await plane.step(2, acked_step_id=1, admissions=[wire_admission(1, [1], pages=[1])])  # it was on its way
    assert (await plane.result()).error == ""
    again = rig.control_plane()
    assert (await again.open(resume_incarnation="worker-1", acked_step_id=2)).resumed
    assert (await again.read("progress")).progress.draining


async def test_draining_worker_without_owner_is_idle_and_stays_alone(rig: Rig) -> None:
    rig.servicer.drain()
    assert rig.servicer.is_idle
    with pytest.raises(grpc.aio.AioRpcError, match="the worker drains"):
        await rig.control_plane().open("cp-1")


async def test_worker_is_orphaned_once_an_owner_fell_silent(rig: Rig) -> None:
    rig.clock.now += 100.0
    await asyncio.sleep(0.3)
    assert not rig.servicer.orphaned.done()
    plane = rig.control_plane()
    await plane.open()
    plane.cut()
    await until(lambda: rig.metric("session_state", state="detached") == 1)
    rig.clock.now += 0.5
    await asyncio.wait_for(rig.servicer.orphaned, 10)


async def say_farewell(plane: HandControlPlane) -> None:
    await plane.send(pb.ExecuteRequest(epoch=plane.epoch, farewell=pb.Farewell()))
    await plane.half_close()
    assert await plane.end() == (grpc.StatusCode.OK, "")


async def test_a_farewell_frees_the_worker_for_others(rig: Rig) -> None:
    plane = rig.control_plane()
    await plane.open()
    await say_farewell(plane)
    assert (await rig.control_plane().open("cp-2")).epoch == 2


async def test_a_draining_worker_is_idle_after_a_farewell_that_left_lanes(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    plane = rig.control_plane()
    await plane.open()
    await plane.step(1, admissions=[wire_admission(0, [1], pages=[0])])
    await plane.result()
    rig.servicer.drain()
    num_resets = rig.runner.num_resets
    await say_farewell(plane)
    await until(lambda: rig.servicer.is_idle)
    await until(lambda: rig.runner.num_resets == num_resets + 1)
    with pytest.raises(grpc.aio.AioRpcError, match="the worker drains"):
        await rig.control_plane().open("cp-1", resume_incarnation="worker-1", acked_step_id=1)
    rig.clock.now += 0.5
    await asyncio.wait_for(rig.servicer.orphaned, 10)
    assert rig.metric("lease_expirations_total") == 0
    assert "lease ran out" not in caplog.messages


@pytest.mark.parametrize("leaves_lanes", [True, False], ids=["lanes live", "nothing live"])
async def test_the_wait_for_the_next_owner_is_no_idle_time(rig: Rig, leaves_lanes: bool) -> None:
    plane = rig.control_plane()
    await plane.open()
    await plane.step(1, admissions=[wire_admission(0, [1], pages=[0])])
    await plane.result()
    if not leaves_lanes:
        await plane.step(2, released_lanes=pack_ids([0]))
        await plane.result()
    gaps = rig.metric("device_idle_gap_seconds_count")
    await say_farewell(plane)
    other = rig.control_plane()
    await other.open("cp-2")
    await other.step(1, admissions=[wire_admission(0, [1], pages=[0])])
    await other.result()
    assert rig.metric("device_idle_gap_seconds_count") == gaps
    await other.step(2)
    await other.result()
    assert rig.metric("device_idle_gap_seconds_count") == gaps + 1


async def test_what_runs_at_a_farewell_ends_before_anything_of_the_next_owner_begins(rig: Rig) -> None:
    rig.runner.gate.clear()
    plane = rig.control_plane()
    await plane.open()
    await plane.step(1, admissions=[wire_admission(0, [1], pages=[0])])
    await plane.step(2, admissions=[wire_admission(1, [1], pages=[1])])
    await until(lambda: rig.runner.entered.is_set() and rig.metric("steps_in_flight") == 2)
    num_resets = rig.runner.num_resets
    await say_farewell(plane)
    other = rig.control_plane()
    assert not (await other.open("cp-2")).resumed
    await other.step(1, admissions=[wire_admission(0, [3], pages=[0])])
    await until(lambda: rig.metric("steps_in_flight") == 1)
    assert (len(rig.runner.steps), rig.runner.num_resets) == (1, num_resets)  # the step that runs holds everything back
    rig.runner.gate.set()
    assert (await other.result()).digest == 1
    assert [step.admissions[0].token_ids.tolist() for step in rig.runner.steps] == [[1], [3]]
    assert rig.runner.num_resets > num_resets


async def test_a_stream_that_ends_without_a_farewell_leaves_the_worker_with_its_owner(rig: Rig) -> None:
    plane = rig.control_plane()
    await plane.open()
    await plane.half_close()  # gRPC shows some broken connections like this
    assert await plane.end() == (grpc.StatusCode.OK, "")
    with pytest.raises(grpc.aio.AioRpcError, match="kept for control plane cp-1, whose connection broke"):
        await rig.control_plane().open("cp-2")


async def test_a_standby_does_not_get_the_worker_at_the_first_blip(rig: Rig) -> None:
    plane = rig.control_plane()
    await plane.open()
    await plane.step(1, admissions=[wire_admission(0, [1], pages=[0])])
    await plane.result()
    plane.cut()
    await until(lambda: rig.metric("session_state", state="detached") == 1)
    with pytest.raises(grpc.aio.AioRpcError, match=r"kept for control plane cp-1, whose connection broke, for another 0\.2 s") as refusal:
        await rig.control_plane().open("cp-2")
    assert refusal.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert dict(refusal.value.trailing_metadata())["retry-after-ms"] == "200"
    again = rig.control_plane()
    assert (await again.open(resume_incarnation="worker-1", acked_step_id=1)).resumed
    again.cut()
    await until(lambda: rig.metric("session_state", state="detached") == 1)
    rig.clock.now += 0.2
    assert (await rig.control_plane().open("cp-2")).epoch == 2


async def test_device_that_cannot_be_reset_is_reported(rig: Rig) -> None:
    rig.runner.reset_fails = True
    await rig.control_plane().open()
    async with asyncio.timeout(10):
        assert await rig.servicer.device_failure == "the device cannot be reset: RuntimeError: device lost"


async def test_steps_are_counted(rig: Rig) -> None:
    rig.runner.failing = {2}
    plane = rig.control_plane()
    await plane.open()
    await plane.step(1, admissions=[wire_admission(0, [1], pages=[0])])
    await plane.step(2)
    await plane.result(), await plane.result()
    assert (rig.metric("steps_total", outcome="ok"), rig.metric("steps_total", outcome="error")) == (1, 1)
    assert (rig.metric("sampled_tokens_total"), rig.metric("lanes"), rig.metric("epoch")) == (1, 1, 1)
    assert rig.metric("step_device_seconds_count") == 1
