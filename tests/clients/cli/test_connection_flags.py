"""Flags and environment of the command line that say what to show to a server."""

from pathlib import Path

import pytest
from fakes.control_plane.inference_service import FakeInferenceService, FakeServer
from fakes.network.certificates import CertificateDirectory

from control_plane.edge.access.keys import KeyInterceptor, watch_keys
from pypto_serving.process.credentials.tls import server_credentials, watch_tls


@pytest.fixture
async def secured(tmp_path: Path):
    certificates = CertificateDirectory(tmp_path)
    certificates.issue("client")
    (tmp_path / "key").write_text("sesame\n")
    interceptors = (KeyInterceptor(watch_keys("keys", tmp_path / "key"), lambda method, code, context: ()),)
    credentials = server_credentials(watch_tls("tls", certificates.issue("server")))
    async with FakeServer(FakeInferenceService(), credentials, interceptors) as server:
        yield server


async def test_flags_name_certificates_and_key(command_line, secured, tmp_path):
    flags = ["--tls-ca", tmp_path / "ca.pem", "--tls-cert", tmp_path / "client.pem", "--tls-key", tmp_path / "client.key"]
    ended = await command_line("models", *map(str, flags), "--api-key-file", str(tmp_path / "key"), target=secured.target)
    assert (ended.status, ended.err) == (0, "") and "fake" in ended.out


@pytest.mark.parametrize(("key", "status"), [("sesame", 0), ("tahini", 1), ("", 1)])
async def test_the_environment_may_hold_the_key(start_process, secured, tmp_path, monkeypatch, key, status):
    monkeypatch.setenv("PYPTO_SERVING_API_KEY", key)
    flags = ["--tls-ca", tmp_path / "ca.pem", "--tls-cert", tmp_path / "client.pem", "--tls-key", tmp_path / "client.key"]
    process = await start_process("models", *map(str, flags), target=secured.target)
    _, err = await process.communicate()
    assert process.returncode == status
    assert (status == 0) is (b"--api-key-file or PYPTO_SERVING_API_KEY names one" not in err)


async def test_plain_text_to_a_tls_port_is_one_line_that_says_so(command_line, secured):
    ended = await command_line("models", "--connect-seconds", "0", target=secured.target)
    line = f"error: {secured.target} cannot be talked to: it hangs up: it may ask for TLS, or for a client's certificate"
    assert (ended.status, ended.err) == (3, line + " (flags: --tls, --tls-ca, --tls-cert, --tls-key)\n")


async def test_where_grpc_may_hide_a_wrong_certificate_that_is_said_too(command_line, dead_target, tmp_path):
    ca = CertificateDirectory(tmp_path).issue("server").ca
    ended = await command_line("models", "--connect-seconds", "0", "--tls-ca", str(ca), target=dead_target)
    assert ended.status == 3 and ended.err.endswith("; or its certificate comes from no authority of --tls-ca\n")


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, ": no such file"), ("", "holds no key"), ("a\nb\n", "holds 2 keys, must be one"), ("zwei Wörter", "line 1: ")],
)
async def test_a_key_file_without_one_key_is_bad_usage(command_line, tmp_path, content, message):
    path = tmp_path / "key"
    if content is not None:
        path.write_text(content)
    ended = await command_line("models", "--api-key-file", str(path), target="127.0.0.1:1")
    assert ended.status == 2 and message in ended.err and "Wörter" not in ended.err


@pytest.mark.parametrize(
    ("target", "message"),
    [("localhost", "'localhost' is not host:port"), ("http://localhost:50051", "leave the scheme out"), ("a:1,b", "'b' is not host:port")],
)
async def test_a_target_without_a_port_is_bad_usage(command_line, target, message):
    ended = await command_line("models", "--target", target)
    assert ended.status == 2 and ended.err.startswith("error: --target: ") and message in ended.err
    assert (await command_line("models", target=target)).err.startswith("error: PYPTO_SERVING_TARGET: ")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("PYPTO_SERVING_TARGT", "a:1", "the environment variable PYPTO_SERVING_TARGT is not known: did you mean PYPTO_SERVING_TARGET?"),
        ("PYPTO_SERVING_COLOUR", "x", "the environment variable PYPTO_SERVING_COLOUR is not known: there are PYPTO_SERVING_ADMIN_TARGET, "),
        ("PYPTO_SERVING_ADMIN_TARGET", "localhost", "PYPTO_SERVING_ADMIN_TARGET: 'localhost' is not host:port"),
        ("PYPTO_SERVING_API_KEY", "zwei Wörter", "PYPTO_SERVING_API_KEY: a key consists of visible ASCII characters"),
    ],
)
async def test_a_variable_that_makes_no_sense_is_named(command_line, dead_target, name, value, message):
    ended = await command_line("drain", environment={"PYPTO_SERVING_ADMIN_TARGET": dead_target, name: value})
    assert ended.status == 2 and ended.err.startswith(f"error: {message}") and "Wörter" not in ended.err


async def test_variables_of_other_programs_and_services_are_let_be(command_line, server):
    others = {"PYPTO_SERVING_WORKER_DTYPE": "float32", "PYPTO_SERVING_API_PORT": "tcp://10.0.0.1:8000", "PYPTO_SERVING_CACHE": "/tmp"}
    assert (await command_line("models", target=server.target, environment=others)).status == 0


async def test_certificates_that_cannot_be_read_are_bad_usage(command_line, tmp_path):
    ended = await command_line("models", "--tls-ca", str(tmp_path / "ca.pem"), target="127.0.0.1:1")
    assert (ended.status, ended.err) == (2, f"error: --tls-ca, --tls-cert, --tls-key: {tmp_path}/ca.pem: no such file\n")
    ended = await command_line("models", "--tls-cert", str(tmp_path / "cert.pem"), target="127.0.0.1:1")
    assert (ended.status, ended.err) == (2, "error: --tls-cert and --tls-key are needed together\n")


async def test_a_host_that_nobody_knows_is_told_as_such(command_line):
    ended = await command_line("models", "--connect-seconds", "0", target="nowhere.invalid:1")
    assert (ended.status, ended.err) == (3, "error: nowhere.invalid:1: no host of that name is known here\n")
