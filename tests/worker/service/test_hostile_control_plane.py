"""A worker with a real model against control planes that send what they must not: it refuses, and serves the next one as ever."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import grpc
import grpc.aio
import pytest
from fakes.control_plane.hand_control_plane import HandControlPlane, wire_admission
from fakes.network.frame_mutations import mutate_one, mutate_order
from harness.checkpoints import TinyCheckpoint
from harness.served_worker import ServedWorker
from hypothesis import given
from hypothesis import strategies as st

from pypto_serving.wire.columns import pack_floats, pack_ids, unpack_ids
from pypto_serving.worker.v1 import worker_pb2 as pb

pytestmark = pytest.mark.slow

_EXECUTE = "/pypto_serving.worker.v1.WorkerService/Execute"
_VOCAB_BYTES = 1024 // 8
_EVERYTHING = pb.LaneSampling(
    temperature=0.8,
    top_p=0.9,
    top_k=40,
    min_p=0.01,
    repetition_penalty=1.1,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    seed=7,
    bias_token_ids=pack_ids([3, 5]),
    bias_values=pack_floats([1.0, -1.0]),
    logprobs=True,
    top_logprobs=3,
    prompt_logprobs=2,
)


def _tables(*tables: Sequence[int]) -> list[pb.PageTable]:
    return [pb.PageTable(page_ids=pack_ids(list(pages))) for pages in tables]


def _legal_steps() -> list[pb.Step]:
    """Three lanes of a model with a full and a sliding cache group, through everything that a step can hold."""
    long = wire_admission(
        0, list(range(20, 32)), [], final_length=32, page_tables=_tables([0, 1, 2], [4, 5, 6]), end_token_ids=pack_ids([2])
    )
    short = wire_admission(1, [9], [], page_tables=_tables([3], [7]), sampling=_EVERYTHING, min_length=3, end_token_ids=pack_ids([2, 4]))
    masked = wire_admission(2, [9, 8, 7], [], page_tables=_tables([8], [9]), constrained=True)
    late = wire_admission(1, list(range(40, 53)), [], generation=2, num_prompt_tokens=10, page_tables=_tables(*[range(20, 24)] * 2))
    late.sampling.CopyFrom(_EVERYTHING)
    grown = {"grown_lanes": pack_ids([0, 0]), "grown_groups": pack_ids([0, 1]), "grown_pages": pack_ids([13, 14])}
    trimmed = {"trimmed_lanes": pack_ids([0]), "trimmed_groups": pack_ids([1]), "trimmed_entries": pack_ids([1])}
    mask = pb.LaneMask(lane=2, allowed=b"\xf0" * _VOCAB_BYTES)
    return [
        pb.Step(admissions=[long, short], chunk_lanes=pack_ids([0]), chunk_tokens=pack_ids([7])),
        pb.Step(admissions=[masked], chunk_lanes=pack_ids([0, 2]), chunk_tokens=pack_ids([5, 3]), masks=[mask]),
        pb.Step(chunk_lanes=pack_ids([2]), chunk_tokens=pack_ids([0]), **grown),
        pb.Step(masks=[mask], **trimmed),
        pb.Step(released_lanes=pack_ids([1, 2]), admissions=[late], chunk_lanes=pack_ids([1]), chunk_tokens=pack_ids([13])),
        pb.Step(),
        pb.Step(released_lanes=pack_ids([0, 1])),
    ]


def _legal_session() -> list[pb.ExecuteRequest]:
    """Steps, a heartbeat, a Reset and steps again; epochs are filled in when they are sent."""
    frames = []
    for step_id, step in enumerate(_legal_steps() + _legal_steps()[:2], 1):
        step.step_id = step_id
        frames.append(pb.ExecuteRequest(step=step))
    frames.insert(7, pb.ExecuteRequest(reset=pb.Reset()))
    frames.insert(3, pb.ExecuteRequest(heartbeat=pb.Heartbeat()))
    return frames


class _Rig:
    """A worker, and what its tokens are when nobody does it harm."""

    def __init__(self, worker: ServedWorker) -> None:
        self.worker = worker
        self.known: list[tuple[list[int], int]] = []

    async def start(self) -> None:
        await self.worker.start()
        self.known = await self.serve()

    async def serve(self) -> list[tuple[list[int], int]]:
        """Tokens and digests of a legal session."""
        plane = HandControlPlane(self.worker.channel)
        await plane.open("legal", takeover=True, model_fingerprint=self.worker.fingerprint)
        results = []
        for frame in _legal_session():
            frame.epoch = plane.epoch
            await plane.send(frame)
            if frame.HasField("step"):
                result = await plane.result()
                assert not result.error
                results.append((unpack_ids(result.token_ids, "").tolist(), result.digest))
            elif frame.HasField("reset"):
                await plane.read("reset_done")
        await plane.half_close()
        assert (await plane.end())[0] is grpc.StatusCode.OK
        return results

    async def attack(self, hello: pb.Hello, frames: Sequence[pb.ExecuteRequest | bytes]) -> list[pb.StepResult]:
        """Send all this as fast as it goes, and read to the end; returns the results that came."""
        call = self.worker.channel.stream_stream(_EXECUTE)()
        results = []
        try:
            await call.write(pb.ExecuteRequest(hello=hello).SerializeToString())
            welcome = pb.ExecuteResponse.FromString(await call.read())
            for frame in frames:
                if not isinstance(frame, bytes):
                    frame.epoch = frame.epoch or welcome.epoch
                    frame = frame.SerializeToString()
                await call.write(frame)
            await call.done_writing()
            while (answer := await call.read()) is not grpc.aio.EOF:
                results += [frame.result for frame in [pb.ExecuteResponse.FromString(answer)] if frame.HasField("result")]
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # it was refused
        call.cancel()
        return results

    def hello(self) -> pb.Hello:
        return pb.Hello(protocol_version=1, control_plane_id="hostile", takeover=True, model_fingerprint=self.worker.fingerprint)

    async def assert_unharmed(self) -> None:
        """The next control plane gets the known tokens."""
        assert await self.serve() == self.known
        assert not self.worker.servicer.device_failure.done()


@contextmanager
def _rig(model: Path) -> Iterator[tuple[_Rig, asyncio.Runner]]:
    with asyncio.Runner() as runner:
        rig = _Rig(ServedWorker(model, "--max-steps-in-flight", "64", "--max-step-tokens", "32", "--max-model-len", "64"))
        try:
            runner.run(rig.start())
            yield rig, runner
        finally:
            runner.run(rig.worker.stop())


@pytest.fixture(scope="module")
def model(tiny_checkpoint: TinyCheckpoint) -> Path:
    return tiny_checkpoint("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1)


def _assert_nothing_was_half_done(results: Sequence[pb.StepResult]) -> None:
    """A step that fails has failed at its check, before any effect: what ran into trouble later was let through."""
    for result in results:
        assert not result.error or "InvalidStep: " in result.error, result.error


def test_changed_sessions_do_no_harm(model: Path) -> None:
    with _rig(model) as (rig, runner):

        @given(st.randoms(use_true_random=False), st.integers(1, 4))
        def attack(random: Random, num_changes: int) -> None:
            hello, frames = rig.hello(), _legal_session()
            for _ in range(num_changes):
                changed: Any = random.choice([*frames, frames, hello])
                if changed is frames:
                    mutate_order(random, frames)
                else:
                    mutate_one(random, changed)
            _assert_nothing_was_half_done(runner.run(rig.attack(hello, frames)))
            runner.run(rig.assert_unharmed())

        attack()


def test_random_bytes_do_no_harm(model: Path) -> None:
    with _rig(model) as (rig, runner):

        @given(st.lists(st.binary(max_size=100), min_size=1, max_size=5), st.integers(0, 3))
        def attack(garbage: list[bytes], num_legal: int) -> None:
            runner.run(rig.attack(rig.hello(), [*_legal_session()[:num_legal], *garbage]))
            runner.run(rig.assert_unharmed())

        attack()
