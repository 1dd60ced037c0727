"""What is drawn where there is no float64: without the operators that an NPU lacks, and what the CPU draws but for ties."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from fakes.device.model import FakeModel, hashed_logits, limits, token_cache
from fakes.device.steps import generate, ids, worker_admission
from fakes.device.stream import DeviceTensor, off_device
from harness.sampling import bias, draw, lane_table, sample_rows
from harness.twin_runner import TwinRunner
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import ops
from worker.sampling.logprobs import TokenRows
from worker.sampling.philox import Purpose, uniforms
from worker.sampling.sampler import sample
from worker.step import LaneSampling

_aten = torch.ops.aten
_SORTS = {_aten.sort, _aten.argsort, _aten.topk, _aten.msort, _aten.kthvalue, _aten._unique2}
_SHIFTS = {_aten.__rshift__, _aten.__lshift__, _aten.bitwise_right_shift, _aten.bitwise_left_shift}
_SEARCHES = {_aten.searchsorted, _aten.bucketize}


class WithoutWhatAnNpuLacks(TorchDispatchMode):
    """Refuses float64, which an NPU has not, and what its AICPU may have to compute."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        dtypes = {value.dtype for value in torch.utils._pytree.tree_leaves((args, kwargs, result)) if isinstance(value, torch.Tensor)}
        of = {value.dtype for value in args if isinstance(value, torch.Tensor)}
        packet = func.overloadpacket
        assert torch.float64 not in dtypes, f"float64: {func}"
        assert packet not in _SEARCHES, func
        assert packet not in _SORTS or not any(dtype == torch.int64 for dtype in of), f"sorts int64: {func}"
        assert packet not in _SHIFTS or torch.uint8 not in of, f"shifts uint8: {func}"
        return result


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within it, sampling runs as it does on an NPU."""
    monkeypatch.setattr(ops, "has_float64", lambda device_type: False)
    yield


_KINDS = [
    {},
    {"temperature": 0.9},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_k": 40},
    {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
    {"temperature": 1.0, "top_k": 128, "top_p": 0.8, "min_p": 0.02},
    {"temperature": 1.3, "top_p": 0.95},
    {"temperature": 5.0, "top_p": 0.99},
    {"temperature": 0.7, "min_p": 0.05, "repetition_penalty": 1.2},
    {"temperature": 1.0, "top_k": 5000, "top_p": 0.999, "frequency_penalty": 0.3},
    {"repetition_penalty": 1.1, "presence_penalty": 0.5, **bias({7: 2.0})},
    {"temperature": 1.0, "top_k": 50, **bias({7: 2.0})},
]


def _logits(rows, vocab_size, spread=4.0, seed=1):
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * spread


def _samplings(count, **more):
    return [LaneSampling(**{"seed": 1000 + row, **_KINDS[row % len(_KINDS)], **more}) for row in range(count)]


def _sample_on_device():
    """Everything that the sampler does, by an NPU's rules; no value is asked for."""
    samplings, masks = _samplings(24, logprobs=True, top_logprobs=3), {3: b"\xff" * 40, 12: b"\x0f" * 40}
    fields = {"token_ids": (7, 8, 9), "end_token_ids": ids(4, 5), "min_length": 9}
    rows = lane_table(samplings, 320, masks, **fields).sampling_rows(np.arange(24), masks)
    logits = _logits(24, 320).as_subclass(DeviceTensor)
    with torch.inference_mode(), WithoutWhatAnNpuLacks():
        sampled = sample(logits, rows)
        logprobs = TokenRows.of(rows.columns).compute(logits, sampled.token_ids)
    assert not off_device(sampled.failed).any() and len(logprobs.chosen) == 24


def test_nothing_that_an_npu_lacks_is_asked_of_it(npu):
    _sample_on_device()


def test_the_form_for_other_devices_would_ask_for_it():
    with pytest.raises(AssertionError, match="float64"):
        _sample_on_device()


