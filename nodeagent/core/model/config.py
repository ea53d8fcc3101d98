"""Configuration of the agent as values: the fields that placement decisions depend on (`Placement`), and all others (`Config`).

Field names are those of the KubeletConfiguration, in snake case. formats/config/config_yaml.py parses the YAML.
"""

import enum
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Container, Resources
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.quiet import SHIPPED_PROFILES, Profile
from nodeagent.core.model.topology import CORE_CLASSES

if TYPE_CHECKING:
    from nodeagent.core.model.device_selection import DeviceSelection

DEFAULT_GATES: Mapping[str, bool] = MappingProxyType(
    {
        "CPUManagerPolicyAlphaOptions": False,
        "CPUManagerPolicyBetaOptions": True,
        "TopologyManagerPolicyAlphaOptions": False,
        "TopologyManagerPolicyBetaOptions": True,
        "PodLevelResources": True,
        "PodLevelResourceManagers": False,
        "DisableCPUQuotaWithExclusiveCPUs": True,
        "CustomCPUCFSQuotaPeriod": False,
        "DRAListTypeAttributes": False,
        "DRANodeAllocatableResources": False,
    }
)
"""Feature gates that change the agent's behaviour, with the defaults of kubelet 1.36."""

DEPENDENT_GATES: Mapping[str, str] = MappingProxyType({"PodLevelResourceManagers": "PodLevelResources"})
"""Prerequisite gate of each feature gate that has one. kubelet doesn't start with a feature gate on and its prerequisite off."""

GATES_OF_A_STAGE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        stage: tuple(name for name, is_on in DEFAULT_GATES.items() if is_on is on_by_default)
        for stage, on_by_default in (("AllAlpha", False), ("AllBeta", True))
    }
)
"""Feature gates that `AllAlpha` and `AllBeta` switch. A gate that the configuration sets individually isn't switched. The alpha gates are
those that are off by default.
"""


CPU_MANAGER_POLICIES = ("none", "static")
MEMORY_MANAGER_POLICIES = ("None", "Static")
TOPOLOGY_MANAGER_POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
TOPOLOGY_MANAGER_SCOPES = ("container", "pod")
ISOLATED_CPUS = ("ignore", "prefer", "only")
ANY_CLASS = "any"
CORE_CLASS_CHOICES = (ANY_CLASS, *CORE_CLASSES)
HOST_ISOLATION = ("none", "partition")
INTERRUPT_ISOLATION = ("none", "affinity")
NO_SWAP, LIMITED_SWAP, UNLIMITED_SWAP = SWAP_BEHAVIORS = ("NoSwap", "LimitedSwap", "UnlimitedSwap")


class Errata(enum.Enum):
    """Version of kubelet whose known errors the managers reproduce. With `FIXED`, they reproduce none."""

    FIXED = "fixed"
    KUBELET_1_36 = "kubelet-1.36"
    KUBELET_1_37 = "kubelet-1.37"


class ReservedMemory(Struct, frozen=True):
    """One entry of `reservedMemory`."""

    numa_node: int
    limits: Resources


class PluginCode(Protocol):
    """Interface of a CPU plugin's code. edge/plugins/cpu_plugins.py loads the code."""

    @property
    def points(self) -> frozenset[str]:
        """Return the extension points that the plugin implements, by the names in core/resources/cpu/points.py."""

    @property
    def held_off(self) -> str:
        """Return the reason why the agent doesn't call the plugin until its next restart, such as a late answer. Empty means that it calls
        the plugin.
        """

    def begin_turn(self, alive: Callable[[], None]) -> None:
        """Start the plugin's time budget for a turn of the agent. `alive` is called after each answer of the plugin, to show that the agent
        isn't stuck.
        """

    def ask(self, point: str, *question: object) -> object:
        """Ask the plugin a question at an extension point. Return the answer, which the caller must check.

        Raises:
            PluginFailedError: the plugin gave no answer, answered too late, or gave two different answers to the same question.
        """


class CpuPlugin(Struct, frozen=True):
    """One entry of `cpuManagerPlugins`, the configured plugins of the CPU manager."""

    name: str
    options: tuple[tuple[str, str], ...] = ()
    """Configured options of the plugin, as pairs of option and value, sorted by option."""
    code: PluginCode | None = None
    """Code of the plugin. None means that the code isn't loaded, because the program makes no decisions."""


