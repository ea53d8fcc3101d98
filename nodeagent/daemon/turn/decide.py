"""Decide: find the state after this turn, from the world and the requests. Nothing is done yet."""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.managers import Managers
from nodeagent.core.cgroups.desired_cgroups import Kernel
from nodeagent.core.model.refusals import RELEASED, StartRefused
from nodeagent.core.model.state import NodeState
from nodeagent.core.turn.pod_sources import list_manifests, needs_device_scan
from nodeagent.core.turn.room import has_released
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
    from nodeagent.core.resources.devices.pools import DevicePool

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Decided(Struct, frozen=True):
    """A decision that isn't saved yet."""

    turn: Turn
    world: World
    memory: TurnMemory
    has_room: bool
    """Whether a domain has released resources for refused pods in the next turn."""
    took_ms: tuple[int, ...]
    """Duration of the decision on each new pod."""


def decide(edges: Edges, seen: Seen, requests: Iterable[TurnRequest]) -> Decided:
    """Decide from everything that was found."""
    assert not isinstance(seen.domains, Problem)
    memory, node = seen.memory, seen.memory.node
    begin_turn(node, edges.alive)
    if edges.plugins is not None:
        edges.plugins.begin_turn(edges.alive)
    plugged = edges.plugin_pools()
    resources = frozenset(pool.resource for pool in plugged if pool.healthy)
    waiting = _pods_waiting_for(memory.state, resources - memory.plugin_resources)
    memory = replace(memory, plugin_resources=resources, to_retry=memory.to_retry | waiting)
    retried = memory.to_retry.union(*(request.retried for request in requests))
    asks = needs_device_scan(
        list_manifests(seen.sources),
        memory.state,
        retried,
        gives=bool(node.config.placement.devices),
        for_room=node.config.retries_for_room,
    )
    managers = node.managers
    if node.config.placement.devices:
        if asks or seen.rescan or memory.devices is None:
            memory = replace(memory, devices=edges.machine.devices(node.topology))
        managers = managers.knowing(memory.devices, plugged)
    elif asks or plugged:
        managers = managers.knowing(edges.machine.devices(node.topology) if asks else None, plugged)
    world = World(
        config=node.config,
        managers=managers,
        allocatable=node.allocatable,
        sources=seen.sources,
        runs=seen.runs,
        observed=seen.domains.cgroups,
        now_ms=seen.now_ms,
        retried=retried,
        released=frozenset[str]().union(*(request.released for request in requests)),
        down=seen.domains.down,
        has_reported_all=seen.domains.has_reported_all,
        asked=memory.asked,
        has_room=memory.has_room or memory.adapted_to is not node.managers,
        kernel=Kernel.of(node.topology, _PAGE_BYTES, seen.domains.cgroups),
    )
    state = memory.state
    if memory.adapted_to is not node.managers:
        promises = adapt_promises(node, state.promises)
        assert not isinstance(promises, StartRefused), "the machine was taken over only with fitting allocations"
        state = replace(state, promises=promises)  # a proposal until it is saved
    watch = Stopwatch(alive=edges.alive)
    stepped = step(state, world, watch.decide)
    turn = decide_all(edges.domains, stepped, world)
    has_room = has_released(stepped.state.promises, turn.state.promises)
    if has_room and node.config.retries_for_room:
        turn = replace(turn, wake_at_ms=world.now_ms)
    return Decided(turn, world, memory, has_room, tuple(watch.took_ms))


def _pods_waiting_for(state: NodeState, resources: frozenset[str]) -> frozenset[str]:
    """Return the refused pods that ask for resources of which a device plugin now has healthy devices."""
    return frozenset(
        entry.pod.uid
        for entry in (state.own_entries() if resources else ())
        if entry.refusal is not None
        and entry.refusal.reason != RELEASED
        and any(name in resources for container in entry.pod.containers for name, _ in container.devices)
    )


def managers_with_devices(edges: Edges, memory: TurnMemory) -> Managers:
    """Return the node's managers, with the devices of the last scan."""
    managers, plugged = memory.node.managers, edges.plugin_pools()
    return managers.knowing(memory.devices, plugged) if managers.placement.devices or plugged else managers


def device_pools(edges: Edges, memory: TurnMemory) -> "tuple[DevicePool, ...]":
    """Return the device pools for extended resources."""
    return managers_with_devices(edges, memory).pools
