"""`nodeagent retry`: asks the agent to decide again on a refused pod, and reports the decision."""

import argparse
import sys

from nodeagent.cli.support.documents import Document, add_output_argument, format_document
from nodeagent.cli.support.exit_status import EXIT_ERROR, EXIT_REFUSED, PodRefusedError
from nodeagent.cli.support.named_files import add_socket_argument
from nodeagent.cli.support.places import DEFAULT_SOCKET
from nodeagent.core.model.state import PodEntry
from nodeagent.core.model.waiting import Waiting
from nodeagent.edge.transport.local_api_client import TURN_CALL_SECONDS, ApiUnavailable, call
from nodeagent.errors import NodeAgentError
from nodeagent.formats.checkpoint.node_state import state_from_document
from nodeagent.views.wording.refusal_advice import advise_next_step

_VERSION = 1


class RetryError(NodeAgentError):
    """The agent has not made another decision on the pod."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "pod",
        metavar="POD",
        help="name, namespace/name or UID of a refused pod, or of a running pod whose changed manifest was refused",
    )
    add_socket_argument(parser, DEFAULT_SOCKET)
    add_output_argument(parser)
    parser.epilog = """\
exit status: 0: admitted; 4: refused again; 1: not decided; 3: the agent doesn't answer; 64: wrong arguments

examples:
  nodeagent retry default/web
  nodeagent retry default/web -o json | jq .admitted

A refusal is final until the manifest changes: make room, then retry. For a pod that keeps running because its changed manifest was
refused, the change is tried again. If it is admitted, the pod ends, and starts again with its changed manifest.
next: nodeagent explain POD shows the changes that would admit it, nodeagent inspect shows the used CPUs and the refused pods"""


def run(options: argparse.Namespace) -> int:
    """Request another decision on the pod, and wait for it.

    Raises:
        NodeAgentError: the agent cannot be asked, or the pod is unknown, was not refused, or was refused again.
    """
    try:
        answer = call(options.socket, "retry", timeout_seconds=TURN_CALL_SECONDS, pod=options.pod)
        uid, name = str(answer["uid"]), str(answer["pod"])
        # the agent answers after the turn that decides on the pod again, perhaps with the same result
        entries = state_from_document(call(options.socket, "state")["state"]).state.entries
        decided = (e for e in entries if e.pod.full_name == name and not e.is_undecided)
    except ApiUnavailable as err:
        raise RetryError(
            f"the agent does not answer: {err.message}",
            hint="start it with `systemctl start nodeagent`; then retry again",
        ) from err
    entry = next(decided, None)
    if options.output != "text":
        sys.stdout.write(format_document(_describe_decision(name, uid, entry), options.output))
        return EXIT_ERROR if entry is None else 0 if _find_refusal(entry) is None else EXIT_REFUSED
    if entry is None:
        raise RetryError(f"the agent has not decided on pod {name} yet", hint=f"see `nodeagent inspect {name}`")
    refusal = _find_refusal(entry)
    if refusal is not None:
        what = f"pod {name}" if entry.refusal is not None else f"the changed manifest of pod {name}"
        raise PodRefusedError(
            f"{what} is refused again: {refusal.reason}: {refusal.message}",
            hint=advise_next_step(refusal.reason, name, refusal.message),
        )
    if entry.deleting_since_ms is not None:
        print(f"pod {name} is ending, and starts again with its changed manifest; see: nodeagent inspect {name}")
        return 0
    print(f"pod {name} is admitted; see: nodeagent inspect {name}")
    return 0


def _describe_decision(full_name: str, uid: str, entry: PodEntry | None) -> Document:
    namespace, _, name = full_name.partition("/")
    refusal = None if entry is None else _find_refusal(entry)
    return {
        "kind": "Retry",
        "version": _VERSION,
        "namespace": namespace,
        "name": name,
        "uid": uid,
        "admitted": None if entry is None else refusal is None,
        "decidedAtMs": None if entry is None else entry.decided_at_ms,
        "refusal": None
        if refusal is None
        else {
            "reason": refusal.reason,
            "message": refusal.message,
            "nextStep": advise_next_step(refusal.reason, full_name, refusal.message),
        },
    }


def _find_refusal(entry: PodEntry) -> Waiting | None:
    return entry.refusal or entry.change_refusal
