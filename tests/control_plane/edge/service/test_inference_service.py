"""The service over a real gRPC server, with a scripted engine behind it."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc
import pytest
from fakes.control_plane.scripted_engine import MAX_MODEL_LEN, ScriptedControlPlane, scripted_control_plane, served_model
from fakes.text.tokenizers import BOS, EOS, EOT, SPECIAL_TOKENS, byte_tokenizer

from control_plane.edge.text.tokenizer import Tokenizer
from control_plane.engine.ports import Failure, RequestFailed
from pypto_serving.inference.v1 import inference_pb2 as pb


@pytest.fixture
async def plane() -> AsyncIterator[ScriptedControlPlane]:
    async with scripted_control_plane() as plane:
        yield plane


def text_of(events: list[pb.GenerateStreamResponse]) -> str:
    return "".join(event.delta.text for event in events)


async def status_of(call: object) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def rest_of(stream: object) -> list[pb.GenerateStreamResponse]:
    events = []
    while (event := await stream.read()) is not grpc.aio.EOF:
        events.append(event)
    return events


async def until(condition: object) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def test_a_unary_answer_holds_everything(plane: ScriptedControlPlane) -> None:
    response = await plane.generate(text="Hi", request_id="r1")
    choice = response.choices[0]
    assert (choice.text, list(choice.token_ids)) == ("hello", [*b"hello", EOS])
    assert (choice.finished.reason, choice.finished.stop_token_id) == (pb.FINISH_REASON_STOP, EOS)
    assert response.usage == pb.Usage(prompt_tokens=3, completion_tokens=6)
    assert (response.started.request_id, response.started.num_prompt_tokens) == ("r1", 3)


async def test_txt_06_a_stream_is_started_deltas_and_one_finished(plane: ScriptedControlPlane) -> None:
    for interval in (1, 4):
        events = await plane.events(text="Hi", output=pb.OutputOptions(stream_interval=interval))
        kinds = [event.WhichOneof("event") for event in events]
        assert (kinds[0], kinds[-1], set(kinds[1:-1])) == ("started", "finished", {"delta"})
        assert text_of(events) == "hello"
        deltas = [event.delta for event in events[1:-1]]
        assert all(len(delta.token_ids) >= interval for delta in deltas[:-1])
        assert [delta.first_index for delta in deltas[1:]] == [*itertools.accumulate(len(delta.token_ids) for delta in deltas[:-1])]


async def test_unary_and_stream_agree(plane: ScriptedControlPlane) -> None:
    spec = {"token_ids": pb.TokenIds(ids=[1, 2]), "stopping": pb.StoppingParams(stop=["ll"]), "sampling": pb.SamplingParams(seed=3)}
    response, events = await plane.generate(**spec), await plane.events(**spec)
    assert response.choices[0].text == text_of(events) == "he"
    assert response.choices[0].finished.stop_string == events[-1].finished.stop_string == "ll"
    assert response.started.effective == events[0].started.effective


@pytest.mark.parametrize("shows", [True, False])
@pytest.mark.parametrize("include", [True, False])
async def test_tkz_05_a_stop_string_that_is_a_special_token_stops_at_it(shows: bool, include: bool) -> None:
    stopping = pb.StoppingParams(stop=["<eot>", "never"], include_stop=include)
    async with scripted_control_plane((*b"ab", EOT, *b"cd", EOS)) as plane:
        response = await plane.generate(text="x", stopping=stopping, output=pb.OutputOptions(skip_special_tokens=not shows))
    (choice,) = response.choices
    assert (choice.text, list(choice.token_ids)) == ("ab<eot>" if include else "ab", [*b"ab", EOT])
    assert choice.finished.reason == pb.FINISH_REASON_STOP
    assert (choice.finished.stop_string, choice.finished.stop_token_id) == (("<eot>", 0) if shows else ("", EOT))


async def test_tkz_05_a_stop_string_around_a_special_token_is_refused_where_that_is_hidden(plane: ScriptedControlPlane) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=r"stopping.stop\[1\] contains the special token '<eot>'"):
        await plane.generate(text="x", stopping=pb.StoppingParams(stop=["y", "\n<eot>"]))
    await plane.generate(text="x", stopping=pb.StoppingParams(stop=["\n<eot>"]), output=pb.OutputOptions(skip_special_tokens=False))


class WatchedTokenizer(Tokenizer):
    """The byte tokenizer; notes on which threads it is asked for bytes."""

    def __init__(self) -> None:
        super().__init__(byte_tokenizer()._tokenizer, SPECIAL_TOKENS)
        self.threads: set[str] = set()

    def token_bytes(self, token_id: int) -> bytes:
        self.threads.add(threading.current_thread().name.partition("_")[0])
        return super().token_bytes(token_id)


async def test_log_probabilities_of_a_long_prompt_come_in_messages_that_a_thread_makes() -> None:
    tokenizer = WatchedTokenizer()
    prompt, output = pb.TokenIds(ids=[97] * 1600), pb.OutputOptions(prompt_logprobs=20)
    spec = {"token_ids": prompt, "output": output, "stopping": pb.StoppingParams(max_tokens=0)}
    async with scripted_control_plane((), replace(served_model(), tokenizer=tokenizer)) as plane:
        plane.join_worker(max_model_len=4000)
        response = await plane.generate(**spec)
        messages = [event.prompt_logprobs for event in await plane.events(**spec) if event.HasField("prompt_logprobs")]
    assert tokenizer.threads == {"tokenizer"}
    assert [message.first_index for message in messages] == [*range(0, 1600, 64)]
    assert {len(message.entries) for message in messages} == {64}
    assert [entry for message in messages for entry in message.entries] == list(response.prompt_logprobs)


async def test_stop_04_usage_ends_at_the_stop_string(plane: ScriptedControlPlane) -> None:
    response = await plane.generate(text="Hi", stopping=pb.StoppingParams(stop=["lo"], max_tokens=20))
    assert response.usage.completion_tokens == 5


async def test_stop_10_absent_max_tokens_reaches_to_the_limit() -> None:
    async with scripted_control_plane(script=[7] * 100) as plane:
        for prompt in ({"token_ids": pb.TokenIds(ids=[1] * 10)}, {"text": "x" * 9}):
            response = await plane.generate(**prompt)
            assert response.usage.completion_tokens == response.started.effective.stopping.max_tokens == MAX_MODEL_LEN - 10
            assert response.choices[0].finished.reason == pb.FINISH_REASON_LENGTH


async def test_stop_09_zero_max_tokens_finishes_without_tokens(plane: ScriptedControlPlane) -> None:
    response = await plane.generate(text="Hi", stopping=pb.StoppingParams(max_tokens=0), output=pb.OutputOptions(prompt_logprobs=0))
    assert (response.choices[0].text, response.usage.completion_tokens) == ("", 0)
    assert [entry.token for entry in response.prompt_logprobs] == [b"<bos>", b"H", b"i"]


async def test_logprobs_carry_the_bytes_of_tokens() -> None:
    async with scripted_control_plane(script=[*"é".encode(), EOS]) as plane:
        events = await plane.events(text="Hi", output=pb.OutputOptions(logprobs=True, top_logprobs=1))
        entries = [entry for event in events for entry in event.delta.logprobs]
        assert [entry.token for entry in entries] == [b"\xc3", b"\xa9", b"<eos>"]
        assert [entry.top[0].token_id for entry in entries] == [7, 7, 7]


async def test_chat_goes_through_the_template_without_a_second_bos(plane: ScriptedControlPlane) -> None:
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="Hi")])
    await plane.generate(chat=chat)
    assert list(plane.engine.submitted[0].prompt_token_ids) == [*b"<user>Hi<a>"]


async def test_idn_01_a_live_id_is_refused_and_free_afterwards(plane: ScriptedControlPlane) -> None:
    plane.engine.gate.clear()
    first = plane.stream(text="Hi", request_id="x")
    await first.read()
    assert (await status_of(plane.generate(text="other", request_id="x"))).code() is grpc.StatusCode.ALREADY_EXISTS
    plane.engine.gate.set()
    assert text_of(await rest_of(first)) == "hello"
    assert (await plane.generate(text="Hi", request_id="x")).choices[0].text == "hello"


@pytest.mark.parametrize("way", ["cancel", "deadline", "unary"])
async def test_can_03_a_call_that_ends_early_is_aborted(plane: ScriptedControlPlane, way: str) -> None:
    plane.engine.gate.clear()
    if way == "unary":
        call = asyncio.ensure_future(plane.generate(text="Hi", request_id="x"))
        await until(lambda: plane.engine.submitted)
        call.cancel()
    else:
        request = pb.GenerateStreamRequest(spec=pb.GenerationSpec(text="Hi", request_id="x"))
        stream = plane.stub.GenerateStream(request, timeout=0.2 if way == "deadline" else None)
        await stream.read()
        if way == "cancel":
            stream.cancel()
    await until(lambda: plane.engine.ended)
    await until(lambda: not len(plane.live))
    code = "deadline_exceeded" if way == "deadline" else "cancelled"
    await until(lambda: plane.calls._calls[("Generate" if way == "unary" else "GenerateStream", code)] == 1)


async def test_abort_ends_a_live_request_and_forgives_another(plane: ScriptedControlPlane) -> None:
    plane.engine.gate.clear()
    stream = plane.stream(text="Hi", request_id="x")
    await stream.read()
    assert (await plane.stub.Abort(pb.AbortRequest(request_id="x"))).was_live
    assert (await status_of(stream.read())).code() is grpc.StatusCode.CANCELLED
    assert not (await plane.stub.Abort(pb.AbortRequest(request_id="x"))).was_live


def resume(started: pb.Started, received: list[int], **changes: object) -> dict[str, object]:
    fields = {"key": started.resume_key, "model_fingerprint": started.model_fingerprint} | changes
    choices = [pb.ResumedChoice(index=0, token_ids=received)]
    return {
        "request_id": started.request_id,
        "resume": pb.Resume(effective=started.effective, prompt_token_ids=[BOS, *b"Hi"], choices=choices, **fields),
    }


async def test_a_resume_takes_a_live_request_over(plane: ScriptedControlPlane) -> None:
    plane.engine.gate.clear()
    first = plane.stream(text="Hi", request_id="x")
    started = (await first.read()).started
    second = plane.stream(**resume(started, [*b"he"]))
    assert (await status_of(first.read())).code() is grpc.StatusCode.CANCELLED
    plane.engine.gate.set()
    events = [event async for event in second]
    assert events[0].started.effective == started.effective
    assert (text_of(events), events[1].delta.first_index, events[-1].finished.usage.completion_tokens) == ("llo", 2, 6)


async def test_every_resume_that_is_itself_taken_over_is_told(plane: ScriptedControlPlane) -> None:
    plane.engine.gate.clear()
    first = plane.stream(text="Hi", request_id="x")
    started = (await first.read()).started
    answers = {asyncio.ensure_future(plane.events(**resume(started, [*b"he"]))) for _ in range(60)}
    assert (await status_of(first.read())).code() is grpc.StatusCode.CANCELLED
    await until(lambda: sum(answer.done() for answer in answers) == 59)
    plane.engine.gate.set()
    results = await asyncio.gather(*answers, return_exceptions=True)
    (survivor,) = [result for result in results if not isinstance(result, grpc.aio.AioRpcError)]
    assert text_of(survivor) == "llo"


async def test_a_resume_with_another_key_does_not_touch_a_live_request(plane: ScriptedControlPlane) -> None:
    plane.engine.gate.clear()
    first = plane.stream(text="Hi", request_id="x")
    started = (await first.read()).started
    error = await status_of(plane.events(**resume(started, [], key=b"guessed")))
    assert error.code() is grpc.StatusCode.ALREADY_EXISTS
    assert not plane.engine.ended


async def test_a_resume_continues_on_a_server_that_never_saw_the_request(plane: ScriptedControlPlane) -> None:
    started = (await plane.generate(text="Hi", request_id="x")).started
    async with scripted_control_plane() as other:
        assert text_of(await other.events(**resume(started, [*b"hel"]))) == "lo"


async def test_a_full_queue_says_when_to_come_again(plane: ScriptedControlPlane) -> None:
    plane.engine.failure = RequestFailed("", Failure.QUEUE_FULL, "full", retry_after_seconds=1.5)
    events = plane.stream(text="Hi")
    error = await status_of(events.read())  # instead of Started
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert dict(error.trailing_metadata())["retry-after-ms"] == "1500"


async def test_rpc_07_our_bug_shows_no_traceback(plane: ScriptedControlPlane, caplog: pytest.LogCaptureFixture) -> None:
    def broken(request: object) -> None:
        raise KeyError("secret")

    plane.engine.submit = broken  # type: ignore[method-assign]
    error = await status_of(plane.generate(text="Hi", request_id="r7"))
    assert error.code() is grpc.StatusCode.INTERNAL
    assert "r7" in error.details() and "secret" not in error.details()
    assert "secret" in caplog.text


@pytest.mark.parametrize("method", ["Generate", "GenerateStream", "GetServer"])
async def test_what_is_no_message_is_refused_and_counted(
    plane: ScriptedControlPlane, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    path = f"/pypto_serving.inference.v1.InferenceService/{method}"
    is_stream = method == "GenerateStream"
    error = await status_of(plane.channel.unary_stream(path)(b"\xff").read() if is_stream else plane.channel.unary_unary(path)(b"\xff"))
    assert (error.code(), error.details()) == (grpc.StatusCode.INVALID_ARGUMENT, f"the request is not a valid {method}Request")
    assert plane.calls._calls[(method, "invalid_argument")] == 1
    assert caplog.text == ""


async def test_requests_wait_for_the_first_worker() -> None:
    async with scripted_control_plane(has_worker=False) as plane:
        waiting = asyncio.ensure_future(plane.generate(text="Hi"))
        await until(lambda: plane.limit.num_waiting)
        plane.join_worker(max_model_len=20)
        assert (await waiting).started.effective.stopping.max_tokens == 17


async def test_without_a_worker_requests_end_after_the_grace_time() -> None:
    async with scripted_control_plane(has_worker=False, grace_seconds=0.05) as plane:
        error = await status_of(plane.generate(text="Hi"))
        assert (error.code(), "no worker" in error.details()) == (grpc.StatusCode.UNAVAILABLE, True)


async def test_only_so_many_requests_wait_for_the_first_worker() -> None:
    async with scripted_control_plane(has_worker=False) as plane:
        waiting = [asyncio.ensure_future(plane.generate(text="Hi")) for _ in range(2)]
        await until(lambda: plane.limit.num_waiting == 2)
        assert (await status_of(plane.generate(text="Hi"))).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        plane.limit.close()
        for call in waiting:
            assert (await status_of(call)).code() is grpc.StatusCode.UNAVAILABLE


async def test_tokenize_and_detokenize(plane: ScriptedControlPlane) -> None:
    response = await plane.stub.Tokenize(pb.TokenizeRequest(text="aé", with_offsets=True))
    assert list(response.token_ids) == [BOS, *"aé".encode()]
    assert (list(response.starts), list(response.ends)) == ([0, 0, 1, 1], [0, 1, 2, 2])
    bare = await plane.stub.Tokenize(pb.TokenizeRequest(text="a", add_special_tokens=False))
    assert list(bare.token_ids) == [*b"a"]
    text = await plane.stub.Detokenize(pb.DetokenizeRequest(token_ids=response.token_ids, skip_special_tokens=True))
    assert text.text == "aé"


async def test_tokenize_and_detokenize_have_limits_of_their_own(plane: ScriptedControlPlane) -> None:
    limit = 1 << 20
    assert len((await plane.stub.Tokenize(pb.TokenizeRequest(text="x" * 10_000))).token_ids) == 10_001
    requests = {
        f"text has {limit + 1} characters, may have at most {limit}": plane.stub.Tokenize(pb.TokenizeRequest(text="x" * (limit + 1))),
        f"token_ids has {limit + 1} tokens, may have at most {limit}": plane.stub.Detokenize(
            pb.DetokenizeRequest(token_ids=bytes(limit + 1))
        ),
    }
    for details, call in requests.items():
        error = await status_of(call)
        assert (error.code(), error.details()) == (grpc.StatusCode.INVALID_ARGUMENT, details)


async def test_a_message_larger_than_any_prompt_is_refused_unparsed(plane: ScriptedControlPlane) -> None:
    assert (await status_of(plane.generate(text="x" * (16 << 20)))).code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_models_and_server_describe_themselves(plane: ScriptedControlPlane) -> None:
    await until(lambda: plane.limit.tokens)
    (model,) = (await plane.stub.ListModels(pb.ListModelsRequest())).models
    assert model == (await plane.stub.GetModel(pb.GetModelRequest(model="bytes"))).model
    assert (model.name, model.max_model_len, list(model.end_token_ids)) == ("bytes", MAX_MODEL_LEN, [EOS])
    server = await plane.stub.GetServer(pb.GetServerRequest())
    assert (server.num_workers, server.instance_id) == (1, "instance")
    assert (await status_of(plane.stub.GetModel(pb.GetModelRequest(model="no")))).code() is grpc.StatusCode.NOT_FOUND


async def test_gwy_04_a_model_without_a_template_refuses_chats_only() -> None:
    async with scripted_control_plane(model=served_model(chat_template=None)) as plane:
        error = await status_of(plane.generate(chat=pb.Chat(messages=[pb.ChatMessage(role="user", content="x")])))
        assert (error.code(), "--chat-template" in error.details()) == (grpc.StatusCode.FAILED_PRECONDITION, True)
        assert (await plane.generate(text="x")).choices[0].text == "hello"
