"""Sessions over real streams: who gets one, what commands do, and how it ends."""

import asyncio
from array import array

import grpc
import pytest
from fakes.control_plane.session_engine import NUMERICS_ID, token_at
from fakes.control_plane.submissions import make_choice, make_submission, submit
from harness.served_scheduler import RawFrontEnd
from harness.waiting import until

from control_plane.core.step import PackedLogprobs
from control_plane.edge.frontend_link.session import UnreadLimits
from control_plane.engine.ports import Failure, Outputs, PromptLogprobs
from control_plane.engine.snapshot import EngineSnapshot
from pypto_serving.scheduler.v1 import scheduler_pb2 as pb
from pypto_serving.wire.columns import pack_ids, unpack_ids

_CODE = grpc.StatusCode


async def test_a_session_opens_with_a_welcome_and_the_state(start_scheduler, dial):
    scheduler = await start_scheduler()
    front_end = dial(scheduler)
    welcome = await front_end.hello()
    assert (welcome.protocol_version, welcome.epoch) == (1, 1) and welcome.scheduler_id
    assert (await front_end.read("state")).state.max_model_len == 4096
    assert (await dial(scheduler).hello("another")).epoch == 2


@pytest.mark.parametrize(
    ("fields", "code", "complaint"),
    [
        ({"front_end_id": ""}, _CODE.INVALID_ARGUMENT, "hello.front_end_id"),
        ({"front_end_id": "x" * 257}, _CODE.INVALID_ARGUMENT, "hello.front_end_id"),
        ({"protocol_version": 0}, _CODE.INVALID_ARGUMENT, "hello.protocol_version"),
        ({"protocol_version": 9, "min_protocol_version": 2}, _CODE.FAILED_PRECONDITION, "this scheduler speaks 1 to 1"),
        (
            {"model_fingerprint": "other"},
            _CODE.FAILED_PRECONDITION,
            "the front end has a model with fingerprint other, this scheduler has a model: another model",
        ),
    ],
)
async def test_a_hello_that_does_not_fit_is_refused(start_scheduler, dial, fields, code, complaint):
    front_end = dial(await start_scheduler())
    with pytest.raises(grpc.aio.AioRpcError):
        await front_end.hello(**fields)
    refusal = await front_end.end()
    assert refusal[0] is code and complaint in refusal[1]


async def test_a_refusal_that_repeats_is_logged_once(start_scheduler, dial, caplog):
    scheduler = await start_scheduler()
    for fingerprint in ("other", "other", "third", "other"):
        front_end = dial(scheduler)
        with pytest.raises(grpc.aio.AioRpcError):
            await front_end.hello(model_fingerprint=fingerprint)
        await front_end.end()
    refused = [record.reason for record in caplog.records if record.message == "front end refused"]
    assert [reason.partition("fingerprint ")[2].split()[0] for reason in refused] == ["other,", "third,"]


async def test_a_newer_front_end_may_speak_our_version(start_scheduler, dial):
    welcome = await dial(await start_scheduler()).hello(protocol_version=9)
    assert welcome.protocol_version == 1


async def test_a_scheduler_that_stands_by_refuses_until_it_opens(start_scheduler, dial):
    scheduler = await start_scheduler(stands_by=True)
    front_end = dial(scheduler)
    with pytest.raises(grpc.aio.AioRpcError):
        await front_end.hello()
    assert await front_end.end() == (_CODE.UNAVAILABLE, "the scheduler stands by")
    scheduler.service.open()
    assert (await dial(scheduler).hello()).epoch == 1


async def test_the_first_frame_has_to_be_hello(start_scheduler, dial):
    front_end = dial(await start_scheduler())
    await front_end.write(state=pb.FrontEndState())
    assert await front_end.end() == (_CODE.INVALID_ARGUMENT, "frame: the first one has to be Hello")


async def test_commands_are_applied_in_their_order(start_scheduler, dial):
    scheduler = await start_scheduler()
    front_end = dial(scheduler)
    await front_end.hello()
    end = pb.End(request_id="a", failure=pb.FAILURE_DEADLINE_EXCEEDED, message="too late")
    commands = pb.Command(hold="a"), pb.Command(unhold="a"), pb.Command(finish=2), pb.Command(end=end), pb.Command(drain=pb.Drain())
    await front_end.command(submit("a", make_choice(1)), submit("b", make_choice(2)), *commands)
    await until(lambda: len(scheduler.engine.calls) == 5)
    assert [request.request_id for request in scheduler.engine.submitted] == ["a", "b"]
    ended = ("end", "a", Failure.DEADLINE_EXCEEDED, "too late")
    assert scheduler.engine.calls == [("hold", "a"), ("unhold", "a"), ("finish", 2), ended, ("drain",)]
    assert [view.is_draining for view in scheduler.service.front_ends] == [True]


