"""Steps from end to end, with a model that has no weights."""

import numpy as np
import pytest
from fakes.device.model import FakeModel, constant_logits, hashed_logits, limits, scripted_logits, token_cache
from fakes.device.steps import drawn, generate, ids, step, worker_admission
from harness.twin_runner import TwinRunner

from pypto_serving.wire.digest import StateDigest
from worker.lanes.step_rules import InvalidStep
from worker.runner import ModelRunner
from worker.step import LaneError, LaneSampling

_twins = []


@pytest.fixture(autouse=True)
def finish_twins():
    """Whatever a test has a runner do comes out the same with two steps in flight."""
    yield
    while _twins:
        _twins.pop().finish()


def _runner(logits=None, **bounds):
    _twins.append(TwinRunner(FakeModel(logits or hashed_logits()), token_cache(), limits(**bounds)))
    return _twins[-1]


def _greedy(token_ids):
    return int(hashed_logits()(token_ids).argmax())


def test_drawn_token_is_fed_to_the_next_step():
    runner = _runner()
    first = drawn(runner.execute(step(1, {0: 3}, admissions=[worker_admission(0, (1, 2, 3))])))[0]
    second = drawn(runner.execute(step(2)))[0]
    assert [first, second] == [_greedy([1, 2, 3]), _greedy([1, 2, 3, first])]


def test_output_names_lanes_generations_and_tokens():
    runner = _runner(scripted_logits(lambda length: length + 10))
    admissions = [worker_admission(lane, (1,), generation=lane + 5, page_tables=[ids(lane)]) for lane in (1, 3)]
    output = runner.execute(step(7, admissions=admissions))
    assert (output.step_id, output.lanes.tolist(), output.generations.tolist(), output.token_ids.tolist()) == (7, [1, 3], [6, 8], [11, 11])
    assert {column.dtype for column in (output.lanes, output.token_ids)} == {np.dtype(np.uint32)}
    assert output.generations.dtype == np.int64


def test_empty_step_calls_no_model():
    model = FakeModel(hashed_logits())
    output = ModelRunner(model, token_cache(), limits()).execute(step(1))
    assert model.batches == [] and len(output.lanes) == 0 and output.digest == 0


def test_end_token_ends_the_lane_from_the_minimum_length_on():
    runner = _runner(scripted_logits(lambda length: 5))
    runner.execute(step(1, admissions=[worker_admission(0, (1,), end_token_ids=ids(5), min_length=3)]))
    tokens = [drawn(runner.execute(step(2 + i))).get(0) for i in range(3)]
    assert tokens == [0, 5, None]


def test_lane_stops_at_its_final_length():
    runner = _runner()
    assert len(generate(runner, [worker_admission(0, (1, 2, 3), final_length=5)])[0]) == 2
    assert runner.execute(step(99)).digest == 0


def test_nothing_is_drawn_at_the_final_length():
    runner = _runner()
    output = runner.execute(step(1, {0: 3}, admissions=[worker_admission(0, (1, 2, 3), final_length=3)]))
    assert drawn(output) == drawn(runner.execute(step(2))) == {}


def test_lane_error_hits_one_lane():
    runner = _runner(lambda token_ids: np.full(97, np.nan if token_ids[0] == 1 else 1.0, dtype=np.float32))
    admissions = [worker_admission(lane, (lane,), page_tables=[ids(lane)]) for lane in range(3)]
    output = runner.execute(step(1, admissions=admissions))
    assert drawn(output) == {0: 0, 2: 0}
    (error,) = output.lane_errors
    assert error == LaneError(1, 0, "no token can be drawn at index 1: the logits are not finite")
    assert drawn(runner.execute(step(2, admissions=[]))) == {0: 0, 2: 0}


def _spoiled_runner():
    return ModelRunner(FakeModel(hashed_logits(), unsound_token=13), token_cache(), limits())


