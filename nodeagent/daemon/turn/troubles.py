"""Problems in words for people, and the pod concerned."""

from collections.abc import Callable, Mapping
from typing import Self

from nodeagent.core.model.state import NodeState
from nodeagent.daemon.reports.logs import about
from nodeagent.edge.cgroups.cgroupfs import CgroupError
from nodeagent.errors import NodeAgentError


class Trouble(str):
    """A text; two with the same text are one problem."""

    __slots__ = ("about",)
    about: Mapping[str, str]
    """The fields that find its line in the log; none if it is about no pod."""

    def __new__(cls, text: str, fields: Mapping[str, str] | None = None) -> Self:
        made = super().__new__(cls, text)
        made.about = fields or {}
        return made


def trouble_of(err: NodeAgentError, fields: Mapping[str, str] | None = None) -> Trouble:
    """Return an error's text, with the next step."""
    return Trouble(f"{err.message} ({err.hint})", fields)


def as_trouble(text: str) -> Trouble:
    """Return a problem as it is, or a text that is about no pod as one."""
    return text if isinstance(text, Trouble) else Trouble(text)


def attempted(do: Callable[[], None], fields: Mapping[str, str]) -> Trouble | None:
    """Do something to a cgroup; return what prevented it."""
    try:
        do()
    except CgroupError as err:
        return trouble_of(err, fields)
    return None


def owner_of(state: NodeState, path: str) -> dict[str, str]:
    """Return the fields of the pod, or of its container, that owns a cgroup; none for other cgroups."""
    for entry in state.entries:
        if path == entry.pod_path:
            return about(entry.pod)
        for container in entry.pod.containers:
            if path == entry.container_path(container.name):
                return about(entry.pod, container.name)
    return {}
