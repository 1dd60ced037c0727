"""Hostile neighbours beside ordinary streams: nobody notices them, and health stays SERVING.

NEIGHBOUR_ROUNDS says how often each of them asks; `make chaos` runs 10 rounds.
"""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from chaos.answer import Answer
from chaos.cluster import Cluster
from chaos.control_planes import OneProcess
from chaos.neighbours import HARMLESS, NEIGHBOURS, NOT_FINITE
from chaos.poisoned_worker import EXIT_CODE
from chaos.streams import request, undisturbed
from grpc_health.v1 import health_pb2, health_pb2_grpc
from harness.checkpoints import TinyCheckpoint
from harness.processes import control_plane, worker
from safetensors.torch import load_file, save_file

from clients import AsyncClient

NUM_ROUNDS = int(os.environ.get("NEIGHBOUR_ROUNDS", "1"))
NUM_STREAMS = 32
LENGTH = 200
NUM_PAGES = 2000
#: docs/operations.md: what a stream may wait for between two events while workers are lost one after the other.
MAX_WAIT_SECONDS = 30.0


@pytest.mark.slow
@pytest.mark.timeout(300 + 180 * NUM_ROUNDS)
async def test_hostile_neighbours_disturb_nobody(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    model = _with_a_token_that_is_not_finite(tiny_checkpoint("qwen3", "bfloat16", tie_word_embeddings=False))
    cluster = Cluster(model, tmp_path, NUM_PAGES, seed=0, form=_log_unread, worker_module="chaos.poisoned_worker")
    async with cluster, cluster.client() as client:
        answers, waits = await _disturb(cluster, client)
        for process in cluster.workers:  # the neighbours' doing
            process.unexpected_exit_codes = [code for code in process.unexpected_exit_codes if code != EXIT_CODE]
        await cluster.come_to_rest()
    with worker(model, "--num-pages", "8000") as one_worker, control_plane(model, [one_worker], "--no-prefix-cache") as control:
        control.wait_until_ready()
        async with AsyncClient(control.address) as client:
            expected = await undisturbed(client, {index: _ordinary(index) for index in answers})
    told = [f"stream {index}: {line}" for index, answer in answers.items() for line in answer.differences(expected[index])]
    assert not told, "\n".join(told)
    assert max(waits) < MAX_WAIT_SECONDS, sorted(waits)[-5:]


def _with_a_token_that_is_not_finite(model: Path) -> Path:
    """The model without a finite embedding of one token; its head has weights of its own, so that logits are finite."""
    tensors = load_file(model / "model.safetensors")
    tensors["model.embed_tokens.weight"][NOT_FINITE] = float("nan")
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    return model


def _ordinary(index: int) -> dict[str, Any]:
    """Request number `index`, which never draws the tokens that do harm."""
    fields = request(index, LENGTH)
    return fields | {"logit_bias": fields.get("logit_bias", {}) | HARMLESS}


def _log_unread(flags: list[str], worker_flags: list[str], _: Path) -> OneProcess:
    """A control plane that logs every detail into a pipe that nobody reads."""
    return OneProcess([*flags, "--log-level", "debug"], worker_flags, None)


async def _disturb(cluster: Cluster, client: AsyncClient) -> tuple[dict[int, Answer], list[float]]:
    """Ordinary streams one after the other while each neighbour asks NUM_ROUNDS times; their answers, and the longest wait of each."""
    answers: dict[int, Answer] = {}
    waits: list[float] = []
    numbers = iter(range(10**6))
    is_over = False

    async def stream() -> None:
        while not is_over:
            index, answer, last, longest = next(numbers), Answer(), time.monotonic(), 0.0
            async for event in client.stream(**_ordinary(index)):
                answer.take(event)
                now = time.monotonic()
                last, longest = now, max(longest, now - last)
            answers[index] = answer
            waits.append(longest)

    async with asyncio.TaskGroup() as group:
        watching = group.create_task(_watch_health(cluster.control.proxies[0].address))
        for _ in range(NUM_STREAMS):
            group.create_task(stream())
        for neighbour in NEIGHBOURS * NUM_ROUNDS:
            await neighbour(cluster.control.proxies[0].address)
        is_over = True
        watching.cancel()
    return answers, waits


async def _watch_health(address: str) -> None:
    """Raises AssertionError as soon as the control plane says that it is not alive."""
    async with grpc.aio.insecure_channel(address) as channel:
        async for answer in health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="liveness")):
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