def test_lane_ends_with_the_chunk_that_has_a_hidden_state_which_is_not_finite():
    runner = _spoiled_runner()
    spoiled = worker_admission(1, (5, 13, 13, 8), generation=2, page_tables=[ids(3, 4, 5)])
    admissions = [worker_admission(0, (1, 2, 3, 4), page_tables=[ids(0, 1, 2)]), spoiled]
    output = runner.execute(step(1, {0: 3, 1: 3}, admissions=admissions))
    message = "the model cannot go on from the token at index 1: its hidden state behind the last layer is not finite"
    assert output.lane_errors == [LaneError(1, 2, message)]
    assert drawn(output) == {}
    output = runner.execute(step(2, {0: 1, 1: 1}))
    assert drawn(output) == {0: _greedy([1, 2, 3, 4])} and output.lane_errors == []


def test_lane_draws_nothing_behind_a_hidden_state_that_is_not_finite():
    output = _spoiled_runner().execute(
        step(1, {0: 2}, admissions=[worker_admission(0, (13, 2)), worker_admission(1, (4,), page_tables=[ids(3, 4, 5)])])
    )
    assert drawn(output) == {1: _greedy([4])}
    (error,) = output.lane_errors
    assert (error.lane, error.nothing_to_draw) == (0, False) and "token at index 0" in error.message


def test_mask_for_a_lane_that_has_ended_meanwhile_is_no_fault():
    runner = _spoiled_runner()
    runner.execute(
        step(
            1, {0: 2}, admissions=[worker_admission(0, (13, 2, 3), constrained=True), worker_admission(1, (4,), page_tables=[ids(3, 4, 5)])]
        )
    )
    output = runner.execute(step(2, {0: 1}, masks={0: bytes(13)}))
    assert list(drawn(output)) == [1] and output.lane_errors == []


_EXCLUDING = {
    "mask": {"masks": {0: bytes(13)}, "constrained": True},
    "minimum length": {"min_length": 64, "end_token_ids": ids(*range(97))},
    "mask and minimum length": {"masks": {0: b"\x02" + bytes(12)}, "constrained": True, "min_length": 64, "end_token_ids": ids(1)},
}


@pytest.mark.parametrize("restriction", _EXCLUDING)
def test_smp_06_lane_that_excludes_every_token_itself_is_told_apart(restriction):
    fields = dict(_EXCLUDING[restriction])
    masks = fields.pop("masks", {})
    output = _runner().execute(step(1, admissions=[worker_admission(0, (1,), generation=2, **fields)], masks=masks))
    (error,) = output.lane_errors
    assert (error.lane, error.generation, error.nothing_to_draw) == (0, 2, True)
    assert error.message == "no token can be drawn at index 1: mask and minimum length exclude all of them"


def test_smp_06_restrictions_are_not_blamed_for_logits_that_are_not_finite():
    runner = _runner(constant_logits([np.nan] * 97))
    admitted = worker_admission(0, (1,), constrained=True)
    (error,) = runner.execute(step(1, admissions=[admitted], masks={0: bytes(13)})).lane_errors
    assert not error.nothing_to_draw


def test_broken_step_changes_nothing():
    runner = _runner()
    runner.execute(step(1, admissions=[worker_admission(0, (1,))]))
    with pytest.raises(InvalidStep, match="lane 3 is not live"):
        runner.execute(step(2, released_lanes=[0, 3]))
    assert len(drawn(runner.execute(step(2)))) == 1


def test_digest_follows_the_state():
    runner, digest = _runner(), StateDigest(8, 1)
    output = runner.execute(step(1, {0: 3}, admissions=[worker_admission(0, (1, 2, 3), generation=4, page_tables=[ids(5)])]))
    digest.admit(0, 4, ids(1, 2, 3), [ids(5)])
    digest.append(output.lanes, output.token_ids)
    assert output.digest == digest.value
    output = runner.execute(step(2, grown_lanes=[0], grown_groups=[0], grown_pages=[9]))
    digest.grow(ids(0), ids(0), ids(9))
    digest.append(output.lanes, output.token_ids)
    assert output.digest == digest.value
    assert runner.execute(step(3, released_lanes=[0])).digest == 0


