"""KEP-6072 with the gate DRAListTypeAttributes: the NUMA nodes that a card lists, and what claims may then match."""

import pytest

from nodeagent.core.admission import managers as core
from nodeagent.core.admission.managers import Admitted
from nodeagent.core.model.devices import PlacedDevices
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.topology import NumaNode, Topology
from nodeagent.core.resources.claims.inventory import claimable
from nodeagent.core.resources.claims.selectors import meets
from nodeagent.core.resources.cpu.holdings import CpuHoldings
from tests.support.builders import GIB, machine, managers
from tests.support.claims import ETH0, NUMA, claiming, request, template

SPLIT = [
    (10, 12, 12, 12, 32, 32, 32, 32),
    (12, 10, 12, 12, 32, 32, 32, 32),
    (12, 12, 10, 12, 32, 32, 32, 32),
    (12, 12, 12, 10, 32, 32, 32, 32),
    (32, 32, 32, 32, 10, 12, 12, 12),
    (32, 32, 32, 32, 12, 10, 12, 12),
    (32, 32, 32, 32, 12, 12, 10, 12),
    (32, 32, 32, 32, 12, 12, 12, 10),
]
"""Two sockets with four NUMA nodes each."""
TWO_TILES = [(10, 12, 15, 15), (12, 10, 15, 15), (15, 15, 10, 12), (15, 15, 12, 10)]
FLAT = [(10, 20, 20), (20, 10, 20), (20, 20, 10)]


def make(rows: list[tuple[int, ...]], sockets: int) -> Topology:
    return machine(nodes=len(rows), cores=2, threads=1, sockets=sockets, distances=rows)


def with_memory_only_node(rows: list[tuple[int, ...]]) -> Topology:
    base = machine(nodes=len(rows) - 1, cores=2, threads=1, sockets=1)
    return Topology.of(base.cpus, [NumaNode(n, GIB, (), row) for n, row in enumerate(rows)])


def without_distances(topology: Topology) -> Topology:
    return Topology.of(topology.cpus, [NumaNode(n.id, GIB, (), None) for n in topology.numa])


NEAR = [
    ("nodes of the socket at one distance", make(SPLIT, 2), 6, (6, 4, 5, 7)),
    ("the first of them", make(SPLIT, 2), 0, (0, 1, 2, 3)),
    ("only the nearest of the socket", make(TWO_TILES, 1), 2, (2, 3)),
    ("nobody else in the socket", make(FLAT, 3), 1, (1,)),
    ("one node in all", make([(10,)], 1), 0, (0,)),
    ("a node without CPUs may be in any socket", with_memory_only_node([(10, 20, 20), (20, 10, 20), (20, 20, 10)]), 0, (0, 1, 2)),
    ("of a node without CPUs no socket is known", with_memory_only_node([(10, 20, 17), (20, 10, 17), (17, 17, 10)]), 2, (2, 0, 1)),
    ("no distances", without_distances(make(FLAT, 1)), 1, (1,)),
]  # fmt: skip


@pytest.mark.parametrize(("topology", "node", "expected"), [one[1:] for one in NEAR], ids=[one[0] for one in NEAR])
def test_a_card_lists_its_node_and_the_nearest_of_its_socket(
    topology: Topology, node: int, expected: tuple[int, ...]
) -> None:
    (card,) = (one for one in claimable(topology, CpuSet(), ((ETH0, node),), lists_nodes=True) if one.address)
    assert card.attribute(NUMA) == expected
    includes = f'device.attributes["resource.kubernetes.io"].numaNode.includes({expected[-1]})'
    assert meets(card, (includes,))
    (scalar,) = (one for one in claimable(topology, CpuSet(), ((ETH0, node),)) if one.address)
    assert scalar.attribute(NUMA) == node
    assert meets(scalar, (includes,)) is (expected[-1] == node)


def test_a_card_without_a_known_node_lists_none() -> None:
    (card,) = (one for one in claimable(make(SPLIT, 2), CpuSet(), ((ETH0, None),), lists_nodes=True) if one.address)
    assert card.attribute(NUMA) is None


@pytest.mark.parametrize(("gate", "expected"), [(False, None), (True, CpuSet.of(8, 9))])
def test_cpus_of_a_near_node_match_a_card_whose_own_node_is_full(gate: bool, expected: CpuSet | None) -> None:
    """The card is on node 6, of which one CPU is left; node 4 is as near. Without the list the claim can't be met."""
    of = managers(make(SPLIT, 2), reserved="0,12", gates=(("DRAListTypeAttributes", gate),)).knowing(
        PlacedDevices(((ETH0, 6),))
    )
    both = template(request("cpus", count=2), request("card", "nodeagent.io"), match=None)
    claim = template(*both.spec.requests, match=NUMA) if both.spec is not None else both
    decision = core.admit(of, core.initial(of), claiming("p", "2", claim))
    assert isinstance(decision, Admitted) is gate
    if gate:
        promises: Promises = decision.promises
        assert promises.of_pod("p").of(CpuHoldings).own_set("app") == expected
