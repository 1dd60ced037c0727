"""Parsers of calls: however a text is cut, the same pieces come of it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.gateway.parsers.answer import FORMATS, AnswerParser
from clients.gateway.parsers.pieces import CallArguments, CallStarted, Content

NAMES = frozenset({"weather", "add"})
WEATHER = {"city": 'Köln "雨" {[\\', "days": 3, "deep": {"list": [1, {"a": "}"}]}}
ADD = {"a": 1, "b": -2.5e3}
W, A = json.dumps(WEATHER, ensure_ascii=False), json.dumps(ADD)

V3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
V31 = "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>"


def dsml(name, arguments):
    parameters = "".join(
        f'<｜DSML｜parameter name="{key}" string="{str(isinstance(value, str)).lower()}">'
        f"{value if isinstance(value, str) else json.dumps(value)}</｜DSML｜parameter>\n"
        for key, value in arguments.items()
    )
    return f'<｜DSML｜invoke name="{name}">\n{parameters}</｜DSML｜invoke>\n'


TWO_CALLS = {
    "hermes": f'<tool_call>\n{{"name": "weather", "arguments": {W}}}\n</tool_call>\n'
    f'<tool_call>\n{{"arguments": {A}, "name": "add"}}\n</tool_call>',
    "llama3": f'<|python_tag|>{{"type": "function", "name": "weather", "parameters": {W}}}; {{"name": "add", "parameters": {A}}}',
    "mistral": f'[TOOL_CALLS][{{"name": "weather", "arguments": {W}}}, {{"arguments": {A}, "name": "add"}}]',
    "deepseek-v3": f"<｜tool▁calls▁begin｜>{V3.format('weather', W)}\n{V3.format('add', A)}<｜tool▁calls▁end｜>",
    "deepseek-v3.1": f"<｜tool▁calls▁begin｜>{V31.format('weather', W)}{V31.format('add', A)}<｜tool▁calls▁end｜>",
    "deepseek-v4": f"<｜DSML｜tool_calls>\n{dsml('weather', WEATHER)}{dsml('add', ADD)}</｜DSML｜tool_calls>",
}
NEWER = {
    "mistral": f"[TOOL_CALLS]weather[ARGS]{W}[TOOL_CALLS]add[CALL_ID]123456789[ARGS]{A}",
    "deepseek-v4": TWO_CALLS["deepseek-v4"].replace("tool_calls", "function_calls"),
    "hermes": TWO_CALLS["hermes"].replace(W, json.dumps(W)).replace("\n", ""),
}


def parsed(form, parts, is_parallel=True):
    """Content, and the calls as name and joined arguments."""
    parser = AnswerParser(None, FORMATS[form].parser(NAMES), (), is_parallel)
    pieces = [piece for part in parts for piece in parser.feed(part)] + parser.end()
    content, calls = "", []
    for piece in pieces:
        match piece:
            case Content(text):
                content += text
            case CallStarted(index, name):
                assert index == len(calls)
                calls.append((name, ""))
            case CallArguments(index, text):
                calls[index] = (calls[index][0], calls[index][1] + text)
    return content, calls


@pytest.mark.parametrize(("form", "text"), [*TWO_CALLS.items(), *NEWER.items()])
def test_gwy_07_two_calls_are_two_wherever_they_are_cut(form, text):
    whole = parsed(form, [text])
    names = [name for name, _ in whole[1]]
    assert (whole[0], names) == ("", ["weather", "add"])
    assert [json.loads(arguments) for _, arguments in whole[1]] == [WEATHER, ADD]
    for place in range(1, len(text)):
        assert parsed(form, [text[:place], text[place:]]) == whole
    assert parsed(form, text) == whole


@pytest.mark.parametrize(("form", "text"), [(form, text) for form, text in TWO_CALLS.items() if form != "llama3"])
def test_text_before_calls_is_content_without_the_blanks_in_between(form, text):
    content, calls = parsed(form, f"Let me see.\n\n{text}")
    assert (content, len(calls)) == ("Let me see.", 2)


@pytest.mark.parametrize(("form", "text"), TWO_CALLS.items())
def test_further_calls_are_left_out_where_only_one_may_be_made(form, text):
    assert [name for name, _ in parsed(form, text, is_parallel=False)[1]] == ["weather"]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "text",
    [
        "plain",
        " \n",
        "a < b",
        "<tool_cal",
        "<tool_call",
        "[TOOL_CALL",
        '{"answer": 1}',
        '{"name": "nobody"}',
        "{",
        "<|python",
        "<｜DSML｜tool",
    ],
)
def test_text_that_is_no_call_comes_through(form, text):
    assert parsed(form, text) == (text, [])


@pytest.mark.parametrize("form", FORMATS)
@given(text=st.text(alphabet='<>{}[]"\\:, \n|｜▁tool_calsbegindARGS/namerum', max_size=40))
def test_no_text_breaks_a_parser_nor_does_its_cut_matter(form, text):
    assert parsed(form, text) == parsed(form, [text])


@pytest.mark.parametrize("text", ["<tool_call>nothing</tool_call>", '<tool_call>{"arguments": {}}</tool_call>', '<tool_call>{"name": 1}'])
def test_what_is_no_call_between_the_markers_is_text(text):
    assert parsed("hermes", text) == (text, [])


def test_arguments_stream_as_they_come():
    parser = FORMATS["hermes"].parser(NAMES)
    parser.feed('<tool_call>{"name": "add", "arguments": ')
    assert parser.feed('{"a"') == [CallArguments(0, '{"a"')]
