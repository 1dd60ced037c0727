"""Reads a model directory: config, generation config, tokenizer, chat template. Weights are looked at for the fingerprint only."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control_plane.edge.model_files import (
    UNKNOWN_MAX_POSITIONS,
    Json,
    fingerprint_of,
    max_positions,
    name_of,
    positive,
    read_config_json,
    read_json,
    read_text,
)
from control_plane.edge.service.admission.parameters import BUILT_IN_SAMPLING, SAMPLING_DEFAULTS, check_sampling
from control_plane.edge.service.errors import InvalidArgument
from control_plane.edge.text.chat_template import ChatTemplate, TemplateBroken
from control_plane.edge.text.tokenizer import Tokenizer
from control_plane.edge.tokenizer_files import read_tokenizer_files
from pypto_serving.inference.v1 import inference_pb2
from pypto_serving.process.start_up import StartUpError, given_by

_log = logging.getLogger(__name__)

_MAX_SHOWN = 80  # characters of a value

#: What holds when the config and the tokenizer name different tokens for a role.
_PRECEDENCE = {"bos": "texts begin as the tokenizer says", "eos": "each of them ends an answer"}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model directory, read without its weights."""

    name: str  # by which requests call it
    architecture: str
    fingerprint: str
    vocab_size: int  # embedding rows
    end_token_ids: frozenset[int]  # union of config, generation config and tokenizer
    default_sampling: inference_pb2.SamplingParams  # every field set but the seed
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    max_positions: int = UNKNOWN_MAX_POSITIONS  # no request has more tokens, whatever workers say later


def read_model(directory: Path, name: str | None, operator_sampling: Mapping[str, float], template_file: Path | None) -> ServedModel:
    """Read the model in `directory`; raises StartUpError with one line that names the file and what is wrong with it.

    `name`: how requests call it, by default the directory's name. `operator_sampling`: values by field name that go before those of the
    generation config. `template_file`: takes the place of the model's own chat template.
    """
    config = read_config_json(directory)
    generation = read_json(directory / "generation_config.json", required=False)
    files = read_tokenizer_files(directory)
    tokenizer, special_tokens = files.tokenizer, files.special_tokens
    vocab_size = positive(directory / "config.json", config, "vocab_size")
    _warn_of_unknown_tokens(directory, (config, generation), special_tokens, tokenizer)
    return ServedModel(
        name=name or name_of(directory),
        architecture=_architecture(directory / "config.json", config),
        fingerprint=fingerprint_of(directory),
        vocab_size=vocab_size,
        end_token_ids=frozenset(
            _end_ids(directory / "config.json", config, vocab_size)
            + _end_ids(directory / "generation_config.json", generation, vocab_size)
            + _end_ids(directory / "tokenizer.json", {"eos_token_id": tokenizer.id_of(special_tokens.get("eos_token", ""))}, vocab_size)
        ),
        default_sampling=_default_sampling(directory / "generation_config.json", generation, operator_sampling, vocab_size),
        tokenizer=tokenizer,
        chat_template=_chat_template(directory, files.config, special_tokens, template_file),
        max_positions=max_positions(config),
    )


def _architecture(path: Path, config: Json) -> str:
    match config.get("architectures"):
        case [str(architecture), *_]:
            return architecture
        case other:
            raise StartUpError(f"{path}: architectures = {other!r}, must name the model's class")


def _end_ids(path: Path, config: Json, vocab_size: int) -> list[int]:
    ids = _ids(config, "eos")
    for token_id in ids:
        if type(token_id) is not int or not 0 <= token_id < vocab_size:
            raise StartUpError(f"{path}: eos_token_id {token_id!r} is not a token id below vocab_size {vocab_size}")
    return ids


def _ids(config: Json, role: str) -> list[Any]:
    value = config.get(f"{role}_token_id")
    return [] if value is None else value if isinstance(value, list) else [value]


