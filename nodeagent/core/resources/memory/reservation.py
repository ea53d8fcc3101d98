"""Reserved memory of each NUMA node (configuration field `reservedMemory`). The amounts of all nodes must add up to the node-wide
reservation of systemReserved, kubeReserved and evictionHard.
"""

from nodeagent.core.model.config import Placement
from nodeagent.core.model.pod import HUGEPAGES_PREFIX, MEMORY
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.model.topology import Topology

_FIELD = "reservedMemory"
_SUMMED_FIELDS = (_FIELD, "memoryManagerPolicy", "systemReserved", "kubeReserved", "evictionHard")
_EXAMPLE_AMOUNT = Quantity.of_bytes(512 * 2**20)
"""Amount that is shown in the example of an error message, if the configuration reserves no memory."""
Reserved = dict[tuple[int, str], int]
"""Reserved bytes by NUMA node and resource."""


def reserved_by_node(topology: Topology, placement: Placement) -> Reserved | tuple[StartRefused, ...]:
    """Check `reservedMemory` against the machine and the node-wide reservation, and return the reserved bytes. If there are errors, return
    these, in kubelet's words and order.
    """
    invalid = invalid_entries(placement)
    refused = [] if invalid is None else [invalid]
    refused += [
        StartRefused(
            f"the reserved memory configuration references a NUMA node {node} that does not exist on this machine",
            _FIELD,
            entry=index,
            allowed=f"must be one of {topology.node_ids}",
        )
        for index, node in enumerate(entry.numa_node for entry in placement.reserved_memory)
        if node not in topology.node_ids
    ]
    if invalid is None:
        # if an amount is invalid, sums can't be checked
        refused += find_wrong_sums(placement, topology)
    reserved: Reserved = {}
    for entry in placement.reserved_memory:
        for resource, amount in entry.limits:
            size = amount.as_int64()
            if size is None:
                # the spelling mistake is kubelet's
                return (*refused, StartRefused("could not covert a variable of type Quantity to int64", _FIELD))
            reserved[entry.numa_node, resource] = size
    if not refused and sum(size for (_, resource), size in reserved.items() if resource == MEMORY) <= 0:
        example = _format_reservation(topology, _EXAMPLE_AMOUNT)
        plain = f"memoryManagerPolicy Static needs reserved memory: add systemReserved: {{memory: {_EXAMPLE_AMOUNT}}} and {example}"
        refused.append(
            StartRefused(
                "[memorymanager] you should specify the system reserved memory",
                _FIELD,
                rests_on=_SUMMED_FIELDS,
                plain=plain,
            )
        )
    return tuple(refused) or reserved


def _is_memory(resource: str) -> bool:
    return resource == MEMORY or resource.startswith(HUGEPAGES_PREFIX)


def invalid_entries(placement: Placement) -> StartRefused | None:
    """Return the errors of `reservedMemory` that can be found without a machine, joined into one as by kubelet. None means that there are
    no such errors.
    """
    found = []
    seen: set[tuple[int, str]] = set()
    for entry in placement.reserved_memory:
        for resource, amount in entry.limits:
            where = f'NUMA node {entry.numa_node} and resource "{resource}"'
            if not _is_memory(resource):
                found.append(
                    f'invalid configuration: the limit type "{resource}" for NUMA node {entry.numa_node} is not supported, '
                    "only [memory hugepages-<HugePageSize>] is accepted"
                )
            if amount.nano == 0:
                found.append(f"invalid configuration: reserved memory may not be zero for {where}")
            if (entry.numa_node, resource) in seen:
                found.append(f"invalid configuration: the reserved memory has a duplicate value for {where}")
            seen.add((entry.numa_node, resource))
    if not found:
        return None
    return StartRefused(found[0] if len(found) == 1 else f"[{', '.join(found)}]", _FIELD)


def find_wrong_sums(
    placement: Placement, topology: Topology | None = None, *, at_least: bool = False
) -> tuple[StartRefused, ...]:
    """Return an error for each resource whose amounts in `reservedMemory` don't add up to the node-wide reservation.

    Args:
        placement: the part of the configuration that affects allocations. Its entries of `reservedMemory` are valid.
        topology: the machine, from which an example for the message is made. None means that the machine is unknown.
        at_least: whether `reservedMemory` may exceed the node-wide reservation, a part of which can't be computed without the machine.
    """
    totals: dict[str, Quantity] = {}
    for entry in placement.reserved_memory:
        for resource, amount in entry.limits:
            so_far = totals.get(resource)
            # As in Quantity.Add, a sum is printed in the notation of the first addend that isn't zero.
            totals[resource] = amount if so_far is None or so_far.nano == 0 else so_far + amount
    reservation = {resource: amount for resource, amount in placement.memory_reservation if _is_memory(resource)}
    refused = []
    for resource in sorted(totals.keys() | reservation.keys()):
        configured, wanted = totals.get(resource, Quantity(0)), reservation.get(resource, Quantity(0))
        is_lower_bound = at_least and resource == MEMORY
        if configured.nano != wanted.nano and not (is_lower_bound and configured.nano > wanted.nano):
            refused.append(
                StartRefused(
                    f'the total amount "{configured}" of type "{resource}" is not equal to the value "{wanted}" '
                    "determined by Node Allocatable feature",
                    _FIELD,
                    rests_on=_SUMMED_FIELDS,
                    plain=_explain_wrong_sum(placement, topology, resource, configured, wanted, is_lower_bound),
                )
            )
    return tuple(refused)


def _explain_wrong_sum(
    placement: Placement,
    topology: Topology | None,
    resource: str,
    configured: Quantity,
    wanted: Quantity,
    is_lower_bound: bool,
) -> str:
    parts = "the sum of systemReserved, kubeReserved and evictionHard"
    bound = "at least " if is_lower_bound else ""
    if resource == MEMORY and not placement.reserved_memory:
        example = _format_entries([(0, wanted)]) if topology is None else _format_reservation(topology, wanted)
        return f"add {example} (memoryManagerPolicy Static needs {bound}{wanted}, {parts})"
    amounts = [str(wanted), str(configured)]
    if resource == MEMORY and len({amount.endswith("i") for amount in amounts if amount != "0"}) > 1:
        amounts = [
            f"{amount.value()} bytes" for amount in (wanted, configured)
        ]  # both amounts have the same unit, so that a reader can compare them
    return f"the reserved {resource} must add up to {bound}{amounts[0]}, not {amounts[1]} ({parts})"


def _format_reservation(topology: Topology, amount: Quantity) -> str:
    """Format the configuration that reserves this amount, as an example in YAML. The amount is reserved on the first NUMA node with enough
    memory or, if there is none, on several nodes.
    """
    whole = amount.value()
    nodes = [node for node in topology.numa if node.memory_bytes > 0]
    enough = next((node for node in nodes if node.memory_bytes >= whole), None)
    entries = []
    for node in nodes if enough is None else (enough,):
        part = min(whole, node.memory_bytes)
        whole -= part
        entries += [(node.id, Quantity.of_bytes(part))] if part else []
    return _format_entries(entries)


def _format_entries(entries: list[tuple[int, Quantity]]) -> str:
    limits = ", ".join(f"{{numaNode: {node}, limits: {{memory: {part}}}}}" for node, part in entries)
    return f"{_FIELD}: [{limits}]"
