"""`nodeagent explain`: explains why a pod was or would be admitted or refused. This module defines the arguments; explain_pods.py does the
rest.
"""

import argparse

from nodeagent.cli.support.documents import add_output_argument
from nodeagent.cli.support.named_files import NamedFile
from nodeagent.cli.support.node.arguments import add_what_if_arguments

_EPILOG = """\
exit status: 0: admitted; 4: refused (at least one of several pods); 1: could not be determined;
3: the agent doesn't answer, and has saved no state; 64: wrong arguments

examples:
  nodeagent explain -f examples/guaranteed.yaml --topology 2s.2n.8c.2t --config examples/config.yaml
  nodeagent explain -f examples/guaranteed.yaml --topology 8c,memory=32Gi --config examples/config.yaml -o json

on a node:
  nodeagent explain default/web
  nodeagent explain -f pod.yaml

Changes nothing: decisions are tried on a copy of the node's state.
next: nodeagent retry POD decides again on a refused pod; docs/explain.md (nodeagent --help says where) describes -o json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pod", nargs="?", metavar="POD", help="a pod of this node: name, namespace/name or UID")
    parser.add_argument(
        "-f",
        "--file",
        action="append",
        type=NamedFile,
        metavar="FILE|-|DIR",
        help="pods that do not exist (yet): a manifest, - for stdin, or a directory of manifests; can be repeated",
    )
    add_output_argument(parser)
    add_what_if_arguments(parser)
    parser.epilog = _EPILOG
    parser.set_defaults(parser=parser)


def run(options: argparse.Namespace) -> int:
    """Print the explanation of each decision, and return the exit status.

    Raises:
        NodeAgentError: the node or the manifests can't be read, or there is no such pod.
    """
    if (options.pod is None) == (options.file is None):
        options.parser.error("name one pod of the node, or manifests with -f")
    from nodeagent.cli.commands.explain_pods import explain_pods

    return explain_pods(options)
