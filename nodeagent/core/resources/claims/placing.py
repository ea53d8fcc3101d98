"""Search for devices that satisfy a pod's resource claims. These devices are chosen before the agent decides on the pod's other requests.

Among the CPUs and memory that a claim permits, the CPU manager and the memory manager choose. The agent then decides on the pod as if the
pod already held the claimed devices, so that all other allocations are aligned with them. This module is loaded only for pods with claims.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from nodeagent.core.metrics.deltas import Series
from nodeagent.core.metrics.manager_metrics import MEMORY_REQUESTS, MetricDeltas, allocations, assignments
from nodeagent.core.model.claims import CARD_DRIVER, CPU_DRIVER, AllocatedDevice, ClaimAllocation, DeviceRequest
from nodeagent.core.model.demand import ContainerDemand, PodDemand
from nodeagent.core.model.devices import PlacedDevices
from nodeagent.core.model.held_device import HeldDevice
from nodeagent.core.model.holdings import put_item
from nodeagent.core.model.idset import CpuMask, CpuSet, NumaMask, NumaSet
from nodeagent.core.model.pod import Container, ContainerKind, Pod
from nodeagent.core.model.promises import Hint, PodPromises, Promises, with_pod
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.refusals import Reason, Refusal
from nodeagent.core.model.topology import Topology
from nodeagent.core.resources.claims.held import drop_released_claims
from nodeagent.core.resources.claims.holdings import ClaimHoldings, claims_of, list_claim_owners
from nodeagent.core.resources.claims.inventory import SIZE, ClaimableDevice, claimable
from nodeagent.core.resources.claims.matching import Allowed, Looks, NoWayError, Wish, matching, ways_to_meet
from nodeagent.core.resources.claims.selectors import SelectorError
from nodeagent.core.resources.cpu.holdings import CpuHoldings, default_set, free_cpus, own_set_of, with_default_set
from nodeagent.core.resources.cpu.manager import CpuManager, allocate_container as allocate_cpus, allocation_deltas
from nodeagent.core.resources.cpu.resource import CpuResource
from nodeagent.core.resources.devices.holdings import DeviceHoldings, taken_devices
from nodeagent.core.resources.memory.accounting import free_of
from nodeagent.core.resources.memory.holdings import MemoryHoldings, memory_accounts
from nodeagent.core.resources.memory.manager import MemoryManager, allocate_container as allocate_memory
from nodeagent.core.resources.memory.resource import MemoryResource
from nodeagent.core.resources.resource import Resource

MOST_TRIED = 256
"""Maximum number of combinations of claimed devices that are tried per pod. For each combination, the agent decides on the whole pod, until
a combination admits the pod.
"""


class Met(Struct, frozen=True):
    """Result of a successful search: promises in which devices are allocated to all claims of the pod."""

    promises: Promises
    deltas: MetricDeltas
    demand: PodDemand
    """Requests of the pod, extended by the wish to be near the PCI cards that were allocated to its claims."""


class _MisfitError(Exception):
    """The claims can't be satisfied with the devices that are being tried. The text gives the reason."""


def ways_to_place(
    resources: Sequence[Resource],
    cards: PlacedDevices,
    machine: Topology,
    promises: Promises,
    pod: Pod,
    demand: PodDemand,
    *,
    lists_nodes: bool = False,
) -> Iterator[Met | Refusal]:
    """Yield one result for each way to satisfy a pod's claims, in the order in which the ways are tried. If there is no way, yield a
    refusal.

    Args:
        resources: the node's resources, limited to the CPUs, memory and devices that this pod may use.
        cards: the PCI devices found on this machine.
        machine: the current machine.
        promises: the promises before devices are allocated to the claims.
        pod: a pod with claims.
        demand: the pod's requests, without its claims.
        lists_nodes: whether the attribute `numaNode` of a card also lists the nearest other NUMA nodes.
    """
    (cpus,) = (one.manager for one in resources if isinstance(one, CpuResource))
    (memory,) = (one.manager for one in resources if isinstance(one, MemoryResource))
    try:
        devices = claimable(machine, cpus.reserved, cards.placed, lists_nodes=lists_nodes)
        placing = _Placing(cpus, memory, machine, promises, pod, demand, cards, devices)
        yield from placing.ways(_list_open_requests(promises, pod))
    except (_MisfitError, NoWayError, SelectorError) as err:
        unknown = f" (the machine's cards are unknown: {cards.problem})" if cards.problem else ""
        where = "" if demand.numa_node is None else f" (only on NUMA node {demand.numa_node}, which it requires)"
        yield Refusal(Reason.CLAIM, f"{err}{where}{unknown}")


