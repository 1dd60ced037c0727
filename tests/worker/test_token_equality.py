"""A request's logits and tokens do not depend on the rest of the batch, on chunks or on reused pages: bit for bit, with real models."""

import numpy as np
import pytest
import torch
from fakes.device.recording_model import RecordingModel
from fakes.device.steps import drawn, generate, ids, step, worker_admission
from fakes.device.stream import LateCopies, StreamModel

from worker.models.model import LoadOptions
from worker.models.registry import load_model
from worker.runner import ModelRunner
from worker.step import LaneSampling, RunnerLimits

_PAGE, _PAGES_PER_LANE, _NUM_LANES, _NUM_GENERATED = 16, 6, 32, 12
_LANES = (0, 1, 13, 31)  # those that are looked at; the odd ones are seeded


@pytest.fixture(
    scope="module", params=[("qwen3", "float32"), ("qwen3", "bfloat16"), ("llama", "bfloat16"), ("qwen3_moe", "bfloat16")], ids="-".join
)
def model(request, tiny_checkpoint):
    arch, dtype = request.param
    return load_model(tiny_checkpoint(arch, dtype), LoadOptions(getattr(torch, dtype), torch.device("cpu"), _PAGE))


def _runner(model):
    recorder = RecordingModel(model)
    bounds = RunnerLimits(model.description.vocab_size, _PAGE * _PAGES_PER_LANE, _NUM_LANES, 4096)
    return ModelRunner(recorder, model.allocate_cache([_NUM_LANES * _PAGES_PER_LANE]), bounds), recorder


def _request(lane, generated=(), **fields):
    prompt = np.random.default_rng(lane).integers(0, 1024, 20 + lane).tolist()
    defaults = {
        "num_prompt_tokens": len(prompt),
        "final_length": len(prompt) + _NUM_GENERATED,
        "page_tables": [ids(*range(lane * _PAGES_PER_LANE, (lane + 1) * _PAGES_PER_LANE))],
        "sampling": LaneSampling(temperature=1.0, top_p=0.9, seed=lane) if lane % 2 else LaneSampling(),
    }
    return worker_admission(lane, [*prompt, *generated], **{**defaults, **fields})


def _run(model, requests, chunk_tokens=1000):
    runner, recorder = _runner(model)
    return generate(runner, requests, chunk_tokens, recorder.observe), recorder.drawn_from


@pytest.fixture(scope="module")
def alone(model):
    """Tokens and logits of each lane when it runs by itself."""
    return {lane: tuple(result[lane] for result in _run(model, [_request(lane)])) for lane in _LANES}


def _assert_same(results, alone, first=0):
    tokens, logits = results
    for lane in set(_LANES) & set(tokens):
        assert tokens[lane] == alone[lane][0]
        assert torch.equal(torch.stack(logits[lane]), torch.stack(alone[lane][1][first:]))


def test_other_sequences_change_nothing(model, alone):
    _assert_same(_run(model, [_request(lane) for lane in range(_NUM_LANES)]), alone)


@pytest.mark.parametrize("chunk_tokens", [1, 7, 15, 16, 17])
def test_chunks_change_nothing(model, alone, chunk_tokens):
    _assert_same(_run(model, [_request(lane) for lane in _LANES], chunk_tokens), alone)


@pytest.mark.parametrize(("chunk_tokens", "num_generated"), [(1000, 0), (7, 0), (16, 5)])
def test_two_steps_in_flight_change_nothing(model, alone, chunk_tokens, num_generated):
    recorder, bounds = RecordingModel(model), RunnerLimits(model.description.vocab_size, _PAGE * _PAGES_PER_LANE, _NUM_LANES, 4096)
    cache = model.allocate_cache([_NUM_LANES * _PAGES_PER_LANE])
    runner = ModelRunner(StreamModel(recorder), cache, bounds, copy_to_host=LateCopies())
    requests = [_request(lane, alone[lane][0][:num_generated]) for lane in _LANES]
    tokens = generate(runner, requests, chunk_tokens, recorder.observe, steps_in_flight=2)
    _assert_same((tokens, recorder.drawn_from), alone, num_generated)


@pytest.mark.parametrize("num_computed", [1, 16, 19])
def test_reused_pages_change_nothing(model, alone, num_computed):
    runner, recorder = _runner(model)
    generate(runner, [_request(lane) for lane in _LANES], 7)
    recorder.clear()
    again = [_request(lane, num_computed_tokens=num_computed, generation=1) for lane in _LANES]
    _assert_same((generate(runner, again, 7, recorder.observe), recorder.drawn_from), alone)


@pytest.mark.parametrize("num_generated", [1, 5])
def test_readmission_changes_nothing(model, alone, num_generated):
    requests = [_request(lane, alone[lane][0][:num_generated]) for lane in _LANES]
    _assert_same(_run(model, requests, 16), alone, num_generated)


def test_lane_that_meets_what_is_not_finite_ends_at_its_chunk_and_changes_no_other(model, alone):
    runner, recorder = _runner(model)
    runner.execute(step(1, {0: 20, 2: 5}, admissions=[_request(0), _request(2)]))
    recorder.cache.values[0][_PAGES_PER_LANE * 2, 3] = torch.nan
    output = runner.execute(step(2, {2: 9}))
    (error,) = output.lane_errors
    assert (error.lane, drawn(output)) == (2, {0: alone[0][0][1]}) and "token at index 5" in error.message
    assert drawn(runner.execute(step(3, {2: 8}))) == {0: alone[0][0][2]}
