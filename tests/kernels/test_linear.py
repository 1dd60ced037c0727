"""PackedLinear and the way its products are computed."""

import itertools

import pytest
import torch

from kernels import ops
from kernels.cpu import products
from kernels.cpu.products import cancelling_rows
from kernels.linear import PackedLinear

SHAPES = [(96, 64), (64, 64), (33, 1), (1, 40), (100, 37)]  # multiples of every block, and of none
LARGE = [(576, 1536), (320, 3072)]
COUNTS = [*range(1, 66), 95, 96, 97, 127, 128, 129, 200, 256, 300, 511, 512]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}


def cancelling_layer(shape, dtype):
    """A layer, and 512 rows with which its sums are nothing but rounding errors."""
    depth = shape[1] + shape[1] % 2
    layer = PackedLinear(cancelling_rows(shape[0], depth, -1)[:, : shape[1]].to(dtype), None)
    return layer, cancelling_rows(512, depth, 1)[:, : shape[1]].to(dtype)


@pytest.mark.parametrize("shape", [*SHAPES, *LARGE])
@pytest.mark.parametrize("bias", [False, True])
def test_linear_equals_the_product_in_float64(method, any_dtype, normal, shape, bias):
    weight, x, offset = normal(*shape), normal(70, shape[1]), normal(shape[0]) if bias else None
    expected = x.double() @ weight.double().T + (offset.double() if bias else 0)
    allowed = TOLERANCE[any_dtype] * (x.double().abs() @ weight.double().abs().T + 3)
    layer = PackedLinear(weight, offset)
    assert ((layer(x).double() - expected).abs() <= allowed).all()
    if method != "torch":  # sums are not rounded to the type
        assert ((layer.float32(x).double() - expected).abs() <= 2e-6 * (allowed / TOLERANCE[any_dtype])).all()


@pytest.mark.parametrize("counts", [(64, 32, 32), (33, 1, 7)])
def test_a_weight_in_parts_is_the_weight_as_a_whole(method, any_dtype, normal, counts):
    parts, x = [normal(count, 37) for count in counts], normal(5, 37)
    assert torch.equal(PackedLinear(parts, None)(x), PackedLinear(torch.cat(parts), None)(x))


@pytest.mark.parametrize("counts", [(40, 40), (16, 64)])
def test_gates_and_ups_may_come_in_parts(own_method, any_dtype, normal, counts):
    parts, x = [normal(count, 37) for count in counts], normal(5, 37)
    assert torch.equal(PackedLinear(parts, None, gated=True)(x), PackedLinear(torch.cat(parts), None, gated=True)(x))


def test_parts_of_another_width_are_refused(own_method):
    with pytest.raises(RuntimeError, match=r"pack_parts: parts must be contiguous, \[\.\., 8\]"):
        PackedLinear([torch.zeros(4, 8), torch.zeros(4, 9)], None)


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_do_not_depend_on_the_number_of_rows(own_method, any_dtype, shape):
    layer, x = cancelling_layer(shape, any_dtype)
    whole = layer.float32(x)
    for count in range(1, 513):
        assert torch.equal(layer.float32(x[-count:]), whole[-count:]), count


@pytest.mark.parametrize("shape", LARGE)
def test_rows_of_large_products_do_not_depend_on_the_number_of_rows(own_method, any_dtype, shape):
    layer, x = cancelling_layer(shape, any_dtype)
    whole = layer.float32(x)
    assert torch.equal(layer(x), whole.to(any_dtype))
    for count in COUNTS:
        assert torch.equal(layer.float32(x[:count]), whole[:count]), count


def test_a_row_is_the_same_at_every_place_and_among_any_others(own_method, any_dtype):
    layer, x = cancelling_layer((64, 1536), any_dtype)
    alone = layer.float32(x[:1])[0]
    for place, others in itertools.product(range(0, 70, 3), (0.0, 1e4, torch.nan)):
        rows = torch.full((70, 1536), others, dtype=any_dtype)
        rows[place] = x[0]
        assert torch.equal(layer.float32(rows)[place], alone), (place, others)


@pytest.mark.parametrize("chunk", [1, 7, 16, 33, 64, 100, 256])
def test_chunks_give_the_rows_of_the_whole(own_method, any_dtype, chunk):
    layer, x = cancelling_layer((100, 512), any_dtype)
    assert torch.equal(torch.cat([layer.float32(part) for part in torch.split(x, chunk)]), layer.float32(x))


def test_number_of_threads_does_not_change_the_bits(own_method, any_dtype):
    layer, x = cancelling_layer((576, 1536), any_dtype)
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results += [torch.cat([layer.float32(x), layer.float32(x[:1])])]
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("shape", [(64, 96), (2, 40), (66, 37), (256, 1024)])
@pytest.mark.parametrize("bias", [False, True])
def test_gated_product_has_the_bits_of_product_and_swiglu(method, dtype, random, shape, bias):
    weight, x, offset = random(*shape), random(70, shape[1]), random(shape[0]) if bias else None
    assert torch.equal(PackedLinear(weight, offset, gated=True)(x), ops.swiglu(PackedLinear(weight, offset)(x)))


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_the_weight_come_back_as_they_were(method, any_dtype, normal, shape):
    weight, ids = normal(*shape), torch.tensor([shape[0] - 1, 0, shape[0] // 2, 0])
    assert torch.equal(PackedLinear(weight.clone(), None).rows(ids), weight[ids])


def test_ids_beyond_the_weight_are_refused(own_method, any_dtype, normal):
    with pytest.raises(IndexError, match="packed_rows: id 40 of 40"):
        PackedLinear(normal(40, 16), None).rows(torch.tensor([40]))


def test_no_rows_give_no_rows(method, any_dtype, normal):
    layer = PackedLinear(normal(40, 16), normal(40))
    assert layer(normal(0, 16)).shape == layer.float32(normal(0, 16)).shape == (0, 40)
    assert layer.rows(torch.empty(0, dtype=torch.int64)).shape == (0, 16)


def test_linear_keeps_nothing_of_the_tensor_it_was_given(own_method, any_dtype, normal):
    weight, x = normal(32, 16), normal(2, 16)
    layer = PackedLinear(weight, None)
    before = layer(x)
    weight.zero_()
    assert torch.equal(layer(x), before)


def test_rows_that_lie_apart_are_taken_as_they_are(method, any_dtype, normal):
    layer, x = PackedLinear(normal(40, 16), None), normal(6, 32)
    assert torch.equal(layer(x[::2, 16:]), layer(x[::2, 16:].contiguous()))


def test_infinite_and_missing_numbers_come_through(own_method, any_dtype):
    weight = torch.tensor([[torch.inf, 1.0], [torch.nan, 1.0], [1.0, -torch.inf]], dtype=any_dtype)
    result = PackedLinear(weight, None).float32(torch.ones(1, 2, dtype=any_dtype))
    assert result[0, 0] == torch.inf and result[0, 1].isnan() and result[0, 2] == -torch.inf


def test_subnormal_halves_are_exact(monkeypatch):
    products.method.cache_clear()
    if products.method(torch.float16) == "torch":
        pytest.skip("the C++ kernels are not built: python -m kernels.cpu.build")
    every = torch.arange(1, 0x7C00, dtype=torch.int16).view(torch.float16)  # all positive halves
    layer = PackedLinear(every[:, None].contiguous(), None)
    assert torch.equal(layer.float32(torch.ones(1, 1, dtype=torch.float16))[0], every.float())
