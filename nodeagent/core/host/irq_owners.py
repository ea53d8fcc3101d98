"""Owners of interrupts. An owner is a container that gets a device's interrupts on its CPUs, because of an annotation or because the
device is allocated to it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct

from nodeagent.core.host.settings import Setting
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.state import NodeState, PodEntry
from nodeagent.core.resources.cpu.holdings import own_set_of
from nodeagent.core.resources.devices.holdings import DeviceHoldings, taken_devices

_WITH_QUEUES = frozenset({"network", "infiniband"})
"""Kinds of devices whose interrupts go to their owner's CPUs. Other kinds raise interrupts on the CPU that submits a request, or their
interrupts can't be moved.
"""


class InterruptRequest(Struct, frozen=True):
    device: str
    """PCI address of the device, or its network interface."""
    by: str
    """Description of the container and its pod in texts for users."""
    cpus: CpuSet
    """Exclusive CPUs of the container. A container without exclusive CPUs doesn't get any interrupts."""
    is_asked: bool = True
    """Whether an annotation requests the interrupts. If not, the container gets them because the device is allocated to it."""


class InterruptOwners(Struct, frozen=True):
    """Interrupts of each owner. An interrupt that several containers request belongs to the container that requested it first."""

    holders: Mapping[Setting, InterruptRequest]
    unknown: tuple[str, ...] = ()
    """Devices that are absent or have no interrupts."""
    late: tuple[tuple[InterruptRequest, InterruptRequest], ...] = ()
    """Requests that lost an interrupt, each with the earlier request of another container for the same interrupt."""


def interrupt_requests(state: NodeState) -> tuple[InterruptRequest, ...]:
    """Return the requests of all pods in the order of their decisions. The owners of allocated network devices come last."""
    active = sorted((entry for entry in state.entries if entry.is_active), key=lambda entry: entry.decided_at_ms)
    asked = [
        InterruptRequest(
            device,
            f"container {container.name} of pod {entry.pod.full_name}",
            own_set_of(state.promises, entry.pod.uid, container.name) or CpuSet(),
        )
        for entry in active
        for container in entry.pod.containers
        for device in container.interrupts
    ]
    if not taken_devices(state.promises):
        return tuple(asked)
    return (*asked, *_list_device_owners(state, active))


def _list_device_owners(state: NodeState, active: Iterable[PodEntry]) -> Iterator[InterruptRequest]:
    for entry in active:
        for name, devices in state.promises.of_pod(entry.pod.uid).of(DeviceHoldings).devices:
            cpus = own_set_of(state.promises, entry.pod.uid, name)
            for device in devices if cpus else ():
                if device.kind in _WITH_QUEUES:
                    who = f"container {name} of pod {entry.pod.full_name}"
                    yield InterruptRequest(device.id, who, cpus or CpuSet(), is_asked=False)


def assign_interrupts(
    asked: Iterable[InterruptRequest], interrupts_of: Callable[[str], Iterable[Setting]]
) -> InterruptOwners:
    """Decide which container gets which interrupts.

    Args:
        asked: the requests, in order.
        interrupts_of: function that returns the interrupts of a device. The result is empty if the device is absent or has no interrupts.
    """
    holders: dict[Setting, InterruptRequest] = {}
    unknown: list[str] = []
    late: list[tuple[InterruptRequest, InterruptRequest]] = []
    for request in asked:
        if not request.cpus:
            continue
        interrupts = tuple(interrupts_of(request.device))
        if not interrupts and request.is_asked:
            unknown.append(request.device)
        before = [holders[each] for each in interrupts if each in holders and holders[each].by != request.by]
        if before and request.is_asked:
            late.append((request, before[0]))
        holders |= {each: request for each in interrupts if each not in holders}
    return InterruptOwners(holders, tuple(dict.fromkeys(unknown)), tuple(late))
