"""Changes that the agent requests from the runtime, limited to values that differ from the desired ones. CPUs are vacated before they are
granted.

The runtime carries out the changes of an answer one after the other, and only logs failures. A change therefore never grants CPUs that
another container must leave first. These CPUs are granted once the other container's cgroup shows that it has left them. A container that
is being created gets its CPUs at once, because its first process waits for `check_start`. NRI can't express an empty cpuset, so a
container without any CPU stays on its CPUs.
"""

from collections.abc import Collection, Iterable

from msgspec import Struct

from nodeagent.core.model.cgroup import Attribute, CpuMax, DesiredCgroup
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.nri import Answer, Denial, NriResources, Update

NO_LIMIT_US = -1
"""Quota that removes the limit (runtime-spec, LinuxCPU.quota)."""
_MAX_NAMED = 5


class WantedPlacement(Struct, frozen=True):
    """Desired values of a container's cgroup that NRI can set."""

    cpus: CpuSet
    """CPUs of the container. An empty set means that none of the container's CPUs is available."""
    mems: NumaSet = NumaSet()
    """Memory nodes of the container. An empty set means that they stay unchanged."""
    cpu_max: CpuMax | None = None
    """CPU quota of the container. None means that the quota stays unchanged."""
    exclusive_cpus: CpuSet = CpuSet()
    """Exclusive CPUs among `cpus`."""

    @classmethod
    def of(cls, cgroup: DesiredCgroup) -> "WantedPlacement":
        mems, cpu_max = cgroup.get(Attribute.CPUSET_MEMS), cgroup.get(Attribute.CPU_MAX)
        return cls(
            CpuSet() if cgroup.is_starved else cgroup.cpus(),
            mems if isinstance(mems, NumaSet) else NumaSet(),
            cpu_max if isinstance(cpu_max, CpuMax) else None,
            cgroup.exclusive_cpus,
        )


class Occupant(Struct, frozen=True):
    """A cgroup that may have processes. It belongs to a runtime's container or to another program."""

    who: str
    """Name of the occupant in texts for users, such as `pod default/db, container server`."""
    effective: CpuSet
    """CPUs on which the cgroup's processes may run now. An empty set means that the cgroup has no processes."""
    wanted: WantedPlacement | None
    """Desired placement. None means that no decision was made on the container."""
    id: str = ""
    """ID of the container in the runtime. Empty means that the runtime can't change the container's cgroup."""
    has: NriResources = NriResources()
    """Current values of the cgroup."""

    @property
    def overdue(self) -> CpuSet:
        """Return the CPUs that the cgroup's processes must leave, but may still use."""
        return self.effective - (CpuSet() if self.wanted is None else self.wanted.cpus)


class BlockedContainer(Struct, frozen=True):
    """A container that doesn't get all its desired CPUs with this answer."""

    id: str
    cpus: CpuSet
    """CPUs that other occupants haven't left yet. An empty set means that the container should have no CPU, which NRI can't express."""
    others: tuple[str, ...] = ()
    """Names of the occupants that have not left the CPUs."""


class Response(Struct, frozen=True):
    answer: Answer
    waiting: tuple[BlockedContainer, ...] = ()
    """Containers that still lack desired CPUs. The agent builds another response when these CPUs have become free."""


