"""A pod that runs, and whose manifest asks for other amounts now: what it holds then, or why not. Nothing is restarted.

Kubernetes' rules (KEP-1287, KEP-5554): the QoS class stays, and so does who has CPUs of its own; a container keeps what it has when it
gets more, and never has less than the CPUs that it was admitted with. Memory is promised on the NUMA nodes where it is: nothing moves.
"""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.asked_for import seen_by
from nodeagent.core.admission.managers import Managers, preferred_class
from nodeagent.core.admission.node_capacity import Allocatable, Usage, insufficient
from nodeagent.core.admission.one_pod import Providers
from nodeagent.core.model.claims import CPU_DRIVER, MEMORY_DRIVER
from nodeagent.core.model.demand import ContainerDemand, PodDemand, demand_of
from nodeagent.core.model.holdings import dropped, put
from nodeagent.core.model.idset import CpuMask, CpuSet, NumaMask, NumaSet
from nodeagent.core.model.pod import (
    CPU,
    MEMORY,
    Container,
    ContainerKind,
    Pod,
    ResourceRequirements,
    Resources,
    qos_class,
)
from nodeagent.core.model.promises import Hint, Promises, with_pod
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.refusals import RESIZE_DEFERRED, RESIZE_INFEASIBLE, Reason
from nodeagent.core.model.state import NodeState, PodEntry
from nodeagent.core.numa.topology_manager import TopologyPolicy
from nodeagent.core.resources.claims.holdings import ClaimHoldings
from nodeagent.core.resources.cpu.holdings import CpuBooks, CpuHoldings, default_set, own_set_of, with_default_set
from nodeagent.core.resources.cpu.manager import CpuManager, check_full_cores, choose_near, over
from nodeagent.core.resources.cpu.points import CpuShortage, PluginFailedError, Question
from nodeagent.core.resources.memory import manager as memory_manager
from nodeagent.core.resources.memory.accounting import NodeAccounts
from nodeagent.core.resources.memory.holdings import MemoryBooks, MemoryHoldings, memory_accounts, memory_nodes_of

_STRICT = frozenset({TopologyPolicy.RESTRICTED, TopologyPolicy.SINGLE_NUMA_NODE})


class NotResized(Struct, frozen=True):
    """The pod stays as it is."""

    reason: str
    message: str

    @property
    def is_deferred(self) -> bool:
        """Whether it may come to pass when others give something back."""
        return self.reason == RESIZE_DEFERRED


def _never(message: str) -> NotResized:
    return NotResized(RESIZE_INFEASIBLE, message)


def _later(message: str) -> NotResized:
    return NotResized(RESIZE_DEFERRED, message)


def is_resize(old: Pod, new: Pod) -> bool:
    """Whether two pods differ in nothing but amounts of containers that stay, and of the pod as a whole (KEP-5419): not in those of init
    containers, whose end nobody waits for a second time.
    """
    if len(old.containers) != len(new.containers) or old == new:
        return False
    pairs = tuple(zip(old.containers, new.containers, strict=True))
    unsized = tuple(replace(now, resources=was.resources) for was, now in pairs)
    if replace(new, containers=unsized, resources=old.resources) != old:
        return False
    return _fixed(old.resources) == _fixed(new.resources) and all(
        was == now or (was.kind is not ContainerKind.INIT and _fixed(was.resources) == _fixed(now.resources))
        for was, now in pairs
    )


def is_resizable(entry: PodEntry) -> bool:
    """Whether a pod has what can be resized, and goes by its manifest. A runtime's is resized when kubelet asks."""
    return entry.holds and entry.deleting_since_ms is None and not entry.is_of_runtime


def gives_back(old: Pod, new: Pod) -> bool:
    """Whether a container of a resized pod, or the pod as a whole, asks for less of something."""
    pairs = [(was.resources, now.resources) for was, now in zip(old.containers, new.containers, strict=True)]
    if old.resources is not None and new.resources is not None:
        pairs.append((old.resources, new.resources))
    for was, now in pairs:
        for resource, amount in was.requests:
            left = now.requests.get(resource)
            if left is None or left.nano < amount.nano:
                return True
    return False


def moves_instead(new: Pod, answer: object) -> bool:
    """Whether a pod is decided on anew because it can't be resized: units of systemd's are given other CPUs while they run, where a pod
    would have to end first.
    """
    return isinstance(answer, NotResized) and bool(new.units)


