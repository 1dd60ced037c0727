"""What the engine brings, as front ends get it."""

from collections.abc import Iterable, Sequence
from itertools import islice

from control_plane.core.step import PackedLogprobs, TokenLogprob
from control_plane.engine.ports import FinishReason, Outputs, PromptLogprobs, RequestFailed, SequenceFinished
from control_plane.engine.snapshot import EngineSnapshot, RefusedWorker, WorkerSnapshot
from pypto_serving.scheduler.v1 import scheduler_pb2 as pb
from pypto_serving.wire.columns import pack_floats, pack_ids

#: Workers that a front end is told of: its clients hear of no more.
_MAX_REFUSED = 16

_REASONS = {FinishReason.STOP: pb.FINISH_REASON_STOP, FinishReason.LENGTH: pb.FINISH_REASON_LENGTH}


def write_outputs(outputs: Outputs, message: pb.Outputs) -> None:
    """Put what a pass brought into an empty message."""
    if outputs.numbers:
        message.numbers = pack_ids(outputs.numbers)
        message.token_ids = pack_ids(outputs.token_ids)
    if outputs.logprobs:
        _write_logprobs(outputs.logprobs, message)
    if not outputs.has_tokens_only:
        _write_events(outputs, message)


def scheduler_state(snapshot: EngineSnapshot, refused_workers: Iterable[RefusedWorker] = ()) -> pb.SchedulerState:
    """Encode a snapshot, and some of the workers that were refused."""
    return pb.SchedulerState(
        workers=[_worker_state(worker) for worker in snapshot.workers],
        num_running=snapshot.num_running,
        num_waiting_for_capacity=snapshot.num_waiting_for_capacity,
        num_waiting_for_worker=snapshot.num_waiting_for_worker,
        num_held=snapshot.num_held,
        num_waiting_tokens=snapshot.num_waiting_tokens,
        num_stranded_tokens=snapshot.num_stranded_tokens,
        max_model_len=snapshot.max_model_len,
        retry_after_us=_us(snapshot.retry_after_seconds),
        healthy=snapshot.healthy,
        refused_workers=[pb.RefusedWorker(address=each.address, reason=each.reason) for each in islice(refused_workers, _MAX_REFUSED)],
    )


def _worker_state(worker: WorkerSnapshot) -> pb.WorkerState:
    return pb.WorkerState(
        address=worker.address,
        incarnation=worker.incarnation,
        epoch=worker.epoch,
        numerics_id=worker.numerics_id,
        num_running=worker.num_running,
        steps_in_flight=worker.steps_in_flight,
        sent_step_id=worker.sent_step_id,
        acked_step_id=worker.acked_step_id,
        num_free_pages=worker.pages.free,
        num_fenced_pages=worker.pages.fenced,
        num_cached_pages=worker.pages.cached,
        num_referenced_pages=worker.pages.referenced,
    )


def _write_events(outputs: Outputs, message: pb.Outputs) -> None:
    message.accepted.extend(outputs.accepted)
    message.prompt_logprobs.extend(_prompt_logprobs(prompt) for prompt in outputs.prompt_logprobs)
    message.numerics.extend(pb.NumericsChange(number=number, numerics_id=numerics_id) for number, numerics_id in outputs.numerics)
    message.finished.extend(_finished(finished) for finished in outputs.finished)
    message.failed.extend(_failed(failed) for failed in outputs.failed)
    message.started.extend(outputs.started)
    message.usage.extend(
        pb.TenantUsage(request_id=request_id, num_requests=usage.num_requests, num_tokens=usage.num_tokens)
        for request_id, usage in outputs.usage
    )


def _write_logprobs(logprobs: Sequence[tuple[int, TokenLogprob]], message: pb.Outputs) -> None:
    entries = [entry for _, entry in logprobs]
    message.logprob_places = pack_ids([place for place, _ in logprobs])
    message.logprobs = _values(entries)
    message.num_alternatives = pack_ids([len(entry.top) for entry in entries])
    message.top_token_ids, message.top_logprobs = _alternatives(entries)


def _prompt_logprobs(prompt: PromptLogprobs) -> pb.PromptLogprobs:
    """Encode the log probabilities of a prompt without its first token. All tokens have as many alternatives."""
    parts = [_packed(part) for part in prompt.parts]
    logprobs, top_token_ids, top_logprobs = (b"".join(column) for column in zip(*parts, strict=True))
    return pb.PromptLogprobs(
        request_id=prompt.request_id,
        logprobs=logprobs,
        num_alternatives=len(top_token_ids) // len(logprobs) if logprobs else 0,
        top_token_ids=top_token_ids,
        top_logprobs=top_logprobs,
    )


def _packed(part: Iterable[TokenLogprob]) -> tuple[bytes, bytes, bytes]:
    """The columns of a part: log probabilities, alternatives, theirs."""
    if isinstance(part, PackedLogprobs):
        return part.logprobs.tobytes(), part.top_token_ids.tobytes(), part.top_logprobs.tobytes()
    entries = [entry for entry in part if entry.logprob is not None]
    return (_values(entries), *_alternatives(entries))


def _values(entries: Sequence[TokenLogprob]) -> bytes:
    return pack_floats([entry.logprob for entry in entries if entry.logprob is not None])


def _alternatives(entries: Sequence[TokenLogprob]) -> tuple[bytes, bytes]:
    tops = [alternative for entry in entries for alternative in entry.top]
    return pack_ids([token_id for token_id, _ in tops]), pack_floats([logprob for _, logprob in tops])


def _finished(finished: SequenceFinished) -> pb.SequenceFinished:
    return pb.SequenceFinished(
        number=finished.number,
        reason=_REASONS[finished.reason],
        end_token_id=finished.end_token_id,
        num_prompt_tokens=finished.num_prompt_tokens,
        num_generated_tokens=finished.num_generated_tokens,
        num_cached_tokens=finished.num_cached_tokens,
        num_readmissions=finished.num_readmissions,
        queue_us=_us(finished.queue_seconds),
        first_token_us=_us(finished.first_token_seconds),
        total_us=_us(finished.total_seconds),
        worker=finished.worker,
    )


def _failed(failed: RequestFailed) -> pb.RequestFailed:
    retry = failed.retry_after_seconds
    return pb.RequestFailed(
        request_id=failed.request_id,
        failure=pb.Failure.Value(f"FAILURE_{failed.failure.name}"),
        message=failed.message,
        retry_after_us=None if retry is None else _us(retry),
    )


def _us(seconds: float) -> int:
    return max(0, round(seconds * 1e6))
