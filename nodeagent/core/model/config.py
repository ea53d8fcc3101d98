"""Configuration as values: what decides placement, and what else the agent needs.

Field names follow the KubeletConfiguration (in snake case). Knows no YAML (formats/config/config_yaml.py) and makes no decision.
"""

import enum
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Container, Resources
from nodeagent.core.model.quantity import Quantity
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
    }
)
"""The feature gates that change the agent's behaviour, with kubelet 1.36's defaults."""

DEPENDENT_GATES: Mapping[str, str] = MappingProxyType({"PodLevelResourceManagers": "PodLevelResources"})
"""Gates that need another gate. kubelet doesn't start with the first on and the second off."""

GATES_OF_A_STAGE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        stage: tuple(name for name, is_on in DEFAULT_GATES.items() if is_on is on_by_default)
        for stage, on_by_default in (("AllAlpha", False), ("AllBeta", True))
    }
)
"""kubelet's names for all gates of a stage that aren't set individually. Of the gates here, only alpha ones are off by default."""


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
    """Behaviour to reproduce where kubelet 1.36 has bugs."""

    FIXED = "fixed"
    KUBELET_1_36 = "kubelet-1.36"


class ReservedMemory(Struct, frozen=True):
    """One entry of `reservedMemory`."""

    numa_node: int
    limits: Resources


class PluginCode(Protocol):
    """Code of a CPU plugin, as loaded by edge/plugins/cpu_plugins.py."""

    @property
    def points(self) -> frozenset[str]:
        """Return the names of the extension points that it implements (core/resources/cpu/points.py)."""

    @property
    def held_off(self) -> str:
        """Return why the plugin is no longer asked, or an empty text."""

    def begin_turn(self, alive: Callable[[], None]) -> None:
        """Give the plugin its time for a turn. `alive` is called after each of its answers."""

    def ask(self, point: str, *question: object) -> object:
        """Return the plugin's answer, unchecked.

        Raises:
            PluginFailedError: the plugin gave no answer, two different answers, or a late one.
        """


class CpuPlugin(Struct, frozen=True):
    """One entry of `cpuManagerPlugins`."""

    name: str
    options: tuple[tuple[str, str], ...] = ()
    """Options by name, sorted."""
    code: PluginCode | None = None
    """Loaded code. None means that it isn't loaded, because only decisions need it."""


class Placement(Struct, frozen=True):
    """Configuration of all placement decisions. Texts are as configured; the managers judge them and word the refusals."""

    cpu_manager_policy: str = "none"
    cpu_manager_policy_options: tuple[tuple[str, str], ...] = ()
    reserved_system_cpus: CpuSet = CpuSet()
    """Reserved CPUs. Empty means that CPUs are reserved by amount."""
    reserved_cpu_milli: int | None = None
    """Sum of systemReserved.cpu and kubeReserved.cpu. None if neither names cpu. Ignored with `reserved_system_cpus`."""
    topology_manager_policy: str = "none"
    topology_manager_scope: str = "container"
    topology_manager_policy_options: tuple[tuple[str, str], ...] = ()
    memory_manager_policy: str = "None"
    reserved_memory: tuple[ReservedMemory, ...] = ()
    memory_reservation: Resources = Resources()
    """Reservation per memory resource: systemReserved + kubeReserved + hard eviction threshold."""
    isolated_cpus: str = "ignore"
    """How to allocate CPUs isolated at boot: `prefer` them for exclusive use, use `only` these, or `ignore` the isolation as kubelet
    does.
    """
    exclusive_core_class: str = ANY_CLASS
    """Class of cores that exclusive CPUs are taken from, if possible and unless the pod names another; `any` as in kubelet."""
    shared_core_class: str = ANY_CLASS
    """Class of cores for containers without exclusive CPUs, while the shared pool has any of them; `any` as in kubelet."""
    prefer_cpus_numa_node: bool = False
    """Whether a single NUMA node preferred by CPUs and memory wins over conflicting hints of devices. Off as in kubelet."""
    resize_below_admitted_cpus: bool = False
    """Whether a resize may take exclusive CPUs that a container was admitted with. Off as in KEP-5554."""
    feature_gates: tuple[tuple[str, bool], ...] = ()
    """Configured gates only. Use `gate()` to read a gate."""
    errata: Errata = Errata.FIXED
    cpu_plugins: tuple[CpuPlugin, ...] = ()
    """Plugins in the order in which they are asked. Empty as in kubelet."""
    devices: "tuple[DeviceSelection, ...]" = ()
    """Resources of devices that pods can ask for by number. A device belongs to the first entry that selects it."""

    @property
    def has_static_cpus(self) -> bool:
        """Whether containers can get exclusive CPUs."""
        return self.cpu_manager_policy == "static"

    @property
    def decides_by_pod(self) -> bool:
        """Whether the topology manager decides about a pod as a whole."""
        return self.topology_manager_scope == "pod" and self.topology_manager_policy != "none"

    def gate(self, name: str) -> bool:
        return dict(self.feature_gates).get(name, DEFAULT_GATES[name])


