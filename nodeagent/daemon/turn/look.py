"""Step `look` of a turn: read the machine, the sources of pods, the launcher's runs, the pods' cgroups and the clock."""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.cgroups.ancestor_cpusets import find_withheld
from nodeagent.core.cgroups.desired_cgroups import CONTROLLERS
from nodeagent.core.domains.domain import DomainInput, DomainView
from nodeagent.core.model.problem_kinds import ProblemKind
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.model.state import shift_times
from nodeagent.core.turn.lifecycle import Run
from nodeagent.core.turn.pod_sources import PodSource
from nodeagent.daemon.domains.all import merge_views
from nodeagent.daemon.reports.problems import describe_withheld
from nodeagent.daemon.start.reloading import adapt_promises
from nodeagent.daemon.turn.clock import SMALLEST_STEP_MS, read_clock, read_slept_ms
from nodeagent.daemon.turn.edges import Edges
from nodeagent.daemon.turn.machine import adapt_to_topology
from nodeagent.daemon.turn.memory import TurnMemory
from nodeagent.daemon.turn.problem import Problem
from nodeagent.daemon.turn.wakeups import READ_EVERYTHING, READ_MACHINE, READ_SOURCES, WakeUpReason
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError
from nodeagent.formats.kernel.sysfs_sample import SysfsError


class Seen(Struct, frozen=True):
    """All observations on which a turn's decision is based."""

    memory: TurnMemory
    """Memory from earlier turns, updated to the current machine and clock."""
    sources: tuple[PodSource, ...]
    runs: Mapping[str, Run] | None
    """Runs of the launcher by ID. None means that the launcher doesn't answer."""
    domains: DomainView | Problem
    """Merged observations of the domains, or the reason why the pods' cgroups can't be used."""
    now_ms: int
    rescan: bool
    """Whether the turn also checks values for which no change was reported."""
    problems: tuple[Problem, ...]


def look(edges: Edges, memory: TurnMemory, reasons: frozenset[WakeUpReason]) -> Seen:
    """Read everything on which a turn's decision depends."""
    rescan, before = bool(reasons & READ_MACHINE), memory
    memory = replace(_follow_machine(edges, memory, rescan=rescan), slept_ms=read_slept_ms())
    read_sources = bool(reasons & READ_SOURCES)
    part = _find_part(memory, before, reasons)
    sources = tuple(source for domain in edges.domains for source in domain.bring(rescan=read_sources, part=part))
    looked = edges.runner.look()
    runs = None if isinstance(looked, Problem) else looked
    memory, domains = observe_domains(edges, memory, DomainInput(memory.state, sources, rescan, part, runs))
    problems = [*memory.machine_problems, *(found for found in (looked, domains) if isinstance(found, Problem))]
    now_ms = 0
    if not isinstance(domains, Problem):
        memory = replace(memory, unit_cgroups=domains.places)
        now_ms, set_by_ms, lead_ms = read_clock(memory.lead_ms)
        if set_by_ms:  # the clock was set, so all times in the state are shifted by the same step
            edges.log.warning("clock_stepped", by_ms=set_by_ms)
            memory = replace(memory, state=shift_times(memory.state, set_by_ms), lead_ms=lead_ms, is_saved=False)
    return Seen(memory, sources, runs, domains, now_ms, rescan, tuple(problems))


def _find_part(memory: TurnMemory, before: TurnMemory, reasons: frozenset[WakeUpReason]) -> float:
    """Return the fraction, from 0 to 1, of the manifests and cgroups that this turn reads although no change was reported."""
    has_slept = abs(memory.slept_ms - before.slept_ms) > SMALLEST_STEP_MS
    if (
        reasons & READ_EVERYTHING
        or memory.ancestor_cpus != before.ancestor_cpus
        or has_slept
        or before.observed is None
    ):
        return 1.0
    return memory.node.config.checked_part if WakeUpReason.TIMER in reasons else 0.0


def _follow_machine(edges: Edges, memory: TurnMemory, *, rescan: bool) -> TurnMemory:
    """Update the memory after changes of CPUs, memory or huge pages, or of the CPUs withheld from the pods.

    The withheld CPUs are read in each turn, because no event reports their changes.
    """
    try:
        chain = edges.tree.read_chain() or memory.ancestor_cpus
        if chain == memory.ancestor_cpus and not rescan and not memory.machine_problems:
            return memory
        memory = replace(memory, full_topology=edges.machine.look(memory.full_topology), ancestor_cpus=chain)
        kept = find_withheld(chain)
    except (SysfsError, CgroupError) as err:
        return replace(memory, machine_problems=(Problem.from_error(err),))
    topology, before = memory.full_topology.without(kept.cpus), memory.node.topology
    memory = replace(memory, withheld_problem=describe_withheld(kept, memory.full_topology.online) if kept.cpus else "")
    if topology == before and not memory.machine_problems:
        return memory
    node, refusals = adapt_to_topology(memory.node, topology)
    adapted = None if refusals else adapt_promises(node, memory.state.promises)
    if isinstance(adapted, StartRefused):
        node, refusals = replace(memory.node, topology=topology), (adapted,)
    problems: tuple[Problem, ...] = ()
    if refusals:
        why = "; ".join(refused.text for refused in refusals)
        way_out = "restore the missing hardware, or drain the node and correct what `nodeagent config validate` reports"
        problems = (Problem(f"the machine has changed, and no pod can be placed on it now: {why} ({way_out})"),)
    if topology != before:
        edges.log.warning(
            "machine_changed",
            online=str(topology.online),
            gone=str(before.online - topology.online),
            came=str(topology.online - before.online),
            memory_bytes=topology.memory_bytes,
        )
    return replace(memory, node=node, machine_problems=problems)


def observe_domains(
    edges: Edges, memory: TurnMemory, domain_input: DomainInput
) -> tuple[TurnMemory, DomainView | Problem]:
    """Observe each domain. Return a problem instead if the pods' cgroups can't be read or aren't ready.

    If nothing has changed, the objects of the last observation are returned. The pods' top cgroup may be missing, because only systemd
    creates it (D9).
    """
    try:
        views = tuple(domain.observe(domain_input) for domain in edges.domains)
    except CgroupError as err:
        return replace(memory, observed=None), Problem.from_error(err)
    if memory.observed is None or views != memory.views:
        memory = replace(memory, views=views, observed=merge_views(views))
    assert memory.observed is not None
    if memory.node.config.cgroup_root:
        return memory, memory.observed
    root = memory.observed.cgroups.get("")
    # Until the launcher runs, systemd may still put a first process into the new cgroup, so controllers can't be enabled yet.
    if root is not None and (domain_input.runs is not None or root.subtree_control >= CONTROLLERS):
        return memory, memory.observed
    how = "does not exist" if root is None else "is new"
    way_out = "systemctl start nodeagent-pods nodeagent-launcher"
    return memory, Problem(
        f"the pods' unit is not ready: {edges.tree.root} {how} ({way_out})", kind=ProblemKind.LAUNCHER
    )
