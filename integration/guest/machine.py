"""A virtual machine's hardware as a value, and as QEMU's arguments. A topology that no machine has can be one too."""

from dataclasses import dataclass, replace

LOCAL_DISTANCE = 10
_DISK_BYTES = 16 << 20
_FIRST_BUS, _BUSES = 64, 16
"""Numbers of the buses below additional host bridges."""

# Measured with QEMU 7.2 under emulation: with another vendor the kernel sees no SMT siblings; with cx16 the emulated
# 16-byte compare-and-swap corrupts flags under load, and kernel 6.12 dies of it in every second boot.
# With QEMU 10.0: above level 13 it offers leaf 0x1f for several dies, and dies of an assertion when somebody asks for more levels of it.
# Without erms, fsrm, avx and avx2 kernel and C library copy by plain moves: the others are emulated byte by byte or by calls. Measured
# with QEMU 10.0: 0.8 s instead of 3.7 s for writing 200 MB, a tenth less processor time for a boot and some commands.
CPU_MODEL = "max,vendor=GenuineIntel,-cx16,-erms,-fsrm,-avx,-avx2,level=13"


@dataclass(frozen=True, slots=True)
class Node:
    """A NUMA node; `cpus` is one range like `0-7`, or empty for a node that has only memory."""

    cpus: str
    memory_mib: int


@dataclass(frozen=True, slots=True)
class HugePages:
    """Huge pages reserved at boot, on each node in order; size as the kernel spells it: `2M` or `1G`."""

    size: str
    count_per_node: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Machine:
    """CPUs are numbered thread first, then core, die and socket. Each die has a level 3 cache of its own."""

    name: str
    sockets: int
    dies: int
    cores: int
    threads: int
    nodes: tuple[Node, ...]
    distances: tuple[tuple[int, ...], ...]
    huge_pages: tuple[HugePages, ...] = ()
    cards: tuple[int, ...] = ()
    """The NUMA node of each network card that has one. They lead nowhere."""
    disks: int = 0
    """How many of the cards have an NVMe disk beside them, of zeros."""
    at_once: bool = False
    """Whether emulated CPUs have a thread each, and run at the same time. A guest with guests of its own is too slow otherwise."""
    cpu_model: str = CPU_MODEL
    drives: tuple[str, ...] = ()
    """Image files of further disks. They are only read, and what the guest writes is lost."""

    def __post_init__(self) -> None:
        count = len(self.nodes)
        assert len(self.distances) == count, "a row of distances for each node"
        for index, row in enumerate(self.distances):
            assert len(row) == count, "a distance to each node"
            assert row[index] == LOCAL_DISTANCE, "10 is the distance to oneself"
        assert all(len(pages.count_per_node) == count for pages in self.huge_pages), "huge pages for each node"

    @property
    def cpu_count(self) -> int:
        return self.sockets * self.dies * self.cores * self.threads

    def qemu_arguments(self) -> tuple[str, ...]:
        """CPUs, memory and NUMA."""
        topology = f"sockets={self.sockets},dies={self.dies},cores={self.cores},threads={self.threads}"
        arguments = ["-cpu", self.cpu_model, "-smp", f"{self.cpu_count},{topology}"]
        arguments += ["-m", f"{sum(node.memory_mib for node in self.nodes)}M"]
        for index, node in enumerate(self.nodes):
            arguments += ["-object", f"memory-backend-ram,id=memory{index},size={node.memory_mib}M"]
            cpus = f",cpus={node.cpus}" if node.cpus else ""
            arguments += ["-numa", f"node,nodeid={index},memdev=memory{index}{cpus}"]
        if len(self.nodes) > 1:
            for source, row in enumerate(self.distances):
                for target, distance in enumerate(row):
                    arguments += ["-numa", f"dist,src={source},dst={target},val={distance}"]
        return tuple(arguments)

    def card_arguments(self) -> tuple[str, ...]:
        """To be named after all other devices: those that name no bus take the first that is free, and these can't hold them."""
        arguments: list[str] = []
        for index, place in enumerate(self.cards):
            # A host bridge of its own has a node: a device below it has the same (docs/pci_expander_bridge.txt).
            bus = _FIRST_BUS + _BUSES * index
            arguments += ["-device", f"pxb,id=bridge{index},bus=pci.0,bus_nr={bus},numa_node={place}"]
            arguments += ["-netdev", f"hubport,id=card{index},hubid={index + 1}"]
            arguments += ["-device", f"virtio-net-pci,bus=bridge{index},addr=1,netdev=card{index}"]
        for index in range(self.disks):
            arguments += ["-blockdev", f"driver=null-co,node-name=nvme{index},size={_DISK_BYTES},read-zeroes=on"]
            arguments += ["-device", f"nvme,bus=bridge{index},addr=2,serial=disk{index},drive=nvme{index}"]
        for index, file in enumerate(self.drives):
            arguments += ["-drive", f"file={file},if=none,id=drive{index},format=raw,snapshot=on,cache=unsafe"]
            arguments += ["-device", f"virtio-blk-pci,drive=drive{index}"]
        return tuple(arguments)

    def kernel_arguments(self) -> tuple[str, ...]:
        """The kernel's own form for huge pages on each node: Documentation/admin-guide/kernel-parameters.txt."""
        arguments: list[str] = []
        for pages in self.huge_pages:
            counts = ",".join(f"{node}:{count}" for node, count in enumerate(pages.count_per_node))
            arguments += [f"hugepagesz={pages.size}", f"hugepages={counts}"]
        return tuple(arguments)


TWO_SOCKETS = Machine(
    "two-sockets",
    sockets=2,
    dies=1,
    cores=4,
    threads=2,
    nodes=(Node("0-7", 1024), Node("8-15", 1024)),
    distances=((10, 21), (21, 10)),
)
FOUR_CACHES = Machine(
    "four-caches",
    sockets=1,
    dies=4,
    cores=2,
    threads=2,
    nodes=(Node("0-15", 2048),),
    distances=((10,),),
)
# A ring: each socket has two neighbours, one nearer than the other, and one that is far.
FOUR_NODES = Machine(
    "four-nodes",
    sockets=4,
    dies=1,
    cores=2,
    threads=2,
    nodes=(Node("0-3", 512), Node("4-7", 512), Node("8-11", 512), Node("12-15", 512)),
    distances=((10, 16, 32, 22), (16, 10, 22, 32), (32, 22, 10, 16), (22, 32, 16, 10)),
    huge_pages=(HugePages("2M", (16, 16, 16, 16)),),
)
TWO_CARDS = replace(TWO_SOCKETS, name="two-cards", cards=(0, 1), disks=2)
MACHINES = {machine.name: machine for machine in (TWO_SOCKETS, FOUR_CACHES, FOUR_NODES, TWO_CARDS)}
