"""The tokenizer of a model directory: tokenizer.json, and what older files beside it add to it, as transformers reads them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, processors

from control_plane.edge.model_files import Json, read_json, read_text
from control_plane.edge.text.tokenizer import Tokenizer
from pypto_serving.process.start_up import StartUpError

_CONFIG = "tokenizer_config.json"
_OPTIONS = ("lstrip", "normalized", "rstrip", "single_word", "special")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """A tokenizer, and what its files say of it."""

    tokenizer: Tokenizer
    special_tokens: Mapping[str, str]  # by role, such as bos_token
    config: Json  # tokenizer_config.json


def read_tokenizer_files(directory: Path) -> TokenizerFiles:
    """Read the tokenizer in `directory`; raises StartUpError with one line that names the file."""
    config = read_json(directory / _CONFIG, required=False)
    inner = _read_inner(directory / "tokenizer.json")
    is_old = "added_tokens_decoder" not in config
    roles = config | read_json(directory / "special_tokens_map.json", required=False) if is_old else config
    further = roles.get("extra_special_tokens") or roles.get("additional_special_tokens") or []
    named = {role: value for role, value in roles.items() if role.endswith("_token")} | (further if isinstance(further, dict) else {})
    special_tokens = {role: text for role, value in named.items() if (text := _text(value)) is not None}
    special = [value for value in (*named.values(), *(further if isinstance(further, list) else ())) if _text(value) is not None]
    try:
        if is_old:
            ids, special_texts = read_json(directory / "added_tokens.json", required=False), {_text(value) for value in special}
            listed = [_token(text, special=text in special_texts) for text in sorted(ids, key=ids.__getitem__)]
        else:
            by_id = sorted(config["added_tokens_decoder"].items(), key=lambda entry: int(entry[0]))
            listed = [_token(value) for _, value in by_id]
        _add(inner, listed, special)
    except (AttributeError, OverflowError, TypeError, ValueError) as error:
        raise StartUpError(f"{directory}: added tokens of tokenizer_config.json or added_tokens.json: {error}") from None
    _begin_with_bos(inner, config, special_tokens.get("bos_token", ""))
    return TokenizerFiles(Tokenizer(inner, special_tokens), special_tokens, config)


def _read_inner(path: Path) -> tokenizers.Tokenizer:
    text = read_text(path)
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing more specific
        raise StartUpError(f"{path}: {error}") from None


def _text(value: object) -> str | None:
    """A token is given as text, or as an object with its content."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) and content else None


def _token(value: object, **options: Any) -> AddedToken:
    given = {name: option for name, option in value.items() if name in _OPTIONS} if isinstance(value, dict) else {}
    if (text := _text(value)) is None:
        raise ValueError(f"{value!r} has no content")
    return AddedToken(text, **given | options)


def _add(inner: tokenizers.Tokenizer, listed: Sequence[AddedToken], special: Sequence[object]) -> None:
    """Add what the vocabulary lacks, in the order in which ids are given out, and correct what it has with other options."""
    known = {token.content: token for token in inner.get_added_tokens_decoder().values()}
    inner.add_tokens([token for token in listed if repr(known.get(token.content)) != repr(token)])
    known = {token.content: token for token in inner.get_added_tokens_decoder().values()}
    inner.add_tokens([_token(value, special=True) for value in special if _text(value) not in known])
    plain = [token for value in special if (token := known.get(_text(value) or "")) and not token.special]
    inner.add_tokens([_token(token.__getstate__(), special=True) for token in plain])


def _begin_with_bos(inner: tokenizers.Tokenizer, config: Json, bos_token: str) -> None:
    """Let texts begin with BOS where the config asks for it: conversions of old tokenizers have a post-processor that does not know."""
    bos_id = inner.token_to_id(bos_token)
    if config.get("add_bos_token") is True and bos_id is not None and bos_id not in inner.encode("", add_special_tokens=True).ids:
        adds_bos = processors.TemplateProcessing(single=[bos_token, "$A"], special_tokens=[(bos_token, bos_id)])
        inner.post_processor = processors.Sequence([inner.post_processor, adds_bos]) if inner.post_processor else adds_bos
