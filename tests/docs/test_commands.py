"""Every command and every program that the documents show does what it is shown for."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from harness.checkpoints import TinyCheckpoint
from harness.documentation import Snippet, commands, documents, programs
from harness.documented_service import DocumentedService

_CASES = [snippet for path in documents() for snippet in commands(path)]
_PROGRAMS = [snippet for path in documents() for snippet in programs(path)]
#: Start no process, or one that ends at once.
_FAST = ("pip", "docker", "kubectl", ".", "pre-commit")


@pytest.fixture(scope="module")
def service(tiny_checkpoint: TinyCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DocumentedService]:
    with DocumentedService(tiny_checkpoint("qwen3"), tmp_path_factory.mktemp("documented")) as service:
        yield service


def cases(snippets: list[Snippet]) -> list["pytest.ParameterSet"]:
    """Each text once, with the place of its first mention as its name."""
    first = {snippet.text.partition(" #")[0].strip(): snippet for snippet in reversed(snippets)}
    return [
        pytest.param(snippet, id=snippet.place, marks=() if snippet.words[0] in _FAST else pytest.mark.slow)
        for snippet in reversed(first.values())
    ]


@pytest.mark.parametrize("command", cases(_CASES))
def test_a_command_in_the_documents_runs(service: DocumentedService, command: Snippet) -> None:
    service.run(command)


@pytest.mark.slow
@pytest.mark.parametrize("program", [pytest.param(program, id=program.place) for program in _PROGRAMS])
def test_a_program_in_the_documents_runs(service: DocumentedService, program: Snippet) -> None:
    text = program.text.replace("127.0.0.1:50051", service.control.address).replace('model="..."', f'model="{service.model.name}"')
    text = text.replace("max_tokens=50", "max_tokens=5")
    if "http://127.0.0.1:8000" in text:
        text = text.replace("127.0.0.1:8000", str(service.gateway.start_event["address"]))
    end = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=100, check=False)
    assert end.returncode == 0 and end.stdout, end.stderr
