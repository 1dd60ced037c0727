"""The device that a worker owns. The only file that may import torch_npu."""

import importlib
import importlib.util
from dataclasses import dataclass
from types import ModuleType

import torch

from pypto_serving.process.start_up import StartUpError
from worker.host_memory import free_host_bytes

DEVICE_KINDS = ("auto", "npu", "cuda", "cpu")


class DeviceUnavailable(StartUpError):
    """A device that this machine does not have, or that lacks its software."""


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, or the CPU. Accelerators are driven through the module that torch keeps for their kind."""

    torch_device: torch.device

    @property
    def kind(self) -> str:
        """npu, cuda or cpu."""
        return self.torch_device.type

    def synchronize(self) -> None:
        """Wait for everything that was launched."""
        if self.kind != "cpu":
            _runtime(self.kind).synchronize(self.torch_device)

    def free_bytes(self) -> int:
        """Memory that is free for this process."""
        if self.kind == "cpu":
            return free_host_bytes()
        free, _total = _runtime(self.kind).mem_get_info(self.torch_device)
        return int(free)


def select_device(kind: str, index: int = 0, num_threads: int | None = None) -> Device:
    """The device of a kind ("auto": the first of npu, cuda and cpu that is there); sets the threads that torch uses on the host.

    Raises DeviceUnavailable with what is missing.
    """
    assert kind in DEVICE_KINDS
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    if kind == "auto":
        kind = next((name for name in ("npu", "cuda") if _missing(name) is None), "cpu")
    if missing := _missing(kind):
        raise DeviceUnavailable(f"--device {kind}: {missing}")
    if kind == "cpu":
        return Device(torch.device("cpu"))
    count = _runtime(kind).device_count()
    if index >= count:
        raise DeviceUnavailable(f"--device {kind}: there is no device {index}; this machine has {count}")
    _runtime(kind).set_device(index)
    return Device(torch.device(kind, index))


def _missing(kind: str) -> str | None:
    """What keeps a kind from being used; None when nothing does."""
    if kind == "npu":
        return _missing_for_npu()
    if kind == "cuda" and not torch.cuda.is_available():
        return "torch is built without CUDA" if torch.version.cuda is None else "no CUDA device or driver"
    return None


def _missing_for_npu() -> str | None:
    if importlib.util.find_spec("torch_npu") is None:
        return "the package torch-npu is not installed (extra `npu`; it needs the CANN toolkit)"
    try:
        importlib.import_module("torch_npu")
    except (ImportError, OSError) as error:
        return f"torch-npu can not be loaded; is the CANN toolkit installed and its set_env.sh sourced? ({str(error).splitlines()[0]})"
    return None if _runtime("npu").is_available() else "no Ascend NPU or driver"


def _runtime(kind: str) -> ModuleType:
    module: ModuleType = getattr(torch, kind)
    return module
