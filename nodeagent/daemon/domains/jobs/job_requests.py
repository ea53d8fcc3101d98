"""Handling of requests for jobs, in the serving thread. Each request is checked against the user's limits, and answered once the job's
owner process is in the job's cgroup.
"""

import asyncio
import os
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from nodeagent.core.admission.job_bounds import find_exceeded_bound
from nodeagent.core.cgroups.container_placement import ContainerPlacement
from nodeagent.core.host.quiet import list_quiet_settings
from nodeagent.core.model.config import DEFAULT_WEIGHT, JobBounds
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import CPU, MEMORY, Pod
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.quiet import Profile, QuietRequest
from nodeagent.core.model.reservation import Reservation
from nodeagent.core.model.state import JOBS, Origin
from nodeagent.core.turn.pod_sources import Manifest, new_entry
from nodeagent.daemon.domains.jobs.jobs import JobRefusal, Jobs
from nodeagent.daemon.turn.agent import Agent
from nodeagent.daemon.turn.placements import placement_file
from nodeagent.edge.processes.job_owners import Owner, open_caller
from nodeagent.edge.processes.user_database import find_user_id, is_member
from nodeagent.errors import NodeAgentError
from nodeagent.formats.checkpoint.job_record import JobRecord
from nodeagent.formats.config.config_text import hash_config
from nodeagent.formats.kernel.host_files import describe_setting
from nodeagent.formats.manifest.job_pod import JOB_CONTAINER, job_pod
from nodeagent.formats.manifest.placement_variables import PLACEMENT_FILE, placement_variables
from nodeagent.formats.syntax.json_values import JsonValue, MisfitError
from nodeagent.formats.syntax.quiet_settings import format_request
from nodeagent.formats.wire.api_messages import MAX_TURN_SECONDS
from nodeagent.formats.wire.exchange import Peer

_LOOK_SECONDS = 0.05
_LOOKUPS = 4
_MAX_WAIT_SECONDS = 7 * 24 * 3600
_MAX_TICKET = 64


class Limits(Struct, frozen=True):
    unbounded: frozenset[int] = frozenset({0, os.geteuid()})
    """User IDs without limits: root, and the agent's own user."""
    waiting: int = 24
    """Maximum number of waiting requests of all users. The socket accepts more connections than this, so that the agent can reject further
    requests at once.
    """
    waiting_per_user: int = 8
    """Maximum number of waiting requests per user, so that one user can't block all others."""
    queued: int = 160
    """Maximum number of jobs that wait for free CPUs and memory. Each of these jobs keeps a connection open."""
    queued_per_user: int = 40
    lookup_seconds: float = 10.0
    """Time limit for a query of the user database, which may be on another machine."""


_LIMITS = Limits()


class JobRequestError(NodeAgentError):
    """A request for a job failed."""