class JobBounds(Struct, frozen=True):
    """Users besides root who may run jobs, and the limits of all jobs of one user together."""

    group: str
    max_cpus: Quantity | None = None
    """None means no limit but the node's."""
    max_memory: Quantity | None = None
    """Limit that includes huge pages. None means no limit but the node's."""
    max_per_user: int = 10


RETRY_NOTHING = "none"
RETRY_FOR_ROOM = "room"
RETRY_REFUSED = (RETRY_NOTHING, RETRY_FOR_ROOM)


class Config(Struct, frozen=True):
    placement: Placement = field(default_factory=Placement)
    cpu_manager_reconcile_period_ms: int = 10_000
    file_check_frequency_ms: int = 20_000
    """Interval of the rescan in addition to the file watch (kubelet's name and default)."""
    host_isolation: str = "none"
    """Whether host processes are kept off exclusive CPUs: `partition`, or `none` as with kubelet."""
    host_core_class: str = ANY_CLASS
    """Class of cores for host processes and the kernel's unbound work, with `host_isolation`; `any` means no restriction."""
    interrupt_isolation: str = "none"
    """Whether interrupts are moved off exclusive CPUs, by their `affinity`, or not (`none`, as with kubelet)."""
    cpu_cfs_quota: bool = True
    cpu_cfs_quota_period_us: int = 100_000
    swap_behavior: str = NO_SWAP
    """Whether containers may use swap. `LimitedSwap` allows none either, as kubelet has it for the pods of manifest files."""
    static_pod_path: str = "/etc/nodeagent/manifests"
    state_directory: str = "/var/lib/nodeagent"
    runtime_directory: str = "/run/nodeagent"
    cgroup_root: str | None = None
    """Directory of the cgroup that holds the pods. None means the cgroup of the pods' unit, as reported by its launcher."""
    launcher_socket: str = "/run/nodeagent-pods/launcher.sock"
    log_directory: str = "/var/log/nodeagent/pods"
    """Directory for container output, one file per container, on a host without a journal."""
    metrics_bind_address: str = "127.0.0.1:9753"
    """Address of the metrics: `HOST:PORT`, `unix:PATH`, or empty for none."""
    metrics_aliases: bool = True
    pod_resources_socket: str = ""
    """Path of the socket for kubelet's PodResources API, or empty for none."""
    device_plugin_socket: str = ""
    """Path of the socket where device plugins register, or empty for none."""
    nri_socket: str = ""
    """Path of the socket of a container runtime whose containers the agent places, or empty for none."""
    kubelet_pods_socket: str = "/var/lib/kubelet/pods-api/pods-api.sock"
    """Path of the socket of kubelet's pods API (1.37), or empty to ask nobody. It tells what the runtime doesn't know of pods. An absent
    socket at kubelet's default path is no problem.
    """
    check_allocatable: bool = True
    retry_refused: str = RETRY_NOTHING
    """Which refused pods are decided again without a request: none, as by kubelet, or those refused for room once room is made."""
    max_pods: int = 1_000
    pods_per_core: int = 0
    """Additional limit on the number of pods, per CPU of the machine. 0 means none (kubelet's field)."""
    system_reserved: Resources = Resources()
    kube_reserved: Resources = Resources()
    """With `reserved_system_cpus`, cpu is only in `system_reserved`, because kubelet rewrites the two."""
    eviction_memory_bytes: int | None = 100 * 2**20
    """evictionHard memory.available as an amount (kubelet's default is 100Mi). None if it is a percentage, or absent."""
    eviction_memory_percent: str | None = None
    """evictionHard memory.available without its percent sign, if it is a percentage. `node_capacity` converts it to bytes."""
    state_recovery: str = "recover"
    """What a start does with a state that it can't use: `recover` it from what runs, or refuse (`strict`), as kubelet does."""
    jobs: JobBounds | None = None
    """None means that only root may run jobs."""
    reported_fields: tuple[str, ...] = ()
    """kubelet fields that are known but unused. They are logged once."""
    notes: tuple[str, ...] = ()
    """Allowed values that deserve a warning, one log line each."""

    @property
    def retries_for_room(self) -> bool:
        """Whether pods that were refused for room are decided again once there is room."""
        return self.retry_refused == RETRY_FOR_ROOM

    @property
    def rescan_period_ms(self) -> int:
        """Return the longest time between two complete checks, even if events wake the agent in between."""
        return min(self.cpu_manager_reconcile_period_ms, self.file_check_frequency_ms)

    def claimed_devices(self, container: Container) -> tuple[str, ...]:
        """Return the devices whose interrupts a container wants on its exclusive CPUs, if the node moves interrupts."""
        return () if self.interrupt_isolation == "none" else container.interrupts
