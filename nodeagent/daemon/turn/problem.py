"""Problem: a failure as text for people, with the log fields of its pod."""

from collections.abc import Callable, Mapping
from typing import Self

from nodeagent.core.model.state import NodeState
from nodeagent.daemon.reports.logs import pod_fields
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError
from nodeagent.edge.processes.launcher import LauncherError
from nodeagent.errors import NodeAgentError


class Problem(str):
    """The text of a failure. Problems with equal text are the same problem."""

    __slots__ = ("log_fields",)
    log_fields: Mapping[str, str]
    """Pod and container of the problem, as log fields. Empty if the problem concerns no pod."""

    def __new__(cls, text: str, fields: Mapping[str, str] | None = None) -> Self:
        made = super().__new__(cls, text)
        made.log_fields = fields or {}
        return made

    @classmethod
    def from_error(cls, err: NodeAgentError, fields: Mapping[str, str] | None = None) -> Self:
        """Return the error's message followed by its hint."""
        return cls(f"{err.message} ({err.hint})", fields)


def as_problem(text: str) -> Problem:
    """Return a Problem unchanged, or make one without log fields from a plain text."""
    return text if isinstance(text, Problem) else Problem(text)


def problem_if_failed(call: Callable[[], object], fields: Mapping[str, str] | None = None) -> Problem | None:
    """Change a cgroup or call the launcher. Return the problem if that failed."""
    try:
        call()
    except (CgroupError, LauncherError) as err:
        return Problem.from_error(err, fields)
    return None


def owner_fields(state: NodeState, path: str) -> dict[str, str]:
    """Return the log fields of the pod or container that owns a cgroup. Empty for a cgroup without a pod."""
    for entry in state.entries:
        if path == entry.pod_path:
            return pod_fields(entry.pod)
        for container in entry.pod.containers:
            if path == entry.container_path(container.name):
                return pod_fields(entry.pod, container.name)
    return {}
