import json
import shutil
from pathlib import Path

import pytest
import torch
from harness.checkpoints import TinyCheckpoint
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


@pytest.mark.parametrize("content", [b"broken", None])
@pytest.mark.parametrize("is_sharded", [True, False])
def test_tkz_07_files_that_nothing_names_change_nothing(model: Path, content: bytes | None, is_sharded: bool) -> None:
    if is_sharded:
        names = list(load_file(model / "model.safetensors"))
        (model / "model.safetensors").rename(model / "model-1-of-1.safetensors")
        (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(names, "model-1-of-1.safetensors")}))
    before = fingerprint_model(model)
    shard = model / ("model-1-of-1.safetensors" if is_sharded else "model.safetensors")
    for name in ("optimizer.safetensors", "consolidated.safetensors"):
        (model / name).write_bytes(shard.read_bytes() if content is None else content)
    assert fingerprint_model(model) == before


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
