"""Rereads the machine periodically: CPUs, memory and huge pages come and go while pods run."""

from nodeagent.core.model.topology import Topology
from nodeagent.edge.sysfs import read_machine, read_witness
from nodeagent.formats.kernel.sysfs import topology_of
from nodeagent.formats.kernel.sysfs_witness import Witness, witness_of


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
