"""The command line's parser: every command with its flags and examples."""

import argparse

from clients.bench.command import Bench
from clients.cli.batch import Batch
from clients.cli.chat import Chat
from clients.cli.check import Check
from clients.cli.command import EXPLANATION, Command
from clients.cli.completion import Completion
from clients.cli.connection_flags import ADMIN_TARGET, TARGET, add_connection_arguments
from clients.cli.convert import Convert
from clients.cli.describe import Describe
from clients.cli.generate import Generate
from clients.cli.log_level import LogLevel
from clients.cli.operator_commands import Drain, ResetCache, State, Top
from clients.cli.profile import Profile
from clients.cli.serve import Serve
from clients.cli.small_commands import Abort, Detokenize, Health, Models, Server, Tokenize
from clients.cli.verify import Verify
from pypto_serving.process.version import add_version_option, program_name

#: Every command, by what it is for.
COMMANDS: dict[str, tuple[Command, ...]] = {
    "run a service": (Serve(),),
    "ask": (Generate(), Chat(), Batch(), Tokenize(), Detokenize(), Models()),
    "look after a service": (Health(), Server(), State(), Top(), Drain(), ResetCache(), LogLevel(), Abort()),
    "measure": (Bench(), Profile(), Verify()),
    "prepare": (Check(), Describe(), Convert(), Completion()),
}


def command_parser(default_targets: str = TARGET[1], default_admin_targets: str = ADMIN_TARGET[1]) -> argparse.ArgumentParser:
    """The flags of every command; the defaults are comma-separated lists."""
    program = program_name("clients")
    parser = argparse.ArgumentParser(
        prog=program,
        usage=f"{program} COMMAND [options]\n       {program} COMMAND --help",
        description=f"Command line of PyPTO Serving.\n\n{_overview()}",
        epilog=EXPLANATION,
        formatter_class=_OverviewFormatter,
    )
    add_version_option(parser)
    commands = parser.add_subparsers(metavar="COMMAND", required=True, prog=program)
    for command in (command for group in COMMANDS.values() for command in group):
        _add(commands, command, default_admin_targets if command.is_for_operators else default_targets)
    return parser


class _OverviewFormatter(argparse.RawDescriptionHelpFormatter):
    """Leaves the commands to the description, where they stand in groups."""

    def add_argument(self, action: argparse.Action) -> None:
        """Add what is no command."""
        if not isinstance(action, argparse._SubParsersAction):
            super().add_argument(action)


def _overview() -> str:
    """The commands in groups."""
    return "\n\n".join(
        f"{purpose}:\n" + "\n".join(f"  {command.name:14}{command.summary}" for command in group) for purpose, group in COMMANDS.items()
    )


def _add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", command: Command, default_targets: str) -> None:
    added = commands.add_parser(
        command.name,
        help=command.summary,
        description=command.summary[0].upper() + command.summary[1:] + ".",
        epilog=EXPLANATION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_arguments(added)
    if command.examples:
        examples = "\n".join(f"  {added.prog} {example}".rstrip() for example in command.examples)
        added.epilog = f"examples:\n{examples}\n\n{added.epilog}"
    if command.asks_a_server:
        add_connection_arguments(added, default_targets, command.connect_seconds, command.is_for_operators)
    added.set_defaults(run=command.run)
