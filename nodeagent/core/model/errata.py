"""Errata: numbered errors of kubelet 1.36 and 1.37, each with kubelet's behaviour, nodeagent's behaviour and the public discussion.

`Placement.errata` selects whether the managers reproduce the errata. Code whose behaviour depends on an erratum asks
`Managers.reproduces(erratum)`. docs/reference/differences.md is generated from this module.
"""

import enum

from msgspec import Struct

from nodeagent.core.model.config import Errata


class Erratum(enum.IntEnum):
    """Number of each erratum. Numbers never change. The names describe kubelet's behaviour."""

    POD_ALLOCATED_AGAIN = 1
    POD_HINTS_FROM_FIRST_CONTAINER = 2
    MEMORY_REFUSES_SHARED_CONTAINER = 3
    FULL_CORES_CHECKED_BEFORE_OWN_SET = 4
    FULL_CORES_IGNORE_REUSE = 5
    EMPTY_DEFAULT_SET_REFUSED = 6
    COMBINATIONS_OVERWRITTEN = 7
    DISTRIBUTION_HANGS = 8
    AVERAGE_GROUP_SIZES = 9
    REUSE_OUTLIVES_POD = 10
    GAUGES_DRIFT = 11
    GROUP_RULE_BROKEN = 12
    SEVERAL_WRITES_PER_CHANGE = 13
    TOTALS_MUST_MATCH = 14
    DECIMAL_FORM_REFUSED = 15
    ABSURD_AMOUNTS = 16
    DISTANCES_BY_POSITION = 17
    SHARED_CONTAINERS_LINGER = 18
    HALF_CORES_HANDED_OUT = 19
    POD_ENTRY_LEAKS = 20
    ONLINE_CHANGE_REFUSED = 21
    FAILED_WRITE_IGNORED = 22
    NUMA_ID_LIMIT = 23
    INIT_SLICE_IN_SHARED_POOL = 24
    EVERY_COMBINATION_COMPARED = 25
    OVERLAPS_TAKEN_OVER = 26
    DEVICES_REFUSED_AT_A_START = 27
    REFUSED_PODS_HOLD_DEVICES = 28
    MISSING_DEVICES_LEFT_OUT = 29
    DEVICES_IN_RANDOM_ORDER = 30
    DEVICE_PLUGINS_WAITED_FOR = 31
    ZERO_DEVICES_ALIGNED = 32
    UNLISTED_DEVICES_WITHOUT_NODES = 33
    EXTENDED_RESOURCES_SUMMED_LAST = 34


class ErratumRow(Struct, frozen=True):
    """One erratum, as a row of the table in docs/reference/differences.md."""

    erratum: Erratum
    kubelet: str
    nodeagent: str
    issues: tuple[int, ...] = ()
    """Numbers of the issues about the erratum, in kubernetes/kubernetes."""
    mended_by: int | None = None
    """Pull request in kubernetes/kubernetes that fixes the erratum in a later kubelet. None means that no such pull request is known."""
    always_fixed: bool = False
    """Whether nodeagent never reproduces the erratum. It doesn't if kubelet hangs or panics, or if the erratum concerns the daemon instead
    of its decisions.
    """

    @property
    def links(self) -> tuple[str, ...]:
        return tuple(f"https://github.com/kubernetes/kubernetes/issues/{number}" for number in self.issues)