def without_variables(pod: Pod) -> Pod:
    """Return a pod as others get it: variables may hold secrets."""
    return replace(pod, containers=tuple(replace(container, env=()) for container in pod.containers))


def resized_by(state: NodeState | None, pod: Pod) -> Pod | None:
    """Return the running pod that a manifest's would resize; None: there is none, or the change is another one."""
    for entry in () if state is None else state.entries:
        if is_resizable(entry) and pod.full_name == entry.pod.full_name:
            return entry.pod if is_resize(without_variables(entry.pod), without_variables(pod)) else None
    return None


def _fixed(resources: ResourceRequirements | None) -> tuple[Resources, ...] | None:
    """Return the amounts that can't change: huge pages and devices, as in Kubernetes. None: there are none of the pod as a whole, and that
    stays so.
    """
    if resources is None:
        return None
    parts = (resources.requests, resources.limits)
    return tuple(Resources(tuple(item for item in part if item[0] not in {CPU, MEMORY})) for part in parts)


def resized(
    managers: Managers,
    promises: Promises,
    old: Pod,
    new: Pod,
    *,
    usage: Usage,
    allocatable: Allocatable | None,
    occupied: CpuSet = CpuSet(),
) -> Promises | NotResized:
    """Decide on the amounts of a running pod.

    Args:
        managers: of the node.
        promises: as they are, the pod's among them.
        old: the pod as it runs.
        new: the same with other amounts, for which `is_resize`.
        usage: what all pods that hold something ask for, this one included.
        allocatable: what the node has for pods. None: that isn't checked.
        occupied: CPUs on which processes run that belong to no pod: others are taken, if these suffice.

    Returns:
        What is promised then, or why it stays as it is.
    """
    gate = managers.placement.gate("PodLevelResources")
    if qos_class(old, pod_level_resources=gate) is not qos_class(new, pod_level_resources=gate):
        was, becomes = (qos_class(pod, pod_level_resources=gate).value for pod in (old, new))
        return NotResized(RESIZE_INFEASIBLE, f"its QoS class would change from {was} to {becomes}")
    if old.units:
        # Who pins one anew with fewer CPUs wants others to have them: otherwise it would move, and have none of those that it has.
        cpu = replace(managers.providers.cpu, keeps_first=False)
        managers = replace(managers, providers=replace(managers.providers, cpu=cpu))
    if managers.is_pod_level(new) and demand_of(managers.rules, old) != demand_of(managers.rules, new):
        return _never(
            "CPUs and memory that the pod has for itself as a whole, and what its containers have of that, stay as they are while it runs: "
            "end the pod, and start it anew"
        )
    claimed = _of_claims(promises, old, new)
    if claimed is not None:
        return claimed
    if allocatable is not None:
        there, others = managers.with_devices(allocatable, promises), usage.minus(old, pod_level_resources=gate)
        short = insufficient(new, others, there, pod_level_resources=gate)
        if short is not None:
            reason = RESIZE_INFEASIBLE if short.requested > short.capacity else RESIZE_DEFERRED
            return NotResized(reason, short.message)
    taken = default_set(promises) & occupied
    if taken:
        elsewhere = _in_some_class(managers, with_default_set(promises, default_set(promises) - taken), old, new)
        if isinstance(elsewhere, Promises):
            return with_default_set(elsewhere, default_set(elsewhere) | taken)
    return _in_some_class(managers, promises, old, new)


def _of_claims(promises: Promises, old: Pod, new: Pod) -> NotResized | None:
    """Refuse another amount of what a container has by its claims: these stay as they are for as long as the pod has them."""
    for was, now in zip(old.containers, new.containers, strict=True):
        drivers = {
            one.driver
            for claim in promises.of_pod(old.uid).of(ClaimHoldings).claims
            for one in claim.devices
            if any(used.uses(claim.name, one.request.partition("/")[0]) for used in was.claims)
        }
        for resource, driver in ((CPU, CPU_DRIVER), (MEMORY, MEMORY_DRIVER)):
            amounts = (container.resources.requests.get(resource) for container in (was, now))
            if driver in drivers and not _is_as_much(*amounts):
                what = "CPUs" if resource == CPU else "memory"
                why = f"container {was.name} has its {what} by a claim, which stays as it is: change the claim with the pod"
                return _never(why)
    return None


