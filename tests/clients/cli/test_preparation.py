"""`check`, `describe`, `convert` and `completion`."""

import json
import subprocess
import sys
from email.message import Message

import pytest
from fakes.network.certificates import CertificateDirectory
from harness.checkpoints import make_checkpoint

from clients.cli.model_summary import ModelUnreadable, summarize
from pypto_serving.inference.v1 import inference_pb2 as pb


@pytest.fixture
def model(tmp_path):
    return make_checkpoint(tmp_path / "model", "qwen3")


def levels(shown):
    return {(finding["subject"], finding["level"]): finding["text"] for finding in map(json.loads, shown.splitlines())}


def test_a_summary_counts_what_is_stored(model):
    from safetensors import safe_open

    with safe_open(model / "model.safetensors", "pt") as file:
        stored = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
    config = json.loads((model / "config.json").read_text())
    summary = summarize(model)
    assert (summary.num_parameters, summary.weights_bytes, summary.architecture) == (stored, 4 * stored, "Qwen3ForCausalLM")
    assert summary.kv_token_bytes() == 2 * 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda model: (model / "config.json").unlink(), "config.json: No such file or directory"),
        (lambda model: (model / "config.json").write_text("{"), "config.json: not JSON"),
        (lambda model: (model / "config.json").write_text("{}"), "num_attention_heads is None"),
        (lambda model: (model / "model.safetensors").unlink(), "no *.safetensors files of a model"),
        (lambda model: (model / "model.safetensors").write_bytes(b"version https://git-lfs.github.com"), "only a pointer of Git LFS"),
        (lambda model: (model / "model.safetensors").write_bytes(b"nonsense" * 9), "not a safetensors file"),
        (lambda model: (model / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes()[:-9]), "9 bytes short"),
        (
            lambda model: (model / "model.safetensors.index.json").write_text('{"weight_map": {"a": "b.safetensors"}}'),
            "are missing, such as b",
        ),
    ],
)
def test_a_directory_that_cannot_be_described_is_refused_with_the_reason(model, damage, message):
    damage(model)
    with pytest.raises(ModelUnreadable) as refused:
        summarize(model)
    assert message in str(refused.value) and "\n" not in str(refused.value)


async def test_describe_says_what_fits(command_line, model):
    ended = await command_line("describe", str(model))
    assert (ended.status, ended.err) == (0, "")
    assert "architecture  Qwen3ForCausalLM" in ended.out and "per page of 16" in ended.out and "whole contexts" in ended.out
    assert json.loads((await command_line("describe", str(model), "--json")).out)["loaded_bytes"]["float32"] > 0


async def test_describe_of_nothing_is_bad_usage(command_line, tmp_path):
    ended = await command_line("describe", str(tmp_path / "none"))
    assert (ended.status, ended.err) == (2, f"error: {tmp_path}/none: no such directory\n")


@pytest.mark.slow
async def test_check_of_what_is_good_fails_nothing(command_line, model, server):
    ended = await command_line("check", "--json", "--model", str(model), "--target", server.target)
    found = levels(ended.out)
    assert ended.status == 0 and ("architecture", "ok") in found and ("tokenizer", "ok") in found and ("target", "ok") in found
    assert {"cores", "memory", "open files", "torch", "kernels", "ports", "versions"} <= {subject for subject, _ in found}


@pytest.mark.slow
async def test_check_says_what_is_wrong_with_a_model(command_line, model, dead_target):
    (model / "config.json").write_text('{"architectures": ["OtherForCausalLM"]}')
    (model / "tokenizer.json").unlink()
    ended = await command_line("check", "--json", "--model", str(model), "--target", dead_target)
    found = levels(ended.out)
    assert ended.status == 1 and "expected one of LlamaForCausalLM" in found["architecture", "wrong"]
    assert ("tokenizer", "wrong") in found and ("model", "wrong") in found and dead_target in found["target", "wrong"]


async def test_check_reads_certificates(command_line, tmp_path, monkeypatch):
    monkeypatch.setattr("clients.cli.check._worker", lambda model: iter(()))
    certificates = CertificateDirectory(tmp_path)
    one, other = certificates.issue("one"), certificates.issue("other")
    good = await command_line("check", "--json", "--tls-cert", str(one.cert), "--tls-key", str(one.key))
    assert good.status == 0 and "until" in levels(good.out)["certificate", "ok"]
    mixed = await command_line("check", "--json", "--tls-cert", str(one.cert), "--tls-key", str(other.key))
    assert mixed.status == 1 and "are no certificate and its unencrypted key" in levels(mixed.out)["certificate", "wrong"]


async def test_check_compares_the_versions_of_what_is_installed_of_us(command_line, monkeypatch):
    monkeypatch.setattr("clients.cli.check._worker", lambda model: iter(()))
    told = Message()
    for extra in ("worker", "npu"):
        told["Provides-Extra"] = extra
    monkeypatch.setattr("importlib.metadata.metadata", lambda package: told)
    needed = ["grpcio>=999", "torch>=2 ; extra == 'worker'", "torch==1.0 ; extra == 'npu'", "no-such-package ; extra == 'npu'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda package: needed)
    ended = await command_line("check", "--json")
    wrong = [json.loads(line)["text"] for line in ended.out.splitlines() if json.loads(line)["level"] == "wrong"]
    assert ended.status == 1 and len(wrong) == 1 and wrong[0].startswith("grpcio is ") and "needed is >=999" in wrong[0]
    assert levels(ended.out)["versions", "ok"] == "1 packages are as needed"


@pytest.mark.slow
def test_convert_refuses_what_it_does_not_know(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"nonsense" * 100)
    command = [sys.executable, "-m", "clients", "convert", str(file), str(tmp_path / "made")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "") and ended.stderr.startswith(f"error: {file}: ") and ended.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


@pytest.mark.parametrize(
    ("file", "directory", "message"),
    [
        ("none.gguf", "made", "none.gguf: no such file"),
        (".", "made", "a directory, no GGUF file"),
        ("model.gguf", ".", "exists already; name a directory that does not"),
    ],
)
async def test_convert_says_what_is_wrong_with_its_paths(command_line, tmp_path, file, directory, message):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    ended = await command_line("convert", str(tmp_path / file), str(tmp_path / directory))
    assert (ended.status, ended.err.count("\n")) == (2, 1) and message in ended.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
async def test_completion_scripts_know_every_command(command_line, shell):
    ended = await command_line("completion", shell)
    assert ended.status == 0
    for name in ("serve", "verify", "batch", "reset-cache"):
        assert name in ended.out


async def test_bash_takes_the_completion(command_line):
    script = (await command_line("completion", "bash")).out
    ended = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


async def test_check_tells_of_workers_that_a_server_refuses(command_line, server):
    server.service.described.refused_workers.append(pb.RefusedWorker(address="w:1", reason="another model"))
    ended = await command_line("check", "--json", "--target", server.target)
    found = levels(ended.out)
    assert ended.status == 1 and found["target", "ok"] == f"{server.target} serves"
    assert found["worker", "wrong"] == f"w:1 is refused by {server.target}: another model"
    server.service.described = None  # which takes a key
    ended = await command_line("check", "--json", "--target", server.target)
    assert "PYPTO_SERVING_API_KEY" in levels(ended.out)["key", "warn"]


async def test_check_says_what_is_wrong_with_its_target(command_line, dead_target):
    for target, text in ((dead_target, f"no answer from {dead_target}"), ("localhost", "'localhost' is not host:port")):
        ended = await command_line("check", "--json", "--target", target)
        assert ended.status == 1 and levels(ended.out)["target", "wrong"].startswith(text)
