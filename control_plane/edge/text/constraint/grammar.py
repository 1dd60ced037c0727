"""Languages as clients describe them, in the one form that is compiled: a Lark grammar of llguidance."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NoReturn, TypeGuard

from llguidance import LLMatcher

_SOURCE_LINE = re.compile(r"\s*\d+ \||\s*\^+\s*$|\s*<non-verbose/>|\s*<state>")
_ORIGIN = re.compile(r"^(at )?\d+\(\d+\): (failed to compile JSON schema: )?|^failed to parse \"%json\": |^parser error: ", re.IGNORECASE)
_MAX_REASON = 300

#: What the library says when it has found that nothing matches.
_NOTHING_FITS = ("NoExtension", "NoExtensionBias")

#: What we say of oneOf: the option that the library recommends would only pretend to support it.
_ONE_OF = "oneOf is supported only where its options cannot overlap, such as those of different types; anyOf lets them"

#: Without it the grammar decides how the text that it forces is cut into tokens: at once, however long the text is.
_OPTIONS = '\n%llguidance {"no_forcing": true}\n'

#: Most JSON is written with less between two values; without a bound a weak model can go on with blanks for ever.
_WHITESPACE = r"[\x20\x0A\x0D\x09]{1,64}"

#: Escapes that a text may have. With \uXXXX a name could be written in several ways, of which the compiler tells only one from the others.
_ESCAPES = 'nrbtf\\"'
_UNWRITABLE = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")

#: Formats of texts that the compiler knows; others are annotations, as the standard allows.
_FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri", "uuid"}
)  # "unknown" is any text

_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})  # of names, not of keywords
_ANNOTATIONS = frozenset({"default", "example", "examples"})
_BOUNDS = {"minimum": 0, "maximum": 0, "exclusiveMinimum": 1, "exclusiveMaximum": -1}  # and how far off the last number is
_MAX_INTEGER = (1 << 63) - 1


class GrammarRefused(ValueError):
    """A grammar cannot be used; the message says why, in one line."""


def reason_of(error: str) -> str:
    """The library's message without the excerpt of our grammar, in one line."""
    lines = [line for line in _ORIGIN.sub("", error).splitlines() if not _SOURCE_LINE.match(line)]
    reason = " ".join(" ".join(lines).split())[:_MAX_REASON]
    if reason.startswith("oneOf constraints are not supported"):
        return _ONE_OF
    return "no text fits it" if reason in _NOTHING_FITS else reason


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


def compiled_schema(text: str) -> str:
    """The schema to be compiled, as JSON; raises GrammarRefused when it is no JSON object, or asks for what would not be kept."""
    try:
        schema = json.loads(text, parse_constant=_refuse_constant, parse_float=Decimal)
        if not isinstance(schema, dict):
            raise GrammarRefused("not a JSON object")
        return json.dumps(_with_options(_schema(schema)), default=_as_float)
    except RecursionError:
        raise GrammarRefused("nested too deep") from None
    except ValueError as error:
        raise error if isinstance(error, GrammarRefused) else GrammarRefused(f"not JSON: {error}") from None


def _with_options(schema: dict[str, Any]) -> dict[str, Any]:
    options = schema.get("x-guidance", {})
    if not isinstance(options, dict):
        return schema
    blanks = {} if "whitespace_pattern" in options or "whitespace_flexible" in options else {"whitespace_pattern": _WHITESPACE}
    escapes = {"json_allowed_escapes": _ESCAPES, "json_allow_general_unicode_escapes": False}
    return schema | {"x-guidance": {**options, **blanks, **escapes}}


def _schema(schema: Any) -> Any:
    """A schema, or something unknown that could be one or hold some: a reference can name any place."""
    if isinstance(schema, list):
        return [_schema(member) for member in schema]
    if not isinstance(schema, dict):
        return schema
    _check_bounds(schema)
    _check_min_properties(schema)
    return {keyword: _keyword(keyword, value) for keyword, value in schema.items() if keyword != "format" or value in _FORMATS}


def _keyword(keyword: str, value: Any) -> Any:
    if keyword in _MAPS and isinstance(value, dict):
        return {name: _schema(member) for name, member in value.items()}
    if keyword in _ANNOTATIONS:
        return value
    if keyword in ("enum", "const"):
        _check_literal(keyword, value)
        return value
    return _schema(value)


def _check_literal(keyword: str, value: Any) -> None:
    """The compiler keeps numbers as doubles, and has no escape for most control characters."""
    if isinstance(value, dict | list):
        for member in [*value, *value.values()] if isinstance(value, dict) else value:
            _check_literal(keyword, member)
    elif isinstance(value, str) and (unwritable := _UNWRITABLE.search(value)):
        raise GrammarRefused(f"{keyword}: U+{ord(unwritable[0]):04X} is not supported, only \\b \\f \\n \\r \\t are")
    elif _is_number(value) and not (_double(value) == value if isinstance(value, int) else _is_exact(value)):
        raise GrammarRefused(_inexact(keyword, value))


def _check_bounds(schema: Mapping[str, Any]) -> None:
    for keyword, step in _BOUNDS.items():
        value = schema.get(keyword)
        if _is_number(value):
            is_kept = _is_kept_integer(value, step) if schema.get("type") == "integer" else _is_exact(value)
            if not is_kept:
                raise GrammarRefused(_inexact(keyword, value))


def _is_kept_integer(value: int | Decimal, step: int) -> bool:
    """Whether a bound of whole numbers survives: a double, moved by one if it is exclusive, and then cut to 64 bits."""
    if value != int(value):
        return _is_exact(value)
    last = _double(value) + step
    return math.isfinite(last) and max(-_MAX_INTEGER - 1, min(int(last), _MAX_INTEGER)) == int(value) + step


def _is_exact(value: int | Decimal) -> bool:
    """Whether the shortest digits of the nearest double are those of the number."""
    return math.isfinite(_double(value)) and Decimal(repr(_double(value))) == value


def _is_number(value: object) -> TypeGuard[int | Decimal]:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def _double(value: int | Decimal) -> float:
    """The nearest double, or an infinity."""
    return float(Decimal(value))


def _check_min_properties(schema: Mapping[str, Any]) -> None:
    """A name that is written twice would count as two: only names that are required can be counted."""
    least, required = schema.get("minProperties", 0), schema.get("required", [])
    if _is_number(least) and isinstance(required, list) and least > max(1, len(required)):
        raise GrammarRefused(f"minProperties = {least} is more than the required names, of which there are {len(required)}: not supported")


def _inexact(keyword: str, value: object) -> str:
    return f"{keyword}: the number {value} has more digits than a double keeps; a text can hold it"


def _as_float(value: Decimal) -> float:
    if not math.isfinite(number := _double(value)):
        raise GrammarRefused(f"the number {value} is beyond 1.8e308")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
