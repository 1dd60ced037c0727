"""One recording of a control plane of several processes and of its worker, while there is load at both of its ends."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from harness.processes import ServingProcess, control_plane
from harness.trace_rules import CheckedTrace, Event

from clients import AsyncClient

pytestmark = pytest.mark.slow

#: Each stream has a connection of its own, which the kernel gives to one of two front ends: all of them to one in 1 of 32,768 runs.
_NUM_STREAMS = 16


@pytest.fixture(scope="module")
def control(model: Path, device: ServingProcess) -> Iterator[ServingProcess]:
    with control_plane(model, [device], "--frontends", "2", "--admin-port", "0") as control:
        yield control.wait_until_ready()


@asynccontextmanager
async def load(control: ServingProcess) -> AsyncIterator[list[str]]:
    """Requests, one after the other over each of some connections, from before the block to after it; yields ids of those that ended."""
    ended: list[str] = []

    async def ask(stream: int, client: AsyncClient) -> None:
        index = 0
        while True:
            request_id = f"{stream}-{index}"
            await client.generate("Story", seed=stream, max_tokens=24, ignore_eos=True, request_id=request_id)
            ended.append(request_id)
            index += 1

    clients = [AsyncClient(control.address, connect_seconds=20) for _ in range(_NUM_STREAMS)]
    asking = [asyncio.create_task(ask(stream, client)) for stream, client in enumerate(clients)]
    try:
        await until_more(ended)
        yield ended
        await until_more(ended)
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        for client in clients:
            await client.close()


async def until_more(ended: list[str]) -> None:
    """Wait until each stream, by and large, has ended another request, which also ran in the meantime."""
    enough = len(ended) + 2 * _NUM_STREAMS
    async with asyncio.timeout(60):
        while len(ended) < enough:
            await asyncio.sleep(0.01)


async def profile(control: ServingProcess, *words: str) -> str:
    """What the command says, on either stream."""
    command = [sys.executable, "-m", "clients", "profile", *words, "--target", control.start_event["admin"]]
    running = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT)
    told, _ = await running.communicate()
    assert running.returncode == 0, told.decode()
    return told.decode()


@pytest.fixture(scope="module")
def ended_meanwhile() -> set[str]:
    """Ids of requests that began and ended while it was recorded."""
    return set()


@pytest.fixture(scope="module")
def trace(
    control: ServingProcess, device: ServingProcess, tmp_path_factory: pytest.TempPathFactory, ended_meanwhile: set[str]
) -> CheckedTrace:
    path = tmp_path_factory.mktemp("trace") / "trace.json.gz"

    async def record() -> None:
        async with load(control) as ended:
            started = await profile(control, "start")
            assert all(name in started for name in ("scheduler", "front end 0-", "front end 1-", f"worker {device.address}"))
            before = {stream: sum(name.startswith(f"{stream}-") for name in ended) for stream in range(_NUM_STREAMS)}
            await until_more(ended)
            ended_meanwhile.update(name for name in ended if int(name.split("-")[1]) > before[int(name.split("-")[0])])
            assert "note:" not in await profile(control, "stop", "--output", str(path))

    asyncio.run(record())
    return CheckedTrace.read(path)


def on_track(trace: CheckedTrace, process: str, track: str) -> list[Event]:
    """The slices of a thread, or of several that share a track."""
    return [each for each in trace.named(process, "") if trace.threads[each["pid"], each["tid"]].startswith(track)]


def test_every_process_is_in_it_with_what_it_did(trace: CheckedTrace, ended_meanwhile: set[str]) -> None:
    assert sorted(name.split(" ")[0] for name in trace.processes.values()) == ["front", "front", "scheduler", "worker"]
    calls = trace.named("front end", "call")
    assert {each["pid"] for each in calls} == {pid for pid, name in trace.processes.items() if name.startswith("front end")}
    assert len(ended_meanwhile) >= _NUM_STREAMS
    for spans in (calls, trace.named("scheduler", "request")):
        told = {each["args"]["request_id"]: each["args"]["outcome"] for each in spans}
        assert len(told) == len(spans), "each request once"
        assert all(told[name] in ("ended", "finished") for name in ended_meanwhile)
        assert "goes on" in told.values()


def test_it_has_exactly_the_steps_that_were_sent_between_its_ends(trace: CheckedTrace) -> None:
    sent = [each["args"]["step"] for each in trace.named("scheduler", "send")]
    executed = [each["args"]["step"] for each in on_track(trace, "worker", "device")]
    assert sent == executed == list(range(sent[0], sent[0] + len(sent)))
    results = [each["args"]["step"] for each in trace.named("scheduler", "result")]
    assert results == list(range(results[0], results[0] + len(results)))
    assert abs(results[0] - sent[0]) <= 2 and abs(results[-1] - sent[-1]) <= 2  # those in flight


def test_its_processes_are_on_one_timeline(trace: CheckedTrace) -> None:
    """What happens in a process lies inside what another one saw of it."""
    on_the_way = {each["args"]["step"]: each for each in on_track(trace, "scheduler", "link")}
    executed = {each["args"]["step"]: each for each in on_track(trace, "worker", "device")}
    assert len(on_the_way) >= len(executed) - 2
    assert all(lies_in(executed[step], link) for step, link in on_the_way.items())
    calls = {each["args"]["request_id"]: each for each in trace.named("front end", "call") if each["args"]["outcome"] == "ended"}
    requests = {each["args"]["request_id"]: each for each in trace.named("scheduler", "request")}
    both = calls.keys() & requests.keys()
    assert len(both) >= _NUM_STREAMS and all(lies_in(requests[name], calls[name]) for name in both)


def lies_in(inner: Event, outer: Event) -> bool:
    """Whether one slice lies in another, to the microsecond."""
    return bool(outer["ts"] - 1 <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 1)


def test_flows_go_from_request_to_step_to_token_through_all_processes(trace: CheckedTrace, ended_meanwhile: set[str]) -> None:
    at = {(each["pid"], each["tid"], each["ts"]): each for each in sorted(trace.slices, key=lambda each: each["dur"], reverse=True)}
    ways = [[at[point["pid"], point["tid"], point["ts"]] for point in flow] for flow in trace.flows.values()]
    shown = [[(trace.processes[each["pid"]].split(" ")[0], each["name"].split(" ")[0]) for each in way] for way in ways]
    whole_request = [("front", "admit"), ("scheduler", "queue"), ("scheduler", "send"), ("scheduler", "decode")]
    whole_step = [("scheduler", "send"), ("worker", "step"), ("scheduler", "result"), ("scheduler", "publish")]
    assert shown.count(whole_request) >= len(ended_meanwhile)
    assert shown.count(whole_step) >= len(trace.named("scheduler", "send")) - 2
