"""Constraints over the byte tokenizer, compiled without a process of their own for every grammar."""

import random

import pytest
from fakes.control_plane.scripted_engine import VOCAB_SIZE
from fakes.text.tokenizers import EOS, EOT, byte_tokenizer
from llguidance import LLParserLimits

from control_plane.edge.text.constraint.compiler import ConstraintCompiler
from control_plane.edge.text.constraint.grammar import GrammarRefused
from control_plane.edge.text.constraint.grammar_trial import PARSER_LIMITS
from control_plane.edge.text.constraint.token_constraint import TokenConstraint
from control_plane.edge.text.tokenizer import Tokenizer


class NoTrial:
    """Takes every grammar for harmless."""

    def check(self, grammar: str) -> None:
        pass


class HarmlessCompiler(ConstraintCompiler):
    """For grammars that are known to be harmless."""

    _trial = NoTrial()  # type: ignore[assignment]

    def __init__(self, tokenizer: Tokenizer, **limits: int) -> None:
        super().__init__(tokenizer, VOCAB_SIZE, frozenset({EOS, EOT}))
        self._limits = LLParserLimits(**PARSER_LIMITS | limits)


_OF_BYTES = HarmlessCompiler(byte_tokenizer())


def constraint_of(grammar: str, tokenizer: Tokenizer | None = None, **limits: int) -> TokenConstraint:
    """A constraint for the byte tokenizer, or another with the same end tokens; raises GrammarRefused."""
    compiler = HarmlessCompiler(tokenizer or byte_tokenizer(), **limits) if tokenizer or limits else _OF_BYTES
    return compiler.compile(grammar, 1)[0]


def allowed_ids(constraint: TokenConstraint) -> set[int]:
    """What the mask allows."""
    mask = constraint.mask()
    return {token_id for token_id in range(8 * len(mask)) if mask[token_id // 8] >> token_id % 8 & 1}


def accepts(grammar: str, text: str) -> bool:
    """Whether a text, followed by an end token, is in the language, and every token of it was allowed when it came."""
    constraint = constraint_of(grammar)
    for token_id in [*text.encode(), EOS]:
        if token_id not in allowed_ids(constraint):
            return False
        constraint.push(token_id)
    return True


def why_refused(grammar: str) -> str:
    """The reason why a grammar is refused."""
    try:
        constraint_of(grammar)
    except GrammarRefused as error:
        return str(error)
    return ""


def drawn_output(constraint: TokenConstraint, draw: random.Random) -> bytes:
    """Tokens drawn from the masks, blanks and escapes rarely, an end as soon as there can be one half of the time."""
    output = bytearray()
    while len(output) < 2000:
        allowed = sorted(allowed_ids(constraint))
        if EOS in allowed and (len(allowed) < 3 or draw.random() < 0.5):
            return bytes(output)
        likely = [token_id for token_id in allowed if token_id < 256 and chr(token_id) not in " \t\r\n\\"] or allowed
        output.append(draw.choice(likely))
        constraint.push(output[-1])
    pytest.fail(f"no end: {bytes(output[-100:])!r}")
