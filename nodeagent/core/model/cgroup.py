"""Values of cgroup v2 files, desired and observed. This module doesn't access files, and doesn't depend on pods.

Field names are the kernel's terms (Documentation/admin-guide/cgroup-v2.rst).
"""

import enum
import math
from collections.abc import Mapping

from msgspec import Struct

from nodeagent.core.model.cgroup_layout import UNITS_UNCLEAR, unit_at
from nodeagent.core.model.idset import CpuSet, NumaSet

MIN_QUOTA_US = 1_000
"""Smallest quota that the kernel accepts in cpu.max (kernel/sched/core.c, min_cfs_quota_period)."""


class CpuMax(Struct, frozen=True):
    """Value of `cpu.max`. A `quota_us` of None means that there is no limit."""

    quota_us: int | None
    period_us: int


class ByteLimit(Struct, frozen=True):
    """Value of `memory.max`, `memory.swap.max` or `hugetlb.*.max`. None means that there is no limit."""

    limit_bytes: int | None


class TaskLimit(Struct, frozen=True):
    """Value of `pids.max`, which limits the number of processes and threads. None means that there is no limit."""

    limit: int | None


class PartitionKind(enum.Enum):
    """Kind of partition in `cpuset.cpus.partition`."""

    MEMBER = "member"
    """Not a partition. Any cgroup whose cpuset lists these CPUs may use them."""
    ROOT = "root"
    """Partition whose CPUs nothing else may use, not even host processes. The kernel balances load over these CPUs."""
    ISOLATED = "isolated"
    """Partition like `ROOT`, but without load balancing, and without work of the kernel's unbound workqueues."""


class Partition(Struct, frozen=True):
    """Value of `cpuset.cpus.partition`."""

    kind: PartitionKind
    problem: str = ""
    """Reason why the partition is invalid, as the kernel reports it. The text is empty if the partition is valid."""


MEMBER = Partition(PartitionKind.MEMBER)


class Attribute(enum.Enum):
    """Cgroup files that the agent writes. The value is the file name."""

    CPUSET_CPUS = "cpuset.cpus"
    CPUSET_CPUS_EXCLUSIVE = "cpuset.cpus.exclusive"
    CPUSET_CPUS_PARTITION = "cpuset.cpus.partition"
    CPUSET_MEMS = "cpuset.mems"
    CPU_MAX = "cpu.max"
    CPU_WEIGHT = "cpu.weight"
    MEMORY_MAX = "memory.max"
    MEMORY_SWAP_MAX = "memory.swap.max"
    PIDS_MAX = "pids.max"
    MEMORY_OOM_GROUP = "memory.oom.group"
    FREEZE = "cgroup.freeze"
    FALLBACK_CPUS = "payload/cpuset.cpus"
    """Fallback CPUs of a container, in the cpuset of its `payload` cgroup. The container's cgroup above lists the CPUs to run on.

    When the last CPU of a process goes offline, the process falls back to the CPUs listed in its own cgroup, effective or not
    (kernel/sched/core.c, select_fallback_rq). The same happens if the kernel only tries to take this CPU offline. If none of the listed
    CPUs is online, the process may run on any CPU.
    """


Value = CpuSet | NumaSet | CpuMax | ByteLimit | TaskLimit | Partition | int | bool
Attributes = tuple[tuple[Attribute, Value], ...]


class UnitSettings(Struct, frozen=True):
    """CPUs and memory nodes that systemd allows a unit. An empty set means that all are allowed."""

    allowed_cpus: CpuSet = CpuSet()
    """Value of `AllowedCPUs`."""
    allowed_memory_nodes: NumaSet = NumaSet()
    """Value of `AllowedMemoryNodes`."""


class DesiredCgroup(Struct, frozen=True):
    """Desired values of one cgroup."""

    path: str
    """Path relative to the pods' cgroup. An empty path means the pods' cgroup itself, in which the agent writes only the controllers."""
    controllers: frozenset[str] = frozenset()
    """Controllers to enable for the cgroup's children."""
    attributes: Attributes = ()
    exclusive_cpus: CpuSet = CpuSet()
    """CPUs in the cgroup's `cpuset.cpus` on which no other cgroup's process may run. Only cgroups that match `shares_with` may use them,
    too.
    """
    offline_cpus: CpuSet = CpuSet()
    """Exclusive CPUs that are offline. The cgroup's `cpuset.cpus` may still list them."""
    shares_with: str = ""
    """Path prefix of the cgroups that may share the exclusive CPUs. These cgroups belong to containers of the same pod that never run at
    the same time.
    """
    is_starved: bool = False
    """Whether none of the cgroup's CPUs is available now. Such a cgroup stays frozen, and processes may not start in it."""
    is_leaf: bool = False
    """Whether processes may be directly in this cgroup or in its payload cgroup."""
    meanwhile: CpuSet = CpuSet()
    """Interim CPUs of a systemd unit with exclusive CPUs. If the unit has to leave all its current CPUs, it uses the interim CPUs until
    its exclusive CPUs are granted.
    """
    goes_back_to: UnitSettings | None = None
    """Settings to restore for a systemd unit that is no longer pinned. None for every other cgroup."""

    def get(self, attribute: Attribute) -> Value | None:
        return _find_value(self.attributes, attribute)

    def cpus(self) -> CpuSet:
        value = self.get(Attribute.CPUSET_CPUS)
        return value if isinstance(value, CpuSet) else CpuSet()

    def fallback_cpus(self) -> CpuSet:
        """Return the fallback CPUs, or the cgroup's own CPUs if no fallback CPUs are set."""
        value = self.get(Attribute.FALLBACK_CPUS)
        return value if isinstance(value, CpuSet) else CpuSet()

    @property
    def is_exclusive(self) -> bool:
        """Whether the cgroup has exclusive CPUs now, with or without shared CPUs."""
        return bool(self.exclusive_cpus)

    @property
    def is_mixed(self) -> bool:
        """Whether the cgroup has both exclusive and shared CPUs."""
        return self.is_exclusive and self.exclusive_cpus != self.cpus()

    def partition_cpus(self) -> CpuSet:
        """Return the CPUs of the cgroup's own partition, or of the partitions below the cgroup."""
        value = self.get(Attribute.CPUSET_CPUS_EXCLUSIVE)
        return value if isinstance(value, CpuSet) else CpuSet()


