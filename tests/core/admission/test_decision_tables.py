"""What the CPU side of the core decides where the reference's scenarios seldom lead: value by value, each decision by itself."""

from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.core.admission import managers as core
from nodeagent.core.admission.affinity_score import preferred_of_two
from nodeagent.core.admission.managers import Admitted, Managers, Rejected, build
from nodeagent.core.admission.records import Records, start
from nodeagent.core.metrics.deltas import Series
from nodeagent.core.metrics.manager_metrics import (
    CPU_PER_NUMA,
    CPU_REQUESTS,
    MEMORY_REQUESTS,
    TOPOLOGY_REQUESTS,
    aligned,
    plus,
    set_gauge,
)
from nodeagent.core.model.config import Errata, Placement
from nodeagent.core.model.demand import PodDemand, WhyShared, demand_of
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.podmap import PodMap
from nodeagent.core.model.promises import NOTHING, Hint, Isolation, PodPromises, Promises
from nodeagent.core.model.records import Unreadable
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.model.topology import Cpu, NumaNode, Topology
from nodeagent.core.numa.hints import UNSATISFIABLE
from nodeagent.core.resources.cpu.holdings import (
    CpuBooks,
    CpuHoldings,
    CpuReuse,
    default_set,
    own_set_of,
    with_default_set,
)
from nodeagent.core.resources.cpu.options import OPTIONS
from nodeagent.core.resources.cpu.records import CpuRecord
from nodeagent.core.resources.cpu.resource import CpuResource
from nodeagent.core.resources.memory.holdings import Block, MemoryHoldings
from tests.support.builders import ALPHA, MACHINE_A, MACHINE_B, PLRM, admitted, machine, managers, pod
from tests.support.pods import app, exclusive, init, shared, sidecar

KUBELET, FIXED = Errata.KUBELET_1_36, Errata.FIXED


def given(node: Managers, free: str, count: int, near: int | None = None) -> str:
    """The CPUs that a container of this size gets where only these are free beside the reserved ones, or why it gets none."""
    hint = Hint(None if near is None else NumaSet(near), preferred=False)
    pods = PodMap().put("p", PodPromises(hints=(("a", hint),)))
    promises = with_default_set(replace(core.initial(node), pods=pods), CpuSet.parse(free) | node.reserved)
    decision = core.admit(node, promises, pod("p", app("a", str(count))))
    return str(own_set_of(decision.promises, "p", "a")) if isinstance(decision, Admitted) else decision.message


def refusal(node: Managers, one: Pod) -> str:
    decision = core.admit(node, core.initial(node), one)
    assert isinstance(decision, Rejected)
    return decision.message


def demanded(node: Managers, one: Pod) -> PodDemand:
    return demand_of(node.rules, one)


# Picking

NESTED = machine(nodes=4, cores=2, sockets=2)
"""16 CPUs in 2 sockets of 2 nodes of 2 cores; siblings are c and c + 8, socket 0 has 0-3 and 8-11."""


@pytest.mark.parametrize("errata", [KUBELET, FIXED])
def test_a_whole_socket_is_one_of_which_nothing_is_in_use(errata: Errata) -> None:
    assert given(managers(NESTED, reserved="0", errata=errata), "1-15", 8) == "4-7,12-15"


