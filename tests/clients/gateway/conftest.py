"""A gateway in front of a whole service, whose worker follows a script, and of one that is a script itself."""

import importlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from fakes.control_plane.inference_service import FakeInferenceService, FakeServer
from fakes.text.model_directory import write_json, write_model_directory
from fakes.text.tokenizers import SPECIAL_TOKENS
from harness.running_gateway import RunningGateway, running_gateway
from harness.service import Service, scripted_service
from openai import AsyncOpenAI

# It takes a second when they are first used, by which a service in the same event loop would be late.
for resource in ("chat.completions", "completions", "models", "responses"):
    importlib.import_module(f"openai.resources.{resource}")

#: Writes the last message alone; what stands before it is looked at, and hidden from the script.
TEMPLATE = (
    "{% if false %}{{ tools }}{{ documents }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.tool_calls }}{% elif loop.last %}{{ m.content }}{% endif %}{% endfor %}"
)


@dataclass
class Front:
    """A gateway, OpenAI's own client of it, and one that shows what is sent."""

    gateway: RunningGateway
    openai: AsyncOpenAI
    http: httpx.AsyncClient

    async def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The events of a stream; the last one may be [DONE]."""
        answer = await self.http.post(path, json={**body, "stream": True})
        assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
        lines = answer.text.split("\n\n")
        assert lines.pop() == "" and all(line.startswith("data: ") for line in lines)
        return [line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]

    async def refusal(self, path: str, body: Any, status: int = 400) -> dict[str, Any]:
        """The error of a body that is refused, as a stream as well."""
        answers = [await self.http.post(path, json=tried) for tried in (body, {**body, "stream": True})]
        assert answers[0].json() == answers[1].json()
        assert {answer.status_code for answer in answers} == {status}, answers[0].text
        return answers[0].json()["error"]


@dataclass
class ScriptedFront(Front):
    """In front of a whole service."""

    service: Service = field(kw_only=True)

    def chat(self, output: bytes, **fields: Any) -> dict[str, Any]:
        """The body of a chat that is answered so, and ends with an end token."""
        name = self.service.plan([*output, 257])
        return {"model": "model", "messages": [{"role": "user", "content": f"{name}:"}], **fields}


@pytest.fixture(scope="session")
def scripted_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokens are bytes, with a template that takes tools."""
    directory = write_model_directory(tmp_path_factory.mktemp("scripted") / "model")
    write_json(directory / "tokenizer_config.json", {**SPECIAL_TOKENS, "chat_template": TEMPLATE})
    return directory


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front(scripted_model: Path) -> AsyncIterator[ScriptedFront]:
    async with (
        scripted_service(scripted_model, max_model_len=1024, num_pages=2048) as service,
        running_gateway(f"127.0.0.1:{service.server.plane.ports['address']}") as gateway,
        AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as openai,
        httpx.AsyncClient(base_url=gateway.url, timeout=30) as http,
    ):
        yield ScriptedFront(gateway, openai, http, service=service)
        await service.until_at_rest()


@dataclass
class FakeFront(Front):
    """In front of a scripted control plane."""

    server: FakeServer = field(kw_only=True)

    @property
    def fake(self) -> FakeInferenceService:
        return self.server.service


@pytest.fixture
async def fake_front() -> AsyncIterator[FakeFront]:
    async with (
        FakeServer(FakeInferenceService()) as server,
        running_gateway(server.target) as gateway,
        AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as openai,
        httpx.AsyncClient(base_url=gateway.url, timeout=30) as http,
    ):
        yield FakeFront(gateway, openai, http, server=server)
