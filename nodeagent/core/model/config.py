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
"""A gate that is on requires the other one to be on; otherwise kubelet does not start."""

GATES_OF_A_STAGE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        stage: tuple(name for name, is_on in DEFAULT_GATES.items() if is_on is on_by_default)
        for stage, on_by_default in (("AllAlpha", False), ("AllBeta", True))
    }
)
"""Kubelet's names for all gates of a stage that aren't set individually. Of ours, only alpha gates are off by default."""


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
    """Whose behaviour to show where kubelet 1.36 is wrong."""

    FIXED = "fixed"
    KUBELET_1_36 = "kubelet-1.36"


class ReservedMemory(Struct, frozen=True):
    """One entry of `reservedMemory`."""

    numa_node: int
    limits: Resources


class PluginCode(Protocol):
    """The code of a CPU plugin, as it was loaded (edge/cpu_plugins.py)."""

    @property
    def points(self) -> frozenset[str]:
        """The points that it implements, by their names (core/cpu/points.py)."""

    @property
    def held_off(self) -> str:
        """Why it is not asked any more. Empty: it is."""

    def begin_turn(self, alive: Callable[[], None]) -> None:
        """Let it have the time for a turn, from now on; `alive` is called after each of its answers."""

    def ask(self, point: str, *question: object) -> object:
        """Return its answer, unjudged.

        Raises:
            PluginFailedError: there is none, there are two, or it comes too late.
        """


class CpuPlugin(Struct, frozen=True):
    """One entry of `cpuManagerPlugins`."""

    name: str
    options: tuple[tuple[str, str], ...] = ()
    """By name, sorted."""
    code: PluginCode | None = None
    """None: not loaded. Only decisions need it."""


class Placement(Struct, frozen=True):
    """Everything that decides where pods go. Texts are as configured; the managers judge them (and word the refusals)."""

    cpu_manager_policy: str = "none"
    cpu_manager_policy_options: tuple[tuple[str, str], ...] = ()
    reserved_system_cpus: CpuSet = CpuSet()
    """Empty: reserve by amount."""
    reserved_cpu_milli: int | None = None
    """systemReserved.cpu + kubeReserved.cpu; None: neither names cpu. Ignored if `reserved_system_cpus` is given."""
    topology_manager_policy: str = "none"
    topology_manager_scope: str = "container"
    topology_manager_policy_options: tuple[tuple[str, str], ...] = ()
    memory_manager_policy: str = "None"
    reserved_memory: tuple[ReservedMemory, ...] = ()
    memory_reservation: Resources = Resources()
    """The node's reservation per memory resource: systemReserved + kubeReserved + hard eviction threshold."""
    isolated_cpus: str = "ignore"
    """`prefer` CPUs isolated at boot for exclusive use, or use `only` these; `ignore`: same as kubelet."""
    exclusive_core_class: str = ANY_CLASS
    """The class of cores that a pod's exclusive CPUs are of, if that is possible and it doesn't say otherwise; `any`: same as kubelet."""
    shared_core_class: str = ANY_CLASS
    """The class of cores that containers without exclusive CPUs run on while the shared pool has any; `any`: same as kubelet."""
    prefer_cpus_numa_node: bool = False
    """Where hints of devices conflict with those of CPUs and memory, a single NUMA node that these prefer wins; off: same as kubelet."""
    resize_below_admitted_cpus: bool = False
    """A resize may take away exclusive CPUs that a container was admitted with; off: as KEP-5554 has it."""
    feature_gates: tuple[tuple[str, bool], ...] = ()
    """Only the configured ones; read them with `gate()`."""
    errata: Errata = Errata.FIXED
    cpu_plugins: tuple[CpuPlugin, ...] = ()
    """Asked in this order; none: same as kubelet."""
    devices: "tuple[DeviceSelection, ...]" = ()
    """What pods may ask for by number, to have it alone; a device is of the first of these that selects it."""

    def gate(self, name: str) -> bool:
        return dict(self.feature_gates).get(name, DEFAULT_GATES[name])


