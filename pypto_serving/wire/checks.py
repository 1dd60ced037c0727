"""What both ends of the worker protocol check of a frame, whichever sent it. Messages name the field, its value and the limit."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from pypto_serving.wire.contract import MAX_NAME_LENGTH


class FrameError(ValueError):
    """A frame breaks the protocol; the message says how."""


def check_range(field: str, value: float, low: float, high: float) -> None:
    """Raise FrameError unless `value` is finite and low <= value <= high."""
    if not math.isfinite(value):
        raise FrameError(f"{field}: {value} is not finite")
    if not low <= value <= high:
        raise FrameError(f"{field}: {value}, must be from {low} to {high}")


def check_below(field: str, column: npt.NDArray[np.uint32], limit: int) -> None:
    """Raise FrameError unless every value is below `limit`."""
    if len(column) and int(column.max()) >= limit:
        raise FrameError(f"{field}: {column.max()} is not below {limit}")


def check_finite(field: str, column: npt.NDArray[np.float32]) -> None:
    """Raise FrameError unless every value is finite."""
    if not np.isfinite(column).all():
        raise FrameError(f"{field}: {column[~np.isfinite(column)][0]} is not finite")


def check_distinct(field: str, lanes: Sequence[int] | npt.NDArray[np.uint32]) -> None:
    """Raise FrameError when a lane occurs twice."""
    if len(set(lanes if isinstance(lanes, Sequence) else lanes.tolist())) < len(lanes):
        raise FrameError(f"{field}: names a lane twice")


def check_equal_lengths(columns: Mapping[str, Sequence[int] | npt.NDArray[np.generic]]) -> None:
    """Raise FrameError when columns that belong together, by field, differ in length."""
    if len({len(column) for column in columns.values()}) > 1:
        lengths = ", ".join(f"{field} {len(column)}" for field, column in columns.items())
        raise FrameError(f"columns that belong together differ in length: {lengths}")


def check_name(field: str, name: str) -> None:
    """Raise FrameError unless a name is there, short and printable."""
    if not (0 < len(name) <= MAX_NAME_LENGTH and name.isprintable()):
        raise FrameError(f"{field}: {name[:MAX_NAME_LENGTH]!r}, must be 1 to {MAX_NAME_LENGTH} printable characters")


def is_unknown_kind(frame: Message) -> bool:
    """Whether a frame is of a kind that this build does not know, and is to be ignored; an empty one is of no kind."""
    return frame.WhichOneof("frame") is None and len(UnknownFieldSet(frame)) > 0
