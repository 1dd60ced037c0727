"""A model directory that the control plane can read, written without torch: the byte tokenizer, and weights that are only there."""

import json
from pathlib import Path
from typing import Any

from fakes.text.tokenizers import EOS, SPECIAL_TOKENS, byte_tokenizer

CONFIG = {"architectures": ["FakeForCausalLM"], "vocab_size": 320, "eos_token_id": EOS}
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


def write_model_directory(directory: Path) -> Path:
    """Write a complete directory and return it."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", CONFIG)
    write_json(directory / "tokenizer_config.json", {**SPECIAL_TOKENS, "chat_template": TEMPLATE})
    byte_tokenizer(adds_bos=True)._tokenizer.save(str(directory / "tokenizer.json"))
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (directory / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    return directory
