"""Choosing a device."""

import importlib.util
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from worker.device import Device, DeviceUnavailable, select_device
from worker.npu_software import NpuKernels

HAS_TORCH_NPU = importlib.util.find_spec("torch_npu") is not None


def test_cpu_is_always_there() -> None:
    device = select_device("cpu", npu_kernels=NpuKernels.PYPTO)
    device.synchronize()
    assert (device.kind, device.torch_device) == ("cpu", torch.device("cpu"))
    assert device.free_bytes() > 0


def test_number_of_threads_is_set() -> None:
    before = torch.get_num_threads()
    select_device("cpu", num_threads=1, npu_kernels=NpuKernels.PYPTO)
    assert torch.get_num_threads() == 1
    torch.set_num_threads(before)


@pytest.mark.skipif(HAS_TORCH_NPU, reason="this machine has torch-npu")
def test_npu_without_its_package_names_it() -> None:
    with pytest.raises(DeviceUnavailable, match=r"^--device npu: the package torch-npu is not installed"):
        select_device("npu", npu_kernels=NpuKernels.PYPTO)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_missing_cuda_is_one_clear_line() -> None:
    with pytest.raises(DeviceUnavailable, match=r"^--device cuda: (torch is built without CUDA|no CUDA device or driver)$"):
        select_device("cuda", npu_kernels=NpuKernels.PYPTO)


@pytest.mark.skipif(torch.cuda.is_available() or HAS_TORCH_NPU, reason="this machine has an accelerator")
def test_auto_falls_back_to_the_cpu() -> None:
    assert select_device("auto", npu_kernels=NpuKernels.PYPTO).kind == "cpu"


