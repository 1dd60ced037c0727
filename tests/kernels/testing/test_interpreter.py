"""What the harness shows of kernels with faults."""

import math
from importlib.util import find_spec

import pytest

from kernels.testing.isolation import IsolatedFailure, run_isolated

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.kernels_fast,
    pytest.mark.skipif(find_spec("pypto") is None, reason="PyPTO is not installed: extra `kernels-dev`"),
]


def test_elements_that_were_not_written_are_seen():
    rows = run_isolated("harness.kernels.isolated_functions:half_written", 5, 3)
    assert rows[:3] == [[1.0] * 32] * 3
    assert all(map(math.isnan, rows[3] + rows[4]))


def test_nan_is_seen():
    assert all(map(math.isnan, run_isolated("harness.kernels.isolated_functions:not_a_number")))


def test_a_broken_process_does_not_harm_the_next():
    with pytest.raises(IsolatedFailure):
        run_isolated("harness.kernels.isolated_functions:broken_then_good")
    assert run_isolated("harness.kernels.isolated_functions:half_written", 2, 2) == [[1.0] * 32] * 2
