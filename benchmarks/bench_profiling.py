"""What recordings cost the control plane and the worker, off and on, in turns within one run.

Run with `python -m benchmarks.bench_profiling`. A pass of the engine at 256 running decodes takes a result in, schedules, and writes the
next step's frame; it is measured without a recording, with one of requests, and with one of steps, some passes each, again and again. What
it costs when nothing is recorded is the price of the calls that tell nobody, against a pass. At the worker a step is told in one call.
Times are those of the thread, so that other work on the machine does not count.
"""

import argparse
import gc
import statistics
import time
from collections.abc import Callable

import numpy as np

from benchmarks.bench_scheduler import NUM_PAGES, FramedWorker, Load
from control_plane.edge.profiling.engine_recorder import EngineRecorder, RequestRecorder
from control_plane.engine.tracer import Tracers
from pypto_serving.recording.recorder import Level, RecordingLimits, SpanRecorder
from worker.step import Step, StepResult
from worker.step_trace import StepTrace, no_operators

#: Passes of a turn, and those of them that are not measured: steps in flight are those of the turn before.
_TURN, _WARM = 6, 3
#: Calls of a pass that takes one result in and sends one step.
_CALLS = 6


def _recorder(level: Level) -> SpanRecorder:
    return SpanRecorder("bench", RecordingLimits(level, 600.0, 1_000_000))


def _micros(function: Callable[[], object], count: int) -> float:
    """Of one call, on average."""
    start = time.thread_time()
    for _ in range(count):
        function()
    return (time.thread_time() - start) * 1e6 / count


def _passes(rounds: int) -> dict[str, list[float]]:
    """Microseconds of passes. Turns are short, so that what else the machine does meets all of them alike."""
    load = Load(0, workers=[FramedWorker(NUM_PAGES)])
    tracers = {
        "nothing": (),
        "requests": (RequestRecorder(_recorder(Level.REQUESTS)),),
        "steps": (EngineRecorder(_recorder(Level.STEPS)),),
    }
    gc.collect()
    gc.freeze()  # as processes of the service do when they have started
    micros: dict[str, list[float]] = {name: [] for name in tracers}
    for _ in range(rounds):
        for name, listening in tracers.items():
            for tracer in listening:
                load.engine.tracers.add(tracer)
            micros[name] += [load.run_engine_pass() for _ in range(_TURN)][_WARM:]
            for tracer in listening:
                load.engine.tracers.remove(tracer)
    return micros


def main() -> None:
    """Print medians, and ratios to a pass without a recording."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300, help=f"of {_TURN} passes each")
    micros = {name: statistics.median(each) for name, each in _passes(parser.parse_args().rounds).items()}
    base = micros["nothing"]
    print(f"pass of the engine, nothing recorded   {base:7.1f} us")
    for name in ("requests", "steps"):
        print(f"pass of the engine, {name + ' recorded':18} {micros[name]:7.1f} us   {100 * (micros[name] / base - 1):+6.2f} %")
    off = _CALLS * _micros(Tracers().scheduled, 1_000_000)
    print(f"calls that tell nobody, of a pass      {off:7.2f} us   {100 * off / base:+6.2f} %")
    step = Step(1, chunk_tokens=np.zeros(4, np.uint32), chunk_lanes=np.zeros(4, np.uint32))
    lanes = np.zeros(256, np.uint32)
    result = StepResult(1, lanes, np.zeros(256, np.int64), lanes, digest=0)
    trace = StepTrace(_recorder(Level.STEPS), "incarnation", no_operators)
    print(f"a step of the worker, recorded         {_micros(lambda: trace.executed(step, result, 2000, 1000), 10_000):7.2f} us")


if __name__ == "__main__":
    main()
