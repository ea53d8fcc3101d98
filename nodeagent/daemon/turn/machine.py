"""Reader of the machine, whose CPUs, memory and huge pages may change while pods run."""

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
    """Reader of the machine below a root directory. It is cheap to call repeatedly, as it reads the whole machine only after a change."""

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._fingerprint: MachineFingerprint | None = None

    def look(self, known: Topology) -> Topology:
        """Return the machine's topology. Read it if the machine's fingerprint has changed since the last reading; otherwise return `known`.

        Raises:
            SysfsError: a file is malformed, or the machine changed during each attempt to read it.
        """
        fingerprint = fingerprint_of(read_fingerprint_files(self._root))
        if fingerprint == self._fingerprint:
            return known
        topology = topology_of(read_machine(self._root))
        # the fingerprint is stored only after a successful reading, because a failed reading must be repeated
        self._fingerprint = fingerprint
        return topology

    def devices(self, topology: Topology) -> "PlacedDevices":
        """Scan the machine's devices. No result is cached, because devices may be added, removed and renamed at any time."""
        from nodeagent.core.model.devices import PlacedDevices  # noqa: PLC0415 - few agents have a pod that asks for one
        from nodeagent.formats.kernel.pci_devices import devices_of  # noqa: PLC0415 - as above

        try:
            return PlacedDevices.of(devices_of(read_devices(self._root)), topology)
        except SysfsError as err:
            return PlacedDevices(problem=err.message)


def adapt_to_topology(node: NodeSetup, topology: Topology) -> tuple[NodeSetup, tuple[StartRefused, ...]]:
    """Adapt a node to a changed topology.

    Returns:
        The adapted node, and the reasons why the configuration doesn't fit the topology. If there are any, running pods still use the new
            topology.
    """
    found = on_machine(node.config, topology, node.reserved)
    return (found, ()) if isinstance(found, NodeSetup) else (replace(node, topology=topology), found)


def remove_withheld_cpus(node: NodeSetup, tree: CgroupTree) -> tuple[NodeSetup, Withheld]:
    """Remove from a node the CPUs that cgroups above the pods' cgroup withhold. Return the adapted node and the withheld CPUs.

    If one of these cgroups can't be read, no CPUs are removed. The first turn reads it again and reports the failure.
    """
    try:
        kept = find_withheld(tree.read_chain() or ())
    except CgroupError:
        return node, NOTHING
    return (adapt_to_topology(node, node.topology.without(kept.cpus))[0] if kept.cpus else node), kept
