"""Descriptions of current problems, as `nodeagent inspect` shows them."""

from collections.abc import Iterable, Iterator, Mapping

from nodeagent.core.cgroups.ancestor_cpusets import Withheld
from nodeagent.core.host.irq_owners import InterruptOwners, InterruptRequest
from nodeagent.core.model.cgroup import DesiredCgroup
from nodeagent.core.model.cgroup_layout import is_pinned, unit_at
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.promises import UnrecoveredPod
from nodeagent.core.model.refusals import RESIZE_DEFERRED
from nodeagent.core.model.state import NodeState, PodEntry
from nodeagent.core.turn.world import TurnEvent
from nodeagent.errors import printable
from nodeagent.views.holdings.devices import list_unrecovered


def describe_duplicate(event: TurnEvent) -> tuple[str, str]:
    """Return the name of a manifest file that is ignored because of a duplicate, and a text that says why."""
    fields = dict(event.fields)
    return event.origin.name, (
        f"pod {event.pod.full_name} has the same {fields['same']} as a pod in {fields['first_source']}, which is used: "
        "remove one of the two manifests"
    )


def describe_unserved_containers(state: NodeState) -> str:
    """Describe the pods that keep their allocations although the agent doesn't serve their container runtime any more."""
    pods = ", ".join(entry.pod.full_name for entry in state.requested_entries())
    return (
        f"{pods}: the agent doesn't serve their container runtime any more, so they keep their allocations until their processes have "
        "ended (end them, or set nriSocket again)"
    )


def describe_refused_containers(state: NodeState, *, for_room: bool) -> Iterator[str]:
    """Describe each refused container of a running pod. Pods that are refused as a whole are left out, because they are listed elsewhere.

    Args:
        state: the node's state.
        for_room: whether the agent retries a container that was refused for lack of resources (`Config.retries_for_room`).
    """
    for entry in state.requested_entries():
        for refused in state.runtime.refused_of(entry.pod.uid):
            name = entry.pod.full_name
            by_itself = for_room and refused.is_for_room
            room = "make room: it is then decided again" if by_itself else f"make room, then: nodeagent retry {name}"
            hint = "undo the resize, or create the pod again" if refused.is_of_update else room
            yield f"pod {name}, container {printable(refused.key.name[:63])} is refused: {refused.reason} ({hint})"


def describe_misnamed_pods(state: NodeState) -> Iterator[str]:
    """Describe the container runtime's pods that are refused because of their names. No other list contains them, because the state has no
    entries for them.
    """
    known = {entry.pod.uid for entry in state.entries} if state.runtime.refused else frozenset[str]()
    for refused in state.runtime.refused:
        if refused.key.pod_uid not in known:
            yield (
                f"a pod, container {printable(refused.key.name[:63])} is refused: {refused.reason} (see `crictl pods`, and create it again)"
            )


def describe_refused_change(entry: PodEntry) -> str | None:
    """Describe why the changed manifest of a running pod isn't applied. None means that no change is refused."""
    refusal, name = entry.change_refusal, entry.pod.full_name
    if refusal is None or not entry.is_active:
        return None
    if refusal.reason == RESIZE_DEFERRED:
        return (
            f"pod {name} waits for its changed amounts, and keeps running unchanged: {refusal.message} "
            "(end a pod that holds them, or undo the change)"
        )
    return (
        f"the change is refused, and pod {name} keeps running unchanged: {refusal.reason}: {refusal.message} "
        f"(undo the change, or make room, then: nodeagent retry {name})"
    )


def describe_units_without_cpus(wanted: Iterable[DesiredCgroup]) -> str:
    """Describe the pinned units that have no usable CPU and, unlike containers, can't be frozen. Empty means that there are none."""
    units = [
        unit_at(want.path)
        for want in wanted
        if want.is_leaf and is_pinned(want.path) and want.goes_back_to is None and not want.cpus()
    ]
    return (
        f"no CPU is left for {', '.join(units)}: the shared pool is empty, and every reserved CPU is offline, so the kernel chooses "
        "their CPUs (bring a reserved CPU online, or end a pod with exclusive CPUs)"
        if units
        else ""
    )


