"""How long the steps of a null worker take: a fixed time and one for each token, or a table of what a device was measured to take."""

import time
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MAX_STEP_MS = 10_000
_HEADER = "batch_size,tokens,milliseconds"
_MAX_COUNT = 1 << 20

#: Points, ascending, and the value at each: tokens beyond one of each sequence, and the milliseconds of a step with so many.
Curve = tuple[Sequence[int], Sequence[float]]


@dataclass(frozen=True, slots=True)
class StepTable:
    """Measured milliseconds, by the number of sequences in a step.

    Between its rows a table is interpolated: linearly in the tokens beyond one of each sequence, which are those of prompts, and then,
    with as many of them, linearly in the sequences. Beyond its rows the nearest holds.
    """

    curves: Mapping[int, Curve]  # by number of sequences, ascending

    def milliseconds(self, batch_size: int, num_tokens: int) -> float:
        """Of a step of `batch_size` sequences and `num_tokens` tokens."""
        more = num_tokens - batch_size
        return _interpolated(batch_size, (list(self.curves), [_interpolated(more, curve) for curve in self.curves.values()]))


@dataclass(frozen=True, slots=True)
class StepTime:
    """How long a step takes in which something runs; one in which nothing does takes none."""

    step_seconds: float = 0.0
    token_seconds: float = 0.0  # more for every token that runs
    table: StepTable | None = None  # in place of both
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def seconds(self, batch_size: int, num_tokens: int) -> float:
        """Of a step of `batch_size` sequences and `num_tokens` tokens."""
        if not batch_size:
            return 0.0
        if self.table is not None:
            return self.table.milliseconds(batch_size, num_tokens) / 1e3
        return self.step_seconds + num_tokens * self.token_seconds


def _interpolated(at: int, curve: Curve) -> float:
    points, values = curve
    right = bisect(points, at)
    if right in (0, len(points)):
        return values[min(right, len(points) - 1)]
    share = (at - points[right - 1]) / (points[right] - points[right - 1])
    return values[right - 1] + share * (values[right] - values[right - 1])


def read_step_table(path: Path) -> StepTable:
    """Read CSV with the columns batch_size, tokens and milliseconds, its rows in any order.

    Raises OSError, or ValueError naming line, field, value and limit.
    """
    header, *rows = path.read_text("utf-8").splitlines() or [""]
    if header != _HEADER:
        raise ValueError(f"line 1: must be {_HEADER}")
    curves: dict[int, dict[int, float]] = {}
    for number, row in enumerate(rows, 2):
        if row.strip():
            try:
                _add_row(curves, row.split(","))
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
    if not curves:
        raise ValueError("there is no row in it")
    return StepTable({batch_size: _curve(points) for batch_size, points in sorted(curves.items())})


def _add_row(curves: dict[int, dict[int, float]], cells: Sequence[str]) -> None:
    if len(cells) != 3:
        raise ValueError(f"{len(cells)} columns, must be 3")
    batch_size = _count("batch_size", cells[0], 1)
    num_tokens = _count("tokens", cells[1], batch_size)
    curve = curves.setdefault(batch_size, {})
    if num_tokens - batch_size in curve:
        raise ValueError(f"batch_size {batch_size} and tokens {num_tokens} are given twice")
    curve[num_tokens - batch_size] = _milliseconds(cells[2])


def _count(name: str, text: str, least: int) -> int:
    if not (text.isascii() and text.isdecimal() and least <= int(text) <= _MAX_COUNT):
        raise ValueError(f"{name}: {text!r} is not an integer from {least} to {_MAX_COUNT}")
    return int(text)


def _milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MAX_STEP_MS:  # false for NaN
        raise ValueError(f"milliseconds: {text!r} is not a number from 0 to {MAX_STEP_MS}")
    return value


def _curve(points: Mapping[int, float]) -> Curve:
    more = sorted(points)
    return more, [points[tokens] for tokens in more]
