"""Registration and dispatch of the operators."""

import pytest
import torch

from kernels import ops


def arguments() -> dict[str, tuple]:
    caches = torch.zeros(2, 2, 4, 2, 16)
    starts, table, positions = torch.tensor([0, 2]).int(), torch.tensor([[1, 0]]).int(), torch.tensor([3, 4])
    tables = torch.randn(8, 8), torch.randn(8, 8)
    return {
        "rms_norm": (torch.randn(2, 16), torch.randn(16), 1e-5),
        "add_rms_norm": (torch.randn(2, 16), torch.randn(2, 16), torch.randn(16), 1e-5),
        "rotary": (torch.randn(2, 4, 16), torch.randn(2, 2, 16), positions, *tables),
        "write_kv": (torch.randn(2, 2, 16), torch.randn(2, 2, 16), *caches, positions),
        "paged_attention": (torch.randn(2, 4, 16), *caches, table, starts, positions, 0.25, 0),
        "qk_rope_kv_write": (torch.randn(2, 8, 16), torch.randn(16), torch.randn(16), 1e-5, positions, *tables, *caches, positions),
        "linear": (torch.randn(2, 16), torch.randn(8, 16), torch.randn(8)),
        "moe_experts": (torch.randn(2, 16), torch.rand(2, 2), torch.tensor([[0, 2], [2, 1]]), torch.randn(3, 8, 16), torch.randn(3, 16, 4)),
        "embedding": (positions, torch.randn(8, 16)),
        "argmax": (torch.randn(2, 16),),
        "top_k": (torch.randn(2, 16), 5),
        "swiglu": (torch.randn(2, 16),),
        "moe_route": (torch.randn(2, 8), 2, True, "softmax"),
    }


@pytest.mark.parametrize("name", arguments())
def test_schema_and_shape_rule_agree_with_the_operator(name):
    checks = ("test_schema", "test_faketensor")
    assert set(torch.library.opcheck(getattr(torch.ops.pypto_serving, name).default, arguments()[name], test_utils=checks).values()) == {
        "SUCCESS"
    }


def test_a_form_registered_for_a_device_takes_its_place_there():
    library = torch.library.Library("pypto_serving", "IMPL")
    library.impl("embedding", lambda ids, table: table.new_full((7,), 3.0), "CPU")
    ids, table = torch.tensor([1]), torch.zeros(2, 16)
    assert ops.embedding(ids, table).tolist() == [3.0] * 7
    library._destroy()
    assert torch.equal(ops.embedding(ids, table), torch.zeros(1, 16))


def test_kernel_set_of_an_npu_names_what_computes_there(monkeypatch):
    monkeypatch.setattr(ops, "version", {"pypto": "0.2.0", "torch-npu": "2.9.0"}.__getitem__)
    assert ops.kernel_set("npu", "pypto") == "pypto-0.2.0-torch-npu-2.9.0"
    assert ops.kernel_set("npu", "cann") == "cann-torch-npu-2.9.0"


def test_kernel_set_is_one_word():
    assert ops.kernel_set() == "torch" or ops.kernel_set().startswith("cpp-")
    assert " " not in ops.kernel_set()
    assert ops.kernel_set("cuda") == "torch"
