"""Everything that can fail does, all the time, and no client notices anything but the delay.

CHAOS_FAULTS says how many faults there are, CHAOS_SEED repeats a plan of them; `make chaos` runs 200.
"""

import asyncio
import logging
import os
import random
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest
from chaos.answer import Answer
from chaos.cluster import Cluster
from chaos.control_planes import ControlPlane, OneProcess, StandingBy, Supervised
from chaos.faults import CLIENTS, KINDS, Fault, inject, plan
from chaos.streams import NUM_STREAMS, Ask, Streams, request, undisturbed
from harness.checkpoints import TinyCheckpoint
from harness.processes import control_plane, worker

from clients import AsyncClient
from pypto_serving.inference.v1.inference_pb2_grpc import InferenceServiceStub

NUM_FAULTS = int(os.environ.get("CHAOS_FAULTS", "8"))
FEWER_FAULTS = max(8, NUM_FAULTS // 4)
SEED = int(os.environ.get("CHAOS_SEED", random.randrange(10**6)))
LENGTH = 300 if NUM_FAULTS < 50 else 1000  # tokens of a stream; the long ones see dozens of faults
NUM_PAGES = LENGTH  # too few for all streams at their ends, even more so with one worker: they preempt each other

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240 + 6 * NUM_FAULTS)]


@pytest.fixture(scope="module")
def solo(tiny_checkpoint: TinyCheckpoint) -> "Solo":
    return Solo(tiny_checkpoint("qwen3", "bfloat16"))


@pytest.mark.parametrize(("form", "num_faults"), [(OneProcess, NUM_FAULTS), (Supervised, NUM_FAULTS), (StandingBy, FEWER_FAULTS)])
async def test_no_stream_differs_from_an_undisturbed_one(
    form: type[ControlPlane], num_faults: int, solo: "Solo", tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "clients")
    async with Cluster(solo.model, tmp_path, NUM_PAGES, SEED, form) as cluster, cluster.client() as client:
        answers = await _disturb(cluster, [partial(Answer.to, client)] * NUM_STREAMS, plan(SEED, num_faults, KINDS[form]))
    await solo.compare(answers)


@pytest.mark.parametrize("form", [Supervised, StandingBy])
async def test_schedulers_end_no_call_of_any_client(form: type[ControlPlane], solo: "Solo", tmp_path: Path) -> None:
    """Clients that have nothing of ours: calls that break are not resumed."""
    kinds = {name: kind for name, kind in KINDS[form].items() if not kind.ends_calls and name not in CLIENTS}
    faults = plan(SEED, FEWER_FAULTS, kinds)
    async with Cluster(solo.model, tmp_path, NUM_PAGES, SEED, form) as cluster, cluster.plain_channels(NUM_STREAMS) as channels:
        answers = await _disturb(cluster, [partial(Answer.to_plain, InferenceServiceStub(channel)) for channel in channels], faults)
    await solo.compare(answers)


async def _disturb(cluster: Cluster, users: Sequence[Ask], faults: Sequence[Fault]) -> dict[int, Answer]:
    """The answers that users got while it all happened."""
    print(f"CHAOS_SEED={SEED} CHAOS_FAULTS={NUM_FAULTS}, logs in {cluster.logs}")
    log: list[str] = []
    streams = Streams(users, LENGTH, log)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(streams.run())
            await inject(cluster, faults, log)
            streams.cease()
        print(f"{len(streams.answers)} streams saw {sorted(streams.faults_seen)} faults")
        await cluster.come_to_rest()
    finally:
        print("\n".join(log))
    return streams.answers


class Solo:
    """Answers of a server of their own, kept for all tests."""

    def __init__(self, model: Path) -> None:
        self.model = model
        self._answers: dict[int, Answer] = {}

    async def compare(self, answers: Mapping[int, Answer]) -> None:
        """Require answers to be the same."""
        await self._ask(sorted(answers.keys() - self._answers.keys()))
        found = {index: answer.differences(self._answers[index]) for index, answer in answers.items()}
        told = "\n".join(f"stream {index} ({request(index, LENGTH)}): {line}" for index, lines in found.items() for line in lines)
        if told:
            pytest.fail(told, pytrace=False)  # which shortens nothing

    async def _ask(self, indices: Sequence[int]) -> None:
        with (
            worker(self.model, "--num-pages", "8000") as one_worker,
            control_plane(self.model, [one_worker], "--no-prefix-cache") as control,
        ):
            control.wait_until_ready()
            async with AsyncClient(control.address) as client:
                self._answers |= await undisturbed(client, {index: request(index, LENGTH) for index in indices})
