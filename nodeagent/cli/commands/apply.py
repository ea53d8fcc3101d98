"""`nodeagent apply`: installs manifests after trying the decisions on their pods. This module has the arguments, apply_manifests.py the
rest.
"""

import argparse

from nodeagent.cli.support.documents import add_output_argument
from nodeagent.cli.support.manifest_arguments import add_wait_arguments, check_timeout
from nodeagent.cli.support.named_files import NamedFile
from nodeagent.cli.support.node.arguments import add_agent_arguments

_EXAMPLES = """\
exit status: 0: installed; 4: a pod would be refused and nothing was installed, or is refused; 1: failure; 2: wrong arguments

examples:
  nodeagent apply examples/guaranteed.yaml
  nodeagent apply examples/guaranteed.yaml --wait
  nodeagent apply web.yaml db.yaml
  sed 's/cpu: "2"/cpu: "4"/' web.yaml | nodeagent apply -
  nodeagent apply web.yaml -o json | jq '.pods[].containers'

Needs root. Validates the manifest and tries the decision on a copy of the node's state, after those on manifests that are installed
and not decided on yet, then writes it to the manifest directory, atomically and durably. An existing pod is replaced in its own file,
whatever its name; a changed pod restarts, or is resized while it runs if only its cpu or memory changes. Several manifests are installed
all together or not at all.
next: nodeagent inspect POD shows what it got, nodeagent delete FILE ends it; nodeagent diff FILE only shows what would change"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "files",
        nargs="+",
        type=NamedFile,
        metavar="FILE|-|DIR",
        help="a manifest, - for stdin, or a directory of manifests",
    )
    parser.add_argument(
        "--force", action="store_true", help="install it even if it would be refused; a running pod is kept then"
    )
    add_wait_arguments(parser, "decided on each pod")
    add_output_argument(parser)
    add_agent_arguments(parser)
    parser.epilog = _EXAMPLES
    parser.set_defaults(parser=parser)


def run(options: argparse.Namespace) -> int:
    """Install the manifests, and print the result for each pod.

    Raises:
        NodeAgentError: a manifest is invalid, its pod would be refused, or it can't be installed.
    """
    check_timeout(options)
    from nodeagent.cli.commands.apply_manifests import apply_manifests

    return apply_manifests(options)
