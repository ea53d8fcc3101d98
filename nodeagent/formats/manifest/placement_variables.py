"""What a container's processes are told about where they run: variables in their environment, and the same as lines of a file.

Sets are in the kernel's list format, which `taskset -c`, `numactl` and DPDK's `-l` read too. Knows neither where the file is nor how a
process gets its environment.
"""

from nodeagent.core.cgroups.container_placement import ContainerPlacement

EXCLUSIVE_CPUS = "NODEAGENT_EXCLUSIVE_CPUS"
SHARED_CPUS = "NODEAGENT_SHARED_CPUS"
MEMORY_NODES = "NODEAGENT_MEMORY_NODES"
PLACEMENT_FILE = "NODEAGENT_PLACEMENT_FILE"
"""The path of the file; not in the file itself."""


def placement_variables(placement: ContainerPlacement) -> tuple[tuple[str, str], ...]:
    """Return names and values; a set that the container doesn't have is empty."""
    return (
        (EXCLUSIVE_CPUS, str(placement.exclusive_cpus)),
        (SHARED_CPUS, str(placement.shared_cpus)),
        (MEMORY_NODES, str(placement.memory_nodes)),
    )


def placement_text(placement: ContainerPlacement) -> bytes:
    """Return the file's content. A shell can read it (`. FILE`)."""
    return "".join(f"{name}={value}\n" for name, value in placement_variables(placement)).encode()
