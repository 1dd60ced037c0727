"""Incremental detokenization: characters leave when they are complete, and nothing is lost or doubled."""

from array import array
from collections.abc import Sequence

import pytest
from fakes.text.tokenizers import (
    BOS,
    END_THINK,
    EOT,
    SPECIAL_TOKENS,
    THINK,
    byte_piece_id,
    byte_tokenizer,
    piece_id,
    piece_tokenizer,
    raw_piece_tokenizer,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders

from control_plane.edge.text.tokenizer import Tokenizer

PROMPT = [ord("p")]


def pieces_of(tokenizer: Tokenizer, token_ids: Sequence[int], prompt: Sequence[int] = PROMPT, skip: bool = True) -> list[str]:
    detokenizer = tokenizer.detokenizer(prompt, skip_special_tokens=skip)
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.finish()]


def test_txt_01_a_character_leaves_with_its_last_byte() -> None:
    pieces = pieces_of(byte_tokenizer(), "až雨😀b".encode())
    assert pieces == ["a", "", "ž", "", "", "雨", "", "", "", "😀", "b", ""]


def test_txt_02_invalid_bytes_are_replaced_at_once() -> None:
    pieces = pieces_of(byte_tokenizer(), [0x61, 0xFF, 0x62, 0xC0, 0x80, 0x63])
    assert pieces == ["a", "\ufffd", "b", "\ufffd", "\ufffd", "c", ""]


def test_half_a_surrogate_cannot_become_a_character() -> None:
    assert pieces_of(byte_tokenizer(), [0xED, 0xA0, 0x61]) == ["", "\ufffd\ufffd", "a", ""]
    assert "".join(pieces_of(byte_tokenizer(), b"a", prompt=[0xED, 0xA0])) == "a"


def test_txt_03_a_replacement_character_that_the_model_wrote_is_text() -> None:
    assert "".join(pieces_of(byte_tokenizer(), b"x\xef\xbf\xbdy")) == "x\ufffdy"
    pieces = pieces_of(byte_tokenizer(), b"\xef\xbf\xbd" * 50)
    assert pieces[2::3] == ["\ufffd"] * 50


def test_txt_04_leading_space_and_runs_of_spaces_survive_the_seam() -> None:
    tokenizer = piece_tokenizer(["Hi", "▁there", "▁", "▁x"])
    output = [piece_id(index) for index in (1, 2, 2, 3)]
    assert "".join(pieces_of(tokenizer, output, prompt=[piece_id(0)])) == " there   x"


def test_the_first_text_of_all_loses_the_blank_that_the_decoder_drops() -> None:
    tokenizer = piece_tokenizer(["▁there", "▁x"])
    assert "".join(pieces_of(tokenizer, [piece_id(0), piece_id(1)], prompt=[1])) == "there x"


def test_metaspace_decoder_drops_the_blank_of_the_first_token_only() -> None:
    inner = raw_piece_tokenizer(["▁there", "▁x"])
    inner.decoder = decoders.Metaspace()
    tokenizer = Tokenizer(inner, SPECIAL_TOKENS)
    assert "".join(pieces_of(tokenizer, [piece_id(0), piece_id(1)], prompt=[1])) == "there x"
    assert tokenizer.decode([piece_id(0), piece_id(1)], skip_special_tokens=True) == "there x"


def test_txt_05_special_and_added_tokens_get_no_blanks() -> None:
    output = [THINK, *b"ok", END_THINK, *b"1", EOT]
    assert "".join(pieces_of(byte_tokenizer(), output, skip=True)) == "<think>ok</think>1"
    assert "".join(pieces_of(byte_tokenizer(), output, skip=False)) == "<think>ok</think>1<eot>"


def test_val_03_an_id_without_a_token_is_empty_text() -> None:
    assert pieces_of(byte_tokenizer(), [ord("a"), 300, ord("b")]) == ["a", "", "b", ""]


def test_an_unfinished_character_at_the_end_becomes_one_replacement_character() -> None:
    assert pieces_of(byte_tokenizer(), [0x61, 0xE9, 0x9B]) == ["a", "", "", "\ufffd"]


def test_output_completes_the_character_that_the_prompt_began() -> None:
    assert "".join(pieces_of(byte_tokenizer(), b"\xa8!", prompt=[0xE9, 0x9B])) == "雨!"


def test_the_replacement_of_a_character_that_the_prompt_left_broken_is_not_output() -> None:
    assert "".join(pieces_of(byte_tokenizer(), b"a", prompt=[0xE9, 0x9B])) == "a"
    assert "".join(pieces_of(byte_tokenizer(), b"", prompt=[0xE9, 0x9B])) == ""


def test_another_kind_of_decoder_is_decoded_in_a_window() -> None:
    inner = raw_piece_tokenizer([f"w{index}</w>" for index in range(30)])
    inner.decoder = decoders.BPEDecoder()
    tokenizer = Tokenizer(inner, SPECIAL_TOKENS)
    output = [piece_id(index) for index in range(30)]
    assert "".join(pieces_of(tokenizer, output, prompt=[1])) == inner.decode(output)


def window_tokenizer() -> Tokenizer:
    """Byte fallback, and a decoder that is no concatenation of bytes: it strips a character that no test writes."""
    inner = raw_piece_tokenizer(["!", "▁x", "ab", "世"])
    strip = decoders.Strip("\U0010ffff", 1, 1)
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    return Tokenizer(inner, SPECIAL_TOKENS)


def byte_ids(text: bytes) -> list[int]:
    return [byte_piece_id(byte) for byte in text]


