"""Streams that broke after each of their tokens, and go on: text, stops and log probabilities are those of the whole answer."""

from typing import Any

import pytest
from fakes.text.tokenizers import EOS
from harness.caller import resume_of
from harness.service import Service

from pypto_serving.inference.v1 import inference_pb2 as pb

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Output, what is asked for, and the text that each token brings.
BREAKS: dict[str, tuple[list[int], dict[str, Any], list[str]]] = {
    "stop string": ([*b"abQRS"], {"stop": "QRS"}, ["a", "b", "", "", ""]),
    "stop string that is shown": ([*b"abQRS"], {"stop": "QRS", "include_stop": True}, ["a", "b", "", "", "QRS"]),
    "text that turned out harmless": ([*b"QRSx", EOS], {"stop": "QRST"}, ["", "", "", "QRSx", ""]),
    "stop string that begins late": ([*b"QQRS"], {"stop": "QRS"}, ["", "Q", "", ""]),
    "minimum length": ([*b"xayza"], {"stop": "a", "min_tokens": 3}, ["x", "a", "y", "z", ""]),
    "character of several tokens": ([*"a\u017e\U0001f600".encode()], {}, ["a", "", "\u017e", "", "", "", "\U0001f600"]),
    "unfinished character": ([*b"a\xf0\x9f"], {}, ["a", "", "\ufffd"]),
    "end token": ([*b"ab", EOS], {"skip_special_tokens": False}, ["a", "b", "<eos>"]),
}


@pytest.mark.parametrize("case", BREAKS)
async def test_text_and_end_do_not_depend_on_a_break(scripted: Service, case: str) -> None:
    output, fields, texts = BREAKS[case]
    ask = {"max_tokens": len(output), "logprobs": True, **fields}
    whole = await scripted.stream(f"{scripted.plan(output)}:", **ask)
    assert (whole.token_ids, whole.text) == (output, "".join(texts))
    for received in range(len(output)):
        rest = await scripted.stream_of(pb.GenerationSpec(resume=resume_of(whole, received)))
        assert (rest.text, rest.token_ids) == ("".join(texts[received:]), output[received:])
        assert (rest.reason, rest.matched, rest.usage.completion_tokens) == (whole.reason, whole.matched, len(output))
        assert [entry.token_id for entry in rest.choices[0].logprobs] == output[received:]


@pytest.mark.parametrize("received", [0, 1, 3])
async def test_log_probabilities_of_the_prompt_come_again_if_they_are_asked_for(real: Service, received: int) -> None:
    whole = await real.stream("Once upon", prompt_logprobs=2, logprobs=True, top_logprobs=1, max_tokens=5, seed=1, ignore_eos=True)
    resume = resume_of(whole, received)
    rest = await real.stream_of(pb.GenerationSpec(resume=resume))
    assert (rest.prompt_logprobs, rest.token_ids) == (whole.prompt_logprobs, whole.token_ids[received:])
    assert list(rest.choices[0].logprobs) == list(whole.choices[0].logprobs)[received:]
    resume.effective.output.ClearField("prompt_logprobs")
    assert not (await real.stream_of(pb.GenerationSpec(resume=resume))).prompt_logprobs