async def test_output_comes_in_columns(start_scheduler, dial):
    scheduler = await start_scheduler()
    front_end = dial(scheduler)
    await front_end.hello()
    await front_end.command(submit("a", make_choice(1), make_choice(2, index=1)))
    assert list((await front_end.outputs())[0].accepted) == ["a"]
    scheduler.engine.step()
    [outputs] = await front_end.outputs()
    assert unpack_ids(outputs.numbers, "numbers").tolist() == [1, 2]
    assert unpack_ids(outputs.token_ids, "token_ids").tolist() == [token_at("a", 0, 0), token_at("a", 1, 0)]
    assert [(change.number, change.numerics_id) for change in outputs.numerics] == [(1, NUMERICS_ID), (2, NUMERICS_ID)]


async def test_passes_that_pile_up_go_into_one_message(start_scheduler, dial):
    scheduler = await start_scheduler()
    front_end = dial(scheduler)
    await front_end.hello()
    await front_end.command(submit("a", make_choice(1)))
    await front_end.outputs()
    for _ in range(4):
        scheduler.engine.step()
    passes = await front_end.outputs()
    assert [unpack_ids(outputs.token_ids, "token_ids").tolist() for outputs in passes] == [[token_at("a", 0, index)] for index in range(4)]
    assert passes[3].finished[0].reason == pb.FINISH_REASON_LENGTH


async def test_output_that_cannot_be_written_ends_the_session(start_scheduler, dial, monkeypatch):
    """Or else a front end would miss it without notice."""
    scheduler = await start_scheduler()
    front_end = dial(scheduler)
    await front_end.hello()
    await front_end.command(submit("a", make_choice(1)))
    await front_end.outputs()
    monkeypatch.setattr("control_plane.edge.frontend_link.session.write_outputs", lambda outputs, message: [][0])
    with pytest.raises(IndexError):  # for the engine to note
        scheduler.engine.step()
    assert await front_end.end() == (_CODE.INTERNAL, "output cannot be written")


async def test_a_broken_frame_ends_the_session_before_it_has_any_effect(start_scheduler, dial):
    scheduler = await start_scheduler()
    front_end = dial(scheduler)
    await front_end.hello()
    await front_end.command(submit("a"), pb.Command(submit=make_submission("b", prompt_token_ids=pack_ids([1000]))))
    code, message = await front_end.end()
    assert code is _CODE.INVALID_ARGUMENT and message.startswith("submit.prompt_token_ids: 1000")
    assert scheduler.engine.submitted == [] and scheduler.engine.calls == [("close",)]


async def test_an_id_may_come_again_after_its_end_but_not_before(start_scheduler, dial):
    scheduler = await start_scheduler()
    front_end = dial(scheduler)
    await front_end.hello()
    await front_end.command(submit("a", make_choice(1), max_tokens=1))
    await until(lambda: scheduler.engine.submitted)
    scheduler.engine.step()
    await front_end.command(submit("a", make_choice(1)))
    await until(lambda: len(scheduler.engine.submitted) == 2)
    await front_end.command(submit("a", make_choice(2)))
    assert await front_end.end() == (_CODE.INVALID_ARGUMENT, "submit.request_id: 'a' is live in this session")


async def test_an_id_may_come_again_after_a_failure(start_scheduler, dial):
    scheduler = await start_scheduler()
    front_end = dial(scheduler)
    await front_end.hello()
    scheduler.engine.refuses_new = True
    for _ in range(2):
        await front_end.command(submit("a", make_choice(1)))
        [outputs] = await front_end.outputs()
        assert (outputs.failed[0].failure, outputs.failed[0].retry_after_us) == (pb.FAILURE_QUEUE_FULL, 500_000)


async def test_a_request_without_choices_is_over_with_its_acceptance(start_scheduler, dial):
    scheduler = await start_scheduler()
    front_end = dial(scheduler)
    await front_end.hello()
    for _ in range(2):
        await front_end.command(submit("a", choices=[]))
        assert list((await front_end.outputs())[0].accepted) == ["a"]


