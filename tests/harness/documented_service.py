"""Runs the commands of the documents against a service of real processes, which stand for the addresses and files that they name."""

import contextlib
import functools
import os
import re
import shlex
import subprocess
import sys
import tomllib
import urllib.parse
from collections.abc import Callable
from pathlib import Path

import grpc
from fakes.network.certificates import CertificateDirectory
from google.protobuf import descriptor_pool, json_format, message_factory
from harness.documentation import ROOT, Snippet
from harness.processes import ServingProcess, control_plane, scheduler, worker

from clients.cli.parser import command_parser
from pypto_serving.inference.v1 import inference_pb2  # noqa: F401  # what grpcurl calls
from scripts.flag_reference import Program, programs

_SECONDS = 100
#: What a target of make needs is there already.
_MADE = [flag for name in ("build/protos.stamp", "build/kernels.stamp") for flag in ("-o", name)]
_SERVING_TARGETS = ("serve-control", "serve-worker", "serve-http")
_PROGRAMS = {program.module: program for program in programs()}
_BY_INSTALLED_NAME = {program.installed: program for program in _PROGRAMS.values() if program.installed}


class DocumentedService(contextlib.ExitStack):
    """A worker, a control plane before it and whatever else a command asks for, each started when the first one does."""

    def __init__(self, model: Path, folder: Path) -> None:
        super().__init__()
        self.model, self.folder = model, folder
        self.certificates = CertificateDirectory(folder / "certificates")
        self._server = self.certificates.issue("server")
        (folder / "keys").write_text("sesame\n")
        (folder / "prompts.jsonl").write_text('{"prompt": "Hello", "max_tokens": 4}\n')

    @functools.cached_property
    def worker(self) -> ServingProcess:
        return self.enter_context(worker(self.model))

    @functools.cached_property
    def control(self) -> ServingProcess:
        return self.enter_context(control_plane(self.model, [self.worker])).wait_until_ready()

    @functools.cached_property
    def locked_control(self) -> ServingProcess:
        flags = ("--tls-cert", str(self._server.cert), "--tls-key", str(self._server.key), "--api-keys-file", str(self.folder / "keys"))
        return self.enter_context(control_plane(self.model, [self.own_worker()], *flags))

    @functools.cached_property
    def scheduler(self) -> ServingProcess:
        return self.enter_context(scheduler(self.model, [self.own_worker()]))

    @functools.cached_property
    def gateway(self) -> ServingProcess:
        return self.enter_context(ServingProcess("clients.gateway", None, "--target", self.control.address, "--port", "0"))

    def own_worker(self) -> ServingProcess:
        """A worker that no other control plane holds."""
        return self.enter_context(worker(self.model))

    def run(self, snippet: Snippet) -> None:
        """Run a command as far as that goes here; raises AssertionError when it fails."""
        words = snippet.words
        names = [" ".join(words[:length]) for length in (3, 2, 1)]
        handler = next((handler for name in names if (handler := HANDLERS.get(name))), None)
        if words[0] in _BY_INSTALLED_NAME:
            handler, words = _program, ["python", "-m", _BY_INSTALLED_NAME[words[0]].module, *words[1:]]
        assert handler, f"{snippet.place}: `{snippet.text}` has no handler in {__file__}"
        handler(self, words)

    def serve(self, module: str, flags: list[str]) -> None:
        """Start a program that serves, with free ports and our files in place of what the flags name, and end it when it does."""
        if not flags:
            return self.call(["-m", module, "--version"])
        flags = self._translated(_PROGRAMS[module], [flag for flag in flags if flag != "..."])
        if "--lease-kubernetes" in flags:
            return self.call(["-m", module, *flags], code=2, says="needs a pod with a service account")
        if "--device" in flags and (device := flags[flags.index("--device") + 1]) in ("cuda", "npu"):
            return self.call(["-m", module, *flags], code=2, says=f"--device {device}")
        with ServingProcess(module, None, *flags) as process:
            assert process.start_event
        return None

    def call(self, arguments: list[str], code: int = 0, says: str = "", **environment: str) -> None:
        """Run Python with these arguments to its end."""
        command = [sys.executable, *arguments]
        environment = {**os.environ, "PYPTO_SERVING_TARGET": self.control.address, **environment} if environment else dict(os.environ)
        end = subprocess.run(
            command, cwd=self.folder, env=environment, input="Hello\n", capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        assert end.returncode == code and says in end.stderr, f"{command}: {end.returncode}\n{end.stdout}\n{end.stderr}"

    def _translated(self, program: Program, flags: list[str]) -> list[str]:
        """The flags, with values of ours where theirs name what is not here; and free ports."""
        defaults = {"--metrics-port": "0", "--announce-port": "0", "--num-pages": "64"} | self._more_defaults(program, flags)
        known = program.flags()
        flags = flags + [word for flag, value in defaults.items() if flag in known and flag not in flags for word in (flag, value)]
        ours = self._values()
        return [ours[flag]() if flag in ours else word for flag, word in zip(["", *flags], flags, strict=False)]

    def _more_defaults(self, program: Program, flags: list[str]) -> dict[str, str]:
        port = "--frontend-port" if program.module == "control_plane.scheduler" else "--port"
        more = {port: "0", "--model": "DIR", "--threads": "1"}
        if program.module == "control_plane":
            more["--frontends"] = "0"
        return more | ({"--link-tls-cert": "", "--link-tls-key": ""} if "--link-tls-ca" in flags else {})

    def _values(self) -> dict[str, Callable[[], str]]:
        return {
            "--model": lambda: str(self.model),
            "--target": lambda: self.control.address,
            "--worker": lambda: self.worker.address,
            "--scheduler": lambda: str(self.scheduler.start_event["frontend"]),
            "--announce": lambda: str(self.control.start_event["announce"]),
            "--lease-file": lambda: str(self.folder / "serving.lease"),
            "--port": lambda: "0",
            "--metrics-port": lambda: "0",
            **dict.fromkeys(("--host", "--frontend-host"), lambda: "127.0.0.1"),
            **dict.fromkeys(("--tls-ca", "--link-tls-ca"), lambda: str(self.certificates.ca)),
            **dict.fromkeys(("--tls-cert", "--link-tls-cert"), lambda: str(self._server.cert)),
            **dict.fromkeys(("--tls-key", "--link-tls-key"), lambda: str(self._server.key)),
            "--api-keys-file": lambda: str(self.folder / "keys"),
        }


def _make(service: DocumentedService, words: list[str]) -> None:
    """What it would run: a server is started, the rest is what CI runs."""
    target, *variables = words[1:]
    command = ["make", "--dry-run", *_MADE, "-o", f"{Path(sys.prefix)}/.installed", f"VENV={sys.prefix}", target, *variables]
    end = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert end.returncode == 0, end.stderr
    if target in _SERVING_TARGETS:
        found = re.search(r"exec \S+ -m (\S+) (.*)", end.stdout)
        assert found, end.stdout
        service.serve(found[1], shlex.split(found[2]))


def _program(service: DocumentedService, words: list[str]) -> None:
    """Any of our programs."""
    module, flags = words[2], words[3:]
    if module == "clients":
        _client(service, flags)
    elif module == "pypto_serving.process.health_probe":
        service.call(["-m", module, service.control.address])
    else:
        service.serve(module, flags)


def _client(service: DocumentedService, flags: list[str]) -> None:
    if not flags:  # the program's name
        return None
    if flags[0] in ("serve", "profile", "check", "drain", "log-level"):  # tests in tests/clients/cli run them, on services of their own
        assert command_parser("").parse_args(flags)
        return None
    if flags[:1] in (["generate"], ["chat"]):
        flags = [*flags, "--max-tokens", "8"]
    if flags[:1] == ["bench"]:
        small = {"--requests": "8", "--rate": "40,80", "--prompt-tokens": "8", "--max-tokens": "4"}
        flags = [small.get(before, word) for before, word in zip(["", *flags], flags, strict=False)]
        flags += [word for name in ("--requests", "--prompt-tokens", "--max-tokens") if name not in flags for word in (name, small[name])]
    if "--tls-ca" not in flags:
        return service.call(["-m", "clients", *flags], PYPTO_SERVING_TARGET=service.control.address)
    locked = {"--target": service.locked_control.address, "--tls-ca": str(service.certificates.ca)}
    flags = [locked.get(before, word) for before, word in zip(["", *flags], flags, strict=False)]
    return service.call(["-m", "clients", *flags], PYPTO_SERVING_API_KEY="sesame")


def _with_help(service: DocumentedService, words: list[str]) -> None:
    """Something that takes long: it starts, and knows the flags."""
    end = subprocess.run([sys.executable, "-m", words[2], "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    missing = [word for word in words[3:] if word.startswith("--") and word not in end.stdout]
    assert not missing, f"{words[2]} has no {missing}"


def _pytest(service: DocumentedService, words: list[str]) -> None:
    """It finds tests."""
    options = dict(zip(words[3::2], words[4::2], strict=False))
    assert "-k" not in options or any(f"test_{options['-k']}" in path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert "-m" not in options or f'"{options["-m"]}: ' in (ROOT / "pyproject.toml").read_text()
    assert all((ROOT / word).exists() for word in words[3:] if word.startswith("tests/"))


def _grpcurl(service: DocumentedService, words: list[str]) -> None:
    """The same call by gRPC's own means."""
    method = words[-1]
    name, _, call = method.rpartition("/")
    described = descriptor_pool.Default().FindServiceByName(name).methods_by_name[call]
    asked, answered = (message_factory.GetMessageClass(kind) for kind in (described.input_type, described.output_type))
    request = json_format.Parse(words[words.index("-d") + 1], asked())
    with grpc.insecure_channel(service.control.address) as channel:
        dial = channel.unary_stream if described.server_streaming else channel.unary_unary
        answer = dial(f"/{method}", asked.SerializeToString, answered.FromString)(request, timeout=_SECONDS)
        assert list(answer) if described.server_streaming else answer


def _curl(service: DocumentedService, words: list[str]) -> None:
    ours = {8000: lambda: service.gateway.start_event["address"], 9400: lambda: service.control.start_event["metrics"]}
    url = next(word for word in words if word.startswith("http"))
    parts = urllib.parse.urlsplit(url)
    assert parts.port in ours, url
    words = [parts._replace(netloc=ours[parts.port]()).geturl() if word == url else word for word in words]
    end = subprocess.run(
        [*words, "--silent", "--show-error", "--fail-with-body"], capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    assert end.returncode == 0, end.stdout + end.stderr


def _pip_install(service: DocumentedService, words: list[str]) -> None:
    """What tests/packaging installs for real."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for package in words[2:]:
        found = re.fullmatch(r"(?:\.|pypto-serving)(?:\[([\w,-]+)\])?", package)
        assert found and set((found[1] or "client").split(",")) <= extras.keys(), package


def _docker(service: DocumentedService, words: list[str]) -> None:
    """What tests/deploy reads."""
    assert (ROOT / words[words.index("-f") + 1]).is_file()


def _kubectl_apply(service: DocumentedService, words: list[str]) -> None:
    assert all((ROOT / folder / "kustomization.yaml").is_file() for folder in words[3:])


def _kubectl(service: DocumentedService, words: list[str]) -> None:
    """The lease is the one that the schedulers are told of."""
    namespace, name = words[words.index("-n") + 1], words[-1]
    assert namespace == "pypto-serving" and f"$(POD_NAMESPACE)/{name}" in (ROOT / "deploy/kubernetes/base/scheduler.yaml").read_text()


def _activate(service: DocumentedService, words: list[str]) -> None:
    assert "VENV ?= .venv\n" in (ROOT / "Makefile").read_text() and words[1:] == [".venv/bin/activate"]


def _pre_commit(service: DocumentedService, words: list[str]) -> None:
    assert (ROOT / ".pre-commit-config.yaml").is_file()


Handler = Callable[[DocumentedService, list[str]], None]
HANDLERS: dict[str, Handler] = {
    "make": _make,
    "curl": _curl,
    "grpcurl": _grpcurl,
    ".": _activate,
    "pip install": _pip_install,
    "pre-commit install": _pre_commit,
    "docker build": _docker,
    "docker compose": _docker,
    "kubectl apply": _kubectl_apply,
    "kubectl -n": _kubectl,
    "python -m pytest": _pytest,
    "python -m kernels.cpu.build": _with_help,
    **{f"python -m {module}": _program for module in _PROGRAMS},
    **{f"python -m benchmarks.{path.stem}": _with_help for path in (ROOT / "benchmarks").glob("bench_*.py")},
}
