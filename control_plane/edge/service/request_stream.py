"""Output of one request on its way from the engine to the call that waits for it."""

import asyncio
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from control_plane.edge.config import StreamOptions
from control_plane.edge.service.errors import RequestError, error_of
from control_plane.engine.ports import GenerationRequest, Output, RequestAccepted, RequestFailed, SequenceDelta, SequenceFinished

#: What the parts of a delta take in memory.
_TOKEN_BYTES, _ENTRY_BYTES, _ALTERNATIVE_BYTES = 40, 100, 110

#: When all streams together have used half of what they may, each may use only so much of its own part.
_SHORT_SHARE = 1 / 16

#: No message of a stream can be smaller than what has been joined.
MAX_JOINED = 64


def memory_bytes(delta: SequenceDelta) -> int:
    """What a delta takes in memory, roughly: with 20 alternatives 60 times as much as without log probabilities."""
    num_alternatives = sum(len(entry.top) for entry in delta.logprobs)
    logprob_bytes = len(delta.logprobs) * _ENTRY_BYTES + num_alternatives * _ALTERNATIVE_BYTES
    return len(delta.token_ids) * _TOKEN_BYTES + len(delta.text) + logprob_bytes


@dataclass(slots=True)
class UnwrittenTotal:
    """Bytes of all streams and unary answers that are not written yet."""

    num_bytes: int = 0


class Backlog:
    """Counts what of one stream is not written yet; has its request held while that is too much. Without `options` nothing is ever held."""

    def __init__(
        self, options: StreamOptions | None, hold: Callable[[], None], unhold: Callable[[], None], total: UnwrittenTotal | None = None
    ) -> None:
        self._options = options
        self._hold = hold
        self._unhold = unhold
        self._total = total or UnwrittenTotal()
        self._num_bytes = 0
        self._is_closed = False
        self.num_tokens = 0
        self.is_held = False

    def add(self, num_tokens: int, num_bytes: int = 0) -> None:
        """Tokens have come from the engine, which take so much memory."""
        self.num_tokens += num_tokens
        if not self._is_closed:
            self._change_bytes(num_bytes)
        if self._options is not None and not self.is_held and self._share(self._options) > 1:
            self.is_held = True
            self._hold()

    def remove(self, num_tokens: int) -> None:
        """Tokens have been written."""
        assert num_tokens <= self.num_tokens, "more tokens were written than came"
        if num_tokens:
            self._change_bytes(-(self._num_bytes * num_tokens // self.num_tokens))
        self.num_tokens -= num_tokens
        if self._options is not None and self.is_held and self._share(self._options) < 0.5:
            self.is_held = False
            self._unhold()

    def close(self) -> None:
        """Nobody will write the rest."""
        self._change_bytes(-self._num_bytes)
        self._is_closed = True

    def _change_bytes(self, difference: int) -> None:
        self._num_bytes += difference
        self._total.num_bytes += difference

    def _share(self, options: StreamOptions) -> float:
        """How much is unwritten, as a share of what may be."""
        is_short = self._total.num_bytes > options.max_unwritten_total_bytes // 2
        max_bytes = options.max_unwritten_bytes * (_SHORT_SHARE if is_short else 1)
        return max(self.num_tokens / options.max_unwritten_tokens, self._num_bytes / max_bytes)


def joined(outputs: Iterable[Output]) -> list[Output]:
    """The same output with few deltas, each of at most `MAX_JOINED` tokens.

    That of one choice stays in order, and tokens of other numerics stay apart.
    """
    done: list[Output] = []
    open_deltas: dict[int, list[SequenceDelta]] = {}
    num_tokens: Counter[int] = Counter()  # of the open ones, by choice
    for output in outputs:
        if not isinstance(output, SequenceDelta):
            done += _close(open_deltas)
            num_tokens.clear()
            done.append(output)
            continue
        deltas = open_deltas.setdefault(output.choice, [])
        if deltas and (deltas[-1].numerics_id != output.numerics_id or num_tokens[output.choice] + len(output.token_ids) > MAX_JOINED):
            done.append(_join(deltas))
            deltas.clear()
            num_tokens[output.choice] = 0
        deltas.append(output)
        num_tokens[output.choice] += len(output.token_ids)
    return done + _close(open_deltas)


def _close(open_deltas: dict[int, list[SequenceDelta]]) -> list[Output]:
    closed: list[Output] = [_join(deltas) for deltas in open_deltas.values()]
    open_deltas.clear()
    return closed


def _join(deltas: list[SequenceDelta]) -> SequenceDelta:
    if len(deltas) == 1:
        return deltas[0]
    first = deltas[0]
    return SequenceDelta(
        request_id=first.request_id,
        choice=first.choice,
        first_index=first.first_index,
        token_ids=array("I", [token_id for delta in deltas for token_id in delta.token_ids]),
        text="".join([delta.text for delta in deltas]),
        logprobs=tuple([entry for delta in deltas for entry in delta.logprobs]),
        numerics_id=first.numerics_id,
    )


class RequestStream:
    """Output of one request that its call has not fetched yet; it piles up while the call is slow. Belongs to the clients' event loop."""

    def __init__(self, request: GenerationRequest, backlog: Backlog) -> None:
        self.request = request
        self.backlog = backlog
        self.ended = asyncio.Event()  # the engine has forgotten the request
        self.num_successors = 0  # calls that wait for its end to take it over
        self._num_unfinished = len(request.choices)
        self._outputs: list[Output] = []
        self._num_joined = 0  # outputs at the front that have been joined
        self._num_returned_tokens = 0  # of tokens returned, those that are not written yet
        self._failed: RequestFailed | None = None
        self._answered = asyncio.Event()  # accepted or refused
        self._arrived = asyncio.Event()
        self._interrupt: asyncio.Timeout | None = None
        self._reason: RequestError | None = None

    def put(self, output: Output) -> None:
        """Add output of the request."""
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

    async def wait_accepted(self) -> None:
        """Wait until the engine has taken the request in; raises a RequestError when it refuses."""
        await self._answered.wait()
        if self._failed and not self._outputs:
            raise error_of(self._failed)

    async def next_outputs(self) -> Sequence[Output]:
        """Wait for output and return all there is; empty once the request has ended, or a RequestError raised if it failed.

        What was returned before counts as written.
        """
        self.mark_written(self._num_returned_tokens)
        if not self.ended.is_set():
            await self._arrived.wait()
        self._arrived.clear()
        outputs, self._outputs = self._outputs, []
        self._num_joined = 0
        self._num_returned_tokens = self.backlog.num_tokens
        if self._failed and not outputs:
            raise error_of(self._failed)
        return outputs

    async def all_outputs(self) -> Sequence[Output]:
        """Wait for the end and return all output; raises a RequestError if the request failed."""
        await self.ended.wait()
        if self._failed:
            raise error_of(self._failed)
        return await self.next_outputs()

    def mark_written(self, num_tokens: int) -> None:
        """So many of the tokens returned are on their way to the client."""
        num_tokens = min(num_tokens, self._num_returned_tokens)
        self._num_returned_tokens -= num_tokens
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
