"""`completion`: the script that lets a shell complete commands and flags."""

import argparse
from importlib.util import find_spec

from clients.cli.command import Command, ExitCode, UsageError

_HELP = """\
Print the script that lets a shell complete commands and flags of `pypto-serving`. Install it once:

  bash  pypto-serving completion bash > ~/.local/share/bash-completion/completions/pypto-serving
  zsh   pypto-serving completion zsh > ~/.zfunc/_pypto-serving   (with `fpath+=~/.zfunc` before `compinit` in ~/.zshrc)
  tcsh  pypto-serving completion tcsh > ~/.pypto-serving.tcsh   (and `source` it in ~/.tcshrc)"""


class Completion(Command):
    """Prints a script."""

    name = "completion"
    summary = "print the script that lets a shell complete commands and flags"
    asks_a_server = False
    examples = ("bash",)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.description = _HELP
        parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="which shell")

    def run(self, arguments: argparse.Namespace) -> int:
        if find_spec("shtab") is None:
            raise UsageError("completion: no package 'shtab' here: pip install 'pypto-serving[client]'")
        import shtab

        from clients.cli.parser import command_parser

        parser = command_parser()
        parser.prog = "pypto-serving"
        print(shtab.complete(parser, arguments.shell))
        return ExitCode.OK
