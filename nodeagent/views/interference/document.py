"""Document of foreign tasks and interrupts on exclusive CPUs, with stable field names, sorted by time.

A task belongs to the owner of a CPU if it was seen in the owner's cgroup or was moved into this cgroup. Its descendants belong to the
owner, too, even if they exited before they were seen. Tasks that were already exiting when counting began are left out: no cgroup lists
them any more, so their owner is unknown.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from nodeagent.core.model.host_processes import HostThread
from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.kernel.cpu_use import SOFTIRQS, CpuUse, Handling, Interrupt, TaskRun, descendants
from nodeagent.formats.node_view import NodeView
from nodeagent.views.interference.cpu_owners import ExclusiveCpus, find_exclusive_owners

KIND = "Interference"
VERSION = 1
"""Version of the document. New fields don't increase the version, and fields are never renamed or removed."""

Document = dict[str, Any]


class Observations(Struct, frozen=True):
    """Tasks and interrupts that were observed around the measurement, in addition to the kernel's counters."""

    members: Mapping[str, frozenset[int]]
    """IDs of the tasks that were in each cgroup before or after the measurement, or were moved into it in between."""
    threads: Mapping[int, HostThread]
    """Tasks that still existed after the measurement, by ID."""
    running: Mapping[int, tuple[int, ...]]
    """IDs of the tasks that ran on each CPU at the end of the measurement. The kernel counts a task only when the CPU switches tasks, so
    these IDs are used for CPUs without a switch.
    """
    interrupts: Mapping[int, Interrupt]
    callers: frozenset[int]
    """PIDs of processes that aren't counted, because they belong to the measurement: the command, its pipeline, its shell and session
    (D12).
    """
    interrupts_by_device: Mapping[str, frozenset[int]] = {}
    """Numbers of the interrupts of each device whose interrupts a container requested."""


def describe_interference(
    view: NodeView, held: Iterable[ExclusiveCpus], use: CpuUse, seen: Observations, *, ended_early: bool = False
) -> Document:
    """Describe the counted tasks and interrupts.

    CPUs that were allocated or released during the measurement are left out, because tasks of both the old and the new owner ran there.

    Args:
        view: the node after the measurement.
        held: the owners of the CPUs before the measurement.
        use: the times that the kernel counted on the CPUs.
        seen: the observations of tasks and interrupts.
        ended_early: whether the measurement was interrupted.
    """
    held, unchanged = tuple(held), frozenset(find_exclusive_owners(view))
    containers = {
        view.cgroup_name(entry.container_path(container.name)): f"{entry.pod.full_name} {container.name}"
        for entry in view.state.entries
        for container in entry.pod.containers
    }
    found = [_describe_owner(owner, use, seen, containers) for owner in held if owner in unchanged]
    return describe_idle_node() | {
        "alone": all(one["alone"] for one in found),
        "endedEarly": ended_early,
        "microseconds": use.elapsed_ns // 1000,
        "dropped": use.dropped,
        "changed": [{"pod": one.pod, "cpus": str(one.cpus)} for one in held if one not in unchanged],
        "cpus": sorted(found, key=_sum_foreign_us, reverse=True),
    }


def describe_idle_node() -> Document:
    """Describe a node without exclusive CPUs."""
    return {
        "kind": KIND,
        "version": VERSION,
        "alone": True,
        "endedEarly": False,
        "microseconds": 0,
        "dropped": 0,
        "changed": [],
        "cpus": [],
    }


def is_alone(document: Mapping[str, Any]) -> bool:
    """Return whether exclusive CPUs were used only by their owners. Tasks and interrupts that can't run on other CPUs are ignored."""
    return bool(document["alone"])


def _describe_owner(owner: ExclusiveCpus, use: CpuUse, seen: Observations, containers: Mapping[str, str]) -> Document:
    members = frozenset().union(*(seen.members.get(cgroup, frozenset()) for cgroup in owner.cgroups))
    left_out = descendants(use.children, members) | use.exiting
    runs = [run for run in use.runs if run.cpu in owner.cpus]
    for cpu in use.unobserved & owner.cpus:  # a CPU is unobserved if the same task ran on it all the time
        running = seen.running.get(cpu, ())
        if members.isdisjoint(running):
            runs += [TaskRun(cpu, task, "", 1, use.elapsed_ns) for task in running[:1]]
    tasks = _describe_tasks([run for run in runs if run.task not in left_out], use.elapsed_ns, seen, containers)
    interrupts = _describe_interrupts(owner, use, seen)
    return {
        "pod": owner.pod,
        "uid": owner.uid,
        "containers": list(owner.containers),
        "cpus": str(owner.cpus),
        "alone": not any(_is_foreign(one) for one in (*tasks, *interrupts)),
        "tasks": tasks,
        "interrupts": interrupts,
        "softirqs": [
            {
                "name": (SOFTIRQS[number] if number < len(SOFTIRQS) else str(number)),
                **_sum_amounts(found, use.elapsed_ns),
            }
            for number, found in _group_by_number(use.softirqs, owner.cpus)
        ],
    }


