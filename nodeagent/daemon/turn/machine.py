"""Machine reader. CPUs, memory and huge pages may be added and removed while pods run."""

import os
from typing import TYPE_CHECKING

from msgspec.structs import replace

from nodeagent.core.admission.node_setup import NodeSetup, on_machine
from nodeagent.core.cgroups.ancestor_cpusets import NOTHING, Withheld, find_withheld
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.model.topology import Topology
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError
from nodeagent.edge.cgroups.cgroupfs.tree import CgroupTree
from nodeagent.edge.kernel.sysfs import read_devices, read_fingerprint_files, read_machine
from nodeagent.formats.kernel.machine_fingerprint import MachineFingerprint, fingerprint_of
from nodeagent.formats.kernel.sysfs import topology_of
from nodeagent.formats.kernel.sysfs_sample import SysfsError

if TYPE_CHECKING:
    from nodeagent.core.model.devices import PlacedDevices


def node_name() -> str:
    """Return the node's name in Kubernetes, which is also the name of the node's pool in ResourceSlices."""
    return os.uname().nodename.lower()


class Machine:
    """Reader of the machine, below a root directory. Repeated reads are cheap while nothing changes."""

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._fingerprint: MachineFingerprint | None = None

    def look(self, known: Topology) -> Topology:
        """Read the machine if its fingerprint has changed. The first call always reads it.

        Raises:
            SysfsError: a file is malformed, or the machine kept changing.
        """
        fingerprint = fingerprint_of(read_fingerprint_files(self._root))
        if fingerprint == self._fingerprint:
            return known
        topology = topology_of(read_machine(self._root))
        # the fingerprint is stored only after a successful reading, because a failed reading must be repeated
        self._fingerprint = fingerprint
        return topology

    def devices(self, topology: Topology) -> "PlacedDevices":
        """Scan the machine's devices. Devices may be added, removed and renamed at any time."""
        from nodeagent.core.model.devices import PlacedDevices  # noqa: PLC0415 - few agents have a pod that asks for one
        from nodeagent.formats.kernel.pci_devices import devices_of  # noqa: PLC0415 - as above

        try:
            return PlacedDevices.of(devices_of(read_devices(self._root)), topology)
        except SysfsError as err:
            return PlacedDevices(problem=err.message)


def adapt_to_topology(node: NodeSetup, topology: Topology) -> tuple[NodeSetup, tuple[StartRefused, ...]]:
    """Adapt a node to a changed topology. Running pods adapt, too, even if the configuration doesn't fit the topology."""
    found = on_machine(node.config, topology, node.reserved)
    return (found, ()) if isinstance(found, NodeSetup) else (replace(node, topology=topology), found)


def remove_withheld_cpus(node: NodeSetup, tree: CgroupTree) -> tuple[NodeSetup, Withheld]:
    """Adapt a node to the CPUs that cgroups above withhold.

    If one of these cgroups can't be read, all CPUs count as available; the first turn reports the failure.
    """
    try:
        kept = find_withheld(tree.read_chain() or ())
    except CgroupError:
        return node, NOTHING
    return (adapt_to_topology(node, node.topology.without(kept.cpus))[0] if kept.cpus else node), kept
