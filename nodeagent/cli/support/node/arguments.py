"""Options that select a command's node and the rules of trial decisions. Each option means the same for every command."""

import argparse
import shlex
from pathlib import Path

from nodeagent.cli.support.named_files import NamedFile, named_path
from nodeagent.cli.support.places import DEFAULT_CONFIG, DEFAULT_SOCKET
from nodeagent.core.model.config import Errata

_CONFIG_HELP = f"the configuration, if no running agent provides it (default: {DEFAULT_CONFIG})"


def add_agent_arguments(parser: argparse.ArgumentParser, config_help: str = _CONFIG_HELP) -> None:
    """Add `--config` and `--socket`, which select the configuration and the socket of this node's agent."""
    parser.add_argument("--config", type=NamedFile, metavar="FILE|-", help=config_help)
    parser.add_argument(
        "--socket", type=named_path, metavar="PATH", help=f"the agent's socket (default: {DEFAULT_SOCKET})"
    )


def add_node_arguments(parser: argparse.ArgumentParser, *, described: bool = False) -> None:
    """Add the options that select the node. Without these options, this node is selected. With `described`, users can also describe a
    machine that need not exist.
    """
    add_agent_arguments(parser)
    add_machine_arguments(parser, described=described)


def add_machine_arguments(parser: argparse.ArgumentParser, *, described: bool = False) -> None:
    """Add the options that select another machine than this one. With `described`, users can also describe a machine."""
    other = parser.add_mutually_exclusive_group()
    other.add_argument(
        "--root",
        type=named_path,
        metavar="DIR",
        help="read a copied root file system instead of this node, with sys/, proc/ and, if present, etc/ and var/lib/nodeagent",
    )
    other.add_argument(
        "--machine",
        type=NamedFile,
        metavar="FILE|-",
        help="read a file from `nodeagent capture` or `nodeagent topology -o json` instead of this node",
    )
    if described:
        other.add_argument(
            "--topology",
            metavar="SPEC",
            help="describe a machine: 2s.2n.8c.2t has 2 sockets of 2 NUMA nodes of 8 cores of 2 threads; "
            "see docs/explain.md",
        )


def add_what_if_arguments(parser: argparse.ArgumentParser, *, scenarios: bool = False) -> None:
    """Add the options for trial decisions, which select the node and the rules. With `scenarios`, the help says that a scenario can name
    the rules as well.
    """
    add_machine_arguments(parser, described=True)
    add_agent_arguments(
        parser,
        f"decide under this configuration (default: the node's own; for a described machine {DEFAULT_CONFIG})",
    )
    parser.add_argument(
        "--empty", action="store_true", help="decide as if the node had no pods, without asking the agent"
    )
    default = "fixed; for a scenario the one it names, or else kubelet-1.36" if scenarios else "fixed"
    parser.add_argument(
        "--errata",
        choices=tuple(item.value for item in Errata),
        help=f"decide like nodeagent (fixed), or like a version of kubelet with its bugs; default: {default}",
    )


def is_copied(options: argparse.Namespace) -> bool:
    """Return whether `--root` names a copied file system, that is, another directory than `/`."""
    return options.root is not None and Path(options.root).resolve() != Path("/")


def is_elsewhere(options: argparse.Namespace) -> bool:
    """Return whether the options select a copied or captured node instead of this node."""
    return options.machine is not None or is_copied(options)


def format_inspect_command(options: argparse.Namespace) -> str:
    """Format the command that shows the pods of the selected node, for a hint."""
    other = [("--root", options.root), ("--machine", options.machine)]
    return shlex.join(["nodeagent", "inspect", *(word for option, value in other if value for word in (option, value))])


def find_own_config(options: argparse.Namespace) -> str:
    """Return the path of the node's own configuration file, on this node or in a copied file system."""
    return f"{(options.root or '').rstrip('/')}{DEFAULT_CONFIG}"
