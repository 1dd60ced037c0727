"""Streams over a generated stub: what a client has that knows nothing of our library."""

import asyncio
from collections.abc import Callable, Sequence

import grpc.aio

from pypto_serving.inference.v1 import inference_pb2 as pb
from pypto_serving.inference.v1 import inference_pb2_grpc


class RawStreams:
    """Sampled streams of one server, each over a connection of its own."""

    def __init__(self, address: str, count: int, max_tokens: int = 300) -> None:
        self._address = address
        self._specs = [
            pb.GenerationSpec(
                text=f"Story {number}",
                sampling=pb.SamplingParams(temperature=number % 2 * 0.9, seed=number),
                stopping=pb.StoppingParams(max_tokens=max_tokens, ignore_eos=True),
            )
            for number in range(count)
        ]
        self.num_received = [0] * count

    async def run(self) -> list[tuple[str, tuple[int, ...]]]:
        """Text and tokens of each."""
        self.num_received = [0] * len(self._specs)
        return list(await asyncio.gather(*(self._one(number) for number in range(len(self._specs)))))

    async def disturbed(self, *disturbances: Callable[[], object]) -> Sequence[tuple[str, tuple[int, ...]]]:
        """The same, with something happening after all of them have got some tokens, and again when they have got more."""
        running = asyncio.create_task(self.run())
        await asyncio.sleep(0)  # nothing is received yet
        for disturb in disturbances:
            least = min(self.num_received) + 20
            while min(self.num_received) < least:
                assert not running.done(), running.result()
                await asyncio.sleep(0.005)
            await asyncio.to_thread(disturb)
        return await running

    async def _one(self, number: int) -> tuple[str, tuple[int, ...]]:
        text, token_ids = "", []
        async with grpc.aio.insecure_channel(self._address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            request = pb.GenerateStreamRequest(spec=self._specs[number])
            async for event in inference_pb2_grpc.InferenceServiceStub(channel).GenerateStream(request):
                if event.HasField("delta"):
                    assert event.delta.first_index == len(token_ids)
                    text += event.delta.text
                    token_ids += event.delta.token_ids
                    self.num_received[number] = len(token_ids)
        return text, tuple(token_ids)
