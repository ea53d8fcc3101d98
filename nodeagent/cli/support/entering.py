"""Checks for `exec`, `probe` and `cpus`: the container exists in the pod, can be entered, and has the CPUs allocated to it."""

from collections.abc import Sequence

from nodeagent.cli.support.node.observation import add_cgroups
from nodeagent.core.cgroups.container_placement import ContainerPlacement, container_placements
from nodeagent.core.cgroups.desired_cgroups import desired_cgroups
from nodeagent.core.cgroups.exec_preconditions import Obstacle, find_obstacle, find_unkept
from nodeagent.core.model.cgroup import DesiredCgroup
from nodeagent.core.model.cgroup_layout import PAYLOAD, cpuset_path
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.state import PodEntry
from nodeagent.edge.cgroups.cgroup_entry import list_populated_below
from nodeagent.errors import NodeAgentError
from nodeagent.formats.node_view import NodeView


class EntryError(NodeAgentError):
    """The container doesn't exist, can't be entered now, or doesn't have its allocated CPUs."""


def check_container(entry: PodEntry, name: str) -> None:
    """Check that a pod has a container with this name. Without this check, a name must not become part of a path.

    Raises:
        EntryError: the pod has no such container.
    """
    names = [c.name for c in entry.pod.containers]
    if name not in names:
        raise EntryError(
            f"pod {entry.pod.full_name} has no container '{name}'",
            hint=f"the pod's containers are {', '.join(names)}; see `nodeagent inspect {entry.pod.full_name}`",
        )


def find_expected_cpus(known: NodeView, entry: PodEntry, container: str) -> CpuSet:
    """Return the CPUs that a command will have after it has entered the container's cgroup.

    Raises:
        NodeAgentError: the container can't be entered now.
    """
    view, wanted = _compute_desired(known, entry)
    observed, path = view.observed.cgroups or {}, entry.container_path(container)
    below = (
        list_populated_below(f"{known.cgroup_root}/{path}", PAYLOAD)
        if path in observed and not entry.pins_units
        else ()
    )
    _check_obstacle(find_obstacle(entry, container, desired=wanted, observed=observed, used_below=below))
    return next(want.cpus() for want in wanted if want.path == cpuset_path(path))


def find_placement(known: NodeView, entry: PodEntry, container: str) -> ContainerPlacement:
    """Return the CPUs and memory nodes that a container has now.

    Raises:
        NodeAgentError: the container isn't running, or other tasks have not left its exclusive CPUs yet.
    """
    view, wanted = _compute_desired(known, entry)
    _check_obstacle(find_unkept(entry, container, desired=wanted, observed=view.observed.cgroups or {}))
    cgroups = {want.path: want for want in wanted}
    placements = container_placements(view.node.rules, view.state, cgroups)
    return placements.by_key()[entry.container_path(container)]


def _compute_desired(known: NodeView, entry: PodEntry) -> tuple[NodeView, Sequence[DesiredCgroup]]:
    """Read the pods' cgroups, and compute the desired ones. Return the view with the cgroups that were read, and the desired cgroups."""
    view = add_cgroups(known)
    kernel = view.kernel
    if entry.is_active and kernel is None:
        problems = "; ".join((*view.problems, *view.observed.problems))
        raise EntryError(
            "the pods' cgroup cannot be read: " + (problems or "its location is unknown"),
            hint="start the pods' unit: systemctl start nodeagent-pods",
        )
    return view, () if kernel is None else desired_cgroups(view.node.config, view.node.rules, kernel, view.state)


def _check_obstacle(hindrance: Obstacle | None) -> None:
    if hindrance is not None:
        raise EntryError(hindrance.why, hint=hindrance.next_step)
