"""Value types for cgroup v2 files: the values that the agent wants, and the values that it has observed. This module doesn't access files.

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
    """No partition: the cgroup shares its CPUs with all other cgroups whose cpusets list these CPUs."""
    ROOT = "root"
    """Partition whose CPUs no process outside of the partition may use, not even a host process. The kernel's scheduler balances load among
    these CPUs.
    """
    ISOLATED = "isolated"
    """Partition like `ROOT`, but without load balancing, and without work from the kernel's unbound workqueues."""


class Partition(Struct, frozen=True):
    """Value of `cpuset.cpus.partition`."""

    kind: PartitionKind
    problem: str = ""
    """Reason why the partition is invalid, as the kernel reports it. Empty means that the partition is valid."""


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
    """CPUs on which a container's processes may run when all CPUs of the container are offline. They are listed in the cpuset of `payload`,
    the child cgroup with the processes. The container's own cgroup limits the effective CPUs of `payload` to the container's CPUs.

    When a process's last CPU goes offline, the kernel moves the process to any CPU that the process's cgroup lists, effective or not
    (kernel/sched/core.c, select_fallback_rq). It does so even if taking the CPU offline fails in the end. If all listed CPUs are offline,
    the process may run on any CPU.
    """


Value = CpuSet | NumaSet | CpuMax | ByteLimit | TaskLimit | Partition | int | bool
Attributes = tuple[tuple[Attribute, Value], ...]


class UnitSettings(Struct, frozen=True):
    """CPUs and memory nodes to which systemd restricts a unit. An empty set means no restriction."""

    allowed_cpus: CpuSet = CpuSet()
    """Value of the unit's property `AllowedCPUs=`."""
    allowed_memory_nodes: NumaSet = NumaSet()
    """Value of the unit's property `AllowedMemoryNodes=`."""


class DesiredCgroup(Struct, frozen=True):
    """Desired values of one cgroup."""

    path: str
    """Cgroup path relative to the pods' top cgroup. For the top cgroup itself the path is empty, and the agent writes only the
    controllers.
    """
    controllers: frozenset[str] = frozenset()
    """Controllers to enable for the cgroup's children (`cgroup.subtree_control`)."""
    attributes: Attributes = ()
    exclusive_cpus: CpuSet = CpuSet()
    """CPUs in the cgroup's `cpuset.cpus` on which no process of another cgroup may run. Cgroups below the path `shares_with` are the only
    exception.
    """
    offline_cpus: CpuSet = CpuSet()
    """Exclusive CPUs that are offline. The cgroup's `cpuset.cpus` may still list them."""
    shares_with: str = ""
    """Path prefix of the cgroups that may use this cgroup's exclusive CPUs, too. These are cgroups of the same pod's other containers, if
    the containers never run at the same time.
    """
    is_starved: bool = False
    """Whether none of the cgroup's CPUs can be used now, for instance because all are offline. The agent keeps such a cgroup frozen, and
    starts no processes in it.
    """
    is_leaf: bool = False
    """Whether the cgroup belongs to a container, the shared pool or a systemd unit, so that it or its payload cgroup has processes. All
    other cgroups have only child cgroups.
    """
    meanwhile: CpuSet = CpuSet()
    """CPUs of the shared pool, for a systemd unit that must leave all its present CPUs at once. The unit uses them until the agent can
    grant the unit's exclusive CPUs.
    """
    goes_back_to: UnitSettings | None = None
    """Original settings of a systemd unit, which the agent restores because no pod pins the unit any more. None for every other cgroup."""

    def get(self, attribute: Attribute) -> Value | None:
        return _find_value(self.attributes, attribute)

    def cpus(self) -> CpuSet:
        value = self.get(Attribute.CPUSET_CPUS)
        return value if isinstance(value, CpuSet) else CpuSet()

    def fallback_cpus(self) -> CpuSet:
        """Return the desired value of `Attribute.FALLBACK_CPUS`. Empty means that the agent sets no fallback CPUs for this cgroup."""
        value = self.get(Attribute.FALLBACK_CPUS)
        return value if isinstance(value, CpuSet) else CpuSet()

    @property
    def is_exclusive(self) -> bool:
        """Whether the cgroup has exclusive CPUs. It may have shared CPUs as well."""
        return bool(self.exclusive_cpus)

    @property
    def is_mixed(self) -> bool:
        """Whether the cgroup has both exclusive and shared CPUs."""
        return self.is_exclusive and self.exclusive_cpus != self.cpus()

    def partition_cpus(self) -> CpuSet:
        """Return the desired value of `cpuset.cpus.exclusive`: the CPUs of this cgroup's partition and of the partitions below this
        cgroup.
        """
        value = self.get(Attribute.CPUSET_CPUS_EXCLUSIVE)
        return value if isinstance(value, CpuSet) else CpuSet()


