"""What the scheduler writes is what the front end reads, or nothing."""

from array import array
from typing import Any

import pytest
from fakes.control_plane.front_end_calls import make_request
from fakes.control_plane.session_engine import VOCAB_SIZE, prompt_logprobs_of
from fakes.network.random_messages import changed
from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.pages.page_pool import PageCounts
from control_plane.core.sampling import SamplingParams
from control_plane.core.step import PackedLogprobs, TokenLogprob, ids
from control_plane.edge.frontend_link.commands import SessionLimits, read_submissions
from control_plane.edge.frontend_link.outputs import scheduler_state, write_outputs
from control_plane.edge.scheduler_link import commands
from control_plane.edge.scheduler_link.live_requests import LiveRequests
from control_plane.edge.scheduler_link.outputs import read_outputs, read_state
from control_plane.engine.ports import (
    ChoiceSpec,
    Failure,
    FinishReason,
    GenerationRequest,
    Outputs,
    Quota,
    RequestFailed,
    SequenceFinished,
    Tenant,
)
from control_plane.engine.snapshot import EngineSnapshot, WorkerSnapshot
from pypto_serving.scheduler.v1 import scheduler_pb2 as pb
from pypto_serving.wire.checks import FrameError
from pypto_serving.wire.columns import pack_floats, pack_ids

_REQUEST = make_request("r")


def _written(outputs: Outputs) -> pb.Outputs:
    message = pb.Outputs()
    write_outputs(outputs, message)
    return pb.Outputs.FromString(message.SerializeToString())


def _read(message: pb.Outputs) -> Outputs:
    return read_outputs(message, VOCAB_SIZE, lambda request_id: _REQUEST.prompt_token_ids)


_names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20).filter(str.isprintable)
_counts = st.integers(0, 2**32 - 1)
_token_ids = st.integers(0, VOCAB_SIZE - 1)
_seconds = st.integers(0, 10**12).map(lambda us: us / 1e6)
_floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
_tops = st.lists(st.tuples(_token_ids, _floats), max_size=3).map(tuple)


@st.composite
def _passes(draw: st.DrawFn) -> Outputs:
    columns = draw(st.lists(st.tuples(_counts, _token_ids), max_size=8))
    places = draw(st.sets(st.integers(0, len(columns) - 1))) if columns else []
    finished = st.builds(
        SequenceFinished,
        number=_counts,
        reason=st.sampled_from(FinishReason),
        end_token_id=st.none() | _token_ids,
        num_prompt_tokens=_counts,
        num_generated_tokens=_counts,
        num_cached_tokens=_counts,
        num_readmissions=_counts,
        queue_seconds=_seconds,
        first_token_seconds=_seconds,
        total_seconds=_seconds,
        worker=_names,
    )
    failed = st.builds(RequestFailed, _names, st.sampled_from(Failure), st.text(max_size=9), st.none() | _seconds)
    return Outputs(
        accepted=draw(st.lists(_names, max_size=3)),
        numerics=draw(st.lists(st.tuples(_counts, _names), max_size=3)),
        numbers=ids(number for number, _ in columns),
        token_ids=ids(token_id for _, token_id in columns),
        logprobs=[(place, TokenLogprob(columns[place][1], draw(_floats), draw(_tops))) for place in sorted(places)],
        finished=draw(st.lists(finished, max_size=3)),
        failed=draw(st.lists(failed, max_size=3)),
    )


@given(_passes())
def test_a_pass_arrives_as_it_was(outputs):
    assert _read(_written(outputs)) == outputs


def test_a_pass_of_tokens_only_is_two_columns():
    numbers = ids(range(256))
    assert len(_written(Outputs(numbers=numbers, token_ids=numbers)).SerializeToString()) < 2 * 4 * 256 + 16


@pytest.mark.parametrize("num_alternatives", [0, 2])
def test_prompt_log_probabilities_arrive_packed_or_not(num_alternatives):
    plain = prompt_logprobs_of(_REQUEST, num_alternatives)
    entries = list(plain.entries)
    tops = [alternative for entry in entries[1:] for alternative in entry.top]
    columns = (array("f", [entry.logprob for entry in entries[1:]]), ids(top[0] for top in tops), array("f", [top[1] for top in tops]))
    values, top_ids, top = (memoryview(column) for column in columns)
    packed = PackedLogprobs([entry.token_id for entry in entries[1:]], values, num_alternatives, top_ids, top)
    for parts in (plain.parts, [entries[:1], packed], [entries[:1], packed[0:1], packed[1:2]]):
        [read] = _read(_written(Outputs(prompt_logprobs=[type(plain)("r", parts)]))).prompt_logprobs
        assert list(read.entries) == entries


def _message(**fields: Any) -> pb.Outputs:
    return pb.Outputs(numbers=pack_ids([1, 2]), token_ids=pack_ids([3, 4]), **fields)


def _logprobs(**fields: bytes) -> pb.Outputs:
    sound = {"logprob_places": pack_ids([1]), "logprobs": pack_floats([-1]), "num_alternatives": pack_ids([1])}
    sound |= {"top_token_ids": pack_ids([5]), "top_logprobs": pack_floats([-2])}
    return _message(**{**sound, **fields})


