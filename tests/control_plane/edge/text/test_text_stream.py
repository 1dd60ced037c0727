"""The text of one sequence: end tokens, stop strings and lengths together."""

import codecs
from collections.abc import Sequence

from fakes.text.tokenizers import EOT, byte_tokenizer, piece_id, piece_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.edge.text.text_stream import SequenceTextStream, StopStrings, TextRules


def run(stream: SequenceTextStream, token_ids: Sequence[int]) -> tuple[str, str | None, int]:
    """Text, matched stop string and number of tokens taken."""
    text = ""
    for count, token_id in enumerate(token_ids, 1):
        text += stream.push(token_id)
        if stream.matched_stop is not None:
            return text + stream.finish(), stream.matched_stop, count
    return text + stream.finish(), None, len(token_ids)


def byte_stream(rules: TextRules, prompt: bytes = b"p", skip: bool = True) -> SequenceTextStream:
    return SequenceTextStream(byte_tokenizer().detokenizer(prompt, skip), rules)


def test_stop_01_a_stop_string_in_the_prompt_does_nothing() -> None:
    tokenizer = piece_tokenizer(["Lond", "▁Lo", "ndon.", "\n"])
    rules = TextRules(stops=StopStrings(["Lond"]))
    stream = SequenceTextStream(tokenizer.detokenizer([piece_id(0)], True), rules)
    assert run(stream, [piece_id(1), piece_id(2), piece_id(3)]) == (" ", "Lond", 2)


def test_stop_03_a_stop_on_the_last_token_cuts_the_text() -> None:
    assert run(byte_stream(TextRules(stops=StopStrings(["END"]))), b"xEND") == ("x", "END", 4)


def test_stop_05_the_text_of_a_stop_token_is_hidden() -> None:
    for skip in (True, False):
        assert run(byte_stream(TextRules(end_texts={EOT: ""}), skip=skip), [*b"ab", EOT])[0] == "ab"


def test_stop_05_the_text_of_a_stop_token_is_shown_on_request() -> None:
    assert run(byte_stream(TextRules(end_texts={EOT: "<eot>"})), [*b"ab", 0xC5, EOT])[0] == "ab\ufffd<eot>"


def test_text_held_back_is_released_before_an_end_token() -> None:
    rules = TextRules(stops=StopStrings(["bc"]), end_texts={EOT: ""})
    assert run(byte_stream(rules), [*b"ab", EOT]) == ("ab", None, 3)


def test_stop_08_stop_strings_are_not_looked_at_before_min_tokens() -> None:
    rules = TextRules(stops=StopStrings(["a"]), min_tokens=3)
    assert run(byte_stream(rules), b"xayzaw") == ("xayz", "a", 5)


def test_stop_08_a_stop_string_cannot_begin_in_text_that_was_shown() -> None:
    rules = TextRules(stops=StopStrings(["ab", "y"]), min_tokens=3)
    assert run(byte_stream(rules), b"xabyw") == ("xab", "y", 4)


def test_a_stop_string_of_split_characters_is_found() -> None:
    assert run(byte_stream(TextRules(stops=StopStrings(["雨😀"]))), "a雨😀b".encode()) == ("a", "雨😀", 8)


def test_finish_can_be_called_twice() -> None:
    stream = byte_stream(TextRules(stops=StopStrings(["bc"])))
    assert (stream.push(ord("b")), stream.finish(), stream.finish()) == ("", "b", "")


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([*b"ab\xc5\xbe\xff", EOT]), max_size=15),
    st.lists(st.text("abž", min_size=1, max_size=3), min_size=1, max_size=3),
    st.integers(0, 4),
    st.booleans(),
)
def test_the_text_is_a_function_of_the_tokens(token_ids: list[int], stops: list[str], min_tokens: int, include_stop: bool) -> None:
    rules = TextRules(stops=StopStrings(stops), include_stop=include_stop, min_tokens=min_tokens)
    assert run(byte_stream(rules), token_ids) == whole_text(token_ids, stops, max(min_tokens - 1, 0), include_stop)


@settings(deadline=None)
@given(st.lists(st.lists(st.sampled_from([*b"ab\xc5\xbe\xff", EOT]), max_size=9), max_size=5), st.sampled_from(["", "<eot>"]))
def test_many_tokens_at_once_give_the_text_of_each(parts: list[list[int]], end_text: str) -> None:
    one_by_one, at_once = (byte_stream(TextRules(end_texts={EOT: end_text})) for _ in range(2))
    for part in parts:
        assert at_once.push_all(part) == "".join([one_by_one.push(token_id) for token_id in part])
    assert at_once.finish() == one_by_one.finish()


def whole_text(token_ids: list[int], stops: list[str], num_exempt: int, include_stop: bool) -> tuple[str, str | None, int]:
    """What `run` must return, by decoding all tokens again after each."""
    for count in range(1, len(token_ids) + 1):
        text, shown = complete_text(token_ids[:count]), complete_text(token_ids[: min(num_exempt, count)])
        found = [(text.index(stop, len(shown)), -len(stop)) for stop in stops if stop in text[len(shown) :]]
        if found:
            start, negative_length = min(found)
            end = start - negative_length
            return text[: end if include_stop else start], text[start:end], count
    return bytes(token_id for token_id in token_ids if token_id != EOT).decode("utf-8", "replace"), None, len(token_ids)


def complete_text(token_ids: list[int]) -> str:
    """Text of tokens without an unfinished character at their end."""
    return codecs.utf_8_decode(bytes(token_id for token_id in token_ids if token_id != EOT), "replace", False)[0]
