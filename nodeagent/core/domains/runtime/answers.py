"""What a container's cgroup should hold → what the runtime is asked for: only differences, and who leaves before who comes.

The runtime carries out an answer's changes one after the other and only logs those that fail. So none of them gives a CPU that another
container is still to leave: that is asked for again once it has left, as seen in its cgroup. A container that is being created is the
exception: its first process waits for `check_start`. An empty cpuset can't be said in NRI: who should have no CPU at all stays where it is.
"""

from collections.abc import Collection, Iterable

from msgspec import Struct

from nodeagent.core.model.cgroup import Attribute, CpuMax, DesiredCgroup
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.nri import Answer, Denial, NriResources, Update

NO_LIMIT_US = -1
"""A quota that takes a limit away (runtime-spec, LinuxCPU.quota)."""
_MAX_NAMED = 5


class WantedPlacement(Struct, frozen=True):
    """What a container's cgroup should hold, of what NRI can set."""

    cpus: CpuSet
    """Empty: no CPU is left for it."""
    mems: NumaSet = NumaSet()
    """Empty: as it is."""
    cpu_max: CpuMax | None = None
    """None: as it is."""
    exclusive_cpus: CpuSet = CpuSet()
    """Those of `cpus` on which nobody else may run."""

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
    """A cgroup that may have processes in it, of a runtime's container or of anybody else."""

    who: str
    """For people, as in `pod default/db, container server`."""
    effective: CpuSet
    """CPUs on which its processes may run now. Empty: there are none in it."""
    wanted: WantedPlacement | None
    """None: nothing has been decided on for it."""
    id: str = ""
    """The runtime's. Empty: it is not the runtime's to change."""
    has: NriResources = NriResources()
    """As its cgroup holds it."""

    @property
    def overdue(self) -> CpuSet:
        """CPUs that it is to leave."""
        return self.effective - (CpuSet() if self.wanted is None else self.wanted.cpus)


class BlockedContainer(Struct, frozen=True):
    """A container that doesn't get all that it should have with this answer."""

    id: str
    cpus: CpuSet
    """That others have not left yet. Empty: it should have none at all, which can't be said."""
    others: tuple[str, ...] = ()
    """Who they are."""


class Response(Struct, frozen=True):
    answer: Answer
    waiting: tuple[BlockedContainer, ...] = ()
    """Answer again once these CPUs are seen to be free."""


def response(
    others: Iterable[Occupant],
    *,
    created: tuple[WantedPlacement, NriResources] | None = None,
    updated: str = "",
    pool: CpuSet | None = None,
) -> Response:
    """Return the changes, those first that only leave CPUs.

    Args:
        others: everybody who has processes, and the containers that are to change.
        created: what the container that is being created should have, and what its runtime would give it. It needs CPUs: without any, its
            creation is to be denied.
        updated: the container whose update the runtime is about to carry out: all is said of it, whatever it has now.
        pool: the shared one. Two that are on each other's CPUs would wait for each other for ever: one that can have none of its own yet
            goes there meanwhile.
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
        # None of these is its own to leave: it hasn't got them.
        taken = (one.wanted.cpus - one.effective) & overdue
        now = one.wanted.cpus - taken
        if not now and one.overdue and pool is not None:
            now = pool  # it is nobody's, whoever is still to leave it
        if taken:
            waiting.append(
                BlockedContainer(one.id, taken, tuple(sorted(other.who for other in there if other.overdue & taken)))
            )
        change = _difference(one.wanted, None if one.id == updated else one.has, now)
        if change is not None:
            updates.append((not now <= one.effective, Update(one.id, change)))
    updates.sort(key=lambda row: row[0])
    adjustment = None
    if created is not None:
        wanted, has = created
        assert wanted.cpus, "an empty cpuset can't be said"
        adjustment = _difference(wanted, has, wanted.cpus)
    return Response(Answer(adjustment, tuple(update for _, update in updates)), tuple(waiting))


def check_start(starting: Occupant, others: Iterable[Occupant], rivals: Collection[str] = ()) -> Denial | None:
    """Decide whether a container's first process, which is in its cgroup, may begin. None: it may.

    Args:
        starting: as read from its cgroup now.
        others: everybody else, as read now.
        rivals: ids of those that have to be gone, as what is promised to them is promised to it.
    """
    wanted = starting.wanted
    if wanted is None or not wanted.cpus:
        why = "was not decided on before it was created" if wanted is None else "has no CPU left to run on"
        return Denial(f"{starting.who} {why}: `nodeagent inspect` shows it; the kubelet tries again")
    if not starting.effective or starting.overdue:
        may = f"may run on CPUs {starting.effective}" if starting.effective else "is in no cgroup that can be read"
        return Denial(
            f"{starting.who} {may}, and was given {wanted.cpus}: the runtime did not get that (`journalctl -u nodeagent`: an agent that "
            "ended meanwhile?), or another NRI plugin or program has changed it; the kubelet tries again"
        )
    late = [(one.who, found) for one in others if (found := _in_the_way(one, rivals) & wanted.exclusive_cpus)]
    if not late:
        return None
    named = ", ".join(f"{who} ({cpus})" for who, cpus in sorted(late)[:_MAX_NAMED])
    more = f" and {len(late) - _MAX_NAMED} more" if len(late) > _MAX_NAMED else ""
    return Denial(
        f"{starting.who} would share its CPUs {wanted.exclusive_cpus}: not left yet by {named}{more}; "
        "see `nodeagent inspect`; the kubelet tries again"
    )


def _in_the_way(one: Occupant, rivals: Collection[str]) -> CpuSet:
    return one.effective if one.id and one.id in rivals else one.overdue


def _difference(wanted: WantedPlacement, has: NriResources | None, cpus: CpuSet) -> NriResources | None:
    """Return what to change; None: nothing.

    Args:
        wanted: what it should hold.
        has: what it holds, where a quota that isn't said is none; None: say all.
        cpus: those of `wanted` that it can have now; without any, its cpuset stays.
    """
    limit = wanted.cpu_max
    if limit is not None and has is not None and _is_limit(limit, has):
        limit = None
    change = NriResources(
        cpus=cpus if cpus and (has is None or cpus != has.cpus) else None,
        mems=wanted.mems if wanted.mems and (has is None or wanted.mems != has.mems) else None,
        cpu_quota_us=None if limit is None else NO_LIMIT_US if limit.quota_us is None else limit.quota_us,
        cpu_period_us=None if limit is None else limit.period_us,
    )
    return None if change == NriResources() else change


def _is_limit(limit: CpuMax, has: NriResources) -> bool:
    quota_us = has.cpu_quota_us or NO_LIMIT_US
    if limit.quota_us is None or quota_us < 0:
        return limit.quota_us is None and quota_us < 0
    return limit == CpuMax(quota_us, has.cpu_period_us or 0)
