"""Output of one request on its way from the engine to the call that waits for it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from control_plane.edge.service.errors import RequestError, error_of
from control_plane.edge.service.streams.backlog import Backlog, memory_bytes
from control_plane.edge.service.streams.joined_output import MAX_JOINED, joined
from control_plane.engine.ports import GenerationRequest, Output, RequestAccepted, RequestFailed, SequenceDelta, SequenceFinished


class RequestStream:
    """Output of one request that its call has not taken yet; it piles up while the call is slow. Belongs to the clients' event loop."""

    def __init__(self, request: GenerationRequest, backlog: Backlog) -> None:
        self.request = request
        self.backlog = backlog
        self.ended = asyncio.Event()  # the engine has forgotten the request
        self.num_successors = 0  # calls that wait for its end to take it over
        self._num_unfinished = len(request.choices)
        self._outputs: list[Output] = []
        self._num_joined = 0  # outputs at the front that have been joined
        self._num_taken_tokens = 0  # of them, those that are not written yet
        self._failed: RequestFailed | None = None
        self._answered = asyncio.Event()  # accepted or refused
        self._arrived = asyncio.Event()
        self._interrupt: asyncio.Timeout | None = None
        self._reason: RequestError | None = None

    def put(self, output: Output) -> None:
        """Take output of the request."""
        self._answered.set()
        if isinstance(output, RequestAccepted):
            return
        if isinstance(output, RequestFailed):
            self._failed = output
        else:
            self._keep(output)
        self._arrived.set()
        if self._failed or not self._num_unfinished:
            self.ended.set()

    async def accepted(self) -> None:
        """Wait until the engine has taken the request in; raises a RequestError when it refuses."""
        await self._answered.wait()
        if self._failed and not self._outputs:
            raise error_of(self._failed)

    async def take(self) -> Sequence[Output]:
        """Wait for output and return all there is; nothing once the request has ended, or a RequestError raised if it failed.

        What was taken before counts as written.
        """
        self.written(self._num_taken_tokens)
        if not self.ended.is_set():
            await self._arrived.wait()
        self._arrived.clear()
        outputs, self._outputs = self._outputs, []
        self._num_joined = 0
        self._num_taken_tokens = self.backlog.num_tokens
        if self._failed and not outputs:
            raise error_of(self._failed)
        return outputs

    async def whole(self) -> Sequence[Output]:
        """Wait for the end and return all output; raises a RequestError if the request failed."""
        await self.ended.wait()
        if self._failed:
            raise error_of(self._failed)
        return await self.take()

    def written(self, num_tokens: int) -> None:
        """So many of the tokens taken are on their way to the client."""
        num_tokens = min(num_tokens, self._num_taken_tokens)
        self._num_taken_tokens -= num_tokens
        self.backlog.remove(num_tokens)

    @asynccontextmanager
    async def interruptible(self) -> AsyncIterator[None]:
        """While the block runs, `interrupt` ends whatever it waits for; one that came before ends it at once."""
        if self._reason is not None:
            raise self._reason
        try:
            async with asyncio.timeout(None) as self._interrupt:
                yield
        except TimeoutError:
            if self._reason is None:
                raise
            raise self._reason from None
        finally:
            self._interrupt = None

    def interrupt(self, reason: RequestError) -> None:
        """Raise an error in the block of `interruptible`, once; after the block nothing happens."""
        if self._reason is not None:
            return
        self._reason = reason
        if self._interrupt is not None:
            self._interrupt.reschedule(asyncio.get_running_loop().time())

    def _keep(self, output: Output) -> None:
        self._outputs.append(output)
        if isinstance(output, SequenceDelta):
            self.backlog.add(len(output.token_ids), memory_bytes(output))
            if len(self._outputs) - self._num_joined >= MAX_JOINED * self._num_unfinished:
                self._outputs[self._num_joined :] = joined(self._outputs[self._num_joined :])
                self._num_joined = len(self._outputs)
        elif isinstance(output, SequenceFinished):
            self._num_unfinished -= 1