def _describe_tasks(
    runs: Iterable[TaskRun], elapsed_ns: int, seen: Observations, containers: Mapping[str, str]
) -> list[Document]:
    """Describe tasks, grouped by name and origin, so that a program that is started again and again takes only one line."""
    groups: dict[tuple[str, str, str | None], list[TaskRun]] = defaultdict(list)
    for run in runs:
        thread = seen.threads.get(run.task)
        if (run.task if thread is None else thread.pid) not in seen.callers:
            name = run.name or ("" if thread is None else thread.name)
            groups[name, *find_origin(thread, containers)].append(run)
    found = [
        {
            "name": name,
            "kind": kind,
            "of": origin,
            "movable": kind != "bound-kernel-thread",
            "tasks": len({run.task for run in group}),
            **_sum_amounts(group, elapsed_ns),
        }
        for (name, kind, origin), group in groups.items()
    ]
    return sorted(found, key=lambda one: (not one["movable"], -one["microseconds"], one["name"], one["kind"]))


def find_origin(thread: HostThread | None, containers: Mapping[str, str]) -> tuple[str, str | None]:
    """Return the kind of a task and its origin: the container, or the cgroup of a host process. `containers` maps the cgroups of containers
    to their names.
    """
    if thread is None:
        return "ended", None
    if thread.is_kernel_thread:
        return "bound-kernel-thread" if thread.is_bound else "kernel-thread", None
    cgroup = thread.cgroup or ""
    for path, container in containers.items():
        if cgroup == path or cgroup.startswith(f"{path}/"):
            return "container", container
    return "process", thread.cgroup


def _is_foreign(one: Mapping[str, Any]) -> bool:
    """Return whether the task or interrupt is foreign, that is, it could run on other CPUs and the owner of the CPU didn't request it."""
    return one["movable"] is not False and not one.get("claimed", False)


def _describe_interrupts(owner: ExclusiveCpus, use: CpuUse, seen: Observations) -> list[Document]:
    claimed = frozenset().union(*(seen.interrupts_by_device.get(device, frozenset()) for device in owner.devices))
    found = []
    for number, handlings in _group_by_number(use.interrupts, owner.cpus):
        known = seen.interrupts.get(number, Interrupt("", None))
        found.append(
            {
                "number": number,
                "name": known.name,
                "movable": known.is_movable,
                "claimed": number in claimed,
                **_sum_amounts(handlings, use.elapsed_ns),
            }
        )
    return sorted(found, key=lambda one: (not _is_foreign(one), -one["microseconds"], one["number"]))


def _group_by_number(handlings: Iterable[Handling], cpus: CpuSet) -> list[tuple[int, list[Handling]]]:
    """Group by number the interrupts or softirqs that some CPUs handled. The group with the most time comes first."""
    found: dict[int, list[Handling]] = defaultdict(list)
    for one in handlings:
        if one.cpu in cpus:
            found[one.number].append(one)
    return sorted(found.items(), key=lambda item: (-sum(one.ns for one in item[1]), item[0]))


def _sum_amounts(found: Iterable[TaskRun | Handling], elapsed_ns: int) -> Document:
    found = tuple(found)
    ns = sum(one.ns for one in found)
    return {
        "cpus": str(CpuSet.from_ids(one.cpu for one in found)),
        "times": sum(one.times for one in found),
        "microseconds": ns // 1000,
        "millicores": 1000 * ns // max(1, elapsed_ns),
    }


def _sum_foreign_us(owner: Document) -> int:
    """Return the total time of foreign tasks and interrupts in microseconds. -1 means that none ran."""
    foreign = [one["microseconds"] for one in (*owner["tasks"], *owner["interrupts"]) if _is_foreign(one)]
    return sum(foreign) if foreign else -1
