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
UNITS = "units"
"""In front of the paths of systemd's units that pods stand for: where their cgroups really are is systemd's to say."""
UNITS_LEFT = f"{UNITS}/left"
"""In front of units that no pod stands for any more, and that have not been given back."""
UNITS_UNCLEAR = f"{UNITS}/unclear"
"""In front of units for which a pod has stood that isn't known now, and may be again: they stay as they are."""
_PARENT = {QosClass.GUARANTEED: "", QosClass.BURSTABLE: BURSTABLE + "/", QosClass.BEST_EFFORT: BEST_EFFORT + "/"}


def is_above(path: str) -> bool:
    """Whether a cgroup is above the pods' one, and so not ours."""
    return path == ABOVE or path.startswith(f"{ABOVE}/")


def is_ours(path: str) -> bool:
    """Whether a cgroup is the pods' one or below it. An absolute path is that of another program's cgroup."""
    return not is_above(path) and not path.startswith("/") and not is_of_systemd(path)


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


def pod_of_units_path(uid: str) -> str:
    """Return what stands for the cgroup of a pod whose containers are systemd's units: there is none."""
    return f"{UNITS}/pod{uid}"


def is_of_systemd(path: str) -> bool:
    """Whether a cgroup is that of a unit which a pod's container stands for, and so systemd's to write."""
    return path.startswith(f"{UNITS}/")


def unit_at(path: str) -> str:
    """Return the name of the unit at such a path."""
    return path.rpartition("/")[2]