def _in_some_class(managers: Managers, promises: Promises, old: Pod, new: Pod) -> Promises | NotResized:
    demand = demand_of(managers.rules, new)
    wish = preferred_class(managers, new, demand)
    if wish is not None:
        first = _decided(managers, promises, old, replace(demand, core_class=wish))
        if isinstance(first, Promises):
            return first
    return _decided(managers, promises, old, demand)


def _decided(managers: Managers, promises: Promises, old: Pod, demand: PodDemand) -> Promises | NotResized:
    providers = seen_by(managers.providers, demand)
    before = {container.name: container for container in demand_of(managers.rules, old).containers}
    try:
        for given, amount in ((_with_cpus, _cpus), (_with_memory, _bytes)):
            # those that give something back come first: others of the pod may need it
            for now in sorted(demand.containers, key=lambda now: amount(now) >= amount(before[now.name])):
                answer = given(providers, promises, demand, before[now.name], now)
                if isinstance(answer, NotResized):
                    return answer
                promises = answer
    except PluginFailedError as err:
        return NotResized(Reason.CPU_PLUGIN_FAILED.value, str(err))
    return promises


def _cpus(container: ContainerDemand) -> int:
    return container.cpus


def _bytes(container: ContainerDemand) -> int:
    return sum(size for _, size in container.memory or ())


# CPUs


def _with_cpus(
    providers: Providers, promises: Promises, pod: PodDemand, was: ContainerDemand, now: ContainerDemand
) -> Promises | NotResized:
    manager = providers.cpu
    if not manager.static or pod.is_skipped or was.cpus == now.cpus:
        return promises
    name = f"container {now.name}"
    if not was.cpus:
        return _never(f"{name} has no CPUs of its own, and would get {now.cpus}: end the pod, and start it anew")
    if not now.cpus:
        return _never(f"{name} has {was.cpus} CPUs of its own, and would share: end the pod, and start it anew")
    own = own_set_of(promises, pod.uid, now.name) or CpuSet()  # none, where a start has found none for it
    away = own - CpuSet(manager.layout.online)
    if away:
        return _later(f"CPUs {away} of {name} are offline")
    chosen = (
        _fewer(manager, promises, pod, now, own) if now.cpus < len(own) else _more(providers, promises, pod, now, own)
    )
    return chosen if isinstance(chosen, NotResized) else _holding(promises, pod.uid, now.name, own, chosen)


def _fewer(
    manager: CpuManager, promises: Promises, pod: PodDemand, now: ContainerDemand, own: CpuSet
) -> CpuSet | NotResized:
    """Choose those that it keeps: the ones that it was admitted with, and of the others what the policy would take of them."""
    first = promises.of_pod(pod.uid).of(CpuHoldings).first_set(now.name) or own
    if now.cpus < len(first) and not manager.keeps_first:
        first = CpuSet()
    if now.cpus < len(first):
        return _never(
            f"container {now.name} keeps the CPUs that it was admitted with, {first}, as its program may have bound itself to them: "
            f"{now.cpus} would be fewer than {len(first)}"
        )
    asked = Question(manager.topology, promises, pod, now.name, own, now.cpus)
    return _without_whole_cores(manager, asked) or _among(manager, asked, first, None)


def _more(
    providers: Providers, promises: Promises, pod: PodDemand, now: ContainerDemand, own: CpuSet
) -> CpuSet | NotResized:
    """Choose CPUs beside those that it has: on its NUMA nodes first, and only there where the topology manager has promised that."""
    manager = providers.cpu
    hint = promises.hint(pod.uid, now.name).mask
    nodes = hint or NumaSet.from_ids(node.id for node in manager.nodes if node.cpus & own.bits)
    free, all_cpus = manager.free_cpus(promises), CpuMask(manager.universe & ~manager.reserved.bits & manager.grantable)
    where = stays = ""
    if providers.topology.policy in _STRICT and hint is not None:
        bound = manager.layout.cpus_of_nodes(NumaMask(hint.bits))
        free, all_cpus = CpuMask(free & bound), CpuMask(all_cpus & bound)
        where = f" on NUMA node{'s' if len(hint) > 1 else ''} {hint}"
        stays = _stays(providers)
    if now.cpus > all_cpus.bit_count():
        return _never(
            f"container {now.name} would have {now.cpus} CPUs of its own, and there are {all_cpus.bit_count()}{where}{stays}"
        )
    missing, left = now.cpus - len(own), CpuSet(free) | (_left_by_init(promises, pod, now) & CpuSet(all_cpus))
    asked = Question(manager.topology, promises, pod, now.name, own | left, now.cpus)
    if manager.plugins:
        asked = replace(manager.offered(over(asked, left.bits, missing)), count=now.cpus)
        left = asked.free
        asked = over(asked, (own | left).bits, now.cpus)
    half = _without_whole_cores(manager, asked)
    if half is not None:
        return half
    if missing > len(left):
        return _later(
            f"container {now.name} needs {missing} more CPUs, and {len(left)} {'is' if len(left) == 1 else 'are'} free{where}{stays}"
        )
    chosen = _among(manager, asked, own, NumaMask(nodes.bits))
    veto = manager.vetoed(asked, chosen) if manager.plugins and isinstance(chosen, CpuSet) else None
    return chosen if veto is None else _later(veto.message)


