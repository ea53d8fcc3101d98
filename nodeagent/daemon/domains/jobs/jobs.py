"""Jobs as a source of pods: each is there as long as the process that owns it, which enters the job's cgroup once that is ready.

What is known of a job is in a file, too, so that the agent's next process knows it. Nothing here starts or ends a process: the owner
becomes the command by itself, and a job whose owner has ended is a pod without a manifest.
"""

import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Protocol

from msgspec import Struct, field

from nodeagent.core.cgroups.container_placement import ContainerPlacement
from nodeagent.core.model.config import Config
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.state import JOBS, NodeState, Origin, PodEntry
from nodeagent.core.turn.pod_sources import Manifest, ManifestProblem, PodSource
from nodeagent.edge.cgroups.cgroupfs import CgroupError
from nodeagent.edge.files.placement_files import PlacementFileError, PlacementFiles
from nodeagent.edge.processes.job_owners import Owner, OwnerWatch, owner_again
from nodeagent.errors import NodeAgentError
from nodeagent.formats.checkpoint.job_record import JobRecord, format_record, parse_record
from nodeagent.formats.manifest.job_pod import JOB_CONTAINER

_FILE = "job"


class JobNotKeptError(NodeAgentError):
    """Nothing was decided about a job."""


class JobRefusal(Struct, frozen=True):
    reason: str
    message: str


class _Job(Struct, eq=False):
    record: JobRecord
    owner: Owner
    answer: Future[ContainerPlacement | JobRefusal] | None = None
    """Where its owner waits for. None: it has entered, or did so under an earlier process of the agent."""
    waits_for: frozenset[str] = field(default_factory=frozenset)
    """UIDs of ending jobs that were there when this one was last refused: with what they hold it may fit."""


class ProcessTaker(Protocol):
    """The pods' cgroups."""

    def take_in(self, path: str, pid: int, is_alive: Callable[[], bool]) -> bool:
        """Move a process into a cgroup. False: it has ended; raises CgroupError."""


def job_directory(config: Config) -> str:
    """Return the directory of what is kept of jobs: gone after a boot, as the jobs are."""
    return f"{config.runtime_directory}/jobs"


