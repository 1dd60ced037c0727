"""Reflection under both of its names, over a real connection."""

from collections.abc import AsyncIterator

import grpc.aio
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

from pypto_serving.process.health import HEALTH
from pypto_serving.process.reflection import REFLECTION_SERVICES, enable_reflection

VERSIONS = ("v1", "v1alpha")


@pytest.fixture
async def channel() -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server()
    enable_reflection(server, HEALTH)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(None)


async def ask(channel: grpc.aio.Channel, version: str, **request: str) -> ServerReflectionResponse:
    path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
    method = channel.stream_stream(path, ServerReflectionRequest.SerializeToString, ServerReflectionResponse.FromString)
    [answer] = [answer async for answer in method(iter([ServerReflectionRequest(**request)]))]
    return answer


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_service_listed_is_described(channel: grpc.aio.Channel, version: str) -> None:
    listed = {service.name for service in (await ask(channel, version, list_services="")).list_services_response.service}
    assert listed == {HEALTH, *(f"grpc.reflection.{each}.ServerReflection" for each in VERSIONS)}
    for name in listed:
        answer = await ask(channel, version, file_containing_symbol=name)
        files = map(FileDescriptorProto.FromString, answer.file_descriptor_response.file_descriptor_proto)
        assert name in {f"{file.package}.{service.name}" for file in files for service in file.service}


async def test_v1_describes_messages_of_v1(channel: grpc.aio.Channel) -> None:
    answer = await ask(channel, "v1", file_containing_symbol=REFLECTION_SERVICES[0])
    [file] = map(FileDescriptorProto.FromString, answer.file_descriptor_response.file_descriptor_proto)
    [method] = file.service[0].method
    assert (method.input_type, method.output_type) == (
        ".grpc.reflection.v1.ServerReflectionRequest",
        ".grpc.reflection.v1.ServerReflectionResponse",
    )
    assert "v1alpha" not in str(file)


@pytest.mark.parametrize("version", VERSIONS)
async def test_what_is_unknown_is_an_error_in_the_answer(channel: grpc.aio.Channel, version: str) -> None:
    answer = await ask(channel, version, file_containing_symbol="no.such.Service")
    assert answer.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
