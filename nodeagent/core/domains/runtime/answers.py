"""Changes of containers' cgroups that the agent requests from the container runtime. Only values that differ from the desired ones are
sent, and CPUs are vacated before they are granted.

The runtime carries out the changes of an answer one after the other, and only logs a failure. Therefore no change grants CPUs that another
container still has to leave. They are granted later, once the cgroup of the other container shows that they are free. A container that is
being created gets its CPUs at once, because its first process can't start before `check_start`. NRI can't express an empty cpuset, so a
container without usable CPUs isn't changed.
"""

from collections.abc import Collection, Iterable

from msgspec import Struct

from nodeagent.core.model.cgroup import Attribute, CpuMax, DesiredCgroup
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.nri import Answer, Denial, NriResources, Update

NO_LIMIT_US = -1
"""CPU quota that means no limit (runtime-spec, LinuxCPU.quota)."""
_MAX_NAMED = 5


class WantedPlacement(Struct, frozen=True):
    """Desired values of a container's cgroup, as far as NRI can set them."""

    cpus: CpuSet
    """CPUs on which the container should run. Empty means that none of its CPUs can be used now."""
    mems: NumaSet = NumaSet()
    """Memory nodes that the container should use. Empty means that they stay unchanged."""
    cpu_max: CpuMax | None = None
    """CPU quota that the container should have. None means that the quota stays unchanged."""
    exclusive_cpus: CpuSet = CpuSet()
    """Part of `cpus` that is exclusive."""

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
    """A cgroup with processes, which may occupy CPUs that are allocated to others. It belongs to a container of the runtime or to another
    program.
    """

    who: str
    """Description of the occupant for users, such as `pod default/db, container server`."""
    effective: CpuSet
    """CPUs on which the cgroup's processes may run now. Empty means that the cgroup has no processes."""
    wanted: WantedPlacement | None
    """Desired placement of the container. None means that the agent hasn't decided on it."""
    id: str = ""
    """Container ID in the runtime. Empty means that the runtime can't change this cgroup."""
    has: NriResources = NriResources()
    """Present values of the cgroup, as far as NRI can set them."""

    @property
    def overdue(self) -> CpuSet:
        """Return the CPUs that the occupant has to leave, but on which its processes may still run."""
        return self.effective - (CpuSet() if self.wanted is None else self.wanted.cpus)


class BlockedContainer(Struct, frozen=True):
    """A container that doesn't get all its desired CPUs with this answer, because other occupants still use them."""

    id: str
    cpus: CpuSet
    """Desired CPUs that other occupants haven't left. Empty means that the container shouldn't run on any CPU, which NRI can't express."""
    others: tuple[str, ...] = ()
    """Descriptions of the occupants that haven't left these CPUs."""


class Response(Struct, frozen=True):
    answer: Answer
    waiting: tuple[BlockedContainer, ...] = ()
    """Containers that still lack desired CPUs. The agent requests the CPUs in a later message, when the other occupants have left them."""


def build_response(
    others: Iterable[Occupant],
    *,
    created: tuple[WantedPlacement, NriResources] | None = None,
    updated: str = "",
    pool: CpuSet | None = None,
) -> Response:
    """Build the changes that an answer requests. Changes that only vacate CPUs come first.

    Args:
        others: all occupants, including the containers to be changed.
        created: for a container that is being created, its desired placement and the runtime's own values for it. The placement must
            contain CPUs; if it doesn't, the caller has to deny the creation instead.
        updated: ID of the container that the runtime is updating. All its desired values are sent, because the update might overwrite them.
        pool: the shared pool. A container moves there while none of its own CPUs is free. Otherwise two containers on each other's CPUs
            would wait for each other forever.
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
    """Decide whether the first process of a container may start. The process already waits in the container's cgroup. None means that it
    may start.

    Args:
        starting: the container, as its cgroup was read just now.
        others: all other occupants, as they were read just now.
        rivals: IDs of other containers with the same pod and container name. The container can't start before all of them have ended.
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
    """Build the request to change a container's cgroup. None means that no value differs.

    Args:
        wanted: the desired values.
        has: the present values, in which a missing quota means no limit. None means that all desired values are sent.
        cpus: those of the desired CPUs that are free now. If there are none, the cpuset stays unchanged.
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
