"""Languages as clients describe them, in the one form that is compiled: a Lark grammar of llguidance."""

import json
from collections.abc import Sequence

from llguidance import LLMatcher

from control_plane.edge.text.constraint.json_schema import compiled_schema

#: Without it the grammar decides how the text that it forces is cut into tokens: at once, however long the text is.
_OPTIONS = '\n%llguidance {"no_forcing": true}\n'


def lark_grammar(source: str) -> str:
    """A grammar in Lark notation, as it is."""
    return source + _OPTIONS


def regex_grammar(pattern: str) -> str:
    """All texts that match a regular expression from end to end."""
    quoted = json.loads(LLMatcher.grammar_from_regex(pattern))["grammars"][0]["lark_grammar"]
    return f"{quoted}{_OPTIONS}"


def alternatives_grammar(texts: Sequence[str]) -> str:
    """One of several texts."""
    return f"start: TEXT\nTEXT: {' | '.join(json.dumps(text) for text in texts)}{_OPTIONS}"


def json_schema_grammar(text: str) -> str:
    """JSON that a schema describes, with its properties in the schema's order; raises GrammarRefused."""
    return f"start: %json {compiled_schema(text)}{_OPTIONS}"
