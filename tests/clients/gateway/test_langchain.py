"""langchain-openai as a client."""

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALL = b'<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'


@tool
def weather(city: str) -> str:
    """What the weather is like."""
    return f"rain in {city}"


def chat_model(front, **fields):
    return ChatOpenAI(**connection(front), **fields)


def connection(front):
    """Over the connections of a client that the fixture closes."""
    return {"base_url": f"{front.gateway.url}/v1", "api_key": "none", "model": "model", "max_retries": 0, "http_async_client": front.http}


async def test_a_chat_whole_and_streamed(front):
    prompt = front.chat(b"hello there")["messages"][0]["content"]
    answer = await chat_model(front).ainvoke(prompt)
    assert (answer.content, answer.usage_metadata["output_tokens"]) == ("hello there", 12)
    chunks = [chunk async for chunk in chat_model(front, stream_usage=True).astream(prompt)]
    assert "".join(chunk.content for chunk in chunks) == "hello there"
    assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) == 12


async def test_a_tool_is_called_and_its_answer_goes_back(front):
    prompt = front.chat(CALL)["messages"][0]["content"]
    model = chat_model(front).bind_tools([weather])
    answer = await model.ainvoke(prompt)
    assert [(call["name"], call["args"]) for call in answer.tool_calls] == [("weather", {"city": "Paris"})]
    collected = None
    async for chunk in model.astream(prompt):
        collected = chunk if collected is None else collected + chunk
    assert collected.tool_calls[0]["args"] == {"city": "Paris"}
    history = [HumanMessage("?"), AIMessage("", tool_calls=answer.tool_calls), ToolMessage("rain", tool_call_id=answer.tool_calls[0]["id"])]
    assert (await chat_model(front, max_tokens=1).bind_tools([weather]).ainvoke(history)).response_metadata["finish_reason"] == "length"


async def test_a_completion(front):
    name = front.service.plan([*b"hello", 257])
    model = OpenAI(**connection(front), max_tokens=10)
    assert await model.ainvoke(f"{name}:") == "hello"


async def test_the_responses_api(front):
    prompt = front.chat(b"hello")["messages"][0]["content"]
    answer = await chat_model(front, use_responses_api=True).ainvoke(prompt)
    assert answer.text == "hello"
