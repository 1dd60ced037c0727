import inspect
import re
from dataclasses import fields
from math import inf, nan

import grpc
import pytest

from clients import AsyncClient, Client
from clients.conversation import Message, Tool, ToolCall
from clients.errors import ServingError
from clients.request import Request, call_metadata, generation_spec


def test_absent_fields_stay_absent_and_prompt_ids_are_asked_for():
    spec = generation_spec(Request("hi"))
    assert spec.text == "hi"
    assert not spec.sampling.ListFields() and not spec.stopping.ListFields() and not spec.HasField("n")
    assert spec.output.prompt_token_ids


def test_zero_is_not_absent():
    spec = generation_spec(Request(token_ids=[1], max_tokens=0, seed=0, temperature=0.0))
    assert spec.stopping.HasField("max_tokens") and spec.sampling.HasField("seed") and spec.sampling.HasField("temperature")


def test_every_parameter_reaches_the_wire():
    request = Request("hi", stop="end", stop_token_ids=[3], logit_bias={5: -1.0}, top_k=4, logprobs=True, n=2, priority=-1, cache_salt="s")
    spec = generation_spec(request)
    assert (list(spec.stopping.stop), list(spec.stopping.stop_token_ids)) == (["end"], [3])
    assert dict(spec.sampling.logit_bias) == {5: -1.0}
    assert (spec.sampling.top_k, spec.output.logprobs, spec.n, spec.priority, spec.cache_salt) == (4, True, 2, -1, "s")


def test_conversation_with_tools_reaches_the_wire():
    call = ToolCall("c1", "add", "{}")
    messages = [{"role": "user", "content": "1+1?"}, Message("assistant", tool_calls=[call]), Message("tool", "2", tool_call_id="c1")]
    request = Request(messages=messages, tools=[Tool("add")], template_arguments={"enable_thinking": False, "depth": 2, "x": 0.5, "y": "z"})
    chat = generation_spec(request).chat
    assert [message.role for message in chat.messages] == ["user", "assistant", "tool"]
    assert not chat.messages[1].HasField("content") and chat.messages[1].tool_calls[0].name == "add"
    kinds = {name: value.WhichOneof("kind") for name, value in chat.template_arguments.items()}
    assert kinds == {"enable_thinking": "bool_value", "depth": "int_value", "x": "double_value", "y": "string_value"}


def test_tpl_07_lists_and_objects_among_template_arguments_reach_the_wire():
    arguments = {"builtin_tools": ["a", "b"], "options": {"deep": [None, 1.5, {"x": False}]}}
    wire = generation_spec(Request(messages=[], template_arguments=arguments)).chat.template_arguments
    assert [value.string_value for value in wire["builtin_tools"].list_value.values] == ["a", "b"]
    nothing, number, inner = wire["options"].object_value.fields["deep"].list_value.values
    assert (nothing.WhichOneof("kind"), number.double_value) == ("null_value", 1.5)
    assert inner.object_value.fields["x"].HasField("bool_value")


def test_tpl_09_what_a_template_may_be_given_reaches_the_wire():
    messages = [Message("user", "a"), {"role": "assistant", "content": "b", "reasoning_content": "hm"}]
    documents = [{"title": "t", "text": "x"}]
    chat = generation_spec(Request(messages=messages, documents=documents, continue_final_message=True, literal_text=True)).chat
    assert (chat.continue_final_message, chat.literal_text, chat.messages[1].reasoning_content) == (True, True, "hm")
    assert not chat.messages[0].HasField("reasoning_content") and chat.documents[0].fields["text"].string_value == "x"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "exactly one of prompt"),
        ({"prompt": "a", "token_ids": [1]}, "prompt and token_ids"),
        ({"prompt": "a", "top_k": -1}, "top_k = -1, must be from 0 to 4294967295$"),
        ({"prompt": "a", "temperature": "hot"}, "temperature: 'hot'"),
        ({"prompt": "a", "logit_bias": {-1: 0.0}}, "logit_bias"),
        ({"prompt": "a\ud800"}, "prompt"),
        ({"messages": [{"role": "user", "contents": "x"}]}, r"messages\[0\]"),
        ({"messages": ["hi"]}, r"messages\[0\]"),
        ({"messages": [{"role": "user", "content": "x\ud800"}]}, r"messages\[0\]"),
        ({"messages": [], "tools": [{"name": "add"}]}, r"tools\[0\]"),
        ({"messages": [], "template_arguments": {"depth": 2**63}}, "template_arguments\\['depth'\\]"),
        ({"messages": [], "template_arguments": {"depth": [b"1"]}}, "template_arguments\\['depth'\\]"),
        ({"messages": [], "template_arguments": {"depth": {1: 2}}}, "template_arguments\\['depth'\\]"),
        ({"messages": [], "documents": [{"text": object()}]}, r"documents\[0\]"),
        ({"messages": [], "documents": ["text"]}, r"documents\[0\]"),
        ({"prompt": "a", "documents": [{"text": "b"}]}, "documents"),
        ({"prompt": "a", "literal_text": True}, "literal_text"),
        ({"messages": [], "template_arguments": {3: True}}, "template_arguments\\[3\\]"),
        *(({"prompt": "a", "timeout": timeout}, f"timeout: {timeout!r}") for timeout in (0, -1.0, inf, nan, 2e9, "3")),
        ({"prompt": "a", "max_tokens": -1}, "^INVALID_ARGUMENT: max_tokens = -1, must be from 0 to 4294967295$"),
        ({"prompt": "a", "seed": 2**64}, f"seed = {2**64}, must be from 0 to {2**64 - 1}$"),
        ({"prompt": "a", "priority": 2**31}, f"priority = {2**31}, must be from -{2**31} to {2**31 - 1}$"),
        ({"token_ids": [-1]}, r"token_ids: \[-1\] is not accepted: Value out of range: -1, must be from 0 to 4294967295$"),
        ({"prompt": "a", "regex": "a", "grammar": "b"}, "regex and grammar"),
        ({"prompt": "a", "tools": [Tool("add")]}, "tools: only a chat template"),
        ({"token_ids": [1], "template_arguments": {"x": 1}}, "template_arguments: only a chat template"),
    ],
)
def test_misfits_name_their_field(fields, named):
    with pytest.raises(ServingError, match=named) as caught:
        generation_spec(Request(**fields))
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("kind", ["json_schema", "regex", "grammar", "alternatives"])
def test_constraints_reach_the_wire(kind):
    value = ["yes", "no"] if kind == "alternatives" else "x"
    assert generation_spec(Request("a", **{kind: value})).constraint.WhichOneof("kind") == kind


def test_empty_constraint_is_not_dropped():
    assert generation_spec(Request("a", alternatives=[])).constraint.WhichOneof("kind") == "alternatives"


@pytest.mark.parametrize("method", [Client.generate, Client.stream, AsyncClient.generate, AsyncClient.stream])
def test_methods_show_and_explain_the_fields_of_a_request(method):
    names = [field.name for field in fields(Request)]
    assert list(inspect.signature(method).parameters) == ["self", *names]
    assert inspect.signature(method).parameters["temperature"].kind is inspect.Parameter.KEYWORD_ONLY
    assert [name for name in names if not re.search(rf"(  |, ){name}(  |, )", method.__doc__ + " ")] == []


def test_a_trace_that_is_none_is_refused():
    with pytest.raises(ServingError, match="traceparent: '00-abc' is none") as caught:
        call_metadata(Request("hi", traceparent="00-abc"))
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
