import asyncio
import time

import pytest
from harness.probing import status_and_line
from prometheus_client import CollectorRegistry

from pypto_serving.process.metrics_endpoint import serve_metrics
from pypto_serving.process.probes import Probes, Pulse

_DAY = 86400.0


class Loop:
    """Was seen to turn so many seconds ago; each look takes the next number, the last one for ever."""

    def __init__(self, *seconds: float) -> None:
        self.seconds = list(seconds)

    def __call__(self) -> float:
        return self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]


def probes(*loops: Loop) -> Probes:
    return Probes({f"loop {index}": loop for index, loop in enumerate(loops)}, second_look_seconds=0.0)


def test_a_process_that_starts_lives_and_is_not_ready() -> None:
    found = Probes({"loop": Loop(_DAY)}, "loading the model")
    assert (found.startup_trouble(), found.liveness_trouble(), found.readiness_trouble()) == ("loading the model", "", "loading the model")
    found = probes(Loop(0.1))
    found.set_started(str)
    assert (found.startup_trouble(), found.liveness_trouble(), found.readiness_trouble()) == ("", "", "")


def test_a_stuck_loop_is_neither_alive_nor_ready() -> None:
    found = probes(Loop(0.1), Loop(7.0))
    found.set_started(str)
    assert found.liveness_trouble() == found.readiness_trouble() == "loop 1 has not turned for 7.0 s"
    assert found.startup_trouble() == ""


def test_a_loop_that_turns_again_was_stopped_with_its_process() -> None:
    found = probes(Loop(_DAY, 0.1))
    found.set_started(str)
    assert found.liveness_trouble() == ""


def test_what_is_not_ready_lives_and_what_does_not_live_is_not_ready() -> None:
    found = probes(Loop(0.1))
    found.set_started(lambda: "no worker is in session")
    assert (found.liveness_trouble(), found.readiness_trouble()) == ("", "no worker is in session")
    found.set_started(str, lambda: "the device makes no progress")
    assert found.liveness_trouble() == found.readiness_trouble() == "the device makes no progress"


async def test_a_pulse_stops_with_its_loop() -> None:
    pulse = Pulse()
    beating = asyncio.create_task(pulse.beat())
    await asyncio.sleep(0)
    time.sleep(0.2)
    assert pulse.seconds_since_turn() >= 0.2
    while pulse.seconds_since_turn() >= 0.2:
        await asyncio.sleep(0.01)
    beating.cancel()


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/startupz", (200, "ok")),
        ("/livez", (200, "ok")),
        ("/readyz", (503, "draining")),
        ("/", (404, "this port serves /metrics, /startupz, /livez, /readyz")),
        ("/metrics/more", (404, "this port serves /metrics, /startupz, /livez, /readyz")),
    ],
)
def test_probes_are_asked_beside_the_metrics_and_nothing_else_is_there(path: str, answer: tuple[int, str]) -> None:
    found = probes(Loop(0.1))
    found.set_started(lambda: "draining")
    endpoint = serve_metrics(CollectorRegistry(), "127.0.0.1", 0, found)
    assert status_and_line(f"http://127.0.0.1:{endpoint.port}{path}") == answer
    endpoint.close()
