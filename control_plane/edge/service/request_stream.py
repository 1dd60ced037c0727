"""Output of one request on its way from the engine to the call that waits for it."""

import asyncio
from collections.abc import Sequence

from control_plane.edge.service.errors import error_of
from control_plane.engine.ports import GenerationRequest, Output, RequestAccepted, RequestFailed, SequenceFinished


class RequestStream:
    """Output of one request that its call has not taken yet; it piles up while the call is slow. Belongs to the clients' event loop."""

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.ended = asyncio.Event()  # the engine has forgotten the request
        self._num_unfinished = len(request.choices)
        self._outputs: list[Output] = []
        self._failed: RequestFailed | None = None
        self._answered = asyncio.Event()  # accepted or refused
        self._arrived = asyncio.Event()

    def put(self, output: Output) -> None:
        """Take output of the request."""
        self._answered.set()
        if isinstance(output, RequestAccepted):
            return
        if isinstance(output, RequestFailed):
            self._failed = output
        else:
            self._outputs.append(output)
            self._num_unfinished -= isinstance(output, SequenceFinished)
        self._arrived.set()
        if self._failed or not self._num_unfinished:
            self.ended.set()

    async def accepted(self) -> None:
        """Wait until the engine has taken the request in; raises a RequestError when it refuses."""
        await self._answered.wait()
        if self._failed and not self._outputs:
            raise error_of(self._failed)

    async def take(self) -> Sequence[Output]:
        """Wait for output and return all there is; nothing once the request has ended, or a RequestError raised if it failed."""
        if not self.ended.is_set():
            await self._arrived.wait()
        self._arrived.clear()
        outputs, self._outputs = self._outputs, []
        if self._failed and not outputs:
            raise error_of(self._failed)
        return outputs
