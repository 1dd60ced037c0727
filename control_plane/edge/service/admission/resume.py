"""What a client brings along to continue a request, and its replay without holding an event loop up."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from control_plane.core.constraint import ConstraintViolated
from control_plane.edge.service.admission.parameters import check_complete, check_num_tokens, check_parameters, check_token_ids
from control_plane.edge.service.admission.replay import Replay
from control_plane.edge.service.errors import FailedPrecondition, InvalidArgument
from pypto_serving.inference.v1 import inference_pb2

#: Of all choices together; they go through text, stop strings and constraint again.
MAX_RESUMED_TOKENS = 1 << 20

_MAX_KEY_BYTES = 64
_MAX_NUMERICS_ID = 256

#: Tokens from one reading of the clock to the next.
_SLICE_TOKENS = 16


@dataclass(frozen=True, slots=True)
class UnfinishedChoice:
    """A choice that is to be generated, from its beginning or from where it broke off."""

    index: int
    token_ids: Sequence[int] = ()
    numerics_id: str | None = None  # under which they were made


def check_num_resumed_tokens(resume: inference_pb2.Resume) -> int:
    """How many tokens all choices bring; raises InvalidArgument when they are too many to look at."""
    num_tokens = sum(len(choice.token_ids) for choice in resume.choices)
    check_num_tokens("resume.choices together", num_tokens, MAX_RESUMED_TOKENS)
    return num_tokens


def check_resume(spec: inference_pb2.GenerationSpec, fingerprint: str, vocab_size: int, max_tokens: int) -> None:
    """Check a resume, all but its prompt and lengths that depend on it; no request has more than `max_tokens`. Raises a RequestError."""
    resume = spec.resume
    beside = [field for field in (spec.WhichOneof("prompt"), "sampling", "stopping", "output", "n") if field and spec.HasField(field)]
    if beside:
        raise InvalidArgument(f"{beside[0]} is set beside resume, must be absent")
    if resume.model_fingerprint != fingerprint:
        raise FailedPrecondition(
            f"resume.model_fingerprint {resume.model_fingerprint!r} is of another model; this server has {fingerprint!r}"
        )
    if len(resume.key) > _MAX_KEY_BYTES:
        raise InvalidArgument(f"resume.key has {len(resume.key)} bytes, may have at most {_MAX_KEY_BYTES}")
    check_complete(resume.effective)
    check_parameters(resume.effective, vocab_size, "resume.effective.")
    check_num_tokens("resume.prompt_token_ids", len(resume.prompt_token_ids), max_tokens)
    _check_choices(resume)
    for index, choice in enumerate(resume.choices):
        _check_choice(f"resume.choices[{index}]", choice, resume.effective.stopping.max_tokens, vocab_size)


def unfinished_choices(spec: inference_pb2.GenerationSpec, num_choices: int) -> list[UnfinishedChoice]:
    """The choices to be generated, in order of their index: all, or those that a checked resume has not seen to their end."""
    known = {choice.index: choice for choice in spec.resume.choices}
    unfinished = []
    for index in range(num_choices):
        received = known.get(index)
        if received is None:
            unfinished.append(UnfinishedChoice(index))
        elif not received.finished:
            unfinished.append(UnfinishedChoice(index, received.token_ids, received.numerics_id or None))
    return unfinished


def _check_choices(resume: inference_pb2.Resume) -> None:
    num_choices = resume.effective.n
    if len(resume.choices) > num_choices:
        raise InvalidArgument(f"resume.choices has {len(resume.choices)} entries, may have at most {num_choices}")
    seen: dict[int, int] = {}
    for index, choice in enumerate(resume.choices):
        if choice.index >= num_choices:
            raise InvalidArgument(f"resume.choices[{index}].index = {choice.index}, must be below n = {num_choices}")
        if choice.index in seen:
            raise InvalidArgument(f"resume.choices[{index}].index = {choice.index} is also that of resume.choices[{seen[choice.index]}]")
        seen[choice.index] = index
    if sum(choice.finished for choice in resume.choices) == num_choices:
        raise InvalidArgument("resume.choices: every choice is finished, there is nothing left to generate")


def _check_choice(path: str, choice: inference_pb2.ResumedChoice, max_tokens: int, vocab_size: int) -> None:
    if len(choice.token_ids) > max_tokens:
        raise InvalidArgument(f"{path}.token_ids has {len(choice.token_ids)} tokens, may have at most max_tokens = {max_tokens}")
    check_token_ids(choice.token_ids, vocab_size, f"{path}.token_ids")
    if len(choice.numerics_id) > _MAX_NUMERICS_ID or not choice.numerics_id.isprintable():
        raise InvalidArgument(f"{path}.numerics_id must be at most {_MAX_NUMERICS_ID} printable characters")


@dataclass(frozen=True, slots=True)
class ReplayLimits:
    """What the replay of one resume may cost."""

    cpu_seconds: float = 20.0
    slice_seconds: float = 0.01  # of CPU time; then it is the turn of another resume, and this one may have been cancelled


class Replayer:
    """Has threads of its own, on which resumes take turns. Used on the clients' event loop; `cpu_clock` is read on the threads."""

    def __init__(self, limits: ReplayLimits | None = None, num_threads: int = 2, cpu_clock: Callable[[], float] = time.thread_time) -> None:
        self._limits = limits or ReplayLimits()
        self._cpu_clock = cpu_clock
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="replay")

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(self, replay: Replay) -> None:
        """Replay to the end; raises InvalidArgument. Whoever stops waiting stops it."""
        num_tokens, seconds = replay.num_tokens, 0.0
        if not num_tokens:
            return
        try:
            while not replay.is_done:
                seconds += await asyncio.get_running_loop().run_in_executor(self._threads, self._run_slice, replay)
                if seconds > self._limits.cpu_seconds and not replay.is_done:
                    raise InvalidArgument(
                        f"resume.choices: {replay.num_pushed_tokens} of {num_tokens} tokens took {seconds:.1f} s of CPU time to go through "
                        f"text, stop strings and constraint again, limit {self._limits.cpu_seconds:g} s; start the request anew"
                    )
        except ConstraintViolated as error:
            raise InvalidArgument(str(error)) from None

    def _run_slice(self, replay: Replay) -> float:
        """Returns the CPU time that it took, in seconds."""
        start = self._cpu_clock()
        seconds = 0.0
        while not replay.is_done and seconds < self._limits.slice_seconds:
            replay.advance(_SLICE_TOKENS)
            seconds = self._cpu_clock() - start
        return seconds
