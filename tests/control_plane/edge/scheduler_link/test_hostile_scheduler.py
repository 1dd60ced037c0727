"""A front end against a scheduler that sends what it must not: it dials again, and no request ends twice."""

import asyncio
import itertools
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from fakes.control_plane.front_end_calls import make_request
from fakes.control_plane.session_engine import expected_tokens
from fakes.network.frame_mutations import mutate_one
from harness.linked_front_end import LinkedFrontEnd
from harness.served_scheduler import ServedScheduler
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.core.sampling import SamplingParams
from pypto_serving.scheduler.v1 import scheduler_pb2 as pb

pytestmark = pytest.mark.slow

_UNKNOWN_KIND = b"\xfa\x01\x00"
_SAMPLING = SamplingParams(logprobs=True, top_logprobs=1, prompt_logprobs=1)


@dataclass
class _Plan:
    """What becomes of the next frames, by their number. Randomness comes from a seed, as nobody knows when a frame is sent."""

    changes: dict[int, str]
    random: Random
    is_over: bool = False
    sent: itertools.count = field(default_factory=itertools.count)

    def __call__(self, frame: pb.ConnectResponse) -> list[pb.ConnectResponse | bytes]:
        change = None if self.is_over else self.changes.get(next(self.sent))
        if change == "drop":
            return []
        if change == "repeat":
            return [frame, frame]
        if change == "garbage":
            return [self.random.randbytes(self.random.randint(1, 60)), frame]
        if change == "unknown":
            return [_UNKNOWN_KIND, frame]
        if change == "change":
            frame = pb.ConnectResponse.FromString(frame.SerializeToString())
            mutate_one(self.random, frame)
        return [frame]


async def _run(seed: int, changes: dict[int, str]) -> None:
    with TemporaryDirectory() as directory:
        scheduler = ServedScheduler(Path(directory) / "s", max_silence_seconds=60.0)
        plan = scheduler.change = _Plan(changes, Random(seed))
        front_end = LinkedFrontEnd([scheduler.address], max_losses=10**9, max_silence_seconds=0.2, handshake_seconds=0.2)
        await scheduler.start()
        try:
            for index in range(4):
                front_end.submit(make_request(f"r{index}", 2, sampling=_SAMPLING))
                for _ in range(6):
                    scheduler.engine.step()
                    await asyncio.sleep(0.002)
            plan.is_over = True
            await scheduler.kill()  # what was dropped is sent again
            await scheduler.start()
            request = make_request("last", 2)
            last = front_end.submit(request)
            while not all(call.has_ended for call in front_end.calls.calls.values()):
                scheduler.engine.step()
                await asyncio.sleep(0.001)
            assert list(last.tokens.values()) == [expected_tokens(request, choice) for choice in (0, 1)]
        finally:
            await front_end.close()
            await scheduler.kill()


_CHANGES = st.sampled_from(["drop", "repeat", "garbage", "unknown", "change", "change", "change"])


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.dictionaries(st.integers(0, 30), _CHANGES, max_size=6))
def test_every_request_ends_once_when_the_scheduler_behaves(seed, changes):
    asyncio.run(asyncio.wait_for(_run(seed, changes), 60))
