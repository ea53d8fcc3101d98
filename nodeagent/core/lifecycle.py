"""When containers start, restart, stop and are over: one pod's entry and what was observed in, the next entry out.

Follows kubelet: init containers one by one to completion, sidecars in order and then for good, apps together; restarts with
back-off; SIGTERM, grace period, then the whole cgroup is killed, apps before sidecars. Knows no launcher and no promise.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from nodeagent.core.cgroup import Seen
from nodeagent.core.layout import container_path
from nodeagent.core.pod import Container, ContainerKind, Pod, RestartPolicy
from nodeagent.core.state import ContainerStatus, Exit, Phase, PodEntry, run_id

BACKOFF_FIRST_MS = 10_000
BACKOFF_MAX_MS = 300_000
"""kubelet's MaxContainerBackOff. A container that ran for twice as long starts anew without waiting."""


@dataclass(frozen=True, slots=True)
class Run:
    """One start as the launcher knows it."""

    id: str
    started_at_ms: int
    pid: int | None = None
    exit: Exit | None = None


Runs = Mapping[str, Run]
"""By id. What the launcher does not know is missing."""


def observe(entry: PodEntry, runs: Runs, seen: Seen) -> PodEntry:
    """Take over what happened to the started containers."""
    for status in entry.containers:
        if not status.is_started:
            continue
        run = runs.get(run_id(entry.pod.uid, status.name, status.attempt))
        there = seen.get(container_path(entry, status.name))
        oom_kills = there.oom_kills if there else 0
        if run is None:
            continue
        if run.exit is None:
            entry = entry.with_status(replace(status, started_at_ms=run.started_at_ms))
            continue
        killed = run.exit.signal == 9 and oom_kills > status.oom_kills_seen
        entry = entry.with_status(
            replace(
                status,
                started_at_ms=run.started_at_ms,
                exit=replace(run.exit, is_oom_kill=killed),
                oom_kills_seen=max(oom_kills, status.oom_kills_seen),
            )
        )
    return entry


def advance(entry: PodEntry, seen: Seen, now_ms: int) -> PodEntry:
    """Decide on the next starts and stops of an admitted pod."""
    if entry.deleting_since_ms is not None:
        return _stop_in_order(entry, seen, entry.deleting_since_ms + entry.pod.termination_grace_seconds * 1000)
    if entry.outcome is not None:
        return entry
    outcome = _outcome(entry, seen)
    if outcome is not None:
        return replace(entry, outcome=outcome)
    if _init_failed(entry) or _apps_are_over(entry):
        return _stop_in_order(entry, seen, now_ms + entry.pod.termination_grace_seconds * 1000)
    return _start_in_order(entry, seen, now_ms)


def is_gone(entry: PodEntry, seen: Seen) -> bool:
    """No process of the pod is left (D11: the cgroup itself says so)."""
    return all(not _is_populated(entry, c.name, seen) for c in entry.containers)


def is_unsettled(entry: PodEntry, runs: Runs, seen: Seen) -> bool:
    """Something is under way whose end nobody announces: a cgroup is to become empty, a start is to be seen."""
    for container, status in entry.pairs() if entry.refusal is None else ():
        populated = _is_populated(entry, status.name, seen)
        run = runs.get(run_id(entry.pod.uid, status.name, status.attempt))
        if populated and (
            status.stop_by_ms is not None or (container.command and (run is None or run.exit is not None))
        ):
            return True
        if status.is_started and run is None and status.stop_by_ms is None:
            return True
    return entry.deleting_since_ms is not None and is_gone(entry, seen)


def wake_at_ms(entry: PodEntry) -> int | None:
    """Give the next moment at which time alone changes something for the pod."""
    if entry.refusal is not None:
        return None
    moments = [c.stop_by_ms for c in entry.containers if c.stop_by_ms is not None and c.is_started]
    if entry.deleting_since_ms is None and entry.outcome is None:
        moments += [_restart_at_ms(c) for c in entry.containers if c.exit is not None]
    return min(moments, default=None)


def next_start_at_ms(entry: PodEntry, name: str) -> int | None:
    """Give the earliest moment of a container's next start, the past if it only waits for its turn. None: it is not to start again."""
    container, status = entry.pod.container(name), entry.status(name)
    if not entry.is_active or entry.deleting_since_ms is not None or not container.command or status.is_started:
        return None
    return _restart_at_ms(status) if _is_to_run(entry.pod, container, status) else None


