"""Reading a model directory: what is taken from which file, and one clear line for what is wrong."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.text.model_directory import CONFIG, write_json, write_model_directory
from fakes.text.tokenizers import EOS, EOT, SPECIAL_TOKENS
from harness.checkpoints import TinyCheckpoint

from control_plane.edge.model_directory import ServedModel, read_model
from control_plane.edge.text.chat_template import Conversation, TemplateRefused
from pypto_serving.process.start_up import StartUpError


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_model_directory(tmp_path / "bytes")


def read(directory: Path, **operator_sampling: float) -> ServedModel:
    return read_model(directory, None, operator_sampling, None)


def test_a_model_is_read_without_its_weights(directory: Path) -> None:
    model = read(directory)
    assert (model.name, model.architecture, model.vocab_size) == ("bytes", "FakeForCausalLM", 320)
    assert len(model.fingerprint) == 32
    assert model.chat_template is not None
    assert read_model(directory, "other", {}, None).name == "other"


@pytest.mark.parametrize(
    ("config", "generation", "tokenizer", "ends"),
    [
        (EOS, [EOS, EOT], "<eos>", {EOS, EOT}),
        (EOS, [EOT], "<eos>", {EOS, EOT}),
        (None, None, "<eot>", {EOT}),
        ([EOS, EOT], None, None, {EOS, EOT}),
        (None, None, None, set()),
    ],
)
def test_stop_06_end_tokens_are_the_union_of_all_files(
    directory: Path, config: object, generation: object, tokenizer: str | None, ends: set[int]
) -> None:
    write_json(directory / "config.json", {**CONFIG, "eos_token_id": config})
    write_json(directory / "generation_config.json", {"eos_token_id": generation})
    write_json(directory / "tokenizer_config.json", {"eos_token": tokenizer and {"content": tokenizer}})
    assert read(directory).end_token_ids == ends


def test_sampling_defaults_come_from_operator_then_model_then_built_in(directory: Path) -> None:
    write_json(directory / "generation_config.json", {"temperature": 0.5, "top_k": 20, "top_p": None})
    sampling = read(directory, temperature=0.25).default_sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.25, 20, 1.0)
    assert not sampling.HasField("seed")


def test_the_template_file_of_a_model_goes_before_its_tokenizer_config(directory: Path) -> None:
    (directory / "chat_template.jinja").write_text("file")
    template = read(directory).chat_template
    assert template is not None and template.render(Conversation([])) == "file"


def test_of_named_templates_the_default_is_taken_and_another_for_tools(directory: Path) -> None:
    named = [{"name": "tool_use", "template": "{{ tools | length }} tools"}, {"name": "default", "template": "plain"}]
    write_json(directory / "tokenizer_config.json", {**SPECIAL_TOKENS, "chat_template": named})
    template = read(directory).chat_template
    assert template is not None and template.render(Conversation([])) == "plain"
    assert template.render(Conversation([], tools=[{}, {}])) == "2 tools"


@pytest.mark.parametrize("has_default", [True, False])
def test_tpl_08_additional_templates_are_read(directory: Path, has_default: bool) -> None:
    (directory / "additional_chat_templates").mkdir()
    (directory / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools | length }} tools")
    (directory / "additional_chat_templates" / "rag.jinja").write_text("other")
    if has_default:
        (directory / "chat_template.jinja").write_text("plain")
    template = read(directory).chat_template
    assert template is not None and template.knows_tools and template.render(Conversation([], tools=[{}])) == "1 tools"
    if has_default:
        assert template.render(Conversation([])) == "plain"
    else:
        with pytest.raises(TemplateRefused, match="no template for conversations without tools"):
            template.render(Conversation([]))


def test_tpl_08_what_transformers_writes_for_several_templates_is_read_as_it_was(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    directory = shutil.copytree(tiny_checkpoint("qwen3"), tmp_path / "model")
    theirs = PreTrainedTokenizerFast.from_pretrained(directory)
    theirs.chat_template = {"default": "plain", "tool_use": "{{ tools | length }} tools"}
    (directory / "tokenizer_config.json").unlink()
    theirs.save_pretrained(directory)
    template = read(directory).chat_template
    assert template is not None
    for tools in ([], [{"type": "function"}]):
        ours = template.render(Conversation([{"role": "user", "content": "x"}], tools=tools))
        assert ours == theirs.apply_chat_template([{"role": "user", "content": "x"}], tools=tools or None, tokenize=False)


def test_tpl_08_a_list_without_a_default_may_have_a_template_for_tools(directory: Path) -> None:
    write_template(directory, [{"name": "tool_use", "template": "{{ tools | length }} tools"}])
    template = read(directory).chat_template
    assert template is not None and template.render(Conversation([], tools=[{}])) == "1 tools"


def test_tpl_08_a_list_of_templates_for_other_purposes_is_refused(directory: Path) -> None:
    write_template(directory, [{"name": "rag", "template": "x"}])
    with pytest.raises(StartUpError, match=r"has chat templates named \['rag'\], but neither default nor tool_use"):
        read(directory)


def test_an_end_token_of_the_tokenizer_lies_in_the_vocabulary(directory: Path) -> None:
    write_json(directory / "config.json", {**CONFIG, "vocab_size": EOS, "eos_token_id": None})
    with pytest.raises(StartUpError, match=rf"tokenizer.json: eos_token_id {EOS} is not a token id below vocab_size {EOS}"):
        read(directory)


def test_gwy_04_a_model_may_have_no_template(directory: Path) -> None:
    write_json(directory / "tokenizer_config.json", SPECIAL_TOKENS)
    assert read(directory).chat_template is None


@pytest.mark.parametrize("field", ["temperature", "top_k", "repetition_penalty"])
@pytest.mark.parametrize("value", [-1, "hot", [1], pytest.param(10**400, id="huge")])
def test_tkz_06_a_default_that_does_not_fit_is_named(directory: Path, field: str, value: object) -> None:
    write_json(directory / "generation_config.json", {field: value})
    with pytest.raises(StartUpError, match=rf"generation_config\.json: {field} = ") as caught:
        read(directory)
    assert len(str(caught.value)) < len(str(directory)) + 300


def test_tkz_08_a_link_names_the_model_and_so_does_a_repository_in_a_hubs_cache(directory: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "models--Org--Model-1B" / "snapshots" / ("0123456789abcdef" * 2)
    shutil.copytree(directory, snapshot)
    (tmp_path / "my-model").symlink_to(snapshot)
    assert read(snapshot).name == "Model-1B"
    assert read(tmp_path / "my-model").name == "my-model"


def test_tkz_08_a_template_in_a_json_file_of_its_own_is_read(directory: Path) -> None:
    write_json(directory / "chat_template.json", {"chat_template": "of its own"})
    template = read(directory).chat_template
    assert template is not None and template.render(Conversation([])) == "of its own"


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "tokenizer.json"])
def test_tkz_08_a_byte_order_mark_is_no_part_of_a_file(directory: Path, name: str) -> None:
    (directory / name).write_bytes(b"\xef\xbb\xbf" + (directory / name).read_bytes())
    assert read(directory).vocab_size == 320


def test_a_trailing_slash_and_a_relative_path_name_the_same_model(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory)
    assert read(Path(".")).name == read(Path(f"{directory}/")).name == "bytes"


@pytest.mark.parametrize(
    ("fields", "positions"),
    [({"max_position_embeddings": 4096}, 4096), ({"max_position_embeddings": 4096, "rope_scaling": {}}, 1 << 20), ({}, 1 << 20)],
)
def test_the_reach_of_a_model_bounds_requests_before_a_worker_says_more(directory: Path, fields: dict[str, object], positions: int) -> None:
    write_json(directory / "config.json", {**CONFIG, **fields})
    assert read(directory).max_positions == positions


def write_template(directory: Path, template: object) -> None:
    write_json(directory / "tokenizer_config.json", {**SPECIAL_TOKENS, "chat_template": template})


BROKEN: list[tuple[Callable[[Path], object], str]] = [
    (lambda d: (d / "config.json").unlink(), "config.json: No such file or directory"),
    (lambda d: (d / "config.json").write_text("{"), "config.json: not JSON"),
    (lambda d: (d / "config.json").write_text("[]"), "config.json: not a JSON object"),
    (lambda d: (d / "config.json").write_bytes(b"\xff"), "config.json: not UTF-8 text"),
    (lambda d: write_json(d / "config.json", {**CONFIG, "vocab_size": 0}), "config.json: vocab_size = 0, must be a positive integer"),
    (lambda d: write_json(d / "config.json", {**CONFIG, "architectures": []}), "architectures = []"),
    (lambda d: write_json(d / "config.json", {**CONFIG, "eos_token_id": 320}), "eos_token_id 320 is not a token id below vocab_size 320"),
    (lambda d: write_json(d / "generation_config.json", {"top_p": 0}), "generation_config.json: top_p = 0, must be in (0, 1]"),
    (lambda d: write_json(d / "generation_config.json", {"top_k": -1}), "generation_config.json: top_k = -1: "),
    (lambda d: write_json(d / "generation_config.json", {"temperature": "hot"}), "generation_config.json: temperature = 'hot': "),
    (lambda d: (d / "tokenizer.json").unlink(), "tokenizer.json: No such file or directory"),
    (lambda d: (d / "tokenizer.json").write_text("{}"), "tokenizer.json: "),
    (lambda d: (d / "chat_template.jinja").write_text("\n{% for %}"), "chat_template.jinja: line 2: "),
    (lambda d: (d / "chat_template.jinja").write_text("{% if a %}" * 3000 + "{% endif %}" * 3000), "chat_template.jinja: nested too deep"),
    (lambda d: (d / "chat_template.jinja").write_text("{{ " + "(" * 3000 + ")" * 3000 + " }}"), "chat_template.jinja: nested too deep"),
    (lambda d: (d / "chat_template.jinja").write_text("{% for a in b %}" * 30 + "{% endfor %}" * 30), "chat_template.jinja: "),
    (lambda d: (d / "chat_template.jinja").write_text("{{ " + "9" * 5000 + " }}"), "chat_template.jinja: "),
    (lambda d: write_json(d / "chat_template.json", {"chat_template": 5}), "chat_template.json: chat_template: neither a text nor"),
    (lambda d: write_json(d / "chat_template.json", {"chat_template": "{% for %}"}), "chat_template.json: chat_template: line 1"),
    (lambda d: write_template(d, 5), "tokenizer_config.json: chat_template: neither a text nor a list of named texts"),
    (lambda d: write_template(d, [{"name": [], "template": "x"}]), "tokenizer_config.json: chat_template: neither"),
    (lambda d: write_template(d, [{"name": "default", "template": 5}]), "tokenizer_config.json: chat_template: neither"),
    (lambda d: write_template(d, ["default"]), "tokenizer_config.json: chat_template: neither"),
    (lambda d: (d / "config.json").write_text('{"a":' + "[" * 100_000), "config.json: nested too deep"),
    (lambda d: (d / "config.json").write_text('{"a":' + "9" * 5000 + "}"), "config.json: not JSON: "),
    (lambda d: (d / "tokenizer.json").write_text("[" * 100_000), "tokenizer.json: "),
    (lambda d: write_json(d / "generation_config.json", {"temperature": 10**400}), "generation_config.json: "),
    (lambda d: write_json(d / "generation_config.json", {"top_k": 10**400}), "generation_config.json: "),
    (lambda d: (d / "model.safetensors").write_bytes((200_000).to_bytes(8, "little") + b"[" * 200_000), "nested too deep"),
    (lambda d: (d / "model.safetensors").unlink(), ": no *.safetensors files of a model: neither model.safetensors nor "),
    (lambda d: write_json(d / "model.safetensors.index.json", {"weight_map": []}), "not an index of safetensors files"),
    (lambda d: write_json(d / "model.safetensors.index.json", {"weight_map": {"w": "x"}}), "x: No such file or directory"),
]


@pytest.mark.parametrize(("damage", "message"), BROKEN)
def test_mod_04_what_is_wrong_is_said_in_one_line(directory: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(directory)
    with pytest.raises(StartUpError) as caught:
        read(directory)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_wrong_path_is_said_to_be_one(directory: Path) -> None:
    with pytest.raises(StartUpError, match="no such directory"):
        read(directory / "nothing")
    with pytest.raises(StartUpError, match="not a directory"):
        read(directory / "config.json")
    with pytest.raises(StartUpError, match="default sampling flags: min_p = 2"):
        read(directory, min_p=2.0)