def _left_by_init(promises: Promises, pod: PodDemand, now: ContainerDemand) -> CpuSet:
    """CPUs of init containers that end before a container starts: they stay with the pod, and no other container of it has them."""
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


def _among(manager: CpuManager, asked: Question, kept: CpuSet, mask: NumaMask | None) -> CpuSet | NotResized:
    """Choose from what is asked about so that some are among it: as the policy would, if these are, and else beside them."""
    if len(kept) == asked.count:
        return kept
    best = choose_near(manager, asked, mask)
    if isinstance(best, CpuSet) and kept <= best:
        return best
    beside = choose_near(manager, over(asked, (asked.free - kept).bits, asked.count - len(kept)), mask)
    if isinstance(beside, CpuShortage):
        return _later(f"container {asked.container} can't keep {kept} and have {asked.count} CPUs: {beside.message}")
    return kept | beside


def _without_whole_cores(manager: CpuManager, asked: Question) -> NotResized | None:
    if not manager.options.full_pcpus_only:
        return None
    # What it has counts as well, which nobody has at an admission.
    there = with_default_set(asked.promises, default_set(asked.promises) | asked.free)
    refusal = check_full_cores(manager, replace(asked, promises=there))
    if refusal is None:
        return None
    is_possible = manager.layout.adds_up(manager.layout.online, asked.count)
    return (_later if is_possible else _never)(f"container {asked.container}: {refusal.message}")


def _holding(promises: Promises, uid: str, name: str, own: CpuSet, chosen: CpuSet) -> Promises:
    held = promises.of_pod(uid)
    of_cpus = held.of(CpuHoldings)
    first = (of_cpus.first_set(name) or own) & chosen
    beside = CpuSet()
    for other, cpus in of_cpus.cpus:
        beside |= CpuSet() if other == name else cpus
    is_first = first == chosen or not own
    first_sets = dropped(of_cpus.first_cpus, name) if is_first else put(of_cpus.first_cpus, name, first)
    after = replace(of_cpus, cpus=put(of_cpus.cpus, name, chosen), first_cpus=first_sets)
    books = promises.of(CpuBooks)
    default, reuse = (books.default - chosen) | (own - chosen - beside), books.reuse
    if reuse is not None and reuse.pod_uid == uid:
        reuse = replace(reuse, cpus=reuse.cpus - chosen) if reuse.cpus - chosen else None
    return with_pod(promises, uid, held.having(after)).having(CpuBooks(default, reuse))


# Memory


