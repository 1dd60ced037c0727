"""The operators of CANN behind ours: what they are called with, and that the results are those of the reference."""

import pytest
import torch
from fakes.device.cann_operators import cann_operators
from harness.accelerator_runs import PAGE, PAGES_PER_LANE, Run, assert_same_but_for_ties, request

from kernels import linear, ops
from kernels.cann import registration
from kernels.reference import attention, moe, rows
from worker.models import LoadOptions, load_model
from worker.step import LaneSampling

pytestmark = [
    pytest.mark.skipif(hasattr(torch.ops.npu, "npu_rms_norm"), reason="torch-npu is loaded, and has them itself"),
    pytest.mark.filterwarnings("ignore:Warning only once for all operators"),  # of the CPU's own kernels, which give way
]
STEP = 2**-7  # of bf16


@pytest.fixture
def called():
    """The CPU plays an NPU that has them; the names of those that are called."""
    with cann_operators() as names:
        library = registration.register("CPU")
        yield names
        library._destroy()


@pytest.fixture
def random():
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(*shape, generator=generator).bfloat16()


@pytest.mark.parametrize("shape", [(1, 64), (5, 1024), (3, 8, 128)])
def test_norms(called, random, shape):
    x, residual, weight = random(*shape), random(*shape), random(shape[-1])
    torch.testing.assert_close(ops.rms_norm(x, weight, 1e-6), rows.rms_norm(x, weight, 1e-6), rtol=2 * STEP, atol=0)
    normalised, total = ops.add_rms_norm(x, residual, weight, 1e-6)
    expected, expected_total = rows.add_rms_norm(x, residual, weight, 1e-6)
    torch.testing.assert_close(normalised, expected, rtol=2 * STEP, atol=0)
    assert torch.equal(total, expected_total)
    assert called == ["npu_rms_norm", "npu_add_rms_norm"]


def test_gates_come_first(called, random):
    gate_up = random(5, 96)
    torch.testing.assert_close(ops.swiglu(gate_up), rows.swiglu(gate_up), rtol=2 * STEP, atol=1e-6)
    assert called == ["npu_swiglu"]


