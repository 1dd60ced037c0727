"""`check`: what is wrong with this machine, a model, certificates and versions, one line each."""

import argparse
import importlib.metadata
import json
import os
import platform
import resource
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from clients.cli.command import Command, ExitCode
from clients.cli.describe import free_bytes, size
from clients.cli.explanation import explanation
from clients.cli.model_summary import ModelUnreadable, summarize
from pypto_serving.process.address import require_target

_WORKER_SECONDS = 120.0
_MIN_OPEN_FILES = 4096
_EXPIRES_SOON_DAYS = 14
#: A package of each extra by which it is told whether that is installed.
_EXTRAS = {"control-plane": "tokenizers", "worker": "torch", "client": "rich", "gateway": "fastapi"}
_PORTS = {50051: "clients", 50055: "operators", 50061: "the worker", 8000: "OpenAI's API", 9400: "metrics", 9401: "the worker's metrics"}


class Finding(NamedTuple):
    """A line: ok, warn or wrong, of what, and what to do."""

    level: str
    subject: str
    text: str


class Check(Command):
    """Prints a line for each thing looked at; fails if something is wrong."""

    name = "check"
    summary = "say what is wrong with this machine, a model, certificates and versions"
    asks_a_server = False
    examples = ("--model ~/models/Qwen3-0.6B", "--tls-cert server.pem --tls-key server.key --tls-ca ca.pem --target 10.0.0.5:50051")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--model", type=Path, metavar="DIR", help="a model directory")
        parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="a PEM certificate")
        parser.add_argument("--tls-key", type=Path, metavar="FILE", help="its PEM key")
        parser.add_argument("--tls-ca", type=Path, metavar="FILE", help="PEM certificates of an authority")
        parser.add_argument("--target", metavar="HOST:PORT", help="a control plane, in plain text unless --tls-ca is given")
        parser.add_argument("--json", action="store_true", help="one JSON object per line")

    def run(self, arguments: argparse.Namespace) -> int:
        is_wrong = False
        for finding in _findings(arguments):
            is_wrong |= finding.level == "wrong"
            print(json.dumps(finding._asdict()) if arguments.json else f"{finding.level:6}{finding.subject:14}{finding.text}", flush=True)
        return ExitCode.FAILED if is_wrong else ExitCode.OK


def _findings(arguments: argparse.Namespace) -> Iterator[Finding]:
    yield from _machine()
    yield from _versions()
    yield from _ports()
    if find_spec("torch"):
        yield from _worker(arguments.model)
    if arguments.model:
        yield _model(arguments.model.expanduser())
        yield from _text_files(arguments.model.expanduser())
    yield from _certificates(arguments)
    if arguments.target:
        yield from _target(arguments)


def _machine() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Finding("ok" if cores > 1 else "warn", "cores", f"{cores}" + ("" if cores > 1 else ": planes and clients share it"))
    free = free_bytes()
    few = ": more than a small model does not fit" if free < 2 << 30 else ""
    yield Finding("warn" if few else "ok", "memory", f"{size(free)} free{few}")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_few = hard != resource.RLIM_INFINITY and hard < _MIN_OPEN_FILES
    way_out = f": raise it to {_MIN_OPEN_FILES} (LimitNOFILE of systemd, ulimit -Hn), or connections fail under load" if is_few else ""
    yield Finding("warn" if is_few else "ok", "open files", f"at most {'any number' if hard == resource.RLIM_INFINITY else hard}{way_out}")
    yield from _huge_pages()


def _huge_pages() -> Iterator[Finding]:
    try:
        setting = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:  # not Linux, or not shown to a container
        return
    chosen = setting.partition("[")[2].partition("]")[0]
    way_out = ": `madvise` or `always` there spares lookups of addresses in weights and KV cache" if chosen == "never" else ""
    yield Finding("warn" if way_out else "ok", "huge pages", f"{chosen}{way_out}")


def _versions() -> Iterator[Finding]:
    version = platform.python_version()
    yield Finding("ok" if sys.version_info >= (3, 11) else "wrong", "python", version)
    installed = [extra for extra, package in _EXTRAS.items() if find_spec(package)]
    missing = [extra for extra in _EXTRAS if extra not in installed]
    text = f"installed: {', '.join(installed) or 'none'}"
    if missing:
        text += f"; what is not, `pip install 'pypto-serving[{','.join(missing)}]'` brings"
    yield Finding("warn" if missing else "ok", "extras", text)
    yield from _requirements()


def _requirements() -> Iterator[Finding]:
    """Packages that are not of the version that we ask for, in what is installed of us: some extras ask for other versions than others."""
    try:
        from packaging.requirements import Requirement

        wanted = [Requirement(text) for text in importlib.metadata.requires("pypto-serving") or ()]
        extras = importlib.metadata.metadata("pypto-serving").get_all("Provides-Extra") or []
    except (ImportError, importlib.metadata.PackageNotFoundError):
        yield Finding(
            "warn", "versions", "not compared: neither an installed pypto-serving nor the package `packaging` says what is needed"
        )
        return
    parts = [[each for each in wanted if each.marker is None or each.marker.evaluate({"extra": extra})] for extra in ("", *extras)]
    installed = {each for part in parts if all(_installed_version(each.name) for each in part) for each in part}
    num_good = 0
    for requirement in sorted(installed, key=str):
        found = _installed_version(requirement.name) or ""
        if requirement.specifier.contains(found.partition("+")[0], prereleases=True):
            num_good += 1
        else:
            yield Finding(
                "wrong", "versions", f"{requirement.name} is {found}, needed is {requirement.specifier}: install with constraints.txt"
            )
    yield Finding("ok", "versions", f"{num_good} packages are as needed")


