"""Who owns each CPU, in the labels that a drawing of the machine uses: `reserved`, `shared`, or who holds it."""

from nodeagent.core.layout import shared_pool
from nodeagent.core.managers import Isolation, Managers, isolation
from nodeagent.core.state import NodeState


def owners(managers: Managers, state: NodeState) -> dict[int, str]:
    """Label CPUs. One that nobody has, as while it is strictly reserved and offline, is left out.

    Containers of one pod that have a CPU in turn (an init container and its successors) are named together.
    """
    holders: dict[int, dict[str, list[str]]] = {}
    for entry in state.entries:
        pod = entry.pod
        for container in pod.containers if entry.is_active else ():
            own = state.promises.own_set(pod.uid, container.name)
            level = isolation(managers, state.promises, pod, container.name)
            name = "(the pod's pool)" if level is Isolation.POD else container.name
            for cpu in own or ():
                names = holders.setdefault(cpu, {}).setdefault(pod.full_name, [])
                if name not in names:
                    names.append(name)
    held = {cpu: "; ".join(f"{pod} {', '.join(names)}" for pod, names in pods.items()) for cpu, pods in holders.items()}
    shared = dict.fromkeys(shared_pool(managers, state.promises, managers.topology.online), "shared")
    return shared | held | dict.fromkeys(managers.reserved, "reserved")
