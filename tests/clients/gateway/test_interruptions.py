"""Streams that break, clients that go away, and servers that are not there."""

import asyncio
import re
import socket

import httpx
import pytest
from fakes.control_plane.inference_service import FakeInferenceService, FakeServer, StreamFault
from grpc import StatusCode
from harness.running_gateway import running_gateway

from clients.async_client import AsyncClient
from clients.gateway import control_planes, server

COMPLETIONS = "/v1/completions"
WHOLE = "100 101 102 103 104 "


async def test_gwy_01_an_error_in_a_stream_ends_it_without_done(fake_front):
    fake_front.fake.faults.append(StreamFault(StatusCode.INTERNAL, after_tokens=3))
    events = await fake_front.events(COMPLETIONS, {"prompt": "x"})
    assert [event["choices"][0]["text"] for event in events[:-1]] == ["100 ", "101 ", "102 "]
    assert events[-1]["error"]["type"] == "server_error"


@pytest.mark.parametrize("stream", [True, False])
async def test_can_01_a_client_that_goes_away_cancels_its_request(fake_front, stream):
    fake_front.fake.gate.clear()
    asking = asyncio.ensure_future(fake_front.http.post(COMPLETIONS, json={"prompt": "x", "stream": stream}))
    while not fake_front.fake.seen:
        await asyncio.sleep(0.005)
    asking.cancel()
    await fake_front.fake.cancelled.wait()
    while "gateway_disconnects_total 1.0" not in (await fake_front.http.get("/metrics")).text:
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_stream_that_breaks_goes_on_unnoticed(fake_front, stream):
    fake_front.fake.faults += [StreamFault(after_tokens=2), None]
    if stream:
        events = await fake_front.events(COMPLETIONS, {"prompt": "x"})
        assert "".join(event["choices"][0]["text"] for event in events[:-1]) == WHOLE
    else:
        answer = await fake_front.http.post(COMPLETIONS, json={"prompt": "x"})
        assert answer.json()["choices"][0]["text"] == WHOLE
    assert fake_front.fake.seen[-1].HasField("resume")


async def test_a_stream_goes_on_at_another_control_plane():
    one, other = FakeInferenceService(), FakeInferenceService()
    async with FakeServer(one) as first, FakeServer(other) as second:
        for fake in (one, other):
            fake.free_tokens = 2
            fake.gate.clear()
        async with running_gateway(first.target, second.target) as gateway, httpx.AsyncClient(base_url=gateway.url) as http:
            asking = asyncio.ensure_future(http.post(COMPLETIONS, json={"prompt": "x"}))
            while not one.seen + other.seen:
                await asyncio.sleep(0.005)
            left = second if one.seen else first
            left.service.gate.set()
            await (first if one.seen else second).kill()
            assert (await asking).json()["choices"][0]["text"] == WHOLE
            assert left.service.seen


async def test_control_planes_take_turns():
    one, other = FakeInferenceService(), FakeInferenceService()
    async with (
        FakeServer(one) as first,
        FakeServer(other) as second,
        running_gateway(first.target, second.target) as gateway,
        httpx.AsyncClient(base_url=gateway.url) as http,
    ):
        for _ in range(6):
            assert (await http.post(COMPLETIONS, json={"prompt": "x"})).status_code == 200
    assert len(one.seen) == len(other.seen) == 3


async def test_a_control_plane_that_drains_gets_no_new_requests():
    one, other = FakeInferenceService(), FakeInferenceService()
    async with FakeServer(one) as first, FakeServer(other) as second:
        await first.set_serving(False)
        async with running_gateway(first.target, second.target) as gateway, httpx.AsyncClient(base_url=gateway.url) as http:
            for _ in range(4):
                await http.post(COMPLETIONS, json={"prompt": "x"})
    assert (len(one.seen), len(other.seen)) == (0, 4)


