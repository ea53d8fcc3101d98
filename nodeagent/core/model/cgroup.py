"""cgroup v2 values: what a cgroup should hold and what it was observed to hold. Knows no file system and no pod.

Fields keep the kernel's words (Documentation/admin-guide/cgroup-v2.rst).
"""

import enum
import math
from collections.abc import Mapping

from msgspec import Struct

from nodeagent.core.model.cgroup_layout import UNITS_UNCLEAR, unit_at
from nodeagent.core.model.idset import CpuSet, NumaSet

MIN_QUOTA_US = 1_000
"""The kernel refuses a smaller cpu.max quota (kernel/sched/core.c, min_cfs_quota_period)."""


class CpuMax(Struct, frozen=True):
    """`cpu.max`. `quota_us` None: no limit."""

    quota_us: int | None
    period_us: int


class ByteLimit(Struct, frozen=True):
    """`memory.max`, `memory.swap.max`, `hugetlb.*.max`. None means no limit."""

    limit_bytes: int | None


class PartitionKind(enum.Enum):
    """What `cpuset.cpus.partition` asks for."""

    MEMBER = "member"
    """No partition of its own: any cgroup whose cpuset names these CPUs may use them."""
    ROOT = "root"
    """Its exclusive CPUs are nobody else's, not the host's either; processes inside are balanced over them."""
    ISOLATED = "isolated"
    """Like `ROOT`, but nothing is balanced, and the kernel's unbound workers leave, too."""


class Partition(Struct, frozen=True):
    """`cpuset.cpus.partition`."""

    kind: PartitionKind
    problem: str = ""
    """The kernel's reason for not granting it, in its words. Empty: it is granted."""


MEMBER = Partition(PartitionKind.MEMBER)


class Attribute(enum.Enum):
    """The files that the agent writes; the value is the file name."""

    CPUSET_CPUS = "cpuset.cpus"
    CPUSET_CPUS_EXCLUSIVE = "cpuset.cpus.exclusive"
    CPUSET_CPUS_PARTITION = "cpuset.cpus.partition"
    CPUSET_MEMS = "cpuset.mems"
    CPU_MAX = "cpu.max"
    CPU_WEIGHT = "cpu.weight"
    MEMORY_MAX = "memory.max"
    MEMORY_SWAP_MAX = "memory.swap.max"
    MEMORY_OOM_GROUP = "memory.oom.group"
    FREEZE = "cgroup.freeze"
    FALLBACK_CPUS = "payload/cpuset.cpus"
    """Where the kernel lets a container's processes run once it has taken their last CPU offline, or tried to. It asks the cgroup that they
    are in, whatever is effective there (kernel/sched/core.c, select_fallback_rq); of one that names no other CPU, they may run on any.
    """


Value = CpuSet | NumaSet | CpuMax | ByteLimit | Partition | int | bool
Attributes = tuple[tuple[Attribute, Value], ...]


class UnitSettings(Struct, frozen=True):
    """What systemd was told that a unit may use. Nothing in a set: it may use all."""

    allowed_cpus: CpuSet = CpuSet()
    """`AllowedCPUs`."""
    allowed_memory_nodes: NumaSet = NumaSet()
    """`AllowedMemoryNodes`."""


class DesiredCgroup(Struct, frozen=True):
    """What one cgroup should hold."""

    path: str
    """Relative to the pods' cgroup; empty: that cgroup itself, of which the agent owns only the controllers."""
    controllers: frozenset[str] = frozenset()
    """To enable for its children."""
    attributes: Attributes = ()
    exclusive_cpus: CpuSet = CpuSet()
    """Those of its `cpuset.cpus` on which no process of another cgroup may run, except those of `shares_with`."""
    offline_cpus: CpuSet = CpuSet()
    """CPUs that will be its own again once they are back: its `cpuset.cpus` may go on naming them, and no others beside what it asks for.
    """
    shares_with: str = ""
    """Path prefix of the cgroups that may overlap it: its own pod (containers of one pod that never run at the same time)."""
    is_starved: bool = False
    """No CPU is available for it now: it stays frozen, and nothing may be started in it."""
    is_leaf: bool = False
    """It holds processes."""
    meanwhile: CpuSet = CpuSet()
    """Of a unit of systemd's with CPUs of its own: where it is if it has to leave all that it has before it gets them."""
    goes_back_to: UnitSettings | None = None
    """It is a unit of systemd's that is given back. None: it isn't."""

    def get(self, attribute: Attribute) -> Value | None:
        return _value(self.attributes, attribute)

    def cpus(self) -> CpuSet:
        value = self.get(Attribute.CPUSET_CPUS)
        return value if isinstance(value, CpuSet) else CpuSet()

    def fallback_cpus(self) -> CpuSet:
        """Where its processes may run once none of its CPUs is left, or these themselves."""
        value = self.get(Attribute.FALLBACK_CPUS)
        return value if isinstance(value, CpuSet) else CpuSet()

    @property
    def is_exclusive(self) -> bool:
        """Whether it has CPUs of its own now; maybe others beside them."""
        return bool(self.exclusive_cpus)

    @property
    def is_mixed(self) -> bool:
        """Whether it has CPUs of its own and some that it shares."""
        return self.is_exclusive and self.exclusive_cpus != self.cpus()

    def partition_cpus(self) -> CpuSet:
        """CPUs of its partition, or of partitions below it."""
        value = self.get(Attribute.CPUSET_CPUS_EXCLUSIVE)
        return value if isinstance(value, CpuSet) else CpuSet()