class ObservedCgroup(Struct, frozen=True):
    """Observed values of one cgroup. Attributes whose controller isn't enabled for the cgroup are missing."""

    path: str
    controllers: frozenset[str]
    """Controllers that can be enabled for the cgroup's children (`cgroup.controllers`)."""
    subtree_control: frozenset[str]
    attributes: Attributes
    cpus_effective: CpuSet | None
    """Value of `cpuset.cpus.effective`. For an inactive systemd unit, these are the CPUs on which the unit will start."""
    mems_effective: NumaSet | None
    is_populated: bool
    is_frozen: bool
    oom_kills: int = 0
    """Number of processes in this cgroup and its descendants that the kernel's OOM killer has killed."""
    elsewhere: CpuSet = CpuSet()
    """CPUs outside of `cpus_effective` on which the cgroup's processes may run nevertheless.

    The kernel permits such CPUs when it fails to take the last CPU of a partition offline, and doesn't withdraw the permission afterwards.
    """
    unit: UnitSettings | None = None
    """systemd's settings, if the cgroup belongs to a systemd unit. They exist even for an inactive unit, which has no cgroup. The field
    `attributes` has the values in the kernel instead, which may differ.
    """
    unit_before: UnitSettings | None = None
    """Recorded settings that the systemd unit had before the agent changed them. None means that there is no such record."""

    def get(self, attribute: Attribute) -> Value | None:
        return _find_value(self.attributes, attribute)


def _find_value(attributes: Attributes, wanted: Attribute) -> Value | None:
    """Return the value of an attribute, or None if the attribute is missing. A linear search is faster than a dictionary here, because a
    cgroup has few attributes and each turn makes thousands of searches.
    """
    for attribute, value in attributes:
        if attribute is wanted:
            return value
    return None


ObservedCgroups = Mapping[str, ObservedCgroup]
"""Observed cgroups by path. Cgroups that don't exist are missing."""


def unclear_units(observed: ObservedCgroups) -> dict[str, CpuSet]:
    """Return the systemd units that may or may not be pinned by a pod, because the agent can't read all manifests now. Each unit is
    returned with the CPUs that it uses, or will use when it starts.
    """
    found, prefix = {}, f"{UNITS_UNCLEAR}/"
    for path in [path for path in observed if path.startswith(prefix)]:
        there = observed[path]
        if there.unit is not None and there.unit == there.unit_before and not there.unit.allowed_cpus:
            continue  # systemd has no setting of the agent for this unit, or the settings were restored
        told = there.get(Attribute.CPUSET_CPUS)
        found[unit_at(path)] = told if isinstance(told, CpuSet) else there.cpus_effective or CpuSet()
    return found


def cpu_shares(cpu_milli: int) -> int:
    """Return the cgroup v1 shares (2 to 262,144) for a CPU request, as kubelet does (cm.MilliCPUToShares)."""
    return max(2, min(262_144, cpu_milli * 1024 // 1000))


def cpu_weight(shares: int) -> int:
    """Convert cgroup v1 shares to a cgroup v2 weight (1 to 10,000).

    The formula maps the minimum, maximum and default of the shares to those of the weight. It comes from opencontainers/cgroups 0.0.4,
    which runc 1.3.2 uses: log10(weight) = (l² + 125·l) / 612 - 7/34 with l = log2(shares).
    """
    if shares <= 2:
        return 1
    if shares >= 262_144:
        return 10_000
    scale = math.log2(shares)
    return math.ceil(10 ** ((scale * scale + 125 * scale) / 612 - 7 / 34))


def cpu_quota(limit_milli: int, period_us: int) -> CpuMax:
    """Return the `cpu.max` value for a CPU limit, as kubelet does (cm.MilliCPUToQuota). A limit of 0 means no limit."""
    if limit_milli == 0:
        return CpuMax(None, period_us)
    return CpuMax(max(MIN_QUOTA_US, limit_milli * period_us // 1000), period_us)
