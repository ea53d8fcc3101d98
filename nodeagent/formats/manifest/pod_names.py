"""Search for pods by UID, namespace/name or name."""

from nodeagent.core.model.state import NodeState, PodEntry
from nodeagent.errors import NodeAgentError

LISTED_BY = "nodeagent inspect"


class UnknownPodError(NodeAgentError):
    """No pod has this name, or several pods have it."""


def find_pods(state: NodeState, name: str, listed_by: str = LISTED_BY) -> tuple[PodEntry, ...]:
    """Find all pods with a UID, namespace/name or name. `listed_by` is the command that lists this node's pods.

    Raises:
        UnknownPodError: no pod has this name.
    """
    found = tuple(e for e in state.entries if name in {e.pod.uid, e.pod.full_name, e.pod.name})
    if found:
        return found
    import difflib  # noqa: PLC0415 - only for a mistyped name

    names = [*(e.pod.full_name for e in state.entries), *(e.pod.name for e in state.entries)]
    near = " or ".join(difflib.get_close_matches(name, names, n=2))
    hint = (f"did you mean {near}? " if near else "") + f"`{listed_by}` lists the pods"
    raise UnknownPodError(f"no pod is named '{name}'", hint=hint)


def find_pod(state: NodeState, name: str, listed_by: str = LISTED_BY) -> PodEntry:
    """Find the only pod with a UID, namespace/name or name. `listed_by` is the command that lists this node's pods.

    Raises:
        UnknownPodError: no pod has this name, or several pods have it.
    """
    found = find_pods(state, name, listed_by)
    if len(found) > 1:
        names = ", ".join(e.pod.full_name for e in found)
        raise UnknownPodError(
            f"{len(found)} pods are named '{name}'",
            hint=f"give one of the full names from `{listed_by}`: {names}",
        )
    return found[0]
