"""Options of commands that install or remove manifests and may wait for the agent."""

import argparse

from nodeagent.cli.support.named_files import NamedFile
from nodeagent.cli.support.numeric_arguments import seconds

DAY_SECONDS = 86_400
SPARE_SECONDS = 20
"""Seconds to wait in addition to the grace period: for killing processes, and for turns of the agent, which take longer under load."""


def add_manifests_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument for the paths of manifests."""
    what = "a manifest, - for stdin, or a directory of manifests"
    parser.add_argument("files", nargs="+", type=NamedFile, metavar="FILE|-|DIR", help=what)


def add_wait_arguments(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the options of a command that may wait for the agent."""
    parser.add_argument("--wait", action="store_true", help=f"wait until the agent has {what}")
    parser.add_argument(
        "--timeout",
        type=seconds(0, DAY_SECONDS),
        metavar="SECONDS",
        help=f"with --wait: longest wait (default: the longest grace period of the pods that end, plus {SPARE_SECONDS} s)",
    )


def check_timeout(options: argparse.Namespace) -> None:
    """Raise a usage error for `--timeout` without `--wait`."""
    if options.timeout is not None and not options.wait:
        options.parser.error(f"--timeout {options.timeout:g} is the longest wait: add --wait")
