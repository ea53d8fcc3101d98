"""Resize of a running container's exclusive CPUs (KEP-5554). By default, the container always keeps the CPUs that it got at its
admission.
"""

from msgspec.structs import replace

from nodeagent.core.model.demand import ContainerDemand, PodDemand
from nodeagent.core.model.holdings import put_item, remove_item
from nodeagent.core.model.idset import CpuMask, CpuSet, NumaMask, NumaSet
from nodeagent.core.model.pod import ContainerKind
from nodeagent.core.model.promises import Promises, with_pod
from nodeagent.core.model.refusals import NotResized, defer_resize, refuse_resize_for_good
from nodeagent.core.numa.topology_manager import TopologyManager
from nodeagent.core.resources.cpu.holdings import (
    CpuBooks,
    CpuHoldings,
    default_set,
    free_cpus,
    own_set_of,
    with_default_set,
)
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
    """Change the number of a running container's exclusive CPUs. If this isn't possible, return whether the resize is refused or waits."""
    if not manager.static or pod.is_skipped or was.cpus == now.cpus:
        return promises
    name = f"container {now.name}"
    if not was.cpus:
        return refuse_resize_for_good(
            f"{name} has no exclusive CPUs, and would get {now.cpus}: end the pod and start it again"
        )
    if not now.cpus:
        return refuse_resize_for_good(
            f"{name} has {was.cpus} exclusive CPUs, and would get none: end the pod and start it again"
        )
    own = (
        own_set_of(promises, pod.uid, now.name) or CpuSet()
    )  # if an earlier start found no CPUs for a container, the container has none
    offline = own - CpuSet(manager.layout.online)
    if offline:
        return defer_resize(f"CPUs {offline} of {name} are offline")
    chosen = (
        _choose_fewer(manager, promises, pod, now, own)
        if now.cpus < len(own)
        else _choose_more(manager, topology, promises, pod, now, own)
    )
    return chosen if isinstance(chosen, NotResized) else _store_chosen_cpus(promises, pod.uid, now.name, own, chosen)


def _choose_fewer(
    manager: CpuManager, promises: Promises, pod: PodDemand, now: ContainerDemand, own: CpuSet
) -> CpuSet | NotResized:
    """Choose the CPUs that a container keeps when its request is lowered: the CPUs that it got at its admission, and others that the policy
    chooses.
    """
    first = promises.of_pod(pod.uid).of(CpuHoldings).remaining_first_set(now.name) or own
    if now.cpus < len(first) and (pod.pins_units or not manager.keeps_first):
        first = CpuSet()
    if now.cpus < len(first):
        return refuse_resize_for_good(
            f"container {now.name} keeps the CPUs that it was admitted with, {first}, as its program may have bound itself to them: "
            f"{now.cpus} would be fewer than {len(first)}"
        )
    question = Question(manager.topology, promises, pod, now.name, own, now.cpus)
    return _refuse_split_cores(manager, question) or _choose_including(manager, question, first, None)