class Placement(Struct, frozen=True):
    """Configuration on which placement decisions depend. Texts are stored as configured, and the resource managers check them."""

    cpu_manager_policy: str = "none"
    cpu_manager_policy_options: tuple[tuple[str, str], ...] = ()
    reserved_system_cpus: CpuSet = CpuSet()
    """Reserved CPUs by number. An empty set means that the configuration reserves an amount of CPU, without naming CPUs."""
    reserved_cpu_milli: int | None = None
    """Reserved amount of CPU in thousandths: the sum of `systemReserved.cpu` and `kubeReserved.cpu`. None means that the configuration
    contains neither. The amount is ignored if `reserved_system_cpus` is set.
    """
    topology_manager_policy: str = "none"
    topology_manager_scope: str = "container"
    topology_manager_policy_options: tuple[tuple[str, str], ...] = ()
    memory_manager_policy: str = "None"
    reserved_memory: tuple[ReservedMemory, ...] = ()
    memory_reservation: Resources = Resources()
    """Reserved amount of each memory resource: `systemReserved` + `kubeReserved` + hard eviction threshold."""
    isolated_cpus: str = "ignore"
    """Use of the CPUs that the kernel command line isolates (`isolcpus=`). `prefer` allocates these CPUs exclusively before any others.
    `only` allocates no others exclusively. `ignore` treats them like all others, as kubelet does.
    """
    exclusive_core_class: str = ANY_CLASS
    """Core class that is preferred for exclusive CPUs, unless the pod names another class. `any`, the default, means no preference, as in
    kubelet.
    """
    shared_core_class: str = ANY_CLASS
    """Core class of the CPUs on which containers without exclusive CPUs run. If the shared pool has no CPU of this class, they run on the
    whole pool. `any`, the default, means the whole pool, as in kubelet.
    """
    prefer_cpus_numa_node: bool = False
    """Whether a single NUMA node that the hints of both CPUs and memory prefer wins over contradicting hints of devices. False is kubelet's
    behaviour.
    """
    same_numa_nodes: bool = False
    """Whether a container's CPUs and memory are allocated on the same NUMA nodes if possible. False is kubelet's behaviour."""
    spread_huge_pages: bool = False
    """Whether a container's huge pages are spread over the NUMA nodes of its CPUs, in proportion to the CPUs. False is kubelet's
    behaviour.
    """
    resize_below_admitted_cpus: bool = False
    """Whether a resize may take exclusive CPUs away that the container had when its pod was admitted. False is the behaviour of
    KEP-5554.
    """
    feature_gates: tuple[tuple[str, bool], ...] = ()
    """Gates that the configuration sets, without the defaults. `gate()` returns the effective value of a gate."""
    errata: Errata = Errata.FIXED
    cpu_plugins: tuple[CpuPlugin, ...] = ()
    """CPU plugins in the order in which the CPU manager calls them. kubelet has no such plugins."""
    devices: "tuple[DeviceSelection, ...]" = ()
    """Extended resources that consist of the machine's own devices. A device belongs to the first entry that selects it."""

    @property
    def has_static_cpus(self) -> bool:
        """Whether the CPU manager's policy is `static`, under which containers can get exclusive CPUs."""
        return self.cpu_manager_policy == "static"

    @property
    def prefers_numa_nodes(self) -> bool:
        """Whether one of the settings that kubelet lacks makes the managers prefer certain NUMA nodes. These settings never cause a
        refusal.
        """
        return self.same_numa_nodes or self.spread_huge_pages

    @property
    def decides_by_pod(self) -> bool:
        """Whether the topology manager chooses NUMA nodes once for the whole pod, instead of once for each container."""
        return self.topology_manager_scope == "pod" and self.topology_manager_policy != "none"

    def gate(self, name: str) -> bool:
        for gate, is_on in self.feature_gates:
            if gate == name:
                return is_on
        return DEFAULT_GATES[name]


DEFAULT_WEIGHT = 100
"""Default weight of a user in the queue of jobs. It equals the default of `CPUWeight=` in systemd units."""


