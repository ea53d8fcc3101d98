"""Source of jobs. A job is a pod that exists as long as its owner process.

Each job is recorded in a file, so that the agent knows the job after a restart. The agent doesn't start or end the processes of a job,
because the owner executes the command itself. When the owner exits, the agent treats the job like a pod whose manifest was removed.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from nodeagent.core.cgroups.container_placement import ContainerPlacement
from nodeagent.core.model.config import DEFAULT_WEIGHT, Config
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.refusals import OF_QUEUE, RESERVATION_OVER
from nodeagent.core.model.state import JOBS, NodeState, Origin
from nodeagent.core.turn.pod_sources import JobTerms, Manifest, ManifestProblem, PodSource
from nodeagent.daemon.domains.jobs.reservations import Reservations
from nodeagent.daemon.turn.clock import read_boot_ms, read_clocks
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError
from nodeagent.edge.files.placement_files import PlacementFileError, PlacementFiles
from nodeagent.edge.processes.job_owners import Owner, OwnerWatch, reopen_owner
from nodeagent.errors import NodeAgentError
from nodeagent.formats.checkpoint.job_record import JobRecord, format_record, parse_record
from nodeagent.formats.manifest.job_pod import JOB_CONTAINER

_FILE = "job"


class JobNotKeptError(NodeAgentError):
    """A job was dropped before it started."""


class JobRefusal(Struct, frozen=True):
    reason: str
    message: str


class _Job(Struct, eq=False):
    record: JobRecord
    owner: Owner
    answer: Future[ContainerPlacement | JobRefusal] | None = None
    """Pending answer to the owner.

    None means that the owner is already in the job's cgroup, or that an owner with a ticket hasn't repeated its request since the agent's
    restart.
    """
    turn: Future[None] | None = None
    """Future that `watch_turn` returned. While it is set, the owner isn't moved into the job's cgroup."""
    path: str = ""
    """Path of the pod's cgroup, whose event counters also count OOM kills. The path is empty until the job is admitted."""
    waits_for: frozenset[str] = field(default_factory=frozenset)
    """UIDs of the jobs that were ending when this job was last refused. Once they release their CPUs, this job is decided again."""

    def end_turn(self) -> None:
        """Complete the future of `watch_turn`, because the job can start or has ended."""
        if self.turn is not None and not self.turn.done() and self.turn.set_running_or_notify_cancel():
            self.turn.set_result(None)

    def is_over(self, boot_ms: int) -> bool:
        return 0 < self.record.ends_at_ms <= boot_ms or not self.owner.is_alive()


class EndedJob(Struct, frozen=True):
    """Job that has ended and whose cgroup still exists."""

    pod: Pod
    path: str
    session: int
    """PID of the owner's session leader."""
    start_ticks: int
    """Start time of the owner process, in clock ticks since boot."""


def make_terms(record: JobRecord) -> JobTerms:
    return JobTerms(
        record.pod.uid,
        record.user,
        record.max_ms,
        record.ends_at_ms,
        bool(record.ticket),
        record.reservation,
        record.weight,
    )


class ProcessTaker(Protocol):
    """Interface for moving processes into the pods' cgroups."""

    def take_in(self, path: str, pid: int, is_alive: Callable[[], bool]) -> bool:
        """Move a process into a cgroup. Return False if the process has already exited.

        Raises:
            CgroupError: the process can't be moved.
        """


def job_directory(config: Config) -> str:
    """Return the directory of the job records. It is below the runtime directory, so a reboot empties it."""
    return f"{config.runtime_directory}/jobs"


