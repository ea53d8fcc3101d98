"""Problem: the text of a failure for users, with the kind of the problem and the log fields of its pod."""

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
"""Kinds of problems by class of error. All other errors have the kind OTHER."""


class Problem(str):
    """A failure as text for users. Two problems with equal texts are the same problem."""

    __slots__ = ("kind", "log_fields")
    kind: ProblemKind
    log_fields: Mapping[str, str]
    """Pod and container of the problem, as log fields. Empty means that the problem doesn't concern a pod."""

    def __new__(
        cls, text: str, fields: Mapping[str, str] | None = None, *, kind: ProblemKind = ProblemKind.OTHER
    ) -> Self:
        made = super().__new__(cls, text)
        made.kind = kind
        made.log_fields = fields or {}
        return made

    @classmethod
    def from_error(cls, err: NodeAgentError, fields: Mapping[str, str] | None = None) -> Self:
        """Make a problem from the message and hint of an error."""
        kinds = (kind for error, kind in _KINDS.items() if isinstance(err, error))
        return cls(f"{err.message} ({err.hint})", fields, kind=next(kinds, ProblemKind.OTHER))


def as_problem(text: str) -> Problem:
    """Return a Problem unchanged, or make a Problem without log fields from a plain text."""
    return text if isinstance(text, Problem) else Problem(text)


def problem_if_failed(call: Callable[[], object], fields: Mapping[str, str] | None = None) -> Problem | None:
    """Call a function that changes a cgroup or calls the launcher. Return the problem if it fails."""
    try:
        call()
    except (CgroupError, LauncherError) as err:
        return Problem.from_error(err, fields)
    return None


def owner_fields(state: NodeState, path: str) -> dict[str, str]:
    """Return the log fields of the pod or container to which a cgroup belongs. The result is empty for a cgroup without a pod."""
    for entry in state.entries:
        if path == entry.pod_path:
            return pod_fields(entry.pod)
        for container in entry.pod.containers:
            if path == entry.container_path(container.name):
                return pod_fields(entry.pod, container.name)
    return {}