def test_tkz_10_a_window_may_begin_inside_a_character() -> None:
    output = byte_ids("世世世é".encode())
    assert "".join(pieces_of(window_tokenizer(), output, prompt=[piece_id(2)])) == "世世世é"
    assert window_tokenizer().decode(output, skip_special_tokens=True) == "世世世é"
    assert pieces_of(window_tokenizer(), output, prompt=[piece_id(2)])[2::3] == ["世", "世", "世", ""]


def test_tkz_10_a_text_may_begin_with_what_is_hidden() -> None:
    assert "".join(pieces_of(window_tokenizer(), [1, piece_id(2)], prompt=[1])) == "ab"
    assert window_tokenizer().decode([1, 5000], skip_special_tokens=True) == ""


@pytest.mark.parametrize("tail", ["雨".encode()[:1], "雨".encode()[:2], "雨".encode()])
def test_tkz_10_what_follows_a_prompt_that_ends_inside_a_character_is_not_lost(tail: bytes) -> None:
    prompt = [piece_id(2), *byte_ids(tail)]
    assert "".join(pieces_of(window_tokenizer(), [piece_id(0)], prompt=prompt)) == "!"
    rest = byte_ids("雨".encode()[len(tail) :])
    assert "".join(pieces_of(window_tokenizer(), [*rest, piece_id(0)], prompt=prompt)) == ("雨!" if rest else "!")


PIECES = ["!", " x", "ab", "世"]


@settings(deadline=None)
@given(st.lists(st.one_of(st.binary(min_size=1, max_size=1), st.sampled_from(range(4))), max_size=30), st.integers(0, 30))
def test_tkz_10_windows_follow_the_rules_for_bytes(tokens: list[bytes | int], cut: int) -> None:
    ids = [piece_id(token) if isinstance(token, int) else byte_piece_id(token[0]) for token in tokens]
    written = [PIECES[token].encode() if isinstance(token, int) else token for token in tokens]
    prompt, output = [piece_id(2), *ids[:cut]], ids[cut:]
    piece_like = "".join(pieces_of(byte_tokenizer(), b"".join(written[cut:]), prompt=[ord("a"), *b"".join(written[:cut])]))
    assert "".join(pieces_of(window_tokenizer(), output, prompt=prompt)) == piece_like


@pytest.mark.parametrize("rest", [b"\xa8!", b"!", b"\xa8", b""])
def test_tkz_10_bytes_of_another_decoder_cross_the_seam_too(rest: bytes) -> None:
    inner = byte_tokenizer()._tokenizer
    inner.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip("~", 0, 1)])
    tokenizer = Tokenizer(inner, SPECIAL_TOKENS)
    assert not tokenizer.has_token_bytes
    expected = "".join(pieces_of(byte_tokenizer(), rest, prompt=[97, 0xE9, 0x9B]))
    assert "".join(pieces_of(tokenizer, rest, prompt=[97, 0xE9, 0x9B])) == expected


@settings(deadline=None)
@given(st.lists(st.integers(0, 261), max_size=40), st.lists(st.integers(0, 261), max_size=5), st.booleans())
def test_pieces_of_byte_level_tokens_join_to_the_tokenizers_own_text(output: list[int], prompt: list[int], skip: bool) -> None:
    tokenizer = byte_tokenizer()
    whole = tokenizer._tokenizer.decode([*prompt, *output], skip_special_tokens=skip)
    prompt_text = tokenizer._tokenizer.decode(prompt, skip_special_tokens=skip)
    expected = whole.removeprefix(prompt_text) if whole.startswith(prompt_text) else whole.removeprefix(prompt_text[:-1])
    assert "".join(pieces_of(tokenizer, output, prompt, skip)) == expected
    assert tokenizer.decode([*prompt, *output], skip) == whole


@settings(deadline=None)
@given(st.text(max_size=20), st.lists(st.sampled_from([1, *range(259, 264)]), min_size=1, max_size=4))
def test_pieces_of_sentencepiece_tokens_join_to_the_tokenizers_own_text(text: str, prompt: list[int]) -> None:
    tokenizer = piece_tokenizer(["▁", "▁the", "▁▁", "x", "ž"])
    output = [byte_piece_id(byte) for byte in text.encode()] + [piece_id(2), piece_id(4)]
    whole = tokenizer._tokenizer.decode([*prompt, *output])
    prompt_text = tokenizer._tokenizer.decode(prompt)
    assert "".join(pieces_of(tokenizer, output, prompt)) == whole.removeprefix(prompt_text)


def test_special_tokens_of_the_prompt_do_not_count_as_text() -> None:
    assert "".join(pieces_of(byte_tokenizer(), b"a", prompt=[0xE9, BOS])) == "a"


def tokenizer_of(kind: str) -> Tokenizer:
    return {"bytes": byte_tokenizer, "window": window_tokenizer, "pieces": lambda: piece_tokenizer(["▁", "▁the", "▁▁", "x", "ž"])}[kind]()


@settings(deadline=None)
@given(
    st.sampled_from(["bytes", "window", "pieces"]),
    st.lists(st.integers(0, 265), max_size=6),
    st.lists(st.lists(st.integers(0, 265), max_size=10), max_size=6),
    st.booleans(),
)
def test_many_tokens_at_once_give_what_each_of_them_gives(kind: str, prompt: list[int], parts: list[list[int]], skip: bool) -> None:
    tokenizer = tokenizer_of(kind)
    one_by_one, at_once = (tokenizer.detokenizer(prompt, skip_special_tokens=skip) for _ in range(2))
    for part in parts:
        assert at_once.push_all(array("I", part)) == "".join([one_by_one.push(token_id) for token_id in part])
    assert at_once.finish() == one_by_one.finish()
