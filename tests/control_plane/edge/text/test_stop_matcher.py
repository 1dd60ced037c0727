"""Stop strings, against an oracle that sees the whole text."""

import random
import re
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.edge.text.text_stream import StopMatcher, StopStrings


def run(stops: list[str], pieces: list[str], include_stop: bool = False) -> tuple[list[str], str | None]:
    matcher = StopMatcher(StopStrings(stops), include_stop)
    shown = []
    for piece in pieces:
        shown.append(matcher.push(piece))
        if matcher.matched is not None:
            return shown, matcher.matched
    return [*shown, matcher.finish()], None


def oracle(stops: list[str], pieces: list[str], include_stop: bool) -> tuple[str, str | None]:
    text = ""
    for piece in pieces:
        text += piece
        found = [(text.index(stop), -len(stop)) for stop in stops if stop in text]
        if found:
            start, negative_length = min(found)
            end = start - negative_length
            return text[: end if include_stop else start], text[start:end]
    return text, None


@pytest.mark.parametrize(("include_stop", "text"), [(False, " "), (True, " Lond")])
def test_stop_01_a_stop_string_may_end_inside_a_token(include_stop: bool, text: str) -> None:
    shown, matched = run(["Lond"], [" Lo", "ndon.", "\n"], include_stop)
    assert ("".join(shown), matched, len(shown)) == (text, "Lond", 2)


def test_stop_02_no_part_of_a_stop_string_is_shown() -> None:
    assert run(["QRSTUV"], ["QR", "S", "TU", "V"]) == (["", "", "", ""], "QRSTUV")


def test_stop_02_text_that_turned_out_harmless_is_released() -> None:
    assert run(["QRSTUV"], ["QR", "S", "x"]) == (["", "", "QRSx", ""], None)


def test_of_overlapping_stops_the_earliest_start_wins_then_the_longest() -> None:
    assert run(["bc", "abcd", "abc"], ["xabcd"]) == (["x"], "abcd")
    assert run(["b", "abc"], ["ab"]) == (["a"], "b")


def test_only_what_could_still_become_a_stop_is_held_back() -> None:
    assert run(["aab"], ["aaa", "a", "c"]) == (["a", "a", "aac", ""], None)


def test_the_longest_stops_cost_little_more_than_their_text() -> None:
    draw = random.Random(1)
    stops = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=1024)) for _ in range(64)]
    tracemalloc.start()
    built = StopStrings(stops)
    num_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert built.any_starts_with(stops[9][:1000])
    assert num_bytes < 100_000
    short = [stop[:4] for stop in stops]
    assert num_calls(lambda: StopStrings(stops)) < num_calls(lambda: StopStrings(short)) + 1000


def num_calls(work: Callable[[], object]) -> int:
    """Functions that are called for some work, those of the regular expressions' compiler too."""
    re.purge()
    events: Counter[str] = Counter()
    sys.setprofile(lambda frame, event, argument: events.update([event]))
    try:
        work()
    finally:
        sys.setprofile(None)
    return events["call"] + events["c_call"]


class CountedStops(StopStrings):
    """Notes what is looked at more closely."""

    def __init__(self, stops: list[str]) -> None:
        super().__init__(stops)
        self.looks: list[str] = []

    def longest_beginning(self, text: str) -> str | None:
        self.looks.append(text)
        return super().longest_beginning(text)


def test_however_many_stop_strings_only_text_that_begins_like_one_is_looked_at() -> None:
    stops = CountedStops([f"{letter}#{number}" for letter in "abcdefghijklmnop" for number in range(4)])
    matcher = StopMatcher(stops, include_stop=False)
    assert [matcher.push(piece) for piece in ["a cab ", "be#", "#1 dog", " !"]] == ["a cab ", "b", "e##1 do", "g !"]
    assert stops.looks == ["e#", "g"]


def test_text_that_nearly_is_the_longest_stop_again_and_again_is_searched_in_time() -> None:
    stops = ["a" * (511 - index) + "b" + "a" * 511 + "c" for index in range(64)]
    matcher = StopMatcher(StopStrings(stops), include_stop=False)
    begin = time.thread_time()
    for piece in ["a" * 3] * 1000 + [*"b", *"a" * 511, "x"]:
        matcher.push(piece)
    assert time.thread_time() - begin < 2.0  # 1,513 pushes; 0.1 s when idle


#: Few and many, shorter and longer than what is looked at first, with characters that mean something in regular expressions.
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4) | st.lists(
    st.text("ab.", min_size=1, max_size=9), min_size=1, max_size=64
)
PIECES = st.lists(st.text("abc.", max_size=4), max_size=12)


@settings(deadline=None)
@given(STOPS, PIECES, st.booleans())
def test_shown_text_equals_the_oracle(stops: list[str], pieces: list[str], include_stop: bool) -> None:
    shown, matched = run(stops, pieces, include_stop)
    assert ("".join(shown), matched) == oracle(stops, pieces, include_stop)


@settings(deadline=None)
@given(STOPS, PIECES)
def test_held_text_is_the_longest_possible_beginning_of_a_stop(stops: list[str], pieces: list[str]) -> None:
    matcher = StopMatcher(StopStrings(stops), include_stop=False)
    text = shown = ""
    for piece in pieces:
        text, shown = text + piece, shown + matcher.push(piece)
        if matcher.matched is not None:
            return
        beginnings = [text[start:] for start in range(len(text)) if any(stop.startswith(text[start:]) for stop in stops)]
        assert text[len(shown) :] == max(beginnings, key=len, default="")