async def test_the_end_of_a_stream_ends_its_requests(start_scheduler, dial):
    scheduler = await start_scheduler()
    front_end, other = dial(scheduler), dial(scheduler)
    await front_end.hello()
    await other.hello("other")
    await front_end.command(submit("a", make_choice(1)))
    await other.command(submit("b", make_choice(1)))
    await until(lambda: len(scheduler.engine.live) == 2)
    await front_end.close()
    await until(lambda: list(scheduler.engine.live) == ["b"])
    assert [view.front_end_id for view in scheduler.service.front_ends] == ["other"]


async def test_a_newer_stream_of_a_front_end_ends_the_older_one_first(start_scheduler, dial):
    scheduler = await start_scheduler()
    older, newer = dial(scheduler), dial(scheduler)
    await older.hello()
    await older.command(submit("a"))
    await until(lambda: scheduler.engine.live)
    await newer.hello()
    assert not scheduler.engine.live
    await newer.command(submit("a"))
    assert list((await newer.outputs())[0].accepted) == ["a"]
    assert await older.end() == (_CODE.ABORTED, "replaced by a newer stream of front end front end")
    assert scheduler.engine.live and scheduler.engine.calls == [("close",)]


async def test_nothing_is_published_to_an_older_stream(start_scheduler, dial):
    scheduler = await start_scheduler()
    older, newer = dial(scheduler), dial(scheduler)
    await older.hello()
    await older.command(submit("older"))
    await until(lambda: scheduler.engine.live)
    fenced = scheduler.engine.live["older"]
    await newer.hello()
    fenced.publish(Outputs(accepted=["ghost"]))
    await newer.command(submit("a"))
    assert list((await newer.outputs())[0].accepted) == ["a"]


async def test_a_silent_front_end_loses_its_session(start_scheduler, dial):
    scheduler = await start_scheduler(max_silence_seconds=0.1)
    front_end = dial(scheduler)
    await front_end.hello()
    assert await front_end.end() == (_CODE.ABORTED, "nothing was heard of the front end for 0.1 s")
    assert scheduler.service.front_ends == []


async def test_a_front_end_that_beats_keeps_its_session(start_scheduler, dial):
    scheduler = await start_scheduler(max_silence_seconds=0.1)
    front_end = dial(scheduler)
    await front_end.hello()
    for _ in range(30):
        await front_end.write(state=pb.FrontEndState(num_calls=3))
        await front_end.read("state")
    assert scheduler.service.front_ends[0].num_calls == 3


async def test_a_front_end_that_does_not_read_loses_its_session(start_scheduler, dial):
    scheduler = await start_scheduler(unread=UnreadLimits(100_000, 0.05), max_silence_seconds=60.0)
    front_end = dial(scheduler)
    await front_end.hello()
    await front_end.command(submit("a"))
    await until(lambda: scheduler.engine.live)
    session = scheduler.engine.live["a"]
    while scheduler.service.front_ends:
        session.publish(Outputs(accepted=["x" * 10_000]))
        await asyncio.sleep(0.001)
    code, message = await front_end.end()
    assert code is _CODE.RESOURCE_EXHAUSTED and message.endswith("limits 100000 and 0.05 s")


async def test_a_burst_of_output_ends_no_session_of_a_front_end_that_reads(start_scheduler, dial):
    scheduler = await start_scheduler(max_silence_seconds=60.0)
    front_end = dial(scheduler)
    await front_end.hello()
    await front_end.command(*[submit(f"r{index}", make_choice(index)) for index in range(8)])
    await until(lambda: len(scheduler.engine.live) == 8)
    while len(accepted := (await front_end.outputs())[-1].accepted) != 1 or accepted[0] != "r7":
        pass
    prompt, top = _prompt_of_128k_tokens()
    for index in range(8):
        scheduler.engine.live[f"r{index}"].publish(Outputs(prompt_logprobs=[PromptLogprobs(f"r{index}", [prompt])]))
    found = [one for _ in range(8) for outputs in await front_end.outputs() for one in outputs.prompt_logprobs]
    assert [one.request_id for one in found] == [f"r{index}" for index in range(8)]
    assert all(len(one.top_logprobs) == top for one in found) and scheduler.service.front_ends


def _prompt_of_128k_tokens() -> tuple[PackedLogprobs, int]:
    """Log probabilities with 20 alternatives each, and the bytes of those."""
    num_tokens, count = 2**17, 20
    values, top = array("f", bytes(4 * num_tokens)), array("f", bytes(4 * count * num_tokens))
    ids = array("I", bytes(4 * count * num_tokens))
    return PackedLogprobs(ids[:num_tokens], memoryview(values), count, memoryview(ids), memoryview(top)), len(top) * 4


