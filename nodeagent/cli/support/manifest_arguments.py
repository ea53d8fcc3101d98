"""Options of commands that install or remove manifests, and that can wait for the agent."""

import argparse

from nodeagent.cli.support.named_files import NamedFile
from nodeagent.cli.support.numeric_arguments import seconds

DAY_SECONDS = 86_400
SPARE_SECONDS = 20
"""Time, in seconds, that is added to the longest grace period. Killing processes takes time, and so do the agent's turns under load."""


def add_manifests_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument for the paths of manifests."""
    what = "a manifest, - for stdin, or a directory of manifests"
    parser.add_argument("files", nargs="+", type=NamedFile, metavar="FILE|-|DIR", help=what)


def add_wait_arguments(parser: argparse.ArgumentParser, what: str) -> None:
    """Add `--wait` and `--timeout`. `what` completes the sentence "wait until the agent has …"."""
    parser.add_argument("--wait", action="store_true", help=f"wait until the agent has {what}")
    parser.add_argument(
        "--timeout",
        type=seconds(0, DAY_SECONDS),
        metavar="SECONDS",
        help=f"with --wait: longest wait (default: the longest grace period of the pods that end, plus {SPARE_SECONDS} s)",
    )


def check_timeout(options: argparse.Namespace) -> None:
    """Exit with a usage error if `--timeout` is given without `--wait`."""
    if options.timeout is not None and not options.wait:
        options.parser.error(f"--timeout {options.timeout:g} is the longest wait: add --wait")
