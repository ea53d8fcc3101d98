"""Where the pods' cgroups are (D10): paths relative to the pods' cgroup. Knows nothing of their contents."""

from nodeagent.core.model.pod import QosClass

BURSTABLE = "burstable"
BEST_EFFORT = "besteffort"
OWN_DIRECTORIES = frozenset({BURSTABLE, BEST_EFFORT})
"""Cgroups that belong to no pod."""
ABOVE = ".."
"""Path of the cgroup above the pods' one; those above that one repeat it."""
PAYLOAD = "payload"
"""Cgroup below each container's, in which its processes are: the container's cgroup says where they run, this one where they go if none of
that is left (`Attribute.FALLBACK_CPUS`).
"""
_PARENT = {QosClass.GUARANTEED: "", QosClass.BURSTABLE: BURSTABLE + "/", QosClass.BEST_EFFORT: BEST_EFFORT + "/"}


def is_above(path: str) -> bool:
    """Whether a cgroup is above the pods' one, and so not ours."""
    return path == ABOVE or path.startswith(f"{ABOVE}/")


def is_ours(path: str) -> bool:
    """Whether a cgroup is the pods' one or below it. An absolute path is that of another program's cgroup."""
    return not is_above(path) and not path.startswith("/")


def is_within(path: str, other: str) -> bool:
    """Whether one cgroup is another one, or below it."""
    return other in {path, ""} or is_above(other) or path.startswith(f"{other}/")


def payload_path(container: str) -> str:
    """Return where the processes of a container are.

    Args:
        container: path of its cgroup.
    """
    return f"{container}/{PAYLOAD}"


def pod_path(qos: QosClass, uid: str) -> str:
    return f"{_PARENT[qos]}pod{uid}"
