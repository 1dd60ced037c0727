"""Rows of a benchmark: printed as they come, written as JSON and as the table of docs/benchmarks.md at the end."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.machine import describe_machine

_BEGIN, _END = "<!-- measured: {} -->", "<!-- end: {} -->"
_COLUMNS = ("work", "against", "figures", "ratio", "goal")


@dataclass(frozen=True, slots=True)
class Row:
    """One ratio and what it should be at least, or at most."""

    work: str
    against: str
    figures: str  # absolute, of this machine and hour only
    ratio: float
    goal: float
    at_most: bool = False

    @property
    def is_reached(self) -> bool:
        """Whether the goal holds."""
        return self.ratio <= self.goal if self.at_most else self.ratio >= self.goal

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of the table."""
        goal = f"{'<=' if self.at_most else '>='} {self.goal:g}{'' if self.is_reached else ', missed'}"
        return self.work, self.against, self.figures, f"{self.ratio:.2f}", goal


def row_against_limit(work: str, value: float, limit: float, unit: str, at_most: bool = True) -> Row:
    """A measured value against the most that it may be, or the least."""
    return Row(work, f"{limit:,g} {unit}", f"{value:,.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}", value / limit, 1.0, at_most)


@dataclass(frozen=True, slots=True)
class Report:
    """The rows of one benchmark."""

    name: str
    rows: list[Row] = field(default_factory=list)

    def add(self, row: Row) -> None:
        """Add a row and print it."""
        self.rows.append(row)
        print(" | ".join(row.cells), flush=True)

    @property
    def num_missed(self) -> int:
        """Goals that do not hold."""
        return sum(not row.is_reached for row in self.rows)

    def write_json(self, path: Path) -> None:
        """The machine and all rows."""
        rows = [asdict(row) | {"is_reached": row.is_reached} for row in self.rows]
        path.write_text(json.dumps({"benchmark": self.name, "machine": describe_machine(), "rows": rows}, indent=2) + "\n")

    def write_table(self, page: Path) -> None:
        """Replace the table between this benchmark's marks in a page of Markdown."""
        begin, end = _BEGIN.format(self.name), _END.format(self.name)
        head, _, rest = page.read_text().partition(begin)
        assert end in rest, f"{page} has no lines {begin} and {end}"
        machine = ", ".join(describe_machine().values())
        lines = [begin, machine, "", *_table([_COLUMNS, ("---",) * len(_COLUMNS), *(row.cells for row in self.rows)])]
        page.write_text(head + "\n".join(lines) + "\n" + end + rest.partition(end)[2])


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in rows]
