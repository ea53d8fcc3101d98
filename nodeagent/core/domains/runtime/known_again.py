"""Reconstruction of the known properties of a container runtime's pod from the saved state, to show them without asking the runtime."""

from collections.abc import Callable

from nodeagent.core.domains.runtime.pod_model import Known, build_runtime_pod
from nodeagent.core.domains.runtime.stated_pod import StatedPod, add_kubelet_data
from nodeagent.core.model.nri import ContainerState, NriContainer, Sandbox
from nodeagent.core.model.runtime_containers import Registry
from nodeagent.core.model.state import PodEntry


def restore_known(
    entry: PodEntry, registry: Registry, stated: Callable[[Sandbox], StatedPod], capacity_bytes: int
) -> tuple[Known, ...]:
    """Return the known properties of a pod, each with its source. The result is empty if the registry contains no request for any of the
    pod's containers.

    Args:
        entry: the pod's entry in the state.
        registry: the registry, with the requests for the pod's containers.
        stated: function that reads the pod's annotations.
        capacity_bytes: the node's memory.
    """
    uid = entry.pod.uid
    asked = {one.key.name: one.asked for one in registry.refused_of(uid)}
    for key_entry in registry.entries:
        made = key_entry.made[-1].asked if key_entry.made else None
        if key_entry.key.pod_uid == uid and (latest := key_entry.asked or made) is not None:
            asked[key_entry.key.name] = latest
    names = (container.name for container in entry.pod.containers)
    seen = {name: asked[name] for name in names if name in asked}
    if not seen:
        return ()
    last = next(reversed(seen.values()))
    sandbox = Sandbox("", uid, entry.pod.name, entry.pod.namespace, (), last.annotations, last.cgroup_parent)
    containers = (
        NriContainer("", "", name, ContainerState.UNKNOWN, (), (), None, "", one.oom_score_adj, one.resources)
        for name, one in seen.items()
    )
    described = add_kubelet_data(stated(sandbox), registry.pod(uid))
    return build_runtime_pod(sandbox, containers, described, capacity_bytes).known
