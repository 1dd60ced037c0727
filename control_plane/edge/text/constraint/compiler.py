"""Compiles grammars for the model's tokens."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from control_plane.core.constraint import ConstraintExhausted
from control_plane.edge.text.constraint.grammar import GrammarRefused, reason_of
from control_plane.edge.text.constraint.grammar_trial import PARSER_LIMITS, GrammarTrial
from control_plane.edge.text.constraint.token_constraint import EndTokens, TokenConstraint
from control_plane.edge.text.tokenizer import Tokenizer


class ConstraintsUnavailable(Exception):
    """This model cannot be constrained; the message says why."""


class GrammarTokens:
    """The model's tokens as llguidance takes them: the bytes that they add to a text. Ids that add none are never allowed."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_token_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in range(vocab_size)]
        self.special_token_ids = sorted(token_id for token_id in tokenizer.added_tokens.keys() | end_token_ids if token_id < vocab_size)
        self.eos_token_id = min(end_token_ids)

    def __call__(self, text: str) -> Sequence[int]:
        """Token ids of a text."""
        return self._tokenizer.encode(text, add_special_tokens=False).token_ids


class ConstraintCompiler:
    """Makes constraints. Its methods may be called on any thread, and block; the first constraint builds what `prepare` has not."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_token_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._ends = EndTokens(end_token_ids, vocab_size)
        self._end_token_ids = end_token_ids
        self._limits = LLParserLimits(**PARSER_LIMITS)
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Build what all constraints share, if the model can be constrained.

        It takes a second with a large vocabulary, in which the library keeps the interpreter's lock: nobody should be streaming yet.
        """
        with suppress(ConstraintsUnavailable):
            self._require_usable_tokens()
            self._shared()

    def compile(self, grammar: str, count: int) -> list[TokenConstraint]:
        """Check a grammar that came from a client; constraints for `count` sequences. Raises GrammarRefused and ConstraintsUnavailable."""
        self._require_usable_tokens()
        self._shared()[0].check(grammar)
        probe, *constraints = self.begin(grammar, count + 1)
        try:
            first_mask = probe.mask()
        except ConstraintExhausted as error:
            raise GrammarRefused(str(error)) from None
        if not any(first_mask):
            raise GrammarRefused("no text fits it")
        return constraints

    def begin(self, grammar: str, count: int) -> list[TokenConstraint]:
        """Constraints for `count` sequences without tokens. An unchecked grammar could end the process, or block it."""
        begin = partial(LLMatcher, self._shared()[1], grammar, log_level=0, limits=self._limits)
        matcher = begin()
        if matcher.is_error():
            raise GrammarRefused(reason_of(matcher.get_error()))
        return [TokenConstraint(matcher.deep_copy(), begin, self._ends) for _ in range(count)]  # before a mask piles anything up

    def _shared(self) -> tuple[GrammarTrial, LLTokenizer]:
        with self._lock:
            return self._trial, self._tokens

    def _require_usable_tokens(self) -> None:
        if not self._tokenizer.has_token_bytes:
            raise ConstraintsUnavailable("the model's tokenizer does not say which bytes its tokens stand for")
        if not self._end_token_ids:
            raise ConstraintsUnavailable("the model has no end tokens, so that its output is never complete")

    @cached_property
    def _tokens(self) -> LLTokenizer:
        tokens: Any = GrammarTokens(self._tokenizer, self._vocab_size, self._end_token_ids)  # not a TokenizerWrapper, but enough of one
        return LLTokenizer(tokens)

    @cached_property
    def _trial(self) -> GrammarTrial:
        added = {token_id: name for token_id, name in self._tokenizer.added_tokens.items() if token_id < self._vocab_size}
        ends = {token_id: added.get(token_id, f"<end {token_id}>") for token_id in self._end_token_ids}
        return GrammarTrial(self._vocab_size, {**ends, **added})