def describe_units_of_unknown_pods(units: Mapping[str, CpuSet]) -> str:
    """Describe pinned units whose pods are unknown, because the state was lost and some manifests can't be read."""
    said = ", ".join(f"{unit} stays on CPUs {cpus}" for unit, cpus in sorted(units.items()))
    return (
        f"{said}: a pod has pinned {'it' if len(units) == 1 else 'them'}, and is unknown while some manifests can't be read. No other pod "
        "gets these CPUs meanwhile (correct the manifests that are reported here, or run `nodeagent pin` again)"
    )


def describe_lost_pods(lost: Iterable[UnrecoveredPod]) -> str:
    """Describe the lost pods to which devices are allocated, according to records. Empty means that there are none."""
    said = "; ".join(
        f"pod {pod.name or pod.uid} has {', '.join(devices)}" for pod in lost if (devices := list_unrecovered((pod,)))
    )
    return (
        f"{said}, according to records, as the state was lost: no other pod gets these devices before the pod is known again or has no "
        "processes (restore its manifest, or end it; a container runtime's pods are known once the runtime is connected)"
        if said
        else ""
    )


def describe_waiting_units(state: NodeState) -> Iterator[str]:
    """Describe each pod that released its CPUs while its unit was inactive, and for which too few CPUs are free now that the unit is
    active.
    """
    for entry in state.conspicuous_entries():
        refusal = entry.idle_refusal
        if refusal is not None and entry.is_active and entry.deleting_since_ms is None:
            units = ", ".join(entry.pod.units)
            yield (
                f"no room for pod {entry.pod.full_name}, which released its CPUs while {units} was inactive: {refusal.reason}: "
                f"{refusal.message} (free CPUs: until then it runs in the shared pool; `nodeagent pin --while-inactive keep` keeps CPUs)"
            )


def describe_refused_partitions(cpus: CpuSet) -> str:
    return (
        f"no cpuset partition could be created for CPUs {cpus} (the agent tries again); until then, systemd keeps the host's processes "
        "off them (AllowedCPUs= of its topmost units; see `nodeagent explain`)"
    )


def describe_unserved_interrupts(asked: Iterable[InterruptRequest], held: InterruptOwners) -> str:
    """Describe the interrupts that aren't handled on the CPUs of the container that requests them. Empty means that there are none."""
    unknown = (
        f"{', '.join(held.unknown)}: a pod's annotation claims its interrupts, but there is no such device, or it has no driver "
        "(see `ls /sys/class/net /sys/bus/pci/devices`)"
    )
    return "; ".join(
        [
            *([unknown] if held.unknown else []),
            *(
                f"the interrupts of {claim.device} are not delivered to {claim.by}, which has no exclusive CPUs (remove its annotation, or "
                "request whole CPUs)"
                for claim in asked
                if not claim.cpus
            ),
            *(
                f"the interrupts of {claim.device} are not delivered to {claim.by}: {holder.by} has them (remove one of these annotations)"
                for claim, holder in held.late
            ),
        ]
    )


def describe_unknown_profiles(unknown: Iterable[tuple[str, str]]) -> str:
    """Describe the pods that request a profile which isn't configured, so that the settings of their cores aren't changed. Empty means that
    there are none.
    """
    return "; ".join(
        f"the settings of {pod}'s cores are unchanged: there is no profile {profile} (define it: `profiles:` in the configuration)"
        for pod, profile in unknown
    )


def describe_withheld(kept: Withheld, online: CpuSet) -> str:
    """Describe the CPUs that a cgroup above the pods' cgroup withholds. The text names a command that grants them, because clearing
    AllowedCPUs= has no effect on a running unit (systemd #43846).
    """
    return (
        f"{kept.path} withholds CPUs {kept.cpus} from the pods, so they count as offline "
        f"(give them back: `systemctl set-property --runtime {kept.path.rpartition('/')[2]} AllowedCPUs={online}`)"
    )
