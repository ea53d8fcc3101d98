"""Domain of jobs. A job's pod consists of a process that requests CPUs and that the agent moves into a cgroup."""

from nodeagent.core.domains.domain import TurnDone
from nodeagent.core.model.state import JOBS
from nodeagent.core.turn.pod_sources import PodSource
from nodeagent.daemon.domains.jobs.jobs import Jobs, ProcessTaker
from nodeagent.daemon.domains.passive_domain import PassiveDomain


class JobsDomain(PassiveDomain):
    """Domain that provides the pods of jobs, and moves the jobs' owner processes into cgroups.

    The agent's own domain writes these cgroups.
    """

    name = JOBS

    def __init__(self, jobs: Jobs, tree: ProcessTaker) -> None:
        self._jobs, self._tree = jobs, tree

    def bring(self, *, rescan: bool, part: float = 1.0) -> tuple[PodSource, ...]:  # noqa: ARG002 - a job has a small file
        return (self._jobs.look(rescan=rescan),)

    def finish(self, done: TurnDone, /) -> tuple[str, ...]:
        self._jobs.attach_owners(done.state, done.ready, done.placed, self._tree)
        return ()