def _with_memory(
    providers: Providers, promises: Promises, pod: PodDemand, was: ContainerDemand, now: ContainerDemand
) -> Promises | NotResized:
    manager, held = providers.memory, promises.of_pod(pod.uid)
    blocks = held.of(MemoryHoldings).blocks(now.name)
    if blocks is None or was.memory == now.memory:
        return promises
    name = f"container {now.name}"
    if any(held.of(MemoryHoldings).blocks(one.name) for one in pod.containers if one.kind is ContainerKind.INIT):
        return _later(f"init containers of the pod hold memory that {name} takes over when they have ended")
    nodes = memory_nodes_of(promises, pod.uid, now.name) or NumaSet()
    hint = held.hint(now.name)
    if providers.topology.policy in _STRICT and (what := _beyond(manager.machine, nodes, now)):
        return _never(f"{name} would have more {what} than there is on NUMA {nodes}{_stays(providers)}")
    without = memory_manager.release_container(manager, promises, pod.uid, now.name)
    left = without.of_pod(pod.uid)
    asked = with_pod(without, pod.uid, replace(left, hints=put(left.hints, now.name, Hint(nodes, preferred=False))))
    answer = memory_manager.allocate_container(manager, asked, pod, now)
    if answer.refusal is not None:
        return _later(f"{name} on NUMA {nodes}: {answer.refusal.message}")
    after = answer.promises
    there = memory_nodes_of(after, pod.uid, now.name) or nodes
    if not there >= nodes or (there != nodes and providers.topology.policy in _STRICT):
        return _later(f"the memory of {name} would move from NUMA {nodes} to {there}")
    given = after.of_pod(pod.uid)
    known = [one for one, _ in held.hints]
    hints = put(given.hints, now.name, hint) if now.name in known else dropped(given.hints, now.name)
    books = MemoryBooks(memory_accounts(after), promises.of(MemoryBooks).reuse)
    return with_pod(after, pod.uid, replace(given, hints=hints)).having(books)


def _beyond(machine: NodeAccounts, nodes: NumaSet, now: ContainerDemand) -> str | None:
    """Return a resource of which a container asks for more than these NUMA nodes have for pods."""
    for resource, size in now.memory or ():
        tables = (node.table(resource) for node in machine if node.id in nodes)
        if size > sum(table.allocatable for table in tables if table is not None):
            return resource
    return None


def _stays(providers: Providers) -> str:
    return (
        f": there it stays while it runs (topologyManagerPolicy {providers.topology.policy.value}); "
        "end the pod, and start it anew, to let the topology manager choose again"
    )


def restarted(old: Pod, new: Pod) -> frozenset[str]:
    """Return the containers that take a restart for what changes (`resizePolicy`): not units, which systemd starts."""
    return frozenset(
        now.name
        for was, now in zip(old.containers, new.containers, strict=True)
        if not now.unit
        for resource in now.restarts_for
        if not _is_as_much(was.resources.requests.get(resource), now.resources.requests.get(resource))
        or not _is_as_much(_limit(old, was, resource), _limit(new, now, resource))
    )


def _is_as_much(was: Quantity | None, now: Quantity | None) -> bool:
    """Whether two amounts are the same, however they are written: `1Gi` is `1073741824`."""
    return was == now if was is None or now is None else was.nano == now.nano


def _limit(pod: Pod, container: Container, resource: str) -> Quantity | None:
    """Return a container's limit: one without has that of the pod as a whole."""
    own = container.resources.limits.get(resource)
    return own if own is not None or pod.resources is None else pod.resources.limits.get(resource)


class AmountChange(Struct, frozen=True):
    """An amount that a changed manifest asks for, of a container or of the pod as a whole."""

    container: str | None
    resource: str
    before: str | None
    """As it is written; None: nothing is said of it."""
    after: str | None


def changed_amounts(old: Pod, new: Pod) -> Iterator[AmountChange]:
    """Return the amounts in which two pods differ that are the same in all else: limits, or requests where these alone are others."""
    both: list[tuple[str | None, ResourceRequirements | None, ResourceRequirements | None]]
    both = [(None, old.resources, new.resources)]
    both += [(was.name, was.resources, now.resources) for was, now in zip(old.containers, new.containers, strict=True)]
    for name, was, now in both if is_resize(old, new) else ():
        if was is None or now is None:
            continue
        for resource in (CPU, MEMORY):
            for before, after in ((was.limits, now.limits), (was.requests, now.requests)):
                amounts = [part.get(resource) for part in (before, after)]
                if not _is_as_much(*amounts):
                    yield AmountChange(name, resource, *(None if each is None else str(each) for each in amounts))
                    break


def differences(before: Promises, after: Promises, old: Pod, new: Pod) -> Iterator[str]:
    """Say what changes for each container, in a few words."""
    if old.resources != new.resources:
        yield "the pod as a whole: amounts"
    for was, now in zip(old.containers, new.containers, strict=True):
        if was == now:
            continue
        cpus = [own_set_of(promises, new.uid, now.name) or "shared" for promises in (before, after)]
        if cpus[0] != cpus[1]:
            yield f"{now.name}: CPUs {cpus[0]} → {cpus[1]}"
        else:
            yield f"{now.name}: amounts"