def build_response(
    others: Iterable[Occupant],
    *,
    created: tuple[WantedPlacement, NriResources] | None = None,
    updated: str = "",
    pool: CpuSet | None = None,
) -> Response:
    """Build the changes for an answer. Changes that only vacate CPUs come first.

    Args:
        others: all occupants, including the containers to change.
        created: desired placement of the container that is being created, and the runtime's own values for this container. The placement
            must have CPUs. Otherwise the caller denies the creation.
        updated: ID of the container with a pending update. All its desired values are sent, even those that it already has.
        pool: the shared pool. A container moves to the pool while none of its own CPUs is free. Otherwise two containers on each other's
            CPUs would wait for each other forever.
    """
    there = tuple(others)
    overdue = CpuSet()
    for one in there:
        overdue |= one.overdue
    updates: list[tuple[bool, Update]] = []
    waiting: list[BlockedContainer] = []
    for one in sorted(there, key=lambda occupant: occupant.id):
        if not one.id or one.wanted is None:
            continue
        if not one.wanted.cpus:
            waiting.append(BlockedContainer(one.id, CpuSet()))
            continue
        # The container's cgroup doesn't have these CPUs yet: other containers must leave them first.
        taken = (one.wanted.cpus - one.effective) & overdue
        now = one.wanted.cpus - taken
        if not now and one.overdue and pool is not None:
            # the shared pool is never exclusive, so the container may have it even before other containers have left it
            now = pool
        if taken:
            waiting.append(
                BlockedContainer(one.id, taken, tuple(sorted(other.who for other in there if other.overdue & taken)))
            )
        change = _build_change(one.wanted, None if one.id == updated else one.has, now)
        if change is not None:
            updates.append((not now <= one.effective, Update(one.id, change)))
    updates.sort(key=lambda row: row[0])
    adjustment = None
    if created is not None:
        wanted, has = created
        assert wanted.cpus, "an empty cpuset can't be said"
        adjustment = _build_change(wanted, has, wanted.cpus)
    return Response(Answer(adjustment, tuple(update for _, update in updates)), tuple(waiting))


def check_start(starting: Occupant, others: Iterable[Occupant], rivals: Collection[str] = ()) -> Denial | None:
    """Decide whether a container's first process, which is already in the container's cgroup, may start. None means that the process may
    start.

    Args:
        starting: the container, as read from its cgroup now.
        others: all other occupants, as read now.
        rivals: IDs of the other containers of the same pod and name. All of them must have ended.
    """
    wanted = starting.wanted
    if wanted is None or not wanted.cpus:
        why = "was not decided on before it was created" if wanted is None else "has no CPU left to run on"
        return Denial(f"{starting.who} {why}: see `nodeagent inspect`; the kubelet tries again")
    if not starting.effective or starting.overdue:
        may = f"may run on CPUs {starting.effective}" if starting.effective else "is in no cgroup that can be read"
        return Denial(
            f"{starting.who} {may}, but CPUs {wanted.cpus} are allocated to it: the runtime did not get the answer (did the agent end "
            "meanwhile? see `journalctl -u nodeagent`), or another NRI plugin or program has changed it; the kubelet tries again"
        )
    in_the_way = ((one.who, one.effective if one.id and one.id in rivals else one.overdue) for one in others)
    late = [(who, shared) for who, cpus in in_the_way if (shared := cpus & wanted.exclusive_cpus)]
    if not late:
        return None
    named = ", ".join(f"{who} ({cpus})" for who, cpus in sorted(late)[:_MAX_NAMED])
    more = f" and {len(late) - _MAX_NAMED} more" if len(late) > _MAX_NAMED else ""
    return Denial(
        f"{starting.who} would share its exclusive CPUs {wanted.exclusive_cpus} with {named}{more}, which may still run there; "
        "see `nodeagent inspect`; the kubelet tries again"
    )


def _build_change(wanted: WantedPlacement, has: NriResources | None, cpus: CpuSet) -> NriResources | None:
    """Build the change of one cgroup. None means that no value has to change.

    Args:
        wanted: desired values.
        has: current values, where a missing quota means no limit. None means that all values are sent.
        cpus: the desired CPUs that are free now. The cpuset stays if there are none.
    """
    limit = wanted.cpu_max
    if limit is not None and has is not None:
        quota_us = has.cpu_quota_us or NO_LIMIT_US
        current = CpuMax(quota_us, has.cpu_period_us or 0) if quota_us >= 0 else None
        if limit == current or (limit.quota_us is None and current is None):
            limit = None
    change = NriResources(
        cpus=cpus if cpus and (has is None or cpus != has.cpus) else None,
        mems=wanted.mems if wanted.mems and (has is None or wanted.mems != has.mems) else None,
        cpu_quota_us=None if limit is None else NO_LIMIT_US if limit.quota_us is None else limit.quota_us,
        cpu_period_us=None if limit is None else limit.period_us,
    )
    return None if change == NriResources() else change
