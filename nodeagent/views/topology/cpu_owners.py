"""Labels that tell in a drawing who owns each CPU: `reserved`, `shared`, `free`, or the names of pod and container."""

from collections.abc import Iterable

from nodeagent.core.admission.node_rules import NodeRules, isolation
from nodeagent.core.cgroups.desired_cgroups import shared_pool
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Isolation, Promises
from nodeagent.core.resources.cpu.holdings import free_cpus, own_set_of


def label_cpus(node: NodeRules, promises: Promises, pods: Iterable[Pod]) -> dict[int, str]:
    """Label the CPUs. A CPU without an owner, such as an unallocated CPU that is offline, is left out.

    If several containers of a pod use a CPU one after the other, such as an init container and an app container, the label names them all.

    Args:
        node: the node's rules.
        promises: all allocations.
        pods: the active pods.
    """
    holders: dict[int, dict[str, list[str]]] = {}
    for pod in pods:
        for container in pod.containers:
            own = own_set_of(promises, pod.uid, container.name)
            level = isolation(node, promises, pod, container.name)
            name = "(the pod's pool)" if level is Isolation.POD else container.name
            for cpu in own or ():
                names = holders.setdefault(cpu, {}).setdefault(pod.full_name, [])
                if name not in names:
                    names.append(name)
    held = {cpu: "; ".join(f"{pod} {', '.join(names)}" for pod, names in pods.items()) for cpu, pods in holders.items()}
    shared = dict.fromkeys(shared_pool(node, promises, node.topology.online), "shared")
    # With sharedCoreClass, some CPUs are neither allocated nor part of the shared pool.
    free = dict.fromkeys(free_cpus(promises, node.grantable) & node.topology.online, "free")
    return free | shared | held | dict.fromkeys(node.reserved, "reserved")
