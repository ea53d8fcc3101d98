"""How pods are named: by UID, namespace/name, or name if it is unique."""

from nodeagent.core.model.state import NodeState, PodEntry
from nodeagent.errors import NodeAgentError

LISTED_BY = "nodeagent inspect"


class UnknownPodError(NodeAgentError):
    """No such pod, or more than one."""


def find_pods(state: NodeState, name: str, listed_by: str = LISTED_BY) -> tuple[PodEntry, ...]:
    """Find pods by UID, namespace/name or name.

    Args:
        state: the node's.
        name: what was given.
        listed_by: the command that lists this node's pods.

    Raises:
        UnknownPodError: there is none.

    """
    found = tuple(e for e in state.entries if name in {e.pod.uid, e.pod.full_name, e.pod.name})
    if found:
        return found
    names = [e.pod.full_name for e in state.entries]
    near = _near(name, [*names, *(e.pod.name for e in state.entries)])
    hint = (f"did you mean {near}? " if near else "") + f"`{listed_by}` lists the pods"
    raise UnknownPodError(f"no pod '{name}' is known", hint=hint)


def find_pod(state: NodeState, name: str, listed_by: str = LISTED_BY) -> PodEntry:
    """Find one pod by UID, namespace/name or name; arguments as of `find_pods`.

    Raises:
        UnknownPodError: there is none, or more than one.

    """
    found = find_pods(state, name, listed_by)
    if len(found) > 1:
        names = ", ".join(e.pod.full_name for e in found)
        raise UnknownPodError(
            f"there are {len(found)} pods '{name}'",
            hint=f"name one of them in full, as `{listed_by}` does: {names}",
        )
    return found[0]


def _near(name: str, names: list[str]) -> str:
    import difflib  # noqa: PLC0415 - only for a mistyped name

    return " or ".join(difflib.get_close_matches(name, names, n=2))
