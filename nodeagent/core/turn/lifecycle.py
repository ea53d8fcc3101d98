"""Lifecycle of a pod's containers (start, restart, stop, end), as functions from the pod's entry and the observations to the next entry.

As in kubelet, init containers run one after the other to completion, and sidecars start in order and keep running. When all of them have
been started, the app containers start together. Restarts are delayed by a back-off. To stop a container, the agent sends SIGTERM, waits for
the grace period, and then kills the whole cgroup. App containers stop before sidecars. This module doesn't access the launcher, and doesn't
depend on promises.
"""

from collections.abc import Mapping, Set as AbstractSet

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.cgroup import ObservedCgroups
from nodeagent.core.model.pod import Container, ContainerKind, Pod, RestartPolicy
from nodeagent.core.model.state import ContainerStatus, Exit, Phase, PodEntry, run_id

BACKOFF_FIRST_MS = 10_000
BACKOFF_MAX_MS = 300_000
"""Longest delay of a restart, as in kubelet (MaxContainerBackOff). A container that ran for more than twice this time is restarted without
delay.
"""
_LAST_BACKOFF_STEP = 6
"""Smallest back-off step whose delay is the longest one."""
MIN_GRACE_MS = 2_000
"""Shortest grace period, as in kubelet (minimumGracePeriodInSeconds). A container gets at least this time, even if the pod's grace period
is shorter or has already passed.
"""


class Run(Struct, frozen=True):
    """One start of a container's command, as reported by the launcher."""

    id: str
    started_at_ms: int
    pid: int | None = None
    exit: Exit | None = None
    start_ticks: int | None = None
    """Start time of the process in clock ticks since boot. PID and start time together identify a process, because PIDs are reused."""


Runs = Mapping[str, Run]
"""Runs by ID. Only runs that the launcher lists are included."""


def observe(entry: PodEntry, runs: Runs, observed: ObservedCgroups, now_ms: int) -> PodEntry:
    """Record which of a pod's containers have started or ended. Containers that the agent hasn't decided to start are skipped."""
    for status in entry.containers:
        if status.is_started:
            entry = entry.with_status(
                _observe_container(entry, status, runs.get(run_id(entry, status)), observed, now_ms)
            )
    return entry


def _observe_container(
    entry: PodEntry, status: ContainerStatus, run: Run | None, observed: ObservedCgroups, now_ms: int
) -> ContainerStatus:
    if run is None:
        # If a container was observed running and the launcher doesn't know it now, it has ended, for instance by a reboot of the host.
        is_lost = status.started_at_ms is not None and not _is_populated(entry, status.name, observed)
        return replace(status, exit=Exit(now_ms)) if is_lost else status
    # The clock may have been set back since the launcher recorded its times, so these times may be later than now.
    if status.started_at_ms is None:
        status = replace(status, started_at_ms=min(run.started_at_ms, now_ms))
    if run.exit is None:
        return status
    oom_kills = _count_oom_kills(entry, status, observed)
    killed = run.exit.signal == 9 and oom_kills > status.oom_kills_seen
    finished_at_ms = min(run.exit.finished_at_ms, now_ms)
    ended = replace(run.exit, finished_at_ms=finished_at_ms, is_oom_kill=killed)
    return replace(status, exit=ended, oom_kills_seen=oom_kills)


def advance(
    entry: PodEntry, runs: Runs, observed: ObservedCgroups, now_ms: int, asked_to_end: frozenset[str]
) -> PodEntry:
    """Decide which of an admitted pod's containers to start or stop next. A pod that pins units is returned unchanged, because systemd
    starts and stops its processes.

    Args:
        entry: the pod's entry.
        runs: the runs that the launcher lists.
        observed: the observed cgroups.
        now_ms: the wall-clock time.
        asked_to_end: the IDs of the runs that the agent has tried to end by SIGTERM.
    """
    if entry.pins_units:
        return entry
    grace_ms = entry.pod.termination_grace_seconds * 1000
    if entry.deleting_since_ms is not None:
        return _stop_in_order(entry, runs, observed, entry.deleting_since_ms + grace_ms, now_ms, asked_to_end)
    if entry.outcome is not None:
        return entry
    outcome = _find_outcome(entry, runs, observed)
    if outcome is not None:
        return replace(entry, outcome=outcome)
    if _has_init_failed(entry) or _have_apps_finished(entry):
        return _stop_in_order(entry, runs, observed, now_ms + grace_ms, now_ms, asked_to_end)
    return _start_in_order(entry, observed, now_ms)


