"""Everything that can fail does, all the time, and no client notices anything but the delay.

CHAOS_FAULTS says how many faults there are, CHAOS_SEED repeats a plan of them; `make chaos` runs 200.
"""

import asyncio
import logging
import os
import random
from pathlib import Path

import pytest
from chaos.answer import Answer
from chaos.cluster import Cluster
from chaos.faults import inject, plan
from chaos.streams import Streams, request, undisturbed
from harness.checkpoints import TinyCheckpoint
from harness.processes import control_plane, worker

from clients import AsyncClient

NUM_FAULTS = int(os.environ.get("CHAOS_FAULTS", "8"))
SEED = int(os.environ.get("CHAOS_SEED", random.randrange(10**6)))
LENGTH = 300 if NUM_FAULTS < 50 else 2000  # tokens of a stream; the long ones see dozens of faults
NUM_PAGES = LENGTH  # too few for all streams at their ends, even more so with one worker: they preempt each other


@pytest.mark.slow
@pytest.mark.timeout(180 + 6 * NUM_FAULTS)
async def test_no_stream_differs_from_an_undisturbed_one(
    tiny_checkpoint: TinyCheckpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "clients")
    print(f"CHAOS_SEED={SEED} CHAOS_FAULTS={NUM_FAULTS}, logs in {tmp_path}")
    model = tiny_checkpoint("qwen3", "bfloat16")
    log: list[str] = []
    try:
        async with Cluster(model, tmp_path, NUM_PAGES, SEED) as cluster, cluster.client() as client:
            streams = Streams(client, LENGTH, log)
            async with asyncio.TaskGroup() as group:
                group.create_task(streams.run())
                await inject(cluster, plan(SEED, NUM_FAULTS), log)
                streams.cease()
            print(f"{len(streams.answers)} streams saw {sorted(streams.faults_seen)} faults")
            await cluster.come_to_rest()
    finally:
        print("\n".join(log))
    expected = await _undisturbed(model, sorted(streams.answers))
    found = {index: answer.differences(expected[index]) for index, answer in streams.answers.items()}
    told = "\n".join(f"stream {index} ({request(index, LENGTH)}): {line}" for index, lines in found.items() for line in lines)
    if told:
        pytest.fail(told, pytrace=False)  # which shortens nothing


async def _undisturbed(model: Path, indices: list[int]) -> dict[int, Answer]:
    with worker(model, "--num-pages", "8000") as one_worker, control_plane(model, [one_worker], "--no-prefix-cache") as control:
        control.wait_until_ready()
        async with AsyncClient(control.address) as client:
            return await undisturbed(client, {index: request(index, LENGTH) for index in indices})
