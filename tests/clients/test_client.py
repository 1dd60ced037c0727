import asyncio
import gc
import subprocess
import sys
import time
from contextlib import closing

import grpc
import pytest
from fakes.control_plane.inference_service import StreamFault

from clients import Client, ServerUnreachable, ServingError


async def in_thread(server, work):
    def run():
        with Client(server.target) as client:
            return work(client)

    return await asyncio.to_thread(run)


async def test_generate_resumes(server):
    server.service.faults.extend([StreamFault(after_tokens=None), StreamFault(after_tokens=2), StreamFault(after_tokens=1)])
    completion = await in_thread(server, lambda client: client.generate("hello"))
    assert completion.token_ids == (100, 101, 102, 103, 104)
    assert len(server.service.seen) == 4


async def test_stream_has_text(server):
    texts = await in_thread(server, lambda client: [event.text for event in client.stream("hello", max_tokens=2)])
    assert texts == ["", "100 ", "101 ", ""]


async def test_final_errors_are_not_retried(server):
    server.service.faults.append(StreamFault(grpc.StatusCode.CANCELLED, 1, "aborted"))
    with pytest.raises(ServingError, match="CANCELLED: aborted"):
        await in_thread(server, lambda client: client.generate("hello"))
    assert len(server.service.seen) == 1


async def test_calls_that_a_stopping_server_drops_are_tried_again(server):
    def ask():
        with Client(server.target) as client:
            return client.generate("hello").text, client.detokenize([4])

    asking = [asyncio.create_task(asyncio.to_thread(ask)) for _ in range(4)]
    await asyncio.sleep(0.01)
    time.sleep(0.2)  # they arrive at a server that does not look at them, as after SIGSTOP
    await server.kill()
    await server.start()
    assert await asyncio.gather(*asking) == [("100 101 102 103 104 ", "4")] * 4


async def test_closing_the_client_ends_its_streams_and_everything_after(server):
    server.service.gate.clear()
    client = Client(server.target)
    stream = client.stream("hello")
    await asyncio.to_thread(next, stream)
    client.close()
    for call in (lambda: next(stream), client.models, client.is_serving, lambda: client.generate("again")):
        with pytest.raises(ServingError, match="CANCELLED: the client was closed"):
            await asyncio.to_thread(call)


async def test_closing_the_client_ends_a_stream_that_waits_for_its_next_attempt(server):
    server.service.faults.extend([StreamFault(after_tokens=1), StreamFault(grpc.StatusCode.RESOURCE_EXHAUSTED, None, "queue full", 50_000)])
    with Client(server.target) as client:
        answer = asyncio.create_task(asyncio.to_thread(client.generate, "hello"))
        while len(server.service.seen) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
    with pytest.raises(ServingError, match="CANCELLED: the client was closed"):
        await asyncio.wait_for(answer, 10)


class _ClosedMeanwhile(Client):
    """Another thread closes it just before it begins a call."""

    def _stub(self, target):
        stub = super()._stub(target)
        self.close()
        return stub


@pytest.mark.parametrize("call", [lambda client: client.models(), lambda client: client.generate("hi")])
def test_closing_the_client_as_a_call_begins_is_told_alike(dead_target, call):
    with _ClosedMeanwhile(dead_target) as client, pytest.raises(ServingError, match="CANCELLED: the client was closed"):
        call(client)


async def test_timeout_ends_the_request(server):
    server.service.gate.clear()
    with pytest.raises(ServingError, match="DEADLINE_EXCEEDED"):
        await in_thread(server, lambda client: client.generate("hello", timeout=0.2))


async def test_can_09_closing_the_iterator_cancels_the_call(server):
    with Client(server.target) as client:

        def read_one():
            with closing(client.stream("hello")) as stream:
                return next(stream)

        server.service.gate.clear()
        await asyncio.to_thread(read_one)
        await asyncio.wait_for(server.service.cancelled.wait(), 5)


async def test_can_09_dropping_the_iterator_cancels_the_call(server):
    server.service.gate.clear()
    with Client(server.target) as client:
        await asyncio.to_thread(lambda: next(client.stream("hello")))
        gc.collect()
        await asyncio.wait_for(server.service.cancelled.wait(), 5)


async def test_descriptions_tokens_and_abort(server):
    def ask(client):
        return (
            client.models()[0].name,
            client.server().version,
            client.tokenize("a").token_ids,
            client.detokenize([4]),
            client.abort("live"),
        )

    assert await in_thread(server, ask) == ("fake", "0.1.0", (7, 8, 9), "4", True)


async def test_health_is_told(server):
    assert await in_thread(server, lambda client: client.is_serving())


def test_nobody_listening_is_unreachable(dead_target):
    with Client(dead_target, connect_seconds=0.1) as client, pytest.raises(ServerUnreachable):
        client.models()


def test_importing_the_package_imports_no_grpc():
    code = "import clients, sys; assert 'grpc' not in sys.modules; clients.Client; assert 'grpc' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
