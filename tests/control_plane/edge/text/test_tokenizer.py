"""Encoding: special tokens once, offsets in code points, bytes of tokens."""

import pytest
import tokenizers
from fakes.text.tokenizers import BOS, EOT, byte_tokenizer, piece_id, piece_tokenizer

from control_plane.edge.text.tokenizer import Tokenizer


def ids(tokenizer: Tokenizer, text: str, add_special_tokens: bool = True) -> list[int]:
    return tokenizer.encode(text, add_special_tokens).token_ids


def test_gwy_06_the_tokenizers_rule_adds_bos_once() -> None:
    tokenizer = byte_tokenizer(adds_bos=True)
    assert ids(tokenizer, "Hi") == [BOS, *b"Hi"]
    assert ids(tokenizer, "<bos>Hi") == [BOS, *b"Hi"]
    assert ids(tokenizer, "<bos>Hi", add_special_tokens=False) == [BOS, *b"Hi"]
    assert ids(tokenizer, "Hi", add_special_tokens=False) == [*b"Hi"]


def test_val_09_an_empty_text_has_only_the_tokens_that_the_rule_adds() -> None:
    assert ids(byte_tokenizer(adds_bos=True), "") == [BOS]
    assert ids(byte_tokenizer(), "") == []


def test_offsets_count_code_points() -> None:
    encoding = byte_tokenizer(adds_bos=True).encode("a雨b", add_special_tokens=True, with_offsets=True)
    assert encoding.offsets == [(0, 0), (0, 1), (1, 2), (1, 2), (1, 2), (2, 3)]


def test_gwy_06_offsets_stay_beside_their_tokens_when_a_bos_goes() -> None:
    encoding = byte_tokenizer(adds_bos=True).encode("<bos>a", add_special_tokens=True, with_offsets=True)
    assert (encoding.token_ids, encoding.offsets) == ([BOS, ord("a")], [(0, 5), (5, 6)])


def test_txt_07_bytes_of_tokens_join_to_the_text() -> None:
    tokenizer = byte_tokenizer()
    assert b"".join(map(tokenizer.token_bytes, "až雨😀b".encode())) == "až雨😀b".encode()
    assert tokenizer.token_bytes(EOT) == b"<eot>"
    assert piece_tokenizer(["▁there"]).token_bytes(piece_id(0)) == b" there"


def test_decode_agrees_with_the_stream() -> None:
    assert byte_tokenizer().decode([0x61, 0xFF, EOT, 0xE9, 0x9B], skip_special_tokens=False) == "a\ufffd<eot>\ufffd"


@pytest.mark.parametrize("name", ["naïve", "đem", "Ċ", "été 雨"])
@pytest.mark.parametrize("special", [True, False])
def test_tkz_04_an_added_token_stands_for_its_name(name: str, special: bool) -> None:
    inner = byte_tokenizer()._tokenizer
    (inner.add_special_tokens if special else inner.add_tokens)([tokenizers.AddedToken(name, normalized=False, special=special)])
    tokenizer = Tokenizer(inner, {})
    token_id = inner.token_to_id(name)
    ids_of_text = ids(tokenizer, f"é{name}!")
    assert ids_of_text == [*"é".encode(), token_id, ord("!")]
    assert tokenizer.token_bytes(token_id) == name.encode()
    assert tokenizer.decode(ids_of_text, skip_special_tokens=False) == f"é{name}!"
    assert tokenizer.decode(ids_of_text, skip_special_tokens=True) == f"é{'' if special else name}!"


def test_an_unknown_token_has_no_id() -> None:
    assert byte_tokenizer().id_of("nothing") is None


def test_offsets_of_special_tokens_span_their_names() -> None:
    text = "a<think>雨<eot>b"
    encoding = byte_tokenizer(adds_bos=True).encode(text, add_special_tokens=True, with_offsets=True)
    spans = [text[start:end] for start, end in encoding.offsets]
    assert spans == ["", "a", "<think>", "雨", "雨", "雨", "<eot>", "b"]


def test_offsets_are_those_of_transformers() -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizer = byte_tokenizer(adds_bos=True)
    oracle = PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer)("až 雨😀<eot>", return_offsets_mapping=True)
    encoding = tokenizer.encode("až 雨😀<eot>", add_special_tokens=True, with_offsets=True)
    assert (encoding.token_ids, encoding.offsets) == (oracle["input_ids"], oracle["offset_mapping"])