async def test_metrics_stay_until_newer_ones_come(start_scheduler, dial):
    scheduler = await start_scheduler()
    front_end = dial(scheduler)
    await front_end.hello()
    await front_end.write(state=pb.FrontEndState(metrics=b"a 1\n"))
    await front_end.write(state=pb.FrontEndState(num_calls=2, num_held_back=3, num_unwritten_bytes=4))
    await until(lambda: scheduler.service.front_ends[0].num_calls)
    view = scheduler.service.front_ends[0]
    assert (view.metrics, view.num_calls, view.num_held_back, view.num_unwritten_bytes) == (b"a 1\n", 2, 3, 4)


async def test_states_follow_the_engine(start_scheduler, dial):
    scheduler = await start_scheduler()
    front_end = dial(scheduler)
    await front_end.hello()
    scheduler.engine.snapshot = EngineSnapshot(num_running=7)
    while (await front_end.read("state")).state.num_running != 7:
        pass


async def test_a_drain_reaches_front_ends_of_now_and_later(start_scheduler, dial):
    scheduler = await start_scheduler()
    front_end, later = dial(scheduler), dial(scheduler)
    await front_end.hello()
    scheduler.service.drain()
    await front_end.read("drain")
    await later.hello("later")
    await later.read("drain")


async def test_a_farewell_comes_after_all_output(start_scheduler, dial):
    scheduler = await start_scheduler()
    front_end = dial(scheduler)
    await front_end.hello()
    await front_end.command(submit("a", make_choice(1), max_tokens=2))
    await front_end.outputs()
    scheduler.engine.step()
    leaving = asyncio.create_task(scheduler.leave())
    [outputs] = await front_end.outputs()
    assert len(outputs.token_ids) == 4
    await front_end.read("farewell")
    assert (await front_end.end())[0] is _CODE.OK
    await leaving


async def test_abort_reaches_requests_of_every_front_end(start_scheduler, dial):
    scheduler = await start_scheduler()
    front_end, other = dial(scheduler), dial(scheduler)
    await front_end.hello()
    await front_end.command(submit("a"))
    await until(lambda: scheduler.engine.live)
    assert (await other.stub.Abort(pb.AbortRequest(request_id="a"))).was_live
    assert not (await other.stub.Abort(pb.AbortRequest(request_id="a"))).was_live
    while not (outputs := (await front_end.outputs())[-1]).failed:
        pass
    assert outputs.failed[0].failure == pb.FAILURE_CANCELLED


async def test_frames_of_an_unknown_kind_are_ignored_and_empty_ones_are_not(start_scheduler, dial):
    scheduler = await start_scheduler()
    front_end = dial(scheduler)
    await front_end.hello()
    await front_end._call.write(pb.ConnectRequest.FromString(b"\xfa\x01\x00"))
    await front_end.command(submit("a"))
    await front_end.outputs()
    await front_end.write()
    assert await front_end.end() == (_CODE.INVALID_ARGUMENT, "frame: not set; after Hello it is commands, state or spans")


async def test_abort_reaches_a_request_that_its_front_end_is_about_to_submit_again(start_scheduler, dial):
    scheduler = await start_scheduler(settle_seconds=60.0)
    front_end, other = dial(scheduler), dial(scheduler)
    aborting = asyncio.create_task(_abort(other, "a"))
    await front_end.hello()
    await front_end.command(submit("a"))
    assert await aborting
    assert "a" not in scheduler.engine.live


async def test_abort_waits_for_a_front_end_whose_connection_broke(start_scheduler, dial):
    clock = [0.0]
    scheduler = await start_scheduler(settle_seconds=3.0, clock=lambda: clock[0])
    broken, front_end, other = dial(scheduler), dial(scheduler), dial(scheduler)
    await broken.hello()
    clock[0] = 4.0
    assert not await _abort(other, "a")
    await broken.close()
    await until(lambda: not scheduler.service.front_ends)
    aborting = asyncio.create_task(_abort(other, "a"))
    await front_end.hello()
    await front_end.command(submit("a"))
    assert await aborting


async def test_abort_of_what_nobody_brings_ends(start_scheduler, dial):
    scheduler = await start_scheduler(settle_seconds=0.1)
    assert not await _abort(dial(scheduler), "a")


async def _abort(front_end: RawFrontEnd, request_id: str) -> bool:
    return (await front_end.stub.Abort(pb.AbortRequest(request_id=request_id))).was_live
