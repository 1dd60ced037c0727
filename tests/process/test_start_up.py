"""What the lack of a package says."""

import pytest

from pypto_serving.process.start_up import StartUpError, needs_extra


def test_a_missing_package_names_the_extra_that_has_it() -> None:
    with (
        pytest.raises(StartUpError, match=r"^no package 'no_such_package' here: pip install 'pypto-serving\[worker\]'$"),
        needs_extra("worker"),
    ):
        import no_such_package  # noqa: F401


def test_a_missing_module_of_ours_is_no_missing_extra() -> None:
    with pytest.raises(ModuleNotFoundError), needs_extra("worker"):
        import worker.no_such_module  # noqa: F401
