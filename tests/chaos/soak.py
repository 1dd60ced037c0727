"""Hours of use in minutes: random requests, cancels, deadlines, slow readers and faults, and at the end nothing is left of them.

Run by name (`make soak`): SOAK_SECONDS says how long (600), CHAOS_SEED repeats requests and faults, SOAK_FORM=supervised has a control
plane of several processes.
"""

import asyncio
import logging
import os
import random
from collections.abc import Set
from pathlib import Path

import pytest
from chaos.cluster import Cluster
from chaos.control_planes import OneProcess, Supervised
from chaos.faults import CLIENTS, KINDS, Fault, inject, plan
from chaos.load import EXPECTED, NUM_USERS, Load
from chaos.memory import MemoryLog
from harness.checkpoints import TinyCheckpoint

SECONDS = float(os.environ.get("SOAK_SECONDS", "600"))
FORM = {"one-process": OneProcess, "supervised": Supervised}[os.environ.get("SOAK_FORM", "one-process")]
SEED = int(os.environ.get("CHAOS_SEED", random.randrange(10**6)))

# Allocators and caches still settle after a third of the time; a leak of one request's state, thousands of times, is more than this.
_MOST_GROWTH = {"resident_bytes": (1.05, 4e6), "num_descriptors": (1.0, 8), "num_threads": (1.0, 4)}  # factor, and something on top


@pytest.mark.timeout(SECONDS + 300)
async def test_nothing_is_left_of_requests_and_faults(
    tiny_checkpoint: TinyCheckpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "clients")
    print(f"CHAOS_SEED={SEED} SOAK_SECONDS={SECONDS:g}, logs in {tmp_path}")
    log: list[str] = []
    async with Cluster(tiny_checkpoint("qwen3", "bfloat16"), tmp_path, 600, SEED, FORM) as cluster, cluster.client() as client:
        load, memory = Load(client, SEED), MemoryLog(cluster.pids)
        watching = asyncio.create_task(memory.run())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(load.run())
                await inject(cluster, _faults(), log)
                load.cease()
            await cluster.come_to_rest()
        finally:
            watching.cancel()
            print("\n".join(log))
        print("\n".join(f"{count:6} {what} -> {outcome}" for (what, outcome), count in sorted(load.outcomes.items())))
        _check_outcomes(load)
        _check_growth(memory, cluster.control.pids.keys())


def _faults() -> list[Fault]:
    """Faults for the whole time; in the last two thirds all but worker 1 live on, so that their memory can be compared."""
    faults, at = [], 0.0
    for fault in plan(SEED, int(SECONDS / 0.2), KINDS[FORM]):
        at += fault.pause
        if at >= SECONDS:
            break
        spares = at < SECONDS / 4 or not fault.name.startswith(("kill", "drain")) or (fault.index == 1 and "worker" in fault.name)
        cut = "cut the clients' links"
        faults.append(fault if spares else Fault(fault.pause, cut, CLIENTS[cut], 0, 0.0))
    return faults


def _check_outcomes(load: Load) -> None:
    assert sum(load.outcomes.values()) == load.num_requests > NUM_USERS
    strange = {key: count for key, count in load.outcomes.items() if key[1] not in EXPECTED[key[0]]}
    assert not strange, str(strange)


def _check_growth(memory: MemoryLog, parts: Set[str]) -> None:
    growth = memory.growth(SECONDS)
    print(growth)
    assert growth.keys() >= {*parts, "worker 0"}
    for name, measured in growth.items():
        for what, (middle, last) in measured.items():
            factor, more = _MOST_GROWTH[what]
            assert last <= middle * factor + more, f"{what} of {name} grew from {middle} to {last}"
