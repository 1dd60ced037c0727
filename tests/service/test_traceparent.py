"""The trace of a request goes from the client to the worker that runs it."""

import pytest
from harness.service import Service

from clients import AsyncClient
from pypto_serving.inference.v1 import inference_pb2 as pb

pytestmark = pytest.mark.asyncio(loop_scope="module")

GOOD = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = "00-4bf92f3577b34da6a3ce929d0e0e4737-00f067aa0ba902b7-00"


async def told_the_worker(service: Service, *metadata: tuple[str, str]) -> list[str]:
    """The traces of the lanes that one call admits."""
    num_steps = len(service.worker.steps)
    spec = pb.GenerationSpec(text="x:", n=2, stopping=pb.StoppingParams(max_tokens=2))
    await service.stub.Generate(pb.GenerateRequest(spec=spec), metadata=metadata)
    return [admission.traceparent for step in service.worker.steps[num_steps:] for admission in step.admissions]


async def test_every_choice_carries_the_trace_of_its_call(scripted: Service) -> None:
    assert await told_the_worker(scripted, ("traceparent", GOOD)) == [GOOD, GOOD]
    assert await told_the_worker(scripted) == ["", ""]


async def test_what_is_no_trace_is_ignored(scripted: Service) -> None:
    assert await told_the_worker(scripted, ("traceparent", "00-nonsense")) == ["", ""]


async def test_the_library_passes_a_trace_on(scripted: Service) -> None:
    address = f"127.0.0.1:{scripted.server.plane.ports['address']}"
    async with AsyncClient(address) as client:
        await client.generate("x:", max_tokens=2, traceparent=OTHER)
    assert [admission.traceparent for step in scripted.worker.steps for admission in step.admissions][-1] == OTHER
