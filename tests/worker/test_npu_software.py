"""What drives an NPU, and what is missing for it."""

import shutil
from pathlib import Path

import pytest

from worker.npu_software import NpuKernels, NpuSoftware, find_npu_software


@pytest.fixture
def toolkit(tmp_path: Path) -> Path:
    (tmp_path / "include" / "pto").mkdir(parents=True)
    (tmp_path / "aarch64-linux").mkdir()
    (tmp_path / "aarch64-linux" / "ascend_toolkit_install.info").write_text(
        "package_name=Ascend-cann-toolkit\nversion=8.5.0\narch=aarch64\n"
    )
    return tmp_path


def test_versions_and_headers_are_found(toolkit: Path) -> None:
    found = find_npu_software(NpuKernels.PYPTO, {"ASCEND_HOME_PATH": str(toolkit)})
    assert (found.cann, found.pto_isa) == ("8.5.0", str(toolkit / "include" / "pto"))


def test_a_toolkit_that_does_not_tell_its_version_is_taken(toolkit: Path) -> None:
    (toolkit / "aarch64-linux" / "ascend_toolkit_install.info").unlink()
    assert find_npu_software(NpuKernels.PYPTO, {"ASCEND_HOME_PATH": str(toolkit)}).cann == "unknown"


@pytest.mark.parametrize("environment", [{}, {"ASCEND_HOME_PATH": ""}])
def test_pypto_is_not_left_to_simulate(environment: dict[str, str]) -> None:
    with pytest.raises(FileNotFoundError, match=r"^ASCEND_HOME_PATH is not set, and PyPTO would simulate"):
        find_npu_software(NpuKernels.PYPTO, environment)


def test_missing_headers_are_named(tmp_path: Path) -> None:
    told = rf"^there is no folder {tmp_path}/include/pto, .* set PTO_TILE_LIB_CODE_PATH to where it lies$"
    with pytest.raises(FileNotFoundError, match=told):
        find_npu_software(NpuKernels.PYPTO, {"ASCEND_HOME_PATH": str(tmp_path)})


def test_headers_may_lie_elsewhere(tmp_path: Path) -> None:
    environment = {"ASCEND_HOME_PATH": str(tmp_path), "PTO_TILE_LIB_CODE_PATH": str(tmp_path / "pto-isa")}
    (tmp_path / "include" / "pto").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=rf"^there is no folder {tmp_path}/pto-isa/include/pto, "):
        find_npu_software(NpuKernels.PYPTO, environment)
    (tmp_path / "pto-isa" / "include" / "pto").mkdir(parents=True)
    assert find_npu_software(NpuKernels.PYPTO, environment).pto_isa == str(tmp_path / "pto-isa" / "include" / "pto")


def test_cann_s_own_kernels_need_nothing_of_pypto(toolkit: Path) -> None:
    shutil.rmtree(toolkit / "include")
    found = find_npu_software(NpuKernels.CANN, {"ASCEND_HOME_PATH": str(toolkit)})
    assert (found.cann, found.pypto, found.mismatch) == ("8.5.0", "not used", None)
    assert find_npu_software(NpuKernels.CANN, {}).cann == "unknown"


def test_with_cann_s_own_kernels_nobody_is_told_to_install_pypto() -> None:
    other_torch_npu, other_cann = NpuSoftware(NpuKernels.CANN, "8.5.0", "2.13.0"), NpuSoftware(NpuKernels.CANN, "8.3.RC1", "2.9.0")
    assert other_torch_npu.mismatch == "CANN 8.5.0 goes with torch-npu 2.9.0; installed is torch-npu 2.13.0"
    assert other_cann.mismatch is not None and other_cann.mismatch.endswith("install CANN 8.5.0 with torch-npu 2.9.0")


def test_cann_s_own_kernels_are_not_replayed() -> None:
    assert "lengths of sequences" in NpuSoftware(NpuKernels.CANN, "8.5.0", "2.9.0").replay_refusal


@pytest.mark.parametrize(
    ("cann", "torch_npu", "pypto"),
    [
        ("8.5.0", "2.9.0", "0.2.0"),
        ("8.5.0", "2.9.0", "0.2.1"),
        ("8.5.0", "unknown", "unknown"),
        ("9.1.0", "2.12.0", "9.1.0"),
        ("unknown", "2.13.0", "0.2.0"),
    ],
)
def test_versions_of_one_column_belong_together(cann: str, torch_npu: str, pypto: str) -> None:
    assert NpuSoftware(NpuKernels.PYPTO, cann, torch_npu, pypto, "/pto").mismatch is None


@pytest.mark.parametrize(
    ("cann", "torch_npu", "pypto", "wants"),
    [
        ("8.5.0", "2.9.0.post2", "0.2.0", "torch-npu 2.9.0 and pypto 0.2; installed are torch-npu 2.9.0.post2 and pypto 0.2.0"),
        ("8.5.0", "2.13.0", "unknown", "torch-npu 2.9.0 and pypto 0.2; installed are torch-npu 2.13.0 and pypto unknown"),
        ("8.5.0", "2.9.0", "9.1.0", "torch-npu 2.9.0 and pypto 0.2; installed are torch-npu 2.9.0 and pypto 9.1.0"),
        ("9.1.0", "2.12.0", "0.2.0", "torch-npu 2.12.0 and pypto 9.1; installed are torch-npu 2.12.0 and pypto 0.2.0"),
    ],
)
def test_versions_of_different_columns_are_named_with_what_to_install(cann: str, torch_npu: str, pypto: str, wants: str) -> None:
    assert NpuSoftware(NpuKernels.PYPTO, cann, torch_npu, pypto, "/pto").mismatch == f"CANN {cann} goes with {wants}"


def test_another_cann_is_told_of_the_column_that_was_chosen() -> None:
    mismatch = NpuSoftware(NpuKernels.PYPTO, "8.3.RC1", "2.9.0", "0.2.0", "/pto").mismatch
    assert mismatch is not None and mismatch.endswith("install CANN 8.5.0 with torch-npu 2.9.0 and pypto 0.2")


@pytest.mark.parametrize(
    ("pypto", "replays"), [("0.2.0", False), ("9.0.3", False), ("unknown", False), ("9.1.0", True), ("9.1.0.post1", True), ("10.0", True)]
)
def test_graphs_are_replayed_from_the_version_on_that_waits(pypto: str, replays: bool) -> None:
    refusal = NpuSoftware(NpuKernels.PYPTO, "9.1.0", "2.12.0", pypto, "/pto").replay_refusal
    assert (refusal is None) == replays
    assert replays or pypto in refusal
