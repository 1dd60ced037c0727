"""What the numerics id tells apart."""

import pytest
import torch

from worker import numerics
from worker.numerics import numerics_id

CPU = torch.device("cpu")


def test_numerics_id_names_type_library_device_tile_and_code() -> None:
    dtype, library, device, tile, kernels, code = numerics_id(torch.bfloat16, CPU, 2).split("/")
    assert (dtype, library, tile) == ("bfloat16", f"torch-{torch.__version__}", "tile-2")
    assert device.startswith("cpu-") and kernels and code.startswith("code-")


def test_numerics_id_does_not_change_with_the_number_of_threads() -> None:
    before, expected = torch.get_num_threads(), numerics_id(torch.float32, CPU, 1)
    torch.set_num_threads(1)
    assert numerics_id(torch.float32, CPU, 1) == expected
    torch.set_num_threads(before)


def test_code_that_only_an_npu_runs_is_left_out_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    digest = numerics._digest_of_code.__wrapped__
    before = {kind: digest(kind) for kind in ("cpu", "cuda", "npu")}
    assert before["cpu"] == before["cuda"] != before["npu"]
    monkeypatch.setattr(numerics, "_NPU_CODE", ())
    assert digest("cpu") == before["npu"]


def test_numerics_id_is_that_of_the_code_that_was_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = numerics_id(torch.float32, CPU, 1)
    monkeypatch.setattr("worker.numerics._CODE", ("docs",))  # as if the files had changed
    assert numerics_id(torch.float32, CPU, 1) == expected
