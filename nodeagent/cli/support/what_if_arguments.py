"""The options for the node and the rules that decisions are tried out with. what_if_source.py reads them."""

import argparse

from nodeagent.cli.support.named_files import NamedFile, named_path
from nodeagent.cli.support.places import DEFAULT_CONFIG, DEFAULT_SOCKET
from nodeagent.core.model.config import Errata


def add_what_if_arguments(parser: argparse.ArgumentParser, *, scenarios: bool = False) -> None:
    """Add the options for the node and the rules; `scenarios`: for scenarios, too, which may name rules themselves."""
    machine = parser.add_mutually_exclusive_group()
    machine.add_argument(
        "--root",
        type=named_path,
        metavar="DIR",
        help="read a copied root file system instead of this node, with its pods if it has any",
    )
    machine.add_argument(
        "--machine",
        type=NamedFile,
        metavar="FILE|-",
        help="read a file from `nodeagent capture`, with its pods, or from `nodeagent topology -o json` instead of this node",
    )
    machine.add_argument(
        "--topology",
        metavar="SPEC",
        help="describe a machine: 2s.2n.8c.2t has 2 sockets of 2 NUMA nodes of 8 cores of 2 threads; see docs/explain.md",
    )
    parser.add_argument(
        "--config",
        type=NamedFile,
        metavar="FILE|-",
        help=f"decide under this configuration (default: the node's own; for a described machine {DEFAULT_CONFIG})",
    )
    parser.add_argument(
        "--socket", type=named_path, metavar="PATH", help=f"the agent's socket (default: {DEFAULT_SOCKET})"
    )
    parser.add_argument("--empty", action="store_true", help="as if the node had no pods; asks no agent")
    default = "fixed; for a scenario the one it names, or else kubelet-1.36" if scenarios else "fixed"
    parser.add_argument(
        "--errata",
        choices=tuple(item.value for item in Errata),
        help=f"whose decisions: nodeagent's (fixed), or kubelet's with its bugs (kubelet-1.36); default: {default}",
    )
