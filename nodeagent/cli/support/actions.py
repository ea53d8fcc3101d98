"""Subcommands of a command, such as `nodeagent config show`."""

import argparse
from collections.abc import Mapping

from nodeagent.cli.support.help_text import HelpText


def add_actions(
    parser: argparse.ArgumentParser, helps: Mapping[str, str], *, epilog: str
) -> dict[str, argparse.ArgumentParser]:
    """Add subcommands (actions) to a command's parser, with their help texts and a common epilog. Return their parsers by name."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    made = {
        name: actions.add_parser(
            name, help=text, description=f"{text[:1].upper()}{text[1:]}.", formatter_class=HelpText
        )
        for name, text in helps.items()
    }
    for one in (parser, *made.values()):
        one.epilog = epilog
        one.set_defaults(parser=one)
    return made