class JobShare(Struct, frozen=True):
    """Weight and job limits of one user, or of each member of a group. None in a field means that the value of `JobBounds` applies."""

    user: str = ""
    """User name. It is empty if the share belongs to a group."""
    group: str = ""
    """Group name. It is empty if the share belongs to a user."""
    weight: int | None = None
    max_cpus: Quantity | None = None
    max_memory: Quantity | None = None
    max_per_user: int | None = None
    max_reservations: int | None = None


class JobBounds(Struct, frozen=True):
    """Rules for users other than root who may run jobs. Each limit applies to the sum of a user's jobs, and separately to the sum of the
    user's reservations.
    """

    group: str
    max_cpus: Quantity | None = None
    """Maximum number of CPUs of a user's jobs in total. None means that there is no limit except the number of CPUs of the node."""
    max_memory: Quantity | None = None
    """Maximum memory, including huge pages, of a user's jobs in total. None means that there is no limit except the memory of the node."""
    max_per_user: int = 10
    max_reservations: int = 2
    """Maximum number of a user's reservations that haven't ended yet. 0 means that only root may make reservations."""
    weight: int = DEFAULT_WEIGHT
    """Weight of a user in the queue of jobs. If several waiting jobs could start before their turn, the first to start belongs to the user
    with the fewest CPUs in relation to the weight.
    """
    shares: tuple[JobShare, ...] = ()
    """Shares of users and groups. The first share that matches a user is the user's share."""

    def apply_share(self, share: JobShare) -> "JobBounds":
        """Return the bounds for a user who has this share."""
        return JobBounds(
            self.group,
            share.max_cpus or self.max_cpus,
            share.max_memory or self.max_memory,
            self.max_per_user if share.max_per_user is None else share.max_per_user,
            self.max_reservations if share.max_reservations is None else share.max_reservations,
            self.weight if share.weight is None else share.weight,
        )


RETRY_NOTHING = "none"
RETRY_FOR_ROOM = "room"
RETRY_REFUSED = (RETRY_NOTHING, RETRY_FOR_ROOM)


