"""Engine and link against a worker that sends what it must not: every request still gets its tokens once it behaves."""

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

import pytest
from fakes.network.frame_mutations import mutate_one
from fakes.worker.fake_worker import FakeWorker, FakeWorkerOptions
from fakes.worker.strict_worker import VOCAB_SIZE, next_token, solo
from harness.linked_engine import LinkedEngine
from harness.waiting import until
from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.sampling import SamplingParams
from pypto_serving.worker.v1 import worker_pb2

pytestmark = pytest.mark.slow

_OPTIONS = FakeWorkerOptions(vocab_size=VOCAB_SIZE, max_step_tokens=16, lease_ms=400, beat_seconds=0.02, next_token=next_token)
_SAMPLING = SamplingParams(logprobs=True, top_logprobs=2, prompt_logprobs=1)
#: A worker that drains is believed, and one whose lanes fail too: both cost requests, rightly. One that tells another numerics id is
#: believed as well: what has begun waits for a worker with the earlier one.
_SPARED = frozenset({"draining", "lane_errors", "numerics_id"})


@dataclass
class _Plan:
    """What becomes of the next frames, by their number. Randomness comes from a seed, as nobody knows when a frame is sent."""

    changes: dict[int, str]
    random: Random
    sent: itertools.count = field(default_factory=itertools.count)

    def __call__(self, frame: worker_pb2.ExecuteResponse) -> list[worker_pb2.ExecuteResponse | bytes]:
        change = self.changes.get(next(self.sent))
        if change == "drop":
            return []
        if change == "repeat":
            return [frame, frame]
        if change == "garbage":
            return [self.random.randbytes(self.random.randint(0, 60)), frame]
        if change == "change":
            mutate_one(self.random, frame, _SPARED)
        return [frame]


class _Rig:
    def __init__(self) -> None:
        self.worker = FakeWorker(_OPTIONS)
        self.engine: LinkedEngine
        self._names = map(str, itertools.count())

    async def start(self) -> None:
        await self.worker.start()
        self.engine = LinkedEngine(self.worker.address)
        await self.engine.__aenter__()
        await until(lambda: self.engine.num_workers == 1)  # it fixes the longest request

    async def stop(self) -> None:
        await self.engine.__aexit__(None, None, None)
        await self.worker.stop()

    async def attack(self, plan: _Plan, restarts: bool) -> None:
        """Serve three requests while the plan is carried out, and then one more."""
        self.worker.tamper = plan
        prompts = {next(self._names): [number + 1] * (9 * number + 2) for number in range(3)}
        if restarts:
            await self.worker.kill()
            await self.worker.start()
        for name, prompt in prompts.items():
            self.engine.submit(name, prompt, max_tokens=6, sampling=_SAMPLING)
        await asyncio.sleep(0.05)
        self.worker.tamper = lambda frame: (frame,)
        await self._assert_served(prompts)

    async def _assert_served(self, prompts: dict[str, list[int]]) -> None:
        last = next(self._names)
        self.engine.submit(last, [5, 6], max_tokens=4)
        assert await self.engine.tokens(last) == solo([5, 6], 4)
        for name, prompt in prompts.items():
            assert await self.engine.tokens(name) == solo(prompt, 6)
        await self.engine.assert_comes_to_rest()


@contextmanager
def _rig() -> Iterator[tuple[_Rig, asyncio.Runner]]:
    with asyncio.Runner() as runner:
        rig = _Rig()
        runner.run(rig.start())
        try:
            yield rig, runner
        finally:
            runner.run(rig.stop())


def test_changed_frames_do_no_harm() -> None:
    with _rig() as (rig, runner):
        changes = st.dictionaries(
            st.integers(0, 12), st.sampled_from(["change", "change", "change", "drop", "repeat", "garbage"]), min_size=1, max_size=3
        )

        @given(changes, st.integers(0, 2**32), st.booleans())
        def attack(changes: dict[int, str], seed: int, restarts: bool) -> None:
            runner.run(rig.attack(_Plan(changes, Random(seed)), restarts))

        attack()
