"""`nodeagent delete`: removes manifests, which ends their pods. This module defines the arguments; delete_manifests.py does the rest."""

import argparse

from nodeagent.cli.support.documents import add_output_argument
from nodeagent.cli.support.manifest_arguments import add_wait_arguments, check_timeout
from nodeagent.cli.support.named_files import NamedFile
from nodeagent.cli.support.node.arguments import add_agent_arguments

_EPILOG = """\
exit status: 0: removed; 1: a manifest or pod is left;
3: the agent doesn't answer (--wait), or the configuration can't be used either; 64: wrong arguments

examples:
  nodeagent delete default/web
  nodeagent delete examples/guaranteed.yaml --wait
  sed 's/name: a/name: b/' a.yaml | nodeagent delete -
  nodeagent delete web db -o json | jq -r '.files[].file'

Needs root. An argument that ends with .yaml, .yml or .json is a file, all others are pods: name, namespace/name or UID. For a FILE, removes
the manifests of its pods, whatever their names; a file in the manifest directory is removed itself, valid or not. A manifest that also
holds other pods is left as it is: name all of them, or edit it. Processes get SIGTERM and their pod's grace period.
next: nodeagent inspect shows what is still ending; nodeagent release POD ends a pod and leaves its manifest"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="+", type=NamedFile, metavar="POD|FILE|-", help="pods, or their manifests")
    add_wait_arguments(parser, "ended their pods")
    add_output_argument(parser)
    add_agent_arguments(parser)
    parser.epilog = _EPILOG
    parser.set_defaults(parser=parser)


def run(options: argparse.Namespace) -> int:
    """Remove the manifests, and print the removed files.

    Raises:
        NodeAgentError: there is no such pod, its manifest contains other pods, or it can't be removed.
    """
    check_timeout(options)
    from nodeagent.cli.commands.delete_manifests import delete_manifests

    return delete_manifests(options)
