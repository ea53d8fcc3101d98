"""Paths of the pods' cgroups, relative to the cgroup that holds all pods (D10). Knows nothing of their contents."""

from nodeagent.core.model.pod import SYSTEMD, QosClass

BURSTABLE = "burstable"
BEST_EFFORT = "besteffort"
OWN_DIRECTORIES = frozenset({BURSTABLE, BEST_EFFORT})
"""Cgroups that belong to no pod."""
ABOVE = ".."
"""Path of the parent of the pods' cgroup. The path of each cgroup further up repeats it once more."""
PAYLOAD = "payload"
"""Name of the cgroup below each container's that holds its processes. It lists the fallback CPUs (`Attribute.FALLBACK_CPUS`), and the
container's cgroup the CPUs to run on.
"""
UNITS = "units"
"""Prefix of the paths of systemd units that pods pin. systemd decides where their cgroups really are."""
_DOMAIN = "@"
"""Prefix of another domain's name, in the paths of the units that its pods pin. No cgroup of systemd or the agent begins with it."""
UNITS_LEFT = f"{UNITS}/left"
"""Prefix of units that no pod pins any more, and that have not been restored."""
UNITS_UNCLEAR = f"{UNITS}/unclear"
"""Prefix of units pinned by a pod that is unknown now and may become known again. They stay as they are."""
_PARENT = {QosClass.GUARANTEED: "", QosClass.BURSTABLE: BURSTABLE + "/", QosClass.BEST_EFFORT: BEST_EFFORT + "/"}


def is_above(path: str) -> bool:
    """Whether a cgroup is above the pods' cgroup, so that the agent doesn't manage it."""
    return path == ABOVE or path.startswith(f"{ABOVE}/")


def is_ours(path: str) -> bool:
    """Whether a cgroup is the pods' cgroup or below it. An absolute path is that of another program's cgroup."""
    return not is_above(path) and not path.startswith("/") and not is_pinned(path)


def is_within(path: str, other: str) -> bool:
    """Whether a cgroup is the other one, or below it."""
    return other in {path, ""} or is_above(other) or path.startswith(f"{other}/")


def payload_path(container: str) -> str:
    """Return the path of the cgroup that holds a container's processes.

    Args:
        container: path of the container's cgroup.
    """
    return f"{container}/{PAYLOAD}"


def pod_path(qos: QosClass, uid: str) -> str:
    return f"{_PARENT[qos]}pod{uid}"


def pinned_path(domain: str) -> str:
    """Return the common prefix of the units that a domain's pods pin."""
    return UNITS if domain == SYSTEMD else f"{_DOMAIN}{domain}"


def pinned_pod_path(domain: str, uid: str) -> str:
    """Return the path of a pod that pins units. It is a prefix of the units' paths, and no such cgroup exists."""
    return f"{pinned_path(domain)}/pod{uid}"


def is_pinned_by(domain: str, path: str) -> bool:
    """Whether a cgroup is that of a unit pinned by a domain's pod."""
    return path.startswith(f"{pinned_path(domain)}/")


def is_pinned(path: str) -> bool:
    """Whether a cgroup is that of a pinned unit. Only the program that runs the unit, such as systemd, creates and writes the cgroup."""
    return path.startswith((f"{UNITS}/", _DOMAIN))


def unit_at(path: str) -> str:
    """Return the name of the unit in a pinned unit's path."""
    return path.rpartition("/")[2]
