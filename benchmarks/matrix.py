"""Every shape of machine × pods present × options: the cost of one more admission, with both kubelet texts."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from benchmarks.nodes import asking, crowd, node, texts, topology
from benchmarks.timing import Clock
from nodeagent.core.admission import managers as core
from nodeagent.core.admission.managers import Managers
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Promises

CPUS = (16, 64, 128, 256, 512)
NODES = (1, 2, 4, 8, 16, 34)
PODS = (0, 20, 200)

OPTIONS: dict[str, dict[str, object]] = {
    "none, no options": {},
    "full-pcpus-only": {"options": ("full-pcpus-only",)},
    "distribute-cpus-across-numa": {"options": ("distribute-cpus-across-numa",)},
    "prefer-align-cpus-by-uncorecache": {"options": ("prefer-align-cpus-by-uncorecache",)},
    "distribute-cpus-across-cores": {"options": ("distribute-cpus-across-cores",)},
    "best-effort": {"policy": "best-effort"},
    "restricted, strict-cpu-reservation": {"policy": "restricted", "options": ("strict-cpu-reservation",)},
    "single-numa-node, pod scope": {"policy": "single-numa-node", "scope": "pod"},
    "best-effort, memory": {"policy": "best-effort", "memory": True},
    "best-effort, memory, 1 huge page size": {"policy": "best-effort", "memory": True, "pages": 1},
    "best-effort, memory, 2 huge page sizes": {"policy": "best-effort", "memory": True, "pages": 2},
    "best-effort, memory, 3 huge page sizes": {"policy": "best-effort", "memory": True, "pages": 3},
    "restricted, memory, 3 huge page sizes": {"policy": "restricted", "memory": True, "pages": 3},
    "single-numa-node, memory, 3 huge page sizes": {"policy": "single-numa-node", "memory": True, "pages": 3},
}


@dataclass(frozen=True)
class Cell:
    cpus: int
    nodes: int
    pods: int
    options: str
    ms: float
    """Calibrated."""
    admitted: bool


def cells(clock: Clock, *, every: bool, repeats: int = 9) -> Iterator[Cell]:
    """Of all machines, or of the corners and the middle; each is the median of so many repeats."""
    machines = product(CPUS, NODES, PODS) if every else product((16, 128, 512), (1, 8, 34), (0, 200))
    for (cpus, nodes, pods), (name, settings) in product(machines, OPTIONS.items()):
        placed: dict[str, Any] = dict(settings)
        pages = int(str(placed.pop("pages", 0)))
        of = node(topology(cpus, nodes, pages=pages), **placed)
        promises = crowd(of, pods, alone=min(pods, cpus // 8))
        one = asking("one-more", "4", memory="1Gi", pages=pages)
        decision = core.admit(of, promises, one)

        def run(of: Managers = of, promises: Promises = promises, one: Pod = one) -> object:
            return texts(of, core.admit(of, promises, one).promises)

        yield Cell(cpus, nodes, pods, name, clock.time(run, repeats).calibrated_ms, isinstance(decision, core.Admitted))