@pytest.mark.parametrize("indices", [torch.int32, torch.int64])
@pytest.mark.parametrize("with_norms", [True, False])
def test_heads_are_normalised_rotated_and_written_to_their_slots(called, random, with_norms, indices):
    num_heads, num_kv_heads, width = 4, 2, 64
    norms = (random(width), random(width)) if with_norms else (None, None)
    angles = torch.rand(64, width // 2, generator=torch.Generator().manual_seed(1))
    positions, slots = torch.tensor([3, 60, 0], dtype=indices), torch.tensor([17, 2, 40], dtype=indices)
    qkv, caches = random(3, num_heads + 2 * num_kv_heads, width), [random(3, 16, num_kv_heads, width) for _ in range(2)]
    before = [cache.clone() for cache in caches]
    query = ops.qk_rope_kv_write(qkv, *norms, 1e-6, positions, angles.cos(), angles.sin(), *caches, slots)
    q, k, v = qkv.split([num_heads, num_kv_heads, num_kv_heads], 1)
    if with_norms:
        q, k = rows.rms_norm(q, norms[0], 1e-6), rows.rms_norm(k, norms[1], 1e-6)
    q, k = rows.rotary(q, k, positions.long(), angles.cos(), angles.sin())
    rows.write_kv(k, v, *before, slots.long())
    torch.testing.assert_close(query, q, rtol=4 * STEP, atol=0.03)
    torch.testing.assert_close(caches[0], before[0], rtol=4 * STEP, atol=0.03)
    assert torch.equal(caches[1], before[1])
    assert called == ["npu_rms_norm"] * 2 * with_norms + ["npu_rotary_mul"] * 2 + ["npu_scatter_nd_update_"] * 2


class Pages:
    """Sequences of some lengths on shuffled pages; slots of nobody hold NaN."""

    def __init__(self, random, lengths, heads, width, page_tokens):
        self.random, self.lengths, self.heads, self.width = random, lengths, heads, width
        counts = [-(-length // page_tokens) for length in lengths]
        order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(1)).int()
        self.table = torch.full((len(lengths), max(counts) + 1), -1, dtype=torch.int32)
        self.caches = [torch.full((sum(counts), page_tokens, heads[1], width), torch.nan).bfloat16() for _ in range(2)]
        for line, (length, count) in enumerate(zip(lengths, counts, strict=True)):
            self.table[line, :count], order = order[:count], order[count:]
            at = torch.arange(length)
            slots = self.table[line].long()[at // page_tokens] * page_tokens + at % page_tokens
            rows.write_kv(random(length, heads[1], width), random(length, heads[1], width), *self.caches, slots)

    def arguments(self, chunks, padding=0, indices=torch.int32):
        """Of the last rows of sequences: so many of each."""
        ends = torch.tensor([0, *chunks]).cumsum(0).int()
        positions = torch.cat([torch.arange(length - count, length) for length, count in zip(self.lengths, chunks, strict=True)])
        positions = torch.cat((positions, torch.full((padding,), -1))).to(indices)
        q = self.random(len(positions), self.heads[0], self.width)
        return q, *self.caches, self.table, ends, positions, self.width**-0.5, 0


def _close(found, arguments):
    *tensors, positions, scale, window = arguments
    expected = attention.paged_attention(*tensors, positions.long(), scale, window)
    assert found.isfinite().all()
    torch.testing.assert_close(found.float(), expected.float(), rtol=STEP, atol=0.01)


@pytest.mark.parametrize("indices", [torch.int32, torch.int64])
@pytest.mark.parametrize("shape", [((16, 8), 128, 128), ((9, 3), 64, 16)])  # heads, their width, page tokens
@pytest.mark.parametrize("chunks", [(1, 1, 1), (5, 1, 130), (0, 2, 1)])
def test_chunks_and_decodes_attend_to_the_keys_that_they_see(called, random, shape, chunks, indices):
    arguments = Pages(random, [17, 129, 130], *shape).arguments(chunks, indices=indices)
    _close(ops.paged_attention(*arguments), arguments)
    assert called == ["npu_fused_infer_attention_score"]


def test_rows_of_no_sequence_are_zero(called, random):
    arguments = Pages(random, [40, 3], (4, 2), 64, 16).arguments((4, 1), padding=3)
    found = ops.paged_attention(*arguments)
    _close(found[:5], (arguments[0][:5], *arguments[1:5], arguments[5][:5], *arguments[6:]))
    assert not found[5:].any() and called == ["npu_fused_infer_attention_score"]


def test_layers_of_a_batch_share_its_lengths_and_another_batch_has_its_own(called, random, monkeypatch):
    pages, reads = Pages(random, [40, 33], (4, 2), 64, 16), []
    tolist = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: reads.append(tensor) or tolist(tensor))
    first = pages.arguments((4, 1))
    for _ in range(3):
        ops.paged_attention(*first)
    assert len(reads) == 2
    second = pages.arguments((2, 3))
    found = ops.paged_attention(*second)
    assert len(reads) == 4
    monkeypatch.undo()
    _close(found, second)


@pytest.mark.parametrize(
    ("width", "page_tokens", "window"), [(32, 16, 0), (64, 8, 0), (64, 16, 20)], ids=["odd heads", "odd pages", "a window"]
)
def test_calls_that_it_does_not_take_run_in_torch(called, random, width, page_tokens, window):
    *tensors, positions, scale, _ = Pages(random, [40, 33], (4, 2), width, page_tokens).arguments((4, 1), indices=torch.int64)
    arguments = *tensors, positions, scale, window
    _close(ops.paged_attention(*arguments), arguments)
    assert called == []


def test_other_types_run_in_torch(called, random):
    x, weight = random(3, 64).float(), random(64).float()
    torch.testing.assert_close(ops.rms_norm(x, weight, 1e-6), rows.rms_norm(x, weight, 1e-6))
    assert called == []


@pytest.mark.parametrize("renormalize", [True, False])
def test_rows_go_to_their_best_experts(called, random, renormalize):
    logits = torch.randn(7, 16, generator=torch.Generator().manual_seed(2))
    weights, ids = ops.moe_route(logits, 4, renormalize, "softmax")
    expected, expected_ids = moe.moe_route(logits, 4, renormalize, "softmax")
    torch.testing.assert_close(weights, expected)
    assert torch.equal(ids.long(), expected_ids) and called == ["npu_moe_gating_top_k_softmax"]
    ops.moe_route(logits, 4, renormalize, "sigmoid")
    assert len(called) == 1


@pytest.mark.parametrize("choice", [[[0, 2], [2, 1], [3, 0]], [[1, 2], [1, 2], [1, 2]]], ids=["spread", "two experts"])
def test_experts_add_up_in_the_rows_they_came_from(called, random, choice):
    x, weights, ids = random(3, 32), torch.tensor([[0.7, 0.3], [0.6, 0.4], [0.9, 0.1]]), torch.tensor(choice)
    gate_up, down = random(4, 48, 32) / 6, random(4, 32, 24) / 5
    found = ops.moe_experts(x, weights, ids, gate_up, down)
    torch.testing.assert_close(found, moe.moe_experts(x, weights, ids, gate_up, down), rtol=4 * STEP, atol=0.02)
    assert called == [
        "npu_moe_init_routing_v2",
        "npu_grouped_matmul",
        "npu_swiglu",
        "npu_grouped_matmul",
        "npu_moe_finalize_routing",
    ]


@pytest.mark.parametrize("architecture", ["qwen3", "llama", "qwen3_moe"])
def test_a_model_draws_what_it_draws_on_a_cpu(tiny_checkpoint, called, monkeypatch, architecture):
    directory = tiny_checkpoint(architecture, "bfloat16", head_dim=64)
    requests = [request(lane, sampling=LaneSampling()) for lane in range(4)]

    def draw():
        model = load_model(directory, LoadOptions(torch.bfloat16, torch.device("cpu"), PAGE, PAGE * PAGES_PER_LANE))
        return Run(model, len(requests))(requests, chunk_tokens=20)

    monkeypatch.setattr(linear, "_is_on_host", lambda weight: False)
    found = draw()
    names = ("rms_norm", "add_rms_norm", "swiglu", "rotary_mul", "scatter_nd_update_", "fused_infer_attention_score")
    assert set(called) >= {f"npu_{name}" for name in names} and ("npu_grouped_matmul" in called) == (architecture == "qwen3_moe")
    monkeypatch.undo()
    called.clear()
    with monkeypatch.context() as patch:
        for name in ("rms_norm", "add_rms_norm", "swiglu", "rotary"):
            patch.setattr(ops, f"_{name}", getattr(rows, name))
        patch.setattr(ops, "_write_kv", rows.write_kv)
        patch.setattr(ops, "_paged_attention", attention.paged_attention)
        patch.setattr(ops, "_moe_route", moe.moe_route)
        patch.setattr(ops, "_moe_experts", moe.moe_experts)
        expected = draw()
    assert called == []
    assert_same_but_for_ties(found, expected, relative=1 / 32)
