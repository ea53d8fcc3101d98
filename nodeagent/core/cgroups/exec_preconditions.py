"""Preconditions of `nodeagent exec`: whether a container has its allocated CPUs now, and whether another process may enter the container's
cgroup.

A process may enter only if it gets exactly the allocated CPUs. This module doesn't read files, so the caller passes the names of the
cgroups below the container's cgroup.
"""

from collections.abc import Sequence
from itertools import takewhile

from msgspec import Struct

from nodeagent.core.cgroups.write_order import diff
from nodeagent.core.model.cgroup import Attribute, DesiredCgroup, ObservedCgroup, ObservedCgroups
from nodeagent.core.model.cgroup_layout import cpuset_path, is_pinned, unit_at
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import ContainerKind
from nodeagent.core.model.state import JOBS, PodEntry


class Obstacle(Struct, frozen=True):
    why: str
    next_step: str


def find_obstacle(
    entry: PodEntry,
    name: str,
    *,
    desired: Sequence[DesiredCgroup],
    observed: ObservedCgroups,
    used_below: Sequence[str],
) -> Obstacle | None:
    """Return the reason why a process can't enter a container now. None means that it can.

    Args:
        entry: the pod.
        name: the name of one of the pod's containers.
        desired: the desired cgroups of all pods.
        observed: the observed cgroups of all pods.
        used_below: the names of those cgroups directly below the container's cgroup or its payload cgroup that have processes.
    """
    path = entry.container_path(name)
    return (
        _check_pod(entry)
        or _check_container(entry, name, observed)
        or _check_cgroup(entry, path, desired, observed, used_below)
    )


def find_unkept(
    entry: PodEntry, name: str, *, desired: Sequence[DesiredCgroup], observed: ObservedCgroups
) -> Obstacle | None:
    """Return the reason why a container doesn't have what was allocated to it: its cgroup has other values, or processes of other cgroups
    may use its exclusive CPUs. None means that it has everything.

    The parameters are the same as in `find_obstacle`.
    """
    return _check_pod(entry) or _check_cgroup(entry, entry.container_path(name), desired, observed, None)


def _check_pod(entry: PodEntry) -> Obstacle | None:
    pod = entry.pod.full_name
    if entry.refusal is not None:
        return Obstacle(
            f"pod {pod} was refused: {entry.refusal.reason}: {entry.refusal.message}",
            f"change its manifest, or free what it needs and run: nodeagent retry {pod}",
        )
    if entry.deleting_since_ms is not None:
        is_job = entry.origin.source == JOBS
        back = "run `nodeagent job` again" if is_job else f"put its manifest {entry.origin.name} back"
        return Obstacle(f"pod {pod} is being ended", f"to run it again, {back}")
    if entry.outcome is not None:
        return Obstacle(
            f"pod {pod} has finished ({entry.outcome.value}) and released its CPUs",
            f"to run it again, change its manifest {entry.origin.name}, or remove it and put it back",
        )
    return None


def _check_container(entry: PodEntry, name: str, observed: ObservedCgroups) -> Obstacle | None:
    container, status, cgroup = entry.pod.container(name), entry.status(name), observed.get(entry.container_path(name))
    if container.unit:
        return Obstacle(
            f"container {name} of pod {entry.pod.full_name} pins {container.unit}: systemd starts its processes",
            f"add the command to the unit's own file (`systemctl cat {container.unit}`), or to a unit of its slice",
        )
    if not container.is_launched:
        return _check_inits(entry, name, observed)
    # Processes that outlive a container's command are killed, so that the container can restart.
    if not status.is_started or cgroup is None or not cgroup.is_populated:
        return Obstacle(
            f"container {name} of pod {entry.pod.full_name} is not running",
            f"wait until it is: nodeagent inspect {entry.pod.full_name}",
        )
    if status.stop_by_ms is not None:
        return Obstacle(
            f"container {name} of pod {entry.pod.full_name} is being stopped",
            f"wait until it runs again: nodeagent inspect {entry.pod.full_name}",
        )
    return None


def _check_inits(entry: PodEntry, name: str, observed: ObservedCgroups) -> Obstacle | None:
    """Check that all init containers before this container have ended. This container may reuse their CPUs, even CPUs that are
    offline now.
    """
    for container, status in takewhile(lambda pair: pair[0].name != name, entry.pairs()):
        cgroup = observed.get(entry.container_path(container.name))
        if container.kind is not ContainerKind.INIT or not container.is_launched:
            continue
        is_over = status.exit is not None and status.exit.is_success
        if not is_over or (cgroup is not None and cgroup.is_populated):
            return Obstacle(
                f"init container {container.name} of pod {entry.pod.full_name} has not ended yet",
                f"wait until it has: nodeagent inspect {entry.pod.full_name}",
            )
    return None


