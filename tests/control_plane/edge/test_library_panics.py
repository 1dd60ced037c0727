"""A panic of a library written in Rust is a BaseException in Python; it is the failure of one call, as every other."""

from pathlib import Path

import grpc
import pytest
from fakes.control_plane.scripted_engine import scripted_control_plane, served_model
from fakes.text.tokenizers import SPECIAL_TOKENS, panicking_tokenizer
from fakes.worker.fake_worker import FakeWorker
from harness.running_control_plane import running

from control_plane.edge.text.tokenizer import Tokenizer
from control_plane.engine.engine import Engine
from pypto_serving.inference.v1 import inference_pb2 as pb

ENDLESS = "a" * 40


def panic() -> None:
    panicking_tokenizer().decode([ord("b")])


@pytest.mark.parametrize("text", [ENDLESS, "b" * 300 + ENDLESS])
@pytest.mark.parametrize("method", ["Generate", "GenerateStream", "Tokenize", "Detokenize"])
async def test_tkz_09_a_text_that_the_tokenizer_fails_on_is_refused(method: str, text: str) -> None:
    model = served_model(tokenizer=Tokenizer(panicking_tokenizer(), SPECIAL_TOKENS))
    async with scripted_control_plane(model=model) as plane:
        calls = {
            "Generate": lambda: plane.generate(text=text),
            "GenerateStream": lambda: plane.events(text=text),
            "Tokenize": lambda: plane.stub.Tokenize(pb.TokenizeRequest(text=text * 3)),
            "Detokenize": lambda: plane.stub.Detokenize(pb.DetokenizeRequest(token_ids=[98] * 3 * len(text))),
        }
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await calls[method]()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "the model's tokenizer fails on" in caught.value.details()


@pytest.mark.parametrize("method", ["Generate", "GenerateStream"])
async def test_tkz_09_a_panic_anywhere_in_a_call_ends_it(method: str, caplog: pytest.LogCaptureFixture) -> None:
    async with scripted_control_plane() as plane:
        plane.engine.submit = lambda request: panic()  # type: ignore[method-assign]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await (plane.generate(text="x") if method == "Generate" else plane.events(text="x"))
        assert plane.calls._calls[method, "internal"] == 1
    assert caught.value.code() is grpc.StatusCode.INTERNAL and "PanicException" in caplog.text


async def test_tkz_09_output_that_cannot_be_decoded_ends_its_request_only(model: Path, worker: FakeWorker) -> None:
    panicking_tokenizer().save(str(model / "tokenizer.json"))
    async with running(model, "--worker", worker.address) as server:
        stopping = pb.StoppingParams(max_tokens=1)
        spec = pb.GenerationSpec(token_ids=pb.TokenIds(ids=[96, 97]), stopping=stopping)  # the fake worker's next token is "b"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await server.stub.Generate(pb.GenerateRequest(spec=spec))
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        spec.token_ids.ids.pop()
        assert (await server.stub.Generate(pb.GenerateRequest(spec=spec))).choices[0].text == "a"


async def test_tkz_09_a_panic_in_the_engines_thread_ends_the_process_with_exit_code_1(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(engine: Engine) -> None:
        panic()

    monkeypatch.setattr(Engine, "run", fail)
    async with running(model) as server:
        assert await server.task == 1
