from pathlib import Path

import pytest
from fakes.text.model_directory import write_model_directory
from harness.waiting import until

from control_plane.edge.server.late_compiler import LateCompiler

GRAMMAR = 'start: "a" | "b"'


def test_constraints_wait_until_the_tokens_are_known(tmp_path: Path) -> None:
    first, second = LateCompiler(write_model_directory(tmp_path / "model")).begin(GRAMMAR, 2)
    first.push(ord("a"))
    assert first.mask() != second.mask()


async def test_a_tokenizer_that_cannot_be_read_is_told_and_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = write_model_directory(tmp_path / "model")
    (model / "tokenizer.json").write_text("{}")
    compiler = LateCompiler(model)
    compiler.prepare()
    await until(lambda: any("cannot be read" in record.message for record in caplog.records))
    with pytest.raises(Exception, match=r"tokenizer\.json"):
        compiler.begin(GRAMMAR, 1)