ERRATA: tuple[ErratumRow, ...] = (
    ErratumRow(
        Erratum.POD_ALLOCATED_AGAIN,
        "allocates a pod with pod-level resources a second time when it is admitted again after a restart: its first CPUs and memory "
        "have no owner, or it is refused",
        "keeps an existing allocation in full",
        (140989,),
        mended_by=141041,
    ),
    ErratumRow(
        Erratum.POD_HINTS_FROM_FIRST_CONTAINER,
        "after a restart takes the hints of a pod with several containers from its first container's memory, or makes them unsatisfiable",
        "regenerates the hints from the pod's allocations",
    ),
    ErratumRow(
        Erratum.MEMORY_REFUSES_SHARED_CONTAINER,
        "lets the memory manager refuse, in container scope or under policy none, a container without guaranteed amounts of its own in a "
        "pod with pod-level resources",
        "runs it in the node's shared pool, without a memory block (KEP-5526)",
    ),
    ErratumRow(
        Erratum.FULL_CORES_CHECKED_BEFORE_OWN_SET,
        "checks full-pcpus-only before it checks whether the container already has its CPUs, so a restart can refuse a running container",
        "never refuses a container that already has its CPUs",
        (129078,),
    ),
    ErratumRow(
        Erratum.FULL_CORES_IGNORE_REUSE,
        "does not count CPUs reusable from init containers in the full-pcpus-only check",
        "counts them",
    ),
    ErratumRow(
        Erratum.EMPTY_DEFAULT_SET_REFUSED,
        "writes an empty default set if all CPUs are allocated under strict-cpu-reservation, and refuses this set at its next start",
        "accepts such a state as valid",
        (141196,),
    ),
    ErratumRow(
        Erratum.COMBINATIONS_OVERWRITTEN,
        "overwrites the chosen combination of nodes when it distributes CPUs over 5 or more NUMA nodes, and then takes CPUs of other nodes "
        "or fails with an accounting error",
        "uses the combination that it chose",
    ),
    ErratumRow(
        Erratum.DISTRIBUTION_HANGS,
        "can loop forever when it distributes whole cores",
        "skips such a set of nodes",
        (140730,),
        mended_by=140730,
        always_fixed=True,
    ),
    ErratumRow(
        Erratum.AVERAGE_GROUP_SIZES,
        "decides by average sizes whether cores and sockets are whole, so CPUs in use can be allocated again on asymmetric machines",
        "counts a core or socket as whole if all of its own CPUs are free, and takes only free CPUs",
    ),
    ErratumRow(
        Erratum.REUSE_OUTLIVES_POD,
        "keeps the reusable CPUs of init containers for a later pod with the same UID",
        "forgets them with the pod",
    ),
    ErratumRow(
        Erratum.GAUGES_DRIFT,
        "has wrong gauges after pods with init containers; the gauge of a NUMA node keeps its last value",
        "computes gauges from the state",
        (141262,),
    ),
    ErratumRow(
        Erratum.GROUP_RULE_BROKEN,
        "may give a one-node mask on a NUMA node that belongs to a group of nodes; its next start then refuses the state",
        "keeps the group rule: under none and best-effort extends the mask if that fits, otherwise refuses; under restricted and "
        "single-numa-node refuses",
        (113035, 113130),
    ),
    ErratumRow(
        Erratum.SEVERAL_WRITES_PER_CHANGE,
        "writes its files several times for one change, so a crash in between leaves a state that the next start refuses",
        "writes one file for each change, durably",
        (136604,),
        always_fixed=True,
    ),
    ErratumRow(
        Erratum.TOTALS_MUST_MATCH,
        "does not start if a node's memory differs by a byte after a reboot",
        "accepts capacity changes, and reports allocations that no longer fit",
        (131253,),
    ),
    ErratumRow(
        Erratum.DECIMAL_FORM_REFUSED,
        "refuses a memory amount such as 1.5Gi in a static pod",
        "accepts every amount that is a whole number of bytes",
    ),
    ErratumRow(
        Erratum.ABSURD_AMOUNTS,
        "panics on an unknown huge page size (never reproduced), or wraps amounts around to absurd sizes",
        "refuses with a clear message",
    ),
    ErratumRow(
        Erratum.DISTANCES_BY_POSITION,
        "panics on sparse NUMA ids with prefer-closest-numa-nodes",
        "looks up distances by node id",
        always_fixed=True,
    ),
    ErratumRow(
        Erratum.SHARED_CONTAINERS_LINGER,
        "lets shared containers stay on a CPU that was just given exclusively, until its next reconcile",
        "moves them away before it is given",
        (84300,),
        always_fixed=True,
    ),
    ErratumRow(
        Erratum.HALF_CORES_HANDED_OUT,
        "can allocate parts of cores under full-pcpus-only (in slices of a pod's CPU set, or if one thread of a core is reserved)",
        "allocates whole cores only: a request is admitted if and only if whole free cores have exactly that many CPUs",
    ),
    ErratumRow(
        Erratum.POD_ENTRY_LEAKS,
        "never releases a pod entry that has no containers",
        "releases it with the pod (KEP-5526)",
    ),
    ErratumRow(
        Erratum.ONLINE_CHANGE_REFUSED,
        "refuses to start when the online CPUs have changed",
        "accepts the change, and shows containers that lost CPUs as degraded",
        (124066,),
    ),
    ErratumRow(
        Erratum.FAILED_WRITE_IGNORED,
        "logs a failed write of its state, and continues",
        "refuses the admission; reuses released resources only after a write has succeeded",
        always_fixed=True,
    ),
    ErratumRow(
        Erratum.NUMA_ID_LIMIT,
        "panics on NUMA ids over 63",
        "accepts any id",
        always_fixed=True,
    ),
    ErratumRow(
        Erratum.INIT_SLICE_IN_SHARED_POOL,
        "may give an init container of a pod with pod-level resources exclusive CPUs out of the pod's shared pool, in which a sidecar "
        "runs beside it",
        "takes such CPUs from outside of the pool (KEP-5526: an exclusive slice belongs to a single container), and refuses the pod if "
        "there are too few",
    ),
    ErratumRow(
        Erratum.EVERY_COMBINATION_COMPARED,
        "compares every combination of NUMA nodes, for minutes or forever if there are many: with distribute-cpus-across-numa, and "
        "for hints once max-allowable-numa-nodes allows more than 8",
        "stops after 5,000 combinations of more than 8 nodes, and after 20,000 steps of a search for hints: it may then choose other "
        "nodes, or refuse a pod that kubelet would align in the end",
        always_fixed=True,
    ),
    ErratumRow(
        Erratum.OVERLAPS_TAKEN_OVER,
        "starts with a state in which two pods hold the same CPUs, or a pod's set is in the shared pool too",
        "refuses such a state, which the agent then rebuilds pod by pod",
    ),
    ErratumRow(
        Erratum.DEVICES_REFUSED_AT_A_START,
        "refuses pods that have devices after a restart, and ends them, while their device plugin hasn't registered again, or for an init "
        "container that has ended",
        "lets pods keep their devices with or without a plugin, and decides again on pods that were refused for lack of devices when their "
        "plugin has devices",
        (118559, 124345, 125579, 133382, 138446),
    ),
    ErratumRow(
        Erratum.REFUSED_PODS_HOLD_DEVICES,
        "counts devices of refused and ended pods as allocated until its next decision on a pod, or longer after a plugin's failed answer; "
        "its checkpoint lists these devices until the next write",
        "releases devices with their pod; a refused pod holds nothing",
        (137317,),
    ),
    ErratumRow(
        Erratum.MISSING_DEVICES_LEFT_OUT,
        "admits a static pod without the devices that its node doesn't have",
        "refuses it",
    ),
    ErratumRow(
        Erratum.DEVICES_IN_RANDOM_ORDER,
        "chooses among equal devices in the random order of a Go map",
        "chooses in the order of their ids: the same input has the same outcome",
        always_fixed=True,
    ),
    ErratumRow(
        Erratum.DEVICE_PLUGINS_WAITED_FOR,
        "waits without limit for a device plugin's answer at an allocation, and admits no other pod meanwhile",
        "waits for at most 5 seconds; then the pod is refused, and the plugin counts as ended until it registers again",
        (117435, 129249),
        always_fixed=True,
    ),
    ErratumRow(
        Erratum.ZERO_DEVICES_ALIGNED,
        "aligns a container that requests 0 devices with a single NUMA node, and refuses it without a healthy device",
        "treats a request for 0 devices as no request",
    ),
    ErratumRow(
        Erratum.UNLISTED_DEVICES_WITHOUT_NODES,
        "forgets the NUMA nodes of a device that the plugin no longer lists, and so refuses the device's pod at a readmission under "
        "restricted and single-numa-node",
        "uses the NUMA nodes that the device had when it was allocated",
    ),
    ErratumRow(
        Erratum.EXTENDED_RESOURCES_SUMMED_LAST,
        "calls its managers before it sums up extended resources, so a pod that requests too many devices is refused with "
        "UnexpectedAdmissionError or TopologyAffinityError",
        "sums up first, and refuses the pod with OutOf and the resource's name, as for CPU and memory",
    ),
)


