"""What a start says of a machine that differs from the saved state, while all pods keep what they have."""

import pytest

from nodeagent.core.admission.managers import Managers, build, initial, resume
from nodeagent.core.model.config import Placement, ReservedMemory
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Resources
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.topology import NumaNode, Topology
from nodeagent.core.turn.machine_changes import list_machine_changes
from tests.support.builders import MACHINE_A

KIB = 1024


def node(memory: dict[int, int], *, offline: str = "", reserved: str = "100Mi") -> Managers:
    topology = Topology.of(MACHINE_A.cpus, [NumaNode(number, size) for number, size in memory.items()])
    amount = Resources.of({"memory": Quantity.parse(reserved)})
    placement = Placement(
        "static",
        reserved_system_cpus=CpuSet.of(0),
        memory_manager_policy="Static",
        reserved_memory=(ReservedMemory(0, amount),),
        memory_reservation=amount,
    )
    managers = build(topology.without(CpuSet.parse(offline)), placement)
    assert isinstance(managers, Managers)
    return managers


BEFORE = {0: 16_318_840 * KIB, 1: 16_000_000 * KIB}


@pytest.mark.parametrize(
    ("after", "said", "is_ordinary"),
    [
        (node({**BEFORE, 0: 16_318_836 * KIB}), ["memory of NUMA node 0: 16,318,840 KiB → 16,318,836 KiB"], True),
        (node({**BEFORE, 0: 16_330_000 * KIB}), ["memory of NUMA node 0: 16,318,840 KiB → 16,330,000 KiB"], True),
        (node({**BEFORE, 1: 15_900_000 * KIB}), ["memory of NUMA node 1: 16,000,000 KiB → 15,900,000 KiB"], False),
        (node(BEFORE, offline="5,13"), ["shared CPUs: 0-15 → 0-4,6-12,14-15"], False),
        (node(BEFORE, reserved="200Mi"), ["reserved memory of NUMA node 0: 102,400 KiB → 204,800 KiB"], False),
        (node({**BEFORE, 2: 4 * KIB}), ["memory of NUMA node 2: none → 4 KiB"], False),
        (node(BEFORE), [], True),
    ],
)  # fmt: skip
def test_each_value_that_differs_is_named_with_both(after: Managers, said: list[str], is_ordinary: bool) -> None:
    saved = initial(node(BEFORE))
    now = resume(after, saved)
    assert isinstance(now, Promises)
    changes = list_machine_changes(after, saved, now)
    assert [str(change) for change in changes] == said
    assert all(change.is_ordinary for change in changes) is is_ordinary