def _installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _ports() -> Iterator[Finding]:
    taken = []
    for port, purpose in _PORTS.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                taken.append(f"{port} ({purpose})")
    text = f"taken: {', '.join(taken)}; a service that runs already, or choose others by flags" if taken else "the usual ones are free"
    yield Finding("warn" if taken else "ok", "ports", text)


def _worker(model: Path | None) -> Iterator[Finding]:
    """What only a worker's packages know: torch, devices, kernels, and whether it serves the architecture."""
    command = [sys.executable, "-m", "worker.machine_check", *([str(model.expanduser())] if model else [])]
    try:
        end = subprocess.run(command, capture_output=True, text=True, timeout=_WORKER_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        yield Finding("wrong", "worker", f"did not answer within {_WORKER_SECONDS:.0f} s")
        return
    for line in end.stdout.splitlines():
        yield Finding(*json.loads(line))
    if end.returncode:
        yield Finding("wrong", "worker", (end.stderr.strip().splitlines() or [f"exit code {end.returncode}"])[-1])


def _model(directory: Path) -> Finding:
    try:
        summary = summarize(directory)
    except ModelUnreadable as error:
        return Finding("wrong", "model", str(error))
    needed, free = summary.loaded_bytes(16), free_bytes()
    text = f"{summary.architecture}, {summary.num_parameters:,} parameters, {size(needed)} in bfloat16"
    if needed > free:
        return Finding(
            "wrong", "model", f"{text}: only {size(free)} of memory are free here; --quantize int8 or int4 halves and quarters it"
        )
    return Finding("ok", "model", text)


def _text_files(directory: Path) -> Iterator[Finding]:
    if not directory.is_dir():
        return
    if not (directory / "tokenizer.json").is_file():
        yield Finding("wrong", "tokenizer", f"{directory / 'tokenizer.json'}: not there; copy it from where the model comes from")
        return
    yield Finding("ok", "tokenizer", "tokenizer.json is there")
    settings = directory / "tokenizer_config.json"
    has_template = (directory / "chat_template.jinja").is_file() or (
        settings.is_file() and '"chat_template"' in settings.read_text(errors="replace")
    )
    text = "is there" if has_template else "none: requests with messages are refused; --chat-template of the control plane names one"
    yield Finding("ok" if has_template else "warn", "chat template", text)


def _certificates(arguments: argparse.Namespace) -> Iterator[Finding]:
    from pypto_serving.process.credentials.files import TlsFiles
    from pypto_serving.process.credentials.tls import watch_tls
    from pypto_serving.process.start_up import StartUpError

    files = TlsFiles(arguments.tls_cert, arguments.tls_key, arguments.tls_ca)
    if files == TlsFiles():
        return
    try:
        watch_tls("tls", files)
    except StartUpError as error:
        yield Finding("wrong", "certificate", str(error))
        return
    for flag, path in (("--tls-cert", arguments.tls_cert), ("--tls-ca", arguments.tls_ca)):
        if path is not None:
            yield _certificate(flag, path)


def _certificate(flag: str, path: Path) -> Finding:
    """When it expires, and for whom it is."""
    try:
        shown = ssl._ssl._test_decode_cert(str(path))  # type: ignore[attr-defined]  # what the standard library has to read one
    except ssl.SSLError as error:
        return Finding("wrong", "certificate", f"{flag} {path}: holds no PEM certificate ({error})")
    seconds = ssl.cert_time_to_seconds(shown["notAfter"]) - time.time()
    names = ", ".join(value for _, value in shown.get("subjectAltName", ())) or "no host"
    text = f"{flag} {path}: for {names}, until {shown['notAfter']}"
    if seconds < 0:
        return Finding("wrong", "certificate", f"{text}: it has expired")
    if ssl.cert_time_to_seconds(shown["notBefore"]) > time.time():
        return Finding("wrong", "certificate", f"{text}: it is not valid before {shown['notBefore']}")
    return Finding("warn" if seconds < _EXPIRES_SOON_DAYS * 86400 else "ok", "certificate", text)


def _target(arguments: argparse.Namespace) -> Iterator[Finding]:
    from clients.client import Client
    from clients.connection import Credentials
    from clients.errors import ServingError

    credentials = Credentials(tls_ca=arguments.tls_ca, api_key=arguments.default_api_key)
    try:
        require_target(arguments.target)
        with Client(arguments.target, connect_seconds=3.0, credentials=credentials) as client:
            if client.is_serving():
                yield Finding("ok", "target", f"{arguments.target} serves")
            else:
                yield Finding("wrong", "target", f"{arguments.target} answers, and does not serve: `health` says why")
            for worker in client.server().refused_workers:
                yield Finding("wrong", "worker", f"{worker.address} is refused by {arguments.target}: {worker.reason}")
    except ValueError as error:
        yield Finding("wrong", "target", str(error))
    except ServingError as error:
        if error.code.name == "UNAUTHENTICATED":  # of health nobody is asked for a key
            yield Finding("warn", "key", f"{arguments.target} asks for one: PYPTO_SERVING_API_KEY gives it, to hear more")
            return
        yield Finding("wrong", "target", explanation(error, [arguments.target], arguments))
