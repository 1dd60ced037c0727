"""Every method of every port asks for the key of that port."""

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.request import urlopen

import grpc
import grpc.aio
import pytest
from fakes.network.raw_http2 import answer_to
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from harness.running_control_plane import RunningControlPlane, running

from pypto_serving.admin.v1 import admin_pb2
from pypto_serving.inference.v1 import inference_pb2

CLIENT_KEY, ADMIN_KEY = "client-key-1", "admin-key-1"
REFUSED = ("UNAUTHENTICATED", "this server asks for a key that it knows, as the header `authorization: Bearer KEY`")
SERVICES = {
    "address": inference_pb2.DESCRIPTOR.services_by_name["InferenceService"],
    "admin": admin_pb2.DESCRIPTOR.services_by_name["AdminService"],
}
METHODS = [(port, f"/{service.full_name}/{method.name}") for port, service in SERVICES.items() for method in service.methods]
WRONG = {
    "none": [],
    "empty": [""],
    "wrong": ["Bearer client-key-2"],
    "no scheme": ["client-key-1"],
    "other scheme": ["Basic client-key-1"],
    "prefix": ["Bearer client-key-"],
    "longer": ["Bearer client-key-11"],
    "blank behind": ["Bearer client-key-1 "],
    "blanks before": ["Bearer  client-key-1"],
    "other case": ["Bearer Client-Key-1"],
    "comment": ["Bearer # of the tests"],
    "twice": ["Bearer client-key-1", "Bearer client-key-1"],
}


@pytest.fixture
def keys(tmp_path: Path) -> list[str]:
    """Flags with keys for clients and operators."""
    (tmp_path / "client-keys").write_text(f"# of the tests\nanother-key\n{CLIENT_KEY}\n")
    (tmp_path / "admin-keys").write_text(f"{ADMIN_KEY}\n")
    return ["--api-keys-file", str(tmp_path / "client-keys"), "--admin-key-file", str(tmp_path / "admin-keys")]


@pytest.fixture
async def server(model: Path, keys: list[str]) -> AsyncIterator[RunningControlPlane]:
    async with running(model, *keys) as server:
        yield server


async def outcome(channel: grpc.aio.Channel, path: str, *authorizations: str, message: bytes = b"") -> tuple[str, str]:
    """Code and details of a call, unary or not."""
    metadata = tuple(("authorization", value) for value in authorizations)
    call = channel.unary_stream(path)(message, metadata=metadata, timeout=20)
    try:
        await call.read()
        call.cancel()
    except grpc.aio.AioRpcError as error:
        return error.code().name, error.details()
    return "OK", ""


@pytest.mark.parametrize("shown", WRONG)
async def test_ops_05_no_method_answers_without_the_key(server: RunningControlPlane, shown: str) -> None:
    channels = {port: server.channel(port) for port in SERVICES}
    wrong = [value.replace("client", "admin").replace("Client", "Admin") for value in WRONG[shown]]
    outcomes = {await outcome(channels[port], path, *(wrong if port == "admin" else WRONG[shown])) for port, path in METHODS}
    assert outcomes == {REFUSED}


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_ops_05_with_the_key_every_method_answers(server: RunningControlPlane, scheme: str) -> None:
    channels = {port: server.channel(port) for port in SERVICES}
    for port, path in METHODS:
        key = CLIENT_KEY if port == "address" else ADMIN_KEY
        # An empty message is a bad request to some; that is for the method to say.
        assert (await outcome(channels[port], path, f"{scheme} {key}", message=b"\xff"))[0] == "INVALID_ARGUMENT"


async def test_ops_05_each_port_has_keys_of_its_own(server: RunningControlPlane) -> None:
    for port, path in METHODS:
        key = ADMIN_KEY if port == "address" else CLIENT_KEY
        assert await outcome(server.channel(port), path, f"Bearer {key}") == REFUSED


