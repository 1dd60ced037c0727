"""Times of a null worker's steps."""

from pathlib import Path

import pytest

from worker.step_time import StepTable, StepTime, read_step_table

_HEADER = "batch_size,tokens,milliseconds\n"
_TABLE = StepTable({1: ([0, 100], [2.0, 12.0]), 11: ([0], [4.0])})


def test_times_add_up_and_a_step_without_sequences_takes_none() -> None:
    timing = StepTime(0.005, 0.001)
    assert (timing.seconds(2, 3), timing.seconds(0, 0)) == (pytest.approx(0.008), 0.0)


@pytest.mark.parametrize(
    ("batch_size", "num_tokens", "milliseconds"),
    [
        (1, 1, 2.0),
        (1, 51, 7.0),
        (1, 999, 12.0),
        (6, 6, 3.0),  # decodes only, half way between both
        (6, 56, 5.5),  # 50 more: between 7 and 4
        (11, 999, 4.0),
        (99, 99, 4.0),
    ],
)
def test_table_is_interpolated_between_its_rows_and_constant_beyond(batch_size: int, num_tokens: int, milliseconds: float) -> None:
    assert StepTime(table=_TABLE).seconds(batch_size, num_tokens) == pytest.approx(milliseconds / 1e3)
    assert StepTime(table=_TABLE).seconds(0, 0) == 0.0


def test_rows_are_read_in_any_order(tmp_path: Path) -> None:
    (path := tmp_path / "steps.csv").write_text(_HEADER + "11,11,4\n\n1,101,12\r\n1,1,2.0\n")
    assert read_step_table(path) == _TABLE


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: must be batch_size,tokens,milliseconds"),
        ("1,1,5\n", "line 1: must be batch_size,tokens,milliseconds"),
        (_HEADER, "there is no row in it"),
        (_HEADER + "1,1\n", "line 2: 2 columns, must be 3"),
        (_HEADER + "1,1,5\n0,1,5\n", "line 3: batch_size: '0' is not an integer from 1 to 1048576"),
        (_HEADER + "4,3,5\n", "line 2: tokens: '3' is not an integer from 4 to 1048576"),
        (_HEADER + "1,1,nan\n", "line 2: milliseconds: 'nan' is not a number from 0 to 10000"),
        (_HEADER + "1,1,five\n", "line 2: milliseconds: 'five' is not a number"),
        (_HEADER + "1,2,5\n1,2,6\n", "line 3: batch_size 1 and tokens 2 are given twice"),
    ],
)
def test_wrong_table_is_refused_with_line_field_and_limit(tmp_path: Path, text: str, message: str) -> None:
    (path := tmp_path / "steps.csv").write_text(text)
    with pytest.raises(ValueError, match=f"^{message}"):
        read_step_table(path)