@pytest.mark.parametrize("vocab_size", [60, 49152, 50257])
def test_rows_are_batch_invariant(npu, vocab_size):
    logits = _logits(70, vocab_size)
    logits[::3] = logits[::3].bfloat16().float()
    samplings = _samplings(70)
    together = draw(logits, samplings, token_ids=(7, 8, 9))
    for part in (slice(0, 1), slice(3, 4), slice(6, 7), slice(69, 70), slice(0, 5), slice(2, 67)):
        assert draw(logits[part], samplings[part], token_ids=(7, 8, 9)) == together[part]
    order = np.random.default_rng(0).permutation(70)
    assert draw(logits[order], [samplings[row] for row in order], token_ids=(7, 8, 9)) == [together[row] for row in order]


@pytest.mark.parametrize("sampling", _KINDS, ids=str)
def test_a_row_draws_the_same_time_and_again(npu, sampling):
    logits, samplings = _logits(5, 1000), [LaneSampling(**{"seed": 3, **sampling})] * 5
    drawn = draw(logits, samplings)
    assert drawn == draw(logits.flip(0), samplings)[::-1] == draw(logits, samplings)


def test_drawn_tokens_stay_on_the_device_for_the_next_step(npu):
    requests = [
        worker_admission(lane, (lane, 5), final_length=20, page_tables=[ids(*range(5 * lane, 5 * lane + 5))], sampling=sampling)
        for lane, sampling in enumerate(_samplings(12))
    ]
    # The twin's host reads no token before the next launch.
    runner = TwinRunner(FakeModel(hashed_logits()), token_cache(), limits(max_lanes=12))
    tokens = generate(runner, requests)
    runner.finish()
    alone = [generate(TwinRunner(FakeModel(hashed_logits()), token_cache(), limits(max_lanes=12)), [request]) for request in requests]
    assert all(len(generated) == 18 for generated in tokens.values())
    assert tokens == {lane: only[lane] for lane, only in enumerate(alone)}


def _draw_by_definition(logits, sampling, shift=0.0, cut_shift=0.0):
    """One row in float64, with the random number and top-p some way off."""
    weights = ((logits - logits.max()).double() / sampling.temperature).exp().numpy()
    weights[weights < np.float32(sampling.min_p)] = 0
    order = np.lexsort((np.arange(len(weights)), -weights))[: sampling.top_k or None]
    sums = np.cumsum(weights[order])
    limit = (np.float32(sampling.top_p) + cut_shift) * sums[-1] if sampling.top_p < 1 else np.inf
    kept = order[: 1 + np.count_nonzero(sums[:-1] < limit)]
    sums = np.cumsum(np.where(np.isin(np.arange(len(weights)), kept), weights, 0))
    point = uniforms(np.array([sampling.seed], dtype=np.uint64), np.array([1]), Purpose.TOKEN)[0]
    return int(np.searchsorted(sums, np.clip(point + shift, 0, 1 - 1e-9) * sums[-1], side="right"))


