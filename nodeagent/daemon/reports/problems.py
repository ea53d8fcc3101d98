"""Current problems, in the words that `inspect` shows."""

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


def duplicate(event: TurnEvent) -> tuple[str, str]:
    """Return the file that doesn't count, and why."""
    fields = dict(event.fields)
    return event.origin.name, (
        f"pod {event.pod.full_name} has the {fields['same']} of one in {fields['first_source']}, which counts: "
        "remove one of the two manifests"
    )


def unserved_containers(state: NodeState) -> str:
    """Explain why a container runtime's containers hold what they were promised, though nobody tells of them."""
    pods = ", ".join(entry.pod.full_name for entry in state.requested_entries())
    return (
        f"{pods}: their container runtime isn't served any more; what they were promised stays theirs until their processes have ended "
        "(end them, or set nriSocket again)"
    )


def refused_containers(state: NodeState) -> Iterator[str]:
    """Tell of containers that were refused to pods which have others; a pod that was refused as a whole is shown itself."""
    for entry in state.requested_entries():
        for refused in state.runtime.refused_of(entry.pod.uid):
            name = entry.pod.full_name
            room = f"make room, and: nodeagent retry {name}"
            hint = "undo the resize, or make the pod again" if refused.is_of_update else room
            yield f"pod {name}, container {printable(refused.key.name[:63])} is refused: {refused.reason} ({hint})"


def misnamed_pods(state: NodeState) -> Iterator[str]:
    """Tell of pods of a container runtime's that are refused for their names, and shown nowhere else."""
    known = {entry.pod.uid for entry in state.entries}
    for refused in state.runtime.refused:
        if refused.key.pod_uid not in known:
            yield (
                f"a pod, container {printable(refused.key.name[:63])} is refused: {refused.reason} (see `crictl pods`, and make it anew)"
            )


def refused_change(entry: PodEntry) -> str | None:
    """Explain why a changed manifest is not followed; None: it is."""
    refusal, name = entry.change_refusal, entry.pod.full_name
    if refusal is None or not entry.is_active:
        return None
    if refusal.reason == RESIZE_DEFERRED:
        return (
            f"pod {name} waits for other amounts, and keeps running as it was: {refusal.message} "
            "(end a pod that holds them, or undo the change)"
        )
    return (
        f"the change is refused, and pod {name} keeps running as it was: {refusal.reason}: {refusal.message} "
        f"(undo the change, or make room and: nodeagent retry {name})"
    )


def units_without_cpus(wanted: Iterable[DesiredCgroup]) -> str:
    """Tell of systemd's units that no CPU is left for; empty: there are none. Nobody can freeze them."""
    units = [
        unit_at(want.path) for want in wanted if is_pinned(want.path) and want.goes_back_to is None and not want.cpus()
    ]
    return (
        f"no CPU is left for {', '.join(units)}: the shared pool is empty, and every reserved CPU is offline, so the kernel chooses where "
        "they run (bring a reserved CPU back online, or end a pod that has exclusive CPUs)"
        if units
        else ""
    )


def units_of_unknown_pods(units: Mapping[str, CpuSet]) -> str:
    """Tell of pinned units whose pods aren't known since the state was lost, as manifests can't be read; with the CPUs that they are on."""
    said = ", ".join(f"{unit} stays on CPUs {cpus}" for unit, cpus in sorted(units.items()))
    return (
        f"{said}, where a pod has pinned {'it' if len(units) == 1 else 'them'}: whose manifest that is can't be known while some can't be "
        "read (correct what is said of manifests here, or `nodeagent pin` anew: others get none of these CPUs before)"
    )


def lost_pods_problem(lost: Iterable[UnrecoveredPod]) -> str:
    """Tell of pods that aren't known since the state was lost, and have devices by records; empty: there are none."""
    said = "; ".join(
        f"pod {one.name or one.uid} has {', '.join(devices)}" for one in lost if (devices := list_unrecovered((one,)))
    )
    return (
        f"{said}: records say so, as the state that knew the pod was lost; nobody else gets it before the pod is known again, or has no "
        "processes (bring back its manifest, or end it; what a container runtime runs is known once that is connected)"
        if said
        else ""
    )


def waiting_units(state: NodeState) -> Iterator[str]:
    """Tell of units that have given back their CPUs, are active again, and can't have them."""
    for entry in state.entries:
        refusal = entry.idle_refusal
        if refusal is not None and entry.is_active and entry.deleting_since_ms is None:
            units = ", ".join(entry.pod.units)
            yield (
                f"no room for pod {entry.pod.full_name}, which gave back its CPUs while {units} wasn't active: {refusal.reason}: "
                f"{refusal.message} (make room: until then it runs in the shared pool; `nodeagent pin --while-inactive keep` keeps them)"
            )


def refused_partitions(cpus: CpuSet) -> str:
    return (
        f"CPUs {cpus} are in no partition of the cpuset, which is tried again: meanwhile systemd is to keep the host off them "
        "(AllowedCPUs of its topmost units; see `nodeagent explain`)"
    )


def unserved_interrupts(asked: Iterable[InterruptRequest], held: InterruptOwners) -> str:
    """Explain which interrupts don't come where pods' annotations want them; empty: all do."""
    unknown = (
        f"no interrupts of {', '.join(held.unknown)}, which a pod's annotation names: there is no such device, or no driver has it "
        "(see `ls /sys/class/net /sys/bus/pci/devices`)"
    )
    return "; ".join(
        [
            *([unknown] if held.unknown else []),
            *(
                f"the interrupts of {claim.device} don't come to {claim.by}, which has no CPUs of its own (remove its annotation, or "
                "request whole CPUs)"
                for claim in asked
                if not claim.cpus
            ),
            *(
                f"the interrupts of {claim.device} don't come to {claim.by}: {holder.by} has them (remove one of the two annotations)"
                for claim, holder in held.late
            ),
        ]
    )


def withheld_problem(kept: Withheld) -> str:
    return (
        f"{kept.path} keeps CPUs {kept.cpus} from the pods, so they count as offline "
        f"(see cpuset.cpus there; of a unit: systemctl show -p AllowedCPUs {kept.path.rpartition('/')[2]})"
    )
