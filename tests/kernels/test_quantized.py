"""Products with weights of 8 and 4 bits: the torch implementations and the C++ kernels."""

from types import SimpleNamespace

import pytest
import torch

from kernels import ops
from kernels.quantized import Int4Weight, Int8Weight, QuantizedLinear, Quantizer, stack_weights
from kernels.reference import quantized as reference

SHAPES = pytest.mark.parametrize(("outputs", "inputs"), [(96, 64), (100, 104), (33, 2048)])
GROUPS = pytest.mark.parametrize("group", [8, 104])


@pytest.fixture(params=["reference", "cpu"])
def operators(request, monkeypatch):
    """What layers run: the torch implementation, or what a CPU tensor is dispatched to."""
    if request.param == "reference":
        names = ("int8_linear", "int8_embedding", "int4_linear", "quantize_int8", "quantize_int4", "pack_int8", "pack_int4")
        implementations = SimpleNamespace(**{name: getattr(reference, name) for name in names}, swiglu=ops.swiglu)
        monkeypatch.setattr("kernels.quantized.ops", implementations)
    elif ops.kernel_set() == "torch":
        pytest.skip("the C++ kernels are not built: python -m kernels.cpu.build")
    return request.param


def quantize_int8(weight):
    return Quantizer(8)(weight)


def quantize_int4(weight, group):
    return Quantizer(4, group)(weight)


def rounded_rows(x, group):
    """Rows as they are multiplied: every group in 127 steps of its largest magnitude, in float64."""
    groups = x.double().unflatten(1, (-1, group))
    steps = groups.abs().amax(2, keepdim=True) / 127
    return torch.where(steps > 0, torch.round(groups / steps) * steps, 0).flatten(1)


def dequantized(weight):
    if isinstance(weight, Int8Weight):
        return weight.levels.double() * weight.scales.double()[:, None]
    zeros = torch.full_like(weight.scales, 8) if weight.zeros is None else weight.zeros
    groups = weight.levels.double().unflatten(1, (weight.scales.shape[1], -1))
    return ((groups - zeros.double()[:, :, None]) * weight.scales.double()[:, :, None]).flatten(1)


def assert_product(layer, weight, x, bias, group):
    """Within the rounding of x's type of the float64 product; a level on the edge of two steps may fall to either side."""
    expected = rounded_rows(x, group) @ dequantized(weight).T + (0 if bias is None else bias.double())
    rounding = 2e-2 if x.dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(layer(x).double(), expected, rtol=rounding, atol=rounding * expected.abs().amax().item())


@SHAPES
@pytest.mark.parametrize("biased", [False, True])
def test_int8_is_the_product_of_the_rounded_rows(operators, dtype, random, outputs, inputs, biased):
    weight, x, bias = quantize_int8(random(outputs, inputs)), random(11, inputs), random(outputs) if biased else None
    assert_product(QuantizedLinear(weight, bias), weight, x, bias, inputs)


def test_int8_takes_a_depth_that_is_no_multiple_of_four(operators, dtype, random):
    weight, x = quantize_int8(random(40, 30)), random(7, 30)
    assert_product(QuantizedLinear(weight, None), weight, x, None, 30)


@pytest.mark.parametrize("shape", [(96, 64, 32), (100, 104, 8), (33, 2048, 128)])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("scale_dtype", [torch.bfloat16, torch.float32])
def test_int4_is_the_product_of_the_rounded_rows(operators, dtype, random, shape, symmetric, scale_dtype):
    outputs, inputs, group = shape
    made = quantize_int4(random(outputs, inputs), group)
    weight = Int4Weight(made.levels, made.scales.to(scale_dtype), None if symmetric else made.zeros)
    bias, x = random(outputs), random(11, inputs)
    assert_product(QuantizedLinear(weight, bias), weight, x, bias, group)


@SHAPES
@pytest.mark.parametrize("name", ["int8", "int4:8"])
def test_rows_do_not_depend_on_each_other(operators, dtype, random, outputs, inputs, name):
    layer, x = QuantizedLinear(Quantizer.parse(name)(random(outputs, inputs)), random(outputs)), random(23, inputs)
    whole = layer(x)
    for first in range(23):
        for last in (first + 1, first + 2, first + 6, first + 9):
            assert torch.equal(layer(x[first:last]), whole[first:last]), (first, last)


@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_no_bit(dtype, random, name, threads):
    layer, x = QuantizedLinear(Quantizer.parse(name)(random(256, 512)), None), random(50, 512)
    expected = layer(x)
    torch.set_num_threads(threads)
    assert torch.equal(layer(x), expected)


def test_micro_kernel_of_torch_gives_the_same_bits(dtype, random, monkeypatch):
    weight, bias, x = quantize_int8(random(100, 200)), random(100), random(70, 200)
    expected = QuantizedLinear(weight, bias)(x)
    monkeypatch.setattr("kernels.quantized.products.brgemm_kernel", lambda dtype: "forced")
    layer = QuantizedLinear(weight, bias)
    try:
        computed = layer(x)
    except RuntimeError as error:
        pytest.skip(f"this CPU has no such micro-kernel: {error}")
    assert torch.equal(computed, expected)
    assert torch.equal(layer(x[3:20]), expected[3:20])


