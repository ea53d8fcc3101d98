"""Known amounts of a container runtime's pod, reconstructed from the saved state."""

from collections.abc import Callable

from nodeagent.core.domains.runtime.pod_model import Known, build_runtime_pod
from nodeagent.core.domains.runtime.stated_pod import StatedPod, add_kubelet_data
from nodeagent.core.model.nri import ContainerState, NriContainer, Sandbox
from nodeagent.core.model.runtime_containers import Asked, KeyEntry, Registry
from nodeagent.core.model.state import PodEntry


def restore_known(
    entry: PodEntry, registry: Registry, stated: Callable[[Sandbox], StatedPod], capacity_bytes: int
) -> tuple[Known, ...]:
    """Return the known amounts with their sources. Empty for other pods.

    Args:
        entry: the pod's entry.
        registry: the requests of its containers.
        stated: reads the pod's annotations.
        capacity_bytes: the node's memory.
    """
    uid = entry.pod.uid
    asked = {one.key.name: one.asked for one in registry.refused_of(uid)}
    asked |= {one.key.name: found for one in registry.entries if one.key.pod_uid == uid and (found := _asked(one))}
    names = (container.name for container in entry.pod.containers)
    seen = {name: asked[name] for name in names if name in asked}
    if not seen:
        return ()
    last = next(reversed(seen.values()))
    sandbox = Sandbox("", uid, entry.pod.name, entry.pod.namespace, (), last.annotations, last.cgroup_parent)
    containers = (_container(name, one) for name, one in seen.items())
    said = add_kubelet_data(stated(sandbox), registry.pod(uid))
    return build_runtime_pod(sandbox, containers, said, capacity_bytes).known


def _asked(entry: KeyEntry) -> Asked | None:
    if entry.asked is not None:
        return entry.asked
    return entry.made[-1].asked if entry.made else None


def _container(name: str, asked: Asked) -> NriContainer:
    return NriContainer("", "", name, ContainerState.UNKNOWN, (), (), None, "", asked.oom_score_adj, asked.resources)
