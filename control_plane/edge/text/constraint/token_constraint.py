"""The constraint of one sequence: masks over the vocabulary, one bit per token id, lowest bit first."""

from collections.abc import Callable, Iterable

from llguidance import LLMatcher

from control_plane.core.constraint import ConstraintExhausted, ConstraintViolated
from control_plane.edge.text.constraint.grammar import reason_of

#: What the library says of a token that does not fit; a matcher can also stop because it has become too complex.
_MISFIT = "doesn't satisfy the grammar"

#: What it says at a limit that counts what has piled up. All others count a single mask or token: a fresh matcher would reach them too.
_FULL = "lexer error: "


class EndTokens:
    """The model's end tokens as bits of a mask. Immutable; shared by all sequences."""

    __slots__ = ("_bits", "_ids", "nothing")

    def __init__(self, token_ids: Iterable[int], vocab_size: int) -> None:
        self._ids = frozenset(token_ids)
        self.nothing = bytes((vocab_size + 7) // 8)  # a mask that allows no token
        self._bits: dict[int, int] = {}  # by byte of a mask
        for token_id in self._ids:
            self._bits[token_id // 8] = self._bits.get(token_id // 8, 0) | 1 << token_id % 8

    def __contains__(self, token_id: int) -> bool:
        return token_id in self._ids

    def put_into(self, mask: bytes, are_allowed: bool) -> bytes:
        """The mask, cut to the size of the vocabulary, with end tokens allowed or not."""
        changed = bytearray(mask[: len(self.nothing)])
        for index, bits in self._bits.items():
            changed[index] = changed[index] & ~bits | (bits if are_allowed else 0)
        return bytes(changed)


class TokenConstraint:
    """Implements `control_plane.core.constraint.Constraint`. Used on one thread at a time; computes nothing before it is asked.

    End tokens are not left to the grammar: they are allowed exactly where the output is complete, whatever it says of them. `begin` makes
    a matcher that has seen nothing: what one piles up from mask to mask, also for its copies, counts against its limits, so that only
    what a fresh one cannot do either is too complex.
    """

    __slots__ = ("_begin", "_ends", "_has_ended", "_mask", "_matcher", "_token_ids")

    def __init__(self, matcher: LLMatcher, begin: Callable[[], LLMatcher], ends: EndTokens) -> None:
        self._matcher = matcher
        self._begin = begin
        self._ends = ends
        self._has_ended = False
        self._token_ids: list[int] = []
        self._mask: bytes | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the mask is known without computing."""
        return self._mask is not None

    def push(self, token_id: int) -> None:
        """Add a token; raises ConstraintViolated when it does not fit."""
        self._mask = None
        if self._has_ended:
            raise ConstraintViolated(f"token id {token_id} comes after the end")
        if token_id not in self._ends or self._matcher.is_error():
            self._consume(token_id)
        elif self._matcher.is_accepting():
            self._has_ended = True
        else:
            raise ConstraintViolated(f"end token {token_id} comes before the output is complete")

    def mask(self) -> bytes:
        """One bit per token id; raises ConstraintExhausted when the grammar asks for too much."""
        if self._mask is None:
            self._mask = self._next_mask()
        return self._mask

    def _next_mask(self) -> bytes:
        if self._has_ended:
            return self._ends.nothing
        allowed = self._allowed()
        if self._is_full:
            self._begin_again()
            allowed = self._allowed()
        if self._matcher.is_error():
            raise ConstraintExhausted(f"too complex: {reason_of(self._matcher.get_error())}")
        return self._ends.put_into(allowed, self._matcher.is_accepting())

    @property
    def _is_full(self) -> bool:
        return _FULL in self._matcher.get_error()

    def _allowed(self) -> bytes:
        return self._ends.nothing if self._matcher.is_stopped() else self._matcher.compute_bitmask()

    def _consume(self, token_id: int) -> None:
        self._token_ids.append(token_id)
        if self._matcher.is_error():
            return  # too complex: the next mask tells
        if self._matcher.is_stopped():
            raise ConstraintViolated(f"token id {token_id} comes after complete output")
        if not self._matcher.consume_token(token_id) and self._is_full:
            self._begin_again()
        if _MISFIT in (error := self._matcher.get_error()):
            raise ConstraintViolated(f"token id {token_id} is not allowed: {reason_of(error)}")

    def _begin_again(self) -> None:
        self._matcher = self._begin()
        for token_id in self._token_ids:
            self._matcher.consume_token(token_id)
