import shutil
from pathlib import Path

import pytest
import torch
from checkpoints import TinyCheckpoint
from safetensors.torch import load_file, save_file

from pypto_serving.wire.fingerprint import fingerprint_model


@pytest.fixture
def model(tiny_checkpoint: TinyCheckpoint, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_checkpoint("qwen3"), tmp_path / "model"))


def test_a_copy_has_the_same_fingerprint(model: Path, tmp_path: Path) -> None:
    assert fingerprint_model(model) == fingerprint_model(Path(shutil.copytree(model, tmp_path / "copy")))


def test_a_change_of_any_one_tensor_changes_it(model: Path) -> None:
    original = load_file(model / "model.safetensors")
    fingerprints = {fingerprint_model(model)}
    for name in original:
        save_file({**original, name: torch.full_like(original[name], 0.5)}, model / "model.safetensors", {"format": "pt"})
        fingerprints.add(fingerprint_model(model))
    assert len(fingerprints) == 1 + len(original)


def test_another_config_changes_it(model: Path) -> None:
    before = fingerprint_model(model)
    config = model / "config.json"
    config.write_text(config.read_text().replace("10000.0", "20000.0"))
    assert fingerprint_model(model) != before


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x02\0\0\0\0\0\0\0[]", b"\xff" * 16, b'\x07\0\0\0\0\0\0\0{"a":1}'])
def test_a_file_of_another_kind_is_named(model: Path, content: bytes) -> None:
    (model / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.safetensors: not a safetensors file"):
        fingerprint_model(model)
