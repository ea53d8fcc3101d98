"""Tell: write the files that tell containers, and programs that use claims, their CPUs, memory and devices."""

from collections.abc import Mapping

from nodeagent.core.cgroups.container_placement import ContainerPlacement
from nodeagent.core.model.state import NodeState
from nodeagent.daemon.turn.edges import Edges
from nodeagent.daemon.turn.problem import Problem


def tell(
    edges: Edges, state: NodeState, placed: Mapping[str, ContainerPlacement], *, rescan: bool
) -> tuple[Problem, ...]:
    """Write the placement files of containers and the status documents of claims. Return the problems."""
    unwritten = edges.placements.keep(state, placed, rescan=rescan, alive=edges.alive)
    return unwritten + edges.claim_statuses.keep(state, rescan=rescan, alive=edges.alive)