def _choose_more(
    manager: CpuManager,
    topology: TopologyManager,
    promises: Promises,
    pod: PodDemand,
    now: ContainerDemand,
    own: CpuSet,
) -> CpuSet | NotResized:
    """Choose additional CPUs, preferably on the NUMA nodes of the container's hint or, if it has no hint, of its CPUs. Under a strict
    policy of the topology manager, only the hint's nodes are used.
    """
    hint = promises.hint(pod.uid, now.name).mask
    nodes = hint or NumaSet.from_ids(node.id for node in manager.nodes if node.cpus & own.bits)
    free, all_cpus = free_cpus(promises, manager.grantable).bits, CpuMask(manager.universe & manager.grantable)
    node_text = stay_text = ""
    if topology.is_strict and hint is not None:
        bound = manager.layout.cpus_of_nodes(NumaMask(hint.bits))
        free, all_cpus = CpuMask(free & bound), CpuMask(all_cpus & bound)
        node_text = f" on NUMA node{'s' if len(hint) > 1 else ''} {hint}"
        stay_text = topology.stays
    if now.cpus > all_cpus.bit_count():
        return refuse_resize_for_good(
            f"container {now.name} would have {now.cpus} exclusive CPUs, but there are only {all_cpus.bit_count()}{node_text}{stay_text}"
        )
    missing = now.cpus - len(own)
    available = CpuSet(free) | (_find_cpus_of_ended_inits(promises, pod, now) & CpuSet(all_cpus))
    question = Question(manager.topology, promises, pod, now.name, own | available, now.cpus)
    if manager.chooser is not None:
        question = replace(manager.offered(over(question, available.bits, missing)), count=now.cpus)
        available = question.free
        question = over(question, (own | available).bits, now.cpus)
    split_refusal = _refuse_split_cores(manager, question)
    if split_refusal is not None:
        return split_refusal
    if missing > len(available):
        count_text = f"{len(available)} {'is' if len(available) == 1 else 'are'} free"
        return defer_resize(f"container {now.name} needs {missing} more CPUs, but {count_text}{node_text}{stay_text}")
    chosen = _choose_including(manager, question, own, NumaMask(nodes.bits))
    veto = manager.vetoed(question, chosen) if manager.chooser is not None and isinstance(chosen, CpuSet) else None
    return chosen if veto is None else defer_resize(veto.message)


def _find_cpus_of_ended_inits(promises: Promises, pod: PodDemand, now: ContainerDemand) -> CpuSet:
    """Return the CPUs held only by init containers that have ended when this container starts. The pod still holds these CPUs, but no other
    container of the pod uses them.
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


def _choose_including(
    manager: CpuManager, question: Question, kept: CpuSet, mask: NumaMask | None
) -> CpuSet | NotResized:
    """Choose CPUs that include all CPUs of `kept`. If the policy would not choose all of these, they are kept anyway, and the policy
    chooses only the additional CPUs.
    """
    if len(kept) == question.count:
        return kept
    best = choose_near(manager, question, mask)
    if isinstance(best, CpuSet) and kept <= best:
        return best
    additional = choose_near(manager, over(question, (question.free - kept).bits, question.count - len(kept)), mask)
    if isinstance(additional, CpuShortage):
        return defer_resize(
            f"container {question.container} can't keep {kept} and have {question.count} CPUs: {additional.message}"
        )
    return kept | additional


def _refuse_split_cores(manager: CpuManager, question: Question) -> NotResized | None:
    if not manager.options.full_pcpus_only:
        return None
    # Available CPUs include the CPUs that the container already has. (At admission, a container has none yet.)
    with_own_cpus = with_default_set(question.promises, default_set(question.promises) | question.free)
    refusal = check_full_cores(manager, replace(question, promises=with_own_cpus))
    if refusal is None:
        return None
    is_possible = manager.layout.can_take_whole_cores(manager.layout.online, question.count)
    return (defer_resize if is_possible else refuse_resize_for_good)(
        f"container {question.container}: {refusal.message}"
    )


def _store_chosen_cpus(promises: Promises, uid: str, name: str, own: CpuSet, chosen: CpuSet) -> Promises:
    held = promises.of_pod(uid)
    holdings = held.of(CpuHoldings)
    first = (holdings.remaining_first_set(name) or own) & chosen
    cpus_of_others = CpuSet()
    for other, cpus in holdings.cpus:
        cpus_of_others |= CpuSet() if other == name else cpus
    is_first = first == chosen or not own
    first_sets = remove_item(holdings.first_cpus, name) if is_first else put_item(holdings.first_cpus, name, first)
    after = replace(holdings, cpus=put_item(holdings.cpus, name, chosen), first_cpus=first_sets)
    books = promises.of(CpuBooks)
    default, reuse = (books.default - chosen) | (own - chosen - cpus_of_others), books.reuse
    if reuse is not None and reuse.pod_uid == uid:
        reuse = replace(reuse, cpus=reuse.cpus - chosen) if reuse.cpus - chosen else None
    return with_pod(promises, uid, held.having(after)).having(CpuBooks(default, reuse))
