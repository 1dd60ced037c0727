"""The fields of a checkpoint's config.json, checked as they are read."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from pypto_serving.process.start_up import StartUpError
from pypto_serving.wire.model_directory import check_no_pointer


class ModelRefused(StartUpError):
    """A model that cannot be served as it is; the message is one line that names the file, the field or tensor, and the value."""


_MAX_INTEGER = 2**53  # products of two do not fit into torch's integers, and are a RuntimeError there


class ConfigFields:
    """Fields of a JSON object in a file; null counts as absent. Every reader refuses a value of another kind.

    A reader without a default refuses a missing field.
    """

    def __init__(self, path: Path, values: Mapping[str, object], prefix: str = "") -> None:
        self.path = path
        self._values = values
        self._prefix = prefix

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    @property
    def names(self) -> list[str]:
        """Names of the fields that are there."""
        return [name for name in self._values if name in self]

    def refusal(self, name: str, expected: str) -> ModelRefused:
        """The error to raise for a field."""
        found = f"is {self._values[name]!r}" if name in self else "is missing"
        return ModelRefused(f"{self.path}: {self._prefix}{name} {found}; expected {expected}")

    def integer(self, name: str, default: int | None = None, minimum: int = 1) -> int:
        """A whole number of at least `minimum`."""
        value = self._values.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= _MAX_INTEGER:
            raise self.refusal(name, f"a whole number of at least {minimum} and at most 2^53")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self._values.get(name)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= sys.float_info.max:
            raise self.refusal(name, "a number above 0")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self._values.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.refusal(name, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A string."""
        value = self._values.get(name)
        value = default if value is None else value
        if not isinstance(value, str):
            raise self.refusal(name, "a string")
        return value

    def texts(self, name: str) -> list[str]:
        """A list of strings; empty when the field is missing."""
        values = self._values.get(name)
        values = [] if values is None else values
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise self.refusal(name, "a list of strings")
        return values

    def integers(self, name: str) -> list[int]:
        """A list of whole numbers; empty when the field is missing."""
        values = self._values.get(name)
        values = [] if values is None else values
        if not isinstance(values, list) or not all(isinstance(value, int) for value in values):
            raise self.refusal(name, "a list of whole numbers")
        return values

    def one_of(self, name: str, *values: object, expected: str = "") -> object:
        """One of some JSON values; None stands for a missing field."""
        value = self._values.get(name)
        if not any(type(value) is type(allowed) and value == allowed for allowed in values):
            raise self.refusal(name, expected or " or ".join("nothing" if allowed is None else repr(allowed) for allowed in values))
        return value

    def section(self, name: str) -> "ConfigFields":
        """An object within the object; without any field when it is missing."""
        values = self._values.get(name)
        values = {} if values is None else values
        if not isinstance(values, dict):
            raise self.refusal(name, "an object")
        return ConfigFields(self.path, values, f"{self._prefix}{name}.")


def read_json_object(path: Path) -> dict[str, object]:
    """The JSON object in a file; ModelRefused when the file cannot be read or holds anything else."""
    try:
        content = path.read_bytes()
        check_no_pointer(path, content)
    except OSError as error:
        raise ModelRefused(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ModelRefused(str(error)) from None
    try:
        values = json.loads(content)
    except ValueError as error:
        raise ModelRefused(f"{path}: not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ModelRefused(f"{path}: holds no JSON object")
    return values