def _prompt(**fields: Any) -> pb.Outputs:
    sound = {
        "logprobs": pack_floats([-1, -2]),
        "num_alternatives": 1,
        "top_token_ids": pack_ids([5, 6]),
        "top_logprobs": pack_floats([0, 0]),
    }
    return _message(prompt_logprobs=[pb.PromptLogprobs(request_id="r", **{**sound, **fields})])


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (pb.Outputs(numbers=pack_ids([1])), "numbers 1, token_ids 0"),
        (pb.Outputs(numbers=b"123"), "numbers: 3 bytes"),
        (pb.Outputs(numbers=pack_ids([1]), token_ids=pack_ids([VOCAB_SIZE])), "token_ids: 1000 is not below 1000"),
        (_logprobs(logprob_places=pack_ids([2])), "logprob_places: 2 is not below 2"),
        (_logprobs(logprob_places=pack_ids([1, 1]), logprobs=pack_floats([0, 0]), num_alternatives=pack_ids([0, 1])), "do not rise"),
        (_logprobs(logprobs=pack_floats([float("nan")])), "logprobs: nan"),
        (_logprobs(logprobs=b""), "logprob_places 1, logprobs 0"),
        (_logprobs(num_alternatives=pack_ids([2])), "1 alternatives with 1 log probabilities, due are 2"),
        (_logprobs(num_alternatives=pack_ids([257])), "num_alternatives: 257"),
        (_logprobs(top_token_ids=pack_ids([1000])), "top_token_ids: 1000"),
        (_prompt(logprobs=pack_floats([0])), "1 entries, a prompt of 3 tokens has 2"),
        (_prompt(num_alternatives=257), "num_alternatives: 257"),
        (_prompt(top_logprobs=b""), "2 alternatives with 0 log probabilities, due are 2"),
        (_message(numerics=[pb.NumericsChange(number=1)]), "numerics.numerics_id"),
        (_message(finished=[pb.SequenceFinished(number=1)]), "finished.reason: 0"),
        (_message(finished=[pb.SequenceFinished(reason=1, end_token_id=1000)]), "finished.end_token_id: 1000"),
    ],
)
def test_what_does_not_fit_is_refused(message, complaint):
    with pytest.raises(FrameError) as caught:
        _read(message)
    assert complaint in str(caught.value)


def test_an_unknown_failure_is_an_internal_one():
    [failed] = _read(pb.Outputs(failed=[pb.RequestFailed(request_id="r", failure=99)])).failed
    assert failed.failure is Failure.INTERNAL


@given(changed([_logprobs(), _prompt(), _message(finished=[pb.SequenceFinished(number=1, reason=2)])], {}))
def test_whatever_is_changed_is_either_sound_or_refused(message):
    try:
        outputs = _read(message)
    except FrameError:
        return
    assert len(outputs.numbers) == len(outputs.token_ids)
    assert all(token_id < VOCAB_SIZE for token_id in outputs.token_ids)
    assert all(outputs.token_ids[place] == entry.token_id for place, entry in outputs.logprobs)
    assert all(len(list(prompt.entries)) == 3 for prompt in outputs.prompt_logprobs)


def test_a_snapshot_arrives_as_it_was():
    workers = (WorkerSnapshot("host:1", "i", 2, "n", 3, 4, 5, 6, PageCounts(7, 8, 9, 10)),)
    snapshot = EngineSnapshot(workers, 1, 2, 3, 4, 5, 6, 7, 0.25, False)
    assert read_state(scheduler_state(snapshot)) == snapshot


_samplings = st.builds(
    SamplingParams,
    temperature=st.floats(0, 10, width=32),
    top_p=st.floats(0.0625, 1, width=32),
    top_k=_counts,
    min_p=st.floats(0, 1, width=32),
    repetition_penalty=st.floats(0.0625, 4, width=32),
    presence_penalty=st.floats(-2, 2, width=32),
    frequency_penalty=st.floats(-2, 2, width=32),
    seed=st.integers(0, 2**64 - 1),
    logit_bias=_tops,
    logprobs=st.booleans(),
    top_logprobs=st.integers(0, 20),
    prompt_logprobs=st.none() | st.integers(0, 20),
)


_quotas = st.builds(Quota, st.none() | st.integers(1, 2**64 - 1), st.none() | st.integers(1, 2**32 - 1))


@st.composite
def _requests(draw: st.DrawFn) -> GenerationRequest:
    indices = sorted(draw(st.sets(st.integers(0, 9), max_size=3)))
    resumed = st.lists(_token_ids, max_size=3).map(ids)
    choices = [ChoiceSpec(index, 100 + index, draw(_samplings), draw(resumed), draw(st.none() | _names)) for index in indices]
    return GenerationRequest(
        request_id=draw(_names),
        resume_key=draw(st.binary(max_size=20)),
        prompt_token_ids=ids(draw(st.lists(_token_ids, min_size=1, max_size=9))),
        choices=[choice if choice.resumed_token_ids else ChoiceSpec(*_fresh(choice)) for choice in choices],
        max_tokens=draw(st.integers(4, 2**32 - 1)),
        min_tokens=draw(_counts),
        end_token_ids=frozenset(draw(st.sets(_token_ids, max_size=3))),
        arrival_time=float(draw(st.integers(0, 50))),
        priority=draw(st.integers(-(2**31), 2**31 - 1)),
        cache_salt=draw(st.text(max_size=5)),
        grammar=draw(st.text(max_size=5)),
        takes_over=draw(st.booleans()),
        was_accepted=draw(st.booleans()),
        tenant=draw(st.none() | st.builds(Tenant, st.sampled_from(["acme", "key-1"]), _quotas, st.booleans())),
    )


def _fresh(choice: ChoiceSpec) -> tuple[int, int, SamplingParams, Any]:
    return choice.index, choice.number, choice.sampling, ids()


@given(_requests())
def test_a_request_arrives_as_it_was(request):
    live = LiveRequests(max_losses=1)
    live.add(request, now=50.0)
    sent = live.pop_unsent()
    assert sent is not None
    frame = pb.Commands.FromString(pb.Commands(commands=[commands.submission(sent, now=50.0)]).SerializeToString())
    assert read_submissions(frame, SessionLimits(VOCAB_SIZE, (), ()), now=50.0) == [request]
