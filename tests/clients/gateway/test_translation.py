"""From bodies to requests of control planes."""

import pytest

from clients.errors import ServingError
from clients.gateway.errors import ApiError
from clients.gateway.schemas.chat import ChatRequest
from clients.gateway.schemas.completions import CompletionRequest
from clients.gateway.schemas.responses import ResponsesRequest
from clients.gateway.translation.chat import chat_request
from clients.gateway.translation.completions import completion_requests
from clients.gateway.translation.constraint import required_tools
from clients.gateway.translation.responses import chat_body
from clients.request import generation_spec

USER = {"role": "user", "content": "x"}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def chat_spec(**fields):
    body = ChatRequest.model_validate({"messages": [USER], **fields})
    return generation_spec(chat_request(body, "id", False))


def completion_spec(**fields):
    (request,) = completion_requests(CompletionRequest.model_validate({"prompt": "x", **fields}), "id")
    return generation_spec(request)


def test_sampling_fields_go_through_and_zero_is_not_absent():
    given = {"temperature": 0, "top_p": 0.5, "top_k": 0, "min_p": 0, "presence_penalty": 0, "frequency_penalty": -1, "seed": 0}
    for spec in (chat_spec(**given), completion_spec(**given)):
        assert {field.name: value for field, value in spec.sampling.ListFields()} == given
    assert not chat_spec(temperature=None).HasField("sampling") and chat_spec(top_k=-1).sampling.top_k == 0


def test_stopping_fields_go_through():
    given = {"stop": "a", "stop_token_ids": [7], "ignore_eos": True, "min_tokens": 2, "include_stop_str_in_output": True}
    stopping = chat_spec(**given, max_completion_tokens=0).stopping
    assert (list(stopping.stop), list(stopping.stop_token_ids), stopping.min_tokens) == (["a"], [7], 2)
    assert stopping.ignore_eos and stopping.include_stop and stopping.HasField("max_tokens") and stopping.max_tokens == 0


@pytest.mark.parametrize(("fields", "limit"), [({"max_tokens": 5}, 5), ({"max_completion_tokens": 6}, 6)])
def test_both_names_of_the_longest_answer_count(fields, limit):
    assert chat_spec(**fields).stopping.max_tokens == limit
    with pytest.raises(ApiError, match="contradict"):
        chat_spec(max_tokens=1, max_completion_tokens=2)


def test_messages_keep_what_templates_look_at():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [
        {"role": "developer", "content": "d"},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    messages = chat_spec(messages=turns).chat.messages
    assert [message.role for message in messages] == ["system", "assistant", "tool"]
    assert not messages[1].HasField("content") and messages[1].tool_calls[0].name == "f" and messages[1].reasoning_content == "hm"
    assert (messages[2].content, messages[2].tool_call_id) == ("ab", "c")


def test_arguments_of_templates_go_through():
    chat = chat_spec(chat_template_kwargs={"enable_thinking": False}, reasoning_effort="low", documents=[{"title": "t"}]).chat
    assert chat.template_arguments["enable_thinking"].bool_value is False
    assert chat.template_arguments["reasoning_effort"].string_value == "low"
    assert chat.documents[0].fields["title"].string_value == "t"


def test_the_model_is_not_told_of_tools_that_it_may_not_call():
    assert [tool.name for tool in chat_spec(tools=[TOOL]).chat.tools] == ["weather"]
    assert not chat_spec(tools=[TOOL], tool_choice="none").chat.tools


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "other"}}])
def test_a_choice_of_no_tool_is_refused(choice):
    tools = [TOOL] if isinstance(choice, dict) else []
    with pytest.raises(ApiError, match="tools has none such"):
        required_tools(ChatRequest.model_validate({"messages": [USER], "tools": tools, "tool_choice": choice}))


def test_log_probabilities_of_completions():
    output = completion_spec(logprobs=2).output
    assert (output.logprobs, output.top_logprobs, output.HasField("prompt_logprobs")) == (True, 2, False)
    assert completion_spec(logprobs=2, echo=True).output.prompt_logprobs == 2
    assert not completion_spec().output.logprobs


def test_several_prompts_are_requests_of_their_own():
    requests = completion_requests(CompletionRequest.model_validate({"prompt": [[1, 2], [3]], "n": 2}), "id")
    assert [(request.token_ids, request.request_id, request.n) for request in requests] == [([1, 2], "id-0", 2), ([3], "id-1", 2)]
    with pytest.raises(ApiError, match="there are 257, must be at most 256"):
        completion_requests(CompletionRequest.model_validate({"prompt": ["x"] * 257}), "id")


def test_what_has_no_place_on_the_wire_names_its_field():
    with pytest.raises(ServingError, match="top_k = -5, must be from 0 to 4294967295"):
        chat_spec(top_k=-5)


def test_a_history_is_the_conversation_of_a_chat():
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "now", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
    ]
    body = chat_body(ResponsesRequest.model_validate({"input": items, "instructions": "Be brief."}))
    told = [message.model_dump(exclude_none=True) for message in body.messages]
    assert [(message["role"], message.get("content")) for message in told] == [
        ("system", "Be brief."),
        ("user", "weather?"),
        ("assistant", None),
        ("tool", "rain"),
    ]
    assert [call["id"] for call in told[2]["tool_calls"]] == ["c1", "c2"] and told[2]["reasoning_content"] == "hm"
