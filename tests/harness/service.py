"""The whole service in one process: the assembled control plane, a worker, and somebody who asks.

A scripted worker gives every prompt the tokens that a test wrote down for it; a real one runs a tiny model whose tokens are bytes.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc.aio
from fakes.worker.fake_worker import FakeWorker, FakeWorkerOptions
from grpc_health.v1 import health_pb2
from harness.caller import Answer, Caller
from harness.running_control_plane import RunningControlPlane, running
from harness.served_worker import ServedWorker

from pypto_serving.admin.v1 import admin_pb2, admin_pb2_grpc
from pypto_serving.wire.fingerprint import fingerprint_model

VOCAB_SIZE = 320
_END_OF_PROMPT = ord(":")
_ENDLESS = ord("z")


class Script:
    """Outputs by name: the prompt "name:" is answered with the tokens of "name", and then with z without end.

    A prompt without a colon has to be one token long; it is answered with the output that has no name.
    """

    def __init__(self, first_byte_id: int = 0) -> None:
        self.outputs: dict[str, Sequence[int]] = {}
        self._first_byte_id = first_byte_id

    def __call__(self, tokens: Sequence[int]) -> int:
        shifted = [token - self._first_byte_id for token in tokens]
        end = shifted.index(_END_OF_PROMPT) if _END_OF_PROMPT in shifted else 0
        name = bytes(token for token in shifted[:end] if token < 256).decode()
        output, index = self.outputs.get(name, ()), len(tokens) - end - 1
        return output[index] if index < len(output) else _ENDLESS + self._first_byte_id

    def prompt(self, name: str) -> list[int]:
        """The ids of a prompt."""
        return [self._first_byte_id + byte for byte in f"{name}:".encode()]


@dataclass
class Service(Caller):
    """A running service, to be asked."""

    server: RunningControlPlane
    worker: FakeWorker | ServedWorker
    script: Script = field(default_factory=Script)

    def __post_init__(self) -> None:
        super().__init__(self.server.channel())
        self.admin = admin_pb2_grpc.AdminServiceStub(self.server.channel("admin"))

    def plan(self, output: Sequence[int] | bytes, name: str = "script") -> str:
        """Write an output down; returns the name of its prompt."""
        unique = f"{name}{len(self.script.outputs)}"
        self.script.outputs[unique] = list(output)
        return unique

    async def scripted(self, output: Sequence[int] | bytes, name: str = "script", **fields: Any) -> Answer:
        """Ask both ways for a scripted output, in each of the three forms of a prompt, which must not matter."""
        name = self.plan(output, name)
        as_chat = {"messages": [{"role": "user", "content": f"{name}:"}]}
        forms = ({"prompt": f"{name}:"}, {"token_ids": self.script.prompt(name)}, as_chat)
        answers = [await self.ask(**fields, **form) for form in forms]
        assert answers[1].shown == answers[0].shown == answers[2].shown
        return answers[0]

    async def state(self) -> admin_pb2.GetStateResponse:
        """What operators see."""
        return await self.admin.GetState(admin_pb2.GetStateRequest(with_sequences=True))

    async def until_at_rest(self) -> admin_pb2.GetStateResponse:
        """Wait until no call, no sequence, no page that is not free or cached, and no step whose result nobody needs is left."""
        while True:
            state = await self.state()
            pages = [worker.pages for worker in state.workers]  # none while it is lost, as may be for a moment on a busy machine
            is_idle = pages and not (state.num_calls or state.sequences or pages[0].referenced or pages[0].fenced)
            if is_idle and not await self.metric("steps_in_flight"):
                return state
            await asyncio.sleep(0.005)

    async def samples(self) -> dict[str, float]:
        """All samples of a scrape, by name and labels, without the prefix of their names."""
        url = f"http://127.0.0.1:{self.server.plane.ports['metrics']}/metrics"
        with await asyncio.to_thread(urlopen, url) as answer:
            lines = answer.read().decode().splitlines()
        values = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name.removeprefix("pypto_serving_"): float(value) for name, value in values}

    async def metric(self, name: str) -> float:
        """The sum of a family's samples."""
        return sum(value for sample, value in (await self.samples()).items() if sample.partition("{")[0] == name)

    @property
    def num_admissions(self) -> int:
        """Sequences that the scripted worker was given."""
        assert isinstance(self.worker, FakeWorker)
        return sum(len(step.admissions) for step in self.worker.steps)

    def num_ended(self, outcome: str) -> int:
        """Requests that the engine ended so."""
        return int(self.server.plane._engine_metrics._outcomes[(outcome,)])


async def status_of(call: Awaitable[object]) -> str:
    """How a call fails."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


@asynccontextmanager
async def scripted_service(model: Path, *flags: str, first_byte_id: int = 0, **options: Any) -> AsyncIterator[Service]:
    """A service whose worker follows a script; `options` are those of the fake worker."""
    script = Script(first_byte_id)
    fields = {"vocab_size": VOCAB_SIZE, "max_model_len": 256, "num_pages": 512, "max_lanes": 32, **options}
    worker = FakeWorker(FakeWorkerOptions(model_fingerprint=fingerprint_model(model), next_token=script, **fields))
    await worker.start()
    try:
        async with running(model, "--worker", worker.address, *flags) as server:
            await server.health_becomes(health_pb2.HealthCheckResponse.SERVING)
            yield Service(server, worker, script)
            assert not worker.broken_rules
    finally:
        await worker.stop()


@asynccontextmanager
async def real_service(model: Path, *flags: str, worker_flags: Sequence[str] = ()) -> AsyncIterator[Service]:
    """A service whose worker runs a model."""
    async with real_worker(model, *worker_flags) as worker, running(model, "--worker", worker.address, *flags) as server:
        await server.health_becomes(health_pb2.HealthCheckResponse.SERVING)
        yield Service(server, worker)


@asynccontextmanager
async def real_worker(model: Path, *flags: str) -> AsyncIterator[ServedWorker]:
    """A worker that runs a model."""
    worker = ServedWorker(model, "--num-pages", "512", "--max-lanes", "32", "--page-tokens", "16", *flags)
    await worker.start(incarnation=secrets.token_hex(8))
    try:
        yield worker
    finally:
        await worker.stop()
