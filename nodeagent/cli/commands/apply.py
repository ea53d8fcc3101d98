"""`nodeagent apply`: installs manifests after a trial decision on each of their pods. This module defines the arguments; apply_manifests.py
does the rest.
"""

import argparse

from nodeagent.cli.support.documents import add_output_argument
from nodeagent.cli.support.manifest_arguments import add_manifests_argument, add_wait_arguments, check_timeout
from nodeagent.cli.support.node.arguments import add_agent_arguments

_EPILOG = """\
exit status: 0: installed; 4: a pod would be refused, so nothing was installed, or is refused; 1: failure;
3: the agent doesn't answer, so nothing is decided (--wait), or the configuration can't be used either; 64: wrong arguments

examples:
  nodeagent apply examples/guaranteed.yaml
  nodeagent apply examples/guaranteed.yaml --wait
  nodeagent apply web.yaml db.yaml
  sed 's/cpu: "2"/cpu: "4"/' web.yaml | nodeagent apply -
  nodeagent apply web.yaml -o json | jq '.pods[].containers'

Needs root. Validates the manifests, and tries the decisions on a copy of the node's state, where installed manifests without a decision
come first. Then writes each file to the manifest directory, completely or not at all. A changed pod stays in the installed file that
contains it, whatever the name of the given file. It restarts, or is resized while it runs if only its cpu or memory changes. If one pod
of several manifests would be refused, none of them is installed.
next: nodeagent inspect POD shows its CPUs, nodeagent delete FILE ends it; nodeagent diff FILE only shows what would change"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_manifests_argument(parser)
    parser.add_argument(
        "--force",
        action="store_true",
        help="install manifests even if their pods would be refused; a running pod keeps running unchanged",
    )
    add_wait_arguments(parser, "decided on each pod, and started the first process of each admitted pod on its CPUs")
    add_output_argument(parser)
    add_agent_arguments(parser)
    parser.epilog = _EPILOG
    parser.set_defaults(parser=parser)


def run(options: argparse.Namespace) -> int:
    """Install the manifests, and print the result for each pod.

    Raises:
        NodeAgentError: a manifest is invalid, its pod would be refused, or it can't be installed.
    """
    check_timeout(options)
    from nodeagent.cli.commands.apply_manifests import apply_manifests

    return apply_manifests(options)
