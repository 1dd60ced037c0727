"""The constraint of a request: what it may be, and what is refused."""

import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import tokenizers
from fakes.control_plane.scripted_engine import compiler_of, scripted_control_plane, served_model
from fakes.text.tokenizers import EOS, SPECIAL_TOKENS
from harness.request_admission import admit, refusal
from tokenizers import decoders, models

from control_plane.edge.model_directory import ServedModel
from control_plane.edge.service.admission.admission import Admission
from control_plane.edge.service.admission.context_limit import ContextLimit
from control_plane.edge.service.admission.prompt import PromptEncoder
from control_plane.edge.service.admission.resume import Replayer
from control_plane.edge.text.constraint import compiler
from control_plane.edge.text.constraint.compiler import GrammarTokens
from control_plane.edge.text.tokenizer import Tokenizer
from pypto_serving.inference.v1 import inference_pb2 as pb


def alternatives(*texts: str) -> pb.Constraint:
    return pb.Constraint(alternatives=pb.Alternatives(texts=texts))


@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        (pb.Constraint(regex="[0-9]+"), "42"),
        (alternatives("yes", "no"), "no"),
        (pb.Constraint(grammar='start: "a" start "b" | "c"'), "aacbb"),
        (pb.Constraint(json_schema='{"type": "array", "items": {"type": "integer"}}'), "[1, 2]"),
    ],
)
async def test_every_kind_of_constraint_is_understood(constraint: pb.Constraint, text: str) -> None:
    request = (await admit(pb.GenerationSpec(text="x", constraint=constraint))).request
    (compiled,) = compiler_of(served_model()).compile(request.grammar, 1)
    for token_id in [*text.encode(), EOS]:
        mask = compiled.mask()
        assert mask[token_id // 8] >> token_id % 8 & 1
        compiled.push(token_id)


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (pb.Constraint(), "constraint.kind is absent, must be one of json_schema, regex, alternatives and grammar"),
        (pb.Constraint(regex=""), "constraint.regex has 0 bytes, must have from 1 to 65536"),
        (pb.Constraint(regex="é" * 32769), "constraint.regex has 65538 bytes"),
        (pb.Constraint(grammar="x" * 65537), "constraint.grammar has 65537 bytes"),
        (pb.Constraint(json_schema="[]"), "constraint.json_schema: not a JSON object"),
        (pb.Constraint(regex="("), 'constraint.regex: invalid regex "("'),
        (alternatives(), "constraint.alternatives.texts has 0 entries, must have from 1 to 1024"),
        (alternatives(*["x"] * 1025), "constraint.alternatives.texts has 1025 entries"),
        (alternatives("x", ""), "constraint.alternatives.texts[1] has 0 bytes, must have from 1 to 1024"),
        (alternatives("x" * 1025), "constraint.alternatives.texts[0] has 1025 bytes"),
        (alternatives(*["x" * 1024] * 65), "constraint.alternatives.texts, together, has 66560 bytes, must have from 1 to 65536"),
    ],
)
async def test_a_constraint_that_makes_no_sense_is_refused(constraint: pb.Constraint, message: str) -> None:
    error = await refusal(pb.GenerationSpec(text="x", constraint=constraint))
    assert (error.code, str(error)[: len(message)]) == (grpc.StatusCode.INVALID_ARGUMENT, message)


async def test_ignore_eos_has_no_place_beside_a_constraint() -> None:
    spec = pb.GenerationSpec(text="x", constraint=alternatives("a"), stopping=pb.StoppingParams(ignore_eos=True))
    assert str(await refusal(spec)).startswith("stopping.ignore_eos is set beside constraint")


async def test_a_model_without_end_tokens_cannot_be_constrained() -> None:
    error = await refusal(pb.GenerationSpec(text="x", constraint=alternatives("a")), served_model(end_token_ids=frozenset()))
    assert (error.code, "has no end tokens" in str(error)) == (grpc.StatusCode.FAILED_PRECONDITION, True)


async def test_a_model_whose_tokens_stand_for_no_bytes_cannot_be_constrained() -> None:
    inner = tokenizers.Tokenizer(models.WordLevel({"x": 0, "[UNK]": 1}, unk_token="[UNK]"))
    inner.decoder = decoders.WordPiece()
    model = served_model(tokenizer=Tokenizer(inner, SPECIAL_TOKENS))
    error = await refusal(pb.GenerationSpec(text="x", constraint=alternatives("a")), model)
    assert (error.code, "does not say which bytes" in str(error)) == (grpc.StatusCode.FAILED_PRECONDITION, True)


@pytest.mark.parametrize("method", ["Generate", "GenerateStream"])
async def test_sch_03_a_broken_trial_is_an_internal_error_with_its_words_in_the_log(
    method: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "llguidance.py").write_text("raise ImportError('no such library')")
    monkeypatch.syspath_prepend(tmp_path)
    async with scripted_control_plane() as plane:
        constraint = pb.Constraint(regex="tried in a broken place")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            call = plane.generate if method == "Generate" else plane.events
            await call(text="x", constraint=constraint)
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "no such library" in caplog.text and "no such library" not in caught.value.details()


async def test_a_server_too_busy_to_try_a_grammar_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*arguments: object, **options: object) -> None:
        raise subprocess.TimeoutExpired("trial", 60)

    monkeypatch.setattr(subprocess, "run", run)
    error = await refusal(pb.GenerationSpec(text="x", constraint=alternatives("never seen before")))
    assert (error.code, "too busy" in str(error)) == (grpc.StatusCode.UNAVAILABLE, True)


async def test_what_all_constraints_share_is_built_before_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    class CountedTokens(GrammarTokens):
        def __init__(self, *arguments: object) -> None:
            built.append(threading.current_thread().name)
            super().__init__(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(compiler, "GrammarTokens", CountedTokens)
    model = served_model()
    encoder = PromptEncoder(model)
    admission = Admission(model, encoder, compiler_of(model), Replayer(), ContextLimit(1.0, 1))
    await admission.prepare()
    assert [name.partition("_")[0] for name in built] == ["constraint"]
    await encoder.compile(admission._constraints.compile, pb.Constraint(regex="ab"), 2)
    assert len(built) == 1
    endless = model_without_ends()
    await Admission(
        endless, encoder, compiler_of(endless), Replayer(), ContextLimit(1.0, 1)
    ).prepare()  # cannot be constrained: nothing to do
    encoder.close()
    assert len(built) == 1


def model_without_ends() -> ServedModel:
    return replace(served_model(), end_token_ids=frozenset())
