"""Paths of the pods' cgroups, relative to the top cgroup of all pods (D10). The values in the cgroups' files are described in cgroup.py."""

from nodeagent.core.model.pod import SYSTEMD, QosClass

BURSTABLE = "burstable"
BEST_EFFORT = "besteffort"
ABOVE = ".."
"""Path of the parent cgroup of the pods' top cgroup. The path of the next cgroup upwards is `../..`, and so on."""
PAYLOAD = "payload"
"""Name of the child cgroup that contains a container's processes. Its cpuset lists the fallback CPUs (`Attribute.FALLBACK_CPUS`). The
container's own cgroup lists the CPUs on which the container runs.
"""
SHARED = "shared"
"""Parent cgroup of the shared pool's cgroup. It limits the CPUs of the pool, as a pod's cgroup limits the CPUs of the pod's containers."""
POOL = f"{SHARED}/pool"
"""Cgroup with the CPUs of the shared pool. Its layout is that of a container's cgroup, so the cgroups of the pooled pods are in its
`payload`. These cgroups have no cpuset and inherit the pool's CPUs. One write therefore changes the CPUs of all pooled pods (D59).
"""
POOL_PAYLOAD = f"{POOL}/{PAYLOAD}"
UNITS = "units"
"""Path prefix under which the agent lists the systemd units that pods pin. It isn't a real cgroup, because systemd decides where the
cgroups of units are.
"""
_DOMAIN = "@"
"""Prefix of the paths of units that belong to a domain other than systemd, whose name follows the prefix. Neither systemd nor the agent
uses cgroup names that begin in this way.
"""
_PINNED = (f"{UNITS}/", _DOMAIN)
UNITS_LEFT = f"{UNITS}/left"
"""Path prefix of systemd units that no pod pins any more, but whose original settings the agent hasn't restored yet."""
UNITS_UNCLEAR = f"{UNITS}/unclear"
"""Path prefix of systemd units that may or may not be pinned by a pod, because the agent can't read all manifests now. The agent leaves
these units unchanged.
"""
OWN_DIRECTORIES = frozenset(
    {
        *(BURSTABLE, BEST_EFFORT, SHARED, POOL, POOL_PAYLOAD),
        *(f"{POOL_PAYLOAD}/{BURSTABLE}", f"{POOL_PAYLOAD}/{BEST_EFFORT}"),
    }
)
"""Cgroups that the agent creates, but that belong to no pod."""
_PARENT = {QosClass.GUARANTEED: "", QosClass.BURSTABLE: BURSTABLE + "/", QosClass.BEST_EFFORT: BEST_EFFORT + "/"}


def is_above(path: str) -> bool:
    """Return whether a cgroup is an ancestor of the pods' top cgroup. The agent doesn't manage such cgroups."""
    return path == ABOVE or path.startswith(f"{ABOVE}/")


def is_ours(path: str) -> bool:
    """Return whether the agent manages a cgroup, which means that it is the pods' top cgroup or a descendant. An absolute path is a cgroup
    of another program.
    """
    return not is_above(path) and not path.startswith("/") and not is_pinned(path)


def is_within(path: str, other: str) -> bool:
    """Return whether the cgroup `path` is the cgroup `other` or a descendant of it."""
    return other in {path, ""} or is_above(other) or path.startswith(f"{other}/")


def payload_path(container: str) -> str:
    """Return the path of the cgroup that contains a container's processes. For a container of a pooled pod, this is the container's own
    cgroup.

    Args:
        container: path of the container's cgroup, relative to the pods' top cgroup.
    """
    return container if is_pooled(container) else f"{container}/{PAYLOAD}"


def pod_path(qos: QosClass, uid: str, *, is_pooled: bool) -> str:
    return f"{POOL_PAYLOAD + '/' if is_pooled else ''}{_PARENT[qos]}pod{uid}"


def list_pod_paths(uid: str) -> tuple[str, ...]:
    """Return every path that the cgroup of a pod with this UID can have. The path depends on the pod's QoS class, and on whether the pod is
    pooled.
    """
    return tuple(pod_path(qos, uid, is_pooled=pooled) for qos in QosClass for pooled in (False, True))


def is_pooled(path: str) -> bool:
    """Return whether a cgroup is below the shared pool's `payload`, and therefore has no cpuset of its own."""
    return path.startswith(f"{POOL_PAYLOAD}/")


def cpuset_path(path: str) -> str:
    """Return the path of the cgroup whose cpuset restricts this pod's or container's cgroup. For a pooled pod, this is the pool's
    cgroup.
    """
    return POOL if is_pooled(path) else path


def pinned_path(domain: str) -> str:
    """Return the path prefix that all pinned units of a domain share."""
    return UNITS if domain == SYSTEMD else f"{_DOMAIN}{domain}"


def pinned_pod_path(domain: str, uid: str) -> str:
    """Return the path prefix of the units that a pod pins. The pod itself has no cgroup."""
    return f"{pinned_path(domain)}/pod{uid}"


def is_pinned_by(domain: str, path: str) -> bool:
    """Return whether the path belongs to a pinned unit of this domain."""
    return path.startswith(f"{pinned_path(domain)}/")


def is_pinned(path: str) -> bool:
    """Return whether the path belongs to a unit that a pod pins. Not the agent, but the program that runs the unit, such as systemd,
    creates and writes the unit's cgroup.
    """
    return path.startswith(_PINNED)


def unit_at(path: str) -> str:
    """Return the name of the unit from its path in the agent's notation (below `units/` or `@DOMAIN/`)."""
    return path.rpartition("/")[2]
