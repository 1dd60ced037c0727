"""Conversations, from the message of a client to the text of the prompt."""

import json
from typing import Any

import grpc
import pytest
from fakes.control_plane.scripted_engine import served_model
from fakes.text.chat_templates import ALTERNATING, HERMES_STYLE, LLAMA_STYLE, QWEN_STYLE
from fakes.text.tokenizers import BOS, SPECIAL_TOKENS, byte_tokenizer
from harness.request_admission import admit, refusal

from control_plane.edge.model_directory import ServedModel
from control_plane.edge.service.admission.prompt import PromptEncoder, PromptLimit
from control_plane.edge.text.chat_template import ChatTemplate
from pypto_serving.inference.v1 import inference_pb2 as pb

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "at": {"type": "object", "properties": {}}}, "required": ["city"]}
ARGUMENTS = {"city": "Zürich", "at": {"day": 1}}
TOOLS = [
    pb.Tool(name="weather", description="Tells <the> weather", parameters_schema=json.dumps(SCHEMA)),
    pb.Tool(name="time", description="Tells the time"),
]
MESSAGES = [
    pb.ChatMessage(role="system", content="Be brief."),
    pb.ChatMessage(role="user", content="How is it & what's up?"),
    pb.ChatMessage(role="assistant", tool_calls=[pb.ToolCall(id="c1", name="weather", arguments=json.dumps(ARGUMENTS))]),
    pb.ChatMessage(role="tool", tool_call_id="c1", name="weather", content='{"sky": "blue"}'),
    pb.ChatMessage(role="assistant", content="<think>\nhm\n</think>\n\nBlue."),
    pb.ChatMessage(role="user", content=""),
]

#: The same in the form of transformers.
THEIR_TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Tells <the> weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "time", "description": "Tells the time", "parameters": {"type": "object", "properties": {}}}},
]
THEIR_MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How is it & what's up?"},
    {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}]},
    {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": '{"sky": "blue"}'},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nBlue."},
    {"role": "user", "content": ""},
]


def model_of(template: str) -> ServedModel:
    return served_model(chat_template=ChatTemplate(template, SPECIAL_TOKENS))


async def prompt_of(chat: pb.Chat, template: str) -> str:
    request = (await admit(pb.GenerationSpec(chat=chat), model_of(template), max_model_len=10_000)).request
    return byte_tokenizer().decode(list(request.prompt_token_ids), skip_special_tokens=False)


async def refused(chat: pb.Chat, template: str = QWEN_STYLE) -> str:
    error = await refusal(pb.GenerationSpec(chat=chat), model_of(template), max_model_len=100_000)
    assert error.code is grpc.StatusCode.INVALID_ARGUMENT
    return str(error)


def chat(*messages: pb.ChatMessage, **fields: Any) -> pb.Chat:
    return pb.Chat(messages=messages or MESSAGES, **fields)


def argument(**kind: Any) -> dict[str, pb.TemplateValue]:
    return {"enable_thinking": pb.TemplateValue(**kind)}


@pytest.mark.parametrize("template", [QWEN_STYLE, LLAMA_STYLE, HERMES_STYLE])
@pytest.mark.parametrize("opens_turn", [True, False])
@pytest.mark.parametrize("thinks", [True, False])
async def test_the_prompt_of_a_conversation_with_tools_equals_transformers(template: str, opens_turn: bool, thinks: bool) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    variables = {"add_generation_prompt": opens_turn, "enable_thinking": thinks, **SPECIAL_TOKENS}
    (oracle,), _ = render_jinja_template([THEIR_MESSAGES], tools=THEIR_TOOLS, chat_template=template, **variables)
    ours = chat(tools=TOOLS, template_arguments=argument(bool_value=thinks), add_generation_prompt=opens_turn)
    assert await prompt_of(ours, template) == oracle


