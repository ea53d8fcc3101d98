"""Fleets of small nodes: machines of 8 CPUs that are alike, each with pods of its own, as captures have them."""

from types import MappingProxyType

from msgspec.structs import replace

from nodeagent.core.admission.node_setup import NodeSetup, on_machine
from nodeagent.core.model.config import Placement
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.topology import Topology
from nodeagent.formats.capture import Capture
from nodeagent.formats.kernel.settings import Settings
from nodeagent.formats.kernel.sysfs_sample import SysfsSample
from nodeagent.tools.fleet.nodes import FleetNode
from tests.support.inspected_nodes import NOW_MS, World, machine
from tests.support.pods import app, pod

STATIC = Placement("static", reserved_system_cpus=CpuSet.of(0))
RELEASE = "6.1.0-28-amd64"
FILES = {
    "proc/cmdline": "isolcpus=4-7 hugepagesz=1G hugepages=4\n",
    "proc/sys/kernel/numa_balancing": "0\n",
    **{f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor": "performance\n" for cpu in range(8)},
    "sys/fs/cgroup/system.slice/irqbalance.service/cgroup.events": "populated 1\nfrozen 0\n",
}


def sample(files: dict[str, str]) -> SysfsSample:
    return SysfsSample(MappingProxyType(files), MappingProxyType({}))


def node(
    name: str,
    *,
    world: World | None = None,
    topology: Topology | None = None,
    placement: Placement = STATIC,
    kernel: str = RELEASE,
    files: dict[str, str] | None = None,
    with_agent: bool = True,
) -> FleetNode:
    """A node that is like all others, unless told otherwise."""
    made = world or World(topology, placement)
    setup = on_machine(made.config, made.managers.topology)
    assert isinstance(setup, NodeSetup), setup
    view = replace(
        made.view(), node=setup, hostname=name, is_here=False, at_ms=NOW_MS, copied_at="2023-11-14 22:13:20 UTC"
    )
    settings = Settings(sample(FILES if files is None else files))
    observation = view.observation
    assert observation is not None
    capture = Capture("1.0", kernel, name, sample({}), observation, view if with_agent else None, settings)
    return FleetNode(name, f"{name}.json", made.managers.topology, capture, view if with_agent else None)


def with_pods(*cpus: int, placement: Placement = STATIC) -> World:
    """A node with a pod for each number of CPUs, and one that shares."""
    world = World(machine(), placement)
    for number, count in enumerate(cpus):
        world.add(pod(f"own-{number}", app("app", cpu=str(count), memory="1Gi")))
    return world.add(pod("helper", app("helper", cpu="500m", memory="64Mi")))
