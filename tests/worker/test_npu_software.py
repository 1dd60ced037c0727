"""What drives an NPU, and what is missing for it."""

from pathlib import Path

import pytest

from worker.npu_software import NpuSoftware, find_npu_software


@pytest.fixture
def toolkit(tmp_path: Path) -> Path:
    (tmp_path / "include" / "pto").mkdir(parents=True)
    (tmp_path / "aarch64-linux").mkdir()
    (tmp_path / "aarch64-linux" / "ascend_toolkit_install.info").write_text(
        "package_name=Ascend-cann-toolkit\nversion=8.5.0\narch=aarch64\n"
    )
    return tmp_path


def test_versions_and_headers_are_found(toolkit: Path) -> None:
    found = find_npu_software({"ASCEND_HOME_PATH": str(toolkit)})
    assert (found.cann, found.pto_isa) == ("8.5.0", str(toolkit / "include" / "pto"))


def test_a_toolkit_that_does_not_tell_its_version_is_taken(toolkit: Path) -> None:
    (toolkit / "aarch64-linux" / "ascend_toolkit_install.info").unlink()
    assert find_npu_software({"ASCEND_HOME_PATH": str(toolkit)}).cann == "unknown"


@pytest.mark.parametrize("environment", [{}, {"ASCEND_HOME_PATH": ""}])
def test_pypto_is_not_left_to_simulate(environment: dict[str, str]) -> None:
    with pytest.raises(FileNotFoundError, match=r"^ASCEND_HOME_PATH is not set, and PyPTO would simulate"):
        find_npu_software(environment)


def test_missing_headers_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=rf"^there is no folder {tmp_path}/include/pto, .* PTO_TILE_LIB_CODE_PATH$"):
        find_npu_software({"ASCEND_HOME_PATH": str(tmp_path)})
    elsewhere = {"ASCEND_HOME_PATH": str(tmp_path), "PTO_TILE_LIB_CODE_PATH": str(tmp_path)}
    assert find_npu_software(elsewhere).pto_isa == str(tmp_path)


@pytest.mark.parametrize(
    ("pypto", "replays"), [("0.2.0", False), ("9.0.3", False), ("unknown", False), ("9.1.0", True), ("9.1.0.post1", True), ("10.0", True)]
)
def test_graphs_are_replayed_from_the_version_on_that_waits(pypto: str, replays: bool) -> None:
    refusal = NpuSoftware("9.1.0", "2.12.0", pypto, "/pto").replay_refusal
    assert (refusal is None) == replays
    assert replays or pypto in refusal
