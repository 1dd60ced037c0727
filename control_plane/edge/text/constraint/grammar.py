"""Languages as clients describe them, in the one form that is compiled: a Lark grammar of llguidance."""

import json
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from llguidance import LLMatcher

#: Most JSON is written with less between two values; without a bound a weak model can go on with blanks for ever.
_JSON_WHITESPACE = r"[\x20\x0A\x0D\x09]{1,64}"

#: Without it the grammar decides how the text that it forces is cut into tokens: at once, however long the text is.
_OPTIONS = '\n%llguidance {"no_forcing": true}\n'

_SOURCE_LINE = re.compile(r"\s*\d+ \||\s*\^+\s*$|\s*<non-verbose/>|\s*<state>")
_ORIGIN = re.compile(r"^(at )?\d+\(\d+\): (failed to compile JSON schema: )?|^failed to parse \"%json\": |^parser error: ", re.IGNORECASE)
_MAX_REASON = 300

#: What the library says when it has found that nothing matches.
_NOTHING_FITS = ("NoExtension", "NoExtensionBias")


class GrammarRefused(ValueError):
    """A grammar can not be used; the message says why, in one line."""


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
    """JSON that a schema describes, with its properties in the schema's order; raises GrammarRefused when it is no JSON object."""
    try:
        schema = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise GrammarRefused("nested too deep") from None
    except ValueError as error:
        raise GrammarRefused(f"not JSON: {error}") from None
    if not isinstance(schema, dict):
        raise GrammarRefused("not a JSON object")
    return f"start: %json {json.dumps(_with_bounded_whitespace(schema))}{_OPTIONS}"


def reason_of(error: str) -> str:
    """The library's message without the excerpt of our grammar, in one line."""
    lines = [line for line in _ORIGIN.sub("", error).splitlines() if not _SOURCE_LINE.match(line)]
    reason = " ".join(" ".join(lines).split())[:_MAX_REASON]
    return "no text fits it" if reason in _NOTHING_FITS else reason


def _with_bounded_whitespace(schema: dict[str, Any]) -> dict[str, Any]:
    options = schema.get("x-guidance", {})
    if not isinstance(options, dict) or "whitespace_pattern" in options or "whitespace_flexible" in options:
        return schema
    return schema | {"x-guidance": {**options, "whitespace_pattern": _JSON_WHITESPACE}}


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
