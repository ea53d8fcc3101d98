"""Problems: descriptions of failures for users, each with a kind, and with the log fields of the pod that it concerns."""

from collections.abc import Callable, Mapping
from typing import Self

from nodeagent.core.model.problem_kinds import ProblemKind
from nodeagent.core.model.state import NodeState
from nodeagent.daemon.reports.logs import pod_fields
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError
from nodeagent.edge.files.state_files import StateFileError
from nodeagent.edge.processes.launcher import LauncherError
from nodeagent.errors import NodeAgentError

_KINDS = {CgroupError: ProblemKind.CGROUP, LauncherError: ProblemKind.LAUNCHER, StateFileError: ProblemKind.STATE}
"""Kind of problem by class of error. Errors of other classes have the kind OTHER."""


class Problem(str):
    """Description of a failure for users. Problems with the same text are equal."""

    __slots__ = ("kind", "log_fields")
    kind: ProblemKind
    log_fields: Mapping[str, str]
    """Log fields that name the pod and container. Empty means that the problem concerns no pod."""

    def __new__(
        cls, text: str, fields: Mapping[str, str] | None = None, *, kind: ProblemKind = ProblemKind.OTHER
    ) -> Self:
        made = super().__new__(cls, text)
        made.kind = kind
        made.log_fields = fields or {}
        return made

    @classmethod
    def from_error(cls, err: NodeAgentError, fields: Mapping[str, str] | None = None) -> Self:
        """Create a problem from an error's message and hint."""
        kinds = (kind for error, kind in _KINDS.items() if isinstance(err, error))
        return cls(f"{err.message} ({err.hint})", fields, kind=next(kinds, ProblemKind.OTHER))


def as_problem(text: str) -> Problem:
    """Return a Problem unchanged. Convert any other text to a Problem without log fields."""
    return text if isinstance(text, Problem) else Problem(text)


def problem_if_failed(call: Callable[[], object], fields: Mapping[str, str] | None = None) -> Problem | None:
    """Call a function. If it raises CgroupError or LauncherError, return the error as a problem."""
    try:
        call()
    except (CgroupError, LauncherError) as err:
        return Problem.from_error(err, fields)
    return None


def owner_fields(state: NodeState, path: str) -> dict[str, str]:
    """Return the log fields of the pod or container to which a cgroup belongs. Empty means that it belongs to none."""
    for entry in state.entries:
        if path == entry.pod_path:
            return pod_fields(entry.pod)
        for container in entry.pod.containers:
            if path == entry.container_path(container.name):
                return pod_fields(entry.pod, container.name)
    return {}
