from pathlib import Path

import pytest

from pypto_serving.process.options import argument_parser


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "serving.toml"
    path.write_text("[worker]\nport = 3\n[control]\nport = 9\n")
    return str(path)


def test_help_says_once_how_flags_are_set_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argument_parser("worker", "A worker.", "worker")
    parser.add_argument("--port", type=int, default=1, help="to listen on")
    parser.add_argument("--eager", action="store_true", help="be eager")
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    said = capsys.readouterr().out
    assert said.count("PYPTO_SERVING_WORKER_") == 1 and "to listen on (default: 1)" in said and said.count("(default") == 1


def _port(arguments: list[str]) -> int:
    parser = argument_parser("worker", "A worker.", "worker")
    parser.add_argument("--port", type=int, default=1)
    return int(parser.parse_args(arguments).port)


def test_flags_win_over_environment_over_file_over_default(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _port([]) == 1
    assert _port(["--config", config]) == 3
    monkeypatch.setenv("PYPTO_SERVING_WORKER_PORT", "5")
    assert _port(["--config", config]) == 5
    assert _port(["--config", config, "--port", "7"]) == 7


def test_a_bad_value_is_blamed_on_where_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*arguments: str) -> str:
        with pytest.raises(SystemExit) as end:
            _port([*arguments])
        assert end.value.code == 2
        return capsys.readouterr().err.splitlines()[-1].removeprefix("worker: error: ")

    assert said("--port", "a").startswith("argument --port: invalid int value: 'a'")
    (tmp_path / "own.toml").write_text("[worker]\nport = 'b'\n")
    assert said("--config", str(tmp_path / "own.toml")) == f"--config {tmp_path / 'own.toml'}, port: invalid int value: 'b'"
    (tmp_path / "misspelt.toml").write_text("[worker]\nprot = 1\n")
    assert said("--config", str(tmp_path / "misspelt.toml")) == f"--config {tmp_path / 'misspelt.toml'}, prot: there is no such flag"
    monkeypatch.setenv("PYPTO_SERVING_WORKER_PORT", "c")
    assert said() == "the environment variable PYPTO_SERVING_WORKER_PORT: invalid int value: 'c'"
    assert said("--port", "d").startswith("argument --port: invalid int value: 'd'")
