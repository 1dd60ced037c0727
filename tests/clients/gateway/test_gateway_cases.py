"""Cases of others' reports, over HTTP."""

import json
import random

import pytest

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = "/v1/chat/completions"
TWO_CALLS = (
    b'<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    b'<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": [1, 2]}}\n</tool_call>'
)
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
ENDS = {
    "length": ({"max_tokens": 2}, "length"),
    "stop string": ({"stop": "there"}, "stop"),
    "end token": ({}, "stop"),
    "two choices": ({"n": 2}, "stop"),
}


def finish_reasons(events, index=0):
    """Those of a choice's events; none of them lacks the field."""
    return [choice["finish_reason"] for event in events if event != "[DONE]" for choice in event["choices"] if choice["index"] == index]


async def test_gwy_01_an_error_before_the_stream_is_a_status(front):
    error = await front.refusal(CHAT, front.chat(b"x", max_tokens=5000))
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", "max_tokens", "context_length_exceeded")
    error = await front.refusal("/v1/completions", {"prompt": "x" * 2000})
    assert error["code"] == "context_length_exceeded"


async def test_gwy_02_usage_is_the_last_event_where_it_is_asked_for(front):
    body = front.chat(b"hello", n=2)
    with_usage = await front.events(CHAT, {**body, "stream_options": {"include_usage": True}})
    assert with_usage[-1] == "[DONE]" and with_usage[-2]["choices"] == []
    assert with_usage[-2]["usage"]["completion_tokens"] == 12
    assert all(event["usage"] is None for event in with_usage[:-2])
    for options in ({"include_usage": False}, None):
        events = await front.events(CHAT, {**body, "stream_options": options})
        assert not [event for event in events[:-1] if "usage" in event]


async def test_gwy_02_a_stream_survives_any_cut_of_its_bytes(front):
    body = {**front.chat("až雨😀b".encode()), "stream": True, "stream_options": {"include_usage": True}}
    async with front.http.stream("POST", CHAT, json=body) as answer:
        raw = b"".join([chunk async for chunk in answer.aiter_raw()])
    cuts = sorted(random.Random(1).sample(range(len(raw)), 50))
    parts = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, None], strict=True)]
    lines = b"".join(parts).decode().split("\n\n")
    assert all(line.startswith("data: ") for line in lines[:-1])


@pytest.mark.parametrize("end", ENDS)
async def test_gwy_03_every_choice_has_one_finish_reason(front, end):
    fields, reason = ENDS[end]
    events = await front.events(CHAT, front.chat(b"hello there", **fields))
    for index in range(fields.get("n", 1)):
        reasons = finish_reasons(events, index)
        assert reasons == [None] * (len(reasons) - 1) + [reason]


async def test_gwy_03_calls_have_one_finish_reason(front):
    reasons = finish_reasons(await front.events(CHAT, front.chat(TWO_CALLS, tools=[WEATHER])))
    assert reasons == [None] * (len(reasons) - 1) + ["tool_calls"]


async def test_gwy_07_two_calls_stream_as_two(front):
    body = front.chat(TWO_CALLS, tools=[WEATHER])
    calls = {}
    for event in (await front.events(CHAT, body))[:-1]:
        for part in event["choices"][0]["delta"].get("tool_calls", ()):
            if "id" in part:
                calls[part["index"]] = {"id": part["id"], "name": part["function"]["name"], "arguments": ""}
            calls[part["index"]]["arguments"] += part["function"]["arguments"]
    assert list(calls) == [0, 1]
    assert calls[0]["id"] != calls[1]["id"]
    whole = (await front.http.post(CHAT, json=body)).json()["choices"][0]
    assert whole["finish_reason"] == "tool_calls" and whole["message"]["content"] is None
    functions = [call["function"] for call in whole["message"]["tool_calls"]]
    assert functions == [{"name": call["name"], "arguments": call["arguments"]} for call in calls.values()]
    assert [json.loads(call["arguments"]) for call in functions] == [{"city": "Paris"}, {"city": "Oslo", "days": [1, 2]}]


async def test_val_10_incomplete_conversations_are_refused_and_parts_are_text(front):
    assert (await front.refusal(CHAT, {"messages": []}))["param"] == "messages"
    assert "content" in (await front.refusal(CHAT, {"messages": [{"role": "user", "content": None}]}))["message"]
    name = front.service.plan(b"x")
    parts = [{"type": "text", "text": name}, {"type": "text", "text": ":"}]
    answer = await front.http.post(CHAT, json={"messages": [{"role": "user", "content": parts}], "max_tokens": 1})
    assert answer.json()["choices"][0]["message"]["content"] == "x"


async def test_val_12_a_minimal_body_means_what_a_minimal_call_means(front):
    name = front.service.plan(b"the very same")
    called = await front.service.ask(f"{name}:", seed=7, max_tokens=8)
    answer = await front.http.post("/v1/completions", json={"prompt": f"{name}:", "seed": 7, "max_tokens": 8})
    assert answer.json()["choices"][0]["text"] == called.text


async def test_val_04_biases_of_what_is_no_token_are_refused(front):
    for key, bias, words in (("abc", 1, "'abc' is not a token id"), ("5000", 1, "5000"), ("5", 1e9, "1e+09")):
        error = await front.refusal(CHAT, front.chat(b"x", logit_bias={key: bias}))
        assert error["param"] == "logit_bias" and words in error["message"]


@pytest.mark.parametrize("fields", [{"logprobs": True}, {"logprobs": True, "top_logprobs": 0}])
async def test_lpu_01_every_token_has_an_entry_without_alternatives_too(front, fields):
    body = front.chat(b"ab", **fields)
    whole = (await front.http.post(CHAT, json=body)).json()["choices"][0]["logprobs"]["content"]
    told = [event["choices"][0]["logprobs"] for event in (await front.events(CHAT, body))[:-1]]
    assert [entry for logprobs in told if logprobs for entry in logprobs["content"]] == whole
    assert [(entry["token"], entry["top_logprobs"]) for entry in whole] == [("a", []), ("b", []), ("<eos>", [])]