class VersionRow(Struct, frozen=True):
    """One known difference between the resource managers of kubelet 1.37 and 1.36."""

    kubelet: str
    nodeagent: str
    changes: tuple[int, ...]
    """Pull requests in kubernetes/kubernetes that made the change."""


SINCE_1_37: tuple[VersionRow, ...] = (
    VersionRow(
        "has the gate PodLevelResourceManagers (KEP-5526) as beta, and off by default, as in 1.36",
        "the same default in every profile; AllAlpha turns the gate on as in 1.36, and AllBeta does not",
        (140573, 141209),
    ),
    VersionRow(
        "reads cpu_manager_state of version 4 and memory_manager_state of version 3, which contain the older versions",
        "reads both, except under kubelet-1.36, and writes those of 1.36, which kubelet 1.37 reads as well",
        (139626,),
    ),
    VersionRow(
        "with the gate DRANodeAllocatableResources (KEP-5517, alpha) adds the CPUs of claims to the limits of pods and containers; slices "
        "map devices to CPUs in `nodeAllocatableResources`, which was `nodeAllocatableResourceMappings` in 1.36",
        "prints the mapping of CPUs with the gate; limits stay those of the manifest, which must request as many CPUs as the claims have",
        (136725, 140009),
    ),
    VersionRow(
        "has a library that gives drivers the attribute `resource.kubernetes.io/numaNode` (KEP-6072), as a list with the gate "
        "DRAListTypeAttributes (KEP-5491)",
        "has the attribute, and with the gate the list of cards, by the same rule; claims match a list if they have a value in common",
        (139929,),
    ),
)
"""Known differences between kubelet 1.37 and 1.36. In everything else, nodeagent follows 1.36."""


