"""What files beside tokenizer.json say of the tokenizer counts as it does for transformers."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from fakes.text.model_directory import write_json
from harness.checkpoints import TinyCheckpoint
from tokenizers import processors

from control_plane.edge.model_directory import read_model
from control_plane.edge.text.chat_template import Conversation
from pypto_serving.process.start_up import StartUpError

TOOL, END = "<|tool|>", "<|end_of_it|>"
TEXT = f"a{TOOL}b {END} c<|tool|"


@pytest.fixture
def directory(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_checkpoint("llama", vocab_size=1100), tmp_path / "model")


def set_config(directory: Path, **fields: Any) -> None:
    config = json.loads((directory / "tokenizer_config.json").read_text())
    write_json(directory / "tokenizer_config.json", config | fields)


def their_tokenizer(directory: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(directory)


def listed(text: str, **options: bool) -> dict[str, Any]:
    return {"content": text, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True} | options


def put_into_decoder(directory: Path) -> None:
    set_config(directory, added_tokens_decoder={"1025": listed(END), "1024": listed(TOOL, special=False, normalized=True)})


def put_into_additional(directory: Path) -> None:
    set_config(directory, additional_special_tokens=[TOOL, END])


def put_into_added_tokens(directory: Path) -> None:
    write_json(directory / "added_tokens.json", {END: 1025, TOOL: 1024})


def put_into_both(directory: Path) -> None:
    put_into_added_tokens(directory)
    write_json(directory / "special_tokens_map.json", {"additional_special_tokens": [END], "sep_token": listed(TOOL)})


def change_options(directory: Path) -> None:
    set_config(directory, added_tokens_decoder={"3": listed("<think>", rstrip=True, lstrip=True)})


@pytest.mark.parametrize("arrange", [put_into_decoder, put_into_additional, put_into_added_tokens, put_into_both, change_options])
@pytest.mark.parametrize("text", [TEXT, "x <think> y", f"{END}{TOOL} \n{TOOL}"])
def test_tkz_01_added_tokens_of_every_file_are_tokens(directory: Path, arrange: Any, text: str) -> None:
    arrange(directory)
    ours, theirs = read_model(directory, None, {}, None).tokenizer, their_tokenizer(directory)
    ids = ours.encode(text, add_special_tokens=True).token_ids
    assert ids == theirs(text)["input_ids"]
    for skip in (True, False)[arrange is put_into_both :]:  # theirs forgets that one of both is special
        assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("decoder", [[], {"x": listed(TOOL)}, {"1024": 5}, {"1024": listed(TOOL, rstrip="no")}, {"1024": {}}])  # type: ignore[arg-type]
def test_tkz_01_added_tokens_that_make_no_sense_are_refused_in_one_line(directory: Path, decoder: object) -> None:
    set_config(directory, added_tokens_decoder=decoder)
    with pytest.raises(StartUpError, match=r"added tokens of tokenizer_config\.json") as caught:
        read_model(directory, None, {}, None)
    assert "\n" not in str(caught.value)


def test_tkz_02_roles_that_only_the_map_of_special_tokens_names_exist(directory: Path) -> None:
    (directory / "tokenizer_config.json").unlink()
    write_json(directory / "config.json", json.loads((directory / "config.json").read_text()) | {"eos_token_id": None})
    (directory / "generation_config.json").unlink()
    write_json(directory / "special_tokens_map.json", {"bos_token": "<think>", "eos_token": listed("<|im_end|>")})
    (directory / "chat_template.jinja").write_text("{{ bos_token }}{{ eos_token }}")
    model, theirs = read_model(directory, None, {}, None), their_tokenizer(directory)
    assert model.end_token_ids == {theirs.eos_token_id}
    assert model.chat_template is not None and model.chat_template.render(Conversation([])) == theirs.bos_token + theirs.eos_token


TEMPLATE = processors.TemplateProcessing(single="<think> $A", special_tokens=[("<think>", 3)])


@pytest.mark.parametrize(
    ("adds_bos", "post_processor", "num_bos"),
    [
        (True, None, 1),
        (True, processors.ByteLevel(trim_offsets=False), 1),
        (True, TEMPLATE, 1),
        (False, None, 0),
        (None, None, 0),
        (None, TEMPLATE, 1),
    ],
)
def test_tkz_03_a_text_begins_with_bos_once_if_the_config_says_so(
    directory: Path, adds_bos: bool | None, post_processor: Any, num_bos: int
) -> None:
    if post_processor:
        inner = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
        inner.post_processor = post_processor
        inner.save(str(directory / "tokenizer.json"))
    set_config(directory, bos_token="<think>", add_bos_token=adds_bos)
    tokenizer = read_model(directory, None, {}, None).tokenizer
    plain = tokenizer.encode("Hello", add_special_tokens=False).token_ids
    assert tokenizer.encode("Hello", add_special_tokens=True).token_ids == [3] * num_bos + plain
    assert tokenizer.encode("<think>Hello", add_special_tokens=True).token_ids == [3, *plain]
    assert tokenizer.encode("Hello", add_special_tokens=True, with_offsets=True).offsets[num_bos] == (0, 1)