async def test_without_a_control_plane_it_lives_and_is_not_ready(dead_target):
    async with running_gateway(dead_target, flags=("--connect-seconds", "0")) as gateway, httpx.AsyncClient(base_url=gateway.url) as http:
        why = f"no control plane serves: {dead_target}: no answer"
        assert (await http.get("/health")).json() == {"status": "ok"}
        ready = await http.get("/ready")
        assert (ready.status_code, ready.json()["error"]["message"]) == (503, why)
        for path, found in {"/livez": (200, "ok\n"), "/startupz": (200, "ok\n"), "/readyz": (503, f"{why}\n")}.items():
            probe = await http.get(path)
            assert (probe.status_code, probe.text, probe.headers["content-type"]) == (*found, "text/plain; charset=utf-8")
        answer = await http.post(COMPLETIONS, json={"prompt": "x"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")


async def test_the_log_tells_once_that_a_control_plane_is_away_and_that_it_is_back(caplog, monkeypatch):
    monkeypatch.setattr(control_planes, "_CHECK_SECONDS", 0.02)
    caplog.set_level("INFO")
    look, num_looks = AsyncClient.is_serving, 0

    async def counted(probe):
        nonlocal num_looks
        num_looks += 1
        return await look(probe)

    monkeypatch.setattr(AsyncClient, "is_serving", counted)

    def told():
        return [record.getMessage() for record in caplog.records if record.name == "clients.gateway.control_planes"]

    async def until(text):
        while text not in told()[-1:]:
            await asyncio.sleep(0.02)

    async with FakeServer(FakeInferenceService()) as server, running_gateway(server.target):
        await until("control plane serves")
        await server.kill()
        await until(f"control plane {server.target}: no answer")
        told_after = num_looks
        while num_looks < told_after + 3:  # two have looked in vain once more
            await asyncio.sleep(0.02)
        await server.start()
        await until("control plane serves")
    assert told() == ["control plane serves", f"control plane {server.target}: no answer", "control plane serves"]


async def test_a_control_plane_that_waits_for_its_worker_at_the_start_is_no_warning(caplog):
    caplog.set_level("INFO")
    async with FakeServer(FakeInferenceService()) as server:
        await server.set_serving(False)
        async with running_gateway(server.target):
            pass
    [told] = [record for record in caplog.records if record.name == "clients.gateway.control_planes"]
    assert told.levelname == "INFO" and told.getMessage().startswith(f"not there yet: control plane {server.target}: it answers, and ")


async def test_a_full_queue_says_when_to_come_back(fake_front):
    fake_front.fake.faults.append(StreamFault(StatusCode.RESOURCE_EXHAUSTED, None, "the queue is full", retry_after_ms=1500))
    answer = await fake_front.http.post(COMPLETIONS, json={"prompt": "x", "stream": True})
    assert (answer.status_code, answer.headers["retry-after"], answer.headers["retry-after-ms"]) == (429, "2", "1500")
    assert answer.json()["error"]["type"] == "rate_limit_error"


@pytest.mark.parametrize("is_at_once", [False, True])
async def test_what_runs_when_a_drain_ends_is_told_so(caplog, is_at_once):
    caplog.set_level("INFO")
    service = FakeInferenceService(free_tokens=2)
    service.gate.clear()
    flags = ("--drain-seconds", "60" if is_at_once else "0.1")
    async with FakeServer(service) as server, running_gateway(server.target, flags=flags) as gateway:
        async with httpx.AsyncClient(base_url=gateway.url) as http:
            asked = [
                asyncio.create_task(http.post(path, json={"prompt": "x", "messages": message, "input": "x", "stream": stream}))
                for path in (COMPLETIONS, "/v1/chat/completions", "/v1/responses")
                for stream in (False, True)
                for message in [[{"role": "user", "content": "x"}]]
            ]
            while len(service.seen) < len(asked):
                await asyncio.sleep(0.005)
            for _ in range(2 if is_at_once else 1):
                gateway.stop.request_stop()
            answers = await asyncio.gather(*asked)
        await gateway.task
    for whole, stream in zip(answers[::2], answers[1::2], strict=True):
        assert (whole.status_code, whole.json()["error"]["code"]) == (503, "unavailable")
        assert stream.status_code == 200 and "[DONE]" not in stream.text
        assert all("the gateway is shutting down" in told.text for told in (whole, stream))
    assert "Exception in ASGI application" not in caplog.text
    told = [record.getMessage() for record in caplog.records if record.name == "clients.gateway.server"]
    assert told == ["serving", "draining", "requests cut off", "stopped"]


async def test_a_client_that_never_sends_its_body_does_not_hold_up_the_end(caplog):
    async with FakeServer(FakeInferenceService()) as server, running_gateway(server.target, flags=("--drain-seconds", "0.1")) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.server.port)
        writer.write(f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n".encode())
        async with httpx.AsyncClient(base_url=gateway.url) as http:
            while "gateway_live_requests 2.0" not in (await http.get("/metrics")).text:
                await asyncio.sleep(0.005)
        gateway.stop.request_stop()
        assert await reader.read() == b""
        await gateway.task
        writer.close()
    assert not [record for record in caplog.records if record.name == "uvicorn.error"]


async def until_ready(http, status):
    while (ready := await http.get("/ready")).status_code != status:
        await asyncio.sleep(0.02)
    return ready.json()


async def test_a_control_plane_that_says_nothing_hides_no_other(monkeypatch):
    monkeypatch.setattr(control_planes, "_CHECK_SECONDS", 0.02)
    with socket.create_server(("127.0.0.1", 0)) as mute:  # takes connections, and no more
        target = f"127.0.0.1:{mute.getsockname()[1]}"
        async with FakeServer(FakeInferenceService()) as well, running_gateway(target, well.target) as gateway:
            monkeypatch.setattr(control_planes, "_ANSWER_SECONDS", 600.0)
            async with httpx.AsyncClient(base_url=gateway.url) as http:
                for is_serving in (False, True):
                    await well.set_serving(is_serving)
                    await until_ready(http, 200 if is_serving else 503)


async def test_a_control_plane_that_falls_silent_does_not_serve(monkeypatch):
    monkeypatch.setattr(control_planes, "_CHECK_SECONDS", 0.02)
    server, answers = FakeServer(FakeInferenceService()), asyncio.Event()
    check = server.health.Check

    async def check_if_let(request, context):
        await answers.wait()
        return await check(request, context)

    server.health.Check = check_if_let
    answers.set()
    async with server, running_gateway(server.target) as gateway, httpx.AsyncClient(base_url=gateway.url) as http:
        await until_ready(http, 200)
        answers.clear()
        monkeypatch.setattr(control_planes, "_ANSWER_SECONDS", 0.02)
        assert (await until_ready(http, 503))["error"]["message"] == f"no control plane serves: {server.target}: no answer"
        monkeypatch.undo()
        answers.set()
        await until_ready(http, 200)


async def test_a_check_that_fails_of_a_defect_is_logged_and_tried_again(caplog, monkeypatch):
    monkeypatch.setattr(control_planes, "_CHECK_SECONDS", 0.02)
    async with (
        FakeServer(FakeInferenceService()) as server,
        running_gateway(server.target) as gateway,
        httpx.AsyncClient(base_url=gateway.url) as http,
    ):
        with monkeypatch.context() as defect:
            defect.setattr(AsyncClient, "is_serving", lambda client: 1 / 0)
            while "a defect of the gateway, in a check of a control plane" not in caplog.text:
                await asyncio.sleep(0.02)
        await server.set_serving(False)
        await until_ready(http, 503)


def listening_with_a_small_buffer(host, port, listen=server._listen):
    listening = listen(host, port)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return listening


async def num_events(http):
    return float(re.search("gateway_events_total ([0-9.]+)", (await http.get("/metrics")).text)[1])


async def test_a_slow_reader_is_waited_for_and_gets_every_event(monkeypatch):
    monkeypatch.setattr(server, "_listen", listening_with_a_small_buffer)
    body = b'{"prompt": "x", "stream": true, "max_tokens": 2000}'
    headers = f"host: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    async with FakeServer(FakeInferenceService()) as plane, running_gateway(plane.target) as gateway:
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.setblocking(False)
            await asyncio.get_running_loop().sock_connect(slow, ("127.0.0.1", gateway.server.port))
            reader, writer = await asyncio.open_connection(sock=slow, limit=1024)
            writer.write(f"POST {COMPLETIONS} HTTP/1.1\r\n{headers}\r\n\r\n".encode() + body)
            async with httpx.AsyncClient(base_url=gateway.url) as http:
                before, now = 0.0, 0.0
                while now == 0 or now != before:
                    before, now = now, await num_events(http)
                    await asyncio.sleep(0.1)
                assert now < 2000
            answer = await reader.read()
            writer.close()
    texts = re.findall(rb'"text":"(\d+) "', answer)
    assert [int(text) for text in texts] == list(range(100, 2100))
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