@pytest.mark.parametrize("name", ["int8", "int4:8"])
def test_results_in_fp32_are_rounded_to_the_type_of_the_rows(operators, dtype, random, name):
    layer, x = QuantizedLinear(Quantizer.parse(name)(random(40, 48)), random(40)), random(5, 48)
    exact = layer.float32(x)
    assert exact.dtype == torch.float32
    assert torch.equal(exact.to(dtype), layer(x))


@pytest.mark.parametrize("name", ["int8", "int4:8"])
def test_gated_layers_give_gates_times_ups(operators, dtype, random, name):
    weight, bias, x = Quantizer.parse(name)(random(40, 48)), random(40), random(5, 48)
    assert torch.equal(QuantizedLinear(weight, bias, gated=True)(x), ops.swiglu(QuantizedLinear(weight, bias)(x)))


@pytest.mark.parametrize("name", ["int8", "int4:8"])
def test_rows_of_zeros_give_the_bias(operators, dtype, random, name):
    bias = random(40)
    layer = QuantizedLinear(Quantizer.parse(name)(random(40, 16)), bias)
    assert torch.equal(layer(torch.zeros(2, 16, dtype=dtype)), bias.expand(2, -1))
    assert layer(torch.zeros(0, 16, dtype=dtype)).shape == (0, 40)


@pytest.mark.parametrize("name", ["int8", "int4:8"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_comes_through(operators, dtype, random, name, value):
    layer, x = QuantizedLinear(Quantizer.parse(name)(random(40, 48)), None), random(3, 48)
    expected = layer(x)
    x[1, 21] = value
    result = layer(x)
    assert not torch.isfinite(result[1]).any()
    assert torch.equal(result[[0, 2]], expected[[0, 2]])


def test_rows_may_be_strided(operators, dtype, random):
    layer, x = QuantizedLinear(quantize_int8(random(32, 16)), None), random(4, 32)
    assert torch.equal(layer(x[:, :16]), layer(x[:, :16].contiguous()))


def test_int8_layers_look_rows_up(operators, dtype, random):
    weight, ids = quantize_int8(random(70, 30)), torch.tensor([69, 0, 33, 33])
    rows = QuantizedLinear(weight, None, dtype=dtype).rows(ids)
    assert torch.equal(rows, dequantized(weight)[ids].float().to(dtype))


def test_row_that_is_not_there(random):
    layer = QuantizedLinear(quantize_int8(random(70, 30)), None)
    with pytest.raises(IndexError):
        layer.rows(torch.tensor([70]))


def test_int8_error_is_half_a_step(random):
    weight = random(40, 64).float()
    step = weight.abs().amax(1, keepdim=True) / 127
    assert ((dequantized(quantize_int8(weight)) - weight).abs() <= step * 0.5001).all()


@GROUPS
def test_int4_error_is_about_half_a_step(random, group):
    weight = random(40, 104).float()
    groups = weight.unflatten(1, (-1, group))
    step = (groups.amax(2).clamp_min(0) - groups.amin(2).clamp_max(0)) / 15
    error = (dequantized(quantize_int4(weight, group)) - weight).abs().unflatten(1, (-1, group)).amax(2)
    assert (error <= step * 1.05).all()


@pytest.mark.parametrize("name", ["int8", "int4:8"])
def test_weights_of_zeros(operators, dtype, name):
    layer = QuantizedLinear(Quantizer.parse(name)(torch.zeros(40, 16, dtype=dtype)), None)
    assert not layer(torch.ones(2, 16, dtype=dtype)).any()


@pytest.mark.parametrize("name", ["int8", "int4:8"])
def test_parts_below_one_another_are_one_weight(random, name):
    quantize, parts = Quantizer.parse(name), [random(40, 16), random(24, 16)]
    stacked, whole = stack_weights([quantize(part) for part in parts]), quantize(torch.cat(parts))
    assert torch.equal(dequantized(stacked), dequantized(whole))


@pytest.mark.parametrize(("name", "expected"), [("int8", "int8"), ("int4", "int4:32"), ("int4:128", "int4:128")])
def test_quantizers_have_names(name, expected):
    assert Quantizer.parse(name).name == expected


@pytest.mark.parametrize(("outputs", "inputs"), [(96, 64), (33, 1048), (70, 136), (1, 8)])
def test_forms_quantize_and_pack_alike(dtype, random, outputs, inputs):
    weight = random(outputs, inputs)
    for name, arguments in (("quantize_int8", ()), ("quantize_int4", (8,))):
        made, expected = getattr(ops, name)(weight, *arguments), getattr(reference, name)(weight, *arguments)
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(made, expected, strict=True)), name
    levels, _ = ops.quantize_int8(weight)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(ops.pack_int8(levels), reference.pack_int8(levels), strict=True))
    levels, *_ = ops.quantize_int4(weight, 8)
    assert torch.equal(ops.pack_int4(levels), reference.pack_int4(levels))
