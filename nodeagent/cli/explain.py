"""`nodeagent explain`: why a pod was admitted or refused, or would be: hints, merge, CPUs and memory, and what would admit it."""

import argparse
import json
import sys
from dataclasses import replace

from nodeagent.cli.main import EXIT_REFUSED
from nodeagent.cli.pod_files import pods_of
from nodeagent.cli.trial_source import TrialNode, add_trial_arguments, trial_node
from nodeagent.core.managers import Admitted
from nodeagent.core.pod import Pod
from nodeagent.core.remedies import remedies
from nodeagent.core.retracing import retraced
from nodeagent.core.tracing import trace
from nodeagent.core.trial import Trial
from nodeagent.errors import NodeAgentError
from nodeagent.formats.explanation import Explained, explanation
from nodeagent.formats.explanation_text import render_explanation
from nodeagent.formats.pod_names import find_pod

_EXAMPLES = """\
exit status: 0: admitted; 4: refused (of several pods: one at least); 1: it could not be found out; 2: wrong arguments

examples:
  nodeagent explain -f examples/guaranteed.yaml --topology 2s.2n.8c.2t --config examples/config.yaml
  nodeagent explain -f examples/guaranteed.yaml --topology 8c,memory=32Gi --config examples/config.yaml -o json

on a node:
  nodeagent explain default/web
  nodeagent explain -f pod.yaml

Nothing is changed: decisions are tried on a copy of the node's state.
next: nodeagent retry POD decides again on a refused pod; docs/explain.md (nodeagent --help says where) describes -o json"""


class ExplainError(NodeAgentError):
    """There is nothing to explain."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pod", nargs="?", metavar="POD", help="a pod of this node: name, namespace/name or UID")
    parser.add_argument(
        "-f",
        "--file",
        action="append",
        metavar="FILE|-|DIR",
        help="pods that are not there (yet): a manifest, - for stdin, or a directory of manifests; can be given again",
    )
    parser.add_argument(
        "-o", "--output", choices=("text", "json", "yaml"), default="text", help="form of the answer (default: text)"
    )
    add_trial_arguments(parser)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES
    parser.set_defaults(parser=parser)


def run(options: argparse.Namespace) -> int:
    """Print the explanation.

    Raises:
        NodeAgentError: the node or the manifests can't be read, or there is no such pod.
    """
    if (options.pod is None) == (options.file is None):
        options.parser.error("name one pod of the node, or manifests with -f")
    pods = () if options.file is None else pods_of(options.file)
    node = trial_node(options)
    explained = _known(node, options.pod) if options.pod is not None else _tried(node, pods)
    document = explanation(explained, config=node.config, trial=node.trial, where=node.where)
    match options.output:
        case "json":
            text = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        case "yaml":
            import yaml  # noqa: PLC0415 - the other forms don't pay for its start-up

            text = yaml.safe_dump(document, sort_keys=True, allow_unicode=True)
        case _:
            text = render_explanation(document)
    sys.stdout.write(text)
    sys.stdout.flush()
    return 0 if all(isinstance(each.trace.decision, Admitted) for each in explained) else EXIT_REFUSED


def _known(node: TrialNode, name: str) -> list[Explained]:
    if node.state is None:
        raise ExplainError(
            f"pod '{name}' is none of this machine's: it has no pods",
            hint="give the pod's manifest with -f; without --empty, --root or --topology the live node is asked",
        )
    entry = find_pod(node.state, name)
    found = retraced(node.trial, node.state, entry)
    explained = _explained(found.before, entry.pod)
    return [replace(explained, entry=entry, reproduced=found.reproduced, left_out=found.left_out)]


def _tried(node: TrialNode, pods: tuple[Pod, ...]) -> list[Explained]:
    """Decide on each pod beside those before it."""
    trial, found = node.trial, []
    for pod in pods:
        old = frozenset(p.uid for p in trial.pods if p.full_name == pod.full_name or p.uid == pod.uid)
        notes = (
            ("A pod of this name is there already: it is taken for ended, as a changed manifest ends it.",)
            if old
            else ()
        )
        trial = trial.without(old)
        explained = _explained(trial, pod)
        found.append(replace(explained, notes=notes))
        trial = trial.after(pod, explained.trace.decision)
    return found


def _explained(trial: Trial, pod: Pod) -> Explained:
    told = trace(trial, pod)
    return Explained(trial, told, () if isinstance(told.decision, Admitted) else remedies(trial, pod))