_SHIFTS_OF_POINTS = (0.0, -(2.0**-21), 2.0**-21)


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("top_k", [0, 3, 64, 128, 129, 4000])
def test_draws_what_float64_draws_but_for_ties(npu, spread, top_k):
    logits = _logits(60, 6000, spread).bfloat16().float()  # many equal ones
    shares = (0.001, 0.5, 0.9, 0.99, 0.9999, 1.0)
    samplings = [
        LaneSampling(temperature=(1.0, 0.5)[row % 2], seed=row, top_k=top_k, top_p=shares[row % 6], min_p=(0.0, 1e-3)[row // 6 % 2])
        for row in range(60)
    ]
    drawn = draw(logits, samplings)
    exact = 0
    for row, sampling, token_id in zip(logits, samplings, drawn, strict=True):
        near = [_draw_by_definition(row, sampling, shift, cut) for shift in _SHIFTS_OF_POINTS for cut in _SHIFTS_OF_POINTS]
        assert token_id in near
        exact += token_id == near[0]
    assert exact >= 58 or spread == 0  # where all are equal, top-p cuts exactly between two of them


def test_draws_what_the_cpu_draws(npu, monkeypatch):
    logits, samplings = _logits(400, 3000), _samplings(400)
    ours = draw(logits, samplings, token_ids=(7, 8, 9))
    monkeypatch.undo()
    assert ours == draw(logits, samplings, token_ids=(7, 8, 9))


_DISTRIBUTIONS = [
    ({}, lambda p: p),
    ({"top_k": 7}, lambda p: p * (p >= np.sort(p)[-7])),
    ({"min_p": 0.2}, lambda p: p * (p >= 0.2 * p.max())),
    ({"top_p": 0.8}, lambda p: p * (p >= np.sort(p)[::-1][np.searchsorted(np.cumsum(np.sort(p)[::-1]), 0.8)])),
    ({"temperature": 2.0}, lambda p: p**0.5),
]


@pytest.mark.parametrize("sampling, kept", _DISTRIBUTIONS, ids=lambda value: str(value) if isinstance(value, dict) else "")
def test_chi_square_over_many_seeds(npu, sampling, kept):
    count, size = 20_000, 300
    probabilities = _logits(1, size, 1.5, seed=9)[0].double().softmax(-1).numpy()
    samplings = [LaneSampling(**{"temperature": 1.0, "seed": seed, **sampling}) for seed in range(count)]
    observed = np.bincount(draw(np.log(probabilities), samplings), minlength=size)
    expected = kept(probabilities) / kept(probabilities).sum() * count
    assert (observed[expected == 0] == 0).all()
    rare = expected < 5  # together they are one class
    classes = [(observed[~rare], expected[~rare])]
    if expected[rare].sum() > 5:
        classes.append((observed[rare].sum(keepdims=True), expected[rare].sum(keepdims=True)))
    seen, wanted = (np.concatenate(column) for column in zip(*classes, strict=True))
    degrees = len(seen) - 1
    statistic = ((seen - wanted) ** 2 / wanted).sum()
    assert abs(statistic - degrees) < 4 * np.sqrt(2 * degrees)


@pytest.mark.parametrize("vocab_size", [3, 128, 129, 151936])
def test_weights_beyond_the_first_blocks_are_drawn(npu, vocab_size):
    logits = torch.full((vocab_size,), -100.0)
    logits[[0, vocab_size - 1]] = 0.0
    assert set(draw(logits, [LaneSampling(temperature=1.0, seed=seed) for seed in range(40)])) == {0, vocab_size - 1}


def test_the_tail_of_a_large_vocabulary_keeps_its_share(npu, monkeypatch):
    """A hundred thousand tokens, each of them less than 2^-24 of the greatest."""
    logits = torch.full((100_001,), -17.0)
    logits[0] = 0.0
    tail = 100_000 * np.exp(-17.0) / (1 + 100_000 * np.exp(-17.0))
    parts = np.linspace(0.05, 0.95, 10)
    monkeypatch.setattr("worker.sampling.sampler.uniforms", lambda *_: 1 - tail * (1 - parts))
    drawn = draw(logits, [LaneSampling(temperature=1.0)] * 10)
    assert (np.abs(np.array(drawn) - 1 - 100_000 * parts) < 10).all()  # 2^-24 is between one and two tokens


def test_the_ends_of_random_numbers_draw_tokens_of_some_weight(npu, monkeypatch):
    logits = [-float("inf"), 0.0, 1.0, -float("inf")]
    for point, token_id in ((0.5 * 2**-32, 1), (1 - 0.5 * 2**-32, 2)):
        monkeypatch.setattr("worker.sampling.sampler.uniforms", lambda *_, point=point: np.array([point]))
        assert draw(logits, [LaneSampling(temperature=1.0)]) == [token_id]


def test_smp_06_rows_without_anything_to_draw_fail_alone(npu):
    logits = [[1.0, 2.0], [float("nan"), 2.0], [-float("inf")] * 2, [float("inf"), 0.0], [2.0, 1.0]]
    for sampling in ({}, {"top_k": 2, "top_p": 0.5}):
        sampled = sample_rows(logits, [LaneSampling(temperature=1.0, **sampling)] * 5)
        assert sampled.failed.tolist() == [False, True, True, True, False]
        assert set(sampled.token_ids.tolist()) <= {0, 1}
