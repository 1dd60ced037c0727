"""Prompts, output and keys stay with those whom they belong to."""

import logging
from pathlib import Path
from urllib.request import urlopen

import pytest
from google.protobuf.text_format import MessageToString
from harness.service import Service, scripted_service, status_of

from clients.request import Request, generation_spec
from pypto_serving.admin.v1 import admin_pb2, admin_pb2_grpc
from pypto_serving.inference.v1 import inference_pb2 as pb

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = "Rumpelstilzchen"
AS_IDS = ", ".join(str(byte) for byte in SECRET.encode())


def scrape(service: Service) -> str:
    with urlopen(f"http://127.0.0.1:{service.server.plane.ports['metrics']}/metrics") as answer:
        return str(answer.read(), "utf-8")


async def ask_in_many_ways(service: Service) -> None:
    """Requests that are answered, refused and cut off, and in all of them a secret."""
    script = service.plan(SECRET.encode(), name=SECRET)
    for field in ({"prompt": f"{script}:"}, {"messages": [{"role": "user", "content": f"{script}:"}]}):
        answer = await service.stream(**field, max_tokens=len(SECRET))
        assert answer.text == SECRET
    refused = [
        {"prompt": SECRET * 100},
        {"prompt": SECRET, "temperature": -1},
        {"prompt": SECRET, "stop": [SECRET * 100]},
        {"prompt": SECRET, "regex": f"({SECRET}"},
        {"prompt": SECRET, "grammar": SECRET},
        {"prompt": SECRET, "cache_salt": SECRET * 100},
        {"messages": [{"role": "user", "content": SECRET * 100}]},
    ]
    for fields in refused:
        assert await status_of(service.unary(**fields)) == "INVALID_ARGUMENT"
    await service.stub.Tokenize(pb.TokenizeRequest(text=SECRET))
    call = service.stub.GenerateStream(pb.GenerateStreamRequest(spec=generation_spec(Request(f"{SECRET}:", max_tokens=200))))
    await call.read()
    call.cancel()


async def test_prompts_and_output_are_in_no_log_no_metric_and_no_state(scripted_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with scripted_service(scripted_model, step_seconds=0.01) as service:
        await ask_in_many_ways(service)
        running = service.stub.GenerateStream(pb.GenerateStreamRequest(spec=generation_spec(Request(f"{SECRET}:", max_tokens=200))))
        await running.read()
        admin = admin_pb2_grpc.AdminServiceStub(service.server.channel("admin"))
        state = await admin.GetState(admin_pb2.GetStateRequest(with_sequences=True))
        assert state.sequences and not any(each.token_ids for each in state.sequences)
        said = [MessageToString(state), scrape(service), *(str(vars(record)) + record.getMessage() for record in caplog.records)]
        assert len(said) > 4 and not [line for line in said if SECRET in line or AS_IDS in line]
        running.cancel()
