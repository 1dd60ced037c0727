"""The reference of flags as Markdown. It walks the parsers, since what argparse prints differs from one Python to the next."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from clients.cli.parser import command_parser
from clients.connection import DEFAULT_TARGET
from clients.gateway.config import gateway_parser
from control_plane.edge.flags.programs import control_plane_parser, front_end_parser, scheduler_parser
from pypto_serving.process.health_probe import probe_parser
from worker.config import worker_parser

#: Defaults that depend on the machine.
_MACHINE_DEFAULTS = {"frontends": "half the cores, at most 4; 0 with fewer than four", "threads": "all cores"}


@dataclass(frozen=True)
class Program:
    """A program: how it is started in a checkout and where it is installed, its flags, and the table of TOML files that has them."""

    module: str
    installed: str | None
    parser: argparse.ArgumentParser
    section: str | None = None

    def flags(self) -> set[str]:
        """Every flag, those of its commands too."""
        return {flag for parser in (self.parser, *commands(self.parser).values()) for flag in parser._option_string_actions}


def programs() -> list[Program]:
    """Every program that people start."""
    return [
        Program("control_plane", "pypto-serving-control", control_plane_parser(), "control"),
        Program("control_plane.frontend", "pypto-serving-frontend", front_end_parser(), "frontend"),
        Program("control_plane.scheduler", "pypto-serving-scheduler", scheduler_parser(), "scheduler"),
        Program("worker", "pypto-serving-worker", worker_parser(), "worker"),
        Program("clients.gateway", "pypto-serving-gateway", gateway_parser(), "gateway"),
        Program("clients", "pypto-serving", command_parser(DEFAULT_TARGET)),
        Program("pypto_serving.process.health_probe", None, probe_parser()),
    ]


def flag_page() -> str:
    """The page of all programs."""
    return "\n".join(["# Flags", "", *(line for program in programs() for line in _program(program))])


def commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The commands of a program that has some, by name."""
    found = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found[0].choices) if found else {}


def _program(program: Program) -> Iterator[str]:
    installed = f" Installed it is `{program.installed}`." if program.installed else ""
    yield from (f"## `python -m {program.module}`", "", f"{program.parser.description}{installed}", "")
    if program.section:
        variable = f"PYPTO_SERVING_{program.section.upper()}_"
        yield from (f"In the environment a flag `--a-b` is `{variable}A_B`, in a TOML file `a-b` in the table `[{program.section}]`.", "")
    yield from _groups(program.parser)
    for name, command in commands(program.parser).items():
        yield from (f"### `{name}`", "", str(command.description), "", *_groups(command))


def _groups(parser: argparse.ArgumentParser) -> Iterator[str]:
    rows = [row for group in parser._action_groups for action in group._group_actions if (row := _row(action))]
    if rows:
        yield from ("| flag | |", "|---|---|", *rows, "")


def _row(action: argparse.Action) -> str | None:
    if action.help is argparse.SUPPRESS or isinstance(action, (argparse._HelpAction, argparse._SubParsersAction)):
        return None
    explanation = (action.help or "").removesuffix(" (default: %(default)s)") % {**vars(action), "prog": ""}
    notes = [] if action.default in (None, False, [], argparse.SUPPRESS) or "default" in explanation else [f"default: {_default(action)}"]
    notes += ["required"] * (action.required and bool(action.option_strings))
    notes += ["can be repeated"] * (isinstance(action, argparse._AppendAction) and "repeat" not in explanation)
    return f"| {_names(action)} | {'; '.join([explanation, *notes])} |".replace("<", "&lt;")


def _default(action: argparse.Action) -> str:
    if action.default is True:
        return "on"
    if action.dest in _MACHINE_DEFAULTS:
        return _MACHINE_DEFAULTS[action.dest]
    return f"`{action.default:g}`" if isinstance(action.default, float) else f"`{action.default}`"


def _names(action: argparse.Action) -> str:
    metavar = "\\|".join(map(str, action.choices)) if action.choices else action.metavar or action.dest.upper()
    value = "" if action.nargs == 0 else f" {metavar}"
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    optional = f" [{metavar}]" if action.nargs == "?" else value
    return ", ".join(f"`{name}{optional}`" for name in action.option_strings)
