"""Trial decisions on the pods of applied manifests, made on a copy of the state. Also the wait for the agent's own decisions."""

import argparse
import time
from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from nodeagent.cli.support.exit_status import AgentAwayError
from nodeagent.cli.support.explained_pods import explain_pod
from nodeagent.cli.support.manifest_arguments import SPARE_SECONDS
from nodeagent.cli.support.manifest_changes import FileChange, ManifestPlace
from nodeagent.cli.support.progress import Progress
from nodeagent.core.admission.managers import Admitted
from nodeagent.core.admission.resize import moves_instead
from nodeagent.core.admission.what_if import Fits, Refused, WhatIf
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.state import NodeState, PodEntry
from nodeagent.edge.transport.local_api_client import ApiUnavailable, call
from nodeagent.errors import NodeAgentError
from nodeagent.formats.checkpoint.node_state import state_from_document
from nodeagent.views.apply.document import AppliedPod
from nodeagent.views.release_text import find_longest_end_seconds

_PAUSES_SECONDS = (0.05, 1.0)
"""Shortest and longest pause between two requests to the agent, in seconds. Without pauses, waiting would load the agent, which lists all
pods for each request.
"""


class WaitError(NodeAgentError):
    """The command can't wait for the agent, or the agent took too long."""


def check_wait(options: argparse.Namespace, place: ManifestPlace) -> None:
    """Check that the agent is running if `--wait` is given, because the wait would never end otherwise.

    Raises:
        AgentAwayError: the agent isn't running.
    """
    if options.wait and not place.is_live:
        raise AgentAwayError(
            "the agent is not running, so --wait would never end",
            hint="start it with `systemctl start nodeagent`, or leave out --wait: the agent acts on the change once it is started",
        )


def try_changes(changes: Iterable[FileChange], what_if: WhatIf) -> Iterator[AppliedPod]:
    """Make a trial decision on each changed pod on which the agent hasn't decided yet. Each decision assumes that the pods before it are
    running.
    """
    pods = [change for file in changes for change in file.pods]
    # a changed pod may pin a unit that another of the changed pods pinned before
    moving = frozenset(
        one.entry.pod.uid for one in pods if one.entry is not None and (one.restarts or one.entry.pins_units)
    )
    what_if = replace(what_if, moving=what_if.moving | moving)
    with Progress("pods", len(pods)) as progress:
        for one in pods:
            explained = answer = None
            if one.decided is None and one.resizes:
                assert one.entry is not None, "it runs"
                answer = what_if.resize(one.entry.pod, one.pod)
                what_if = answer.node if isinstance(answer, Fits) else what_if
            moves = moves_instead(one.pod, answer)
            if one.decided is None and (not one.resizes or moves):
                answer = None
                way = what_if.making_way(one.pod)
                explained = explain_pod(way, one.pod, progress.tick)
                what_if = _apply_decision(what_if, way, one.pod, explained.trace.decision)
            yield AppliedPod(
                one.pod,
                one.before,
                one.path,
                one.change.value,
                one.restarts or moves,
                one.decided,
                one.found.notes,
                explained,
                answer,
            )
            progress.step()


def decide_undecided(what_if: WhatIf, pods: Iterable[Pod]) -> WhatIf:
    """Return the node as it will be after the agent's decisions on installed pods."""
    for pod in pods:
        way = what_if.making_way(pod)
        what_if = _apply_decision(what_if, way, pod, way.judge(pod))
    return what_if


def _apply_decision(what_if: WhatIf, way: WhatIf, pod: Pod, decision: Admitted | Refused) -> WhatIf:
    """Return the node after a trial decision. If a change to a running pod is refused, the running pod stays (D7)."""
    is_kept_out = not isinstance(decision, Admitted) and len(way.pods) < len(what_if.pods)
    return what_if if is_kept_out else way.after(pod, decision)


def wait_for_agent(
    options: argparse.Namespace, place: ManifestPlace, ending: Iterable[PodEntry], look: Callable[[NodeState], bool]
) -> NodeState:
    """Wait until a condition on the agent's state holds, or until the timeout. Return the last state.

    Args:
        options: the parsed options, with `timeout`.
        place: the location of the manifests, with the agent's socket.
        ending: the pods that must end before the condition can hold. Their grace periods extend the default timeout.
        look: the condition on the state.

    Raises:
        WaitError: the agent doesn't answer any more.
    """
    limit = options.timeout if options.timeout is not None else find_longest_end_seconds(tuple(ending)) + SPARE_SECONDS
    deadline = time.monotonic() + float(limit)
    pause, longest = _PAUSES_SECONDS
    with Progress("questions to the agent") as progress:
        while True:
            try:
                state = state_from_document(call(place.socket, "state")["state"]).state
            except ApiUnavailable as err:
                raise WaitError(
                    f"the agent does not answer any more: {err.message}",
                    hint="start it with `systemctl start nodeagent`: the agent then acts on the installed manifests",
                ) from err
            if look(state) or time.monotonic() >= deadline:
                return state
            time.sleep(pause)
            pause = min(2 * pause, longest)
            progress.step()
