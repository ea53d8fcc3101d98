"""Grows a file-system root with the sys/ and proc/ files of a small machine, as the kernel writes them."""

from dataclasses import dataclass
from pathlib import Path

from nodeagent.core.model.idset import CpuSet

CPUS = "sys/devices/system/cpu"
NODES = "sys/devices/system/node"
DEVICES = "sys/bus/pci/devices"


@dataclass(frozen=True)
class Cache:
    """One cache directory of each CPU that shares it."""

    index: int
    level: int
    cpus: str
    id: int | None = None
    type: str = "Unified"
    size: str = "32768K"


@dataclass(frozen=True)
class Machine:
    cores: tuple[str, ...]
    """CPUs of each core, as set text; the core's number is its place in its package."""
    packages: tuple[str, ...]
    nodes: tuple[tuple[int, str], ...] = ()
    """(number, CPUs) of each NUMA node; empty: no NUMA directory."""
    caches: tuple[Cache, ...] = ()
    offline: str = ""
    """They have a directory, and a link in their node, but no topology."""
    books: tuple[str, ...] = ()
    """s390: CPUs by book; each book is in a drawer of its own."""
    dies: tuple[str, ...] = ()
    cpuinfo: bool = True
    online_file: bool = True
    extra: tuple[tuple[str, str], ...] = ()
    """Further files: path, text."""

    def grow(self, root: Path) -> Path:
        offline = CpuSet.parse(self.offline)
        every = CpuSet.parse(",".join(self.cores)) | offline
        files: dict[str, str] = {}
        for cpu in every:
            (root / CPUS / f"cpu{cpu}").mkdir(parents=True)
            if cpu not in offline:
                files |= self._topology(cpu)
                for cache in self.caches:
                    if cpu in CpuSet.parse(cache.cpus):
                        files |= self._cache(cpu, cache)
        if self.online_file:
            files[f"{CPUS}/online"] = f"{every - offline}\n"
        for node, text in self.nodes:
            files |= self._node(node, CpuSet.parse(text) - offline)
            for cpu in CpuSet.parse(text):
                link = root / NODES / f"node{node}" / f"cpu{cpu}"
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(f"../../cpu/cpu{cpu}")
        if self.cpuinfo:
            files["proc/cpuinfo"] = "".join(
                f"processor\t: {cpu}\nphysical id\t: {package}\n\n"
                for package, text in enumerate(self.packages)
                for cpu in CpuSet.parse(text) - offline
            )
        files["proc/meminfo"] = "MemTotal:       16777216 kB\nMemFree:  1 kB\n"
        for path, text in (files | dict(self.extra)).items():
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return root

    def _topology(self, cpu: int) -> dict[str, str]:
        package = place(self.packages, cpu)
        members = CpuSet.parse(self.packages[package])
        in_package = [text for text in self.cores if CpuSet.parse(text) <= members]
        core = place(tuple(in_package), cpu)
        topology = {"core_id": core, "physical_package_id": package}
        if self.books:
            topology |= {"book_id": place(self.books, cpu), "drawer_id": place(self.books, cpu)}
        if self.dies:
            topology["die_id"] = place(self.dies, cpu)
        siblings = {"thread_siblings_list": f"{CpuSet.parse(in_package[core]) - CpuSet.parse(self.offline)}\n"}
        return {f"{CPUS}/cpu{cpu}/topology/{name}": f"{value}\n" for name, value in topology.items()} | {
            f"{CPUS}/cpu{cpu}/topology/{name}": text for name, text in siblings.items()
        }

    def _cache(self, cpu: int, cache: Cache) -> dict[str, str]:
        shared = CpuSet.parse(cache.cpus) - CpuSet.parse(self.offline)
        values = {
            "level": cache.level,
            "size": cache.size,
            "type": cache.type,
            "shared_cpu_list": shared,
            "shared_cpu_map": mask(shared),
        }
        if cache.id is not None:
            values["id"] = cache.id
        return {f"{CPUS}/cpu{cpu}/cache/index{cache.index}/{name}": f"{value}\n" for name, value in values.items()}

    def _node(self, node: int, cpus: CpuSet) -> dict[str, str]:
        distances = " ".join("10" if other == node else "21" for other, _ in sorted(self.nodes))
        return {
            f"{NODES}/node{node}/cpulist": f"{cpus}\n",
            f"{NODES}/node{node}/cpumap": f"{mask(cpus)}\n",
            f"{NODES}/node{node}/distance": f"{distances}\n",
            f"{NODES}/node{node}/meminfo": f"Node {node} MemTotal:        8388608 kB\nNode {node} MemFree: 1 kB\n",
            f"{NODES}/node{node}/hugepages/hugepages-2048kB/nr_hugepages": "512\n",
        }


def put_device(root: Path, address: str, links: dict[str, str] | None = None, **files: str) -> Path:
    """Add a PCI device. `__` in a file's name is a slash, and a name that ends so is a directory; links lead to other devices."""
    directory = root / DEVICES / address
    for name, text in files.items():
        path = directory / name.replace("__", "/")
        if name.endswith("__"):
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
    for name, target in (links or {}).items():
        (directory / name).symlink_to(f"../{target}")
    return root


def place(groups: tuple[str, ...], cpu: int) -> int:
    return next(index for index, text in enumerate(groups) if cpu in CpuSet.parse(text))


def mask(cpus: CpuSet) -> str:
    digits = f"{cpus.bits:x}"
    digits = digits.zfill(-(-len(digits) // 8) * 8)
    return ",".join(digits[start : start + 8] for start in range(0, len(digits), 8))
