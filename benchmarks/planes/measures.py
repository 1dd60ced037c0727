"""What is measured of control planes, each with processes of its own; the goals are those of the project."""

import asyncio
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

import numpy as np

from benchmarks.planes.client import burst, holding, probe_started, read_streams, recording
from benchmarks.planes.load import StreamLoad, run_load, under_load
from benchmarks.planes.processes import BareServer, Planes, Setup, Usage
from benchmarks.planes.usage import available_bytes
from benchmarks.report import Row, row_against_limit

_CHANNELS = 8  # where connections have to meet several front ends
_MAX_MESSAGE_RATIO = 1.3
_MAX_RECORDING_RATIO = 1.03
_SETTLE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Scale:
    """How long and how much; `quick` is for a first look."""

    model: Path
    num_frontends: int
    rounds: int
    max_tokens: int  # of each stream of a load
    watch_seconds: float
    num_probes: int
    num_calls: int
    num_held: int

    def setup(self, **changed: object) -> Setup:
        """A control plane of the number of front ends that is asked for."""
        return replace(Setup(self.model, self.num_frontends), **changed)  # type: ignore[arg-type]


def measure_tokens(scale: Scale) -> Iterator[Row]:
    """256 streams on one worker of 5 ms steps: CPU time per token while clients give way, and tokens per second when they do not."""
    with Planes(scale.setup()) as planes:
        aside, loaded = (run_load(planes, StreamLoad(256, scale.max_tokens, is_nice=is_nice)) for is_nice in (True, False))
    usage, per_token = aside.usage, aside.microseconds_per_token
    scheduler, frontends, others = (per_token(each) for each in (usage.scheduler, usage.frontends, usage.workers + aside.client_seconds))
    yield row_against_limit("scheduler, CPU per token, 256 streams", scheduler, 4, "us")
    yield row_against_limit("front end, CPU per token, 256 streams", frontends, 12, "us")
    yield row_against_limit("tokens per second, client on the same cores", loaded.tokens_per_second, 30_000, "tokens/s", at_most=False)
    # The scheduler has one core; all that runs has eight.
    eight_cores = min(1e6 / scheduler, 8e6 / (scheduler + frontends + others))
    work = f"tokens per second of eight cores, by CPU times, with {others:.0f} us of client and worker"
    yield row_against_limit(work, eight_cores, 100_000, "tokens/s", at_most=False)


def measure_devices(scale: Scale) -> Iterator[Row]:
    """How long devices wait while they are loaded: one of 256 lanes, and each of eight of 64."""
    for num_workers, lanes, limits_ms in ((1, 256, {0.5: 0.2, 0.95: 1.0}), (8, 64, {0.95: 2.0})):
        load = StreamLoad(num_workers * lanes, 1900, num_turns=20, is_nice=True)
        with Planes(scale.setup(num_workers=num_workers, lanes=lanes)) as planes, under_load(planes, load):
            gaps = _watch(planes, scale.watch_seconds).idle_gaps
        for share, limit in limits_ms.items():
            work = f"device idle between 5 ms steps, {num_workers} worker{'s' * (num_workers > 1)} of {lanes} lanes, p{share * 100:.0f}"
            yield row_against_limit(work, gaps.quantile(share) * 1e3, limit, "ms")


def measure_recordings(scale: Scale) -> Iterator[Row]:
    """What a recording of steps adds to the CPU time of a token, while it runs: with and without one, in turns."""
    plain, recorded = [], []
    load = StreamLoad(256, 8000, num_turns=2, is_nice=True)  # between the turns there are hardly any tokens
    with Planes(scale.setup(max_model_len=8192)) as planes, under_load(planes, load):
        for _ in range(3 * scale.rounds):
            plain.append(_watch(planes, scale.watch_seconds / 4))
            with recording(planes.admin_target):
                recorded.append(_watch(planes, scale.watch_seconds / 4))
    for name, seconds_of in (("scheduler", attrgetter("scheduler")), ("front end", attrgetter("frontends"))):
        rounds = [
            [seconds_of(usage) * 1e6 / max(1.0, usage.num_tokens) for usage in usages] for usages in zip(recorded, plain, strict=True)
        ]
        figures = " / ".join(f"{statistics.median(each):.2f}" for each in zip(*rounds, strict=True))
        ratio = statistics.median(on / off for on, off in rounds)
        yield Row(f"{name}, CPU per token, steps recorded", "none recorded", f"{figures} us", ratio, _MAX_RECORDING_RATIO, at_most=True)


def _watch(planes: Planes, seconds: float) -> Usage:
    before = planes.usage()
    time.sleep(seconds)
    return planes.usage() - before


