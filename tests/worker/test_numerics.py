"""What the numerics id tells apart."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kernels import ops
from kernels.cpu import capabilities, products
from worker import numerics
from worker.npu_software import NpuKernels
from worker.numerics import numerics_id

CPU = torch.device("cpu")


def test_numerics_id_names_type_library_products_kernels_and_code() -> None:
    dtype, library, functions, path, kernels, bits, code = numerics_id(torch.bfloat16, CPU).split("/")
    assert (dtype, library, kernels) == ("bfloat16", f"torch-{torch.__version__}", ops.kernel_set())
    assert functions == f"cpu-{torch.backends.cpu.get_cpu_capability().lower()}"
    assert path.startswith(products.path(torch.bfloat16)) and bits.startswith("bits-") and code.startswith("code-")


def test_numerics_id_does_not_change_with_the_number_of_threads() -> None:
    before, expected = torch.get_num_threads(), numerics_id(torch.float32, CPU)
    numerics._digest_of_bits.cache_clear()
    torch.set_num_threads(3 - min(before, 2))
    assert numerics_id(torch.float32, CPU) == expected
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["l2_cache_size", "cpu_name", "num_sockets"])
def test_caches_makers_and_counts_of_cores_do_not_matter(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    if ops.kernel_set() == "torch":
        pytest.skip("torch's own products go by them")
    expected, known = numerics_id(torch.bfloat16, CPU), capabilities.of_this_cpu()
    monkeypatch.setattr(capabilities, "of_this_cpu", lambda: {**known, name: "another"})
    assert numerics_id(torch.bfloat16, CPU) == expected


def test_torchs_own_products_are_named_with_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "path", lambda dtype: "torch")
    parts, known = numerics_id(torch.bfloat16, CPU).split("/"), capabilities.of_this_cpu()
    assert parts[3].startswith("torch-")
    monkeypatch.setattr(capabilities, "of_this_cpu", lambda: {**known, "l2_cache_size": 1})
    assert numerics_id(torch.bfloat16, CPU).split("/")[3] != parts[3]


def test_a_library_that_computes_other_bits_has_another_id(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = numerics_id(torch.float32, CPU)
    numerics._digest_of_bits.cache_clear()
    cosine = torch.cos
    monkeypatch.setattr(torch, "cos", lambda x: torch.nextafter(cosine(x), x))
    other = numerics_id(torch.float32, CPU)
    numerics._digest_of_bits.cache_clear()
    assert [ours == theirs for ours, theirs in zip(expected.split("/"), other.split("/"), strict=True)].count(False) == 1


def test_code_that_only_an_npu_runs_is_left_out_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    digest = numerics._digest_of_code.__wrapped__
    before = {kind: digest(kind) for kind in ("cpu", "cuda", "npu")}
    assert before["cpu"] == before["cuda"] != before["npu"]
    monkeypatch.setattr(numerics, "_NPU_CODE", ())
    assert digest("cpu") == before["npu"]


def test_memory_that_only_pypto_keeps_counts_on_an_npu_only() -> None:
    counted = {kind: set(map(str, numerics._code_of(kind))) for kind in ("cpu", "cuda", "npu")}
    assert counted["cpu"] == counted["cuda"] and "kernels/linear.py" in counted["cpu"]
    only = counted["npu"] - counted["cpu"]
    assert "kernels/scratch.py" in only and {str(Path(file).parent) for file in only} == {"kernels", "kernels/pypto", "kernels/cann"}


def test_an_npu_is_named_with_its_cann_and_the_set_of_kernels_that_serves_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "aarch64-linux").mkdir()
    (tmp_path / "aarch64-linux" / "ascend_toolkit_install.info").write_text("version=8.5.0\n")
    monkeypatch.setitem(os.environ, "ASCEND_HOME_PATH", str(tmp_path))
    monkeypatch.setattr(ops, "version", {"pypto": "0.2.0", "torch-npu": "2.9.0"}.__getitem__)
    properties = SimpleNamespace(name="Ascend910B3")
    monkeypatch.setattr(torch, "npu", SimpleNamespace(get_device_properties=lambda device: properties), raising=False)
    pypto, cann = (numerics_id(torch.bfloat16, SimpleNamespace(type="npu"), "", kernels).split("/") for kernels in NpuKernels)
    assert pypto[2:5] == ["npu-ascend910b3", "pypto-0.2.0-torch-npu-2.9.0", "cann-8.5.0"]
    assert cann[2:5] == ["npu-ascend910b3", "cann-torch-npu-2.9.0", "cann-8.5.0"]


def test_the_temperature_below_which_tokens_are_the_most_likely_ones_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    digest = numerics._digest_of_code.__wrapped__
    before = digest("cpu")
    monkeypatch.setattr("pypto_serving.wire.contract.MIN_TEMPERATURE", 1e-4)
    assert digest("cpu") != before


def test_numerics_id_is_that_of_the_code_that_was_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = numerics_id(torch.float32, CPU)
    monkeypatch.setattr("worker.numerics._CODE", ("docs",))  # as if the files had changed
    assert numerics_id(torch.float32, CPU) == expected
