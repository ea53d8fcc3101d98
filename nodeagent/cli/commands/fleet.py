"""`nodeagent fleet`: shows the pods of several nodes, how many copies of pods would fit on each node, and the differences between nodes.
Nodes are read from captures or over ssh.
"""

import argparse
import sys
from collections.abc import Sequence

from nodeagent.cli.support.actions import add_actions
from nodeagent.cli.support.colour import text_width
from nodeagent.cli.support.documents import Document, add_output_argument, render_document
from nodeagent.cli.support.exit_status import EXIT_ERROR, EXIT_REFUSED, EXIT_WRONG, NO_FAIL_HELP, VERDICT_STATUSES
from nodeagent.cli.support.named_files import NamedFile
from nodeagent.cli.support.numeric_arguments import seconds, whole_number
from nodeagent.tools.fleet.nodes import UnreadNode
from nodeagent.tools.fleet.reached_nodes import CAPTURE, read_nodes
from nodeagent.tools.fleet.text import render_capacity, render_difference, render_inspection

_EPILOG = """\
exit status: 0: done, and every node is as it should be; 2: something is wrong on a node, or nodes differ; 3: no agent answers on a node;
4: the pods fit on no node; 1: a node could not be read; 64: wrong arguments

examples:
  nodeagent fleet inspect node01.json node02.json
  nodeagent fleet inspect node01 node02 --remote 'sudo -n nodeagent capture'
  nodeagent fleet inspect node01 node02 -o json | jq -r '.pods[] | select(.phase == "Refused") | .node'
  nodeagent fleet capacity -f pod.yaml captures/*.json
  nodeagent fleet diff captures/*.json
  nodeagent fleet diff admin@node01 admin@node02 --parallel 20 --timeout 5

An argument is a file if this file exists, or if it has a slash or ends in .json. Otherwise it is a host, and `ssh HOST nodeagent capture`
is run with your ssh configuration and keys, without asking for a password. A node that can't be read is named on stderr, and delays no
other. Changes nothing on the nodes. docs/how-to/fleet.md (nodeagent --help says where) has more.
next: nodeagent inspect --machine FILE, nodeagent explain -f pod.yaml --machine FILE"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    helps = {
        "inspect": "show the pods of all nodes: a line for each node and each pod",
        "capacity": "show on which nodes and CPUs pods would fit, and how many copies of them",
        "diff": "show the differences between nodes that should be alike: machines, kernels, configurations",
    }
    made = add_actions(parser, helps, epilog=_EPILOG)
    for action in made.values():
        action.add_argument(
            "nodes", nargs="+", type=NamedFile, metavar="FILE|-|HOST", help="a file from `nodeagent capture`, or a host"
        )
        add_output_argument(action)
        action.add_argument(
            "--remote", metavar="COMMAND", default=CAPTURE, help=f"command to run on hosts (default: {CAPTURE})"
        )
        action.add_argument(
            "--timeout",
            type=seconds(1, 3600),
            metavar="SECONDS",
            default=30,
            help="longest wait for the complete answer of a host (default: 30)",
        )
        action.add_argument(
            "--parallel", type=whole_number, metavar="N", default=8, help="number of hosts to ask at once (default: 8)"
        )
        action.set_defaults(config=None)
    made["inspect"].add_argument("--no-fail", action="store_true", help=NO_FAIL_HELP)
    made["capacity"].add_argument(
        "-f",
        "--file",
        dest="manifests",
        action="append",
        required=True,
        type=NamedFile,
        metavar="FILE|-|DIR",
        help="a manifest, - for stdin, or a directory of manifests; can be repeated; all pods of the manifests together are one copy",
    )
    made["capacity"].add_argument(
        "--config", type=NamedFile, metavar="FILE|-", help="configuration for nodes whose file has no configuration"
    )


def run(options: argparse.Namespace) -> int:
    """Print the chosen view of the nodes, and report the nodes that could not be read.

    Raises:
        NodeAgentError: the pods can't be read.
    """
    match options.action:
        case "inspect":
            return _inspect(options)
        case "capacity":
            return _capacity(options)
        case _:
            return _diff(options)


def _inspect(options: argparse.Namespace) -> int:
    from nodeagent.tools.fleet.inspection import describe_inspection

    nodes, unread = read_nodes(options)
    document = describe_inspection(nodes, unread)
    _print_document(document, options, unread)
    worst = max((VERDICT_STATUSES[node["verdict"]] for node in document["nodes"]), default=0)
    return 0 if options.no_fail and not unread else _find_exit_status(unread, worst)


def _capacity(options: argparse.Namespace) -> int:
    from nodeagent.cli.support.node.devices import add_captured_devices
    from nodeagent.cli.support.node.what_if import create_what_if_node
    from nodeagent.cli.support.pod_files import read_pods
    from nodeagent.cli.support.progress import Progress
    from nodeagent.core.explain.capacity_search import search_capacity
    from nodeagent.tools.fleet.capacity import describe_capacity

    pods = read_pods(options.manifests)
    nodes, unread = read_nodes(options)
    found = []
    with Progress("copies") as progress:
        for node in nodes:
            if node.view is None:
                hint = "name one with --config FILE, or take a capture while the agent runs"
                unread = (*unread, UnreadNode(node.source, "its file contains no configuration", hint))
            else:
                devices = None if node.capture is None else node.capture.devices
                what_if = add_captured_devices(create_what_if_node(node.view).what_if, pods, devices)
                found.append((node, search_capacity(what_if, pods, progress.step)))
    document = describe_capacity(found, pods, unread)
    _print_document(document, options, unread)
    return _find_exit_status(unread, 0 if document["summary"]["fitting"] else EXIT_REFUSED)


def _diff(options: argparse.Namespace) -> int:
    from nodeagent.tools.fleet.differences import describe_differences

    if len(options.nodes) < 2:
        options.parser.error("name at least two nodes to compare")
    nodes, unread = read_nodes(options)
    document = describe_differences(nodes, unread)
    _print_document(document, options, unread)
    return _find_exit_status(unread, EXIT_WRONG if document["differing"] else 0)


def _print_document(document: Document, options: argparse.Namespace, unread: Sequence[UnreadNode]) -> None:
    """Print the document. Then report the nodes that could not be read, because users easily overlook them at the top of a long output."""
    render = {"inspect": render_inspection, "capacity": render_capacity, "diff": render_difference}[options.action]
    if document["nodes"] or options.output != "text":
        width = text_width()
        sys.stdout.write(render_document(document, options.output, lambda one: render(one, width)))
        sys.stdout.flush()
    reasons: dict[tuple[str, str], list[UnreadNode]] = {}
    for one in unread:
        reasons.setdefault((one.why, one.hint.replace(one.source, "HOST")), []).append(one)
    for (why, of_all), those in reasons.items():
        hint = those[0].hint if len(those) == 1 else of_all
        # if the error already names the file, the file isn't named again
        named = [one.source for one in those if one.source not in why]
        print(
            f"nodeagent: not read: {': '.join([*([', '.join(named)] if named else []), why])}\nhint: {hint}",
            file=sys.stderr,
        )


def _find_exit_status(unread: Sequence[UnreadNode], otherwise: int) -> int:
    return EXIT_ERROR if unread else otherwise
