import hashlib
from pathlib import Path

import pytest
from harness.checkpoints import TinyCheckpoint

from pypto_serving.wire.fingerprint import fingerprint_model
from worker.checkpoint.weights_hash import WeightsHash


def _digest(directory: Path, num_threads: int = 1) -> str:
    weights_hash = WeightsHash(sorted(directory.glob("*.safetensors")), num_threads)
    weights_hash.wait()
    return weights_hash.digest


def test_every_bit_counts(tmp_path: Path, tiny_checkpoint: TinyCheckpoint) -> None:
    content = bytearray((tiny_checkpoint("llama") / "model.safetensors").read_bytes())
    (tmp_path / "config.json").write_text("{}")
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    digest, fingerprint = _digest(tmp_path), fingerprint_model(tmp_path)
    assert len(digest) == 64
    content[-300] ^= 1
    file.write_bytes(content)
    assert _digest(tmp_path) != digest
    assert fingerprint_model(tmp_path) == fingerprint  # which is why there is another


@pytest.mark.parametrize("num_threads", [1, 2, 9])
def test_it_is_over_what_sha256sum_prints(tmp_path: Path, num_threads: int) -> None:
    printed = ""
    for number in range(5):
        content = bytes([number]) * 3_000_000
        (tmp_path / f"model-{number}.safetensors").write_bytes(content)
        printed += f"{hashlib.sha256(content).hexdigest()}  model-{number}.safetensors\n"
    assert _digest(tmp_path, num_threads) == hashlib.sha256(printed.encode()).hexdigest()


def test_a_file_that_cannot_be_read_is_named_and_nothing_is_claimed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "gone.safetensors").symlink_to(tmp_path / "nowhere")
    assert _digest(tmp_path) == ""
    assert "gone.safetensors" in str([vars(record) for record in caplog.records])
