"""Which container a command enters, if it can be entered at all: what `exec` does, `probe` does too."""

from nodeagent.cli.support.known_state import looked_at
from nodeagent.core.cgroups.desired_cgroups import desired_cgroups
from nodeagent.core.cgroups.exec_preconditions import obstacle
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.state import PodEntry
from nodeagent.edge.cgroup_entry import used_below
from nodeagent.errors import NodeAgentError
from nodeagent.formats.node_view import NodeView


class EntryError(NodeAgentError):
    """There is no such container, or it cannot be entered now."""


def check_container(entry: PodEntry, name: str) -> None:
    """Make sure that a pod has this container: names are looked up, never used as pieces of a path.

    Raises:
        EntryError: it has not.
    """
    names = [c.name for c in entry.pod.containers]
    if name not in names:
        raise EntryError(
            f"pod {entry.pod.full_name} has no container '{name}'",
            hint=f"it has: {', '.join(names)}; see `nodeagent inspect {entry.pod.full_name}`",
        )


def expected_cpus(known: NodeView, entry: PodEntry, container: str) -> CpuSet:
    """Return the CPUs that a command in an existing container should have.

    Raises:
        NodeAgentError: nothing can enter it now.
    """
    view = looked_at(known)
    observed, kernel = view.observed.cgroups or {}, view.kernel
    if entry.is_active and kernel is None:
        problems = "; ".join((*view.problems, *view.observed.problems))
        raise EntryError(
            "the pods' cgroup cannot be read: " + (problems or "its location is unknown"),
            hint="start the pods' unit: systemctl start nodeagent-pods",
        )
    wanted = () if kernel is None else desired_cgroups(view.node.config, view.node.managers, kernel, view.state)
    path = entry.container_path(container)
    below = used_below(f"{known.cgroup_root}/{path}") if path in observed else ()
    hindrance = obstacle(entry, container, desired=wanted, observed=observed, used_below=below)
    if hindrance is not None:
        raise EntryError(hindrance.why, hint=hindrance.next_step)
    return next(want.cpus() for want in wanted if want.path == path)