@pytest.mark.parametrize("kind", ["cpu", "auto"])
def test_cpu_is_one_device(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.device._missing", lambda kind: None if kind == "cpu" else "missing")
    with pytest.raises(DeviceUnavailable, match=r"^--device cpu: there is no device 1 \(--device-index\); this machine has 1$"):
        select_device(kind, 1, npu_kernels=NpuKernels.PYPTO)


class _Runtime:
    """What torch keeps for a kind of accelerator, and the order in which it was used."""

    def __init__(self) -> None:
        self.used: list[str] = []

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def set_device(self, index: int) -> None:
        self.used.append(f"device {index}")

    def graph_pool_handle(self) -> str:
        return "pool"

    def Stream(self, device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(wait_stream=lambda other: self.used.append("beside waits"))

    def current_stream(self, device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(wait_stream=lambda other: self.used.append("waits for beside"))

    def stream(self, stream: object) -> AbstractContextManager[None]:
        return nullcontext()

    def CUDAGraph(self) -> SimpleNamespace:
        return SimpleNamespace(replay=lambda: self.used.append("replay"))

    @contextmanager
    def graph(self, graph: object, pool: str) -> Iterator[None]:
        self.used.append(f"capture into {pool}")
        yield
        self.used.append("captured")


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> _Runtime:
    runtime = _Runtime()
    monkeypatch.setattr("worker.device._runtime", lambda kind: runtime)
    return runtime


def test_launch_is_run_once_before_it_is_captured(runtime: _Runtime) -> None:
    capture = Device(torch.device("cuda", 0)).new_capture()
    results = iter((torch.zeros(1), torch.ones(1)))

    def launch() -> torch.Tensor:
        runtime.used.append("launch")
        return next(results)

    replay = capture(launch)
    assert replay() is replay() and bool(replay() == 1)  # what was captured, not what was run before
    assert runtime.used[:6] == ["beside waits", "launch", "waits for beside", "capture into pool", "launch", "captured"]
    assert runtime.used[6:] == ["replay"] * 3


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch, runtime: _Runtime, tmp_path: Path) -> dict[str, object]:
    """A machine with an NPU: its modules, to be replaced by what happens when one is imported."""
    modules: dict[str, object] = {
        "torch_npu": runtime,
        "pypto": runtime,
        "kernels.pypto.registration": SimpleNamespace(register=lambda: "kernels"),
        "kernels.cann.registration": SimpleNamespace(register=lambda: "kernels of CANN"),
    }

    def load(name: str) -> object:
        if isinstance(modules[name], Exception):
            raise modules[name]
        return modules[name]

    finder = SimpleNamespace(find_spec=modules.get)
    monkeypatch.setattr("worker.device.importlib", SimpleNamespace(import_module=load, util=finder))
    monkeypatch.setattr(torch, "device", lambda *args: args)  # "npu" is a name that torch-npu gives it
    monkeypatch.setenv("TILE_FWK_OUTPUT_DIR", "/nowhere")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    (tmp_path / "include" / "pto").mkdir(parents=True)
    monkeypatch.delenv("PTO_TILE_LIB_CODE_PATH", raising=False)
    return modules


def test_npu_with_all_it_needs_is_selected(modules: dict[str, object], runtime: _Runtime) -> None:
    device = select_device("npu", npu_kernels=NpuKernels.PYPTO)
    assert (device.torch_device, device.kernels) == (("npu", 0), "kernels")
    assert runtime.used == ["device 0"]
    assert device.software is not None
    assert device.replay_refusal == device.software.replay_refusal


@pytest.mark.parametrize(
    ("name", "found", "line"),
    [
        ("torch_npu", None, r"^--device npu: the package torch-npu is not installed"),
        (
            "torch_npu",
            ImportError("libhccl.so: no such file\nmore"),
            r"^--device npu: torch-npu cannot be loaded; .*\(libhccl.so: no such file\)$",
        ),
        ("torch_npu", AttributeError("torch._C has no attribute"), r"^--device npu: torch-npu cannot be loaded; .*has no attribute\)$"),
        ("torch_npu", RuntimeError(), r"^--device npu: torch-npu cannot be loaded; .*\(RuntimeError\)$"),
        ("pypto", None, r"^--device npu: the package pypto is not installed \(extra `npu`\); --kernels cann does without$"),
        ("kernels.pypto.registration", OSError("libc_sec.so"), r"^--device npu: the kernels of pypto cannot be loaded; .*\(libc_sec.so\)$"),
    ],
)
def test_npu_without_something_names_it(modules: dict[str, object], name: str, found: object, line: str) -> None:
    modules[name] = found
    with pytest.raises(DeviceUnavailable, match=line):
        select_device("npu", npu_kernels=NpuKernels.PYPTO)


def test_npu_whose_toolkit_is_not_set_up_is_refused(modules: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASCEND_HOME_PATH")
    with pytest.raises(DeviceUnavailable, match=r"^--device npu: ASCEND_HOME_PATH is not set, and PyPTO would simulate"):
        select_device("npu", npu_kernels=NpuKernels.PYPTO)


def test_kernels_of_cann_serve_without_pypto_and_its_headers(
    modules: dict[str, object], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    modules["pypto"] = None
    monkeypatch.delenv("ASCEND_HOME_PATH")
    with caplog.at_level(logging.INFO):
        device = select_device("npu", npu_kernels=NpuKernels.CANN)
    assert device.kernels == "kernels of CANN" and vars(caplog.records[0])["kernels"] == "cann"
    assert device.replay_refusal is not None


def test_versions_that_do_not_belong_together_are_a_warning(
    modules: dict[str, object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "aarch64-linux").mkdir()
    (tmp_path / "aarch64-linux" / "ascend_toolkit_install.info").write_text("version=8.3.RC1\n")
    select_device("npu", npu_kernels=NpuKernels.PYPTO)
    assert "install CANN 8.5.0" in vars(caplog.records[-1])["mend"] and caplog.records[-1].levelno == logging.WARNING


def test_auto_takes_no_npu_for_a_cpu_because_pypto_is_missing(modules: dict[str, object]) -> None:
    modules["pypto"] = None
    with pytest.raises(DeviceUnavailable, match=r"^--device npu: the package pypto is not installed"):
        select_device("auto", npu_kernels=NpuKernels.PYPTO)


def test_auto_tells_why_it_passes_an_npu_by(modules: dict[str, object], caplog: pytest.LogCaptureFixture) -> None:
    modules["torch_npu"] = ImportError("libhccl.so: no such file")
    with caplog.at_level(logging.WARNING):
        assert select_device("auto", npu_kernels=NpuKernels.PYPTO).torch_device != ("npu", 0)
    assert "libhccl.so" in vars(caplog.records[0])["reason"]


def test_npu_driver_that_is_missing_is_named(modules: dict[str, object], runtime: _Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "is_available", lambda: False)
    with pytest.raises(DeviceUnavailable, match=r"^--device npu: no Ascend NPU or driver$"):
        select_device("npu", npu_kernels=NpuKernels.PYPTO)
