"""Keys keep their callers apart: ids, caches and priorities."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from harness.service import Service, scripted_service, status_of

from control_plane.edge.access.callers import PriorityRange, parse_priorities
from pypto_serving.inference.v1 import inference_pb2 as pb
from pypto_serving.inference.v1 import inference_pb2_grpc

_FILE = """
acme-1     name=acme priority=-10..10
acme-2     name=acme
someone
someone-2
"""


class Tenant:
    """Somebody with a key."""

    def __init__(self, service: Service, key: str) -> None:
        self._stub = inference_pb2_grpc.InferenceServiceStub(service.server.channel())
        self._metadata = (("authorization", f"Bearer {key}"),)

    async def ask(self, **fields: object) -> pb.GenerateResponse:
        spec = {"text": "a long prompt that fills some pages of the cache:", "stopping": pb.StoppingParams(max_tokens=2), **fields}
        return await self._stub.Generate(pb.GenerateRequest(spec=pb.GenerationSpec(**spec)), metadata=self._metadata)

    async def begin(self, request_id: str) -> grpc.aio.UnaryStreamCall:
        spec = pb.GenerationSpec(request_id=request_id, text="a:", stopping=pb.StoppingParams(max_tokens=200))
        call = self._stub.GenerateStream(pb.GenerateStreamRequest(spec=spec), metadata=self._metadata)
        started = (await call.read()).started
        assert started.request_id == request_id
        return call

    async def abort(self, request_id: str) -> bool:
        return (await self._stub.Abort(pb.AbortRequest(request_id=request_id), metadata=self._metadata)).was_live


@pytest.fixture
async def service(model: Path, tmp_path: Path) -> AsyncIterator[Service]:
    (tmp_path / "client-keys").write_text(_FILE)
    (tmp_path / "admin-keys").write_text("operator\n")
    keys = ("--api-keys-file", str(tmp_path / "client-keys"), "--admin-key-file", str(tmp_path / "admin-keys"))
    async with scripted_service(model, *keys, "--priorities=0..5", step_seconds=0.02) as service:
        yield service


async def test_an_id_belongs_to_the_name_of_a_key(service: Service) -> None:
    acme, rotated, someone, other = (Tenant(service, key) for key in ("acme-1", "acme-2", "someone", "someone-2"))
    calls = [await tenant.begin("mine") for tenant in (acme, someone, other)]
    assert await status_of(rotated.begin("mine")) == "ALREADY_EXISTS"
    assert [await tenant.abort("acme/mine") for tenant in (acme, someone)] == [False, False]
    assert await someone.abort("mine")
    assert await calls[1].code() is grpc.StatusCode.CANCELLED
    assert await rotated.abort("mine")  # it was live all the time
    assert await other.abort("mine")


async def test_what_a_tenant_sent_cannot_be_told_from_the_cache(service: Service) -> None:
    acme, rotated, someone = (Tenant(service, key) for key in ("acme-1", "acme-2", "someone"))

    async def num_cached(tenant: Tenant, **fields: object) -> int:
        return (await tenant.ask(**fields)).usage.cached_tokens

    for salt in ("", "shared"):
        assert await num_cached(acme, cache_salt=salt) == 0
        assert await num_cached(someone, cache_salt=salt) == 0
        assert await num_cached(rotated, cache_salt=salt) > 0
        assert await num_cached(someone, cache_salt=salt) > 0
    assert await num_cached(someone, cache_salt="acme/") == 0


@pytest.mark.parametrize(
    ("key", "priority", "allowed"),
    [
        ("acme-1", -10, ""),
        ("acme-1", -11, "-10..10"),
        ("acme-1", 11, "-10..10"),
        ("acme-2", 5, ""),
        ("acme-2", 6, "0..5"),
        ("someone", -1, "0..5"),
    ],
)
async def test_a_key_has_a_range_of_priorities(service: Service, key: str, priority: int, allowed: str) -> None:
    asked = Tenant(service, key).ask(priority=priority)
    if not allowed:
        assert (await asked).choices
        return
    with pytest.raises(grpc.aio.AioRpcError, match=rf"priority = {priority}, must be in {allowed}") as refused:
        await asked
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_without_keys_priorities_begin_at_zero_and_everything_else_is_one(model: Path) -> None:
    async with scripted_service(model, step_seconds=0.02) as service:
        anybody = Tenant(service, "")
        assert await status_of(anybody.ask(priority=-1)) == "INVALID_ARGUMENT"
        await asyncio.gather(*(anybody.ask(priority=priority) for priority in (0, 2**31 - 1)))
        assert (await Tenant(service, "ignored").ask()).usage.cached_tokens > 0
        await anybody.begin("mine")
        assert (await service.state()).sequences[0].request_id == "mine"


@pytest.mark.parametrize("text", ["", "1", "1..", "..1", "2..1", "a..b", "-2147483649..0", "0..2147483648", "1...2"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not LOW\.\.HIGH with integers from -2147483648 to 2147483647"):
        parse_priorities(text)


def test_a_range_is_read() -> None:
    assert parse_priorities("-10..10") == PriorityRange(-10, 10)
