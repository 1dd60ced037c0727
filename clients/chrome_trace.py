"""One trace of all processes, in Chrome's format, which Perfetto opens."""

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pypto_serving.admin.v1 import admin_pb2 as pb
from pypto_serving.profile.v1 import profile_pb2

Event = dict[str, Any]


@dataclass(slots=True)
class _Process:
    name: str
    offset_ns: int = 0
    spans: list[profile_pb2.Span] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Placed:
    """A span in its place; times are those of the trace, in nanoseconds from its begin."""

    span: profile_pb2.Span
    pid: int
    tid: int
    begin_ns: int
    end_ns: int


class ChromeTrace:
    """Takes in what StopProfile sends, and writes it. Processes stand in the order in which they came.

    A track is a thread, or several where its spans overlap without lying inside each other. Times begin with the first span.
    """

    def __init__(self) -> None:
        self._processes: dict[str, _Process] = {}

    @property
    def num_spans(self) -> int:
        """Spans of all processes."""
        return sum(len(process.spans) for process in self._processes.values())

    @property
    def notes(self) -> list[str]:
        """What readers should know, with the name of the process."""
        return [f"{process.name}: {note}" for process in self._processes.values() for note in process.notes]

    def add(self, part: pb.StopProfileResponse) -> None:
        """Take in a part."""
        process = self._processes.setdefault(part.process, _Process(part.process, part.clock_offset_ns))
        process.spans += part.spans
        process.notes += part.notes
        if part.num_dropped:
            process.notes.append(f"{part.num_dropped} spans are left out, as it was to keep no more")

    def write(self, path: Path) -> None:
        """Write the trace, compressed if the name ends in .gz."""
        text = json.dumps(
            {"traceEvents": self.events(), "displayTimeUnit": "ms", "otherData": {"notes": self.notes}}, separators=(",", ":")
        )
        with gzip.open(path, "wt", encoding="utf-8") if path.suffix == ".gz" else path.open("w", encoding="utf-8") as file:
            file.write(text)

    def events(self) -> list[Event]:
        """Names of processes and threads, spans by rising time, and flows."""
        begin_ns = min((span.begin_ns + each.offset_ns for each in self._processes.values() for span in each.spans), default=0)
        named: list[Event] = []
        placed: list[_Placed] = []
        for pid, process in enumerate(self._processes.values(), start=1):
            named += _named("process", pid, 0, process.name, pid)
            if process.notes:
                named.append({"ph": "M", "pid": pid, "tid": 0, "name": "process_labels", "args": {"labels": "; ".join(process.notes)}})
            for tid, (name, row) in enumerate(_rows(process.spans), start=1):
                named += _named("thread", pid, tid, name, tid)
                placed += _nested(row, pid, tid, process.offset_ns - begin_ns)
        placed.sort(key=lambda each: (each.begin_ns, -each.end_ns))
        return [*named, *map(_slice, placed), *_flow_events(placed)]


def _named(kind: str, pid: int, tid: int, name: str, index: int) -> list[Event]:
    where = {"ph": "M", "pid": pid, "tid": tid}
    return [
        {**where, "name": f"{kind}_name", "args": {"name": name}},
        {**where, "name": f"{kind}_sort_index", "args": {"sort_index": index}},
    ]


def _rows(spans: Iterable[profile_pb2.Span]) -> Iterator[tuple[str, list[profile_pb2.Span]]]:
    """The threads of a process, each with its name: a track has as many as it needs to show its rows beside each other."""
    tracks: defaultdict[str, defaultdict[Any, list[profile_pb2.Span]]] = defaultdict(lambda: defaultdict(list))
    for index, span in enumerate(spans):
        tracks[span.track][span.row or index].append(span)
    for track, groups in sorted(tracks.items()):
        threads: list[tuple[int, list[profile_pb2.Span]]] = []  # until when each is taken, and what it has
        for group in sorted(groups.values(), key=_begin):
            begin, end = _begin(group), max(span.begin_ns + span.duration_ns for span in group)
            free = next((index for index, (taken_until, _) in enumerate(threads) if taken_until <= begin), None)
            if free is None:
                threads.append((end, group))
            else:
                row = threads[free][1]
                row += group
                threads[free] = (end, row)
        for index, (_, row) in enumerate(threads, start=1):
            yield (track if len(threads) == 1 else f"{track} {index}"), row


def _begin(group: Sequence[profile_pb2.Span]) -> int:
    return min(span.begin_ns for span in group)


def _nested(row: Iterable[profile_pb2.Span], pid: int, tid: int, shift_ns: int) -> Iterator[_Placed]:
    """The spans of a thread; one that outlasts the span that it began in is cut, as threads know no other overlap."""
    ends: list[int] = []
    for span in sorted(row, key=lambda span: (span.begin_ns, -span.duration_ns)):
        begin, end = span.begin_ns, span.begin_ns + span.duration_ns
        while ends and ends[-1] <= begin:
            ends.pop()
        end = min(end, ends[-1]) if ends else end
        ends.append(end)
        yield _Placed(span, pid, tid, begin + shift_ns, end + shift_ns)


def _slice(placed: _Placed) -> Event:
    span = placed.span
    arguments = {**span.counts, **{name: text for name, text in span.labels.items() if text}}
    where = {"ph": "X", "pid": placed.pid, "tid": placed.tid, "ts": placed.begin_ns / 1000}
    return {**where, "dur": (placed.end_ns - placed.begin_ns) / 1000, "name": span.name, "cat": span.track, "args": arguments}


def _flow_events(placed: Iterable[_Placed]) -> Iterator[Event]:
    flows: defaultdict[str, list[_Placed]] = defaultdict(list)
    for each in placed:
        for flow in each.span.flows:
            flows[flow].append(each)
    for number, (flow, members) in enumerate(flows.items(), start=1):
        if len(members) < 2:
            continue
        for index, member in enumerate(members):
            phase = "s" if index == 0 else "f" if index == len(members) - 1 else "t"
            where = {"ph": phase, "id": number, "pid": member.pid, "tid": member.tid, "ts": member.begin_ns / 1000}
            yield {**where, "name": flow.partition(" ")[0], "cat": "flow", "bp": "e"}
