"""Configuration as values: the settings on which placement depends, and all other settings of the agent.

Field names follow the KubeletConfiguration (in snake case). This module doesn't parse YAML (formats/config/config_yaml.py) and makes no
decision.
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
"""The feature gates that change the agent's behaviour, with kubelet 1.36's defaults."""

DEPENDENT_GATES: Mapping[str, str] = MappingProxyType({"PodLevelResourceManagers": "PodLevelResources"})
"""Feature gates that need another gate, each with the gate that it needs. kubelet doesn't start if only the first of the two is on."""

GATES_OF_A_STAGE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        stage: tuple(name for name, is_on in DEFAULT_GATES.items() if is_on is on_by_default)
        for stage, on_by_default in (("AllAlpha", False), ("AllBeta", True))
    }
)
"""Feature gates that kubelet's `AllAlpha` and `AllBeta` switch, unless a gate is set individually. Exactly the alpha gates among them are
off by default.
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
    """Version of kubelet whose errors are reproduced, or no version."""

    FIXED = "fixed"
    KUBELET_1_36 = "kubelet-1.36"
    KUBELET_1_37 = "kubelet-1.37"


class ReservedMemory(Struct, frozen=True):
    """One entry of `reservedMemory`."""

    numa_node: int
    limits: Resources


class PluginCode(Protocol):
    """Code of a CPU plugin, loaded by edge/plugins/cpu_plugins.py."""

    @property
    def points(self) -> frozenset[str]:
        """Return the names of the extension points that the plugin implements (core/resources/cpu/points.py)."""

    @property
    def held_off(self) -> str:
        """Return the reason why the plugin isn't called at present. An empty text means that the plugin is called."""

    def begin_turn(self, alive: Callable[[], None]) -> None:
        """Start the plugin's time budget for a turn. `alive` is called after each answer of the plugin, to show that the agent isn't
        stuck.
        """

    def ask(self, point: str, *question: object) -> object:
        """Return the plugin's answer, unchecked.

        Raises:
            PluginFailedError: the plugin gave no answer, a late answer, or two different answers.
        """


class CpuPlugin(Struct, frozen=True):
    """One entry of `cpuManagerPlugins`."""

    name: str
    options: tuple[tuple[str, str], ...] = ()
    """Options by name, sorted."""
    code: PluginCode | None = None
    """Loaded code. None means that the code hasn't been loaded, because only decisions need it."""


class Placement(Struct, frozen=True):
    """Configuration of all placement decisions. Texts are stored as configured, and the managers check them."""

    cpu_manager_policy: str = "none"
    cpu_manager_policy_options: tuple[tuple[str, str], ...] = ()
    reserved_system_cpus: CpuSet = CpuSet()
    """Reserved CPUs. An empty set means that the reservation is an amount of CPU, rather than certain CPUs."""
    reserved_cpu_milli: int | None = None
    """Sum of systemReserved.cpu and kubeReserved.cpu. None means that neither field contains `cpu`. If `reserved_system_cpus` is set, the
    sum is ignored.
    """
    topology_manager_policy: str = "none"
    topology_manager_scope: str = "container"
    topology_manager_policy_options: tuple[tuple[str, str], ...] = ()
    memory_manager_policy: str = "None"
    reserved_memory: tuple[ReservedMemory, ...] = ()
    memory_reservation: Resources = Resources()
    """Reserved amount of each memory resource: systemReserved + kubeReserved + hard eviction threshold."""
    isolated_cpus: str = "ignore"
    """Use of CPUs that were isolated at boot. With `prefer`, they are allocated exclusively before other CPUs. With `only`, no other CPUs
    are allocated exclusively. With `ignore`, they are treated like all other CPUs, as in kubelet.
    """
    exclusive_core_class: str = ANY_CLASS
    """Core class of exclusive CPUs, if possible and unless the pod names another class. `any`, the default, is kubelet's behaviour."""
    shared_core_class: str = ANY_CLASS
    """Core class of containers without exclusive CPUs, as long as the shared pool has CPUs of this class. `any`, the default, is
    kubelet's behaviour.
    """
    prefer_cpus_numa_node: bool = False
    """Whether a single NUMA node that both CPUs and memory prefer takes precedence over conflicting hints of devices. False is kubelet's
    behaviour.
    """
    same_numa_nodes: bool = False
    """Whether CPUs and memory are allocated on the same NUMA nodes if possible. False is kubelet's behaviour."""
    spread_huge_pages: bool = False
    """Whether a container's huge pages are spread over NUMA nodes as its CPUs are. False is kubelet's behaviour."""
    resize_below_admitted_cpus: bool = False
    """Whether a resize may take away exclusive CPUs that the container had at its admission. False is the behaviour of KEP-5554."""
    feature_gates: tuple[tuple[str, bool], ...] = ()
    """Configured gates, without defaults. The method `gate()` reads a gate."""
    errata: Errata = Errata.FIXED
    cpu_plugins: tuple[CpuPlugin, ...] = ()
    """Plugins in the order in which they are called. kubelet has none."""
    devices: "tuple[DeviceSelection, ...]" = ()
    """Extended resources made of devices of the machine. A device belongs to the first entry that selects it."""

    @property
    def has_static_cpus(self) -> bool:
        """Whether containers can get exclusive CPUs."""
        return self.cpu_manager_policy == "static"

    @property
    def prefers_numa_nodes(self) -> bool:
        """Whether a setting that kubelet lacks prefers NUMA nodes. Such a setting never causes a refusal."""
        return self.same_numa_nodes or self.spread_huge_pages

    @property
    def decides_by_pod(self) -> bool:
        """Whether the topology manager makes one decision for the whole pod."""
        return self.topology_manager_scope == "pod" and self.topology_manager_policy != "none"

    def gate(self, name: str) -> bool:
        for gate, is_on in self.feature_gates:
            if gate == name:
                return is_on
        return DEFAULT_GATES[name]


