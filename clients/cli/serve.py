"""`serve`: a whole service on this machine."""

import argparse
import asyncio
import shlex
import subprocess
import sys
from pathlib import Path

from clients.cli.command import Command, UsageError
from pypto_serving.process.argument_types import between, port
from pypto_serving.process.options import add_log_options

_DESCRIPTION = """\
Start a service on this machine: a control plane, workers, and OpenAI's API over HTTP. They are processes of their own with one log;
one that dies is started again. A line on standard output says when it serves, and where. Ctrl-C lets running requests finish and ends
all of them, a second one ends them at once; they also end when this process is killed.

Every flag of these processes can be given in --control-args, --worker-args and --gateway-args, or in the environment (such as
PYPTO_SERVING_WORKER_DTYPE). `python -m control_plane --help`, `python -m worker --help` and `python -m clients.gateway --help` list
them."""
_NO_MODEL = (
    "--model: name a directory with config.json, *.safetensors and tokenizer.json, as Hugging Face has them; "
    "`pypto-serving convert` makes one of a GGUF file"
)
_DEMO_MODEL = Path(__file__).parents[2] / "scripts" / "prepare_demo_model.py"


class Serve(Command):
    """Runs the processes of a service until a signal comes."""

    name = "serve"
    summary = "start a control plane, workers and a gateway on this machine"
    asks_a_server = False
    examples = (
        "--model ~/models/Qwen3-0.6B",
        "--model ~/models/Qwen3-8B --device cuda --workers 2 --host 0.0.0.0",
        "--model ~/models/Qwen3-0.6B --device cpu --worker-args='--quantize int8' --control-args='--frontends 2'",
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.usage = f"{parser.prog} --model DIR [options]"
        parser.description = _DESCRIPTION
        parser.add_argument("--model", metavar="DIR", help="Hugging Face directory of the model; in a checkout the demo model if left out")
        parser.add_argument("--device", choices=("auto", "npu", "cuda", "cpu", "null"), default="auto", help="of the workers (%(default)s)")
        parser.add_argument("--workers", type=between(1, 64), default=1, metavar="N", help="number of workers (%(default)s)")
        parser.add_argument("--no-gateway", dest="gateway", action="store_false", help="gRPC alone, without OpenAI's API")
        network = parser.add_argument_group("network")
        network.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
        network.add_argument("--port", type=port, default=50051, metavar="PORT", help="gRPC, for clients; 0: any free one (%(default)s)")
        network.add_argument("--http-port", type=between(1, 65535), default=8000, metavar="PORT", help="OpenAI's API (%(default)s)")
        network.add_argument("--admin-port", type=between(1, 65535), default=50055, metavar="PORT", help="operators (%(default)s)")
        network.add_argument("--metrics-port", type=between(1, 65535), default=9400, metavar="PORT", help="Prometheus (%(default)s)")
        more = parser.add_argument_group("flags of the processes", "quoted, with = before them: --worker-args='--max-lanes 64'")
        for program in ("control", "worker", "gateway"):
            more.add_argument(f"--{program}-args", type=_words, default=[], metavar="ARGS", help=f"of the {program}")
        add_log_options(parser.add_argument_group("log"))

    def run(self, arguments: argparse.Namespace) -> int:
        from clients.serve.plan import has_gateway, plan
        from clients.serve.service import Service
        from pypto_serving.process import logs

        model = _model(arguments.model)
        if arguments.gateway and not has_gateway():
            print("serve: no OpenAI API without the gateway's packages: pip install 'pypto-serving[gateway]'", file=sys.stderr)
            arguments.gateway = False
        logs.configure(arguments.log_format, arguments.log_level)

        async def serve() -> int:
            return await Service(plan(arguments, model)).run()

        return asyncio.run(serve())


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None


def _model(given: str | None) -> str:
    if given is not None:
        if not Path(given).is_dir():
            raise UsageError(f"--model: {given} is no directory")
        return given
    if not _DEMO_MODEL.is_file():
        raise UsageError(_NO_MODEL)
    found = subprocess.run([sys.executable, str(_DEMO_MODEL)], stdout=subprocess.PIPE, text=True, check=False)
    if found.returncode:
        raise UsageError(_NO_MODEL)
    return found.stdout.strip()
