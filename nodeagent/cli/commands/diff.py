"""`nodeagent diff`: shows the changes that manifests would cause. This module defines the arguments; apply_manifests.py does the rest."""

import argparse

from nodeagent.cli.support.documents import add_output_argument
from nodeagent.cli.support.manifest_arguments import add_manifests_argument
from nodeagent.cli.support.node.arguments import add_agent_arguments

_EPILOG = """\
exit status: 0: nothing differs; 2: something differs; 1: could not be determined;
3: the agent doesn't answer, and the configuration can't be used either; 64: wrong arguments

examples:
  nodeagent diff examples/guaranteed.yaml || true
  sed 's/cpu: "2"/cpu: "4"/' web.yaml | nodeagent diff - || true
  nodeagent diff web.yaml -o json | jq '.pods[] | select(.restarts) | .name'

For each pod that differs from its installed manifest, shows the difference, whether it would restart or be resized, and on which CPUs and
NUMA nodes it would land, or why it would be refused. Comments and the order of fields don't count. A workload, such as a Deployment,
counts as one pod, namely its template, and is compared with the installed pod of its name. What `nodeagent apply` refuses is ignored.
Changes nothing: decisions are tried on a copy of the node's state, after those on installed manifests that are not decided on yet.
next: nodeagent apply FILE installs it"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_manifests_argument(parser)
    add_output_argument(parser)
    add_agent_arguments(parser)
    parser.epilog = _EPILOG
    parser.set_defaults(parser=parser)


def run(options: argparse.Namespace) -> int:
    """Print the changes that manifests would cause.

    Raises:
        NodeAgentError: the manifests are invalid, or the installed ones can't be read.
    """
    from nodeagent.cli.commands.apply_manifests import diff_manifests

    return diff_manifests(options)