class ObservedCgroup(Struct, frozen=True):
    """What one cgroup was observed to hold. Attributes whose controller is not enabled are missing."""

    path: str
    controllers: frozenset[str]
    """cgroup.controllers: what can be enabled for children."""
    subtree_control: frozenset[str]
    attributes: Attributes
    cpus_effective: CpuSet | None
    """Of a unit that isn't active: where it will run as soon as it starts."""
    mems_effective: NumaSet | None
    is_populated: bool
    is_frozen: bool
    oom_kills: int = 0
    """Processes of this cgroup and its descendants that the kernel has killed for memory."""
    elsewhere: CpuSet = CpuSet()
    """CPUs beside the effective ones that its processes may run on: the kernel let them go there when it tried in vain to take the last CPU
    of their partition offline, and leaves them there.
    """
    unit: UnitSettings | None = None
    """What systemd was told, if it is a unit's cgroup: that counts while the unit isn't active, too. Its attributes are those of the cgroup
    where there is one.
    """
    unit_before: UnitSettings | None = None
    """What the unit had before an agent told systemd anything of it, as that has recorded. None: nobody has."""

    def get(self, attribute: Attribute) -> Value | None:
        return _value(self.attributes, attribute)


def _value(attributes: Attributes, wanted: Attribute) -> Value | None:
    """Compares a handful of members: this is called thousands of times per turn, and building a dictionary first would cost more."""
    for attribute, value in attributes:
        if attribute is wanted:
            return value
    return None


ObservedCgroups = Mapping[str, ObservedCgroup]
"""By path; cgroups that don't exist are missing."""


def unclear_units(observed: ObservedCgroups) -> dict[str, CpuSet]:
    """Return the units that a pod has pinned which isn't known now, and the CPUs that they are on, or will be on once they start."""
    found = {}
    for path, there in observed.items():
        if path.startswith(f"{UNITS_UNCLEAR}/"):
            if there.unit is not None and there.unit == there.unit_before and not there.unit.allowed_cpus:
                continue  # nobody has told it where to be, or it has been given back
            told = there.get(Attribute.CPUSET_CPUS)
            found[unit_at(path)] = told if isinstance(told, CpuSet) else there.cpus_effective or CpuSet()
    return found


def cpu_shares(cpu_milli: int) -> int:
    """Return the cgroup v1 shares for a CPU request, as kubelet does (cm.MilliCPUToShares): 2 to 262,144."""
    return max(2, min(262_144, cpu_milli * 1024 // 1000))


def cpu_weight(shares: int) -> int:
    """Convert cgroup v1 shares to a cgroup v2 weight, 1 to 10,000.

    The formula maps minimum, maximum and default of one scale to those of the other (opencontainers/cgroups since 0.0.4, and so runc
    1.3.2): log10(weight) = (l² + 125·l) / 612 - 7/34 with l = log2(shares).
    """
    if shares <= 2:
        return 1
    if shares >= 262_144:
        return 10_000
    scale = math.log2(shares)
    return math.ceil(10 ** ((scale * scale + 125 * scale) / 612 - 7 / 34))


def cpu_quota(limit_milli: int, period_us: int) -> CpuMax:
    """Return the quota for a CPU limit, as kubelet does (cm.MilliCPUToQuota). A limit of 0 is no limit."""
    if limit_milli == 0:
        return CpuMax(None, period_us)
    return CpuMax(max(MIN_QUOTA_US, limit_milli * period_us // 1000), period_us)