DEFAULT_WEIGHT = 100
"""Default of `CPUWeight=` in systemd units."""


class JobShare(Struct, frozen=True):
    """Weight and limits of one user, or of each member of a group. If a value is None, the value of `JobBounds` applies."""

    user: str = ""
    """Name of the user. The name is empty if the share belongs to a group."""
    group: str = ""
    """Name of the group. The name is empty if the share belongs to a user."""
    weight: int | None = None
    max_cpus: Quantity | None = None
    max_memory: Quantity | None = None
    max_per_user: int | None = None
    max_reservations: int | None = None


class JobBounds(Struct, frozen=True):
    """Rules for users other than root who may run jobs. The limits apply to the sum of a user's jobs, and separately to the sum of the
    user's reservations.
    """

    group: str
    max_cpus: Quantity | None = None
    """Maximum number of CPUs of all jobs of one user together. None means that only the node's CPUs limit them."""
    max_memory: Quantity | None = None
    """Maximum amount of memory (with huge pages) of all jobs of one user together. None means that only the node's memory limits them."""
    max_per_user: int = 10
    max_reservations: int = 2
    """Maximum number of reservations of one user that haven't ended. 0 means that only root may make reservations."""
    weight: int = DEFAULT_WEIGHT
    """Weight of a user. If several jobs could start early, the user with the fewest CPUs in relation to the weight is first."""
    shares: tuple[JobShare, ...] = ()
    """Shares of users and groups. For each user, only the first share that applies is used."""

    def apply_share(self, share: JobShare) -> "JobBounds":
        """Return the bounds of a user with this share."""
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
    """Interval of the periodic rescan, which complements the file watch. Name and default are kubelet's."""
    full_check_period_ms: int = 600_000
    """Period in which each cgroup and file is read again at least once, to find changes that the kernel doesn't report."""
    host_isolation: str = "none"
    """Isolation of exclusive CPUs from host processes: `partition`, or `none` as with kubelet."""
    host_core_class: str = ANY_CLASS
    """Core class for host processes and the kernel's unbound work, used with `host_isolation`. `any` means no restriction."""
    interrupt_isolation: str = "none"
    """Treatment of interrupts on exclusive CPUs. `affinity` moves the interrupts to other CPUs. `none` leaves the interrupts there, as
    with kubelet.
    """
    cpu_cfs_quota: bool = True
    cpu_cfs_quota_period_us: int = 100_000
    pod_pids_limit: int = 4096
    """Maximum number of processes and threads of a pod or job. The name is kubelet's, but kubelet's default is no limit. -1 or 0 means no
    limit.
    """
    swap_behavior: str = NO_SWAP
    """Swap behaviour of containers. Even `LimitedSwap` allows no swap, because kubelet gives no swap to pods from manifest files."""
    static_pod_path: str = "/etc/nodeagent/manifests"
    state_directory: str = "/var/lib/nodeagent"
    runtime_directory: str = "/run/nodeagent"
    cgroup_root: str | None = None
    """Directory of the common cgroup of all pods. None means the cgroup of the pods' systemd unit, which the launcher reports."""
    launcher_socket: str = "/run/nodeagent-pods/launcher.sock"
    log_directory: str = "/var/log/nodeagent/pods"
    """Directory for the output of containers on a host without a journal. Each container has one file."""
    metrics_bind_address: str = "127.0.0.1:9753"
    """Address of the metrics: `HOST:PORT`, `unix:PATH`, or empty for no metrics."""
    metrics_aliases: bool = True
    metrics_containers: bool = True
    """Whether each container with exclusive CPUs has separate series for interrupts, softirqs, throttling and pressure."""
    pod_resources_socket: str = ""
    """Path of the socket for kubelet's PodResources API. Empty means that the API isn't offered."""
    device_plugin_socket: str = ""
    """Path of the socket at which device plugins register. Empty means that device plugins aren't used."""
    nri_socket: str = ""
    """Path of the NRI socket of a container runtime whose containers the agent places. Empty means that the agent doesn't serve a
    runtime.
    """
    kubelet_pods_socket: str = "/var/lib/kubelet/pods-api/pods-api.sock"
    """Path of the socket of kubelet's pods API (1.37), or empty if the API isn't used. The API reports data about pods that the runtime
    doesn't report. A socket that is missing at kubelet's default path isn't reported as a problem.
    """
    check_allocatable: bool = True
    retry_refused: str = RETRY_NOTHING
    """Refused pods that get a new decision without a user's request. With `none`, there are none, as with kubelet. With `room`, these are
    the pods that lacked resources, once resources are released.
    """
    max_pods: int = 1_000
    pods_per_core: int = 0
    """Additional limit on the number of pods, as pods per CPU of the machine (kubelet's field). 0 means that there is no such limit."""
    system_reserved: Resources = Resources()
    kube_reserved: Resources = Resources()
    """kubelet's `kubeReserved`. If `reserved_system_cpus` is set, only `system_reserved` contains cpu, because kubelet rewrites both
    fields in this way.
    """
    eviction_memory_bytes: int | None = 100 * 2**20
    """Value of evictionHard memory.available as an amount (kubelet's default is 100Mi). None means that the threshold is a percentage or
    absent.
    """
    eviction_memory_percent: str | None = None
    """Value of evictionHard memory.available without its percent sign. None means that the threshold isn't a percentage. `node_capacity`
    converts the percentage to bytes.
    """
    state_recovery: str = "recover"
    """Action at the agent's start if the saved state is unusable. With `recover`, the state is recovered from running pods. With
    `strict`, the agent refuses to start, as kubelet does.
    """
    jobs: JobBounds | None = None
    """Rules for users who may run jobs. None means that only root may run jobs."""
    run_thresholds: tuple[tuple[str, int], ...] = ()
    """Largest rates that don't count as a disturbance, by kind of disturbance and in the unit of the kind's threshold. Other kinds have
    the default rate.
    """
    profiles: tuple[tuple[str, Profile], ...] = SHIPPED_PROFILES
    """Profiles of quiet settings, by name."""
    machine_wide_boost: bool = False
    """Whether a pod that requests cores without boost may switch boost off for all CPUs. This is needed on machines that can't switch
    boost for each CPU.
    """
    reported_fields: tuple[str, ...] = ()
    """Known fields of kubelet that are unused here. Each is logged once."""
    notes: tuple[str, ...] = ()
    """Warnings about allowed but questionable values. Each is logged on one line."""

    @property
    def retries_for_room(self) -> bool:
        """Whether pods that were refused for lack of resources get a new decision when resources are released."""
        return self.retry_refused == RETRY_FOR_ROOM

    @property
    def rescan_period_ms(self) -> int:
        """Return the longest time between two checks, even if events wake the agent in between."""
        return min(self.cpu_manager_reconcile_period_ms, self.file_check_frequency_ms)

    @property
    def checked_part(self) -> float:
        """Return the fraction of all cgroups and files, 0 to 1, that each periodic check reads again."""
        return min(1.0, self.rescan_period_ms / self.full_check_period_ms)

    def claimed_devices(self, container: Container) -> tuple[str, ...]:
        """Return the devices whose interrupts a container requests on its exclusive CPUs. The result is empty if the node doesn't move
        interrupts.
        """
        return () if self.interrupt_isolation == "none" else container.interrupts
