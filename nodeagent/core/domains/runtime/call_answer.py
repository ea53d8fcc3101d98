"""Answer to a call of the container runtime. The agent builds the answer after it has saved its decision and read the cgroups again."""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from nodeagent.core.domains.runtime.answers import Occupant, Response, WantedPlacement, build_response, check_start
from nodeagent.core.domains.runtime.instructions import LetStart, Place, Refuse, Todo
from nodeagent.core.model.cgroup import ObservedCgroup
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.nri import Answer, Call, Denial, Event
from nodeagent.core.model.runtime_containers import ContainerKey


def answer_call(
    call: Call,
    todo: Iterable[Todo],
    wanted: Mapping[ContainerKey, WantedPlacement],
    there: tuple[Occupant, ...],
    seen: Mapping[str, ObservedCgroup],
    pool: CpuSet,
    reserved: CpuSet,
) -> Response | Denial:
    """Build the answer to a call on which the agent has decided.

    Args:
        call: the runtime's call.
        todo: the instructions from the decision that haven't been carried out yet.
        wanted: the desired placement of containers, by pod UID and container name.
        there: all cgroups with processes.
        seen: the cgroups of the runtime's containers, by container ID.
        pool: the CPUs of the shared pool.
        reserved: the reserved CPUs that are online. They are never exclusive.
    """
    for one in todo:
        match one:
            case Refuse(reason=reason):
                return Denial(reason)
            case LetStart(key, container_id, rivals):
                begins = seen.get(container_id)
                effective = CpuSet() if begins is None else begins.cpus_effective or CpuSet()
                placement = wanted.get(key)
                if placement is not None and _has_shared_cpus(placement):
                    placement = replace(placement, cpus=placement.cpus | reserved)
                starting = Occupant(f"container {key.name}", effective, placement, container_id)
                others = (other for other in there if other.id != container_id)
                return check_start(starting, others, rivals) or Response(Answer())
            case Place(key, container_id) if call.event is Event.CREATE_CONTAINER and call.container is not None:
                placement = wanted.get(key)
                if placement is None or not placement.cpus:
                    return Denial(f"container {key.name}: no CPU is left for it: see `nodeagent inspect`")
                created = placement
                if reserved and _has_shared_cpus(placement):
                    # The shared pool may shrink before the cgroup exists, so at first the cgroup has only the reserved CPUs.
                    created = replace(placement, cpus=placement.exclusive_cpus | reserved)
                return build_response(there, created=(created, call.container.resources), pool=pool)
            case _:
                continue
    updated = call.container.id if call.container is not None and call.event is Event.UPDATE_CONTAINER else ""
    return build_response(there, updated=updated, pool=pool) if updated else Response(Answer())


def _has_shared_cpus(placement: WantedPlacement) -> bool:
    return placement.cpus != placement.exclusive_cpus
