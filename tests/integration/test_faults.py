"""Processes that are killed in the middle: every stream equals an undisturbed run."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from harness.checkpoints import TinyCheckpoint
from harness.processes import ServingProcess, control_plane, worker

from clients import AsyncClient, ServingError
from clients.results import Delta

pytestmark = pytest.mark.slow

_REQUESTS = [{"prompt": f"Story {i}", "max_tokens": 300, "temperature": i % 2 * 0.9, "seed": i, "ignore_eos": True} for i in range(8)]


@pytest.fixture(scope="module")
def model(tiny_checkpoint: TinyCheckpoint) -> Path:
    return tiny_checkpoint("qwen3", "bfloat16")


async def _solo(client: AsyncClient) -> list[tuple[int, ...]]:
    return [(await client.generate(**request)).token_ids for request in _REQUESTS]


async def _disturbed(client: AsyncClient, disturb: Callable[[], Awaitable[None]]) -> list[tuple[int, ...]]:
    """Tokens of all requests at once, with something happening after the first of them have come."""
    begun = asyncio.Event()

    async def tokens(request: dict[str, Any]) -> tuple[int, ...]:
        received: list[int] = []
        async for event in client.stream(**request):
            if isinstance(event, Delta):
                received += event.token_ids
            if len(received) > 20:
                begun.set()
        return tuple(received)

    running = asyncio.gather(*(tokens(request) for request in _REQUESTS))
    await begun.wait()
    await disturb()
    return list(await running)


async def test_wrk_01_a_killed_worker_costs_no_token(model: Path) -> None:
    with worker(model) as first, worker(model) as second, control_plane(model, [first, second]) as control:
        async with AsyncClient(control.address) as client:
            control.wait_until_ready()
            solo = await _solo(client)

            async def kill() -> None:
                await asyncio.to_thread(first.kill)

            assert await _disturbed(client, kill) == solo
            assert await _solo(client) == solo


async def test_hst_03_hang_up_stops_no_plane_and_cuts_no_stream(model: Path) -> None:
    with worker(model) as one_worker, control_plane(model, [one_worker]) as control:
        async with AsyncClient(control.address, resume_seconds=0.0) as client:
            control.wait_until_ready()
            solo = await _solo(client)

            async def hang_up() -> None:
                for process in (one_worker, control):
                    process.send_signal(signal.SIGHUP)

            assert await _disturbed(client, hang_up) == solo
    for process in (one_worker, control):
        assert process.wait() == 0
        assert len([event for event in process.events if event["message"].startswith("SIGHUP ignored")]) == 1


async def test_wrk_03_streams_wait_for_a_worker_that_comes_back(model: Path) -> None:
    with worker(model) as first, control_plane(model, [first]) as control:
        async with AsyncClient(control.address) as client:
            control.wait_until_ready()
            solo = await _solo(client)
            port = first.address.rpartition(":")[2]
            successors: list[ServingProcess] = []

            async def replace() -> None:
                await asyncio.to_thread(first.kill)
                successors.append(worker(model, "--port", port))

            try:
                assert await _disturbed(client, replace) == solo
            finally:
                for successor in successors:
                    successor.__exit__(None, None, None)


async def test_wrk_06_a_killed_control_plane_costs_no_token(model: Path) -> None:
    with worker(model, "--lease-seconds", "2") as one_worker, control_plane(model, [one_worker]) as first:
        port = first.address.rpartition(":")[2]
        async with AsyncClient(first.address) as client:
            first.wait_until_ready()
            solo = await _solo(client)
            successors: list[ServingProcess] = []

            async def replace() -> None:
                await asyncio.to_thread(first.kill)
                successors.append(control_plane(model, [one_worker], "--port", port))

            try:
                assert await _disturbed(client, replace) == solo
            finally:
                for successor in successors:
                    successor.__exit__(None, None, None)


async def test_wrk_06_the_next_control_plane_of_a_list_takes_worker_and_streams_over(model: Path) -> None:
    with worker(model, "--lease-seconds", "2") as one_worker, control_plane(model, [one_worker]) as first:
        first.wait_until_ready()
        with control_plane(model, [one_worker]) as second:
            async with AsyncClient([first.address, second.address]) as client:
                solo = await _solo(client)

                async def kill() -> None:
                    await asyncio.to_thread(first.kill)

                assert await _disturbed(client, kill) == solo
                assert await _solo(client) == solo


async def test_wrk_02_a_frozen_worker_is_left_behind(model: Path) -> None:
    with worker(model, "--lease-seconds", "2") as first, worker(model) as second, control_plane(model, [first, second]) as control:
        async with AsyncClient(control.address) as client:
            control.wait_until_ready()
            solo = await _solo(client)

            async def freeze() -> None:
                first.send_signal(signal.SIGSTOP)

            assert await _disturbed(client, freeze) == solo
            first.send_signal(signal.SIGCONT)
            assert await _solo(client) == solo


async def test_without_a_worker_requests_end_after_the_grace(model: Path) -> None:
    with control_plane(model, ["127.0.0.1:1"], "--worker-grace-seconds", "0.5") as control:
        async with AsyncClient(control.address, connect_seconds=0.0, resume_seconds=0.0) as client:
            with pytest.raises(ServingError, match="worker") as failure:
                await client.generate("Hello", max_tokens=4)
    assert failure.value.code.name == "UNAVAILABLE"


async def test_a_drained_worker_hands_its_streams_on_and_exits(model: Path) -> None:
    with worker(model) as leaving, worker(model) as staying, control_plane(model, [leaving, staying]) as control:
        async with AsyncClient(control.address) as client:
            control.wait_until_ready()
            solo = await _solo(client)

            async def drain() -> None:
                leaving.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(leaving.wait) == 0

            assert await _disturbed(client, drain) == solo
            assert await _solo(client) == solo


async def test_the_last_worker_finishes_its_streams_before_it_exits(model: Path) -> None:
    with worker(model) as one_worker, control_plane(model, [one_worker]) as control:
        async with AsyncClient(control.address) as client:
            control.wait_until_ready()
            solo = await _solo(client)

            async def drain() -> None:
                one_worker.send_signal(signal.SIGTERM)

            assert await _disturbed(client, drain) == solo
        assert await asyncio.to_thread(one_worker.wait) == 0


async def test_wrk_09_an_announced_worker_is_started_from_a_process_that_uses_grpc(model: Path) -> None:
    with worker(model) as first, control_plane(model, [first]) as control:
        async with AsyncClient(control.address) as client:
            control.wait_until_ready()
            solo = await _solo(client)
            announce = str(control.start_event["announce"])
            started: list[ServingProcess] = []

            async def start() -> None:
                started.append(worker(model, "--announce", announce))
                await asyncio.to_thread(lambda: started[0].address)

            try:
                assert await _disturbed(client, start) == solo
                async with asyncio.timeout(10):
                    while (await client.server()).num_workers < 2:
                        await asyncio.sleep(0.05)
            finally:
                for process in started:
                    process.__exit__(None, None, None)


async def test_a_drain_lets_running_streams_end(model: Path) -> None:
    with worker(model) as one_worker, control_plane(model, [one_worker]) as control:
        async with AsyncClient(control.address, resume_seconds=0.0) as client:
            control.wait_until_ready()
            solo = await _solo(client)

            async def drain() -> None:
                control.send_signal(signal.SIGTERM)

            assert await _disturbed(client, drain) == solo
        assert await asyncio.to_thread(control.wait) == 0
