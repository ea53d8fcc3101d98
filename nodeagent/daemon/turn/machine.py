"""Rereads the machine periodically: CPUs, memory and huge pages come and go while pods run."""

import os
from typing import TYPE_CHECKING

from msgspec.structs import replace

from nodeagent.core.admission.node_setup import NodeSetup, on_machine
from nodeagent.core.cgroups.ancestor_cpusets import NOTHING, Withheld, find_withheld
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.model.topology import Topology
from nodeagent.edge.cgroups.cgroupfs import CgroupError, CgroupTree
from nodeagent.edge.kernel.sysfs import read_devices, read_machine, read_witness
from nodeagent.formats.kernel.sysfs import topology_of
from nodeagent.formats.kernel.sysfs_sample import SysfsError
from nodeagent.formats.kernel.sysfs_witness import Witness, witness_of

if TYPE_CHECKING:
    from nodeagent.core.model.devices import PlacedDevices


def node_name() -> str:
    """Return the node's name as Kubernetes has it, which is that of its pool in ResourceSlices."""
    return os.uname().nodename.lower()


class Machine:
    """The machine below a root, looked at repeatedly. Cheap while nothing changes."""

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._witness: Witness | None = None

    def look(self, known: Topology) -> Topology:
        """Read the machine if it differs from the last look; the first look always reads it.

        Raises:
            SysfsError: a file is malformed, or the machine kept changing.
        """
        witness = witness_of(read_witness(self._root))
        if witness == self._witness:
            return known
        topology = topology_of(read_machine(self._root))
        # Only now: a failed reading must be repeated.
        self._witness = witness
        return topology

    def devices(self, topology: Topology) -> "PlacedDevices":
        """Look at its devices, which come, go and are renamed at any time."""
        from nodeagent.core.model.devices import PlacedDevices  # noqa: PLC0415 - few agents have a pod that asks for one
        from nodeagent.formats.kernel.pci_devices import devices_of  # noqa: PLC0415 - as above

        try:
            return PlacedDevices.of(devices_of(read_devices(self._root)), topology)
        except SysfsError as err:
            return PlacedDevices(problem=err.message)


def on_what_is_there(node: NodeSetup, topology: Topology) -> tuple[NodeSetup, tuple[StartRefused, ...]]:
    """Give a node on another machine. If its configuration is refused there, who runs keeps to the CPUs that there are even so."""
    found = on_machine(node.config, topology, node.reserved)
    return (found, ()) if isinstance(found, NodeSetup) else (replace(node, topology=topology), found)


def without_withheld(node: NodeSetup, tree: CgroupTree) -> tuple[NodeSetup, Withheld]:
    """Give a node as its first turn will have it. Cgroups that cannot be read are left to that turn to report."""
    try:
        kept = find_withheld(tree.chain() or ())
    except CgroupError:
        return node, NOTHING
    return (on_what_is_there(node, node.topology.without(kept.cpus))[0] if kept.cpus else node), kept
