"""Where answers end, from the client to a worker that knows token ids only."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from fakes.text.model_directory import write_json, write_model_directory
from fakes.text.tokenizers import EOS, EOT, piece_id, piece_tokenizer
from harness.caller import Answer
from harness.service import Service, scripted_service

from pypto_serving.inference.v1 import inference_pb2 as pb

pytestmark = pytest.mark.asyncio(loop_scope="module")

PIECES = ["▁Lo", "ndon.", "QR", "S", "TU", "V", "x", "END", "tail"]
PIECE_EOS = 2
FIRST_BYTE = 3  # id of byte 0 among pieces


def pieces(*names: str) -> list[int]:
    return [piece_id(PIECES.index(name)) for name in names]


def assert_entries_match(answer: Answer) -> None:
    """LPU-04: log probabilities are those of the delivered tokens, whatever text is kept back."""
    entries = [entry.token_id for delta in answer.deltas for entry in delta.logprobs]
    assert entries == answer.token_ids == [entry.token_id for entry in answer.choices[0].logprobs]
    assert len(entries) == answer.usage.completion_tokens


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pieced(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    """A scripted service whose tokens are pieces of words."""
    model = write_model_directory(tmp_path_factory.mktemp("pieces"))
    piece_tokenizer(PIECES)._tokenizer.save(str(model / "tokenizer.json"))
    write_json(model / "config.json", {"architectures": ["FakeForCausalLM"], "vocab_size": 320, "eos_token_id": PIECE_EOS})
    async with scripted_service(model, first_byte_id=FIRST_BYTE) as service:
        yield service
        await service.until_at_rest()


@pytest.mark.parametrize(("include", "text"), [(False, " "), (True, " Lond")])
async def test_stop_01_lpu_04_a_stop_string_that_ends_inside_a_token(pieced: Service, include: bool, text: str) -> None:
    output = [*pieces("▁Lo", "ndon."), FIRST_BYTE + 10]
    answer = await pieced.scripted(output, name="inLondon", stop="Lond", include_stop=include, logprobs=True)
    assert (answer.text, answer.reason, answer.matched, answer.usage.completion_tokens) == (text, "stop", "Lond", 2)
    assert_entries_match(answer)


async def test_stop_02_lpu_04_no_part_of_a_stop_string_is_streamed(pieced: Service) -> None:
    answer = await pieced.scripted(pieces("QR", "S", "TU", "V"), stop="QRSTUV", logprobs=True)
    assert (answer.text, answer.reason, answer.matched) == ("", "stop", "QRSTUV")
    assert not any(delta.text for delta in answer.deltas)
    assert_entries_match(answer)


async def test_stop_02_lpu_04_refuted_text_is_released(pieced: Service) -> None:
    answer = await pieced.scripted([*pieces("QR", "S", "x"), PIECE_EOS], stop="QRSTUV", logprobs=True)
    assert (answer.text, answer.reason, answer.matched, answer.usage.completion_tokens) == ("QRSx", "stop", PIECE_EOS, 4)
    assert_entries_match(answer)


async def test_stop_03_lpu_04_a_stop_on_the_last_allowed_token(pieced: Service) -> None:
    answer = await pieced.scripted(pieces("x", "END", "tail"), stop="END", max_tokens=2, logprobs=True)
    assert (answer.text, answer.reason, answer.matched) == ("x", "stop", "END")
    assert_entries_match(answer)


async def test_stop_04_lpu_07_the_worker_is_told_to_stop(scripted_model: Path) -> None:
    # Steps take so long that the front end, which finds the stop, can tell of it within one.
    async with scripted_service(scripted_model, max_model_len=1200, num_pages=512, step_seconds=0.05) as service:
        name = service.plan(b"abcdefghi")
        answer = await service.stream(f"{name}:", stop="de", max_tokens=1000, logprobs=True)
        assert (answer.text, answer.token_ids, answer.usage.completion_tokens) == ("abc", list(b"abcde"), 5)
        assert_entries_match(answer)
        state = await service.until_at_rest()
        # Five steps for five tokens, the steps in flight, and one that releases the lane.
        assert len(service.worker.steps) <= 5 + service.worker.options.max_steps_in_flight + 1
        assert state.workers[0].pages.referenced == 0


async def test_lpu_07_what_comes_behind_a_stop_is_in_no_cache(scripted_model: Path) -> None:
    async with scripted_service(scripted_model) as service:
        name = service.plan(b"abcdefghijklm")
        answer = await service.stream(f"{name}:", stop="gh", max_tokens=100)
        await service.until_at_rest()
        prompt = list(answer.started.prompt_token_ids)
        again = await service.stream(token_ids=[*prompt, *b"abcdefghijklm"], max_tokens=0)
        # The last token of the answer was never computed, and whole pages of 4 are cached.
        assert again.usage.cached_tokens == (len(prompt) + 8 - 1) // 4 * 4


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize(("include", "text"), [(False, "ab"), (True, "ab<eot>")])
async def test_stop_05_a_stop_token_that_is_special(scripted: Service, skip: bool, include: bool, text: str) -> None:
    fields = {"stop_token_ids": [EOT], "skip_special_tokens": skip, "include_stop": include}
    answer = await scripted.scripted([97, 98, EOT, 99], **fields)
    assert (answer.text, answer.reason, answer.matched, answer.token_ids) == (text, "stop", EOT, [97, 98, EOT])


@pytest.mark.parametrize(
    ("config", "generation", "tokenizer"),
    [(EOS, [EOS, EOT], "<eos>"), (EOS, [EOT], "<eos>"), (EOT, None, "<eos>"), ([EOS], None, "<eot>")],
)
async def test_stop_06_every_declared_end_token_ends(model_with: Any, config: object, generation: object, tokenizer: str) -> None:
    files = {"config": {"eos_token_id": config}, "tokenizer_config": {"eos_token": tokenizer}}
    if generation:
        files["generation_config"] = {"eos_token_id": generation}
    async with scripted_service(model_with(**files)) as service:
        for end in (EOS, EOT):
            answer = await service.scripted([*b"ab", end, *b"cd"])
            assert (answer.text, answer.reason, answer.matched, answer.usage.completion_tokens) == ("ab", "stop", end, 3)


async def test_stop_07_ignore_eos_covers_all_of_them(model_with: Any) -> None:
    async with scripted_service(model_with(generation_config={"eos_token_id": [EOS, EOT]})) as service:
        output = [5, EOT, 6, EOS, 7, 8, 9, 10, 11]
        answer = await service.scripted(output, ignore_eos=True, max_tokens=8)
        assert (answer.token_ids, answer.reason) == (output[:8], "length")
        answer = await service.scripted(output, ignore_eos=True, max_tokens=8, stop_token_ids=[EOS])
        assert (answer.token_ids, answer.matched) == (output[:4], EOS)


async def test_stop_08_stops_before_the_minimum_length(scripted: Service) -> None:
    answer = await scripted.scripted(b"xayzaw", stop="a", min_tokens=3)
    assert (answer.text, answer.reason, answer.matched) == ("xayz", "stop", "a")
    assert "min_tokens" in await scripted.refusal("x:", min_tokens=10, max_tokens=5)


async def test_stop_09_no_tokens_at_all(scripted: Service) -> None:
    answer = await scripted.scripted(b"never", max_tokens=0)
    assert (answer.text, answer.token_ids, answer.reason, answer.deltas) == ("", [], "length", [])
    assert answer.started.effective.stopping.max_tokens == 0
    answer = await scripted.scripted(b"never", max_tokens=0, prompt_logprobs=1)
    assert [entry.token_id for entry in answer.prompt_logprobs] == list(answer.started.prompt_token_ids)
    assert not answer.prompt_logprobs[0].HasField("logprob")
    assert all(entry.HasField("logprob") and len(entry.top) == 1 for entry in answer.prompt_logprobs[1:])
    assert (await scripted.scripted(b"canary", max_tokens=6)).text == "canary"


async def test_stop_10_without_max_tokens_the_context_is_the_limit(scripted_model: Path) -> None:
    async with scripted_service(scripted_model, max_model_len=16) as service:
        text, ids = await service.ask("endless:"), await service.ask(token_ids=list(b" endless9:"))  # text gets a BOS
        chat = await service.ask(messages=[{"role": "user", "content": " endless9:"}])
        for answer, room in ((text, 7), (ids, 6), (chat, 6)):
            assert (len(answer.token_ids), answer.reason) == (room, "length")
            assert answer.started.effective.stopping.max_tokens == room


async def test_stop_11_one_limit_everywhere(scripted_model: Path) -> None:
    async with scripted_service(scripted_model, "--max-model-len", "4096", max_model_len=4096, page_tokens=16, num_pages=64) as service:
        model = (await service.stub.GetModel(pb.GetModelRequest())).model
        assert model.max_model_len == 1024 == await service.metric("max_model_len_tokens")
        assert "1024" in await service.refusal(token_ids=[97] * 1100)
        assert "1024" in await service.refusal(token_ids=[97] * 1000, max_tokens=25)
        assert (await service.unary(token_ids=[*b"x:"], max_tokens=1022)).usage.completion_tokens == 1022
