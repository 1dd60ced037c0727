"""OpenAI's newer API, by the streaming helpers of its own client."""

import json

import pytest

pytestmark = pytest.mark.asyncio(loop_scope="module")

WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
CALL = b'Wait.\n<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'
THINKING = b"<think>\nhm\n</think>\n\nyes"


def asking(front, output, **fields):
    name = front.service.plan([*output, 257])
    return {"model": "model", "input": f"{name}:", **fields}


async def finished(front, body):
    """The final response of the streaming helper, and the kinds of its events."""
    async with front.openai.responses.stream(**body) as stream:
        kinds = [event.type async for event in stream]
        return await stream.get_final_response(), kinds


async def test_a_response(front):
    response = await front.openai.responses.create(**asking(front, b"hello there", metadata={"a": "b"}))
    assert (response.output_text, response.status, response.metadata) == ("hello there", "completed", {"a": "b"})
    assert response.usage.output_tokens == 12


async def test_the_helpers_final_response_is_the_whole_one(front):
    body = asking(front, CALL, tools=[WEATHER])
    streamed, kinds = await finished(front, body)
    whole = await front.openai.responses.create(**body)
    shown = [[(item.type, getattr(item, "arguments", None)) for item in response.output] for response in (streamed, whole)]
    assert shown[0] == shown[1] == [("message", None), ("function_call", '{"city": "Paris"}')]
    assert streamed.output_text == whole.output_text == "Wait."
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert {"response.output_item.added", "response.function_call_arguments.delta", "response.output_text.done"} <= set(kinds)


async def test_events_are_numbered_and_thoughts_are_an_item(front):
    answer = await front.http.post("/v1/responses", json=asking(front, THINKING, stream=True))
    events = [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: ")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    output = events[-1]["response"]["output"]
    assert [(item["type"], item["content"][0]["text"]) for item in output] == [("reasoning", "hm\n"), ("message", "yes")]


async def test_a_response_cut_off_by_its_length_is_incomplete(front):
    stream = await front.openai.responses.create(**asking(front, b"hello", max_output_tokens=2), stream=True)
    last = [event async for event in stream][-1]
    response = last.response
    assert (last.type, response.status, response.output_text) == ("response.incomplete", "incomplete", "he")
    assert response.incomplete_details.reason == "max_output_tokens"


@pytest.mark.parametrize(
    "fields",
    [{"previous_response_id": "resp_1"}, {"background": True}, {"truncation": "auto"}, {"input": []}, {"input": [{"type": "reasoning"}]}],
)
async def test_what_needs_state_is_refused(front, fields):
    error = await front.refusal("/v1/responses", {"input": "x", **fields})
    assert error["param"].split(".")[0] == next(iter(fields))