async def test_ops_05_non_ascii_bytes_are_a_wrong_key(server: RunningControlPlane) -> None:
    for port, path in METHODS:
        answer = await answer_to(server.plane.ports[port], path, {b"authorization": b"Bearer \xff\xe4\xf6"})
        assert b"grpc-status\x0216" in answer  # UNAUTHENTICATED


async def test_ops_05_unknown_methods_are_refused_alike_and_not_counted(server: RunningControlPlane) -> None:
    for path in ("/pypto_serving.inference.v1.InferenceService/Nothing", "/nothing.Service/Method", "/x"):
        assert await outcome(server.channel(), path) == REFUSED
    assert "Nothing" not in scrape(server)


async def test_ops_05_the_key_is_asked_for_before_the_message_is_read(server: RunningControlPlane) -> None:
    path = "/pypto_serving.inference.v1.InferenceService/Generate"
    assert await outcome(server.channel(), path, message=b"\xff" * 5_000_000) == REFUSED


async def test_refused_calls_are_counted(server: RunningControlPlane) -> None:
    await outcome(server.channel(), "/pypto_serving.inference.v1.InferenceService/GenerateStream")
    assert 'calls_total{code="unauthenticated",method="GenerateStream"} 1.0' in scrape(server)


def scrape(server: RunningControlPlane) -> str:
    with urlopen(f"http://127.0.0.1:{server.plane.ports['metrics']}/metrics") as answer:
        return str(answer.read(), "utf-8")


@pytest.mark.parametrize("method", ["Check", "Watch"])
async def test_ops_05_health_is_open(server: RunningControlPlane, method: str) -> None:
    assert (await outcome(server.channel(), f"/grpc.health.v1.Health/{method}"))[0] == "OK"


async def reflected_methods(channel: grpc.aio.Channel) -> set[str]:
    """Paths of all methods that reflection tells of, without its own."""

    async def ask(**request: str) -> reflection_pb2.ServerReflectionResponse:
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(**request)])
        )
        response = await call.read()
        call.cancel()
        return response

    paths = set()
    for service in (await ask(list_services="")).list_services_response.service:
        answer = await ask(file_containing_symbol=service.name)
        for serialized in answer.file_descriptor_response.file_descriptor_proto:
            file = FileDescriptorProto.FromString(serialized)
            paths |= {f"/{file.package}.{each.name}/{method.name}" for each in file.service for method in each.method}
    return {path for path in paths if not path.startswith("/grpc.")}


async def test_ops_05_reflection_knows_of_no_other_methods(server: RunningControlPlane) -> None:
    for port in SERVICES:
        assert await reflected_methods(server.channel(port)) == {path for where, path in METHODS if where == port}


async def test_ops_08_reflection_off_is_unimplemented_for_everybody(model: Path, keys: list[str]) -> None:
    async with running(model, *keys, "--no-reflection") as server:
        for port, key in (("address", CLIENT_KEY), ("admin", ADMIN_KEY)):
            for shown in ([], [f"Bearer {key}"]):
                for version in ("v1", "v1alpha"):
                    path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
                    assert (await outcome(server.channel(port), path, *shown))[0] == "UNIMPLEMENTED"


async def test_new_keys_count_at_once_and_a_broken_file_changes_nothing(server: RunningControlPlane, tmp_path: Path) -> None:
    file, path = tmp_path / "client-keys", "/pypto_serving.inference.v1.InferenceService/ListModels"
    channel = server.channel()
    file.write_text("key-2\n")
    assert await outcome(channel, path, f"Bearer {CLIENT_KEY}") == REFUSED
    assert (await outcome(channel, path, "Bearer key-2"))[0] == "OK"
    for content in ("", "# none\n", "zwei Wörter\n"):
        file.write_text(content)
        assert (await outcome(channel, path, "Bearer key-2"))[0] == "OK"
        assert await outcome(channel, path) == REFUSED
    assert 'credential_reloads_total{credentials="api_keys",outcome="refused"} 3.0' in scrape(server)
