"""JSON schemas as the compiler takes them: what it would get wrong is refused here, and what only annotates is left out."""

import json
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NoReturn, TypeGuard

from control_plane.edge.text.constraint.refusal import GrammarRefused

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


def compiled_schema(text: str) -> str:
    """The schema to be compiled, as JSON; raises GrammarRefused when it is no JSON object, or asks for what would not be kept."""
    try:
        schema = json.loads(text, parse_constant=_no_constant, parse_float=Decimal)
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


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
