"""Exclusive CPUs of a running container whose request changes (KEP-5554). The container keeps at least the CPUs from its admission."""

from msgspec.structs import replace

from nodeagent.core.model.demand import ContainerDemand, PodDemand
from nodeagent.core.model.holdings import put_item, remove_item
from nodeagent.core.model.idset import CpuMask, CpuSet, NumaMask, NumaSet
from nodeagent.core.model.pod import ContainerKind
from nodeagent.core.model.promises import Promises, with_pod
from nodeagent.core.model.refusals import NotResized, defer_resize, refuse_resize_for_good
from nodeagent.core.numa.topology_manager import TopologyManager
from nodeagent.core.resources.cpu.holdings import CpuBooks, CpuHoldings, default_set, own_set_of, with_default_set
from nodeagent.core.resources.cpu.manager import CpuManager, check_full_cores, choose_near, over
from nodeagent.core.resources.cpu.points import CpuShortage, Question


def resize_cpus(
    manager: CpuManager,
    topology: TopologyManager,
    promises: Promises,
    pod: PodDemand,
    was: ContainerDemand,
    now: ContainerDemand,
) -> Promises | NotResized:
    """Give a running container more exclusive CPUs, or fewer."""
    if not manager.static or pod.is_skipped or was.cpus == now.cpus:
        return promises
    name = f"container {now.name}"
    if not was.cpus:
        return refuse_resize_for_good(
            f"{name} has no CPUs of its own, and would get {now.cpus}: end the pod, and start it anew"
        )
    if not now.cpus:
        return refuse_resize_for_good(
            f"{name} has {was.cpus} CPUs of its own, and would share: end the pod, and start it anew"
        )
    own = (
        own_set_of(promises, pod.uid, now.name) or CpuSet()
    )  # a container has none if an earlier start found no CPUs for it
    away = own - CpuSet(manager.layout.online)
    if away:
        return defer_resize(f"CPUs {away} of {name} are offline")
    chosen = (
        _choose_fewer(manager, promises, pod, now, own)
        if now.cpus < len(own)
        else _choose_more(manager, topology, promises, pod, now, own)
    )
    return chosen if isinstance(chosen, NotResized) else _store_chosen_cpus(promises, pod.uid, now.name, own, chosen)


def _choose_fewer(
    manager: CpuManager, promises: Promises, pod: PodDemand, now: ContainerDemand, own: CpuSet
) -> CpuSet | NotResized:
    """Choose the CPUs that the container keeps: the CPUs from its admission, and the policy's choice of its other CPUs."""
    first = promises.of_pod(pod.uid).of(CpuHoldings).first_set(now.name) or own
    if now.cpus < len(first) and not manager.keeps_first:
        first = CpuSet()
    if now.cpus < len(first):
        return refuse_resize_for_good(
            f"container {now.name} keeps the CPUs that it was admitted with, {first}, as its program may have bound itself to them: "
            f"{now.cpus} would be fewer than {len(first)}"
        )
    asked = Question(manager.topology, promises, pod, now.name, own, now.cpus)
    return _refuse_split_cores(manager, asked) or _choose_including(manager, asked, first, None)


