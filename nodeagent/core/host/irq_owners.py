"""Owners of interrupts: containers that handle a device's interrupts on their CPUs, because an annotation requests it or because the device
is allocated to them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct

from nodeagent.core.host.settings import Setting
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.state import NodeState, PodEntry
from nodeagent.core.resources.cpu.holdings import own_set_of
from nodeagent.core.resources.devices.holdings import DeviceHoldings, taken_devices

_WITH_QUEUES = frozenset({"network", "infiniband"})
"""Kinds of devices whose interrupts go to the CPUs of the container that has the device. Devices of other kinds raise interrupts on the CPU
that submits a request, or their interrupts can't be moved.
"""


class InterruptRequest(Struct, frozen=True):
    device: str
    """PCI address or network interface of the device."""
    by: str
    """Description of the requesting container and its pod, for messages to users."""
    cpus: CpuSet
    """Exclusive CPUs of the requesting container. Without exclusive CPUs, it gets no interrupts."""
    is_asked: bool = True
    """Whether an annotation requests the interrupts. If not, the reason for the request is that the device is allocated to the
    container.
    """


class InterruptOwners(Struct, frozen=True):
    """Assignment of interrupts to containers. An interrupt that several containers request goes to the one that requested it first."""

    holders: Mapping[Setting, InterruptRequest]
    unknown: tuple[str, ...] = ()
    """Requested devices that don't exist or have no interrupts."""
    late: tuple[tuple[InterruptRequest, InterruptRequest], ...] = ()
    """Requests that came too late for an interrupt, each with the earlier request of another container for the same interrupt."""


def interrupt_requests(state: NodeState) -> tuple[InterruptRequest, ...]:
    """Return the requests of all pods, in the order of their admission. Requests because of allocated devices come after those by
    annotations.
    """
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
        asked: the requests. If several are for the same interrupt, the first one is met.
        interrupts_of: function that returns the interrupts of a device, or nothing if the device doesn't exist or has no interrupts.
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
