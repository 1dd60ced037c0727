"""A control plane of several processes under a supervisor, some of which are killed."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from urllib.request import urlopen

import grpc
import grpc.aio
import pytest
from harness.processes import ServingProcess, control_plane
from harness.raw_streams import RawStreams
from prometheus_client.parser import text_string_to_metric_families

from clients import AsyncClient
from clients.results import Delta
from pypto_serving.admin.v1 import admin_pb2, admin_pb2_grpc
from pypto_serving.log.v1 import log_pb2

pytestmark = pytest.mark.slow

_PARTS = {"scheduler", "0", "1"}


@pytest.fixture
def control(model: Path, device: ServingProcess) -> Iterator[ServingProcess]:
    with control_plane(model, [device], "--frontends", "2", "--admin-port", "0", "--takeover") as control:
        control.wait_until_ready()
        yield control


def kill(control: ServingProcess, part: str) -> None:
    """Kill a part, and wait until another process has taken its place."""
    pid = control.parts[part]
    os.kill(pid, signal.SIGKILL)
    while control.parts.get(part, pid) == pid:
        time.sleep(0.01)


def _flags(pid: int, flag: str) -> list[str]:
    """The values that a process was given for a flag."""
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return [value for word, value in pairwise(words) if word == flag]


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


async def test_a_scheduler_that_is_killed_ends_no_stream_of_whatever_client(control: ServingProcess) -> None:
    streams = RawStreams(control.address, 8)
    undisturbed = await streams.run()
    assert await streams.disturbed(*[lambda: kill(control, "scheduler")] * 2) == undisturbed
    assert set(control.parts) == _PARTS


async def test_streams_of_a_front_end_that_is_killed_go_on_at_another_one(control: ServingProcess) -> None:
    request = {"prompt": "Story", "max_tokens": 300, "temperature": 0.9, "seed": 3, "ignore_eos": True}
    async with AsyncClient(control.address) as client:
        undisturbed = (await client.generate(**request)).token_ids
        received: list[int] = []
        killed = iter(("0", "1"))
        async for event in client.stream(**request):
            if isinstance(event, Delta):
                received += event.token_ids
            if len(received) > 20 and (part := next(killed, None)):
                os.kill(control.parts[part], signal.SIGKILL)
    assert tuple(received) == undisturbed


async def test_a_scrape_shows_each_series_once_and_every_process(control: ServingProcess) -> None:
    await RawStreams(control.address, 4, max_tokens=5).run()
    for _ in range(100):
        text = urlopen(control.metrics_url).read().decode()
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        calls = [sample for sample in samples if sample.name == "pypto_serving_calls_total" and sample.labels["code"] == "ok"]
        if sum(sample.value for sample in calls if sample.labels["method"] == "GenerateStream") == 4:
            break
        time.sleep(0.1)
    else:
        pytest.fail(f"calls are not counted: {calls}")
    assert max(Counter((sample.name, *sorted(sample.labels.items())) for sample in samples).values()) == 1
    assert max(Counter(line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")).values()) == 1
    processes = {sample.labels.get("frontend") for sample in samples if sample.name == "process_resident_memory_bytes"}
    assert processes == {None, "0", "1"}
    assert {sample.labels["frontend"] for sample in calls} == {"0", "1"}


async def test_sigterm_lets_streams_end_and_then_the_scheduler(control: ServingProcess) -> None:
    streams = RawStreams(control.address, 4)
    undisturbed = await streams.run()
    parts = control.parts
    assert await streams.disturbed(lambda: control.send_signal(signal.SIGTERM)) == undisturbed
    assert control.wait() == 0
    assert not any(is_alive(pid) for pid in parts.values())


async def test_operators_reach_the_scheduler_and_drain_everything(control: ServingProcess) -> None:
    streams = RawStreams(control.address, 4)
    undisturbed = await streams.run()
    with grpc.insecure_channel(control.start_event["admin"]) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)

        def drain() -> None:
            while (state := stub.GetState(admin_pb2.GetStateRequest(with_sequences=True))).num_calls != 4:
                time.sleep(0.05)
            assert (len(state.workers), len(state.sequences), state.draining) == (1, 4, False)
            assert stub.Drain(admin_pb2.DrainRequest()).num_running == 4

        assert await streams.disturbed(drain) == undisturbed
    assert control.wait() == 0


def test_every_process_is_told_from_which_level_on_to_log(control: ServingProcess) -> None:
    request = admin_pb2.SetLogLevelRequest(change=log_pb2.LevelChange(level=log_pb2.LEVEL_DEBUG, milliseconds=200))
    with grpc.insecure_channel(control.start_event["admin"]) as channel:
        told = admin_pb2_grpc.AdminServiceStub(channel).SetLogLevel(request).processes
    assert Counter(name.partition(" ")[0] for name in told) == {"scheduler": 1, "front": 2, "worker": 1}

    def changes() -> Counter[tuple[str, str]]:
        return Counter((event["part"].partition("-")[0], event["to_level"]) for event in control.events if event["message"] == "log level")

    while len(list(changes().elements())) < 6:
        time.sleep(0.05)
    assert changes() == {(part, level): count for part, count in {"scheduler": 1, "frontend": 2}.items() for level in ("debug", "info")}


def test_nobody_is_left_when_the_supervisor_is_killed(control: ServingProcess) -> None:
    parts = control.parts
    assert set(parts) == _PARTS
    [directory] = {Path(socket).parent for pid in parts.values() for socket in _flags(pid, "--socket")}
    assert directory.is_dir()
    control.kill()
    while any(is_alive(pid) for pid in parts.values()):
        time.sleep(0.02)
    assert not directory.exists()


def test_a_part_that_no_supervisor_started_says_so(model: Path) -> None:
    arguments = ["--model", str(model), "--frontends", "1", "--part", "0", "--socket", "/nowhere/scheduler"]
    ended = subprocess.run([sys.executable, "-m", "control_plane", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1)
    assert "standard input has to be a pipe" in ended.stderr


def test_what_is_wrong_is_said_once(tmp_path: Path, model: Path) -> None:
    with control_plane(tmp_path, [], "--frontends", "2") as control:
        assert control.wait() == 2
    said = [event["message"] for event in control.events if "config.json" in event["message"]]
    assert said == [f"control plane: {tmp_path}/config.json: No such file or directory"]