class JobBounds(Struct, frozen=True):
    """Who besides root may run jobs, and what all jobs of one such user may hold together."""

    group: str
    max_cpus: Quantity | None = None
    """None: what the node has."""
    max_memory: Quantity | None = None
    """With huge pages. None: what the node has."""
    max_per_user: int = 10


class Config(Struct, frozen=True):
    placement: Placement = field(default_factory=Placement)
    cpu_manager_reconcile_period_ms: int = 10_000
    file_check_frequency_ms: int = 20_000
    """Interval of the rescan that backs up the file watch (kubelet's name and default)."""
    host_isolation: str = "none"
    """Whether exclusive CPUs are kept from the host's processes, too: `partition`, or `none`, as with kubelet."""
    host_core_class: str = ANY_CLASS
    """The class of cores that the host's processes and the kernel's unbound work run on, with `host_isolation`; `any`: on any."""
    interrupt_isolation: str = "none"
    """Whether interrupts are moved off exclusive CPUs: by their `affinity`, or `none`, as with kubelet."""
    cpu_cfs_quota: bool = True
    cpu_cfs_quota_period_us: int = 100_000
    swap_behavior: str = NO_SWAP
    """Whether containers may use swap. `LimitedSwap` allows none either, as kubelet has it for the pods of manifest files."""
    static_pod_path: str = "/etc/nodeagent/manifests"
    state_directory: str = "/var/lib/nodeagent"
    runtime_directory: str = "/run/nodeagent"
    cgroup_root: str | None = None
    """Directory of the cgroup that holds the pods; None: the cgroup of the pods' unit, as reported by its launcher."""
    launcher_socket: str = "/run/nodeagent-pods/launcher.sock"
    log_directory: str = "/var/log/nodeagent/pods"
    """Where container output goes, one file per container, on a host without a journal."""
    metrics_bind_address: str = "127.0.0.1:9753"
    """`HOST:PORT`, `unix:PATH`, or empty for none."""
    metrics_aliases: bool = True
    pod_resources_socket: str = ""
    """Where kubelet's PodResources API is served: a path, or empty for nowhere."""
    device_plugin_socket: str = ""
    """Where device plugins register as at a kubelet: a path, or empty for nowhere."""
    nri_socket: str = ""
    """Of the container runtime whose containers the agent places: a path, or empty for none."""
    kubelet_pods_socket: str = "/var/lib/kubelet/pods-api/pods-api.sock"
    """Of kubelet's pods API (1.37), which says of these containers' pods what the runtime isn't told: a path, or empty to ask nobody. At
    kubelet's own place nothing is missing where there is none.
    """
    check_allocatable: bool = True
    max_pods: int = 1_000
    pods_per_core: int = 0
    """An additional limit on the number of pods, per CPU of the machine; 0: none (kubelet's field)."""
    system_reserved: Resources = Resources()
    kube_reserved: Resources = Resources()
    """With `reserved_system_cpus`, cpu is in `system_reserved` only, because kubelet rewrites the two."""
    eviction_memory_bytes: int | None = 100 * 2**20
    """evictionHard memory.available as an amount (kubelet's default 100Mi); None: given as a percentage, or absent."""
    eviction_memory_percent: str | None = None
    """evictionHard memory.available without its percent sign, if given that way: `node_capacity` converts it to bytes."""
    state_recovery: str = "recover"
    """What a start does with a state that it cannot use as it is: `recover` it from what runs, or refuse (`strict`), like kubelet."""
    jobs: JobBounds | None = None
    """None: only root may run jobs."""
    reported_fields: tuple[str, ...] = ()
    """kubelet fields that are known but unused: logged once."""
    notes: tuple[str, ...] = ()
    """What is allowed but deserves a warning: one log line each."""

    @property
    def rescan_period_ms(self) -> int:
        """Maximum time between two complete checks, even if something else has woken the agent since."""
        return min(self.cpu_manager_reconcile_period_ms, self.file_check_frequency_ms)

    def claimed_devices(self, container: Container) -> tuple[str, ...]:
        """Return the devices whose interrupts a container wants on its exclusive CPUs, and gets where the node moves interrupts."""
        return () if self.interrupt_isolation == "none" else container.interrupts
