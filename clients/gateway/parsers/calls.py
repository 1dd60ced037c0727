"""What the formats of calls have in common."""

import json
import secrets
import string
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from clients.gateway.parsers.pieces import CallArguments, CallStarted, Parser, StateMachine

_ID_LETTERS = string.ascii_letters + string.digits
#: JSON as models write it, each name in one way only.
_PLAIN_JSON = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "json_allowed_escapes": 'nrbtf\\"',
    "json_allow_general_unicode_escapes": False,
}


class CallParser(StateMachine):
    """A state machine that counts its calls."""

    def __init__(self, first: Callable[[str], str]) -> None:
        super().__init__(first)
        self._num_calls = 0

    def start_call(self, name: str) -> None:
        """Tell a new call."""
        self.add(CallStarted(self._num_calls, name))
        self._num_calls += 1

    def add_arguments(self, text: str) -> None:
        """Tell more of the arguments of the last call."""
        if text:
            self.add(CallArguments(self._num_calls - 1, text))


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A tool that may be called; `schema` is that of its arguments."""

    name: str
    schema: Mapping[str, Any]


@dataclass(slots=True)
class CallGrammar:
    """Rules of a grammar in Lark notation, in which a call is written. `marker_ids`: markers that are single tokens of the model."""

    tools: Sequence[CallableTool]
    is_parallel: bool
    marker_ids: Mapping[str, int]
    rules: list[str] = field(default_factory=list)

    def text(self, text: str) -> str:
        """The very text, with markers as tokens where the model has them."""
        marker = next((marker for marker in self.marker_ids if marker in text), None)
        if marker is None:
            return json.dumps(text, ensure_ascii=False) if text else ""
        before, _, behind = text.partition(marker)
        return " ".join(filter(None, (self.text(before), f"<[{self.marker_ids[marker]}]>", self.text(behind))))

    def json(self, schema: Mapping[str, Any]) -> str:
        """Any JSON that a schema describes."""
        return self.rule(f"%json {json.dumps({**schema, 'x-guidance': _PLAIN_JSON})}")

    def rule(self, body: str) -> str:
        """Add a rule; returns its name."""
        name = f"rule{len(self.rules)}"
        self.rules.append(f"{name}: {body}")
        return name

    def one_of(self, bodies: Sequence[str]) -> str:
        """A rule of alternatives."""
        return self.rule(" | ".join(bodies))

    def repeated(self, body: str, separator: str = "") -> str:
        """One or, where calls may be parallel, several."""
        return f"{body} ({separator} {body})*" if self.is_parallel else body


def call_id() -> str:
    """An id of a call, as OpenAI's look."""
    return "call_" + secrets.token_hex(12)


def short_call_id() -> str:
    """An id of nine letters and digits, which Mistral's templates ask for."""
    return "".join(secrets.choice(_ID_LETTERS) for _ in range(9))


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a family of models writes calls.

    `parser` takes the names of the tools; `grammar` returns the body of a rule for calls; `markers` are looked up in the model's
    vocabulary; `shows_special_tokens`: some of them are special tokens, which texts do not show otherwise.
    """

    parser: Callable[[Set[str]], Parser]
    grammar: Callable[[CallGrammar], str]
    markers: tuple[str, ...]
    shows_special_tokens: bool = False
    make_id: Callable[[], str] = call_id
