"""Models whose tokenizer knows more or fewer tokens than their embedding has rows."""

from pathlib import Path

import pytest
from fakes.control_plane.scripted_engine import served_model
from fakes.text.model_directory import CONFIG, write_json, write_model_directory
from fakes.text.tokenizers import BOS, EOS, byte_tokenizer
from harness.request_admission import admit, refusal

from control_plane.edge.model_directory import read_model
from pypto_serving.inference.v1 import inference_pb2 as pb
from pypto_serving.process.start_up import StartUpError


@pytest.mark.parametrize(
    ("config", "generation", "warnings"),
    [
        ({"bos_token_id": BOS, "eos_token_id": EOS}, {}, 0),
        ({"bos_token_id": None, "eos_token_id": None}, {}, 0),
        ({"eos_token_id": 42}, {"eos_token_id": [42, EOS]}, 0),
        ({"eos_token_id": [42, 43]}, {}, 1),
        ({"eos_token_id": EOS}, {"bos_token_id": 42}, 1),
        ({"bos_token_id": 42, "eos_token_id": 42}, {}, 2),
    ],
)
def test_mod_12_special_tokens_that_differ_between_files_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, config: dict[str, object], generation: dict[str, object], warnings: int
) -> None:
    write_json(write_model_directory(tmp_path) / "config.json", {**CONFIG, **config})
    write_json(tmp_path / "generation_config.json", generation)
    read_model(tmp_path, None, {}, None)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * warnings
    assert all("42" in record.getMessage() and "tokenizer_config.json" in record.getMessage() for record in caplog.records)


async def test_mod_12_tokens_beyond_the_embedding_are_refused_request_by_request() -> None:
    model = served_model(tokenizer=byte_tokenizer(), vocab_size=100, end_token_ids=frozenset())
    assert list((await admit(pb.GenerationSpec(text="abc"), model)).request.prompt_token_ids) == [97, 98, 99]
    refused = await refusal(pb.GenerationSpec(text="abcd"), model)
    assert "token id 100 at position 3 is not below the vocabulary size 100" in str(refused)


async def test_mod_12_an_embedding_may_have_rows_that_the_tokenizer_lacks() -> None:
    model = served_model()
    assert model.tokenizer.decode([model.vocab_size - 1], skip_special_tokens=False) == ""
    assert list((await admit(pb.GenerationSpec(text="Grüße"), model)).request.prompt_token_ids)[1:] == list("Grüße".encode())


def test_mod_12_a_model_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    (write_model_directory(tmp_path) / "tokenizer.json").unlink()
    with pytest.raises(StartUpError, match=r"tokenizer.json: No such file or directory"):
        read_model(tmp_path, None, {}, None)


def test_mod_12_end_tokens_of_all_files_hold(tmp_path: Path) -> None:
    write_json(write_model_directory(tmp_path) / "config.json", {**CONFIG, "eos_token_id": 42})
    assert read_model(tmp_path, None, {}, None).end_token_ids == {42, CONFIG["eos_token_id"]}
