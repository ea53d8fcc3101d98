"""What a runtime's call is answered, once it has been decided on and the cgroups have been read again."""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from nodeagent.core.domains.runtime.answers import Occupant, Response, WantedPlacement, check_start, response
from nodeagent.core.domains.runtime.instructions import (
    LetStart,
    Place,
    Refuse,
    Todo,
)
from nodeagent.core.model.cgroup import ObservedCgroup
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.nri import Answer, Call, Denial, Event
from nodeagent.core.model.runtime_containers import ContainerKey


def verdict(
    call: Call,
    todo: Iterable[Todo],
    wanted: Mapping[ContainerKey, WantedPlacement],
    there: tuple[Occupant, ...],
    seen: Mapping[str, ObservedCgroup],
    pool: CpuSet,
    reserved: CpuSet,
) -> Response | Denial:
    """Answer a call that has been decided on.

    Args:
        call: of the runtime.
        todo: what its decision has left to be done.
        wanted: by key, what is promised.
        there: everybody who has processes now.
        seen: the cgroups of the runtime's containers, by id.
        pool: the shared one.
        reserved: CPUs that are online and never anybody's own.
    """
    for one in todo:
        match one:
            case Refuse(reason=reason):
                return Denial(reason)
            case LetStart(key, container_id, rivals):
                begins = seen.get(container_id)
                effective = CpuSet() if begins is None else begins.cpus_effective or CpuSet()
                placement = wanted.get(key)
                if placement is not None and _shares(placement):
                    placement = replace(placement, cpus=placement.cpus | reserved)
                starting = Occupant(f"container {key.name}", effective, placement, container_id)
                others = (other for other in there if other.id != container_id)
                return check_start(starting, others, rivals) or Response(Answer())
            case Place(key, container_id) if call.event is Event.CREATE_CONTAINER and call.container is not None:
                placement = wanted.get(key)
                if placement is None or not placement.cpus:
                    return Denial(f"container {key.name}: no CPU is left for it: see `nodeagent inspect`")
                created = _until_begun(placement, reserved)
                return response(there, created=(created, call.container.resources), pool=pool)
            case _:
                continue
    updated = call.container.id if call.container is not None and call.event is Event.UPDATE_CONTAINER else ""
    return response(there, updated=updated, pool=pool) if updated else Response(Answer())


def _shares(placement: WantedPlacement) -> bool:
    return placement.cpus != placement.exclusive_cpus


def _until_begun(placement: WantedPlacement, reserved: CpuSet) -> WantedPlacement:
    """What a container is created with: of the CPUs that it shares only the reserved ones. The pool may have become smaller by the time
    that the runtime makes its cgroup, and begins in it. Once that is there it gets the rest like any other.
    """
    if not reserved or not _shares(placement):
        return placement
    return replace(placement, cpus=placement.exclusive_cpus | reserved)