def unusable(pod: Pod) -> str | None:
    """Return the reason why the pod's claims can't be satisfied, whatever devices the machine has, such as a missing document. None means
    that there is no such reason.
    """
    if pod.resources is not None:
        return "claims and resources of the pod as a whole (spec.resources) can't be combined: give the resources of each container"
    for claim in pod.claims:
        if claim.spec is None:
            kind = "ResourceClaimTemplate" if claim.template else "ResourceClaim"
            missing = claim.missing or f"{kind} {pod.namespace}/{claim.template or claim.claim}"
            return f"there is no {missing}: put its document into the manifest directory"
    for container in pod.containers:
        for used in container.claims:
            spec = next((claim.spec for claim in pod.claims if claim.name == used.name), None)
            if spec is not None and used.request and used.request not in {one.name for one in spec.requests}:
                return f"container {container.name} uses request {used.request} of claim {used.name}, which has no such request"
    return None


def _list_open_requests(promises: Promises, pod: Pod) -> list[Wish]:
    """Return the requests of those claims of the pod that are not allocated yet. A claim that another pod shares may already be
    allocated.
    """
    why = unusable(pod)
    if why is not None:
        raise _MisfitError(why)
    known = {name for name, _ in list_claim_owners(promises)}
    found: list[Wish] = []
    for claim in pod.claims:
        full_name = f"{pod.namespace}/{claim.claim_name(pod.name)}"
        if claim.spec is not None and full_name not in known:
            found += [Wish(full_name, claim.name, claim.spec, request) for request in claim.spec.requests]
    return found


class _Draft(Struct):
    """Devices chosen so far, in one attempt to satisfy all claims of the pod."""

    default: CpuSet
    """CPUs that no container has exclusively, without those chosen so far."""
    cpus: dict[str, CpuSet] = field(default_factory=dict)
    """CPUs chosen for each container."""
    nodes: dict[str, NumaSet] = field(default_factory=dict)
    amounts: dict[str, dict[str, int]] = field(default_factory=dict)
    """Bytes of memory chosen for each container, by resource (`memory` or `hugepages-<size>`)."""
    devices: dict[int, tuple[ClaimableDevice, ...]] = field(default_factory=dict)
    """Devices chosen for each request, by the request's index."""
    taken: set[str] = field(default_factory=set)


