"""The owner of each CPU as a label of a drawing: `reserved`, `shared`, `free`, or the pod's and container's name."""

from collections.abc import Iterable

from nodeagent.core.admission.managers import Managers, isolation
from nodeagent.core.cgroups.desired_cgroups import shared_pool
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Isolation, Promises
from nodeagent.core.resources.cpu.holdings import own_set_of
from nodeagent.core.resources.cpu.resource import CpuResource


def label_cpus(managers: Managers, promises: Promises, pods: Iterable[Pod]) -> dict[int, str]:
    """Label the CPUs. A CPU without an owner (for instance strictly reserved and offline) is left out.

    Containers of a pod that use a CPU in turn (an init container and its successors) have a common label.

    Args:
        managers: the node's managers.
        promises: all allocations.
        pods: the active pods.
    """
    holders: dict[int, dict[str, list[str]]] = {}
    for pod in pods:
        for container in pod.containers:
            own = own_set_of(promises, pod.uid, container.name)
            level = isolation(managers, promises, pod, container.name)
            name = "(the pod's pool)" if level is Isolation.POD else container.name
            for cpu in own or ():
                names = holders.setdefault(cpu, {}).setdefault(pod.full_name, [])
                if name not in names:
                    names.append(name)
    held = {cpu: "; ".join(f"{pod} {', '.join(names)}" for pod, names in pods.items()) for cpu, pods in holders.items()}
    shared = dict.fromkeys(shared_pool(managers, promises, managers.topology.online), "shared")
    # With sharedCoreClass, some CPUs are neither allocated nor in the shared pool.
    manager = managers.providers.of(CpuResource).manager
    left = CpuSet(manager.free_cpus(promises)) & managers.topology.online if manager.static else CpuSet()
    free = dict.fromkeys(left, "free")
    return free | shared | held | dict.fromkeys(managers.reserved, "reserved")
