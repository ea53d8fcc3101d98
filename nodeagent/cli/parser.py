"""Commands and their argument parser. The module of a command is imported only if the user runs this command."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from nodeagent import __version__
from nodeagent.cli.support.exit_status import EXIT_USAGE
from nodeagent.cli.support.help_text import HelpText, find_documents
from nodeagent.cli.support.standard_streams import write_error
from nodeagent.errors import printable
from nodeagent.lean_imports import without

COMMANDS = {
    "run": "run the agent (what nodeagent.service does)",
    "inspect": "show pods with their CPUs and memory, and every difference from the allocated values",
    "interference": "count how often and how long other tasks and interrupts run on exclusive CPUs",
    "probe": "show on which NUMA nodes the memory of pods is, and measure the latency of their CPUs",
    "topology": "draw the machine, or print it for other tools",
    "capture": "save the node to one file without secrets, for --machine of other commands, tests and bug reports",
    "fleet": "show several nodes at once: their pods, the room for more pods, and differences between the nodes",
    "check": "check whether this node is fit for pinning, and suggest fixes",
    "config": "validate a configuration, show it in full, or migrate a configuration of kubelet",
    "completion": "print a completion script for bash, zsh or fish, with names of pods and containers",
    "exec": "run a command in a container's cgroup",
    "cpus": "print the CPUs or memory nodes of a container in the form that other tools read",
    "job": "run a command with its own CPUs and memory, which are released when the command ends",
    "queue": "list running jobs, waiting jobs and reservations",
    "reserve": "keep CPUs and memory free for the jobs of one user, from one time to another",
    "report": "compare reports of runs, and rank the differences",
    "pin": "give a systemd service, scope or slice its own CPUs and memory nodes",
    "unpin": "end the pinning of a systemd unit, and restore its previous CPUs",
    "apply": "install manifests, unless one of their pods would be refused",
    "diff": "show what manifests would change: which pods would restart, and on which CPUs they would run",
    "delete": "remove manifests from their directory, which ends their pods",
    "retry": "decide again on a refused pod",
    "release": "end pods and release their CPUs and memory, without removing their manifests",
    "checkpoint": "verify a state file of nodeagent or kubelet, show it, or convert it to another version",
    "explain": "explain why a pod was admitted or refused, step by step, and show the changes that would admit it",
    "simulate": "try decisions on pods, or replay pod events, as the agent or kubelet 1.36 decides",
}
"""Help text of each command. The module nodeagent.cli.commands.NAME defines the command's `add_arguments` and `run`."""


class CommandParser(argparse.ArgumentParser):
    """Argument parser whose errors contain a next step."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"nodeagent: {printable(message)}\nhint: {self.prog} --help lists the arguments\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Check that a value is one of the allowed choices. The error suggests the most similar choice instead of listing all choices."""
        if action.choices is not None and value not in action.choices:
            from nodeagent.formats.syntax.fields import suggest_nearest

            choices = [str(choice) for choice in action.choices]
            meant = suggest_nearest(str(value), choices) or f", must be one of {', '.join(choices)}"
            raise argparse.ArgumentError(action, f"there is no '{value}'{meant}")

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """Report unknown arguments as an error that suggests similar options, and exit."""
        from nodeagent.formats.syntax.fields import suggest_nearest

        options = [spelling for action in self._actions for spelling in action.option_strings]
        meant = [suggest_nearest(word.partition("=")[0], options) for word in words if word.startswith("--")]
        self.error(f"unrecognized arguments: {' '.join(words)}{next(filter(None, meant), '')}")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write a message. If writing to stdout fails, raise the error, which argparse would ignore."""
        if file is sys.stdout:
            file.write(message)
        else:
            write_error(message)


def build_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of all commands. Only the command named in `words` gets its arguments, because adding them takes time."""
    return build_parsers(words)[0]


def build_parsers(words: Sequence[str]) -> tuple[CommandParser, dict[str, CommandParser]]:
    """Return the parser of all commands, and the parser of each command by name. Only the command named in `words` gets its arguments."""
    parser = CommandParser(
        prog="nodeagent",
        description="Pins pods to whole CPUs close to their memory.",
        formatter_class=HelpText,
        epilog=f"documents and examples: {find_documents()}\nmore on one command: nodeagent COMMAND --help\nnext: nodeagent inspect",
    )
    parser.add_argument("--version", action="version", version=f"nodeagent {__version__}")
    first = words[0] if words else None
    # without a given name, argparse would compute the name with a formatter, which looks up the terminal's width
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, prog=parser.prog)
    known = {
        name: commands.add_parser(
            name, help=text, description=text[:1].upper() + text[1:] + ".", formatter_class=HelpText
        )
        for name, text in COMMANDS.items()
        if name == first or first not in COMMANDS
    }
    name = next((word for word in words if not word.startswith("-")), None)
    if name in known:
        # msgspec can use `typing` of Python 3.11 instead of typing_extensions, which takes longer to load.
        with without("typing_extensions"):
            importlib.import_module("msgspec")
        importlib.import_module(f"nodeagent.cli.commands.{name}").add_arguments(known[name])
    return parser, known
