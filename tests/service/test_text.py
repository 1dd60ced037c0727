"""Streamed text, from the client to a worker that follows a script. Answers are streamed and whole, to prompts of three forms."""

import codecs
import shutil
from pathlib import Path

import pytest
from fakes.text.tokenizers import END_THINK, EOS, EOT, THINK, piece_id, piece_tokenizer
from harness.caller import Answer
from harness.service import Service, scripted_service

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIXED = "až雨😀b"


def assert_nothing_is_late(answer: Answer, output: bytes) -> None:
    """Each delta shows all that is certain once its tokens are known, and no more."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for delta in answer.deltas:
        assert delta.text == decoder.decode(output[delta.first_index :][: len(delta.token_ids)])


async def test_txt_01_a_character_of_several_tokens(scripted: Service) -> None:
    answer = await scripted.scripted([*MIXED.encode(), EOS])
    assert answer.text == MIXED and answer.reason == "stop"
    assert_nothing_is_late(answer, MIXED.encode())


async def test_txt_02_bytes_that_are_no_character(scripted: Service) -> None:
    output = bytes([0x61, 0xFF, 0x62, 0xC0, 0x80, 0x63])
    answer = await scripted.scripted([*output, EOS])
    assert answer.text == output.decode("utf-8", "replace") == "a\ufffdb\ufffd\ufffdc"
    assert_nothing_is_late(answer, output)


@pytest.mark.parametrize("output", [b"\xf0\x9f\x98", b"ab\xe9\x9b", b"a\xc5"])
async def test_txt_02_an_unfinished_character_at_the_end(scripted: Service, output: bytes) -> None:
    answer = await scripted.scripted(output, max_tokens=len(output))
    assert answer.text == output.decode("utf-8", "replace") and answer.text.count("\ufffd") == 1


async def test_txt_03_the_model_writes_a_replacement_character(scripted: Service) -> None:
    assert (await scripted.scripted("x\ufffdy".encode(), max_tokens=5)).text == "x\ufffdy"
    output = "\ufffd".encode() * 50
    answer = await scripted.scripted(output, max_tokens=150)
    assert answer.text == "\ufffd" * 50
    assert_nothing_is_late(answer, output)


async def test_txt_04_blanks_at_the_seam(scripted_model: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(scripted_model, model)
    tokenizer = piece_tokenizer(["Hi", "▁there", "▁", "▁x", ":"])
    tokenizer._tokenizer.save(str(model / "tokenizer.json"))
    output = [piece_id(index) for index in (1, 2, 2, 3)]
    async with scripted_service(model, vocab_size=320) as service:
        service.script.outputs[""] = output
        answer = await service.ask(token_ids=[piece_id(0)], max_tokens=4)
    assert answer.text == " there   x" == tokenizer.decode([piece_id(0), *output], skip_special_tokens=True).removeprefix("Hi")


@pytest.mark.parametrize(("skip", "text"), [(True, "<think>ok</think>1"), (False, "<think>ok</think>1<eot>")])
async def test_txt_05_special_and_added_tokens(scripted: Service, skip: bool, text: str) -> None:
    answer = await scripted.scripted([THINK, *b"ok", END_THINK, *b"1", EOT], max_tokens=6, skip_special_tokens=skip)
    assert answer.text == text


@pytest.mark.parametrize("interval", [1, 4])
@pytest.mark.parametrize(("output", "reason"), [(b"abc", "length"), ([*b"ab", EOS], "stop")])
async def test_txt_06_the_last_text_comes_before_the_one_end(scripted: Service, interval: int, output: bytes, reason: str) -> None:
    answer = await scripted.scripted(output, max_tokens=3, stream_interval=interval)
    assert (answer.text, answer.reason, answer.usage.completion_tokens) == (bytes(t for t in output if t < 256).decode(), reason, 3)


async def test_txt_07_entries_carry_raw_bytes(scripted: Service) -> None:
    answer = await scripted.scripted(MIXED.encode(), logprobs=True, max_tokens=11)
    assert [entry.token_id for delta in answer.deltas for entry in delta.logprobs] == answer.token_ids
    assert b"".join(entry.token for entry in answer.choices[0].logprobs) == MIXED.encode()