def test_reset_forgets_everything():
    runner = _runner()
    runner.execute(step(1, admissions=[worker_admission(0, (1,), generation=3)]))
    runner.reset()
    assert runner.execute(step(1)).digest == 0
    assert runner.execute(step(2, admissions=[worker_admission(0, (1,), generation=0)])).lanes.tolist() == [0]


@pytest.mark.parametrize(
    "bounds",
    [{}, {"max_lanes": 1}, {"max_step_tokens": 1}, {"max_model_len": 3}, {"max_step_tokens": 9}, {"vocab_size": 3}],
    ids=lambda bounds: str(bounds),
)
def test_warm_up_leaves_no_state(bounds):
    model = FakeModel(hashed_logits(bounds.get("vocab_size", 97)))
    runner = ModelRunner(model, token_cache(4), limits(**bounds))
    runner.warm_up()
    assert len(model.batches) == 2
    assert runner.execute(step(1)).digest == 0


@pytest.mark.parametrize("num_pages", [1, 2, 3, 4, 9, 64])
@pytest.mark.parametrize("page_tokens", [1, 2, 3])
@pytest.mark.parametrize("max_model_len", [1, 2, 64])
def test_warm_up_makes_do_with_small_pages(num_pages, page_tokens, max_model_len):
    runner = ModelRunner(FakeModel(hashed_logits()), token_cache(num_pages, page_tokens), limits(max_model_len=max_model_len))
    runner.warm_up()
    assert runner.execute(step(1)).digest == 0


@pytest.mark.parametrize(("share", "num_rows"), [(1, 64), (4, 16), (1000, 8)])
def test_warm_up_prefills_a_share_of_the_longest_step_and_every_lane(share, num_rows):
    model = FakeModel(hashed_logits())
    ModelRunner(model, token_cache(64), limits(max_step_tokens=64, max_lanes=8)).warm_up(share)
    assert len(model.batches[0].token_ids) == num_rows


def test_warm_up_fails_when_the_model_yields_no_token():
    with pytest.raises(RuntimeError, match="no token"):
        _runner(constant_logits([float("nan")] * 97)).warm_up()


_SAMPLINGS = [
    LaneSampling(),
    LaneSampling(temperature=0.9, seed=1234),
    LaneSampling(temperature=1.2, top_k=20, top_p=0.9, seed=2**64 - 1),
    LaneSampling(repetition_penalty=1.2, presence_penalty=0.7, frequency_penalty=0.4),
]


def _request(lane, length, generated=(), **fields):
    """A sequence of `length` prompt tokens that grows by 12, in pages of its own."""
    prompt = [(lane * 31 + i * 7) % 97 for i in range(length)]
    defaults = {
        "num_prompt_tokens": length,
        "final_length": length + 12,
        "sampling": _SAMPLINGS[lane % 4],
        "page_tables": [ids(*range(lane * 8, lane * 8 + 8))],
    }
    return worker_admission(lane, [*prompt, *generated], **{**defaults, **fields})


@pytest.fixture(scope="module")
def alone():
    return {lane: generate(_runner(), [_request(lane, 5 + lane)])[lane] for lane in range(8)}


@pytest.mark.parametrize("chunk_tokens", [1, 3, 4, 5, 1000])
def test_tokens_depend_neither_on_others_nor_on_chunks(alone, chunk_tokens):
    requests = [_request(lane, 5 + lane) for lane in range(8)]
    assert generate(_runner(max_step_tokens=1000), requests, chunk_tokens) == alone


@pytest.mark.parametrize("lane", range(4))
@pytest.mark.parametrize("num_generated", [0, 1, 6, 11])
def test_readmitted_sequence_goes_on_with_the_same_tokens(alone, lane, num_generated):
    request = _request(lane, 5 + lane, alone[lane][:num_generated])
    assert generate(_runner(), [request])[lane] == alone[lane]


def test_reused_pages_give_the_same_tokens(alone):
    runner = _runner()
    assert generate(runner, [_request(7, 12)])[7] == alone[7]
    assert generate(runner, [_request(7, 12, num_computed_tokens=8, generation=1)])[7] == alone[7]