class Jobs:
    """Any thread may ask for a job; the deciding one does the rest."""

    def __init__(
        self, files: PlacementFiles, wake: Callable[[], None], retry: Callable[[str], None] = lambda _uid: None
    ) -> None:
        self._files = files
        self._wake = wake
        self.retry = retry
        """Asks for another decision on a refused pod."""
        self._lock = threading.RLock()
        self._jobs: dict[str, _Job] | None = None
        """By UID. None: what an earlier process left was not read yet."""
        self._over: dict[str, JobRecord] = {}
        """By UID, those whose owners have ended and that may still hold something."""
        self._watch = OwnerWatch(wake)
        self.follow_owners = self._watch.follow
        """For a thread of its own."""

    def follow(self, config: Config) -> None:
        """Nothing of the configuration changes what jobs there are."""

    def of_user(self, user: int) -> tuple[tuple[Pod, ...], tuple[Pod, ...]]:
        """Return a user's jobs: those whose owners live, and the others that may still hold something."""
        with self._lock:
            jobs = tuple(job for job in (self._jobs or {}).values() if job.record.user == user)
            living = tuple(job.record.pod for job in jobs if job.owner.is_alive())
            ended = tuple(job.record.pod for job in jobs if job.record.pod not in living)
            return living, (*ended, *(record.pod for record in self._over.values() if record.user == user))

    def ask(self, pod: Pod, user: int, owner: Owner) -> Future[ContainerPlacement | JobRefusal]:
        """Have a job decided on.

        Args:
            pod: of the job.
            user: who owns it.
            owner: the process that is to enter it. It belongs to the job from now on.

        Returns:
            Where it runs, once its owner is there; or why it doesn't.

        Raises:
            NodeAgentError: it can't be kept; nothing is decided.
        """
        record = JobRecord(pod, user, owner.pid, owner.start_ticks)
        answer: Future[ContainerPlacement | JobRefusal] = Future()
        with self._lock:
            if self._jobs is None:
                owner.close()
                raise JobNotKeptError(
                    "the agent is starting",
                    hint="try again when `systemctl status nodeagent` says that it is ready",
                )
            try:
                self._files.write(f"{pod.uid}/{_FILE}", format_record(record))
            except PlacementFileError:
                owner.close()
                raise
            self._jobs[pod.uid] = _Job(record, owner, answer)
            self._watch.add(owner)
        self._wake()
        return answer

    def give_up(self, uid: str) -> None:
        """End a job whose owner doesn't wait any longer."""
        with self._lock:
            self._drop(uid)
        self._wake()

    def look(self, *, rescan: bool) -> PodSource:
        """Return the jobs whose owners live. That is looked at every time: who asks for a job may have had one until just now."""
        with self._lock:
            if self._jobs is None or rescan:
                try:
                    self._read()
                except PlacementFileError as err:
                    if self._jobs is None:
                        problem = ManifestProblem(err.path, f"{err.message} ({err.hint})")
                        return PodSource(is_blind=True, problems=(problem,), name=JOBS)
            jobs = self._jobs or {}
            for uid in [uid for uid, job in jobs.items() if not job.owner.is_alive()]:
                self._drop(uid)
            pods = (job.record.pod for job in jobs.values())
            return PodSource(tuple(Manifest(pod, Origin(pod.name, JOBS)) for pod in pods), name=JOBS)

    def _read(self) -> None:
        """Find the jobs of an earlier process, and remove files of jobs that there are not."""
        jobs = {} if self._jobs is None else self._jobs
        for name, content in sorted(self._files.read().items()):
            uid = name.partition("/")[0]
            if uid in jobs:
                continue
            record = None if self._jobs is not None or content is None else parse_record(content)
            owner = None if record is None else owner_again(record.pid, record.start_ticks)
            if record is None or owner is None or name != f"{record.pod.uid}/{_FILE}":
                with suppress(PlacementFileError):  # it is found again at the next look
                    self._files.remove(name)
                continue
            jobs[uid] = _Job(record, owner)
            self._watch.add(owner)
        self._jobs = jobs

    def _drop(self, uid: str) -> None:
        job = None if self._jobs is None else self._jobs.pop(uid, None)
        if job is None:
            return
        job.owner.close()
        self._over[uid] = job.record
        if job.answer is not None and job.answer.set_running_or_notify_cancel():
            job.answer.set_exception(
                JobNotKeptError(
                    "the job is over before it began",
                    hint="`journalctl -u nodeagent` may say why",
                )
            )
        with suppress(PlacementFileError):  # the next look finds it
            self._files.remove(f"{uid}/{_FILE}")

    def let_in(
        self,
        state: NodeState,
        ready: Collection[str],
        placed: Mapping[str, ContainerPlacement],
        tree: ProcessTaker,
    ) -> None:
        """Answer those whose jobs a turn has decided on: their processes are in their cgroups then.

        Args:
            state: after the turn, with what could not be saved as refused.
            ready: paths of the cgroups that hold what is promised, with nobody else on their exclusive CPUs.
            placed: where the containers of at least these cgroups run.
            tree: the cgroups.
        """
        with self._lock:
            holding = {entry.pod.uid for entry in state.entries if entry.is_active}
            self._over = {uid: record for uid, record in self._over.items() if uid in holding}
            for uid, job in tuple((self._jobs or {}).items()):
                if job.answer is None:
                    continue
                entry = state.entry(uid)
                if entry is None:
                    self._answer_nameless(job, state)
                elif entry.refusal is not None:
                    self._refused(job, entry, state)
                elif entry.deleting_since_ms is not None:
                    self._refuse(job, JobRefusal("Released", "it was ended by `nodeagent release`"))
                elif entry.container_path(JOB_CONTAINER) in ready:
                    self._enter(job, entry.container_path(JOB_CONTAINER), placed, tree)

    def _answer_nameless(self, job: _Job, state: NodeState) -> None:
        """Refuse a job whose name is another pod's. Otherwise nothing is decided yet."""
        name = job.record.pod.full_name
        if any(entry.pod.full_name == name for entry in state.entries):
            self._refuse(job, JobRefusal("NameTaken", f"there is a pod {name} already"))

    def _refused(self, job: _Job, entry: PodEntry, state: NodeState) -> None:
        """Answer with the refusal, or have it decided on again when jobs that were ending then have gone."""
        assert entry.refusal is not None
        ending = frozenset(
            e.pod.uid for e in state.entries if e.origin.source == JOBS and e.deleting_since_ms is not None
        )
        gone, job.waits_for = job.waits_for - ending, ending
        if gone:
            self.retry(entry.pod.uid)
        elif not ending:
            self._refuse(job, JobRefusal(entry.refusal.reason, entry.refusal.message))

    def _refuse(self, job: _Job, refusal: JobRefusal) -> None:
        answer, job.answer = job.answer, None
        if answer is not None and answer.set_running_or_notify_cancel():
            answer.set_result(refusal)
        self._drop(job.record.pod.uid)
        self._wake()

    def _enter(self, job: _Job, path: str, placed: Mapping[str, ContainerPlacement], tree: ProcessTaker) -> None:
        try:
            if not tree.take_in(path, job.owner.pid, job.owner.is_alive):
                return  # the next look finds that
        except CgroupError as err:
            self._refuse(job, JobRefusal("CannotEnter", f"{err.message} ({err.hint})"))
            return
        answer, job.answer = job.answer, None
        if answer is not None and answer.set_running_or_notify_cancel():
            answer.set_result(placed[path])
        for uid, other in tuple((self._jobs or {}).items()):
            if other is not job and other.owner.pid == job.owner.pid:  # it has left that one
                self._drop(uid)
                self._wake()
