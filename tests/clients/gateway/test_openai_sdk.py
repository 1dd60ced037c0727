"""OpenAI's own client in front of a whole service."""

import json

import openai
import pytest

pytestmark = pytest.mark.asyncio(loop_scope="module")

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
}


async def test_a_chat(front):
    answer = await front.openai.chat.completions.create(**front.chat(b"hello there"))
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "hello there", "stop")
    assert (answer.usage.completion_tokens, answer.usage.total_tokens) == (12, answer.usage.prompt_tokens + 12)
    assert answer.model == "model" and answer.system_fingerprint.startswith("fp_")


async def test_a_streamed_chat_equals_the_whole_one(front):
    stream = await front.openai.chat.completions.create(**front.chat("až雨😀b".encode()), stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "až雨😀b"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({chunk.id for chunk in chunks}) == 1


async def test_several_choices_and_a_stop_string(front):
    body = front.chat(b"one. two.", n=3, stop=". ", seed=7)
    answer = await front.openai.chat.completions.create(**body)
    assert [(choice.index, choice.message.content, choice.finish_reason) for choice in answer.choices] == [
        (index, "one", "stop") for index in range(3)
    ]
    stream = await front.openai.chat.completions.create(**body, stream=True)
    texts = ["", "", ""]
    async for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == ["one"] * 3


async def test_log_probabilities(front):
    body = front.chat("a雨".encode(), logprobs=True, top_logprobs=2)
    whole = (await front.openai.chat.completions.create(**body)).choices[0].logprobs.content
    assert [bytes(entry.bytes) for entry in whole] == [b"a", b"\xe9", b"\x9b", b"\xa8", b"<eos>"]
    assert whole[0].token == "a" and whole[1].token == "bytes:\\xe9" and len(whole[0].top_logprobs) == 2
    stream = await front.openai.chat.completions.create(**body, stream=True)
    streamed = [entry async for chunk in stream if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
    assert streamed == whole


async def test_the_streaming_helper_collects_calls(front):
    call = b'Wait.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    async with front.openai.chat.completions.stream(**front.chat(call, tools=[WEATHER], tool_choice="auto")) as stream:
        async for _ in stream:
            pass
        message = (await stream.get_final_completion()).choices[0].message
    assert message.content == "Wait."
    assert [(made.function.name, json.loads(made.function.arguments)) for made in message.tool_calls] == [("weather", {"city": "Paris"})]


async def test_completions_of_several_prompts(front):
    names = [front.service.plan([*text, 257]) for text in (b"one", b"two")]
    prompts = [f"{name}:" for name in names]
    whole = await front.openai.completions.create(model="model", prompt=prompts, n=2)
    assert [(choice.index, choice.text) for choice in whole.choices] == [(0, "one"), (1, "one"), (2, "two"), (3, "two")]
    stream = await front.openai.completions.create(model="model", prompt=prompts, n=2, stream=True)
    texts = [""] * 4
    async for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == ["one", "one", "two", "two"]


async def test_every_form_of_a_prompt(front):
    name = front.service.plan(b"same")
    ids = front.service.script.prompt(name)
    forms = (f"{name}:", [f"{name}:"], ids, [ids])
    answers = [await front.openai.completions.create(model="model", prompt=form, max_tokens=4) for form in forms]
    assert [answer.choices[0].text for answer in answers] == ["same"] * 4


async def test_echo_with_log_probabilities(front):
    name = front.service.plan(b"ab")
    prompt = [256, *front.service.script.prompt(name)]
    fields = {"model": "model", "max_tokens": 2, "logprobs": 1, "echo": True}
    choice = (await front.openai.completions.create(prompt=prompt, **fields)).choices[0]
    assert choice.text == f"<bos>{name}:ab"
    assert "".join(choice.logprobs.tokens) == choice.text
    assert [choice.text[place] for place in choice.logprobs.text_offset[-2:]] == ["a", "b"]
    assert choice.logprobs.token_logprobs[0] is None and None not in choice.logprobs.token_logprobs[1:]
    chunks = [chunk.choices[0] async for chunk in await front.openai.completions.create(prompt=prompt, **fields, stream=True)]
    assert "".join(chunk.text for chunk in chunks) == choice.text
    assert [place for chunk in chunks if chunk.logprobs for place in chunk.logprobs.text_offset] == choice.logprobs.text_offset


async def test_models(front):
    models = [model async for model in front.openai.models.list()]
    assert [model.id for model in models] == ["model"]
    assert (await front.openai.models.retrieve("model")).id == "model"
    with pytest.raises(openai.NotFoundError, match="'other' is not served"):
        await front.openai.models.retrieve("other")


@pytest.mark.parametrize("stream", [False, True])
async def test_refusals_are_the_sdks_own_errors(front, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        await front.openai.chat.completions.create(**front.chat(b"x", temperature=-1, stream=stream))
    assert caught.value.param == "temperature"
    assert "temperature = -1, must be >= 0 and finite" in str(caught.value)
    with pytest.raises(openai.NotFoundError):
        await front.openai.chat.completions.create(**{**front.chat(b"x", stream=stream), "model": "other"})