class Config(Struct, frozen=True):
    placement: Placement = field(default_factory=Placement)
    cpu_manager_reconcile_period_ms: int = 10_000
    file_check_frequency_ms: int = 20_000
    """Interval at which the agent reads the manifest directory again, in addition to the file watch. Name and default are kubelet's."""
    full_check_period_ms: int = 600_000
    """Period in which the agent reads each cgroup and file again at least once, to find changes that no kernel event has reported."""
    host_isolation: str = "none"
    """Method that keeps host processes off exclusive CPUs: `partition` (cpuset partitions), or `none` as with kubelet."""
    host_core_class: str = ANY_CLASS
    """Core class of the CPUs for host processes and for the kernel's unbound work, if `host_isolation` is on. `any` means no
    restriction.
    """
    interrupt_isolation: str = "none"
    """Treatment of interrupts on exclusive CPUs. `affinity` moves the interrupts to other CPUs. `none` leaves them there, as kubelet
    does.
    """
    cpu_cfs_quota: bool = True
    cpu_cfs_quota_period_us: int = 100_000
    pod_pids_limit: int = 4096
    """Maximum number of processes and threads of a pod or job. -1 or 0 means no limit. The name is kubelet's, but kubelet's default is no
    limit.
    """
    swap_behavior: str = NO_SWAP
    """Swap behaviour of containers, in kubelet's terms. Even `LimitedSwap` allows no swap, because kubelet allows none to static pods."""
    static_pod_path: str = "/etc/nodeagent/manifests"
    state_directory: str = "/var/lib/nodeagent"
    runtime_directory: str = "/run/nodeagent"
    cgroup_root: str | None = None
    """Directory of the pods' top cgroup. None means the cgroup of the pods' systemd unit, whose path the launcher reports."""
    launcher_socket: str = "/run/nodeagent-pods/launcher.sock"
    log_directory: str = "/var/log/nodeagent/pods"
    """Directory for the output of containers, with one file per container. It is used only on a host without the systemd journal."""
    metrics_bind_address: str = "127.0.0.1:9753"
    """Address at which the agent serves metrics: `HOST:PORT` or `unix:PATH`. Empty means that it serves none."""
    metrics_aliases: bool = True
    metrics_containers: bool = True
    """Whether the metrics include each container's interrupts, softirqs, throttling and pressure, for containers with exclusive CPUs."""
    pod_resources_socket: str = ""
    """Socket path at which the agent serves kubelet's PodResources API. Empty means that it doesn't serve the API."""
    device_plugin_socket: str = ""
    """Socket path at which device plugins register with the agent. Empty means that the agent uses no device plugins."""
    nri_socket: str = ""
    """NRI socket path of the container runtime whose containers the agent places. Empty means that the agent serves no runtime."""
    kubelet_pods_socket: str = "/var/lib/kubelet/pods-api/pods-api.sock"
    """Socket path of kubelet's pods API (1.37), from which the agent gets data about pods that NRI lacks. Empty means that the agent
    doesn't use the API. A missing socket is a problem only if the path differs from kubelet's default.
    """
    check_allocatable: bool = True
    retry_refused: str = RETRY_NOTHING
    """Kind of refused pods on which the agent decides again without `nodeagent retry`. With `none`, there are no such pods, as with
    kubelet. With `room`, these are the pods that were refused for lack of resources. The agent decides again when resources are released.
    """
    max_pods: int = 1_000
    pods_per_core: int = 0
    """Additional limit on the number of pods, per CPU of the machine (kubelet's `podsPerCore`). 0 means no such limit."""
    system_reserved: Resources = Resources()
    kube_reserved: Resources = Resources()
    """Value of `kubeReserved`. If `reserved_system_cpus` is set, the number of these CPUs replaces the `cpu` of `systemReserved`, and this
    field has no `cpu`. kubelet does the same.
    """
    eviction_memory_bytes: int | None = 100 * 2**20
    """Hard eviction threshold `memory.available` in bytes (kubelet's default is 100Mi). None means that the threshold is a percentage, or
    isn't set.
    """
    eviction_memory_percent: str | None = None
    """Hard eviction threshold `memory.available` as a percentage, without the percent sign. None means that the threshold isn't a
    percentage. core/admission/node_capacity.py converts it to bytes.
    """
    state_recovery: str = "recover"
    """Action of the starting agent if the saved state is unusable. `recover` derives the state from the running pods. `strict` refuses to
    start, as kubelet does.
    """
    jobs: JobBounds | None = None
    """Rules for users other than root who may run jobs. None means that only root may run jobs."""
    run_thresholds: tuple[tuple[str, int], ...] = ()
    """Configured disturbance thresholds, by kind of disturbance. A rate up to the threshold doesn't count as a disturbance. Kinds that
    aren't listed have their default threshold.
    """
    profiles: tuple[tuple[str, Profile], ...] = SHIPPED_PROFILES
    """Profiles by name. A profile is a named set of settings that keep the host quiet for a pod."""
    machine_wide_boost: bool = False
    """Whether a pod that requests cores without boost may switch off boost for the whole machine. This is necessary on machines that can't
    switch boost per CPU.
    """
    reported_fields: tuple[str, ...] = ()
    """Configured fields of kubelet that the agent doesn't use. The agent logs each of them once."""
    notes: tuple[str, ...] = ()
    """Warnings about allowed but questionable values in the configuration. The agent logs one line for each."""

    @property
    def retries_for_room(self) -> bool:
        """Whether the agent decides again on pods that were refused for lack of resources, whenever resources are released."""
        return self.retry_refused == RETRY_FOR_ROOM

    @property
    def rescan_period_ms(self) -> int:
        """Return the interval of the periodic check, in milliseconds. The check takes place even if events wake the agent more often."""
        return min(self.cpu_manager_reconcile_period_ms, self.file_check_frequency_ms)

    @property
    def checked_part(self) -> float:
        """Return the fraction of all cgroups and files (0 to 1) that each periodic check reads again."""
        return min(1.0, self.rescan_period_ms / self.full_check_period_ms)

    def claimed_devices(self, container: Container) -> tuple[str, ...]:
        """Return the devices whose interrupts a container requests on its exclusive CPUs. The result is empty if the agent doesn't move
        interrupts on this node.
        """
        return () if self.interrupt_isolation == "none" else container.interrupts
