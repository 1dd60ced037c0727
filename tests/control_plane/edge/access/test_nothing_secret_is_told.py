"""Prompts, output and keys stay out of logs, metrics, error details and the state dump, at the most talkative level too."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.request import urlopen

import grpc
import grpc.aio
import pytest
from fakes.worker.fake_worker import FakeWorker
from grpc_health.v1 import health_pb2
from harness.running_control_plane import RunningControlPlane, running

from control_plane.edge.service.admission.admission import Admission
from pypto_serving.admin.v1 import admin_pb2, admin_pb2_grpc
from pypto_serving.inference.v1 import inference_pb2 as pb
from pypto_serving.inference.v1 import inference_pb2_grpc
from pypto_serving.process import logs

PROMPT, KEY, WRONG_KEY = "xyzzyprompt", "xyzzykey", "xyzzywrong"
SHOWN = (("authorization", f"Bearer {KEY}"),)


@pytest.fixture
async def server(model: Path, worker: FakeWorker, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[RunningControlPlane]:
    caplog.set_level(logging.DEBUG)
    (tmp_path / "keys").write_text(KEY)
    flags = ["--worker", worker.address, "--api-keys-file", str(tmp_path / "keys"), "--admin-key-file", str(tmp_path / "keys")]
    async with running(model, *flags, "--log-level", "debug") as server:
        await server.health_becomes(health_pb2.HealthCheckResponse.SERVING)
        yield server


def specs() -> dict[str, pb.GenerationSpec]:
    """Requests that are answered, and requests that are refused for many reasons."""
    stopping = pb.StoppingParams(max_tokens=8)
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content=PROMPT)])
    return {
        "good": pb.GenerationSpec(text=PROMPT, stopping=stopping),
        "chat": pb.GenerationSpec(chat=chat, stopping=stopping),
        "too long": pb.GenerationSpec(text=PROMPT * 100, stopping=stopping),
        "no room": pb.GenerationSpec(text=PROMPT, stopping=pb.StoppingParams(max_tokens=1000)),
        "other model": pb.GenerationSpec(text=PROMPT, model="other"),
        "bad parameter": pb.GenerationSpec(text=PROMPT, sampling=pb.SamplingParams(top_p=2.0)),
        "empty stop": pb.GenerationSpec(text=PROMPT, stopping=pb.StoppingParams(stop=[""])),
        "bad constraint": pb.GenerationSpec(text=PROMPT, constraint=pb.Constraint(json_schema='{"type": 1}')),
    }


async def outcomes(server: RunningControlPlane, metadata: tuple[tuple[str, str], ...]) -> list[str]:
    """Details of the refusals; answers count as empty."""
    stub = inference_pb2_grpc.InferenceServiceStub(server.channel())
    details = []
    for spec in specs().values():
        try:
            await stub.Generate(pb.GenerateRequest(spec=spec), metadata=metadata, timeout=20)
            details.append("")
        except grpc.aio.AioRpcError as error:
            details.append(f"{error.code().name} {error.details()}")
    return details


def everything_logged(caplog: pytest.LogCaptureFixture) -> str:
    formatter = logs._JsonFormatter()
    records = [*caplog.get_records("setup"), *caplog.get_records("call")]
    return "\n".join(formatter.format(record) for record in records)


async def test_neither_prompt_nor_key_is_told(server: RunningControlPlane, caplog: pytest.LogCaptureFixture) -> None:
    details = [*await outcomes(server, SHOWN), *await outcomes(server, (("authorization", f"Bearer {WRONG_KEY}"),))]
    assert details[:2] == ["", ""] and all(details[2:])
    admin = admin_pb2_grpc.AdminServiceStub(server.channel("admin"))
    state = await admin.GetState(admin_pb2.GetStateRequest(with_sequences=True), metadata=SHOWN)
    with urlopen(f"http://127.0.0.1:{server.plane.ports['metrics']}/metrics") as answer:
        told = "\n".join([*details, str(state), str(answer.read(), "utf-8"), everything_logged(caplog)])
    assert "xyzzy" not in told
    assert "session opened" in told  # the log was looked at


async def test_an_internal_error_is_logged_without_them(
    server: RunningControlPlane, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(Admission, "admit", fail)
    details = await outcomes(server, SHOWN)
    assert details[0].startswith("INTERNAL") and "out of luck" in everything_logged(caplog)
    assert "xyzzy" not in everything_logged(caplog) + "".join(details)
