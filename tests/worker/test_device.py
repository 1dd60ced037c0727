"""Choosing a device."""

import importlib.util

import pytest
import torch

from worker.device import DeviceUnavailable, select_device

HAS_TORCH_NPU = importlib.util.find_spec("torch_npu") is not None


def test_cpu_is_always_there() -> None:
    device = select_device("cpu")
    device.synchronize()
    assert (device.kind, device.torch_device) == ("cpu", torch.device("cpu"))
    assert device.free_bytes() > 0


def test_number_of_threads_is_set() -> None:
    before = torch.get_num_threads()
    select_device("cpu", num_threads=1)
    assert torch.get_num_threads() == 1
    torch.set_num_threads(before)


@pytest.mark.skipif(HAS_TORCH_NPU, reason="this machine has torch-npu")
def test_npu_without_its_package_names_it() -> None:
    with pytest.raises(DeviceUnavailable, match=r"^--device npu: the package torch-npu is not installed"):
        select_device("npu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_missing_cuda_is_one_clear_line() -> None:
    with pytest.raises(DeviceUnavailable, match=r"^--device cuda: (torch is built without CUDA|no CUDA device or driver)$"):
        select_device("cuda")


@pytest.mark.skipif(torch.cuda.is_available() or HAS_TORCH_NPU, reason="this machine has an accelerator")
def test_auto_falls_back_to_the_cpu() -> None:
    assert select_device("auto").kind == "cpu"