class ObservedCgroup(Struct, frozen=True):
    """Observed values of one cgroup. Attributes are missing if their controller isn't enabled."""

    path: str
    controllers: frozenset[str]
    """Controllers that can be enabled for children (cgroup.controllers)."""
    subtree_control: frozenset[str]
    attributes: Attributes
    cpus_effective: CpuSet | None
    """Effective CPUs. For an inactive unit, these are the CPUs on which the unit will start."""
    mems_effective: NumaSet | None
    is_populated: bool
    is_frozen: bool
    oom_kills: int = 0
    """Number of processes in this cgroup and its descendants that the kernel's out-of-memory killer has killed."""
    elsewhere: CpuSet = CpuSet()
    """CPUs that the cgroup's processes may use, although they aren't effective CPUs of the cgroup.

    The kernel allows such CPUs when it fails to take a partition's last CPU offline, and doesn't take them back afterwards.
    """
    unit: UnitSettings | None = None
    """Settings in systemd, if the cgroup belongs to a unit. An inactive unit has settings, too. The cgroup's attributes are its actual
    values, if the cgroup exists.
    """
    unit_before: UnitSettings | None = None
    """Recorded settings that the unit had before the agent changed them. None means that no record exists."""

    def get(self, attribute: Attribute) -> Value | None:
        return _find_value(self.attributes, attribute)


def _find_value(attributes: Attributes, wanted: Attribute) -> Value | None:
    """Find the value of an attribute. Linear search is faster here than a dictionary, because there are few attributes and thousands of
    searches per turn.
    """
    for attribute, value in attributes:
        if attribute is wanted:
            return value
    return None


ObservedCgroups = Mapping[str, ObservedCgroup]
"""Observed cgroups by path. Cgroups that don't exist are missing."""


def unclear_units(observed: ObservedCgroups) -> dict[str, CpuSet]:
    """Return the units whose pods are unknown now, each with the CPUs that the unit uses, or will use once it starts."""
    found, prefix = {}, f"{UNITS_UNCLEAR}/"
    for path in [path for path in observed if path.startswith(prefix)]:
        there = observed[path]
        if there.unit is not None and there.unit == there.unit_before and not there.unit.allowed_cpus:
            continue  # systemd has no setting of the agent for this unit, or the settings were restored
        told = there.get(Attribute.CPUSET_CPUS)
        found[unit_at(path)] = told if isinstance(told, CpuSet) else there.cpus_effective or CpuSet()
    return found


def cpu_shares(cpu_milli: int) -> int:
    """Return the cgroup v1 shares for a CPU request, as kubelet does (cm.MilliCPUToShares): 2 to 262,144."""
    return max(2, min(262_144, cpu_milli * 1024 // 1000))


def cpu_weight(shares: int) -> int:
    """Convert cgroup v1 shares to a cgroup v2 weight, 1 to 10,000.

    The formula maps the minimum, maximum and default of one scale to those of the other. The source of the formula is
    opencontainers/cgroups 0.0.4, as used by runc 1.3.2: log10(weight) = (l² + 125·l) / 612 - 7/34 with l = log2(shares).
    """
    if shares <= 2:
        return 1
    if shares >= 262_144:
        return 10_000
    scale = math.log2(shares)
    return math.ceil(10 ** ((scale * scale + 125 * scale) / 612 - 7 / 34))


def cpu_quota(limit_milli: int, period_us: int) -> CpuMax:
    """Return the quota for a CPU limit, as kubelet does (cm.MilliCPUToQuota). A limit of 0 means no limit."""
    if limit_milli == 0:
        return CpuMax(None, period_us)
    return CpuMax(max(MIN_QUOTA_US, limit_milli * period_us // 1000), period_us)
