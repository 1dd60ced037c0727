import asyncio
import gc
from contextlib import aclosing

import grpc
import pytest
from fakes.control_plane.inference_service import PROMPT_IDS, FakeInferenceService, FakeServer, StreamFault

from clients import AsyncClient, ResumeExhausted, ServerUnreachable, ServingError
from clients.results import Delta, Finished, FinishReason, Started

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ALL_TEXT = "100 101 102 103 104 "


def faults(server, *script):
    server.service.faults.extend(script)


async def test_generate_returns_text_ids_and_usage(server):
    async with AsyncClient(server.target) as client:
        completion = await client.generate("hello", seed=3)
    assert completion.text == ALL_TEXT
    assert completion.token_ids == (100, 101, 102, 103, 104)
    assert completion.finish_reason is FinishReason.LENGTH
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (3, 5)
    assert completion.started.seed == 3
    assert completion.started.prompt_token_ids == PROMPT_IDS


async def test_stream_yields_started_deltas_and_finished_all_with_text(server):
    async with AsyncClient(server.target) as client:
        events = [event async for event in client.stream("hello", max_tokens=2)]
    assert [type(event) for event in events] == [Started, Delta, Delta, Finished]
    assert [event.text for event in events] == ["", "100 ", "101 ", ""]


async def test_broken_stream_resumes_with_every_token_exactly_once(server):
    faults(server, StreamFault(after_tokens=2), StreamFault(after_tokens=0), StreamFault(after_tokens=1))
    async with AsyncClient(server.target) as client:
        events = [event async for event in client.stream("hello", prompt_logprobs=1)]
    assert [event.token_ids for event in events if isinstance(event, Delta)] == [(i,) for i in range(100, 105)]
    assert sum(isinstance(event, Started) for event in events) == 1
    assert len(server.service.seen) == 4


async def test_resume_sends_what_was_received_and_not_the_prompt(server):
    faults(server, StreamFault(after_tokens=2))
    async with AsyncClient(server.target) as client:
        await client.generate("hello", seed=5, cache_salt="s", prompt_logprobs=1)
    spec = server.service.seen[1]
    assert spec.WhichOneof("prompt") is None
    assert (spec.request_id, spec.cache_salt) == ("fake-1", "s")
    assert (spec.resume.key, spec.resume.model_fingerprint, spec.resume.effective.sampling.seed) == (b"key", "f1", 5)
    assert tuple(spec.resume.prompt_token_ids) == PROMPT_IDS
    assert [(choice.index, list(choice.token_ids), choice.finished) for choice in spec.resume.choices] == [(0, [100, 101], False)]
    assert not spec.resume.effective.output.HasField("prompt_logprobs")
    assert not any(spec.HasField(field) for field in ("sampling", "stopping", "output", "n"))


async def test_resume_of_several_choices_keeps_those_that_finished(server):
    faults(server, StreamFault(after_tokens=7))
    async with AsyncClient(server.target) as client:
        completion = await client.generate("hello", n=2)
    assert [choice.token_ids for choice in completion.choices] == [tuple(range(100, 105)), tuple(range(200, 205))]
    assert [choice.finished for choice in server.service.seen[1].resume.choices] == [True, False]
    assert completion.usage.completion_tokens == 10


async def test_stream_cut_off_without_an_error_is_resumed(server):
    faults(server, StreamFault(code=grpc.StatusCode.OK, after_tokens=3))
    async with AsyncClient(server.target) as client:
        assert (await client.generate("hello")).text == ALL_TEXT


async def read_then_kill(stream, server):
    """The texts of two events; a third never comes."""
    server.service.free_tokens = 1
    server.service.gate.clear()
    texts = [(await anext(stream)).text for _ in range(2)]
    await server.kill()
    return texts


async def test_server_killed_and_restarted_on_its_port_continues(server):
    async with AsyncClient(server.target) as client, aclosing(client.stream("hello")) as stream:
        texts = await read_then_kill(stream, server)
        server.service.gate.set()
        await server.start()
        texts += [event.text async for event in stream]
    assert "".join(texts) == ALL_TEXT
    assert [spec.HasField("resume") for spec in server.service.seen] == [False, True]


async def test_next_target_takes_over_and_is_preferred_afterwards(server):
    async with FakeServer(FakeInferenceService()) as first, AsyncClient([first.target, server.target]) as client:
        async with aclosing(client.stream("hello")) as stream:
            texts = await read_then_kill(stream, first)
            texts += [event.text async for event in stream]
        await client.generate("again")
    assert "".join(texts) == ALL_TEXT
    assert [spec.HasField("resume") for spec in server.service.seen] == [True, False]


async def test_first_target_that_answers_is_used(server, dead_target):
    async with AsyncClient([dead_target, server.target]) as client:
        assert (await client.generate("hello")).text == ALL_TEXT


@pytest.mark.parametrize("code", [grpc.StatusCode.ABORTED, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.CANCELLED])
async def test_final_errors_are_not_retried(server, code):
    faults(server, StreamFault(code=code, after_tokens=1, details="top_p: 2 is above 1"))
    async with AsyncClient(server.target) as client:
        with pytest.raises(ServingError, match="top_p: 2 is above 1") as caught:
            await client.generate("hello")
    assert (caught.value.code, caught.value.request_id) == (code, "fake-1")
    assert len(server.service.seen) == 1


