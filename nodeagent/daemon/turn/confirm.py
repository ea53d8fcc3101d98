"""Step `confirm` of a turn: after starting processes, observe them and record their starts, so that the next turn needn't do so."""

from msgspec.structs import replace

from nodeagent.core.cgroups.desired_cgroups import Kernel
from nodeagent.core.cgroups.write_order import GatherThreads, diff
from nodeagent.core.domains.domain import DomainInput
from nodeagent.core.model.state import has_only_starts
from nodeagent.core.turn.actions import list_actions
from nodeagent.core.turn.quiet import find_left_alone, find_quiet
from nodeagent.core.turn.step import step
from nodeagent.daemon.turn.clock import read_clock
from nodeagent.daemon.turn.edges import Edges
from nodeagent.daemon.turn.look import Seen, observe_domains
from nodeagent.daemon.turn.problem import Problem
from nodeagent.daemon.turn.report import Done
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError


def confirm(edges: Edges, seen: Seen, done: Done) -> tuple[Seen, Done]:
    """Observe the cgroups and runs again after a turn that has started processes.

    If the next turn would only record the starts, and needn't save the record, return the new observations and the turn with the recorded
    starts. Otherwise, return the arguments unchanged, so that the next turn does everything.
    """
    left = seen, done
    runs, turn, before = edges.runner.list_with_started(), done.saved.turn, done.acted.memory
    written = done.carried.result
    if runs is None or done.problems or turn.postponed or written.failed or written.held_back:
        return left
    if any(isinstance(change, GatherThreads) for change in written.written):
        return left  # the log names the CPUs on which the threads were before
    look = DomainInput(before.state, seen.sources, rescan=False, part=0.0, runs=runs)
    memory, domains = observe_domains(edges, before, look)
    if isinstance(domains, Problem) or domains.strays or memory.views[1:] != before.views[1:]:
        return left
    try:
        chain = edges.tree.read_chain() or before.ancestor_cpus
    except CgroupError:
        return left
    if chain != before.ancestor_cpus:  # this observation has taken the event from the watch, so it wakes nobody
        return left
    now_ms, set_by_ms, _ = read_clock(memory.lead_ms)
    kernel = done.world.kernel
    if set_by_ms or kernel is None or Kernel.of(memory.node.topology, kernel.page_bytes, domains.cgroups) != kernel:
        return left
    world = replace(
        done.world,
        runs=runs,
        observed=domains.cgroups,
        now_ms=now_ms,
        retried=frozenset(),
        released=frozenset(),
        asked_to_end=memory.asked,
        seen_room=turn.seen_room,
        quiet=frozenset(),
    )
    left_alone = find_left_alone(seen.memory.state, before.state, done.world, turn)
    world = replace(world, quiet=find_quiet(left_alone, before.state, world))
    found = step(before.state, world)
    if found.events or found.deltas or found.postponed or not has_only_starts(before.state, found.state):
        return left
    planned = diff(done.wanted, world.observed, memory.in_place)  # starts don't change the desired cgroups
    actions = list(list_actions(found.state, world, written.ready, done.carried.placed, memory.signalled))
    if planned.changes or planned.orphans or actions:
        return left
    memory = replace(memory, state=found.state, seen_room=found.seen_room, in_place=planned.in_place)
    confirmed = replace(
        done,
        world=world,
        saved=replace(done.saved, memory=memory, turn=replace(found, events=turn.events, deltas=turn.deltas)),
        acted=replace(done.acted, memory=memory),
        is_confirmed=True,
    )
    return replace(seen, memory=before, runs=runs, domains=domains, now_ms=now_ms), confirmed
