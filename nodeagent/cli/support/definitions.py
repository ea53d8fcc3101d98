"""Definitions of commands and their arguments, extracted from argparse. Completions and manual pages are generated from
these definitions.
"""

import argparse

from msgspec import Struct

Parser = argparse.ArgumentParser


class Argument(Struct, frozen=True):
    """Option with its spellings, or positional argument, which has no spellings."""

    spellings: tuple[str, ...]
    dest: str
    metavar: str
    """Placeholder of the value in help texts. Empty means that the option takes no value."""
    choices: tuple[str, ...]
    help: str | None
    """Help text. None means that the argument is hidden."""
    count: int
    """Number of values that the option takes on the command line."""
    repeats: bool
    takes_the_rest: bool


class Command(Struct, frozen=True):
    name: str
    """Full name of the command as typed, such as `nodeagent config show`."""
    usage: str
    description: str
    epilog: str
    options: tuple[Argument, ...]
    places: tuple[Argument, ...]
    subcommands: tuple["Subcommand", ...]


class Subcommand(Struct, frozen=True):
    name: str
    help: str
    parser: Parser


def extract_command(parser: Parser) -> Command:
    """Extract the definition of a command from its parser."""
    options, places, subcommands = [], [], list[Subcommand]()
    for action in parser._actions:  # noqa: SLF001 - argparse shows its definitions nowhere else
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - the same
            helps = {str(choice.dest): choice.help or "" for choice in action._choices_actions}  # noqa: SLF001 - the same
            subcommands += [Subcommand(name, helps.get(name, ""), made) for name, made in action.choices.items()]
        elif action.option_strings:
            options.append(_extract_argument(parser, action))
        else:
            places.append(_extract_argument(parser, action))
    return Command(
        name=parser.prog,
        usage=" ".join(parser.format_usage().removeprefix("usage: ").split()),
        description=parser.description or "",
        epilog=parser.epilog or "",
        options=tuple(options),
        places=tuple(places),
        subcommands=tuple(subcommands),
    )


def _extract_argument(parser: Parser, action: argparse.Action) -> Argument:
    choices = tuple(str(choice) for choice in action.choices or ())
    shown = " ".join(action.metavar) if isinstance(action.metavar, tuple) else action.metavar
    hidden = action.help == argparse.SUPPRESS
    return Argument(
        spellings=tuple(action.option_strings),
        dest=action.dest,
        metavar="" if action.nargs == 0 else shown or "|".join(choices) or action.dest.upper(),
        choices=choices,
        help=None if hidden else (action.help or "") % {**vars(action), "prog": parser.prog},
        count=action.nargs if isinstance(action.nargs, int) else 1,
        repeats=action.nargs in {"*", "+"},
        takes_the_rest=action.nargs == argparse.REMAINDER,
    )
