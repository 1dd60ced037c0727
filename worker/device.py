"""The device that a worker owns. The only file that may import torch_npu, or load the kernels of an NPU."""

import importlib
import importlib.util
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from pypto_serving.process.start_up import StartUpError
from worker.batch import Hidden
from worker.host import free_host_bytes
from worker.npu_software import NpuKernels, NpuSoftware, find_npu_software
from worker.transfers import HostCopies, stay_on_host

_log = logging.getLogger(__name__)

# PyPTO writes what it makes of kernels below this folder, by default below the working directory.
_OUTPUT_VARIABLE = "TILE_FWK_OUTPUT_DIR"

DEVICE_KINDS = ("auto", "npu", "cuda", "cpu")
_LOADING_ERRORS = (ImportError, OSError, RuntimeError, AttributeError)  # what packages raise that do not fit torch or CANN


class DeviceUnavailable(StartUpError):
    """A device that this machine does not have, or that lacks its software."""


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, or the CPU. Accelerators are driven through the module that torch keeps for their kind."""

    torch_device: torch.device
    kernels: object = None  # what keeps the kernels of this kind registered
    software: NpuSoftware | None = None  # of an NPU

    @property
    def kind(self) -> str:
        """npu, cuda or cpu."""
        return self.torch_device.type

    @property
    def page_tokens(self) -> int:
        """Tokens per page that suit its attention: PyPTO's takes a page of keys at a time, and is five times slower with small ones."""
        return 128 if self.kind == "npu" else 16

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

    def copy_to_host(self, tensors: Sequence[Tensor]) -> HostCopies:
        """Begin to copy tensors to the host; a worker.transfers.CopyToHost."""
        if self.kind == "cpu":
            return stay_on_host(tensors)
        copies = tuple(torch.empty(t.shape, dtype=t.dtype, pin_memory=True).copy_(t, non_blocking=True) for t in tensors)
        copied = _runtime(self.kind).Event(blocking=True)
        copied.record()
        return HostCopies(copies, copied.synchronize)

    @property
    def replay_refusal(self) -> str | None:
        """Why no graphs are to be replayed, if they must not be."""
        return self.software.replay_refusal if self.software else None

    def new_capture(self) -> "GraphCapture":
        """Captures graphs of an accelerator, all with one common memory."""
        return GraphCapture(self)


class GraphCapture:
    """Captures launches into graphs. These share memory: the result of one lasts until another is replayed."""

    def __init__(self, device: Device) -> None:
        self._device = device.torch_device
        self._runtime = _runtime(device.kind)
        self._graph_type = self._runtime.NPUGraph if device.kind == "npu" else self._runtime.CUDAGraph
        self._pool = self._runtime.graph_pool_handle()

    def __call__(self, launch: Callable[[], Hidden]) -> Callable[[], Hidden]:
        """Run `launch` once, which compiles and loads what it needs, then record it; returns what replays it and gives its result."""
        beside = self._runtime.Stream(self._device)
        beside.wait_stream(self._runtime.current_stream(self._device))
        with self._runtime.stream(beside):
            launch()
        self._runtime.current_stream(self._device).wait_stream(beside)
        graph = self._graph_type()
        with self._runtime.graph(graph, pool=self._pool):
            result = launch()

        def replay() -> Hidden:
            graph.replay()
            return result

        return replay


def select_device(kind: str, index: int = 0, num_threads: int | None = None, *, npu_kernels: NpuKernels) -> Device:
    """The device of a kind ("auto": the first of npu, cuda and cpu that is there); sets the threads that torch uses on the host.

    On an NPU `npu_kernels` serve from then on.

    Raises DeviceUnavailable with what is missing.
    """
    assert kind in DEVICE_KINDS
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    if kind == "auto":
        kind = _first_kind()
    if missing := _missing(kind):
        raise DeviceUnavailable(f"--device {kind}: {missing}")
    count = 1 if kind == "cpu" else _runtime(kind).device_count()
    if index >= count:
        raise DeviceUnavailable(f"--device {kind}: there is no device {index} (--device-index); this machine has {count}")
    if kind == "cpu":
        return Device(torch.device("cpu"))
    _runtime(kind).set_device(index)
    if kind == "cuda":
        # No shorter mantissas, and partial sums in fp32: how a sum is split decides bits enough.
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    return Device(torch.device(kind, index), *(_load_npu_kernels(npu_kernels) if kind == "npu" else ()))


def first_line(error: BaseException) -> str:
    """What an error says in its first line, or what it is where it says nothing."""
    return str(error).partition("\n")[0] or type(error).__name__


def _first_kind() -> str:
    """The first kind that is there. A machine that is prepared for an NPU is not meant to compute on something else: it is told why."""
    reasons = {kind: _missing(kind) for kind in DEVICE_KINDS[1:]}
    if reasons["npu"] and importlib.util.find_spec("torch_npu") is not None:
        _log.warning("torch-npu is installed, but the NPU cannot be used", extra={"reason": reasons["npu"]})
    return next(kind for kind, missing in reasons.items() if missing is None)


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
    except _LOADING_ERRORS as error:
        return f"torch-npu cannot be loaded; is the CANN toolkit installed and its set_env.sh sourced? ({first_line(error)})"
    return None if _runtime("npu").is_available() else "no Ascend NPU or driver"


def _load_npu_kernels(kernels: NpuKernels) -> tuple[object, NpuSoftware]:
    """Serve the NPU with a set of kernels as long as the first one exists. By name: nothing outside their folder may depend on PyPTO."""
    if kernels is NpuKernels.PYPTO and importlib.util.find_spec("pypto") is None:
        raise DeviceUnavailable("--device npu: the package pypto is not installed (extra `npu`); --kernels cann does without")
    try:
        software = find_npu_software(kernels)
    except FileNotFoundError as error:
        raise DeviceUnavailable(f"--device npu: {error}") from None
    _log.info("NPU", extra={field.name: getattr(software, field.name) for field in fields(software)})
    if software.mismatch:
        _log.warning("versions that do not belong together", extra={"mend": software.mismatch})
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    os.environ.setdefault(_OUTPUT_VARIABLE, str(cache / "pypto-serving" / "kernels"))
    try:
        return importlib.import_module(f"kernels.{kernels}.registration").register(), software
    except _LOADING_ERRORS as error:
        reason = f"the kernels of {kernels} cannot be loaded; {software.mismatch or 'do they fit the CANN toolkit?'} ({first_line(error)})"
        raise DeviceUnavailable(f"--device npu: {reason}") from error


def _runtime(kind: str) -> ModuleType:
    module: ModuleType = getattr(torch, kind)
    return module
