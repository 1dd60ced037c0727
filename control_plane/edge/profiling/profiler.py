"""The recording that runs, and everybody who takes part in it."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pypto_serving.log.v1 import log_pb2
from pypto_serving.profile.v1 import profile_pb2 as pb
from pypto_serving.recording.clock_offset import Offset, PeerClock
from pypto_serving.recording.frames import KEEP_SECONDS, check_part, check_spans, encode_recording, encode_spans
from pypto_serving.recording.recorder import RecordingLimits, SpanRecorder
from pypto_serving.wire.checks import FrameError

_log = logging.getLogger(__name__)

#: The profiler of torch takes a while to tell what it saw.
_ANSWER_SECONDS = 60.0


class Participant(Protocol):
    """A process in session, which may take part in a recording; a key of dictionaries, by identity."""

    @property
    def process_name(self) -> str:
        """What it is called in a trace."""

    @property
    def can_record(self) -> bool:
        """Whether it knows recordings."""

    @property
    def knows_log_levels(self) -> bool:
        """Whether it can be told from which level on to log."""

    @property
    def peer_clock(self) -> PeerClock:
        """Its clock beside ours."""

    def set_log_level(self, change: log_pb2.LevelChange) -> None:
        """Tell it from which level on to log."""

    def record(self, recording: pb.Recording) -> None:
        """Tell it what is to be recorded from now on."""


#: Begins to record in this process, or ends with None.
LocalRecorder = Callable[[SpanRecorder | None], None]


class ProfileRefused(Exception):
    """There is no such recording, or one runs."""


@dataclass(slots=True)
class ProcessSpans:
    """What one process has recorded."""

    process: str
    parts: list[pb.Spans] = field(default_factory=list)
    offset: Offset | None = None
    notes: list[str] = field(default_factory=list)
    num_spans: int = 0
    is_asked: bool = False  # to send them: twice would be twice from the beginning
    answered: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class _Recording:
    id: str
    limits: RecordingLimits
    recorder: SpanRecorder
    processes: dict[Participant, ProcessSpans] = field(default_factory=dict)
    gone: list[ProcessSpans] = field(default_factory=list)
    runs: bool = True
    is_fetched: bool = False  # at this moment


class Profiler:
    """One recording at a time. Belongs to the engine's event loop.

    idle --start--> runs --its time is over--> over --fetch--> idle
                      '------------- fetch ---------------------^
                                                 '-- nobody fetches it within `keep_seconds` --> idle
    """

    def __init__(self, process_name: str, keep_seconds: float = KEEP_SECONDS) -> None:
        self.process_name = process_name
        self._keep_seconds = keep_seconds
        self._local: list[LocalRecorder] = []
        self._participants: dict[Participant, None] = {}
        self._recording: _Recording | None = None
        self._timer: asyncio.TimerHandle | None = None

    def add_local(self, recorder: LocalRecorder) -> None:
        """Let a part of this process take part, from the next recording on."""
        self._local.append(recorder)

    # Who takes part

    @property
    def participants(self) -> Sequence[Participant]:
        """The processes in session."""
        return tuple(self._participants)

    def joined(self, participant: Participant) -> None:
        """A process is in session."""
        self._participants[participant] = None
        if self._recording and self._recording.runs:
            self._tell(self._recording, participant, ["it came into session while the recording ran: what was before is missing"])

    def left(self, participant: Participant) -> None:
        """The session is over; what the process has not sent is lost."""
        self._participants.pop(participant, None)
        recording = self._recording
        told = recording.processes.pop(participant, None) if recording else None
        if recording is None or told is None:
            return
        if not told.answered.is_set():
            told.notes.append("its session ended before it had sent its spans: they are lost, all or some")
            told.answered.set()
        told.offset = participant.peer_clock.offset()
        recording.gone.append(told)

    def resumed(self, participant: Participant) -> None:
        """The session of a process goes on over another stream: it may have missed what it was told."""
        told = self._recording and self._recording.processes.get(participant)
        if self._recording and told and not told.answered.is_set():
            told.parts.clear()  # it sends all of them again
            told.num_spans, told.is_asked = 0, not self._recording.runs
            participant.record(encode_recording(self._recording.id, self._recording.limits, is_over=told.is_asked))

    def receive(self, participant: Participant, spans: pb.Spans) -> None:
        """Take in what a process has recorded; raises FrameError. No process may send more than it may keep.

        Its spans are looked at when all have come, on another thread.
        """
        check_part(spans)
        recording = self._recording
        told = recording.processes.get(participant) if recording and recording.id == spans.recording_id else None
        if recording is None or told is None or told.answered.is_set():
            return
        told.num_spans += max(1, len(spans.spans))  # nor parts without end
        if told.num_spans > recording.limits.max_spans:
            told.notes.append("it sent more spans than it was to keep: the last ones are left out")
            told.answered.set()
            return
        told.parts.append(spans)
        if spans.is_last:
            told.answered.set()

    # Recordings

    def start(self, limits: RecordingLimits) -> tuple[str, list[str], list[str]]:
        """Begin; returns the recording's id, who takes part and who cannot. Raises ProfileRefused while another one runs.

        One that is over and was not fetched gives way.
        """
        if self._recording and self._recording.runs:
            raise ProfileRefused(f"recording {self._recording.id} runs: stop it first")
        if self._recording and self._recording.is_fetched:
            raise ProfileRefused(f"recording {self._recording.id} is being fetched: wait until it has come")
        recording_id = secrets.token_hex(4)
        recording = self._recording = _Recording(recording_id, limits, SpanRecorder(recording_id, limits))
        self._rearm(limits.max_seconds, self._end, recording)
        for begin in self._local:
            begin(recording.recorder)
        for participant in self._participants:
            self._tell(recording, participant)
        _log.info("recording", extra={"recording": recording_id, "recorded": limits.level.name.lower(), "seconds": limits.max_seconds})
        able = [self.process_name, *(told.process for told in recording.processes.values())]
        return recording_id, able, [each.process_name for each in self._participants if not each.can_record]

    async def stop(self, recording_id: str) -> list[ProcessSpans]:
        """End the recording; returns what everybody has recorded, once. Raises ProfileRefused."""
        recording = self._recording
        if recording is None or recording.is_fetched or recording_id not in ("", recording.id):
            raise ProfileRefused(f"there is no recording {recording_id or 'to be fetched'}: start one")
        recording.is_fetched = True
        try:
            return await self._fetch(recording)
        finally:
            recording.is_fetched = False  # who gave up may ask again

    async def _fetch(self, recording: _Recording) -> list[ProcessSpans]:
        self._end(recording)
        for participant, told in recording.processes.items():
            if not told.is_asked:
                told.is_asked = True
                participant.record(encode_recording(recording.id, recording.limits, is_over=True))
        missing = await self._wait_for_answers(recording)
        for told in missing:
            told.notes.append(f"it has not sent all of its spans within {_ANSWER_SECONDS:g} s")
            told.answered.set()
        # It takes seconds where spans are many, and requests go on meanwhile.
        own_parts = await asyncio.to_thread(lambda: list(encode_spans(recording.recorder)))
        await asyncio.to_thread(_leave_out_broken, [*recording.processes.values(), *recording.gone])
        for participant, told in recording.processes.items():
            told.offset = participant.peer_clock.offset()
        if self._recording is recording:
            self._forget()
        own = ProcessSpans(self.process_name, own_parts, Offset(0, 0))
        return [own, *recording.processes.values(), *recording.gone]

    async def _wait_for_answers(self, recording: _Recording) -> Sequence[ProcessSpans]:
        """Wait until everybody has answered or is gone; returns who has not in time."""
        waiting = [told for told in recording.processes.values() if not told.answered.is_set()]
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                for told in waiting:
                    await told.answered.wait()
        except TimeoutError:
            pass
        return [told for told in waiting if not told.answered.is_set()]

    def _tell(self, recording: _Recording, participant: Participant, notes: Sequence[str] = ()) -> None:
        if participant.can_record:
            recording.processes[participant] = ProcessSpans(participant.process_name, notes=list(notes))
            participant.record(encode_recording(recording.id, recording.limits))
        else:
            recording.gone.append(ProcessSpans(participant.process_name, notes=["it does not know recordings: it is older"]))

    def _end(self, recording: _Recording) -> None:
        """Record no more here; others end by themselves at the same time, or are told."""
        if recording.runs:
            recording.runs = False
            self._rearm(self._keep_seconds, self._drop, recording)
            for end in self._local:
                end(None)

    def _drop(self, recording: _Recording) -> None:
        """Give up a recording that nobody fetches; one that is being fetched is looked at again later."""
        if recording.is_fetched:
            self._rearm(self._keep_seconds, self._drop, recording)
            return
        self._forget()
        _log.warning("recording dropped: nobody has fetched it", extra={"recording": recording.id, "seconds": self._keep_seconds})

    def _forget(self) -> None:
        self._recording = None
        if self._timer:
            self._timer.cancel()

    def _rearm(self, seconds: float, call: Callable[[_Recording], None], recording: _Recording) -> None:
        """Wait for the next thing that happens to a recording by itself, and for nothing else."""
        if self._timer:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, call, recording)


def _leave_out_broken(processes: Sequence[ProcessSpans]) -> None:
    """Leave out what a process has sent if it breaks the contract."""
    for told in processes:
        try:
            for part in told.parts:
                check_spans(part)
        except FrameError as error:
            told.parts.clear()
            told.notes.append(f"what it has sent is broken, and left out: {error}")