class ProposalRow(Struct, frozen=True):
    """One Kubernetes enhancement proposal (KEP) whose settings exist in nodeagent, but in no released kubelet."""

    proposal: str
    """Names of the settings, with the KEP and its open pull requests."""
    nodeagent: str
    unknown: str
    """Questions that the proposal leaves open, and differences between nodeagent and the proposal."""


PROPOSALS: tuple[ProposalRow, ...] = (
    ProposalRow(
        "`numa-allocation-strategy`, `numa-score-weights` (KEP-6007, "
        "[enhancements 6332](https://github.com/kubernetes/enhancements/pull/6332), "
        "[142226](https://github.com/kubernetes/kubernetes/pull/142226))",
        "chooses between equally good sets of NUMA nodes as the draft of September 2026 does, in every profile: values, scores, weights, "
        "and the gate TopologyManagerPolicyAlphaOptions",
        "Whether huge pages have a score of their own: here they have. The score of a device near several nodes: here it counts for sets "
        "with all of them. Sets that aren't preferred: the draft scores the combination of hints, so their order can decide; here the "
        "set itself is scored. With more than 12 NUMA nodes only single nodes are compared here, except under single-numa-node. "
        "The draft's new counter isn't here.",
    ),
    ProposalRow(
        "`prefer-most-allocated-numa-node` (KEP-6007 until its rewriting, "
        "[138321](https://github.com/kubernetes/kubernetes/pull/138321), closed)",
        "chooses by the rules of the proposal's first text, in every profile; it and `numa-allocation-strategy` exclude each other",
        "The present draft has replaced this option. For new configurations, use the options in the row above.",
    ),
    ProposalRow(
        "`systemPartition` (KEP-5894)",
        "accepts the field, which has no effect, and logs this once",
        "The effect is open, because the draft may change. nodeagent has `hostIsolation` for the same purpose.",
    ),
)
"""Settings from enhancement proposals that no released kubelet has. Other pages link to this table instead of repeating it."""


class AskedRow(Struct, frozen=True):
    """A behaviour that users have requested from kubelet, and the setting of nodeagent that provides it."""

    kubelet: str
    nodeagent: str
    setting: str
    issue: int
    """Number of the issue that contains the request, in kubernetes/kubernetes."""


ASKED_OF_KUBELET: tuple[AskedRow, ...] = (
    AskedRow(
        "packs the CPUs of a container on one NUMA node although its memory is on two",
        "allocates both on the same nodes if any allocation allows that",
        "sameNumaNodes",
        138523,
    ),
    AskedRow(
        "allocates huge pages on as few NUMA nodes as possible, although the CPUs of the container are on several",
        "spreads them over the nodes of the CPUs, in proportion to the CPUs",
        "spreadHugePages",
        119851,
    ),
)
"""Behaviours that users have requested from kubelet, and that only nodeagent provides."""


def list_reproduced(errata: Errata) -> frozenset[Erratum]:
    """Return the errata that the managers reproduce in this mode. All known errata of kubelet 1.36 are also in 1.37."""
    if errata is Errata.FIXED:
        return frozenset()
    return frozenset(entry.erratum for entry in ERRATA if not entry.always_fixed)
