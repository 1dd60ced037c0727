"""Types of command line arguments, for `type=` of argparse; a refusal names the value and what is allowed."""

import argparse
import math
from collections.abc import Callable

from pypto_serving.process.address import split_address

_MAX_INT = 2**31 - 1
_MAX_SECONDS = 86400.0
_MAX_SOCKET_PATH = 107  # of the kernel, in bytes


def count(text: str) -> int:
    """An integer from 0."""
    return _integer(text, 0, _MAX_INT)


def positive(text: str) -> int:
    """An integer from 1."""
    return _integer(text, 1, _MAX_INT)


def port(text: str) -> int:
    """A port; 0 means any free one."""
    return _integer(text, 0, 65535)


def between(low: int, high: int) -> Callable[[str], int]:
    """The type of an integer from `low` to `high`."""
    return lambda text: _integer(text, low, high)


def number(text: str) -> float:
    """A finite number."""
    value = _number(text)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number")
    return value


def number_between(low: float, high: float) -> Callable[[str], float]:
    """The type of a number from `low` to `high`."""

    def kind(text: str) -> float:
        value = _number(text)
        if not low <= value <= high:  # false for NaN
            raise argparse.ArgumentTypeError(f"{text} is not a number from {low:g} to {high:g}")
        return value

    return kind


def seconds(text: str) -> float:
    """A time from 0 to a day."""
    value = _number(text)
    if not 0.0 <= value <= _MAX_SECONDS:  # false for NaN
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds from 0 to {_MAX_SECONDS:.0f}")
    return value


def positive_seconds(text: str) -> float:
    """A time above 0 and up to a day."""
    if _number(text) <= 0.0:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0")
    return seconds(text)


def seconds_from(least: float) -> Callable[[str], float]:
    """The type of a time from `least` to a day."""

    def kind(text: str) -> float:
        if _number(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is not a number of seconds of at least {least:g}")
        return seconds(text)

    return kind


def address(text: str) -> str:
    """host:port."""
    try:
        split_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).replace(repr(text), text, 1)) from None
    return text


def url(text: str) -> str:
    """http:// or https://, and host:port."""
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in ("http", "https"):
        raise argparse.ArgumentTypeError(f"{text} is not http://HOST:PORT or https://HOST:PORT")
    address(rest.rstrip("/"))
    return text


def address_or_socket(text: str) -> str:
    """host:port, or unix: and the absolute path of a socket in the file system."""
    if not text.startswith("unix:"):
        return address(text)
    if not text.startswith("unix:/") or len(text.encode()) - len("unix:") > _MAX_SOCKET_PATH:
        raise argparse.ArgumentTypeError(f"{text} is not unix: and an absolute path of at most {_MAX_SOCKET_PATH} bytes")
    return text


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not a number") from None


def _integer(text: str, low: int, high: int) -> int:
    if not (text.isascii() and text.isdecimal() and low <= int(text) <= high):
        raise argparse.ArgumentTypeError(f"{text} is not an integer from {low} to {high}")
    return int(text)