@pytest.mark.parametrize("template", [QWEN_STYLE, LLAMA_STYLE])
async def test_the_prompt_of_a_conversation_without_tools_equals_transformers(template: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    (oracle,), _ = render_jinja_template([THEIR_MESSAGES[:2]], chat_template=template, add_generation_prompt=True, **SPECIAL_TOKENS)
    assert await prompt_of(chat(*MESSAGES[:2]), template) == oracle


async def test_template_arguments_keep_their_kind() -> None:
    template = "{% set v = enable_thinking %}{{ v is boolean }} {{ v is integer }} {{ v is float }} {{ v is string }}"
    for kind in ({"bool_value": False}, {"int_value": -7}, {"double_value": 0.5}, {"string_value": "no"}):
        (name,) = kind
        expected = [name == f"{word}_value" for word in ("bool", "int", "double", "string")]
        assert await prompt_of(chat(MESSAGES[1], template_arguments=argument(**kind)), template) == " ".join(map(str, expected))


@pytest.mark.parametrize("text", ["[1]", "not JSON", '"text"', "{"])
async def test_arguments_that_are_no_object_stay_text(text: str) -> None:
    message = pb.ChatMessage(role="assistant", tool_calls=[pb.ToolCall(name="f", arguments=text)])
    assert await prompt_of(chat(message), "{{ messages[0].tool_calls[0].function.arguments | tojson }}") == json.dumps(text)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tools": [pb.Tool()]}, "chat.tools[0].name is empty"),
        ({"tools": [pb.Tool(name="f", parameters_schema="{")]}, "chat.tools[0].parameters_schema is not JSON: "),
        ({"tools": [pb.Tool(name="f", parameters_schema="[]")]}, "chat.tools[0].parameters_schema is not a JSON object"),
        (
            {"tools": [pb.Tool(name="f", parameters_schema='{"a":' * 40 + "1" + "}" * 40)]},
            "chat.tools[0].parameters_schema is nested more than 32 levels deep",
        ),
        (
            {"tools": [pb.Tool(name="f", parameters_schema="[" * 100_000)]},
            "chat.tools[0].parameters_schema is nested more than 32 levels deep",
        ),
        ({"tools": [pb.Tool(name="f")] * 129}, "chat.tools has 129 entries, may have at most 128"),
        ({"tools": [pb.Tool(name="f", description="x" * (1 << 19))]}, "chat: tools, documents, arguments of tool calls, and lists"),
        (
            {"template_arguments": {"messages": pb.TemplateValue(bool_value=True)}},
            "chat.template_arguments: 'messages' is set by the server",
        ),
        ({"template_arguments": {"bos_token": pb.TemplateValue(string_value="x")}}, "chat.template_arguments: 'bos_token' is set by"),
        ({"template_arguments": {"a b": pb.TemplateValue(bool_value=True)}}, "chat.template_arguments: 'a b' is no name"),
        ({"template_arguments": {"a": pb.TemplateValue()}}, "chat.template_arguments['a'] has no value"),
        (
            {"template_arguments": {f"a{i}": pb.TemplateValue(int_value=1) for i in range(65)}},
            "chat.template_arguments has 65 entries, may have at most 64",
        ),
    ],
)
async def test_tools_and_arguments_that_make_no_sense_are_refused(fields: dict[str, Any], message: str) -> None:
    assert (await refused(chat(**fields)))[: len(message)] == message


async def test_tools_are_refused_when_the_template_would_drop_them() -> None:
    assert "does not know tools" in await refused(chat(tools=TOOLS), "{% for m in messages %}{{ m.content }}{% endfor %}")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (pb.ChatMessage(role="assistant"), "chat.messages[0].content is absent, must be given unless there are tool calls"),
        (pb.ChatMessage(content="x"), "chat.messages[0].role is empty"),
        (pb.ChatMessage(role="assistant", tool_calls=[pb.ToolCall()]), "chat.messages[0].tool_calls[0].name is empty"),
        (
            pb.ChatMessage(role="assistant", tool_calls=[pb.ToolCall(name="f")] * 129),
            "chat.messages[0].tool_calls has 129 entries, may have at most 128",
        ),
    ],
)
async def test_val_10_incomplete_messages_are_refused(message: pb.ChatMessage, reason: str) -> None:
    assert (await refused(chat(message)))[: len(reason)] == reason


async def test_val_10_no_messages_are_refused_and_empty_ones_work() -> None:
    assert await refused(pb.Chat()) == "chat.messages is empty, must have at least one message"
    assert await prompt_of(chat(pb.ChatMessage(role="user", content="")), ALTERNATING) == "<bos>[user]"


@pytest.mark.parametrize("roles", ["user user", "system user", "assistant", "narrator"])
async def test_gwy_05_a_template_that_refuses_the_messages_is_quoted(roles: str) -> None:
    messages = [pb.ChatMessage(role=role, content="x") for role in roles.split()]
    reason = await refused(chat(*messages), ALTERNATING)
    assert reason.startswith("chat.messages: the chat template refuses them: ") and "roles must alternate" in reason


async def test_gwy_06_a_template_that_writes_bos_gets_no_second_one() -> None:
    request = (await admit(pb.GenerationSpec(chat=chat(pb.ChatMessage(role="user", content="Hi"))), model_of(ALTERNATING))).request
    assert list(request.prompt_token_ids) == [BOS, *b"[user]Hi"]


async def test_offsets_of_a_chat_are_places_in_its_prompt() -> None:
    encoder = PromptEncoder(model_of(ALTERNATING))
    encoding = await encoder.chat(chat(pb.ChatMessage(role="user", content="a雨")), "chat", PromptLimit(100, 1000, 10), with_offsets=True)
    encoder.close()
    text = "<bos>[user]a雨"
    assert [text[start:end] for start, end in encoding.offsets] == ["<bos>", *"[user]a", "雨", "雨", "雨"]
