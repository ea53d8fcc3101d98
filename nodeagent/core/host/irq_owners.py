"""Whose CPUs get a device's interrupts: what pods' annotations ask for, and what of it holds."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct

from nodeagent.core.host.settings import Setting
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.state import NodeState, PodEntry

_WITH_QUEUES = frozenset({"network", "infiniband"})
"""Kinds of devices whose interrupts come to their owner's CPUs. Those of others follow who submits work, or can't be moved."""


class DeviceClaim(Struct, frozen=True):
    device: str
    """A PCI address or a network interface."""
    by: str
    """The container and its pod, in words."""
    cpus: CpuSet
    """The container's own. Empty: it has none, and gets no interrupts."""
    is_asked: bool = True
    """Whether somebody has asked for its interrupts; otherwise they follow from whose the device is, where it has any."""


class Claimed(Struct, frozen=True):
    """What of the claims holds. Each interrupt goes to the first that asks for it."""

    holders: Mapping[Setting, DeviceClaim]
    unknown: tuple[str, ...] = ()
    """Devices that have no interrupts, or are not there."""
    late: tuple[tuple[DeviceClaim, DeviceClaim], ...] = ()
    """Claims to what another container already has, and that one's."""


def claims(state: NodeState) -> tuple[DeviceClaim, ...]:
    """Return what the pods on the node ask for, in the order in which they were decided on; then whose network devices are."""
    active = sorted((entry for entry in state.entries if entry.is_active), key=lambda entry: entry.decided_at_ms)
    asked = [
        DeviceClaim(
            device,
            f"container {container.name} of pod {entry.pod.full_name}",
            state.promises.own_set(entry.pod.uid, container.name) or CpuSet(),
        )
        for entry in active
        for container in entry.pod.containers
        for device in container.interrupts
    ]
    if not state.promises.taken_devices():
        return tuple(asked)
    return (*asked, *_of_owners(state, active))


def _of_owners(state: NodeState, active: Iterable[PodEntry]) -> Iterator[DeviceClaim]:
    for entry in active:
        for name, devices in state.promises.of_pod(entry.pod.uid).devices:
            cpus = state.promises.own_set(entry.pod.uid, name)
            for device in devices if cpus else ():
                if device.kind in _WITH_QUEUES:
                    who = f"container {name} of pod {entry.pod.full_name}"
                    yield DeviceClaim(device.id, who, cpus or CpuSet(), is_asked=False)


def claimed(asked: Iterable[DeviceClaim], interrupts_of: Callable[[str], Iterable[Setting]]) -> Claimed:
    """Decide who has which interrupts.

    Args:
        asked: by whom, in order.
        interrupts_of: returns the interrupts of a device; none: it has none, or is not there.
    """
    holders: dict[Setting, DeviceClaim] = {}
    unknown: list[str] = []
    late: list[tuple[DeviceClaim, DeviceClaim]] = []
    for claim in asked:
        if not claim.cpus:
            continue
        interrupts = tuple(interrupts_of(claim.device))
        if not interrupts and claim.is_asked:
            unknown.append(claim.device)
        before = [holders[each] for each in interrupts if each in holders and holders[each].by != claim.by]
        if before and claim.is_asked:
            late.append((claim, before[0]))
        holders |= {each: claim for each in interrupts if each not in holders}
    return Claimed(holders, tuple(dict.fromkeys(unknown)), tuple(late))
