"""The rules of Chrome's trace format (Trace Event Format, "JSON Object Format") that Perfetto relies on, and that a trace has to obey."""

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

Event = dict[str, Any]

_PHASES = {"M", "X", "s", "t", "f"}
_NAMES = {"process_name", "process_sort_index", "process_labels", "thread_name", "thread_sort_index"}


class CheckedTrace:
    """A trace that obeys them; the constructor asserts it."""

    def __init__(self, events: list[Event]) -> None:
        self.events = events
        assert {event["ph"] for event in events} <= _PHASES
        self.processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        self.threads = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
        self.slices = [event for event in events if event["ph"] == "X"]
        self._check_names()
        self._check_slices()
        self.flows = self._check_flows()

    @classmethod
    def read(cls, path: Path) -> "CheckedTrace":
        """Read a file, compressed or not."""
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            contents = json.load(file)
        assert contents["displayTimeUnit"] == "ms"
        return cls(contents["traceEvents"])

    def named(self, process: str, name: str) -> list[Event]:
        """The slices whose name, and that of whose process, begin so."""
        return [each for each in self.slices if each["name"].startswith(name) and self.processes[each["pid"]].startswith(process)]

    def _check_names(self) -> None:
        metadata = [event for event in self.events if event["ph"] == "M"]
        assert {event["name"] for event in metadata} <= _NAMES
        assert len({(event["pid"], event["tid"], event["name"]) for event in metadata}) == len(metadata), "a thing has one name"
        assert len(set(self.processes.values())) == len(self.processes)
        assert all(self.processes.values()) and all(self.threads.values())

    def _check_slices(self) -> None:
        """On each thread by rising time, one inside the other or one after the other."""
        open_until: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
        last: dict[tuple[int, int], float] = {}
        for each in self.slices:
            thread, begin, end = (each["pid"], each["tid"]), each["ts"], each["ts"] + each["dur"]
            assert thread in self.threads and each["pid"] in self.processes, "every thread has a name"
            assert each["name"] and each["ts"] >= 0 and each["dur"] >= 0
            assert begin >= last.get(thread, 0.0), "times rise"
            last[thread] = begin
            ends = open_until[thread]
            while ends and ends[-1] <= begin + 0.0005:
                ends.pop()
            assert not ends or end <= ends[-1] + 0.0005, f"{each} outlasts the slice that it began in"
            ends.append(end)

    def _check_flows(self) -> dict[int, list[Event]]:
        """Each begins once, ends once, goes on in between by rising time, and is bound to a slice at every point."""
        at = {(each["pid"], each["tid"], each["ts"]) for each in self.slices}
        flows: defaultdict[int, list[Event]] = defaultdict(list)
        for event in self.events:
            if event["ph"] in "stf":
                assert (event["pid"], event["tid"], event["ts"]) in at, "a flow is bound to the slice that it begins with"
                flows[event["id"]].append(event)
        for steps in flows.values():
            assert [step["ph"] for step in steps] == ["s", *["t"] * (len(steps) - 2), "f"]
            assert [step["ts"] for step in steps] == sorted(step["ts"] for step in steps)
            assert len({(step["name"], step["cat"]) for step in steps}) == 1, "one name for all of a flow"
            assert steps[-1]["bp"] == "e"
        return dict(flows)
