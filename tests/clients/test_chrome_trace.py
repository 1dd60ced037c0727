"""One trace out of what all processes tell."""

from pathlib import Path
from typing import Any

import pytest
from harness.trace_rules import CheckedTrace
from hypothesis import given
from hypothesis import strategies as st

from clients.chrome_trace import ChromeTrace
from pypto_serving.admin.v1 import admin_pb2 as pb
from pypto_serving.profile.v1 import profile_pb2


def span(name: str, begin: int, end: int, track: str = "loop", row: str = "", flows: tuple[str, ...] = ()) -> profile_pb2.Span:
    return profile_pb2.Span(name=name, track=track, row=row, begin_ns=begin * 1000, duration_ns=(end - begin) * 1000, flows=flows)


def trace(*parts: pb.StopProfileResponse) -> CheckedTrace:
    made = ChromeTrace()
    for part in parts:
        made.add(part)
    return CheckedTrace(made.events())


def process(name: str, *spans: profile_pb2.Span, **fields: Any) -> pb.StopProfileResponse:
    return pb.StopProfileResponse(process=name, spans=spans, **fields)


def places(found: CheckedTrace) -> dict[str, tuple[str, float, float]]:
    return {each["name"]: (found.threads[each["pid"], each["tid"]], each["ts"], each["dur"]) for each in found.slices}


def test_clocks_are_brought_together_and_begin_at_nothing() -> None:
    here, there = process("here", span("a", 100, 110)), process("there", span("b", 5, 7), clock_offset_ns=100_000, clock_error_ns=1)
    assert places(trace(here, there)) == {"a": ("loop", 0.0, 10.0), "b": ("loop", 5.0, 2.0)}


def test_parts_of_a_process_are_one() -> None:
    found = trace(process("one", span("a", 1, 2)), process("two", span("c", 2, 3)), process("one", span("b", 3, 4)))
    assert found.processes == {1: "one", 2: "two"}
    assert [each["name"] for each in found.named("one", "")] == ["a", "b"]


def test_spans_that_overlap_stand_beside_each_other() -> None:
    found = trace(process("one", span("a", 0, 10), span("b", 5, 15), span("c", 10, 20)))
    assert {name: place[0] for name, place in places(found).items()} == {"a": "loop 1", "b": "loop 2", "c": "loop 1"}


def test_a_row_stays_together() -> None:
    rows = [span("outer 1", 0, 10, row="1"), span("inner 1", 0, 4, row="1"), span("outer 2", 4, 8, row="2"), span("inner 2", 5, 6, row="2")]
    found = {name: place[0] for name, place in places(trace(process("one", *rows))).items()}
    assert found == {"outer 1": "loop 1", "inner 1": "loop 1", "outer 2": "loop 2", "inner 2": "loop 2"}


def test_a_span_that_outlasts_the_one_around_it_is_cut() -> None:
    found = trace(process("one", span("outer", 0, 10, row="r"), span("inner", 5, 11, row="r")))
    assert places(found)["inner"] == ("loop", 5.0, 5.0)


def test_a_flow_goes_through_processes_by_time() -> None:
    here = process("here", span("send", 0, 1, flows=("step a 1",)), span("result", 8, 9, flows=("step a 1", "lonely")))
    there = process("there", span("step", 2, 7, flows=("step a 1",)))
    [flow] = trace(here, there).flows.values()
    assert [(each["ph"], each["pid"], each["ts"]) for each in flow] == [("s", 1, 0.0), ("t", 2, 2.0), ("f", 1, 8.0)]


def test_what_is_missing_stands_at_its_process() -> None:
    made = ChromeTrace()
    made.add(process("worker", num_dropped=3, notes=["lost"]))
    assert made.notes == ["worker: lost", "worker: 3 spans are left out, as it was to keep no more"]
    [labels] = [event for event in made.events() if event["name"] == "process_labels"]
    assert labels["args"]["labels"] == "lost; 3 spans are left out, as it was to keep no more"


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_file_is_read_back(name: str, tmp_path: Path) -> None:
    made = ChromeTrace()
    made.add(process("one", span("ä", 1, 2, flows=("x",)), span("b", 3, 4, flows=("x",))))
    made.write(tmp_path / name)
    assert [each["name"] for each in CheckedTrace.read(tmp_path / name).slices] == ["ä", "b"]
    assert (tmp_path / name).read_bytes()[:1] == (b"\x1f" if name.endswith("gz") else b"{")


_spans = st.builds(
    lambda begin, length, track, row, flows: span("s", begin, begin + length, track, row, tuple(flows)),
    st.integers(0, 40),
    st.integers(0, 20),
    st.sampled_from(["t", "u"]),
    st.sampled_from(["", "", "r", "q"]),
    st.sets(st.sampled_from(["f", "g"])),
)


@given(st.lists(st.tuples(st.sampled_from(["p", "q"]), st.lists(_spans, max_size=8)), max_size=6))
def test_any_spans_make_a_trace_that_obeys_the_rules(parts: list[tuple[str, list[profile_pb2.Span]]]) -> None:
    offsets = {"p": 0, "q": -7_000}
    found = trace(*(process(name, *spans, clock_offset_ns=offsets[name]) for name, spans in parts))
    assert len(found.slices) == sum(len(spans) for _, spans in parts)
