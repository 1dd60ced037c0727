"""Streams that break, clients that go away, and servers that are not there."""

import asyncio

from fakes.control_plane.inference_service import StreamFault
from grpc import StatusCode


async def test_gwy_01_an_error_in_a_stream_ends_it_without_done(fake_front):
    fake_front.fake.faults.append(StreamFault(StatusCode.INTERNAL, after_tokens=3))
    events = await fake_front.events("/v1/completions", {"prompt": "x"})
    assert [event["choices"][0]["text"] for event in events[:-1]] == ["100 ", "101 ", "102 "]
    assert events[-1]["error"]["type"] == "server_error"


async def test_can_01_a_client_that_goes_away_cancels_its_request(fake_front):
    fake_front.fake.gate.clear()
    for stream in (True, False):
        fake_front.fake.cancelled.clear()
        task = asyncio.ensure_future(fake_front.http.post("/v1/completions", json={"prompt": "x", "stream": stream}))
        while not fake_front.fake.seen:
            await asyncio.sleep(0.005)
        task.cancel()
        await fake_front.fake.cancelled.wait()
        fake_front.fake.seen.clear()
