"""Where the pods' cgroups are (D10): paths relative to the pods' cgroup. Knows nothing of their contents."""

from nodeagent.core.model.pod import QosClass

BURSTABLE = "burstable"
BEST_EFFORT = "besteffort"
OWN_DIRECTORIES = frozenset({BURSTABLE, BEST_EFFORT})
"""Cgroups that belong to no pod."""
_PARENT = {QosClass.GUARANTEED: "", QosClass.BURSTABLE: BURSTABLE + "/", QosClass.BEST_EFFORT: BEST_EFFORT + "/"}


def pod_path(qos: QosClass, uid: str) -> str:
    return f"{_PARENT[qos]}pod{uid}"
