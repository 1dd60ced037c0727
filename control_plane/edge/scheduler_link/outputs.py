"""What the scheduler sends, read and checked."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from control_plane.core.pages.page_pool import PageCounts
from control_plane.core.step import PackedLogprobs, TokenLogprob
from control_plane.engine.ports import Failure, FinishReason, Outputs, PromptLogprobs, RequestFailed, SequenceFinished, TenantUsage
from control_plane.engine.snapshot import EngineSnapshot, RefusedWorker, WorkerSnapshot
from pypto_serving.scheduler.v1 import scheduler_pb2 as pb
from pypto_serving.wire.checks import FrameError, check_equal_lengths, check_name, check_range
from pypto_serving.wire.columns import Ids, unpack_column, unpack_finite, unpack_ids_below
from pypto_serving.wire.contract import MAX_ALTERNATIVES

_NO_LIMIT = 2**32
_MAX_MESSAGE_LENGTH = 10_000
_REASONS = {pb.FINISH_REASON_STOP: FinishReason.STOP, pb.FINISH_REASON_LENGTH: FinishReason.LENGTH}
_FAILURES = {pb.Failure.Value(f"FAILURE_{failure.name}"): failure for failure in Failure}


def read_outputs(message: pb.Outputs, vocab_size: int, prompt_of: Callable[[str], Sequence[int]]) -> Outputs:
    """Check columns and entries by themselves; whether what they name is live is not known here. Raises FrameError.

    `prompt_of`: the prompt of a request; raises FrameError for one that is not live.
    """
    numbers = unpack_column(message.numbers, "numbers", _NO_LIMIT)
    token_ids = unpack_column(message.token_ids, "token_ids", vocab_size)
    check_equal_lengths({"numbers": numbers, "token_ids": token_ids})
    return Outputs(
        accepted=list(message.accepted),
        prompt_logprobs=[_prompt_logprobs(prompt, prompt_of(prompt.request_id), vocab_size) for prompt in message.prompt_logprobs],
        numerics=[_numerics(change) for change in message.numerics],
        numbers=numbers,
        token_ids=token_ids,
        logprobs=_logprobs(message, token_ids, vocab_size) if message.logprob_places or message.logprobs else [],
        finished=[_finished(finished, vocab_size) for finished in message.finished],
        failed=[_failed(failed) for failed in message.failed],
        started=list(message.started),
        usage=[(usage.request_id, TenantUsage(usage.num_requests, usage.num_tokens)) for usage in message.usage],
    )


def read_state(state: pb.SchedulerState) -> EngineSnapshot:
    """Read a snapshot."""
    return EngineSnapshot(
        workers=tuple(_worker(worker) for worker in state.workers),
        num_running=state.num_running,
        num_waiting_for_capacity=state.num_waiting_for_capacity,
        num_waiting_for_worker=state.num_waiting_for_worker,
        num_held=state.num_held,
        num_waiting_tokens=state.num_waiting_tokens,
        num_stranded_tokens=state.num_stranded_tokens,
        max_model_len=state.max_model_len,
        retry_after_seconds=state.retry_after_us / 1e6,
        healthy=state.healthy,
    )


def read_refused(state: pb.SchedulerState) -> list[RefusedWorker]:
    """Read which workers the scheduler tells of that will not work for it."""
    return [RefusedWorker(each.address, each.reason[:_MAX_MESSAGE_LENGTH]) for each in state.refused_workers]


def _worker(worker: pb.WorkerState) -> WorkerSnapshot:
    return WorkerSnapshot(
        address=worker.address,
        incarnation=worker.incarnation,
        epoch=worker.epoch,
        numerics_id=worker.numerics_id,
        num_running=worker.num_running,
        steps_in_flight=worker.steps_in_flight,
        sent_step_id=worker.sent_step_id,
        acked_step_id=worker.acked_step_id,
        pages=PageCounts(worker.num_free_pages, worker.num_fenced_pages, worker.num_cached_pages, worker.num_referenced_pages),
    )


def _numerics(change: pb.NumericsChange) -> tuple[int, str]:
    check_name("numerics.numerics_id", change.numerics_id)
    return change.number, change.numerics_id


def _prompt_logprobs(message: pb.PromptLogprobs, prompt: Sequence[int], vocab_size: int) -> PromptLogprobs:
    field, count = "prompt_logprobs", message.num_alternatives
    check_range(f"{field}.num_alternatives", count, 0, MAX_ALTERNATIVES)
    values = unpack_finite(message.logprobs, f"{field}.logprobs")
    if len(values) != len(prompt) - 1:
        raise FrameError(f"{field}.logprobs: {len(values)} entries, a prompt of {len(prompt)} tokens has {len(prompt) - 1}")
    top_ids = unpack_ids_below(message.top_token_ids, f"{field}.top_token_ids", vocab_size)
    top = unpack_finite(message.top_logprobs, f"{field}.top_logprobs")
    if not len(top_ids) == len(top) == count * len(values):
        raise FrameError(f"{field}: {len(top_ids)} alternatives with {len(top)} log probabilities, due are {count * len(values)}")
    packed = PackedLogprobs(prompt[1:], values.data, count, top_ids.data, top.data)
    return PromptLogprobs(message.request_id, [(TokenLogprob(prompt[0], None),), packed])


def _logprobs(message: pb.Outputs, token_ids: Sequence[int], vocab_size: int) -> list[tuple[int, TokenLogprob]]:
    places = unpack_ids_below(message.logprob_places, "logprob_places", len(token_ids))
    values = unpack_finite(message.logprobs, "logprobs")
    counts = unpack_ids_below(message.num_alternatives, "num_alternatives", MAX_ALTERNATIVES + 1)
    check_equal_lengths({"logprob_places": places, "logprobs": values, "num_alternatives": counts})
    if (places[1:] <= places[:-1]).any():
        raise FrameError("logprob_places: they do not rise")
    alternatives = _alternatives(message, counts, vocab_size)
    entries = zip(places.tolist(), values.tolist(), counts.tolist(), strict=True)
    return [(place, TokenLogprob(token_ids[place], value, tuple(islice(alternatives, count)))) for place, value, count in entries]


def _alternatives(message: pb.Outputs, counts: Ids, vocab_size: int) -> Iterator[tuple[int, float]]:
    top_ids = unpack_ids_below(message.top_token_ids, "top_token_ids", vocab_size)
    top = unpack_finite(message.top_logprobs, "top_logprobs")
    due = int(counts.sum())
    if not len(top_ids) == len(top) == due:
        raise FrameError(f"top_token_ids: {len(top_ids)} alternatives with {len(top)} log probabilities, due are {due}")
    return zip(top_ids.tolist(), top.tolist(), strict=True)


def _finished(finished: pb.SequenceFinished, vocab_size: int) -> SequenceFinished:
    if finished.reason not in _REASONS:
        raise FrameError(f"finished.reason: {finished.reason} says nothing")
    if finished.HasField("end_token_id"):
        check_range("finished.end_token_id", finished.end_token_id, 0, vocab_size - 1)
    return SequenceFinished(
        number=finished.number,
        reason=_REASONS[finished.reason],
        end_token_id=finished.end_token_id if finished.HasField("end_token_id") else None,
        num_prompt_tokens=finished.num_prompt_tokens,
        num_generated_tokens=finished.num_generated_tokens,
        num_cached_tokens=finished.num_cached_tokens,
        num_readmissions=finished.num_readmissions,
        queue_seconds=finished.queue_us / 1e6,
        first_token_seconds=finished.first_token_us / 1e6,
        total_seconds=finished.total_us / 1e6,
        worker=finished.worker[:_MAX_MESSAGE_LENGTH],
    )


def _failed(failed: pb.RequestFailed) -> RequestFailed:
    return RequestFailed(
        request_id=failed.request_id,
        failure=_FAILURES.get(failed.failure, Failure.INTERNAL),
        message=failed.message[:_MAX_MESSAGE_LENGTH],
        retry_after_seconds=failed.retry_after_us / 1e6 if failed.HasField("retry_after_us") else None,
    )