async def test_unavailable_before_started_is_retried(server):
    faults(server, StreamFault(after_tokens=None))
    async with AsyncClient(server.target) as client:
        assert (await client.generate("hello")).text == ALL_TEXT
    assert not server.service.seen[1].HasField("resume")


async def test_full_queue_refuses_a_new_request_and_says_when_to_return(server):
    faults(server, StreamFault(grpc.StatusCode.RESOURCE_EXHAUSTED, None, "queue full", 250))
    async with AsyncClient(server.target) as client:
        with pytest.raises(ServingError) as caught:
            await client.generate("hello")
    assert caught.value.retry_after_seconds == 0.25


async def test_full_queue_delays_a_resumed_request(server):
    faults(server, StreamFault(after_tokens=1), StreamFault(grpc.StatusCode.RESOURCE_EXHAUSTED, None, "queue full", 10))
    async with AsyncClient(server.target) as client:
        assert (await client.generate("hello")).text == ALL_TEXT


async def test_other_model_after_a_break_is_an_error(server):
    server.service.faults.append(StreamFault(after_tokens=1))
    async with AsyncClient(server.target) as client, aclosing(client.stream("hello")) as stream:
        await anext(stream)
        server.service.fingerprint = "f2"
        with pytest.raises(ServingError, match="this is f2") as caught:
            async for _ in stream:
                pass
    assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION


async def test_exhausted_resume_names_its_budget_and_what_was_received(server):
    faults(server, StreamFault(after_tokens=2), *[StreamFault(after_tokens=0)] * 20)
    async with AsyncClient(server.target, resume_seconds=0.2) as client:
        with pytest.raises(ResumeExhausted, match=r"after 2 tokens .* resume_seconds=0.2: scripted fault"):
            await client.generate("hello")


async def test_nobody_listening_names_targets_and_budget(dead_target):
    async with AsyncClient(dead_target, connect_seconds=0.1) as client:
        with pytest.raises(ServerUnreachable, match=rf"no answer from {dead_target} within connect_seconds=0.1"):
            await client.generate("hello")


async def test_can_09_closing_the_iterator_cancels_the_call(server):
    server.service.gate.clear()
    async with AsyncClient(server.target) as client:
        async with aclosing(client.stream("hello")) as stream:
            await anext(stream)
        await asyncio.wait_for(server.service.cancelled.wait(), 5)


async def test_can_09_dropping_the_iterator_cancels_the_call(server):
    server.service.gate.clear()
    async with AsyncClient(server.target) as client:
        stream = client.stream("hello")
        await anext(stream)
        del stream
        gc.collect()
        await asyncio.wait_for(server.service.cancelled.wait(), 5)


async def test_can_09_closing_the_client_ends_its_streams_and_everything_after(server):
    server.service.gate.clear()
    client = AsyncClient(server.target)
    stream = client.stream("hello")
    await anext(stream)
    await client.close()
    for call in (lambda: anext(stream), client.models, client.is_serving, lambda: client.generate("again")):
        with pytest.raises(ServingError, match="CANCELLED: the client was closed"):
            await call()
    await asyncio.wait_for(server.service.cancelled.wait(), 5)


async def test_can_09_closing_the_client_ends_a_stream_that_waits_for_its_next_attempt(server):
    faults(server, StreamFault(after_tokens=1), StreamFault(grpc.StatusCode.RESOURCE_EXHAUSTED, None, "queue full", 50_000))
    async with AsyncClient(server.target) as client:
        answer = asyncio.create_task(client.generate("hello"))
        while len(server.service.seen) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
    with pytest.raises(ServingError, match="CANCELLED: the client was closed"):
        await asyncio.wait_for(answer, 10)


async def test_words_of_a_server_are_not_taken_for_those_of_a_connection(server):
    faults(server, StreamFault(grpc.StatusCode.INVALID_ARGUMENT, 1, "stop: 'certificate has expired' is given twice"))
    async with AsyncClient(server.target) as client:
        with pytest.raises(ServingError, match="INVALID_ARGUMENT: stop: "):
            await client.generate("hello")


async def test_timeout_ends_the_request(server):
    server.service.gate.clear()
    async with AsyncClient(server.target) as client:
        with pytest.raises(ServingError, match=r"timeout=0\.2: the answer took longer") as caught:
            await client.generate("hello", timeout=0.2)
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_descriptions_tokens_and_abort(server):
    async with AsyncClient(server.target) as client:
        (model,) = await client.models()
        assert (model.name, model.end_token_ids, model.has_chat_template) == ("fake", (2,), True)
        assert (await client.server()).num_workers == 1
        assert (await client.tokenize("a b c", with_offsets=True)).spans == ((0, 1), (2, 3), (4, 5))
        assert await client.detokenize([1, 2]) == "1 2"
        assert await client.abort("live") and not await client.abort("gone")
        assert await client.is_serving()
        await server.set_serving(False)
        assert not await client.is_serving()


async def test_every_attempt_names_the_trace(server):
    faults(server, StreamFault(after_tokens=2), StreamFault(after_tokens=0))
    async with AsyncClient(server.target) as client:
        await client.generate("hello", traceparent=TRACEPARENT)
        await client.generate("hello")
    assert server.service.traceparents == [TRACEPARENT] * 3 + [None]
