"""Progress of what takes long, on standard error, where somebody looks at it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

#: Takes how much more is done, and what to say beside the bar from now on.
Advance = Callable[..., None]


def no_advance(n: int = 1, note: str = "") -> None:
    """Nobody looks."""


@contextmanager
def progress_bar(title: str, total: int | None, unit: str) -> Iterator[Advance]:
    """A bar with the time that is left, which `advance(n=1, note="")` moves; nothing without a terminal, or without rich."""
    if not sys.stderr.isatty() or find_spec("rich") is None:
        yield no_advance
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = [TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,.0f} of {task.total:,.0f} {task.fields[unit]}")]
    if total is None:
        columns = [TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,.0f} {task.fields[unit]}")]
    more = [TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[note]}")]
    with Progress(*columns, *more, console=Console(stderr=True), transient=True, redirect_stdout=False) as progress:
        task = progress.add_task(title, total=total, unit=unit, note="")

        def advance(n: int = 1, note: str = "") -> None:
            progress.update(task, advance=n, note=note)

        yield advance