def _check_cgroup(
    entry: PodEntry,
    path: str,
    desired: Sequence[DesiredCgroup],
    observed: ObservedCgroups,
    used_below: Sequence[str] | None,
) -> Obstacle | None:
    """Check whether the cgroup's state is an obstacle. If `used_below` is None, no process is to enter the cgroup, so the checks for an
    entry are left out.
    """
    want = next((w for w in desired if w.path == path), None)
    cgroup = observed.get(path)
    if is_pinned(path) and cgroup is None:
        unit = unit_at(path)
        return Obstacle(f"systemd does not know unit {unit} yet", f"see `systemctl status {unit}`")
    if want is None or cgroup is None:
        return Obstacle(f"there is no cgroup {path} yet", "see `nodeagent inspect`, and `journalctl -u nodeagent`")
    if want.is_starved:
        return Obstacle(
            "the container is Starved: no CPU is left in the shared pool, so it is frozen",
            "end a pod that has exclusive CPUs, or reserve CPUs with reservedSystemCPUs",
        )
    entrance = None if used_below is None else _check_entrance(want, cgroup, used_below)
    cpuset = next(w for w in desired if w.path == cpuset_path(path))
    return (
        entrance or _check_values(cpuset, observed.get(cpuset.path)) or _check_intruders(entry, want, desired, observed)
    )


def _check_entrance(want: DesiredCgroup, cgroup: ObservedCgroup, used_below: Sequence[str]) -> Obstacle | None:
    if cgroup.is_frozen or cgroup.get(Attribute.FREEZE) is True:
        return Obstacle(
            "the container is frozen (cgroup.freeze)", "nodeagent thaws it within its reconcile period: try again"
        )
    if cgroup.subtree_control - want.controllers or used_below:
        below = f" ({', '.join(used_below)})" if used_below else ""
        return Obstacle(
            f"cgroup {cgroup.path} is the parent of other cgroups{below}: a runtime uses it, and the kernel allows no processes in a "
            "cgroup with children (cgroup v2, no internal processes)",
            "use that runtime's own exec, such as `crictl exec` or `crun exec`",
        )
    return None


def _check_values(want: DesiredCgroup, cgroup: ObservedCgroup | None) -> Obstacle | None:
    next_step = "nodeagent corrects it within its reconcile period: try again, and see `nodeagent inspect`"
    for attribute in (Attribute.CPUSET_CPUS, Attribute.CPUSET_MEMS):
        found = None if cgroup is None else cgroup.get(attribute)
        if (found - want.offline_cpus if isinstance(found, CpuSet) else found) != want.get(attribute):
            return Obstacle(
                f"{attribute.value} of {want.path} is '{'' if found is None else found}' instead of the allocated '{want.get(attribute)}'",
                next_step,
            )
    effective = None if cgroup is None else cgroup.cpus_effective
    if effective != want.cpus():
        return Obstacle(
            f"cpuset.cpus.effective of {want.path} is '{effective or ''}' instead of the allocated '{want.cpus()}'",
            next_step,
        )
    return None


def _check_intruders(
    entry: PodEntry, want: DesiredCgroup, desired: Sequence[DesiredCgroup], observed: ObservedCgroups
) -> Obstacle | None:
    """Check whether processes of other cgroups may run on the container's exclusive CPUs, because they haven't left the CPUs yet or belong
    to an init container.
    """
    plan = diff(desired, observed)
    mine, taken = want.exclusive_cpus, want.exclusive_cpus & plan.occupied
    sharers = list(plan.orphans) if taken else []
    inits = {entry.container_path(c.name) for c in entry.pod.inits() if c.kind is ContainerKind.INIT}
    for other in desired:
        cgroup = observed.get(other.path)
        if other is want or not other.is_leaf or cgroup is None or not cgroup.is_populated or cgroup.is_frozen:
            continue
        in_one_pool = other.path.startswith(want.shares_with) and other.path not in inits and other.cpus() & mine
        shared = (cgroup.cpus_effective or CpuSet()) & mine
        if shared and not in_one_pool:
            taken |= shared
            sharers.append(other.path)
    if not taken:
        return None
    names = f" ({', '.join(sharers)})" if sharers else ""
    return Obstacle(
        f"processes of another cgroup{names} may run on its exclusive CPUs {taken}",
        "wait until they have ended or left; `nodeagent inspect` lists them and shows how to end them",
    )