def _start_in_order(entry: PodEntry, seen: Seen, now_ms: int) -> PodEntry:
    apps_begun = any(s.attempt for c, s in entry.pairs() if c.kind is ContainerKind.APP and c.command)
    for container, status in tuple(entry.pairs()):
        if container.kind is ContainerKind.INIT:
            if apps_begun or (status.exit is not None and status.exit.is_success):
                continue
            return _start_if_due(entry, container, status, seen, now_ms)
        entry = _start_if_due(entry, container, status, seen, now_ms)
        if (
            container.kind is ContainerKind.SIDECAR
            and not apps_begun
            and entry.status(container.name).started_at_ms is None
        ):
            return entry  # the next one waits until this one has started
    return entry


def _start_if_due(entry: PodEntry, container: Container, status: ContainerStatus, seen: Seen, now_ms: int) -> PodEntry:
    if not container.command or status.is_started or not _is_to_run(entry.pod, container, status):
        return entry
    if _is_populated(entry, container.name, seen) or now_ms < _restart_at_ms(status):
        return entry
    return entry.with_status(
        replace(
            status,
            attempt=status.attempt + 1,
            started_at_ms=None,
            exit=None,
            last_exit=status.exit,
            backoff_step=_next_backoff_step(status),
        )
    )


def _is_to_run(pod: Pod, container: Container, status: ContainerStatus) -> bool:
    """Whether a container that isn't running should be (again)."""
    if status.exit is None:
        return True
    if container.kind is ContainerKind.SIDECAR:
        return True
    policy = pod.restart_policy
    if container.kind is ContainerKind.INIT:
        return not status.exit.is_success and policy is not RestartPolicy.NEVER
    return policy is RestartPolicy.ALWAYS or (policy is RestartPolicy.ON_FAILURE and not status.exit.is_success)


def _restart_at_ms(status: ContainerStatus) -> int:
    if status.exit is None or status.backoff_step == 0:
        return 0
    if _ran_long(status):
        return 0
    return status.exit.finished_at_ms + min(BACKOFF_MAX_MS, BACKOFF_FIRST_MS << (status.backoff_step - 1))


def _next_backoff_step(status: ContainerStatus) -> int:
    if status.exit is None or _ran_long(status):
        return 0
    return min(status.backoff_step + 1, 16)


def _ran_long(status: ContainerStatus) -> bool:
    return (
        status.exit is not None
        and status.started_at_ms is not None
        and status.exit.finished_at_ms - status.started_at_ms > 2 * BACKOFF_MAX_MS
    )


def _apps_are_over(entry: PodEntry) -> bool:
    return all(
        bool(c.command) and s.exit is not None and not _is_to_run(entry.pod, c, s)
        for c, s in entry.pairs()
        if c.kind is ContainerKind.APP
    )


def _init_failed(entry: PodEntry) -> bool:
    """An init container failed for good: the pod's apps will never run."""
    if entry.pod.restart_policy is not RestartPolicy.NEVER:
        return False
    return any(c.kind is ContainerKind.INIT and s.exit is not None and not s.exit.is_success for c, s in entry.pairs())


def _outcome(entry: PodEntry, seen: Seen) -> Phase | None:
    """SUCCEEDED or FAILED if nothing of the pod runs, nor will again."""
    if not (_init_failed(entry) or _apps_are_over(entry)):
        return None
    if any(s.is_started for s in entry.containers) or not is_gone(entry, seen):
        return None
    if _init_failed(entry):
        return Phase.FAILED
    apps = [s for c, s in entry.pairs() if c.kind is ContainerKind.APP]
    return Phase.SUCCEEDED if all(s.exit is not None and s.exit.is_success for s in apps) else Phase.FAILED


def _stop_in_order(entry: PodEntry, seen: Seen, stop_by_ms: int) -> PodEntry:
    """Stop apps and init containers first; sidecars after them, the last one first (KEP-753)."""
    waves = [[s for c, s in entry.pairs() if c.kind is not ContainerKind.SIDECAR]]
    waves += [[s] for c, s in reversed(tuple(entry.pairs())) if c.kind is ContainerKind.SIDECAR]
    for wave in waves:
        for status in wave:
            if status.stop_by_ms is None:
                entry = entry.with_status(replace(status, stop_by_ms=stop_by_ms))
        if any(_is_populated(entry, status.name, seen) for status in wave):
            break
    return entry


def _is_populated(entry: PodEntry, name: str, seen: Seen) -> bool:
    there = seen.get(container_path(entry, name))
    return there is not None and there.is_populated
