"""Step `decide` of a turn: compute the new state from the observations (World) and the requests. Nothing is written yet."""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.managers import Managers
from nodeagent.core.cgroups.desired_cgroups import Kernel
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.model.state import NodeState
from nodeagent.core.model.waiting import RequestKind
from nodeagent.core.turn.due import list_due, list_unmet, note_room
from nodeagent.core.turn.pod_sources import list_manifests, needs_device_scan
from nodeagent.core.turn.quiet import find_quiet
from nodeagent.core.turn.step import step
from nodeagent.core.turn.world import Turn, World
from nodeagent.daemon.domains.all import decide_all
from nodeagent.daemon.reports.metrics_recorder import Stopwatch
from nodeagent.daemon.start.node_builder import begin_turn
from nodeagent.daemon.start.reloading import adapt_promises
from nodeagent.daemon.turn.edges import Edges
from nodeagent.daemon.turn.look import Seen
from nodeagent.daemon.turn.memory import TurnMemory
from nodeagent.daemon.turn.problem import Problem
from nodeagent.daemon.turn.requests import TurnRequest

if TYPE_CHECKING:
    from nodeagent.core.model.device_pools import DevicePool

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Decided(Struct, frozen=True):
    """Result of the step `decide`. It isn't saved yet."""

    turn: Turn
    world: World
    memory: TurnMemory
    took_ms: tuple[int, ...]
    """Duration of the decision on each new pod, in milliseconds."""


def decide(edges: Edges, seen: Seen, requests: Iterable[TurnRequest]) -> Decided:
    """Make a turn's decisions from its observations and the requests."""
    assert not isinstance(seen.domains, Problem)
    memory, node = seen.memory, seen.memory.node
    begin_turn(node, edges.alive)
    if edges.plugins is not None:
        edges.plugins.begin_turn()
    plugged = edges.plugin_pools()
    state = memory.state
    if memory.adapted_to is not node.managers:
        promises = adapt_promises(node, state.promises)
        assert not isinstance(promises, StartRefused), "the machine was taken over only with fitting allocations"
        state = replace(state, promises=promises)  # the new allocations are only a proposal until they are saved
    world = World(
        config=node.config,
        managers=replace(node.managers, plugged=plugged),
        allocatable=node.allocatable,
        sources=seen.sources,
        runs=seen.runs,
        observed=seen.domains.cgroups,
        now_ms=seen.now_ms,
        retried=frozenset[str]().union(*(request.retried for request in requests)),
        released=frozenset[str]().union(*(request.released for request in requests)),
        inactive_units=seen.domains.inactive_units,
        has_reported_all=seen.domains.has_reported_all,
        asked_to_end=memory.asked,
        seen_room=memory.seen_room,
        lead_ms=memory.lead_ms,
        boot_id=edges.host_settings.boot_id,
        kernel=Kernel.of(node.topology, _PAGE_BYTES, seen.domains.cgroups),
    )
    world = replace(world, quiet=find_quiet(memory.left_alone, state, world))
    memory, managers = _with_devices(edges, seen, memory, state, world)
    world = replace(world, managers=managers)
    watch = Stopwatch(alive=edges.alive)
    stepped = step(state, world, watch.decide)
    turn = decide_all(edges.domains, stepped, world)
    if turn.state is not stepped.state:
        turn = note_room(turn, stepped.state, world)
    return Decided(turn, world, memory, tuple(watch.took_ms))


def _with_devices(
    edges: Edges, seen: Seen, memory: TurnMemory, state: NodeState, world: World
) -> tuple[TurnMemory, Managers]:
    """Return the managers with the devices that this turn's decisions need. Scan the devices only if the last scan may be out of date."""
    managers, gives = world.managers, bool(world.config.placement.devices)
    # requests for a runtime's containers aren't included, because the runtime's domain scans for devices itself
    due = {one.pod_uid for one in list_due(state, world.seen_room, world) if one.kind is not RequestKind.CONTAINER}
    manifests = tuple(one for one in list_manifests(seen.sources) if one.pod.uid not in world.quiet)
    is_new = bool(manifests) and needs_device_scan(manifests, state, world.retried | due, gives=gives)
    # A request that isn't due yet may become due within the turn.
    is_used = (
        is_new
        or gives
        or any(
            (entry.pod.near or entry.pod.claims) and (entry.is_queued or any(list_unmet(entry, world)))
            for entry in world.awake(state.entries)
        )
    )
    if is_new or (is_used and (seen.rescan or memory.devices is None)):
        memory = replace(memory, devices=edges.machine.devices(world.managers.topology))
    if is_used or managers.plugged:
        managers = managers.knowing(memory.devices if is_used else None, managers.plugged)
    return memory, managers


def managers_with_devices(edges: Edges, memory: TurnMemory) -> Managers:
    """Return the node's managers, together with the devices of the last scan."""
    managers, plugged = memory.node.managers, edges.plugin_pools()
    return managers.knowing(memory.devices, plugged) if managers.placement.devices or plugged else managers


def device_pools(edges: Edges, memory: TurnMemory) -> "tuple[DevicePool, ...]":
    """Return the device pools of the extended resources, from the last scan and the device plugins."""
    return managers_with_devices(edges, memory).pools