class _Placing:
    """Search for the devices of one pod's claims."""

    def __init__(
        self,
        cpus: CpuManager,
        memory: MemoryManager,
        machine: Topology,
        promises: Promises,
        pod: Pod,
        demand: PodDemand,
        cards: PlacedDevices,
        devices: tuple[ClaimableDevice, ...],
    ) -> None:
        self._cpu_manager = cpus
        self._memory_manager = memory
        self._machine = machine
        self._all_devices = devices
        self._nodes = {device.address: node for device, node in cards.placed}
        self._names = {device.address: (device.kind.value, device.names) for device, _ in cards.placed}
        self._promises = promises
        self._pod = pod
        self._demand = demand
        self._taken_keys = taken_devices(promises)
        self._free = free_cpus(promises, cpus.grantable)
        self._looks = Looks()

    def ways(self, wishes: Sequence[Wish]) -> Iterator[Met | Refusal]:
        promises = self._add_shared_claims(self._promises)
        if not wishes:
            yield self._make_result(promises, promises.of_pod(self._pod.uid), ())
            return
        masks = (None, *(NumaMask(1 << node) for node in self._machine.node_ids))
        seen_holdings: list[PodPromises] = []
        first_problem, tried = None, 0
        for allowed in ways_to_meet(wishes, self._all_devices, self._is_free, self._looks):
            for mask in masks:
                if tried == MOST_TRIED:
                    break
                tried += 1
                try:
                    way = self._try_way(promises, allowed, mask)
                except _MisfitError as err:
                    first_problem = first_problem or str(err)
                    continue
                held = way.promises.of_pod(self._pod.uid)
                if held not in seen_holdings:
                    seen_holdings.append(held)
                    yield way
            if tried == MOST_TRIED:
                break
        if not seen_holdings:
            raise _MisfitError(first_problem or "its claims can't be met")

    def _add_shared_claims(self, promises: Promises) -> Promises:
        """Add to the pod the allocations of claims that it shares with other pods."""
        device_by_name = {device.name: device for device in self._all_devices}
        for claim in self._pod.claims:
            full_name = f"{self._pod.namespace}/{claim.claim_name(self._pod.name)}"
            uids = sorted(uid for name, uid in list_claim_owners(promises) if name == full_name)
            if not uids:
                continue
            uid = uids[0]
            parts = [one for other in uids for one in claims_of(promises, other) if one.claim == full_name]
            if claim.template or any(one.is_own for one in parts):
                raise _MisfitError(
                    f"claim {full_name} already belongs to pod {uid}, and can't be shared: a claim from a template (named POD-NAME) "
                    "belongs to one pod only"
                )
            devices = tuple(dict.fromkeys(device for one in parts for device in one.devices))
            own = promises.of_pod(self._pod.uid)
            allocation = ClaimAllocation(full_name, claim.name, devices)
            own = own.having(ClaimHoldings((*own.of(ClaimHoldings).claims, allocation)))
            allocated_requests = {one.request.partition("/")[0] for one in devices}
            for request in claim.spec.requests if claim.spec else ():
                if request.name not in allocated_requests and self._find_users(claim.name, request.name):
                    raise _MisfitError(
                        f"claim {full_name} of pod {uid} has no devices for request {request.name}, because they were "
                        "released or never allocated: the claim gets devices for this request when no pod uses the claim"
                    )
            for one in devices:
                if one.driver != CARD_DRIVER:
                    what = "CPUs" if one.driver == CPU_DRIVER else "memory"
                    raise _MisfitError(
                        f"claim {full_name} of pod {uid} has {what}, which only one container can use: "
                        "give each pod a claim of its own by a resourceClaimTemplate"
                    )
                if not self._find_users(claim.name, one.request.partition("/")[0]):
                    continue
                if one.device not in device_by_name:
                    raise _MisfitError(f"claim {full_name} has device {one.device}, which doesn't exist any more")
                own = self._add_card(
                    own, claim.name, one.request.partition("/")[0], device_by_name[one.device], full_name
                )
            promises = with_pod(promises, self._pod.uid, drop_released_claims(own))
        return promises

    def _is_free(self, device: ClaimableDevice, way: DeviceRequest) -> bool:
        if device.cpu is not None:
            return device.cpu in self._free
        if device.memory is not None:
            node, resource = device.memory
            free = free_of(memory_accounts(self._promises), NumaSet(NumaMask(1 << node)), resource)
            return free >= _get_size(device, way)
        return ("", device.address) not in self._taken_keys

    def _try_way(self, promises: Promises, allowed: Sequence[Allowed], mask: NumaMask | None) -> Met:
        """Choose devices for each request. Requests for CPUs come first, then requests for memory, then requests for PCI cards. Within each
        of these kinds, the request with the fewest candidates comes first.

        Raises:
            _MisfitError: the `allowed` devices on the NUMA nodes of `mask` can't satisfy all requests.
        """
        draft = _Draft(default_set(promises))
        order = sorted(
            range(len(allowed)), key=lambda place: (_get_rank(allowed[place]), len(allowed[place].devices), place)
        )
        for done, place in enumerate(order):
            each = allowed[place]
            where = f"claim {each.wish.claim}, request {each.wish.request.name}"
            if len({_get_device_rank(device) for device in each.devices}) > 1:
                raise _MisfitError(
                    f"{where}: devices of several drivers match its selectors, but all must be of one driver"
                )
            users = self._find_users(each.wish.name, each.wish.request.name)
            if not users:
                raise _MisfitError(f"{where}: no container uses it (resources.claims)")
            rank = _get_rank(each)
            if rank != _CARD and len(users) > 1:
                named = " and ".join(user.name for user in users)
                raise _MisfitError(
                    f"{where}: CPUs and memory can be allocated to one container only, but {named} refer to this request"
                )
            if rank != _CARD and users[0].kind is ContainerKind.INIT:
                why = f"later containers reuse the CPUs and memory of an init container such as {users[0].name}"
                raise _MisfitError(f"{where}: CPUs and memory must stay with one container, but {why}")
            candidates = tuple(device for device in each.devices if device.name not in draft.taken)
            later_requests = [allowed[other] for other in order[done + 1 :]]
            taken = frozenset(draft.taken)
            if rank == _CPU:
                chosen = self._choose_cpus(promises, draft, users[0], each, candidates, mask)
                with_room = _leave_room(chosen, each, candidates, later_requests, taken, self._looks)
                if with_room != chosen:  # the options of the CPU policy apply to the replacement as well
                    chosen = self._choose_cpus(promises, draft, users[0], each, with_room, mask)
                cpus = CpuSet.from_ids(device.cpu for device in chosen if device.cpu is not None)
                draft.default -= cpus
                draft.cpus[users[0].name] = draft.cpus.get(users[0].name, CpuSet()) | cpus
            elif rank == _MEMORY:
                chosen = self._choose_memory(draft, users[0], each, candidates, mask)
            else:
                chosen = _leave_room(
                    self._choose_cards(draft, each, candidates, mask),
                    each,
                    candidates,
                    later_requests,
                    taken,
                    self._looks,
                )
            if rank != _MEMORY:
                draft.taken |= {device.name for device in chosen}
            draft.devices[place] = chosen
        return self._allocate_chosen(promises, draft, allowed)

    def _find_users(self, claim: str, request: str) -> tuple[Container, ...]:
        return tuple(c for c in self._pod.containers if any(one.uses(claim, request) for one in c.claims))

    def _choose_cpus(
        self,
        promises: Promises,
        draft: _Draft,
        user: Container,
        each: Allowed,
        candidates: tuple[ClaimableDevice, ...],
        mask: NumaMask | None,
    ) -> tuple[ClaimableDevice, ...]:
        """Let the CPU manager choose among the candidates, by the same policy and options as for a container with this CPU request."""
        manager = self._cpu_manager
        if not manager.static:
            raise _MisfitError(
                f"claim {each.wish.claim} is for CPUs, but claims for CPUs need cpuManagerPolicy: static"
            )
        bits = 0
        for device in candidates:
            bits |= 1 << (device.cpu or 0)
        held = promises.of_pod(self._pod.uid)
        hint = Hint(None if mask is None else NumaSet(mask), preferred=False)
        hinted = replace(held, hints=put_item(held.hints, user.name, hint))
        hinted_promises = with_pod(with_default_set(promises, draft.default), self._pod.uid, hinted)
        limited = replace(manager, grantable=CpuMask(manager.grantable & bits))
        demand = replace(self._get_demand(user), cpus=each.count)
        allocation = allocate_cpus(limited, hinted_promises, self._demand, demand)
        if allocation.refusal is not None:
            raise _MisfitError(
                f"claim {each.wish.claim}, request {each.wish.request.name}: {allocation.refusal.message}"
            )
        chosen = own_set_of(allocation.promises, self._pod.uid, user.name)
        assert chosen is not None
        return tuple(device for device in candidates if device.cpu is not None and device.cpu in chosen)

    def _get_demand(self, container: Container) -> ContainerDemand:
        return next(each for each in self._demand.containers if each.name == container.name)

    def _choose_memory(
        self,
        draft: _Draft,
        user: Container,
        each: Allowed,
        candidates: tuple[ClaimableDevice, ...],
        mask: NumaMask | None,
    ) -> tuple[ClaimableDevice, ...]:
        if not self._memory_manager.static:
            raise _MisfitError(
                f"claim {each.wish.claim} is for memory, but claims for memory need memoryManagerPolicy: Static"
            )
        near = self._machine.numa_of(draft.cpus.get(user.name, CpuSet())) | NumaSet(mask or NumaMask(0))
        chosen = tuple(sorted(candidates, key=lambda device: (device.memory or (0, ""))[0] not in near)[: each.count])
        for device in chosen:
            assert device.memory is not None
            node, resource = device.memory
            draft.nodes[user.name] = draft.nodes.get(user.name, NumaSet()) | NumaSet(NumaMask(1 << node))
            sizes = draft.amounts.setdefault(user.name, {})
            sizes[resource] = sizes.get(resource, 0) + _get_size(device, each.way)
        return chosen

    def _choose_cards(
        self, draft: _Draft, each: Allowed, candidates: tuple[ClaimableDevice, ...], mask: NumaMask | None
    ) -> tuple[ClaimableDevice, ...]:
        near = NumaSet(mask or NumaMask(0))
        for cpus in draft.cpus.values():
            near |= self._machine.numa_of(cpus)
        nodes = {device.address: self._nodes.get(device.address) for device in candidates}
        close = {address for address, node in nodes.items() if node is not None and node in near}
        return tuple(sorted(candidates, key=lambda device: device.address not in close)[: each.count])

    def _allocate_chosen(self, promises: Promises, draft: _Draft, allowed: Sequence[Allowed]) -> Met:
        """Record the chosen devices as holdings of the pod. The memory manager allocates the containers' memory on the NUMA nodes of the
        chosen memory.
        """
        held = promises.of_pod(self._pod.uid)
        for name, cpus in draft.cpus.items():
            self._judge_cpus(self._pod.container(name), cpus)
            held = held.having(CpuHoldings(put_item(held.of(CpuHoldings).cpus, name, cpus)))
        after = with_pod(with_default_set(promises, draft.default), self._pod.uid, held)
        deltas: MetricDeltas = ()
        for cpus in draft.cpus.values():
            moved = allocation_deltas(self._cpu_manager, after, cpus.bits)
            deltas += (*moved, allocations("cpu", "node"), assignments("cpu", "node_exclusive"))
        for name, nodes in draft.nodes.items():
            after, moved = self._allocate_memory(after, name, nodes, draft.amounts[name])
            deltas += moved
        held = after.of_pod(self._pod.uid)
        for name in dict.fromkeys(each.wish.name for each in allowed):
            results, full_name = [], ""
            for place, each in enumerate(allowed):
                if each.wish.name != name:
                    continue
                full_name = each.wish.claim
                for device in draft.devices[place]:
                    size = ((SIZE, _get_size(device, each.way)),) if device.memory is not None else ()
                    results.append(AllocatedDevice(each.result_name, device.driver, device.name, size))
                    if device.address:
                        held = self._add_card(held, name, each.wish.request.name, device, full_name)
            is_own = any(claim.name == name and claim.template for claim in self._pod.claims)
            allocation = ClaimAllocation(full_name, name, tuple(results), is_own)
            held = held.having(ClaimHoldings((*held.of(ClaimHoldings).claims, allocation)))
        return self._make_result(after, held, deltas)

    def _judge_cpus(self, container: Container, cpus: CpuSet) -> None:
        """Check that the number of claimed CPUs equals the container's CPU request. The request determines the container's CPU weight and
        how much of the node's capacity counts as used, so another number would be wrong in both.
        """
        requested = self._get_demand(container).cpus
        if requested == len(cpus):
            return
        claim_text = f"its claims have {len(cpus)} CPU{'s' * (len(cpus) != 1)}"
        way_out = f'cpu: "{len(cpus)}" and memory as its requests and limits'
        if not requested:
            raise _MisfitError(
                f"container {container.name} requests no exclusive CPUs, but {claim_text}: set {way_out}"
            )
        raise _MisfitError(
            f"container {container.name} requests {requested} exclusive CPUs, but {claim_text}: set {way_out}"
        )

    def _allocate_memory(
        self, promises: Promises, name: str, nodes: NumaSet, sizes: Mapping[str, int]
    ) -> tuple[Promises, MetricDeltas]:
        """Let the memory manager allocate all of a container's memory on the NUMA nodes of the memory that its claims have got."""
        demand = self._get_demand(self._pod.container(name))
        requested = dict(demand.memory or ())
        for resource, size in sizes.items():
            if requested.get(resource) != size:
                claim_text = f"its claims have {Quantity.of_bytes(size)} of {resource}"
                text = str(Quantity.of_bytes(requested[resource])) if resource in requested else "none"
                raise _MisfitError(
                    f"container {name} requests {text}, but {claim_text}: set this amount as the container's request and limit"
                )
        before = promises.of_pod(self._pod.uid)
        hinted = replace(before, hints=put_item(before.hints, name, Hint(nodes, preferred=False)))
        allocation = allocate_memory(
            replace(self._memory_manager, keeps_one_node=True),
            with_pod(promises, self._pod.uid, hinted),
            self._demand,
            demand,
        )
        if allocation.refusal is not None:
            raise _MisfitError(f"the memory of container {name}: {allocation.refusal.message}")
        held = allocation.promises.of_pod(self._pod.uid)
        if any(block.nodes != nodes for block in held.of(MemoryHoldings).blocks(name) or ()):
            raise _MisfitError(
                f"the memory of container {name} doesn't fit on NUMA node {nodes}, where the devices of its claims are"
            )
        after = with_pod(allocation.promises, self._pod.uid, replace(held, hints=before.hints))
        return after, tuple(d for d in allocation.deltas if d.series != Series(MEMORY_REQUESTS))

    def _add_card(
        self, held: PodPromises, name: str, request: str, device: ClaimableDevice, full_name: str
    ) -> PodPromises:
        node = self._nodes.get(device.address)
        nodes = NumaSet() if node is None else NumaSet(NumaMask(1 << node))
        kind, names = self._names[device.address]
        card = HeldDevice(CARD_DRIVER, device.address, nodes, kind, names, full_name)
        for container in self._pod.containers:
            if any(one.uses(name, request) for one in container.claims):
                own = held.of(DeviceHoldings)
                held = held.having(own.with_devices(container.name, {*own.devices_of(container.name), card}))
        return held

    def _make_result(self, promises: Promises, held: PodPromises, deltas: MetricDeltas) -> Met:
        near = {name: tuple(d.id for d in devices if d.claim) for name, devices in held.of(DeviceHoldings).devices}
        containers = tuple(
            replace(each, near=(*each.near, *near.get(each.name, ()))) for each in self._demand.containers
        )
        return Met(with_pod(promises, self._pod.uid, held), deltas, replace(self._demand, containers=containers))


_CPU, _MEMORY, _CARD = range(3)


def _get_device_rank(device: ClaimableDevice) -> int:
    if device.cpu is not None:
        return _CPU
    return _CARD if device.memory is None else _MEMORY


def _get_rank(each: Allowed) -> int:
    return _get_device_rank(each.devices[0])


def _get_size(device: ClaimableDevice, way: DeviceRequest) -> int:
    return dict(way.capacity).get(SIZE, dict(device.capacity)[SIZE])


def _leave_room(
    chosen: tuple[ClaimableDevice, ...],
    each: Allowed,
    candidates: tuple[ClaimableDevice, ...],
    later_requests: Sequence[Allowed],
    taken: frozenset[str],
    looks: Looks,
) -> tuple[ClaimableDevice, ...]:
    """Return the chosen devices, or other candidates if the chosen devices would leave too few devices for later requests."""
    if not later_requests or matching(later_requests, taken | {device.name for device in chosen}, looks) is not None:
        return chosen
    owners = matching([each, *later_requests], taken, looks)
    assert owners is not None, "there was room for all before"
    return tuple(device for device in candidates if owners.get(device.name) == 0)
