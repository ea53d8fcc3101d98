"""Look: read the machine, the sources of pods, the launcher's runs, the pods' cgroups and the clock."""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.cgroups.ancestor_cpusets import withheld
from nodeagent.core.cgroups.desired_cgroups import CONTROLLERS
from nodeagent.core.model.cgroup import ObservedCgroups
from nodeagent.core.model.cgroup_layout import UNITS_LEFT, UNITS_UNCLEAR
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.model.state import moved
from nodeagent.core.turn.lifecycle import Run
from nodeagent.core.turn.pod_sources import PodSource, offered
from nodeagent.daemon.domains.all_cgroups import unit_paths
from nodeagent.daemon.reports.problems import withheld_problem
from nodeagent.daemon.start.reloading import promises_on
from nodeagent.daemon.turn.clock import read_clock
from nodeagent.daemon.turn.edges import Edges
from nodeagent.daemon.turn.machine import on_what_is_there
from nodeagent.daemon.turn.memory import TurnMemory
from nodeagent.daemon.turn.troubles import Trouble, trouble_of
from nodeagent.daemon.turn.wakeups import READ_MACHINE, READ_SOURCES, WakeUpReason
from nodeagent.edge.cgroups.cgroupfs import CgroupError
from nodeagent.formats.kernel.sysfs_sample import SysfsError


class Seen(Struct, frozen=True):
    """What a turn has found."""

    memory: TurnMemory
    """On the machine and with the times as they are now."""
    sources: tuple[PodSource, ...]
    runs: Mapping[str, Run] | None
    """Runs of the launcher. None means that it doesn't answer."""
    observed: ObservedCgroups | Trouble
    """The pods' cgroups, or why they can't be read or written."""
    now_ms: int
    rescan: bool
    """Whether everything is compared with what others may have changed."""
    left: frozenset[str]
    """Paths of units to give back that no pod stands for."""
    unclear: frozenset[str]
    """Paths of units of which it isn't known now whether a pod stands for them."""
    troubles: tuple[Trouble, ...]
    unknown_units: tuple[Trouble, ...] = ()
    """Problems with units that can't have their CPUs now."""


def look(edges: Edges, memory: TurnMemory, reasons: frozenset[WakeUpReason]) -> Seen:
    """Read everything that a turn decides from."""
    rescan = bool(reasons & READ_MACHINE)
    memory = _follow_machine(edges, memory, rescan=rescan)
    sources = tuple(source.look(rescan=bool(reasons & READ_SOURCES)) for source in edges.sources)
    looked = edges.runner.look()
    runs = None if isinstance(looked, Trouble) else looked
    # Without all manifests it isn't known whether a pod stands for a unit that an earlier state's pods stood for.
    is_unclear = any(s.is_blind or s.is_partial or s.unreadable or s.misspelt for s in sources)
    known = {entry.pod.uid for entry in memory.state.entries}
    coming = (manifest.pod for manifest in offered(sources) if manifest.pod.uid not in known)
    standing = {unit for pod in (*memory.state.pods_of_units(), *coming) for unit in pod.units}
    without_pod = edges.unit_records.look().keys() - standing
    left = frozenset() if is_unclear else frozenset(f"{UNITS_LEFT}/{unit}" for unit in without_pod)
    unclear = frozenset(f"{UNITS_UNCLEAR}/{unit}" for unit in without_pod) if is_unclear else frozenset()
    pods = (*memory.state.pods_of_units(), *(manifest.pod for manifest in offered(sources)))
    observed = _read_cgroups(
        edges, memory, unit_paths(pods) | left | unclear, has_launcher=runs is not None, rescan=rescan
    )
    troubles = [*memory.machine_problems, *(found for found in (looked, observed) if isinstance(found, Trouble))]
    now_ms = 0
    if not isinstance(observed, Trouble):
        now_ms, set_by_ms, lead_ms = read_clock(memory.lead_ms)
        if set_by_ms:  # the times that the state remembers are shifted as the clock was set
            edges.log.warning("clock_stepped", by_ms=set_by_ms)
            memory = replace(memory, state=moved(memory.state, set_by_ms), lead_ms=lead_ms, is_saved=False)
    return Seen(memory, sources, runs, observed, now_ms, rescan, left, unclear, tuple(troubles))


def _follow_machine(edges: Edges, memory: TurnMemory, *, rescan: bool) -> TurnMemory:
    """Find CPUs, memory or huge pages that have come or gone, and CPUs that were withheld from the pods or returned to them.

    No wake-up tells of CPUs that are withheld. So they are looked at before each decision, without a rescan too.
    """
    try:
        chain = edges.tree.chain() or memory.chain
        if chain == memory.chain and not rescan and not memory.machine_problems:
            return memory
        memory = replace(memory, whole=edges.machine.look(memory.whole), chain=chain)
        kept = withheld(chain)
    except (SysfsError, CgroupError) as err:
        return replace(memory, machine_problems=(trouble_of(err),))
    topology, before = memory.whole.without(kept.cpus), memory.node.topology
    memory = replace(memory, withheld=withheld_problem(kept) if kept.cpus else "")
    if topology == before and not memory.machine_problems:
        return memory
    node, refusals = on_what_is_there(memory.node, topology)
    judged = None if refusals else promises_on(node, memory.state.promises)
    if isinstance(judged, StartRefused):
        node, refusals = replace(memory.node, topology=topology), (judged,)
    problems: tuple[Trouble, ...] = ()
    if refusals:
        why = "; ".join(refused.text for refused in refusals)
        way_out = "bring back what is missing, or drain the node and correct what `nodeagent config validate` reports"
        problems = (Trouble(f"the machine has changed, and pods cannot be placed on it as it is: {why} ({way_out})"),)
    if topology != before:
        edges.log.warning(
            "machine_changed",
            online=str(topology.online),
            gone=str(before.online - topology.online),
            came=str(topology.online - before.online),
            memory_bytes=topology.memory_bytes,
        )
    return replace(memory, node=node, machine_problems=problems)


def _read_cgroups(
    edges: Edges, memory: TurnMemory, units: frozenset[str], *, has_launcher: bool, rescan: bool
) -> ObservedCgroups | Trouble:
    """Return the cgroups, or why they can't be written. systemd alone creates the cgroups of its units (D9)."""
    try:
        observed = edges.cgroups.read(units, rescan=rescan)
    except CgroupError as err:
        return trouble_of(err)
    if memory.node.config.cgroup_root:
        return observed
    root = observed.get("")
    # Between creating it and starting the launcher, systemd puts the unit's first process there: no controllers then.
    if root is not None and (has_launcher or root.subtree_control >= CONTROLLERS):
        return observed
    how = "is not there" if root is None else "is new"
    way_out = "systemctl start nodeagent-pods nodeagent-launcher"
    return Trouble(f"the pods' unit is not ready: {edges.tree.root} {how} ({way_out})")