class Jobs:
    """Source of jobs. Its methods take a lock, because the serving thread requests and watches jobs while the deciding thread reads and
    starts them.
    """

    def __init__(
        self,
        files: PlacementFiles,
        reservations: Reservations,
        wake: Callable[[], None],
        retry: Callable[[str], None] = lambda _uid: None,
    ) -> None:
        self._files = files
        self.reservations = reservations
        self._wake = wake
        self.retry = retry
        """Function that has a refused pod decided again."""
        self._lock = threading.RLock()
        self._jobs: dict[str, _Job] | None = None
        """Jobs by UID. None means that the agent hasn't yet read the records that its previous process left."""
        self._ended: dict[str, JobRecord] = {}
        """Records, by UID, of jobs whose owners have exited but whose CPUs may still be in use."""
        self._ended_in_cgroups: tuple[EndedJob, ...] = ()
        """Jobs that had a cgroup, and that have ended since the last call of `take_ended`."""
        self._releases: dict[str, list[Future[None]]] = {}
        """Futures of callers that wait until a job has released all its resources, by the job's UID."""
        self._asked_ms = 0
        """Time of the last call of `_seconds_left`, in milliseconds since boot. It is kept so that an end time between two calls isn't
        missed.
        """
        self._watch = OwnerWatch(wake, self._seconds_left)
        self.follow_owners = self._watch.follow
        """Loop for a separate thread. It wakes the deciding thread when an owner exits or a job's time limit is reached."""

    def follow(self, config: Config) -> None:
        """Do nothing when the configuration changes, because jobs don't depend on it."""

    def records_of_user(self, user: int) -> tuple[tuple[JobRecord, ...], tuple[JobRecord, ...]]:
        """Return a user's job records in two groups: jobs whose owners still run, and jobs whose owners have exited but which may still
        occupy CPUs.
        """
        with self._lock:
            jobs = tuple(job for job in (self._jobs or {}).values() if job.record.user == user)
            living = tuple(job.record for job in jobs if job.owner.is_alive())
            ended = tuple(job.record for job in jobs if job.record not in living)
            return living, (*ended, *(record for record in self._ended.values() if record.user == user))

    def ask(
        self,
        pod: Pod,
        user: int,
        owner: Owner,
        ticket: str = "",
        max_ms: int = 0,
        reservation: str = "",
        weight: int = DEFAULT_WEIGHT,
    ) -> Future[ContainerPlacement | JobRefusal]:
        """Request a job. This method takes over the handle of the owner process, and also closes it after an error.

        Args:
            pod: the job's pod.
            user: user ID of the owner.
            owner: the process that requests the job.
            ticket: text by which `resume` finds the job when its owner repeats the request. A job with a ticket waits until enough CPUs and
                memory are free. An empty ticket means that the job is refused if they aren't free now.
            max_ms: the longest time from the job's start to its end. 0 means no limit.
            reservation: name of the reservation in which the job runs. The job ends with the reservation at the latest. Empty means no
                reservation.
            weight: weight of the user when queued jobs of several users compete.

        Returns:
            A future of the decision: the job's placement, once the owner is in the job's cgroup, or the refusal.

        Raises:
            NodeAgentError: the job can't be recorded, and therefore doesn't exist.
        """
        now_ms = time.time_ns() // 1_000_000
        answer: Future[ContainerPlacement | JobRefusal] = Future()
        with self._lock:
            if self._jobs is None:
                owner.close()
                raise JobNotKeptError(
                    "the agent is starting",
                    hint="try again when `systemctl status nodeagent` says that it is ready",
                )
            # The order of jobs must survive a restart, even if the clock was set back.
            last_ms = max((job.record.since_ms for job in self._jobs.values()), default=0)
            since_ms = max(now_ms, last_ms + 1) if ticket else 0
            record = JobRecord(
                pod,
                user,
                owner.pid,
                owner.start_ticks,
                ticket,
                since_ms,
                max_ms,
                reservation=reservation,
                weight=weight,
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

    def watch_turn(self, uid: str) -> Future[None]:
        """Return a future that is completed once the job can start, is refused or has ended.

        From this call on, the owner enters the job's cgroup only after a call of `let_in`. The caller can thereby check the user again
        before the start.
        """
        with self._lock:
            job = (self._jobs or {}).get(uid)
            turn: Future[None] = Future()
            if job is None or job.answer is None:  # the owner has already entered the job's cgroup
                turn.set_result(None)
            else:
                job.turn = turn
        self._wake()
        return turn

    def let_in(self, uid: str) -> None:
        """Allow the owner of a job to enter the job's cgroup, after `watch_turn` has held it back."""
        with self._lock:
            job = (self._jobs or {}).get(uid)
            if job is not None:
                job.turn = None
        self._wake()

    def watch_release(self, uid: str) -> Future[None]:
        """Return a future that is completed once a job has released all its resources, so that others can use its CPUs."""
        released: Future[None] = Future()
        with self._lock:
            self._releases.setdefault(uid, []).append(released)
        self._wake()
        return released

    def list_records(self) -> tuple[JobRecord, ...]:
        """Return the records of all jobs that have not ended, in the order of their requests."""
        with self._lock:
            return tuple(job.record for job in (self._jobs or {}).values())

    def find_end_ms(self, uid: str) -> int:
        """Return the time at which a started job reaches its time limit, in milliseconds since boot. 0 means no time limit."""
        with self._lock:
            job = (self._jobs or {}).get(uid)
            return 0 if job is None else job.record.ends_at_ms

    def _seconds_left(self) -> float | None:
        with self._lock:
            asked_ms, self._asked_ms = self._asked_ms, read_boot_ms()
            ends = [job.record.ends_at_ms for job in (self._jobs or {}).values()]
            # End times that have passed since the last call count as 0 seconds, because the thread didn't wait for them.
            return min((max(end - self._asked_ms, 0) / 1000 for end in ends if end > asked_ms), default=None)

    def resume(self, owner: Owner, ticket: str) -> tuple[Pod, Future[ContainerPlacement | JobRefusal]] | None:
        """Find the waiting job of an owner that repeats its request. Return the job's pod and a new future for the answer, or None if there
        is no such job.
        """
        with self._lock:
            for job in (self._jobs or {}).values():
                known = job.record
                if (known.ticket, known.pid, known.start_ticks) == (ticket, owner.pid, owner.start_ticks):
                    before, job.answer = job.answer, Future()
                    if before is not None and before.set_running_or_notify_cancel():
                        hint = "the agent answers only the last request of an owner"
                        before.set_exception(JobNotKeptError("the job's owner has asked again", hint=hint))
                    self._wake()
                    return known.pod, job.answer
        return None

    def give_up(self, uid: str) -> None:
        """Drop a job whose owner has stopped waiting for the answer."""
        with self._lock:
            self._drop(uid)
        self._wake()

    def look(self, *, rescan: bool) -> PodSource:
        """Return the jobs whose owners still run and whose time limits aren't reached.

        Each call checks every job, not only on a rescan, because a new job may wait for the CPUs of a job that has just ended.
        """
        with self._lock:
            if self._jobs is None or rescan:
                try:
                    self._read()
                except PlacementFileError as err:
                    if self._jobs is None:
                        problem = ManifestProblem(err.path, f"{err.message} ({err.hint})")
                        return PodSource(is_blind=True, problems=(problem,), name=JOBS)
            jobs = self._jobs or {}
            now_ms = read_boot_ms()
            for uid in [uid for uid, job in jobs.items() if job.is_over(now_ms)]:
                self._drop(uid)
            records = self.list_records()
            pods = tuple(Manifest(record.pod, Origin(record.pod.name, JOBS)) for record in records)
            reservations = self.reservations.list_for_turn()
            return PodSource(pods, name=JOBS, terms=tuple(map(make_terms, records)), reservations=reservations)

    def take_ended(self) -> tuple[EndedJob, ...]:
        """Return the jobs that had a cgroup, and that have ended since the last call of this method."""
        with self._lock:
            ended, self._ended_in_cgroups = self._ended_in_cgroups, ()
            return ended

    def _read(self) -> None:
        """Read the job records that the agent's previous process left. Remove all other files in the directory."""
        jobs = {} if self._jobs is None else self._jobs
        for name, content in sorted(self._files.read().items()):
            uid = name.partition("/")[0]
            if uid in jobs:
                continue
            record = None if self._jobs is not None or content is None else parse_record(content)
            owner = None if record is None else reopen_owner(record.pid, record.start_ticks)
            if record is None or owner is None or name != f"{record.pod.uid}/{_FILE}":
                with suppress(PlacementFileError):  # if the record can't be removed now, the next rescan finds it again
                    self._files.remove(name)
                continue
            jobs[uid] = _Job(record, owner)
            self._watch.add(owner)
        self._jobs = dict(sorted(jobs.items(), key=lambda one: one[1].record.since_ms)) if self._jobs is None else jobs

    def _drop(self, uid: str) -> None:
        job = None if self._jobs is None else self._jobs.pop(uid, None)
        if job is None:
            return
        if job.path:
            self._ended_in_cgroups += (EndedJob(job.record.pod, job.path, job.owner.session, job.owner.start_ticks),)
        job.owner.close()
        job.end_turn()
        self._ended[uid] = job.record
        if job.answer is not None and job.answer.set_running_or_notify_cancel():
            hint = "`journalctl -u nodeagent` may say why"
            job.answer.set_exception(JobNotKeptError("the job ended before it started", hint=hint))
        with suppress(PlacementFileError):  # if the record can't be removed now, the next rescan removes it
            self._files.remove(f"{uid}/{_FILE}")

    def attach_owners(
        self,
        state: NodeState,
        ready: Collection[str],
        placed: Mapping[str, ContainerPlacement],
        tree: ProcessTaker,
    ) -> None:
        """Move the owners of jobs that can start into their cgroups. Answer the requests that this turn has decided, and the callers that
        wait for a job's end.

        Args:
            state: the state after the turn. A pod whose admission couldn't be saved is refused in it.
            ready: paths of the cgroups in which the turn has written all values.
            placed: placements by cgroup path.
            tree: interface that moves processes.
        """
        self.reservations.end_turn(state)
        with self._lock:
            if not (self._jobs or self._ended or self._releases):
                return
            ending = frozenset(
                e.pod.uid for e in state.entries if e.origin.source == JOBS and e.deleting_since_ms is not None
            )
            holding = {entry.pod.uid for entry in state.entries if entry.is_active}
            self._ended = {uid: record for uid, record in self._ended.items() if uid in holding}
            for uid in self._releases.keys() - holding - (self._jobs or {}).keys():
                for released in self._releases.pop(uid):
                    if released.set_running_or_notify_cancel():
                        released.set_result(None)
            for uid, job in tuple((self._jobs or {}).items()):
                entry = state.entry(uid)
                if entry is not None and entry.is_active:
                    job.path = entry.pod_path
                if job.answer is None or job.answer.cancelled():
                    if entry is not None and entry.is_active and entry.container_path(JOB_CONTAINER) in ready:
                        self._begin(job)  # from now on, the job holds its CPUs even if its owner doesn't ask again
                    continue
                if entry is None:
                    name = job.record.pod.full_name
                    if any(entry.pod.full_name == name for entry in state.entries):
                        self._refuse(job, JobRefusal("NameTaken", f"there is a pod {name} already"))
                elif entry.refusal is not None and job.record.ticket and entry.refusal.reason in OF_QUEUE:
                    continue
                elif entry.refusal is not None:
                    gone, job.waits_for = job.waits_for - ending, ending
                    if gone:  # since the last refusal, ending jobs have released their CPUs
                        self.retry(uid)
                    elif not ending:
                        self._refuse(job, JobRefusal(entry.refusal.reason, entry.refusal.message))
                elif entry.deleting_since_ms is not None:
                    self._refuse(job, JobRefusal("Released", "the pod was ended by `nodeagent release`"))
                elif entry.container_path(JOB_CONTAINER) in ready and self._begin(job):
                    job.end_turn()
                    if job.turn is None:
                        self._attach(job, entry.container_path(JOB_CONTAINER), placed, tree)

    def _refuse(self, job: _Job, refusal: JobRefusal) -> None:
        answer, job.answer = job.answer, None
        if answer is not None and answer.set_running_or_notify_cancel():
            answer.set_result(refusal)
        self._drop(job.record.pod.uid)
        self._wake()

    def _begin(self, job: _Job) -> bool:
        """Record when a starting job must end, if it has a time limit or a reservation. The time is recorded once and never changes.

        False means that the job is dropped, because the time can't be recorded or the reservation has ended.
        """
        if not (job.record.max_ms or job.record.reservation) or job.record.ends_at_ms:
            return True
        now_ms, lead_ms = read_clocks()
        ends = [now_ms - lead_ms + job.record.max_ms] if job.record.max_ms else []
        if job.record.reservation:
            own = self.reservations.find(job.record.reservation)
            if own is None:
                self._refuse(job, JobRefusal(RESERVATION_OVER, f"reservation {job.record.reservation} has ended"))
                return False
            ends.append(own.until_ms - lead_ms)
        job.record = replace(job.record, ends_at_ms=min(ends))
        try:
            self._files.write(f"{job.record.pod.uid}/{_FILE}", format_record(job.record))
        except PlacementFileError as err:
            self._refuse(job, JobRefusal("StateNotSaved", f"{err.message} ({err.hint})"))
            return False
        self._watch.renew_time()
        return True

    def _attach(self, job: _Job, path: str, placed: Mapping[str, ContainerPlacement], tree: ProcessTaker) -> None:
        try:
            if not tree.take_in(path, job.owner.pid, job.owner.is_alive):
                return  # the owner has exited, and the next turn will notice it
        except CgroupError as err:
            self._refuse(job, JobRefusal("CannotEnter", f"{err.message} ({err.hint})"))
            return
        answer, job.answer = job.answer, None
        if answer is not None and answer.set_running_or_notify_cancel():
            answer.set_result(placed[path])
        for uid, other in tuple((self._jobs or {}).items()):
            # if the process also owned the job `other`, it has left the cgroup of that job by now
            if other is not job and other.owner.pid == job.owner.pid:
                self._drop(uid)
                self._wake()