class JobRequests:
    """Handlers of the operations `job` and `job-released` of the local API. All users can connect to its socket."""

    def __init__(self, jobs: Jobs, agent: Agent, limits: Limits = _LIMITS) -> None:
        self._jobs = jobs
        self._agent = agent
        self._limits = limits
        self._waiting: Counter[int] = Counter()
        """Number of waiting requests by user ID, without those for queued jobs."""
        self._queued: Counter[int] = Counter()
        """Number of open requests for queued jobs (which wait for free CPUs and memory), by user ID."""
        self._lookups = ThreadPoolExecutor(_LOOKUPS, "user-lookup")
        """Threads that query the user database, so that a slow database delays no other operation."""

    async def answer(self, arguments: Mapping[str, Any], peer: Peer) -> dict[str, object]:
        """Have the agent decide on a job, and wait until the job starts. The owner of the job is always the process that sent the request.

        Raises:
            NodeAgentError: the request is rejected, or the agent made no decision.
        """
        asked = JsonValue(dict(arguments))
        try:
            name, amounts = asked.field("name").text(), dict(asked.field("amounts").by_name(JsonValue.text))
            numa_node, core_class, near, quiet = (
                None if found is None else found.text()
                for found in map(asked.optional, ("numa", "coreClass", "near", "quiet"))
            )
            wait_seconds = asked.read_optional("wait", lambda value: value.whole(1, _MAX_WAIT_SECONDS), 0)
            ticket = asked.field("ticket").text()[:_MAX_TICKET] if wait_seconds else ""
            max_ms = asked.read_optional("maxMs", lambda value: value.whole(1, _MAX_WAIT_SECONDS * 1000), 0)
            reservation = asked.read_optional("reservation", JsonValue.text, "")
        except MisfitError as err:
            raise JobRequestError(f"malformed request for a job: {err}", hint="use `nodeagent job`") from err
        if missing := {CPU, MEMORY} - amounts.keys():
            raise JobRequestError(f"malformed request for a job: it has no {min(missing)}", hint="use `nodeagent job`")
        if wait_seconds and not ticket:
            raise JobRequestError("malformed request for a job: the ticket is empty", hint="use `nodeagent job`")
        pod, request = self._make_pod(name, amounts, (numa_node, core_class, near), quiet)
        self._check_room(peer, is_queued=bool(ticket))
        waiting = self._queued if ticket else self._waiting
        owner = open_caller(peer.pid, peer.uid)
        waiting[peer.uid] += 1
        try:
            async with asyncio.timeout(wait_seconds or MAX_TURN_SECONDS):
                pod, answer = await self._request(pod, peer.uid, owner, ticket, max_ms, reservation)
                if ticket:
                    await self._check_turn(pod.uid, peer.uid)
                placement = await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            if not ticket:  # if the agent stops now, a job in the queue keeps its place until its owner exits
                self._jobs.give_up(pod.uid)
            raise
        except TimeoutError as err:
            entry = self._agent.view.state.entry(pod.uid)
            self._jobs.give_up(pod.uid)
            if ticket:
                why = "the agent was busy" if entry is None or entry.refusal is None else entry.refusal.message
                return {
                    "refused": {
                        "reason": "WaitedTooLong",
                        "message": f"the job could not start within the time of --wait: {why}",
                    }
                }
            raise JobRequestError(
                f"the job could not start within {MAX_TURN_SECONDS:.0f} s",
                hint="`nodeagent inspect` and `journalctl -u nodeagent` say why",
            ) from err
        finally:
            waiting[peer.uid] -= 1
        if isinstance(placement, JobRefusal):
            cpus = {} if request is None else {"cpus": str(pod.containers[0].resources.limits.get(CPU))}
            return {"refused": {"reason": placement.reason, "message": placement.message, **cpus}}
        described = self._describe_start(pod, request, placement)
        return described if asked.optional("report") is None else described | self._describe_for_report(request)

    def _describe_start(
        self, pod: Pod, request: QuietRequest | None, placement: ContainerPlacement
    ) -> dict[str, object]:
        entry = new_entry(Manifest(pod, Origin(pod.full_name, JOBS)), 0, pod_level_resources=False)
        file = placement_file(self._agent.node.config, entry, JOB_CONTAINER)
        return {
            "pod": pod.full_name,
            "uid": pod.uid,
            "coreClass": pod.core_class,
            "near": list(pod.near),
            "exclusiveCPUs": str(placement.exclusive_cpus),
            "sharedCPUs": str(placement.shared_cpus),
            "numaNodes": str(self._agent.node.topology.numa_of(placement.exclusive_cpus | placement.shared_cpus)),
            "cgroup": f"{self._agent.edges.tree.root}/{entry.container_path(JOB_CONTAINER)}",
            "endsAtMs": self._jobs.find_end_ms(pod.uid),
            "environment": dict((*placement_variables(placement), (PLACEMENT_FILE, file))),
            **({} if request is None else {"quiet": self._describe_quiet(pod, request, placement.exclusive_cpus)}),
        }

    def _make_pod(
        self, name: str, amounts: Mapping[str, str], where: tuple[str | None, str | None, str | None], quiet: str | None
    ) -> tuple[Pod, QuietRequest | None]:
        """Create the pod of a job. Return the pod and the requested quiet settings of its cores.

        The pod contains a copy of the profile's settings, so a later change of the configuration doesn't affect a running job. If sibling
        threads must stay idle, the pod requests all threads of a core for each CPU of the job.

        Args:
            name: the pod's name.
            amounts: the requested amounts by resource.
            where: the requested NUMA node, core class and devices. None means that the job doesn't request one of them.
            quiet: the requested profile and settings, as text. None means none.

        Raises:
            PodOptionError: a value is invalid.
            JobRequestError: the configuration has no such profile, or the cores differ in their number of threads.
        """
        uid = str(uuid.uuid4())
        pod = job_pod(name, uid, amounts, *where, quiet)
        if pod.quiet is None:
            return pod, None
        config, topology = self._agent.node.config, self._agent.node.topology
        settings = pod.quiet.resolve(config.profiles)
        if settings is None:
            names = ", ".join(name for name, _ in config.profiles)
            raise JobRequestError(
                f"--quiet: there is no profile {pod.quiet.profile}",
                hint=f"`profiles:` in the configuration has {names}",
            )
        cpus = Quantity.parse(amounts[CPU])
        if settings.idle_siblings and config.placement.has_static_cpus and not cpus.nano % 10**9:
            of_class = topology.core_classes.get(pod.core_class or "", topology.online)
            sizes = {len(core) for core in topology.cores.values() if core & of_class}
            if len(sizes) != 1:
                raise JobRequestError(
                    f"the cores have {' or '.join(map(str, sorted(sizes)))} threads, so it is ambiguous how many of them stay idle",
                    hint="name a class with `--core-class`, or use all threads with `--threads-per-core all`",
                )
            amounts = {**amounts, CPU: str(replace(cpus, nano=cpus.nano * sizes.pop()))}
        return job_pod(name, uid, amounts, *where, format_request(QuietRequest(settings=settings))), pod.quiet

    def _describe_quiet(self, pod: Pod, request: QuietRequest, exclusive: CpuSet) -> dict[str, object]:
        """Describe a quiet job's core settings: those in effect, and those not in effect with the reasons."""
        node, host = self._agent.node, self._agent.edges.host_settings
        settings = (
            {}
            if pod.quiet is None
            else list_quiet_settings(
                node.topology,
                exclusive,
                pod.quiet.settings,
                machine_wide_boost=node.config.machine_wide_boost,
            )
        )
        profile = dict(node.config.profiles).get(request.profile, Profile())
        return {
            "profile": request.profile,
            "process": to_builtins(profile.process),
            "applied": {describe_setting(s): host.in_effect[s] for s in sorted(settings) if s in host.in_effect},
            "missing": {describe_setting(s): host.unavailable[s] for s in sorted(settings) if s in host.unavailable},
        }

    def _describe_for_report(self, request: QuietRequest | None) -> dict[str, object]:
        config = self._agent.node.config
        profile = Profile() if request is None else dict(config.profiles).get(request.profile, Profile())
        thresholds = {**dict(config.run_thresholds), **dict(profile.run_thresholds)}
        return {"configurationHash": hash_config(config), "runThresholds": thresholds}

    async def answer_release(self, arguments: Mapping[str, Any], peer: Peer) -> dict[str, object]:
        """Wait up to a minute until a job has released all its resources, so that others can use its CPUs. Return whether it did so in
        time.

        Raises:
            NodeAgentError: the request is malformed, or too many requests are waiting.
        """
        try:
            uid = JsonValue(dict(arguments)).field("uid").text()
        except MisfitError as err:
            raise JobRequestError(f"malformed request for a job's end: {err}", hint="use `nodeagent job`") from err
        with self.take_place(peer):
            try:
                async with asyncio.timeout(MAX_TURN_SECONDS):
                    await asyncio.wrap_future(self._jobs.watch_release(uid))
            except TimeoutError:
                return {"isReleased": False}
        return {"isReleased": True}

    @contextmanager
    def take_place(self, peer: Peer) -> Iterator[None]:
        """Count one more waiting request of this user while the `with` block runs.

        Raises:
            JobRequestError: too many requests are waiting.
        """
        self._check_room(peer)
        self._waiting[peer.uid] += 1
        try:
            yield
        finally:
            self._waiting[peer.uid] -= 1

    def _check_room(self, peer: Peer, *, is_queued: bool = False) -> None:
        """Raise JobRequestError if this user, or all users together, have too many waiting requests."""
        limits = self._limits
        if is_queued:
            own, every = self._queued[peer.uid], self._queued.total()
            if every >= limits.queued or (own >= limits.queued_per_user and peer.uid not in limits.unbounded):
                raise JobRequestError(
                    f"{every} jobs ({own} of yours) are already waiting for room, so this job was not accepted",
                    hint="try again when some of the waiting jobs have started or ended (`nodeagent queue` lists them)",
                )
            return
        own, every = self._waiting[peer.uid], self._waiting.total()
        if every >= limits.waiting or (own >= limits.waiting_per_user and peer.uid not in limits.unbounded):
            raise JobRequestError(
                f"{every} jobs ({own} of yours) are already waiting for a decision, so this job was not accepted",
                hint="try again in a second; `journalctl -u nodeagent` shows what delays the agent",
            )

    def has_jobs_in(self, reservation: str) -> bool:
        """Return whether a job runs or waits in a reservation of this name. Jobs can outlive the reservation if it is cancelled."""
        return any(record.reservation == reservation for record in self._jobs.list_records())

    def find_reservation(self, name: str, user: int) -> Reservation:
        """Return the reservation of this name, if the user may use it. Root and the agent's own user may use every reservation.

        Raises:
            JobRequestError: the reservation doesn't exist, or belongs to another user.
        """
        found = self._jobs.reservations.find(name)
        if found is None:
            raise JobRequestError(
                f"there is no reservation {name}",
                hint="`nodeagent reserve --list` lists them; ended reservations are removed",
            )
        if user != found.user and user not in self._limits.unbounded:
            raise JobRequestError(
                f"reservation {name} is another user's", hint="make one of your own with `nodeagent reserve`"
            )
        return found

    async def find_bounds(self, user: int) -> JobBounds | None:
        """Return a user's limits for jobs. None means that the user has no limits.

        Raises:
            JobRequestError: the user isn't allowed to run jobs.
        """
        if user in self._limits.unbounded:
            return None
        return await self._look_up(user, self._bounds())

    async def _request(
        self, pod: Pod, user: int, owner: Owner, ticket: str, max_ms: int, reservation: str
    ) -> tuple[Pod, Future[ContainerPlacement | JobRefusal]]:
        """Find the owner's waiting job by its ticket, or request a new job. Return the job's pod and the pending answer. If this fails, the
        handle of the owner process is closed.

        Raises:
            NodeAgentError: the job could not be requested.
        """
        try:
            resumed = self._jobs.resume(owner, ticket) if ticket else None
            bounds = None if resumed is not None else await self._wait_until_allowed(pod, user, reservation)
            # the reservation may have been cancelled during the wait, and its name may now belong to another user
            if resumed is None:
                self._check_reservation(pod, user, reservation)
        except BaseException:
            owner.close()
            raise
        if resumed is not None:
            owner.close()
            return resumed
        weight = DEFAULT_WEIGHT if bounds is None else bounds.weight
        return pod, self._jobs.ask(pod, user, owner, ticket, max_ms, reservation, weight)

    async def _check_turn(self, uid: str, user: int) -> None:
        """Wait until the job can start, and then check that its user may still run jobs. The check is made again here because the job may
        have waited for days.

        Raises:
            JobRequestError: the user may not run jobs any more. The job is dropped.
        """
        await asyncio.wrap_future(self._jobs.watch_turn(uid))
        try:
            await self.find_bounds(user)
        except JobRequestError:
            self._jobs.give_up(uid)
            raise
        self._jobs.let_in(uid)

    async def _wait_until_allowed(self, pod: Pod, user: int, reservation: str) -> JobBounds | None:
        """Wait until the user's limits allow another job, and return the limits. None means that the user has no limits.

        The wait lasts only while jobs that have ended still hold resources. If the job would exceed the limits even without them, the
        request fails at once. A job in a reservation counts towards the number of jobs, but not towards the amounts that the reservation
        covers.

        Raises:
            JobRequestError: the user isn't allowed to run jobs or use the reservation, or the job and the user's running jobs exceed the
                limits.
        """
        self._check_reservation(pod, user, reservation)
        bounds = await self.find_bounds(user)
        if bounds is None:
            return None
        if pod.asks_for_devices:
            what = ", ".join(name for container in pod.containers for name, _ in container.devices)
            raise JobRequestError(
                f"only root's jobs may have exclusive devices, and this job requests {what}",
                hint="request CPUs and memory near the device (--near) instead, or run the job with `sudo nodeagent job`",
            )
        while True:
            living, ended = self._jobs.records_of_user(user)
            passed = self._find_exceeded(bounds, living, pod, reservation)
            if passed is not None:
                raise JobRequestError(
                    passed,
                    hint="wait until one of your jobs ends; root can raise the limit (`jobs:` in the configuration)",
                )
            if self._find_exceeded(bounds, (*living, *ended), pod, reservation) is None:
                return bounds
            await asyncio.sleep(_LOOK_SECONDS)

    def _check_reservation(self, pod: Pod, user: int, reservation: str) -> None:
        """Raise JobRequestError if the user may not use this reservation, or if the pod doesn't fit into it. An empty name means that the
        job uses no reservation.
        """
        excess = self.find_reservation(reservation, user).find_excess((), pod) if reservation else None
        if excess is not None:
            raise JobRequestError(excess, hint="request less, or make a larger reservation")

    def _find_exceeded(self, bounds: JobBounds, jobs: Sequence[JobRecord], pod: Pod, reservation: str) -> str | None:
        reserved = {one.name: one.amounts.keys() for one in self._jobs.reservations.list_current()}
        inside = {job.pod.uid: reserved.get(job.reservation, ()) for job in jobs}
        inside[pod.uid] = reserved.get(reservation, ())
        return find_exceeded_bound(bounds, [job.pod for job in jobs], pod, inside)

    def _bounds(self) -> JobBounds:
        bounds = self._agent.node.config.jobs
        if bounds is None:
            raise JobRequestError(
                "only root may run jobs here", hint="root can allow other users by `jobs:` in the configuration"
            )
        return bounds

    async def _look_up(self, user: int, bounds: JobBounds) -> JobBounds:
        """Check in the user database that the user is in the group for jobs, and return the user's limits.

        The socket's permissions alone aren't enough. A process with the group can, in a user namespace, change to any subordinate ID of its
        user, and each of these IDs would have limits of its own.

        Raises:
            JobRequestError: the user isn't in the group, or the user database doesn't answer.
        """
        try:
            async with asyncio.timeout(self._limits.lookup_seconds):
                found = await asyncio.get_running_loop().run_in_executor(self._lookups, _find_bounds, user, bounds)
        except TimeoutError as err:
            raise JobRequestError(
                f"the user database has not answered within {self._limits.lookup_seconds:.0f} s whether user {user} is in the group "
                f"{bounds.group}",
                hint=f"try again; if `getent passwd {user}` hangs, too, see /etc/nsswitch.conf for the services that it asks",
            ) from err
        if found is None:
            raise JobRequestError(
                f"by the user database, user {user} is not in the group {bounds.group} (jobs.group), whose members may run jobs",
                hint="run the job as a member of the group, outside of user namespaces that map user IDs; root can add a user by "
                f"`usermod -aG {bounds.group} USER`",
            )
        return found


def _find_bounds(user: int, bounds: JobBounds) -> JobBounds | None:
    """Return the user's limits, with the user's configured share applied. None means that the user isn't in the group."""
    if not is_member(user, bounds.group):
        return None
    for share in bounds.shares:
        if find_user_id(share.user) == user if share.user else is_member(user, share.group):
            return bounds.apply_share(share)
    return bounds