def measure_messages(scale: Scale) -> Iterator[Row]:
    """CPU time of a message while there is time for each token by itself, against a server that does nothing else."""
    step_ms, num_streams, max_tokens = 20.0, 64, scale.max_tokens // 4
    own, bare, tokens_per_message = [], [], []
    with Planes(scale.setup(lanes=num_streams, step_ms=step_ms)) as planes, BareServer(step_ms) as server:
        for target in (planes.target, server.target):
            asyncio.run(read_streams(target, num_streams, 8))
        for _ in range(scale.rounds):
            before = planes.usage()
            num_messages = asyncio.run(read_streams(planes.target, num_streams, max_tokens))
            own.append((planes.usage() - before).frontends * 1e6 / num_messages)
            tokens_per_message.append(num_streams * max_tokens / (num_messages - 2 * num_streams))  # without Started and Finished
            bare_before = server.cpu_seconds()
            num_messages = asyncio.run(read_streams(server.target, num_streams, max_tokens))
            bare.append((server.cpu_seconds() - bare_before) * 1e6 / num_messages)
    ratio = statistics.median(mine / other for mine, other in zip(own, bare, strict=True))
    figures = f"{statistics.median(own):.0f} / {statistics.median(bare):.0f} us"
    gathered = f"{statistics.median(tokens_per_message):.2f} tokens each"
    yield Row(f"front end, CPU per message, {gathered}", "bare grpc.aio server", figures, ratio, _MAX_MESSAGE_RATIO, at_most=True)


def measure_calls(scale: Scale) -> Iterator[Row]:
    """How soon calls begin while 400 streams run, one at a time and all at once."""
    with (
        Planes(scale.setup(lanes=512, max_model_len=8192, max_step_tokens=4096)) as planes,
        under_load(planes, StreamLoad(400, 4000, num_turns=20, is_nice=True)),
    ):
        started = asyncio.run(probe_started(planes.target, scale.num_probes, 0.02))
        per_second, num_failed = asyncio.run(burst(planes.target, scale.num_calls, _CHANNELS))
    with BareServer(5.0) as bare:
        bare_per_second, _ = asyncio.run(burst(bare.target, scale.num_calls, _CHANNELS))
    p50, p99 = (float(seconds) * 1e3 for seconds in np.percentile(started, (50, 99)))
    yield row_against_limit("time to Started under 400 streams, p50", p50, 100, "ms")
    yield row_against_limit("time to Started under 400 streams, p99", p99, 100, "ms")
    work = f"calls begun per second beside them, {scale.num_calls} at once (by an idle bare server: {bare_per_second:.0f})"
    yield row_against_limit(work, per_second, 1500, "calls/s", at_most=False)
    yield Row("calls that failed of them", "none", f"{num_failed} calls", num_failed / scale.num_calls, 0.0, at_most=True)


def measure_held(scale: Scale) -> Iterator[Row]:
    """Streams that front ends hold, one token every two seconds, and the memory of each."""
    yield from _held_rows(scale, scale.num_held, min(scale.num_frontends, 1))
    if scale.num_frontends and available_bytes() > 8 << 30:
        yield from _held_rows(scale, 4 * scale.num_held, 4)


def _held_rows(scale: Scale, count: int, num_frontends: int) -> Iterator[Row]:
    setup = Setup(scale.model, num_frontends, lanes=count, step_ms=2000.0, max_model_len=256, max_step_tokens=2 * count)

    async def hold(planes: Planes) -> tuple[int, int]:
        few = count // 5  # they fill what start-up has left free
        async with holding(planes.target, few, _CHANNELS, max_tokens=200) as first:
            before = planes.frontend_bytes()
            async with holding(planes.target, count - few, _CHANNELS, max_tokens=200) as rest:
                await asyncio.sleep(_SETTLE_SECONDS)
                return sum(not call.done() for call in first + rest), (planes.frontend_bytes() - before) // (count - few)

    with Planes(setup) as planes:
        num_held, num_bytes = asyncio.run(hold(planes))
    name = f"{max(num_frontends, 1)} front end{'s' * (num_frontends > 1)}"
    yield row_against_limit(f"streams held by {name}", num_held, count, "streams", at_most=False)
    yield row_against_limit(f"memory of each stream, {name}", num_bytes / 1000, 60, "KB")


def measure_idle(scale: Scale) -> Iterator[Row]:
    """What front ends that are apart add to the time to the first token of an idle server."""
    if not scale.num_frontends:
        return
    with Planes(scale.setup(step_ms=0.0)) as apart, Planes(scale.setup(step_ms=0.0, num_frontends=0)) as together:
        rounds = [[_idle_ms(planes, scale.num_probes) for planes in (apart, together)] for _ in range(scale.rounds + 1)][1:]
    more = statistics.median(first - second for first, second in rounds)
    figures = " / ".join(f"{statistics.median(each):.2f}" for each in zip(*rounds, strict=True))
    yield Row("idle TTFT, front end apart", "one process + 0.5 ms", f"{figures} ms", more / 0.5, 1.0, at_most=True)


def _idle_ms(planes: Planes, count: int) -> float:
    return statistics.median(asyncio.run(probe_started(planes.target, count, 0.005))) * 1e3


#: By the names that --only takes.
MEASURES = {
    "tokens": measure_tokens,
    "devices": measure_devices,
    "messages": measure_messages,
    "recordings": measure_recordings,
    "calls": measure_calls,
    "held": measure_held,
    "idle": measure_idle,
}
