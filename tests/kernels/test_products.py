"""Which way products are computed on a CPU."""

import logging

import pytest
import torch

from kernels import ops
from kernels.cpu import capabilities, products

AVX2 = {"avx2", "fma3"}
AVX512 = {*AVX2, "avx512_f", "avx512_bw", "avx512_dq", "avx512_vl"}
BF16 = {*AVX512, "avx512_vnni", "avx512_bf16"}
AMX = {*BF16, "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8"}
fp32, bf16, fp16 = torch.float32, torch.bfloat16, torch.float16


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    for name in ("PYPTO_LINEARS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    products.method.cache_clear()
    yield
    products.method.cache_clear()


@pytest.mark.parametrize(
    ("processor", "limit", "expected"),
    [
        (AMX, "", ("avx512", "amx", None)),
        ({*AMX, "amx_fp16"}, "ALL", ("avx512", "amx", "amx_fp16")),
        ({*AMX, "amx_fp16"}, "AVX512_CORE_AMX", ("avx512", "amx", None)),
        (AMX, "avx512_core_bf16", ("avx512", "avx512_bf16", None)),
        (BF16, "", ("avx512", "avx512_bf16", None)),
        (BF16, "AVX512_CORE_VNNI", ("avx512", "avx512", None)),
        (BF16, "AVX2_VNNI", ("avx2", None, None)),
        (BF16, "SSE41", (None, None, None)),
        (AVX512, "", ("avx512", "avx512", None)),
        (AVX2, "", ("avx2", None, None)),
        ({"neon", "bf16"}, "", (None, None, None)),
    ],
)
@pytest.mark.parametrize("variable", ["ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"])
def test_kernel_is_the_best_that_processor_and_environment_allow(monkeypatch, processor, limit, expected, variable):
    monkeypatch.setattr(capabilities, "of_this_cpu", lambda: dict.fromkeys(processor, True))
    monkeypatch.setenv(variable, limit)
    assert tuple(products.brgemm_kernel(dtype) for dtype in (fp32, bf16, fp16)) == expected


def test_without_onednn_there_is_no_kernel(monkeypatch):
    monkeypatch.setattr(torch._C, "_has_mkldnn", False)
    assert products.brgemm_kernel(fp32) is None


@pytest.mark.parametrize("dtype", [fp32, bf16, fp16])
def test_sums_that_cancel_show_the_order_of_additions(dtype):
    rows, weight = (products.cancelling_rows(8, 1536, sign).to(dtype).float() for sign in (1, -1))
    terms = rows * weight[0]
    assert (terms.double().sum(1).abs() < 1e-12).all()
    forward, backward = torch.zeros(8), torch.zeros(8)
    for term in range(1536):
        forward, backward = forward + terms[:, term], backward + terms[:, -1 - term]
    assert (forward != backward).all()


@pytest.mark.parametrize(
    ("processor", "forced", "expected"),
    [
        (AMX, "", ("brgemm", "brgemm", "loops")),
        (BF16, "", ("brgemm", "loops", "loops")),
        (BF16, "brgemm", ("brgemm", "brgemm", "loops")),
        (AMX, "loops", ("loops", "loops", "loops")),
        ({"neon"}, "brgemm", ("loops", "loops", "loops")),
    ],
)
def test_brgemm_is_taken_where_it_is_faster_or_forced(monkeypatch, processor, forced, expected):
    if ops.kernel_set() == "torch":
        pytest.skip("the C++ kernels are not built: python -m kernels.cpu.build")
    monkeypatch.setattr(capabilities, "of_this_cpu", lambda: dict.fromkeys(processor, True))
    monkeypatch.setattr(products, "_sums", lambda rows, use_brgemm: rows[:, :64].float())
    monkeypatch.setenv("PYPTO_LINEARS", forced)
    assert tuple(products.method(dtype) for dtype in (fp32, bf16, fp16)) == expected


def test_brgemm_that_fails_the_check_gives_way_to_loops_with_one_line(monkeypatch, caplog):
    if ops.kernel_set() == "torch":
        pytest.skip("the C++ kernels are not built: python -m kernels.cpu.build")
    monkeypatch.setattr(products, "brgemm_kernel", lambda dtype: "amx")
    monkeypatch.setattr(products, "_sums", lambda rows, use_brgemm: rows[:, :64].float() + len(rows) * 1e-6)
    with caplog.at_level(logging.INFO):
        assert products.method(bf16) == products.method(bf16) == "loops"
    assert [record.getMessage() for record in caplog.records] == [
        "products of torch.bfloat16 run in loops of our own: brgemm gives a row other bits among other numbers of rows"
    ]


def test_brgemm_that_raises_gives_way_to_loops(monkeypatch, caplog):
    if ops.kernel_set() == "torch":
        pytest.skip("the C++ kernels are not built: python -m kernels.cpu.build")

    def refuse(rows, use_brgemm):
        raise RuntimeError("no such kernel\nbacktrace")

    monkeypatch.setattr(products, "brgemm_kernel", lambda dtype: "amx")
    monkeypatch.setattr(products, "_sums", refuse)
    assert products.method(bf16) == "loops"
    assert caplog.messages == ["products of torch.bfloat16 run in loops of our own: no such kernel"]


def test_without_the_cpp_kernels_products_are_torchs(monkeypatch):
    monkeypatch.setattr(ops, "_cpu_kernels", None)
    assert products.method(bf16) == products.path(bf16) == "torch"


def test_forcing_torchs_products_is_warned_of(monkeypatch, caplog):
    monkeypatch.setenv("PYPTO_LINEARS", "torch")
    assert products.method(bf16) == "torch"
    assert caplog.messages == ["PYPTO_LINEARS=torch: tokens may depend on the other rows of a batch"]


def test_a_method_that_does_not_exist_is_refused(monkeypatch):
    monkeypatch.setenv("PYPTO_LINEARS", "fastest")
    with pytest.raises(ValueError, match="PYPTO_LINEARS=fastest: must be one of brgemm, loops, torch"):
        products.method(fp32)
