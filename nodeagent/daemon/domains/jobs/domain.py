"""Domain of jobs. A job's pod contains one process, the owner, which has requested CPUs. The agent moves this process into the pod's
cgroup.
"""

from collections.abc import Callable
from contextlib import suppress

from nodeagent.core.domains.domain import TurnDone
from nodeagent.core.model.pod import MEMORY
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.state import JOBS
from nodeagent.core.turn.pod_sources import PodSource
from nodeagent.daemon.domains.jobs.jobs import EndedJob, Jobs, ProcessTaker
from nodeagent.daemon.domains.passive_domain import PassiveDomain
from nodeagent.edge.kernel.usage import read_memory_end
from nodeagent.errors import NodeAgentError
from nodeagent.formats.kernel.usage import parse_memory_end
from nodeagent.views.job_report import format_oom_end
from nodeagent.views.wording.words import format_requested_bytes

TellTerminal = Callable[[int, int, str], object]
"""Function that writes a line to the terminal of a session (see `LauncherClient.tell`). It raises NodeAgentError if the launcher doesn't
answer.
"""


class JobsDomain(PassiveDomain):
    """Domain that supplies the jobs' pods, and moves the owner process of each job into the job's cgroup. The agent's own domain creates
    and writes these cgroups.
    """

    name = JOBS

    def __init__(self, jobs: Jobs, tree: ProcessTaker, root: str, tell: TellTerminal) -> None:
        self._jobs, self._tree, self._root, self._tell = jobs, tree, root, tell
        self._lines: tuple[tuple[EndedJob, str], ...] = ()
        """Lines to write to terminals at the end of the turn, each with the job that it is about."""

    def bring(self, *, rescan: bool, part: float = 1.0) -> tuple[PodSource, ...]:  # noqa: ARG002 - a job has a small file
        source = self._jobs.look(rescan=rescan)
        # the turn may remove the cgroups, and thereby the kernel's counts
        for ended in self._jobs.take_ended():
            line = self._describe_oom_kill(ended)
            self._lines += ((ended, line),) if line else ()
        return (source,)

    def _describe_oom_kill(self, ended: EndedJob) -> str:
        """Return a line that says how the OOM killer ended the job. The line is empty if the job ended otherwise."""
        texts = read_memory_end(f"{self._root}/{ended.path}")
        events, peak_bytes = parse_memory_end(*texts)
        if not events.get("oom_kill", 0):
            return ""
        limit = ended.pod.containers[0].resources.limits.get(MEMORY) or Quantity.of(0)
        return format_oom_end(ended.pod.full_name, format_requested_bytes(limit), events, peak_bytes)

    def finish(self, done: TurnDone, /) -> tuple[str, ...]:
        self._jobs.attach_owners(done.state, done.ready, done.placed, self._tree)
        lines, self._lines = self._lines, ()
        for ended, line in lines:
            with suppress(NodeAgentError):  # if the owner's terminal can't be reached, the OOM kill is still in the log
                self._tell(ended.session, ended.start_ticks, line)
        return ()