def is_gone(entry: PodEntry, runs: Runs, observed: ObservedCgroups) -> bool:
    """Return whether all of the pod's processes have ended, in its cgroups (D11) and elsewhere. A pinned unit instead counts as gone once
    its original settings are restored.
    """
    return all(not _is_alive(entry, status, runs, observed) for status in entry.containers)


def is_unsettled(entry: PodEntry, runs: Runs, observed: ObservedCgroups) -> bool:
    """Return whether the pod waits for a change that doesn't wake the agent, such as a cgroup that becomes empty. The next turn must then
    examine the pod in any case.
    """
    if not entry.is_active:
        return False
    if entry.pins_units:
        return entry.deleting_since_ms is not None
    for container, status in entry.pairs():
        run = runs.get(run_id(entry, status))
        if _is_alive(entry, status, runs, observed):
            if status.stop_by_ms is not None or (container.is_launched and not _has_main_process(entry, status, runs)):
                return True
        elif status.is_started and run is None and status.stop_by_ms is None:
            return True
    return entry.deleting_since_ms is not None and is_gone(entry, runs, observed)


def wake_at_ms(entry: PodEntry, now_ms: int) -> int | None:
    """Return the next time at which the pod needs a turn even if no event occurs. Past times are ignored, because the pod then waits for an
    event or another observation. None means that there is no such time.
    """
    if not entry.is_active:
        return None
    earliest = None
    for container, status in entry.pairs():
        is_stopped = status.is_started or not container.is_launched
        moment = status.stop_by_ms if is_stopped else next_start_at_ms(entry, container, status)
        if moment is not None and moment > now_ms and (earliest is None or moment < earliest):
            earliest = moment
    return earliest


def next_start_at_ms(entry: PodEntry, container: Container, status: ContainerStatus) -> int | None:
    """Return the earliest time at which a container may start. A past time means that it waits only for other containers. None means that
    it isn't to start.
    """
    if not entry.is_active or entry.deleting_since_ms is not None or not container.is_launched:
        return None
    if status.is_started or (status.stop_by_ms is not None and not status.is_to_restart):
        return None
    return _restart_at_ms(status) if _is_to_run(entry.pod, container, status) else None


def _start_in_order(entry: PodEntry, observed: ObservedCgroups, now_ms: int) -> PodEntry:
    for position, (container, status) in enumerate(tuple(entry.pairs())):
        is_passed = any(later.attempt for later in entry.containers[position + 1 :])
        match container.kind:
            case ContainerKind.INIT:
                if is_passed:
                    continue
                if status.exit is None or not status.exit.is_success:
                    return _start_if_due(entry, container, status, observed, now_ms)
                if _is_populated(entry, container.name, observed):
                    return entry  # containers after the init container may have its CPUs now
            case ContainerKind.SIDECAR:
                entry = _start_if_due(entry, container, status, observed, now_ms)
                if container.is_launched and not is_passed and not entry.status(container.name).is_running:
                    return entry
            case ContainerKind.APP:
                entry = _start_if_due(entry, container, status, observed, now_ms)
    return entry


