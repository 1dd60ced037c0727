"""Checks of single fields, which name the field, its value and the limit."""

import math
from collections.abc import Sequence

import numpy as np

from pypto_serving.wire.columns import Ids, unpack_ids
from worker.service.frames.description import WorkerDescription
from worker.service.frames.frame_error import FrameError
from worker.step import CacheGroup


def ids_below(column: bytes, field: str, limit: int) -> Ids:
    """Unpack a column whose values are all below `limit`."""
    try:
        ids = unpack_ids(column, field)
    except ValueError as error:
        raise FrameError(str(error)) from None
    if len(ids) and int(ids.max()) >= limit:
        raise FrameError(f"{field}: {ids.max()} is not below {limit}")
    return ids


def check_range(field: str, value: float, low: float, high: float) -> None:
    """Raise FrameError unless `value` is finite and low <= value <= high."""
    if not math.isfinite(value):
        raise FrameError(f"{field}: {value} is not finite")
    if not low <= value <= high:
        raise FrameError(f"{field}: {value}, allowed are {low} to {high}")


def check_distinct(ids: Ids | Sequence[int], field: str) -> None:
    if len(ids) > 1 and len(np.unique(np.asarray(ids))) < len(ids):
        raise FrameError(f"{field}: names a lane twice")


def check_equal_lengths(columns: dict[str, int]) -> None:
    if len(set(columns.values())) > 1:
        lengths = ", ".join(f"{field} {length}" for field, length in columns.items())
        raise FrameError(f"columns that belong together differ in length: {lengths}")


def max_table_length(group: CacheGroup, worker: WorkerDescription) -> int:
    return -(-worker.max_model_len // group.page_tokens)
