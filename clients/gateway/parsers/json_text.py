"""JSON that comes in pieces: where a value ends, and calls that are written as an object."""

import json
from collections.abc import Callable, Set
from enum import Enum, auto

_BLANKS = " \t\r\n"
_ARGUMENTS = ("arguments", "parameters")


class MalformedCall(ValueError):
    """What should be a call is none."""


class ValueEnd:
    """Finds the end of one JSON value. It checks no syntax: what the text is worth is seen when it is parsed."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._is_scalar = False
        self.has_begun = False

    def find(self, text: str) -> int | None:
        """Place behind the value's last character; None: it goes on."""
        for place, char in enumerate(text):
            if self._in_string:
                self._take_in_string(char)
                if not self._in_string and self._depth == 0:
                    return place + 1
            elif self._is_scalar and (char in ",]}" or char in _BLANKS):
                return place
            elif self._ends_with(char):
                return place + 1
        return None

    def _take_in_string(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False

    def _ends_with(self, char: str) -> bool:
        if not self.has_begun and char in _BLANKS:
            return False
        if char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
        elif not self.has_begun:
            self._is_scalar = True
        self.has_begun = True
        return char in "}]" and self._depth <= 0


class _At(Enum):
    OPEN = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    COMMA = auto()
    END = auto()


class CallObject:
    """Reads `{"name": ..., "arguments": {...}}`, the arguments also as "parameters" or as text that is JSON, in any order.

    `on_name` is called once, before `on_arguments`, which gets their JSON text piece by piece, as the model wrote it. Keys beyond `keys`
    are malformed, or ignored without that.
    """

    def __init__(self, on_name: Callable[[str], None], on_arguments: Callable[[str], None], keys: Set[str] = frozenset()) -> None:
        self._on_name, self._on_arguments = on_name, on_arguments
        self._keys = keys
        self._at = _At.OPEN
        self._value = ValueEnd()
        self._text = ""  # of the key or value that is being read
        self._key = ""
        self._waiting = ""  # arguments that came before the name
        self._streams = False  # whether the value that is being read is told at once
        self.has_name = False
        self.is_done = False

    def read(self, text: str) -> str:
        """Take what belongs to the object; returns what is behind it. Raises MalformedCall."""
        while text and not self.is_done:
            text = self._read_value(text) if self._at in (_At.KEY, _At.VALUE) else self._read_sign(text)
        return text

    def _read_sign(self, text: str) -> str:
        text = text.lstrip(_BLANKS)
        if not text:
            return ""
        match self._at, text[0]:
            case (_At.OPEN, "{") | (_At.COMMA, ","):
                self._begin(_At.KEY)
            case _At.COLON, ":":
                self._begin(_At.VALUE)
            case _At.COMMA, "}":
                self._end()
            case _:
                raise MalformedCall(text)
        return text[1:]

    def _begin(self, what: _At) -> None:
        self._at, self._value, self._text, self._streams = what, ValueEnd(), "", False

    def _read_value(self, text: str) -> str:
        if self._at is _At.KEY and not self._value.has_begun:
            text = text.lstrip(_BLANKS)
            if text[:1] not in ('"', ""):
                raise MalformedCall(text)
        end = self._value.find(text)
        taken = text if end is None else text[:end]
        if self._at is _At.VALUE and self._key in _ARGUMENTS:
            self._take_arguments(taken)
        else:
            self._text += taken
        if end is None:
            return ""
        self._end_value()
        return text[end:]

    def _take_arguments(self, taken: str) -> None:
        if not self._text and not self._streams:
            taken = taken.lstrip(_BLANKS)
        self._streams = self._streams or (self.has_name and not self._text and taken[:1] not in ('"', ""))
        if self._streams:
            self._on_arguments(taken)
        else:
            self._text += taken

    def _end_value(self) -> None:
        if self._at is _At.KEY:
            self._key, self._at = str(_parsed(self._text)), _At.COLON
            if self._keys and self._key not in self._keys:
                raise MalformedCall(self._key)
            return
        self._at = _At.COMMA
        if self._key == "name":
            self._take_name(_parsed(self._text))
        elif self._key in _ARGUMENTS and not self._streams:
            self._take_whole_arguments()

    def _take_name(self, name: object) -> None:
        if not isinstance(name, str) or not name or self.has_name:
            raise MalformedCall(name)
        self.has_name = True
        self._on_name(name)
        if self._waiting:
            self._on_arguments(self._waiting)

    def _take_whole_arguments(self) -> None:
        value = _parsed(self._text)
        text = value if isinstance(value, str) else self._text
        if self.has_name:
            self._on_arguments(text)
        else:
            self._waiting = text

    def _end(self) -> None:
        if not self.has_name:
            raise MalformedCall("no name")
        self.is_done = True


def _parsed(text: str) -> object:
    try:
        value: object = json.loads(text)
    except ValueError as error:
        raise MalformedCall(text) from error
    return value
