"""One service for each module that asks for it: a test of it costs milliseconds."""

import json
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from fakes.text.model_directory import write_json, write_model_directory
from fakes.text.tokenizers import EOS, SPECIAL_TOKENS, byte_tokenizer
from harness.service import VOCAB_SIZE, Service, real_service, scripted_service

ModelWith = Callable[..., Path]


@pytest.fixture(scope="session")
def scripted_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokens are bytes; copy it before you change it."""
    return write_model_directory(tmp_path_factory.mktemp("scripted") / "model")


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with real weights, whose tokens are bytes; copy it before you change it."""
    from harness.checkpoints import CHAT_TEMPLATE, make_checkpoint  # imports torch, which scripted tests do not need

    directory = tmp_path_factory.mktemp("bytes") / "model"
    make_checkpoint(directory, "qwen3", vocab_size=VOCAB_SIZE, head_dim=32, eos_token_id=EOS, max_position_embeddings=512)
    byte_tokenizer(adds_bos=True)._tokenizer.save(str(directory / "tokenizer.json"))
    write_json(directory / "tokenizer_config.json", {**SPECIAL_TOKENS, "chat_template": CHAT_TEMPLATE})
    return directory


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scripted(scripted_model: Path) -> AsyncIterator[Service]:
    """A service whose worker follows a script."""
    async with scripted_service(scripted_model) as service:
        yield service
        await service.until_at_rest()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real(byte_model: Path) -> AsyncIterator[Service]:
    """A service whose worker runs a tiny model."""
    async with real_service(byte_model) as service:
        yield service
        await service.until_at_rest()


@pytest.fixture
def model_with(scripted_model: Path, tmp_path: Path) -> ModelWith:
    """Factory `model_with(config=..., generation_config=..., ...)`: a copy of the scripted model with other fields in its JSON files."""

    def copy(**files: dict[str, object]) -> Path:
        shutil.copytree(scripted_model, tmp_path / "copy")
        for name, fields in files.items():
            path = tmp_path / "copy" / f"{name}.json"
            write_json(path, {**(json.loads(path.read_text()) if path.exists() else {}), **fields})
        return tmp_path / "copy"

    return copy
