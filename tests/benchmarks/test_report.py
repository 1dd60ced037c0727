"""Reports of benchmarks: goals, JSON, and the table of a page."""

import json
from pathlib import Path

import pytest

from benchmarks.report import Report, Row, row_against_limit

_FAST = Row("decode", "peer", "1 / 2 ms", 2.0, 1.2)
_SLOW = Row("prefill", "peer", "3 / 2 ms", 0.67, 1.0)
_LARGE = Row("memory", "limit", "3 of 2 MB", 1.5, 1.0, at_most=True)


@pytest.mark.parametrize(("row", "is_reached"), [(_FAST, True), (_SLOW, False), (_LARGE, False)])
def test_goals_are_lower_or_upper_bounds(row: Row, is_reached: bool) -> None:
    assert row.is_reached == is_reached


@pytest.mark.parametrize(
    ("value", "at_most", "cells"),
    [
        (3.0, True, ("4 us", "3 us", "0.75", "<= 1")),
        (12345.6, False, ("4 us", "12,346 us", "3086.40", ">= 1")),
        (0.0123, False, ("4 us", "0.0123 us", "0.00", ">= 1, missed")),
    ],
)
def test_values_are_compared_with_limits(value: float, at_most: bool, cells: tuple[str, ...]) -> None:
    assert row_against_limit("time", value, 4, "us", at_most).cells[1:] == cells


def test_json_names_the_machine_and_every_row(tmp_path: Path) -> None:
    report = Report("model", [_FAST, _SLOW])
    report.write_json(tmp_path / "model.json")
    written = json.loads((tmp_path / "model.json").read_text())
    assert written["machine"].keys() == {"processor", "cores", "instruction sets"}
    assert [(row["work"], row["is_reached"]) for row in written["rows"]] == [("decode", True), ("prefill", False)]
    assert report.num_missed == 1


def test_the_table_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- measured: model -->\nold\n<!-- end: model -->\nafter\n")
    for rows in ([_SLOW], [_FAST]):
        Report("model", rows).write_table(page)
    text = page.read_text()
    assert text.startswith("before\n<!-- measured: model -->\n") and text.endswith("|\n<!-- end: model -->\nafter\n")
    assert "| decode | peer | 1 / 2 ms | 2.00 | >= 1.2 |" in text and "old" not in text and "prefill" not in text
