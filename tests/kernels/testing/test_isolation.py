"""Functions in processes of their own."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from kernels.testing.isolation import IsolatedFailure, run_isolated

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.kernels_fast,
    pytest.mark.skipif(find_spec("pypto") is None, reason="PyPTO is not installed: extra `kernels-dev`"),
]


def test_result_comes_back():
    assert run_isolated("harness.kernels.isolated_functions:add", 2, 3) == 5


def test_failure_names_the_error_and_what_was_written():
    with pytest.raises(IsolatedFailure, match=r"no such tile(.|\n)*what PyPTO wrote"):
        run_isolated("harness.kernels.isolated_functions:fail")


def test_death_is_a_failure():
    with pytest.raises(IsolatedFailure, match="the process died"):
        run_isolated("harness.kernels.isolated_functions:die")


def test_a_function_that_computes_for_too_long_is_ended():
    with pytest.raises(IsolatedFailure, match=r"the process died: more than 1 s of CPU time(.|\n)*going to spin"):
        run_isolated("harness.kernels.isolated_functions:spin", max_cpu_seconds=1)


def test_a_function_that_waits_for_ever_is_ended():
    with pytest.raises(IsolatedFailure, match=r"wait: no result after 0\.5 s"):
        run_isolated("harness.kernels.isolated_functions:wait", max_seconds=0.5)


def test_working_directory_is_empty_and_gone_afterwards():
    directory, files = run_isolated("harness.kernels.isolated_functions:where")
    assert files == ["written"] and not Path(directory).exists()