def _start_if_due(
    entry: PodEntry, container: Container, status: ContainerStatus, observed: ObservedCgroups, now_ms: int
) -> PodEntry:
    if not container.is_launched or status.is_started or not _is_to_run(entry.pod, container, status):
        return entry
    if _is_populated(entry, container.name, observed) or now_ms < _restart_at_ms(status):
        return entry
    backoff_step = status.backoff_step
    if not status.is_to_restart:
        lasts = status.exit is None or _ran_long(status)
        backoff_step = int(status.exit is not None) if lasts else min(backoff_step + 1, _LAST_BACKOFF_STEP)
    return entry.with_status(
        replace(
            status,
            attempt=status.attempt + 1,
            started_at_ms=None,
            exit=None,
            last_exit=status.exit,
            backoff_step=backoff_step,
            stop_by_ms=None,
            is_to_restart=False,
            oom_kills_seen=_count_oom_kills(entry, status, observed),
        )
    )


def _is_to_run(pod: Pod, container: Container, status: ContainerStatus) -> bool:
    """Return whether a container that isn't running should be started, for the first time or after an exit."""
    if status.exit is None or status.is_to_restart:
        return True
    if container.kind is ContainerKind.SIDECAR:
        return True
    policy = pod.restart_policy
    if container.kind is ContainerKind.INIT:
        return not status.exit.is_success and policy is not RestartPolicy.NEVER
    return policy is RestartPolicy.ALWAYS or (policy is RestartPolicy.ON_FAILURE and not status.exit.is_success)


def _restart_at_ms(status: ContainerStatus) -> int:
    if status.exit is None or status.backoff_step == 0 or status.is_to_restart:
        return 0
    if _ran_long(status):
        return 0
    return status.exit.finished_at_ms + min(
        BACKOFF_MAX_MS, BACKOFF_FIRST_MS << (min(status.backoff_step, _LAST_BACKOFF_STEP) - 1)
    )


def _ran_long(status: ContainerStatus) -> bool:
    return (
        status.exit is not None
        and status.started_at_ms is not None
        and status.exit.finished_at_ms - status.started_at_ms > 2 * BACKOFF_MAX_MS
    )


def _have_apps_finished(entry: PodEntry) -> bool:
    return all(
        c.is_launched and s.exit is not None and not _is_to_run(entry.pod, c, s)
        for c, s in entry.pairs()
        if c.kind is ContainerKind.APP
    )


def _has_init_failed(entry: PodEntry) -> bool:
    """Return whether an init container has failed and isn't restarted, so that the pod's app containers will never run."""
    if entry.pod.restart_policy is not RestartPolicy.NEVER:
        return False
    return any(c.kind is ContainerKind.INIT and s.exit is not None and not s.exit.is_success for c, s in entry.pairs())


def _find_outcome(entry: PodEntry, runs: Runs, observed: ObservedCgroups) -> Phase | None:
    """Return SUCCEEDED or FAILED if no container of the pod runs, and none will be started. None means that the pod hasn't finished."""
    if not (_has_init_failed(entry) or _have_apps_finished(entry)):
        return None
    # If a start was decided but not carried out, it doesn't count, because it will not happen any more.
    if any(s.is_running for s in entry.containers) or not is_gone(entry, runs, observed):
        return None
    if _has_init_failed(entry):
        return Phase.FAILED
    apps = [s for c, s in entry.pairs() if c.kind is ContainerKind.APP]
    return Phase.SUCCEEDED if all(s.exit is not None and s.exit.is_success for s in apps) else Phase.FAILED


