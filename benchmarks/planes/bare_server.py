"""A grpc.aio server that does nothing but stream messages made beforehand: python -m benchmarks.planes.bare_server PORT STEP_MS"""

import asyncio
import sys

import grpc

from pypto_serving.inference.v1 import inference_pb2 as pb
from pypto_serving.process.listening import bind

_SERVICE = pb.DESCRIPTOR.services_by_name["InferenceService"].full_name
_MAX_TOKENS = 4096

Context = grpc.aio.ServicerContext[pb.GenerateStreamRequest, pb.GenerateStreamResponse]


class BareService:
    """One message for each stream at every tick."""

    def __init__(self, step_seconds: float) -> None:
        self._step_seconds = step_seconds
        self._tick = asyncio.Event()
        deltas = (pb.Delta(text=" word", token_ids=[index], first_index=index) for index in range(_MAX_TOKENS))
        self._deltas = [pb.GenerateStreamResponse(delta=delta) for delta in deltas]
        self._started = pb.GenerateStreamResponse(started=pb.Started(request_id="bare"))
        self._finished = pb.GenerateStreamResponse(finished=pb.Finished(reason=pb.FINISH_REASON_LENGTH))

    async def generate(self, request: pb.GenerateStreamRequest, context: Context) -> None:
        """Write as many messages as tokens are asked for."""
        await context.write(self._started)
        for delta in self._deltas[: request.spec.stopping.max_tokens]:
            await self._tick.wait()
            await context.write(delta)
        await context.write(self._finished)

    async def tick(self) -> None:
        """Run forever."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + self._step_seconds, loop.time())
            await asyncio.sleep(due - loop.time())
            ended, self._tick = self._tick, asyncio.Event()
            ended.set()


async def _serve(port: int, step_seconds: float) -> None:
    server, service = grpc.aio.server(), BareService(step_seconds)
    handler = grpc.unary_stream_rpc_method_handler(
        service.generate,
        request_deserializer=pb.GenerateStreamRequest.FromString,
        response_serializer=pb.GenerateStreamResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(_SERVICE, {"GenerateStream": handler})])
    bind(server, "127.0.0.1", port)
    await server.start()
    print("ready", flush=True)
    await service.tick()


if __name__ == "__main__":
    from uvloop import new_event_loop  # as the control plane's

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(int(sys.argv[1]), float(sys.argv[2]) / 1e3))