def _warn_of_unknown_tokens(directory: Path, configs: Sequence[Json], special_tokens: Mapping[str, str], tokenizer: Tokenizer) -> None:
    """A tokenizer whose first or last token the config does not know may belong to another model."""
    for role, rule in _PRECEDENCE.items():
        token_id = tokenizer.id_of(special_tokens.get(f"{role}_token", ""))
        expected = [each for config in configs for each in _ids(config, role)]
        if expected and token_id is not None and token_id not in expected:
            place = directory / "tokenizer_config.json"
            _log.warning(f"{place}: {role}_token has id {token_id}, config.json or generation_config.json say {expected}; {rule}")


def _default_sampling(
    path: Path, generation: Json, operator_sampling: Mapping[str, float], vocab_size: int
) -> inference_pb2.SamplingParams:
    sampling = inference_pb2.SamplingParams()
    sampling.CopyFrom(BUILT_IN_SAMPLING)
    of_model = {field: generation[field] for field in SAMPLING_DEFAULTS if generation.get(field) is not None}
    for source, values in ((str(path), of_model), ("default sampling flags", operator_sampling)):
        try:
            for field, value in values.items():
                _set_sampling(sampling, field, value)
            check_sampling(sampling, vocab_size, "")
        except (ValueError, InvalidArgument) as error:
            raise StartUpError(f"{source}: {error}") from None
    return sampling


def _set_sampling(sampling: inference_pb2.SamplingParams, field: str, value: object) -> None:
    """Raises ValueError naming the field when the value is of another kind or size than it holds."""
    try:
        setattr(sampling, field, value)
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"{field} = {repr(value)[:_MAX_SHOWN]}: {str(error)[:_MAX_SHOWN]}") from None


def _chat_template(
    directory: Path, tokenizer_config: Json, special_tokens: Mapping[str, str], template_file: Path | None
) -> ChatTemplate | None:
    """The given file, else the templates of the model: "default", and "tool_use" for conversations with tools."""
    if template_file:
        with given_by("--chat-template"):
            named = {"default": (template_file, read_text(template_file))}
    else:
        named = _own_templates(directory, tokenizer_config)
    if named and not named.keys() & {"default", "tool_use"}:
        raise StartUpError(f"{directory}: has chat templates named {sorted(named)}, but neither default nor tool_use")
    for origin, source in named.values():
        try:
            ChatTemplate(source, special_tokens)
        except TemplateBroken as error:
            raise StartUpError(f"{origin}: {error}") from None
    sources = {name: source for name, (_, source) in named.items()}
    return ChatTemplate(sources.get("default"), special_tokens, sources.get("tool_use")) if named else None


def _own_templates(directory: Path, tokenizer_config: Json) -> dict[str, tuple[Path, str]]:
    """Where each template stands, and its source, by name: files of their own go before chat_template.json, that before the config."""
    more = sorted((directory / "additional_chat_templates").glob("*.jinja"))
    paths = {path.stem: path for path in more} | {"default": directory / "chat_template.jinja"}
    if files := {name: (path, read_text(path)) for name, path in paths.items() if path.exists()}:
        return files
    for path, content in (
        (directory / "chat_template.json", read_json(directory / "chat_template.json", required=False)),
        (directory / "tokenizer_config.json", tokenizer_config),
    ):
        if content.get("chat_template") is not None:
            origin = path.with_name(f"{path.name}: chat_template")
            return {name: (origin, source) for name, source in _inline_templates(origin, content["chat_template"]).items()}
    return {}


def _inline_templates(origin: Path, value: Any) -> dict[str, str]:
    """A template, or a list of named ones."""
    entries = value if isinstance(value, list) else [{"name": "default", "template": value}]
    named = {}
    for entry in entries:
        match entry:
            case {"name": str(name), "template": str(template)}:
                named[name] = template
            case _:
                raise StartUpError(f"{origin}: neither a text nor a list of named texts")
    return named