def _stop_in_order(
    entry: PodEntry,
    runs: Runs,
    observed: ObservedCgroups,
    stop_by_ms: int,
    now_ms: int,
    asked_to_end: frozenset[str],
) -> PodEntry:
    """Stop app and init containers first, then the sidecars, one after the other in reverse order (KEP-753).

    If the launcher or the agent wasn't running, SIGTERM may not have been sent by the time at which SIGKILL is due. SIGTERM is then sent
    first, and SIGKILL is put off. In a pod that is being deleted, SIGKILL follows at the end of the pod's grace period, but at least
    MIN_GRACE_MS after SIGTERM. In a pod that finishes, it follows a whole grace period after SIGTERM. SIGTERM is tried only once, so
    SIGKILL follows even if SIGTERM can't be sent.
    """
    waves = [[s for c, s in entry.pairs() if c.kind is not ContainerKind.SIDECAR]]
    waves += [[s] for c, s in reversed(tuple(entry.pairs())) if c.kind is ContainerKind.SIDECAR]
    for wave in waves:
        for status in wave:
            is_late = status.stop_by_ms is not None and status.stop_by_ms <= now_ms
            # Processes that outlive the main process are killed without SIGTERM.
            can_ask = (
                _has_main_process(entry, status, runs)
                if entry.pod.container(status.name).command
                else _is_populated(entry, status.name, observed)
            )
            is_unasked = is_late and can_ask
            if status.stop_by_ms is None or (is_unasked and run_id(entry, status) not in asked_to_end):
                entry = entry.with_status(replace(status, stop_by_ms=max(stop_by_ms, now_ms + MIN_GRACE_MS)))
        if any(_is_alive(entry, status, runs, observed) for status in wave):
            break
    return entry


def record_unit_settings(entry: PodEntry, observed: ObservedCgroups) -> PodEntry:
    """Record the original settings of each pinned unit that is observed for the first time."""
    for status in entry.containers:
        cgroup = observed.get(entry.container_path(status.name))
        if status.unit_before is None and cgroup is not None:
            before = cgroup.unit if cgroup.unit_before is None else cgroup.unit_before
            entry = entry.with_status(replace(status, unit_before=before))
    return entry


def stop_for_restart(entry: PodEntry, names: AbstractSet[str], now_ms: int) -> PodEntry:
    """Begin to stop the named containers, so that they restart with the pod's new amounts."""
    stop_by_ms = now_ms + max(entry.pod.termination_grace_seconds * 1000, MIN_GRACE_MS)
    for container, status in entry.pairs():
        if container.name in names and container.is_launched and status.is_started and status.stop_by_ms is None:
            entry = entry.with_status(replace(status, stop_by_ms=stop_by_ms, is_to_restart=True))
    return entry


def is_to_rest(entry: PodEntry, inactive_units: AbstractSet[str]) -> bool:
    """Return whether a pod should release its allocation, because its manifest permits this and none of its units is active or being
    started.
    """
    paths = {entry.container_path(status.name) for status in entry.containers}
    return entry.pod.gives_back and paths <= inactive_units


def is_to_resume(entry: PodEntry, observed: ObservedCgroups, inactive_units: AbstractSet[str]) -> bool:
    """Return whether an idle pod needs an allocation, because one of its units is active. While systemd doesn't answer, the units' states
    are unknown, and the pod stays idle.
    """
    cgroups = (
        (path, observed.get(path)) for path in (entry.container_path(status.name) for status in entry.containers)
    )
    return any(group is not None and group.unit is not None and path not in inactive_units for path, group in cgroups)


def _is_alive(entry: PodEntry, status: ContainerStatus, runs: Runs, observed: ObservedCgroups) -> bool:
    if entry.pins_units:
        cgroup = observed.get(entry.container_path(status.name))
        return cgroup is not None and status.unit_before not in {None, cgroup.unit}
    return _is_populated(entry, status.name, observed) or _has_main_process(entry, status, runs)


def _has_main_process(entry: PodEntry, status: ContainerStatus, runs: Runs) -> bool:
    run = runs.get(run_id(entry, status))
    return run is not None and run.exit is None


def _is_populated(entry: PodEntry, name: str, observed: ObservedCgroups) -> bool:
    cgroup = observed.get(entry.container_path(name))
    return cgroup is not None and cgroup.is_populated


def _count_oom_kills(entry: PodEntry, status: ContainerStatus, observed: ObservedCgroups) -> int:
    cgroup = observed.get(entry.container_path(status.name))
    return status.oom_kills_seen if cgroup is None else cgroup.oom_kills