def _choose_more(
    manager: CpuManager,
    topology: TopologyManager,
    promises: Promises,
    pod: PodDemand,
    now: ContainerDemand,
    own: CpuSet,
) -> CpuSet | NotResized:
    """Choose additional CPUs, first on the container's NUMA nodes. Other nodes are excluded if the topology manager's policy is strict."""
    hint = promises.hint(pod.uid, now.name).mask
    nodes = hint or NumaSet.from_ids(node.id for node in manager.nodes if node.cpus & own.bits)
    free, all_cpus = manager.free_cpus(promises), CpuMask(manager.universe & ~manager.reserved.bits & manager.grantable)
    where = stays = ""
    if topology.is_strict and hint is not None:
        bound = manager.layout.cpus_of_nodes(NumaMask(hint.bits))
        free, all_cpus = CpuMask(free & bound), CpuMask(all_cpus & bound)
        where = f" on NUMA node{'s' if len(hint) > 1 else ''} {hint}"
        stays = topology.stays
    if now.cpus > all_cpus.bit_count():
        return refuse_resize_for_good(
            f"container {now.name} would have {now.cpus} CPUs of its own, and there are {all_cpus.bit_count()}{where}{stays}"
        )
    missing, left = (
        now.cpus - len(own),
        CpuSet(free) | (_find_cpus_of_ended_inits(promises, pod, now) & CpuSet(all_cpus)),
    )
    asked = Question(manager.topology, promises, pod, now.name, own | left, now.cpus)
    if manager.chooser is not None:
        asked = replace(manager.offered(over(asked, left.bits, missing)), count=now.cpus)
        left = asked.free
        asked = over(asked, (own | left).bits, now.cpus)
    half = _refuse_split_cores(manager, asked)
    if half is not None:
        return half
    if missing > len(left):
        return defer_resize(
            f"container {now.name} needs {missing} more CPUs, and {len(left)} {'is' if len(left) == 1 else 'are'} free{where}{stays}"
        )
    chosen = _choose_including(manager, asked, own, NumaMask(nodes.bits))
    veto = manager.vetoed(asked, chosen) if manager.chooser is not None and isinstance(chosen, CpuSet) else None
    return chosen if veto is None else defer_resize(veto.message)


def _find_cpus_of_ended_inits(promises: Promises, pod: PodDemand, now: ContainerDemand) -> CpuSet:
    """Return CPUs of init containers that end before this container starts. The pod still holds these CPUs, but no other container uses
    them.
    """
    held, before = promises.of_pod(pod.uid), True
    left, others = CpuSet(), CpuSet()
    for container in pod.containers:
        before = before and container.name != now.name
        cpus = held.of(CpuHoldings).own_set(container.name) or CpuSet()
        if before and container.kind is ContainerKind.INIT:
            left |= cpus
        else:
            others |= cpus
    return left - others


def _choose_including(manager: CpuManager, asked: Question, kept: CpuSet, mask: NumaMask | None) -> CpuSet | NotResized:
    """Choose CPUs that include the kept ones. If the policy's choice lacks some of them, it chooses only additional CPUs."""
    if len(kept) == asked.count:
        return kept
    best = choose_near(manager, asked, mask)
    if isinstance(best, CpuSet) and kept <= best:
        return best
    beside = choose_near(manager, over(asked, (asked.free - kept).bits, asked.count - len(kept)), mask)
    if isinstance(beside, CpuShortage):
        return defer_resize(
            f"container {asked.container} can't keep {kept} and have {asked.count} CPUs: {beside.message}"
        )
    return kept | beside


def _refuse_split_cores(manager: CpuManager, asked: Question) -> NotResized | None:
    if not manager.options.full_pcpus_only:
        return None
    # The container's own CPUs count as available, too. At admission a container has no CPUs yet.
    there = with_default_set(asked.promises, default_set(asked.promises) | asked.free)
    refusal = check_full_cores(manager, replace(asked, promises=there))
    if refusal is None:
        return None
    is_possible = manager.layout.adds_up(manager.layout.online, asked.count)
    return (defer_resize if is_possible else refuse_resize_for_good)(f"container {asked.container}: {refusal.message}")


def _store_chosen_cpus(promises: Promises, uid: str, name: str, own: CpuSet, chosen: CpuSet) -> Promises:
    held = promises.of_pod(uid)
    of_cpus = held.of(CpuHoldings)
    first = (of_cpus.first_set(name) or own) & chosen
    beside = CpuSet()
    for other, cpus in of_cpus.cpus:
        beside |= CpuSet() if other == name else cpus
    is_first = first == chosen or not own
    first_sets = remove_item(of_cpus.first_cpus, name) if is_first else put_item(of_cpus.first_cpus, name, first)
    after = replace(of_cpus, cpus=put_item(of_cpus.cpus, name, chosen), first_cpus=first_sets)
    books = promises.of(CpuBooks)
    default, reuse = (books.default - chosen) | (own - chosen - beside), books.reuse
    if reuse is not None and reuse.pod_uid == uid:
        reuse = replace(reuse, cpus=reuse.cpus - chosen) if reuse.cpus - chosen else None
    return with_pod(promises, uid, held.having(after)).having(CpuBooks(default, reuse))
