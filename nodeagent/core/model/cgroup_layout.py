"""Paths of the pods' cgroups, relative to the common cgroup of all pods (D10). This module doesn't depend on the cgroups' values."""

from nodeagent.core.model.pod import SYSTEMD, QosClass

BURSTABLE = "burstable"
BEST_EFFORT = "besteffort"
ABOVE = ".."
"""Path of the parent of the pods' cgroup. Each further level up adds one more `..` (`../..`)."""
PAYLOAD = "payload"
"""Name of the child cgroup that has a container's processes. The child lists the fallback CPUs (`Attribute.FALLBACK_CPUS`), and the
container's cgroup lists the CPUs to run on.
"""
SHARED = "shared"
"""Cgroup around the shared pool's cgroup. It bounds the pool's CPUs as a pod's cgroup bounds the CPUs of its containers."""
POOL = f"{SHARED}/pool"
"""Cgroup with the CPUs of the shared pool. It has the layout of a container's cgroup, and the pooled pods are in its payload cgroup. The
cgroups of these pods have no cpuset, so they inherit the pool's CPUs. One write therefore changes the CPUs of all pooled pods (D59).
"""
POOL_PAYLOAD = f"{POOL}/{PAYLOAD}"
UNITS = "units"
"""Path prefix of systemd units that pods pin. systemd decides where the units' real cgroups are."""
_DOMAIN = "@"
"""Prefix that precedes another domain's name in the paths of the units pinned by that domain's pods. No cgroup name of systemd or the agent
begins with this prefix.
"""
_PINNED = (f"{UNITS}/", _DOMAIN)
UNITS_LEFT = f"{UNITS}/left"
"""Path prefix of units that no pod pins any more, but whose settings haven't been restored yet."""
UNITS_UNCLEAR = f"{UNITS}/unclear"
"""Path prefix of units whose pod is unknown now, but may become known again. These units stay unchanged."""
OWN_DIRECTORIES = frozenset(
    {
        *(BURSTABLE, BEST_EFFORT, SHARED, POOL, POOL_PAYLOAD),
        *(f"{POOL_PAYLOAD}/{BURSTABLE}", f"{POOL_PAYLOAD}/{BEST_EFFORT}"),
    }
)
"""Cgroups of the agent that belong to no pod."""
_PARENT = {QosClass.GUARANTEED: "", QosClass.BURSTABLE: BURSTABLE + "/", QosClass.BEST_EFFORT: BEST_EFFORT + "/"}


def is_above(path: str) -> bool:
    """Whether a cgroup is above the pods' cgroup, and thus not managed by the agent."""
    return path == ABOVE or path.startswith(f"{ABOVE}/")


def is_ours(path: str) -> bool:
    """Whether a cgroup is the pods' cgroup or below it. An absolute path belongs to another program's cgroup."""
    return not is_above(path) and not path.startswith("/") and not is_pinned(path)


def is_within(path: str, other: str) -> bool:
    """Whether a cgroup is the other cgroup, or below it."""
    return other in {path, ""} or is_above(other) or path.startswith(f"{other}/")


def payload_path(container: str) -> str:
    """Return the path of the cgroup that has a container's processes. In a pooled pod, this is the container's cgroup itself.

    Args:
        container: path of the container's cgroup, relative to the pods' cgroup.
    """
    return container if is_pooled(container) else f"{container}/{PAYLOAD}"


def pod_path(qos: QosClass, uid: str, *, is_pooled: bool) -> str:
    return f"{POOL_PAYLOAD + '/' if is_pooled else ''}{_PARENT[qos]}pod{uid}"


def list_pod_paths(uid: str) -> tuple[str, ...]:
    """Return all paths that the cgroup of a pod with this UID may have."""
    return tuple(pod_path(qos, uid, is_pooled=pooled) for qos in QosClass for pooled in (False, True))


def is_pooled(path: str) -> bool:
    """Whether a cgroup has no cpuset of its own because it is below the shared pool's payload."""
    return path.startswith(f"{POOL_PAYLOAD}/")


def cpuset_path(path: str) -> str:
    """Return the path of the cgroup whose cpuset applies to a pod's or container's cgroup."""
    return POOL if is_pooled(path) else path


def pinned_path(domain: str) -> str:
    """Return the common prefix of the paths of all units that are pinned by a domain's pods."""
    return UNITS if domain == SYSTEMD else f"{_DOMAIN}{domain}"


def pinned_pod_path(domain: str, uid: str) -> str:
    """Return the path of a pod that pins units. It is only a prefix of the units' paths, because the pod has no cgroup of its own."""
    return f"{pinned_path(domain)}/pod{uid}"


def is_pinned_by(domain: str, path: str) -> bool:
    """Whether the path belongs to a unit that is pinned by a pod of this domain."""
    return path.startswith(f"{pinned_path(domain)}/")


def is_pinned(path: str) -> bool:
    """Whether the path belongs to a pinned unit. Only the program that runs the unit, such as systemd, creates and writes the unit's
    cgroup.
    """
    return path.startswith(_PINNED)


def unit_at(path: str) -> str:
    """Return the unit's name from the path of a pinned unit."""
    return path.rpartition("/")[2]