THREES = machine(nodes=1, cores=6, cores_per_uncore=3)
CACHES = Topology.of(
    [Cpu(c, c, 0, c // 4, uncore) for c, uncore in enumerate((1, 1, 0, 0, 0, 0, 2, 2))],
    [NumaNode(0, 0), NumaNode(1, 0)],
)
"""One cache lies in both nodes: 2-5."""
ALIGNED = [
    (MACHINE_B, "0,2-15", 1, "0", "9", "one CPU, of the lowest core of its cache"),
    (MACHINE_B, "0,2-15", 2, "0,8", "0,8", "a core"),
    (MACHINE_B, "0,2-15", 5, "0,2-3,10-11", "0,2,8-10", "a cache, and one CPU of the lowest core of another"),
    (THREES, "0,3-5,9-11", 3, "3-4,9", "0,3,9", "a core and a half of a larger cache"),
    (CACHES, "0-1,4-7", 1, "0", "0", "a cache that lies in another node, too, comes with the CPUs that are here"),
]


@pytest.mark.parametrize(
    ("topology", "free", "count", "aligned_set", "packed_set"), [c[:5] for c in ALIGNED], ids=[c[5] for c in ALIGNED]
)
def test_parts_of_caches(topology: Topology, free: str, count: int, aligned_set: str, packed_set: str) -> None:
    reserved = "2" if topology is CACHES else "1"
    by_cache = managers(topology, reserved=reserved, options=("prefer-align-cpus-by-uncorecache",))
    assert given(by_cache, free, count) == aligned_set
    assert given(managers(topology, reserved=reserved), free, count) == packed_set


# Distribution

SPREAD = ("distribute-cpus-across-numa",)


@pytest.mark.parametrize(
    ("node", "free", "count", "expected"),
    [
        # No node has a whole group: packed after all.
        (managers(reserved="1", options=("full-pcpus-only", *SPREAD), errata=KUBELET), "0,4", 2, "0,4"),
        # Two left over, both from the node that has most.
        (managers(machine(nodes=3), reserved="16", options=SPREAD), "0-15", 11, "0-2,4-6,8-10,12-13"),
    ],
    ids=["no groups", "three nodes"],
)
def test_distribution_where_nodes_are_uneven(node: Managers, free: str, count: int, expected: str) -> None:
    assert given(node, free, count) == expected


@pytest.mark.parametrize("errata", [KUBELET, FIXED])
def test_a_combination_of_three_is_three_nodes_in_the_reference_too(errata: Errata) -> None:
    """Its arrays have room for four then (Erratum.COMBINATIONS_OVERWRITTEN)."""
    five = machine(nodes=5, cores=2, sockets=1)
    assert given(managers(five, reserved="8", options=SPREAD, errata=errata), "0-7,10-17", 9) == "0-5,10,12,14"


@pytest.mark.parametrize(
    ("free", "count", "expected"),
    [("0-23", 9, "0-8"), ("0-23", 24, "0-23"), ("0,2,4-23", 4, "4-7"), ("0,2,4,6,8-23", 3, "8-10")],
)
def test_distribution_on_more_nodes_than_kubelet_takes(free: str, count: int, expected: str) -> None:
    """Twelve nodes of two CPUs, and one that is reserved: as few as can be, and the first of equals."""
    node = managers(machine(nodes=13, cores=2, threads=1, sockets=1), reserved="24-25", options=SPREAD)
    assert given(node, free, count) == expected


@pytest.mark.parametrize(
    ("nodes", "cores", "free", "count", "expected"),
    [
        (8, 4, "0-1,4,8,12-13,16,20-23", 10, "0-1,4,8,12-13,16,20-22"),  # without rounding 13 stays free
        (6, 8, "0-1,8-11,16-21,24-26,32-33", 14, "0-1,8-9,16-20,24-26,32-33"),  # rounded down, 10-11 would be taken
    ],
)
def test_deviations_are_compared_in_thousandths_and_halves_are_rounded_up(
    nodes: int, cores: int, free: str, count: int, expected: str
) -> None:
    one_socket = machine(nodes=nodes, cores=cores, threads=1, sockets=1)
    assert given(managers(one_socket, reserved=str(nodes * cores - 1), options=SPREAD), free, count) == expected


# CPU hints


def listed(node: Managers, promises: Promises, one: Pod, name: str | None = None) -> Any:
    """The CPU manager's hints for a container, or for the pod as a whole."""
    demand, cpu = demanded(node, one), node.providers.resources[0]
    containers = {c.name: c for c in demand.containers}
    ((_, hints),) = (
        cpu.pod_hints(promises, demand) if name is None else cpu.container_hints(promises, demand, containers[name])
    )
    return hints


@pytest.mark.parametrize("errata", [KUBELET, FIXED])
def test_hints_of_a_container_that_has_its_cpus_lead_to_them(errata: Errata) -> None:
    node = managers(errata=errata, topology_manager_policy="best-effort")
    one = pod("p1", app("a", "2"))
    promises = admitted(node, one)
    assert str(own_set_of(promises, "p1", "a")) == "1,9"
    assert listed(node, promises, one, "a") == ((1, True), (3, False))
    assert listed(node, promises, pod("p2", app("a", "2")), "a") == ((1, True), (2, True), (3, False))
    assert listed(node, promises, pod("p1", app("a", "3")), "a") == UNSATISFIABLE


def test_hints_of_a_pod_contain_what_it_has() -> None:
    node = managers(topology_manager_policy="best-effort", topology_manager_scope="pod")
    promises = admitted(node, pod("p1", app("a", "2")))
    both = pod("p1", app("a", "2"), app("b", "2"))
    assert listed(node, promises, both) == ((1, True), (3, False))
    assert listed(node, promises, pod("p2", app("a", "2"), app("b", "2"))) == ((1, True), (2, True), (3, False))
    reusing = promises.having(replace(promises.of(CpuBooks), reuse=CpuReuse("p1", CpuSet.of(4))))
    assert listed(node, reusing, both) == ((3, False),)


def test_sockets_are_counted_in_whole_nodes() -> None:
    """5 nodes on 3 sockets are 1 per socket: who needs 3 nodes, needs 3 sockets."""
    uneven = machine(nodes=5, cores=2, sockets=3)
    node = managers(
        uneven, reserved="0", options=("align-by-socket",), gates=ALPHA, topology_manager_policy="best-effort"
    )
    found = listed(node, core.initial(node), pod("p", app("a", "10")), "a")
    preferred = sorted(mask for mask, is_preferred in found if is_preferred)
    socket = {0: 0, 1: 0, 2: 1, 3: 1, 4: 2}
    wanted = [
        mask
        for mask in range(1, 32)
        if len(NumaSet(mask)) >= 3 and (len(NumaSet(mask)) == 3 or len({socket[n] for n in NumaSet(mask)}) == 3)
    ]
    assert preferred == wanted


def test_only_whole_cores_count_for_those_who_get_whole_cores() -> None:
    node = managers(reserved="0,1", options=("full-pcpus-only",), topology_manager_policy="best-effort")
    found = listed(node, core.initial(node), pod("p", app("a", "6")), "a")
    assert found == ((2, True), (3, False))
    any_cpus = managers(reserved="0,1", topology_manager_policy="best-effort")
    found = listed(any_cpus, core.initial(any_cpus), pod("p", app("a", "6")), "a")
    assert found == ((1, True), (2, True), (3, False))


@pytest.mark.parametrize(("count", "preferred"), [(1, [1, 2]), (3, [2]), (6, [2]), (7, []), (8, [3])])
def test_the_fewest_nodes_are_the_largest_ones(count: int, preferred: list[int]) -> None:
    """Three CPUs and seven, of which one of each is reserved: those count."""
    cpus = [Cpu(c, c, 0, 0 if c < 3 else 1) for c in range(10)]
    topology = Topology.of(cpus, [NumaNode(0, 0), NumaNode(1, 0)])
    node = managers(topology, reserved="0,9", topology_manager_policy="best-effort")
    found = listed(node, core.initial(node), pod("p", app("a", str(count))), "a")
    assert [mask for mask, is_preferred in found if is_preferred] == preferred


# Choosing near the hint

UNEVEN = Topology.of(
    [Cpu(c, core, c // 4, c // 4) for c, core in enumerate((0, 0, 2, 2, 4, 4, 6, 7))],
    [NumaNode(n, 0, (), (10, 20)) for n in range(2)],
)
"""Node 0: cores 0-1 and 2-3; node 1: core 4-5 and two cores of one CPU."""
ODD = Topology.of(
    [Cpu(c, core, c // 3, c // 3) for c, core in enumerate((0, 0, 2, 3, 3, 5))],
    [NumaNode(n, 0, (), (10, 20)) for n in range(2)],
)
"""Each node: a core of two CPUs and one of one."""


@pytest.mark.parametrize(
    ("topology", "available", "count", "expected"),
    [
        (UNEVEN, "0-7", 3, "0-1,6"),
        (UNEVEN, "0-7", 4, "0-3"),
        (ODD, "0-4", 4, "0-1,3-4"),
    ],
    ids=["an odd CPU from elsewhere", "enough there", "what is left must add up elsewhere"],
)
def test_whole_cores_near_the_hint(topology: Topology, available: str, count: int, expected: str) -> None:
    node = managers(topology, reserved="7" if topology is UNEVEN else "5", options=("full-pcpus-only",))
    assert given(node, available, count, near=0b01) == expected


def test_a_hint_of_two_sockets_is_both_of_them() -> None:
    node = managers(reserved="7,15", options=("align-by-socket",), gates=ALPHA)
    assert given(node, "0-6,8-14", 10, near=0b11) == "0-4,8-12"
    assert given(node, "0-6,8-14", 4, near=0b10) == "4-5,12-13"
    assert given(node, "0-6,8-14", 4, near=0b01) == "0-1,8-9"


def test_whole_cores_are_distributed_over_nodes() -> None:
    node = managers(options=("full-pcpus-only", "distribute-cpus-across-numa"), reserved="0,8")
    promises = admitted(node, pod("p", app("a", "10")))
    assert str(own_set_of(promises, "p", "a")) == "1-2,4-6,9-10,12-14"


@pytest.mark.parametrize(
    ("count", "message"),
    [
        ("16", "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 14, requested CPUs = 16"),
        ("3", "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"),
    ],
)
def test_half_a_core_is_not_available(count: str, message: str) -> None:
    assert refusal(managers(reserved="0", options=("full-pcpus-only",)), pod("p", app("a", count))).startswith(message)


# Allocation


@pytest.mark.parametrize("kind", [init, app])
def test_what_is_held_is_allocated_again_and_lent_on(kind: Any) -> None:
    node = managers(errata=KUBELET)
    one = pod("p", kind("c", "2"), app("z", "2"))
    demand, cpu = demanded(node, one), node.providers.resources[0]
    first = cpu.allocate_container(core.initial(node), demand, demand.containers[0])
    after = first.promises.having(replace(first.promises.of(CpuBooks), reuse=CpuReuse("other", CpuSet.of(5))))
    again = cpu.allocate_container(after, demand, demand.containers[0])
    assert str(own_set_of(again.promises, "p", "c")) == "1,9"
    assert again.promises.of(CpuBooks).reuse == (CpuReuse("p", CpuSet.of(1, 9)) if kind is init else None)
    assert again.deltas == (plus(CPU_REQUESTS),)
    assert again.refusal is None


def test_gauges_of_nodes_carry_their_number() -> None:
    node = managers(errata=KUBELET)
    promises = admitted(node, pod("p", app("a", "3")), pod("q", app("a", "8")))
    deltas = core.started_deltas(node, promises)
    assert deltas[2:] == (set_gauge(CPU_PER_NUMA, 3, numa_node="0"), set_gauge(CPU_PER_NUMA, 8, numa_node="1"))
    assert deltas[0].amount == 1000 * 3
    assert deltas[1].amount == 11


def test_only_kubelet_moves_gauges_and_only_where_it_gives_cpus() -> None:
    fixed = managers()
    assert core.started_deltas(fixed, core.initial(fixed)) == ()
    without = build(MACHINE_A, Placement(errata=KUBELET))
    assert isinstance(without, Managers)
    assert core.started_deltas(without, core.initial(without)) == ()


BUDGETS = [
    (
        (sidecar("s", "4"), init("i", "4"), app("a", "2")),
        "pod rejected, largest exclusive init container requests 4 cpus, but only 2 available",
    ),
    (
        (sidecar("s", "6"), shared("i", init("x").kind)),
        "pod rejected, pod has shared init containers but no cpus available for them",
    ),
    (
        (sidecar("x", "2"), shared("s", sidecar("x").kind), init("i", "1")),
        (
            "pod rejected, exclusive init container requests 1 cpus beside a shared sidecar, but only 0 available "
            "outside the pod's shared pool"
        ),
    ),
    (
        (app("a", "4"), app("b", "2"), shared("c")),
        "pod rejected, sum of exclusive container cpu requests equals pod budget, leaving no cpus for shared containers",
    ),
    ((shared("s", sidecar("x").kind), init("i", "2"), app("a", "2")), None),
    ((app("a", "4"), app("b", "2")), None),
]


@pytest.mark.parametrize(("containers", "message"), BUDGETS, ids=[str(n) for n in range(len(BUDGETS))])
def test_budgets_of_pods(containers: tuple[Any, ...], message: str | None) -> None:
    node = managers(topology_manager_policy="best-effort", topology_manager_scope="pod", gates=PLRM)
    decision = core.admit(node, core.initial(node), pod("p", *containers, resources=exclusive("6", "8Gi")))
    assert (decision.message if isinstance(decision, Rejected) else None) == message


# Starts that are refused


def start_refused(found: object) -> tuple[str, str]:
    assert isinstance(found, StartRefused), found
    return found.message, found.about


STATIC: dict[str, Any] = {"cpu_manager_policy": "static", "reserved_system_cpus": CpuSet.of(0)}
NO_DISTANCES = Topology.of([Cpu(c, c, 0, c // 4) for c in range(8)], [NumaNode(0, 0), NumaNode(1, 0)])
CONFIGURATIONS: list[tuple[str, dict[str, Any], Topology, tuple[str, str]]] = [
    (
        "no CPUs",
        {},
        Topology.of([], [NumaNode(0, 0)]),
        ("could not detect number of cpus", "/sys/devices/system/cpu/online"),
    ),
    (
        "options without a policy",
        {"cpu_manager_policy_options": (("b", "2"), ("a", "1"))},
        MACHINE_A,
        ("new none policy error: None policy: received unsupported options=map[a:1 b:2]", "cpuManagerPolicyOptions"),
    ),
    (
        "options that exclude each other",
        STATIC
        | {
            "cpu_manager_policy_options": (
                ("prefer-align-cpus-by-uncorecache", "true"),
                ("distribute-cpus-across-numa", "true"),
            )
        },
        MACHINE_A,
        (
            (
                "new static policy error: static policy options prefer-align-cpus-by-uncorecache and "
                "distribute-cpus-across-numa can not be used at the same time"
            ),
            "cpuManagerPolicyOptions",
        ),
    ),
    (
        "more sockets than nodes",
        STATIC | {"cpu_manager_policy_options": (("align-by-socket", "true"),), "feature_gates": ALPHA},
        Topology.of([Cpu(c, c, c // 4, 0) for c in range(8)], [NumaNode(0, 0)]),
        (
            (
                "new static policy error: Align by socket is not compatible with hardware where number of sockets are "
                "more than number of NUMA"
            ),
            "cpuManagerPolicyOptions",
        ),
    ),
    (
        "unknown scope",
        {"topology_manager_policy": "restricted", "topology_manager_scope": "node"},
        MACHINE_A,
        ('unknown scope: "node"', "topologyManagerScope"),
    ),
    (
        "unknown topology policy",
        {"topology_manager_policy": "strict"},
        MACHINE_A,
        ('unknown policy: "strict"', "topologyManagerPolicy"),
    ),
    (
        "no distances",
        {
            "topology_manager_policy": "restricted",
            "topology_manager_policy_options": (("prefer-closest-numa-nodes", "true"),),
        },
        NO_DISTANCES,
        ("cannot discover NUMA topology: error getting NUMA distances from cadvisor", "topologyManagerPolicyOptions"),
    ),
]


@pytest.mark.parametrize(
    ("placed", "topology", "expected"), [c[1:] for c in CONFIGURATIONS], ids=[c[0] for c in CONFIGURATIONS]
)
def test_configurations_that_are_refused(placed: dict[str, Any], topology: Topology, expected: tuple[str, str]) -> None:
    assert start_refused(build(topology, Placement(**placed))) == expected


BOOLEANS = {True: ("1", "t", "T", "TRUE", "true", "True"), False: ("0", "f", "F", "FALSE", "false", "False")}


@pytest.mark.parametrize("value", [True, False])
def test_booleans_as_go_reads_them(value: bool) -> None:
    for word in BOOLEANS[value]:
        placed = Placement(**STATIC, cpu_manager_policy_options=(("strict-cpu-reservation", word),))
        built = build(MACHINE_A, placed)
        assert isinstance(built, Managers)
        assert str(default_set(core.initial(built))) == ("1-15" if value else "0-15")


@pytest.mark.parametrize("word", ["", "yes", "tRUE", "2", " true", "on"])
def test_other_words_are_no_booleans(word: str) -> None:
    placed = Placement(**STATIC, cpu_manager_policy_options=(("full-pcpus-only", word),))
    assert start_refused(build(MACHINE_A, placed)) == (
        (
            'new static policy error: bad value for option "full-pcpus-only": strconv.ParseBool: '
            f'parsing "{word}": invalid syntax'
        ),
        "cpuManagerPolicyOptions",
    )


@pytest.mark.parametrize(
    ("option", "gates", "refused"),
    [
        ("full-pcpus-only", (), None),
        ("strict-cpu-reservation", (), None),
        ("prefer-align-cpus-by-uncorecache", (), None),
        ("distribute-cpus-across-numa", (), None),
        ("distribute-cpus-across-numa", (("CPUManagerPolicyBetaOptions", False),), "Beta"),
        ("align-by-socket", (), "Alpha"),
        ("align-by-socket", ALPHA, None),
        ("distribute-cpus-across-cores", (), "Alpha"),
        ("distribute-cpus-across-cores", ALPHA, None),
    ],
)
def test_options_need_their_gates(option: str, gates: Any, refused: str | None) -> None:
    placed = Placement(**STATIC, cpu_manager_policy_options=((option, "true"),), feature_gates=gates)
    built = build(MACHINE_A, placed)
    if refused is None:
        assert isinstance(built, Managers)
        options = built.providers.of(CpuResource).manager.options
        assert [name for name in OPTIONS if getattr(options, name.replace("-", "_"))] == [option]
    else:
        assert start_refused(built) == (
            (
                f'new static policy error: CPU Manager Policy {refused}-level Options not enabled, but option "{option}" '
                "provided"
            ),
            "cpuManagerPolicyOptions",
        )


LARGE = {n: "9" * n for n in (18, 19, 20)}
NOT_CONVERTED = 'unable to convert policy option to integer "max-allowable-numa-nodes": strconv.Atoi: parsing "{}": {}'
NUMBERS = [
    ("8", None),
    ("+9", None),
    ("0000000000000000000000000000008", None),
    (LARGE[18], None),
    (str(2**63 - 1), None),
    (str(2**63), NOT_CONVERTED.format(2**63, "value out of range")),
    (LARGE[19], NOT_CONVERTED.format(LARGE[19], "value out of range")),
    (LARGE[20], NOT_CONVERTED.format(LARGE[20], "value out of range")),
    ("-" + str(2**63 + 1), NOT_CONVERTED.format(-(2**63) - 1, "value out of range")),
    ("-" + str(2**63), 'the minimum value of "max-allowable-numa-nodes" should not be less than 8'),
    ("-9", 'the minimum value of "max-allowable-numa-nodes" should not be less than 8'),
    ("7", 'the minimum value of "max-allowable-numa-nodes" should not be less than 8'),
    ("8.0", NOT_CONVERTED.format("8.0", "invalid syntax")),
    ("", NOT_CONVERTED.format("", "invalid syntax")),
]


@pytest.mark.parametrize(("number", "message"), NUMBERS, ids=[number or "nothing" for number, _ in NUMBERS])
def test_numbers_as_go_reads_them(number: str, message: str | None) -> None:
    options = (("max-allowable-numa-nodes", number),)
    found = build(MACHINE_A, Placement(topology_manager_policy="restricted", topology_manager_policy_options=options))
    if message is None:
        assert isinstance(found, Managers)
    else:
        assert start_refused(found) == (message, "topologyManagerPolicyOptions")


def test_policy_none_has_no_scope_and_no_rules() -> None:
    node = managers(topology_manager_scope="pod")
    decision = core.admit(node, core.initial(node), pod("p", app("a", "10"), app("b", "2")))
    assert isinstance(decision, Admitted)
    assert decision.report.merges == ()
    assert decision.promises.of_pod("p").hints == ()


CPU_FILE = (
    'could not restore state from checkpoint: {}, please drain this node and delete the CPU manager checkpoint file "'
    '/var/lib/kubelet/cpu_manager_state" before restarting Kubelet'
)
RECORDS = [
    (Unreadable("checkpoint is corrupted"), CPU_FILE.format("checkpoint is corrupted")),
    (
        CpuRecord("static", "0-15", (("p", (("a", "1-"),)),)),
        CPU_FILE.format(
            'could not parse cpuset "1-" for container "a" in pod "p": strconv.Atoi: parsing "": invalid syntax'
        ),
    ),
    (
        CpuRecord("none", "0-15"),
        CPU_FILE.format('configured policy "static" differs from state checkpoint policy "none"'),
    ),
    (
        CpuRecord("static", "1-7,9-15", (("p", (("a", "0,8"),)),)),
        'not all reserved cpus: "0,8" are present in defaultCpuSet: "1-7,9-15"',
    ),
    (
        CpuRecord("static", "0-15", (("p", (("a", "1,9"),)),)),
        'pod: p, container: a cpuset: "1,9" overlaps with default cpuset "0-15"',
    ),
    (CpuRecord("static", "", (("p", (("a", "1,9"),)),)), "default cpuset cannot be empty"),
]


@pytest.mark.parametrize(("record", "message"), RECORDS, ids=[str(n) for n in range(len(RECORDS))])
@pytest.mark.parametrize("errata", [KUBELET, FIXED])
def test_files_that_are_refused(record: Any, message: str, errata: Errata) -> None:
    found = start(managers(errata=errata), Records(cpu=record))
    assert start_refused(found) == (message, "cpu_manager_state")


@pytest.mark.parametrize("errata", [KUBELET, FIXED])
def test_strictly_reserved_cpus_are_in_no_pool(errata: Errata) -> None:
    node = managers(errata=errata, options=("strict-cpu-reservation",))
    found = start(node, Records(cpu=CpuRecord("static", "0-15")))
    assert start_refused(found) == (
        'some of strictly reserved cpus: "0,8" are present in defaultCpuSet: "0-15"',
        "cpu_manager_state",
    )


def test_what_a_pod_holds_beside_its_containers_is_not_free_after_a_start() -> None:
    node = managers(gates=PLRM, topology_manager_policy="best-effort", topology_manager_scope="pod")
    promises = admitted(node, pod("p", app("a", "4"), resources=exclusive("6", "4Gi")))
    assert len(promises.of_pod("p").of(CpuHoldings).pod_cpus or CpuSet()) == 6
    assert len(own_set_of(promises, "p", "a") or CpuSet()) == 4
    assert core.resume(node, promises) == promises


# Nodes, compared


@pytest.mark.parametrize(
    ("a", "b", "expected"), [(0, 1, 1), (1, 0, 1), (0, 2, None), (1, 2, 1), (2, 1, 1), (2, 0, None)]
)
def test_the_fuller_of_two_nodes(a: int, b: int, expected: int | None) -> None:
    node = managers(machine(nodes=3), reserved="0", topology_manager_policy="single-numa-node")
    held = NOTHING.having(CpuHoldings(cpus=(("a", CpuSet.of(4, 5, 6)),)))
    promises = replace(core.initial(node), pods=PodMap().put("p", held))
    assert preferred_of_two(node.providers.resources, promises, a, b) == expected


def test_nodes_that_can_give_nothing_have_given_nothing() -> None:
    node = managers(machine(nodes=2, cores=1), reserved="1,3")
    providers, promises = node.providers, core.initial(node)
    assert preferred_of_two(providers.resources, promises, 0, 1) is None


@pytest.mark.parametrize(
    ("scope", "managed", "message"),
    [
        ("pod", False, "Resources cannot be allocated with Topology locality"),
        ("pod", True, "Pod Scope pod with pod-level resources failed admission under pod-scope topology manager"),
        (
            "container",
            True,
            "Pod Scope pod with pod-level resources failed admission with a container-level topology manager",
        ),
    ],
)
def test_words_of_a_refused_merge(scope: str, managed: bool, message: str) -> None:
    node = managers(gates=PLRM, topology_manager_policy="single-numa-node", topology_manager_scope=scope)
    found = core.admit(
        node, core.initial(node), pod("p", app("a", "10"), resources=exclusive("10") if managed else None)
    )
    assert isinstance(found, Rejected)
    assert (found.reason.value, found.message) == ("TopologyAffinityError", message)


# Pods that hold all they ask for

SCOPES = ("container", "pod")
HINT = Hint(NumaSet.of(0), preferred=True)
BLOCK = Block(NumaSet.of(1), "memory", 2**30)


def holding_node(**more: Any) -> Managers:
    return managers(reserved_memory={0: "1Gi"}, gates=PLRM, topology_manager_policy="best-effort", **more)


WHOLE = pod("p", app("a", "2"), shared("b"), resources=exclusive("4", "4Gi"))
FRACTION = pod("p", app("a", "500m"), resources=exclusive("1500m", "4Gi"))
SINGLE = pod("p", app("a", "2"), app("b", "500m"))
CPUS = (("a", CpuSet.of(1, 9)),)
MEMORY = (("a", (BLOCK,)), ("b", (BLOCK,)))
HOLDINGS: list[tuple[str, Pod, PodPromises, bool, bool, bool]] = [
    (
        "a pod's both",
        WHOLE,
        NOTHING.having(
            CpuHoldings(cpus=CPUS, pod_cpus=CpuSet.of(1, 9)), MemoryHoldings(memory=MEMORY, pod_memory=(BLOCK,))
        ),
        True,
        False,
        True,
    ),
    (
        "a pod's, kept by containers",
        WHOLE,
        NOTHING.having(CpuHoldings(cpus=CPUS, pod_cpus=None), MemoryHoldings(memory=MEMORY, pod_memory=None)),
        True,
        False,
        True,
    ),
    (
        "a pod's CPUs without memory",
        WHOLE,
        NOTHING.having(CpuHoldings(cpus=CPUS, pod_cpus=CpuSet.of(1, 9))),
        True,
        True,
        False,
    ),
    (
        "a pod's memory without CPUs",
        WHOLE,
        NOTHING.having(CpuHoldings(cpus=(), pod_cpus=None), MemoryHoldings(memory=MEMORY, pod_memory=(BLOCK,))),
        True,
        True,
        False,
    ),
    ("a pod's nothing", WHOLE, NOTHING, True, True, False),
    (
        "sets without containers",
        WHOLE,
        NOTHING.having(CpuHoldings(cpus=(), pod_cpus=CpuSet.of(1, 9)), MemoryHoldings(memory=(), pod_memory=(BLOCK,))),
        True,
        True,
        False,
    ),
    (
        "no CPUs, but none are its own",
        FRACTION,
        NOTHING.having(CpuHoldings(cpus=(), pod_cpus=None), MemoryHoldings(memory=MEMORY, pod_memory=(BLOCK,))),
        True,
        True,
        True,
    ),
    (
        "both",
        SINGLE,
        NOTHING.having(CpuHoldings(cpus=CPUS, pod_cpus=None), MemoryHoldings(memory=MEMORY)),
        False,
        False,
        True,
    ),
    (
        "another container's",
        SINGLE,
        NOTHING.having(CpuHoldings(cpus=(("b", CpuSet.of(1, 9)),), pod_cpus=None), MemoryHoldings(memory=MEMORY)),
        False,
        False,
        False,
    ),
    ("no memory", SINGLE, NOTHING.having(CpuHoldings(cpus=CPUS)), False, True, False),
    (
        "memory of one only",
        SINGLE,
        NOTHING.having(CpuHoldings(cpus=CPUS, pod_cpus=None), MemoryHoldings(memory=MEMORY[:1])),
        False,
        True,
        False,
    ),
    (
        "no CPUs",
        SINGLE,
        NOTHING.having(CpuHoldings(cpus=(), pod_cpus=None), MemoryHoldings(memory=MEMORY)),
        False,
        True,
        False,
    ),
]


def readmitted(node: Managers, one: Pod, held: PodPromises) -> Admitted | Rejected:
    """Admit a pod again that runs and holds this."""
    promises = replace(core.initial(node), pods=PodMap().put(one.uid, held))
    ((_, decision),) = core.readmit(node, promises, (one,)).results
    return decision


def is_kept(node: Managers, one: Pod, held: PodPromises, is_running: bool) -> bool:
    """Whether the pod is left as it is: nobody is asked for hints."""
    promises = replace(core.initial(node), pods=PodMap().put(one.uid, held))
    decision = readmitted(node, one, held) if is_running else core.admit(node, promises, one)
    return decision.report.merges == ()


@pytest.mark.parametrize(
    ("one", "held", "by_pod", "is_running", "expected"), [c[1:] for c in HOLDINGS], ids=[c[0] for c in HOLDINGS]
)
def test_does_a_pod_hold_all(one: Pod, held: PodPromises, by_pod: bool, is_running: bool, expected: bool) -> None:
    assert (
        is_kept(holding_node(topology_manager_scope="pod" if by_pod else "container"), one, held, is_running)
        is expected
    )


@pytest.mark.parametrize(
    ("held", "is_running", "expected"),
    [
        (NOTHING, True, True),
        (NOTHING, False, False),
        (NOTHING.having(CpuHoldings(cpus=(("i", CpuSet.of(1, 9)),))), False, True),
        (NOTHING.having(CpuHoldings(cpus=(("j", CpuSet.of(1, 9)),))), False, False),
    ],
)
def test_init_containers_that_have_run_lack_nothing(held: PodPromises, is_running: bool, expected: bool) -> None:
    node = managers(topology_manager_policy="best-effort")
    assert is_kept(node, pod("p", init("i", "2"), app("a", "500m")), held, is_running) is expected


def test_kept_hints_lead_to_where_the_containers_are() -> None:
    sets = NOTHING.having(CpuHoldings(cpus=(("a", CpuSet.of(1, 9)), ("b", CpuSet.of(4, 12)))))
    by_cpu, by_pod = (managers(topology_manager_policy="best-effort", topology_manager_scope=s) for s in SCOPES)
    single = managers(topology_manager_policy="single-numa-node")

    def kept(node: Managers, held: PodPromises, cpu: str = "2") -> dict[str, Hint]:
        decision = readmitted(node, pod("p", app("a", cpu), app("b", cpu)), held)
        assert isinstance(decision, Admitted)
        return dict(decision.promises.of_pod("p").hints)

    def hint(*nodes: int) -> Hint:
        return Hint(NumaSet.of(*nodes), preferred=True)

    assert kept(holding_node(), sets.having(replace(sets.of(MemoryHoldings), memory=MEMORY))) == {
        "a": hint(0, 1),
        "b": hint(1),
    }
    assert kept(by_cpu, sets) == {"a": hint(0), "b": hint(1)}
    assert kept(by_pod, sets) == {"a": hint(0, 1), "b": hint(0, 1)}
    assert kept(by_cpu, NOTHING, "500m") == {"a": hint(0, 1), "b": hint(0, 1)}
    assert kept(single, NOTHING, "500m") == {"a": Hint(None, preferred=True), "b": Hint(None, preferred=True)}
    stored = (("a", HINT), ("b", HINT))
    assert kept(by_cpu, replace(sets, hints=stored)) == dict(stored)


def test_what_is_kept_is_counted_as_kubelet_counts_it() -> None:
    node = holding_node(options=("full-pcpus-only",))
    first, *deltas = readmitted(
        node,
        pod("p", app("a", "2"), app("b", "500m")),
        NOTHING.having(CpuHoldings(cpus=CPUS, pod_cpus=None), MemoryHoldings(memory=MEMORY)),
    ).deltas
    assert first == plus(TOPOLOGY_REQUESTS)
    full = aligned("container", "physical_cpu")
    assert deltas == [plus(CPU_REQUESTS), full, plus(MEMORY_REQUESTS), plus(MEMORY_REQUESTS)]
    assert [each.series for each in deltas] == [
        Series("kubelet_cpu_manager_pinning_requests_total"),
        Series(
            "kubelet_container_aligned_compute_resources_count",
            (("boundary", "physical_cpu"), ("scope", "container")),
        ),
        *[Series("kubelet_memory_manager_pinning_requests_total")] * 2,
    ]


# Words that logs, metrics and `inspect` have in common


def test_the_words_for_sharing() -> None:
    assert [level.value for level in Isolation] == ["host", "pod", "mixed", "container"]
    assert [why.value for why in WhyShared] == [
        "the CPU manager's policy is none",
        "it requests no CPU",
        "it has no CPU limit; for exclusive CPUs, the limit must equal the request",
        "it has no memory limit; for exclusive CPUs, the limit must equal the request",
        "its CPU limit is 0, which counts as none; for exclusive CPUs, the limit must equal the request",
        "its memory limit is 0, which counts as none; for exclusive CPUs, the limit must equal the request",
        "its CPU or memory limit differs from its request",
        "its pod is not Guaranteed",
        "its CPU request is not a whole number",
        "the CPU request of its pod as a whole is not a whole number",
        "its pod has pod-level resources, and the gate PodLevelResourceManagers is off",
        "it runs in its pod's shared pool",
    ]


# Admission again


@pytest.mark.parametrize("scope", ["container", "pod"])
def test_what_is_found_in_place_is_admitted_as_it_is(scope: str) -> None:
    """Whether it runs already is unknown where a node is taken over: what it holds says it."""
    node = managers(topology_manager_policy="single-numa-node", topology_manager_scope=scope)
    one = pod("p", app("a", "2"))
    promises = admitted(node, one)
    decision = core.admit(node, with_default_set(promises, CpuSet.of(0, 8)), one)
    assert isinstance(decision, Admitted)
    assert str(own_set_of(decision.promises, "p", "a")) == "1,9"
    assert str(default_set(decision.promises)) == "0,8"
    assert str(decision.report.containers[0].cpus) == "1,9"
    assert decision.report.merges == ()


def test_a_running_pod_that_is_refused_leaves_all_as_it_is() -> None:
    node = managers()
    running = pod("p", app("a", "2"))
    promises = admitted(node, running)
    greedy = pod("q", app("a", "15"))
    found = core.readmit(node, promises, (running, greedy))
    (_, first), (uid, second) = found.results
    assert isinstance(first, Admitted)
    assert uid == "q"
    assert isinstance(second, Rejected)
    assert second.promises == second.attempted == promises
    assert "requested=15, available=12" in second.message
    assert [each.name for each in second.report.containers] == ["a"]
    assert found.promises == promises
