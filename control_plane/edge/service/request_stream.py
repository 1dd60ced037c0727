"""Output of one request on its way from the engine to the call that waits for it."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Literal

from control_plane.edge.access.callers import Metadata
from control_plane.edge.service.backlog import Backlog
from control_plane.edge.service.choice_output import ChoiceOutput
from control_plane.edge.service.errors import RequestError, error_of
from control_plane.engine.ports import GenerationRequest, PromptLogprobs, RequestFailed, SequenceFinished


class RequestStream:
    """Output of one request that its call has not fetched yet; it piles up while the call is slow. Belongs to the clients' event loop."""

    def __init__(self, request: GenerationRequest, choices: Sequence[ChoiceOutput], backlog: Backlog) -> None:
        """`choices`: those of the request, and those that had ended before it was submitted."""
        self.request = request
        self.choices = choices
        self.backlog = backlog
        self.opened_at = time.monotonic()
        self.prompt_logprobs: PromptLogprobs | None = None  # comes before all tokens
        self.ended = asyncio.Event()  # the engine has forgotten the request
        self.first_token_time: float | None = None  # by time.monotonic(), of tokens made for this stream
        self.rate_limits: Metadata = ()  # what is left of the caller's quota, as metadata
        self.num_successors = 0  # calls that wait for its end to take it over
        self.is_ending = False  # what has come tells of an end: it is not to be gathered
        self.is_in_turn = False  # it waits for its turn to write
        self.next_write_time = 0.0  # until then it gathers output
        self.has_stops = any(choice.has_stops for choice in choices)  # whether `look` is to be called
        self.is_behind = True  # output is not taken as it comes: a message is on its way, or all is taken at the end
        self._num_unfinished = len(request.choices)
        self._num_in_write = 0  # tokens of a message on its way
        self._failed: RequestFailed | None = None
        self._answered = asyncio.Event()  # accepted or refused
        self._has_output = False  # that it may take
        self._waiting: asyncio.Future[None] | None = None  # for output; an Event would do, and costs more each time
        self._interrupt: asyncio.Timeout | None = None
        self._reason: RequestError | None = None

    # The engine's side

    def accept(self) -> None:
        """The engine has taken the request in; one without choices is done at once."""
        self._answered.set()
        self._end_if_finished()

    def finish(self, choice: ChoiceOutput, finished: SequenceFinished) -> None:
        """The engine has ended a choice."""
        choice.finish(finished)
        self.is_ending = True
        self._num_unfinished -= 1
        self._end_if_finished()

    def fail(self, failed: RequestFailed) -> None:
        """The engine has ended the request."""
        self._failed = failed
        self.is_ending = True
        self._answered.set()
        self.ended.set()

    def look(self) -> list[ChoiceOutput]:
        """Look for stop strings in what has arrived; returns the choices that they end."""
        return [choice for choice in self.choices if choice.has_stops and choice.look()]

    def stop_looking(self) -> None:
        """Look no more: the text is broken."""
        self.has_stops = False

    def let_go(self) -> None:
        """Let the call have what has come."""
        self.is_ending = False
        self._has_output = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    # The call's side

    async def wait_accepted(self) -> None:
        """Wait until the engine has taken the request in; raises a RequestError when it refuses."""
        await self._answered.wait()
        if self._failed and not any(choice.token_ids for choice in self.choices):
            raise self._failure(self._failed)

    async def wait_output(self) -> bool:
        """Wait until there is more to take; False once all has come and was there to be taken.

        Raises a RequestError when the request failed and what had come before was there to be taken.
        """
        if not self._has_output:
            if self.ended.is_set() and not self.is_in_turn:
                return self._raise_failure()
            self.is_behind = False
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        self._has_output = False
        self.is_behind = True
        return True

    async def wait_end(self) -> None:
        """Wait until all has come; raises a RequestError if the request failed."""
        await self.ended.wait()
        self._raise_failure()

    def _failure(self, failed: RequestFailed) -> RequestError:
        error = error_of(failed)
        error.metadata += self.rate_limits
        return error

    def mark_in_write(self, num_tokens: int) -> None:
        """So many of the tokens taken are on their way to the client; all others are written.

        They are counted when more comes before they have gone, as a rule never.
        """
        self._num_in_write = num_tokens
        if self.backlog.num_tokens:
            self.count_unwritten()

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

    def _raise_failure(self) -> Literal[False]:
        if self._failed:
            raise self._failure(self._failed)
        return False

    def _end_if_finished(self) -> None:
        if not self._num_unfinished:
            self.ended.set()

    def count_unwritten(self) -> None:
        """See whether the client is too slow for what has come."""
        self.backlog.set(self._num_in_write + sum([len(choice.token_ids) for choice in self.choices]))
