import re
from pathlib import Path

import pytest

from pypto_serving.process.options import argument_parser
from pypto_serving.process.stray_settings import OTHER_VARIABLES, SECTIONS, stray_table

ROOT = Path(__file__).parents[2]
PROGRAMS = ("control_plane", "worker", "kernels", "clients", "pypto_serving", "scripts", "deploy")


def _port(arguments: list[str], monkeypatch: pytest.MonkeyPatch, **environment: str) -> int:
    for name, value in environment.items():
        monkeypatch.setenv(f"PYPTO_SERVING_{name}", value)
    parser = argument_parser("worker", "A worker.", "worker")
    parser.add_argument("--port", type=int, default=1)
    return int(parser.parse_args(arguments).port)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("WORKER_PROT", "did you mean PYPTO_SERVING_WORKER_PORT?"),
        ("WRKER_PORT", "did you mean PYPTO_SERVING_WORKER_PORT?"),
        ("CONTOL_MAX_QUEUED_REQUESTS", "did you mean PYPTO_SERVING_CONTROL_...?"),
        ("APIKEY", "did you mean PYPTO_SERVING_API_KEY?"),
        ("COLOUR", "flags stand in PYPTO_SERVING_WORKER_..."),
    ],
)
def test_a_variable_that_nobody_reads_ends_the_program_and_names_the_nearest(
    name: str, advice: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        _port([], monkeypatch, **{name: "3"})
    assert end.value.code == 2
    assert capsys.readouterr().err.endswith(f"worker: error: the environment variable PYPTO_SERVING_{name} is not known: {advice}\n")


def test_flags_of_other_programs_and_what_else_we_read_are_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _port([], monkeypatch, CONTROL_PORT="9", GATEWAY_STRICT="true", API_KEY="k", CACHE="/tmp", TARGET="a:1") == 1


def test_help_needs_no_clean_environment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        _port(["--help"], monkeypatch, WORKER_PROT="3")
    assert (end.value.code, capsys.readouterr().err) == (0, "")


def test_services_of_kubernetes_with_names_like_ours_are_no_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    link = "tcp://10.96.0.7:50061"
    service = {
        "SERVICE_HOST": "10.96.0.7",
        "SERVICE_PORT": "50061",
        "SERVICE_PORT_GRPC": "50061",
        "PORT": link,
        "PORT_50061_TCP": link,
        "PORT_50061_TCP_PROTO": "tcp",
        "PORT_50061_TCP_PORT": "50061",
        "PORT_50061_TCP_ADDR": "10.96.0.7",
    }
    links = {f"{name}_{what}": value for name in ("WORKER", "LLM") for what, value in service.items()}
    assert _port([], monkeypatch, **links) == 1


def test_a_file_may_have_tables_for_every_program() -> None:
    assert stray_table({section: {"port": 1} for section in SECTIONS}) == ""


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[wroker]\nport = 3", "the table [wroker] is not known: did you mean [worker]?"),
        ("port = 3", "port stands in no table: tables are [control], [frontend], [scheduler], [worker], [gateway]"),
        ("worker = 3", "worker has to be a table: [worker]"),
        ("[worker.tls]\ncert = 'a'", "the table [worker.tls] is not known: [worker] has no tables of its own"),
        ("[worker\n", "Expected ']' at the end of a table declaration (at line 1, column 8)"),
    ],
)
def test_what_no_program_reads_in_a_file_is_an_error(
    text: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "serving.toml"
    path.write_text(text)
    with pytest.raises(SystemExit) as end:
        _port(["--config", str(path)], monkeypatch)
    assert (end.value.code, capsys.readouterr().err.splitlines()[-1]) == (2, f"worker: error: --config {path}: {complaint}")


def test_every_variable_that_the_programs_name_is_known() -> None:
    files = [path for folder in PROGRAMS for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".yml", ".yaml")]
    named = {name for path in files for name in re.findall(r"PYPTO_SERVING_[A-Z][A-Z_]*[A-Z]", path.read_text())}
    flags = tuple(f"PYPTO_SERVING_{section.upper()}_" for section in SECTIONS)
    assert {name for name in named if not name.startswith(flags)} == set(OTHER_VARIABLES)
