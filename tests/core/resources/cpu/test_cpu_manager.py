"""The static CPU policy and the topology manager by the worked examples of their specification, checkpoint bytes included."""

from typing import Any

import pytest

from nodeagent.core.admission import managers as core
from nodeagent.core.admission.managers import Admitted, Managers, Rejected
from nodeagent.core.admission.node_rules import isolation
from nodeagent.core.model.config import Errata, Placement
from nodeagent.core.model.demand import WhyShared
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Container, ContainerKind, Pod, ResourceRequirements, Resources
from nodeagent.core.model.promises import Isolation, Promises
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.model.topology import Topology
from nodeagent.core.resources.cpu.holdings import own_set_of
from nodeagent.core.resources.cpu.resource import CpuResource
from nodeagent.formats.checkpoint.cpu_checkpoint import encode_cpu_state
from tests.support.builders import MACHINE_A, PLRM, machine, managers, pod
from tests.support.pods import app, exclusive, init, shared, sidecar

BOTH = pytest.mark.parametrize("errata", list(Errata))
REFUSED = "REFUSED"


def text(node: Managers, promises: Promises) -> str:
    return encode_cpu_state("static", promises, pod_level=node.rules.gates.pod_level_managers)


def run(node: Managers, *pods: Pod) -> list[str]:
    """Admit one after the other; the file after each, or the refusal's message."""
    promises, shown = core.initial(node), []
    for one in pods:
        decision = core.admit(node, promises, one)
        promises = decision.promises
        shown.append(text(node, promises) if isinstance(decision, Admitted) else decision.message)
    return shown


@BOTH
def test_a_fresh_node(errata: Errata) -> None:
    plain, strict = managers(errata=errata), managers(errata=errata, options=("strict-cpu-reservation",))
    gated = managers(errata=errata, gates=PLRM)
    assert text(plain, core.initial(plain)) == '{"policyName":"static","defaultCpuSet":"0-15","checksum":4220024897}'
    assert (
        text(strict, core.initial(strict)) == '{"policyName":"static","defaultCpuSet":"1-7,9-15","checksum":696133561}'
    )
    assert text(gated, core.initial(gated)).endswith('"checksum":3394376107}')


REUSE = pod("p1", init("i1", "4"), init("i2", "2"), app("a", "3"))
EXAMPLES: list[tuple[str, dict[str, Any], tuple[Pod, ...], str]] = [
    (
        "two containers",
        {},
        (pod("p1", app("a", "2"), app("b", "3")),),
        '{"policyName":"static","defaultCpuSet":"0,4-8,11-15","entries":{"p1":{"a":"1,9","b":"2-3,10"}},"checksum":852614065}',
    ),
    (
        "init containers lend their CPUs on",
        {},
        (REUSE,),
        '{"policyName":"static","defaultCpuSet":"0,3-8,11-15","entries":{"p1":{"a":"1-2,9","i1":"1-2,9-10","i2":"1,9"}},"checksum":1220676764}',
    ),
    (
        "a sidecar keeps what it took over",
        {},
        (pod("p1", init("i1", "2"), sidecar("s1", "2"), init("i2", "4"), app("a", "2")),),
        '{"policyName":"static","defaultCpuSet":"0,4-8,12-15","entries":{"p1":{"a":"2,10","i1":"1,9","i2":"2-3,10-11","s1":"1,9"}},"checksum":3579766213}',
    ),
    (
        "single-numa-node",
        {"topology_manager_policy": "single-numa-node"},
        (pod("p1", app("a", "5"), app("b", "4")),),
        '{"policyName":"static","defaultCpuSet":"0,6-8,11,14-15","entries":{"p1":{"a":"1-3,9-10","b":"4-5,12-13"}},"checksum":1656426501}',
    ),
    (
        "restricted, pod scope",
        {"topology_manager_policy": "restricted", "topology_manager_scope": "pod"},
        (pod("p1", init("i1", "4"), app("a", "2"), app("b", "3")),),
        '{"policyName":"static","defaultCpuSet":"0,4-8,11-15","entries":{"p1":{"a":"1,9","b":"2-3,10","i1":"1-2,9-10"}},"checksum":4027838596}',
    ),
    (
        "strict reservation",
        {"options": ("strict-cpu-reservation",)},
        (pod("p1", app("a", "2")),),
        '{"policyName":"static","defaultCpuSet":"2-7,10-15","entries":{"p1":{"a":"1,9"}},"checksum":3567665572}',
    ),
    (
        "pod-level resources, container scope",
        {"topology_manager_policy": "restricted", "gates": PLRM},
        (pod("p1", app("a", "2"), shared("b"), resources=exclusive("6", "4Gi")),),
        '{"policyName":"static","defaultCpuSet":"0,2-8,10-15","entries":{"p1":{"a":"1,9"}},"checksum":2994854007}',
    ),
]


@pytest.mark.parametrize(("config", "pods", "expected"), [c[1:] for c in EXAMPLES], ids=[c[0] for c in EXAMPLES])
@BOTH
def test_examples(config: dict[str, Any], pods: tuple[Pod, ...], expected: str, errata: Errata) -> None:
    node = managers(errata=errata, **config)
    assert run(node, *pods)[-1] == expected
    promises = core.admit(node, core.initial(node), pods[-1]).promises
    if errata is Errata.FIXED:
        assert core.violations(node, promises, pods) == ()
    removed, _ = core.remove_pod(node, promises, "p1")
    assert text(node, removed) == text(node, core.initial(node))


@BOTH
def test_refusals_leave_nothing(errata: Errata) -> None:
    node = managers(errata=errata, topology_manager_policy="single-numa-node")
    shown = run(node, pod("p1", app("a", "8")), pod("p2", app("a", "7")), pod("p3", app("a", "1")))
    assert '"p1":{"a":"4-7,12-15"}' in shown[0]
    assert shown[1] == "Resources cannot be allocated with Topology locality"
    assert '"p3":{"a":"1"}' in shown[2]


@BOTH
def test_full_cores(errata: Errata) -> None:
    node = managers(errata=errata, options=("full-pcpus-only",))
    shown = run(node, pod("p1", app("a", "3")), pod("p2", app("a", "12")), pod("p3", app("a", "4")))
    assert shown[0] == "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"
    assert '"a":"1-2,4-7,9-10,12-15"}},"checksum":3485171111' in shown[1]
    assert shown[2] == (
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 2, requested CPUs = 4, CPUs per core = 2"
    )


@BOTH
def test_a_pod_is_admitted_whole_or_not_at_all(errata: Errata) -> None:
    node = managers(errata=errata)
    shown = run(node, pod("p2", app("a", "12")), pod("p3", app("a", "1"), app("b", "4")), pod("p4", app("a", "2")))
    assert shown[1] == (
        "Allocate failed due to not enough cpus available to satisfy request: requested=4, available=1, which is unexpected"
    )
    decision = core.admit(node, core.initial(node), pod("p3", app("a", "1"), app("b", "40")))
    assert isinstance(decision, Rejected)
    assert decision.promises == core.initial(node)
    assert own(decision.attempted, "a") == "1"


def own(promises: Promises, name: str, uid: str = "p3") -> str:
    return str(own_set_of(promises, uid, name) or "")


POD_LEVEL = pod(
    "p1",
    init("i1", "3"),
    sidecar("s1", "1"),
    shared("i2", ContainerKind.INIT),
    app("a", "2"),
    shared("b"),
    resources=exclusive("6", "8Gi"),
)


@BOTH
def test_pod_level_resources(errata: Errata) -> None:
    """One set for the pod, exclusive slices, and a shared pool; released with the last container."""
    node = managers(errata=errata, gates=PLRM, topology_manager_policy="restricted", topology_manager_scope="pod")
    decision = core.admit(node, core.initial(node), POD_LEVEL)
    assert isinstance(decision, Admitted)
    assert text(node, decision.promises).endswith(
        '"entries":{"p1":{"a":"2,10","b":"3,9,11","i1":"1-2,9","i2":"2-3,9-11","s1":"1"}},'
        '"podEntries":{"p1":{"cpuSet":"1-3,9-11"}},"checksum":448156626}'
    )
    levels = {c.name: isolation(node, decision.promises, POD_LEVEL, c.name) for c in POD_LEVEL.containers}
    assert levels == {
        "i1": Isolation.CONTAINER, "s1": Isolation.CONTAINER, "a": Isolation.CONTAINER,
        "i2": Isolation.POD, "b": Isolation.POD,
    }  # fmt: skip
    without_a, _ = core.remove_container(node, decision.promises, "p1", "a")
    assert text(node, without_a).endswith('"checksum":1630291312}')
    empty, _ = core.remove_pod(node, without_a, "p1")
    assert text(node, empty).endswith('"defaultCpuSet":"0-15","checksum":3394376107}')


@BOTH
def test_empty_pod_shared_pool(errata: Errata) -> None:
    one = pod("p1", app("a", "6"), shared("b"), resources=exclusive("6", "8Gi"))
    for policy, reason, message in (
        (
            "best-effort",
            "EmptyPodSharedPoolError",
            "pod rejected, sum of exclusive container cpu requests equals pod budget, leaving no cpus for shared containers",
        ),
        (
            "restricted",
            "TopologyAffinityError",
            "Pod Scope pod with pod-level resources failed admission under pod-scope topology manager",
        ),
    ):
        node = managers(errata=errata, gates=PLRM, topology_manager_policy=policy, topology_manager_scope="pod")
        decision = core.admit(node, core.initial(node), one)
        assert isinstance(decision, Rejected)
        assert (decision.reason, decision.message) == (reason, message)


def burstable(cpu: str, limit: str) -> Container:
    resources = ResourceRequirements(
        Resources.of({"cpu": Quantity.parse(cpu), "memory": Quantity.parse("1Gi")}),
        Resources.of({"cpu": Quantity.parse(limit), "memory": Quantity.parse("1Gi")}),
    )
    return Container("b", ContainerKind.APP, resources)


POD_SCOPE = {"topology_manager_policy": "restricted", "topology_manager_scope": "pod"}
WHY: list[tuple[Pod, str, dict[str, Any], WhyShared | None]] = [
    (pod("p", app("a", "2")), "a", {}, None),
    (pod("p", app("a", "1500m")), "a", {}, WhyShared.FRACTIONAL),
    (pod("p", app("a", None)), "a", {}, WhyShared.NO_CPU_REQUEST),
    (pod("p", burstable("2", "3")), "b", {}, WhyShared.LIMIT_DIFFERS),
    (pod("p", app("a", "2"), burstable("2", "3")), "a", {}, WhyShared.NOT_GUARANTEED),
    (pod("p", app("a", "2"), resources=exclusive("4", "2Gi")), "a", {}, WhyShared.GATE_OFF),
    (POD_LEVEL, "b", {"gates": PLRM}, WhyShared.NO_CPU_REQUEST),
    (POD_LEVEL, "b", {"gates": PLRM, **POD_SCOPE}, WhyShared.POD_SHARED),
]


@pytest.mark.parametrize(("one", "name", "config", "why"), WHY, ids=[f"{c[3]} {len(c[2])}" for c in WHY])
def test_why_a_container_shares(one: Pod, name: str, config: dict[str, Any], why: WhyShared | None) -> None:
    node = managers(**config)
    decision = core.admit(node, core.initial(node), one)
    assert isinstance(decision, Admitted)
    report = next(c for c in decision.report.containers if c.name == name)
    assert report.why_shared == why


def test_the_report_shows_what_was_merged() -> None:
    node = managers(topology_manager_policy="single-numa-node", reserved_memory={0: "1Gi"})
    decision = core.admit(node, core.initial(node), pod("p1", app("a", "7")))
    assert isinstance(decision, Admitted)
    (merge,) = decision.report.merges
    assert merge.container == "a"
    assert merge.hints == (
        ("cpu", ((0b10, True), (0b11, False))),
        ("memory", ((0b01, True), (0b10, True), (0b11, False))),
    )
    assert (merge.merged.mask, merge.merged.preferred, merge.admitted) == (0b10, True, True)


def refusal(topology: Topology = MACHINE_A, **fields: Any) -> str:
    given: dict[str, Any] = {"cpu_manager_policy": "static", "reserved_cpu_milli": 1000} | fields
    built = core.build(topology, Placement(**given))
    assert isinstance(built, StartRefused), built
    return built.message


def options(*names: str, value: str = "true") -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name in names)


ALPHA = (("CPUManagerPolicyAlphaOptions", True),)
STATIC_ERROR = "new static policy error: "
START_REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"cpu_manager_policy": "X"}, 'unknown policy: "X"'),
    (
        {"cpu_manager_policy": "none", "cpu_manager_policy_options": (("c", "d"), ("a", "b"))},
        "new none policy error: None policy: received unsupported options=map[a:b c:d]",
    ),
    ({"cpu_manager_policy_options": options("x")}, STATIC_ERROR + 'unknown CPU Manager Policy option: "x"'),
    ({"cpu_manager_policy_options": options('a"\x1b')}, STATIC_ERROR + r'unknown CPU Manager Policy option: "a\"\x1b"'),
    (
        {"cpu_manager_policy_options": options("align-by-socket", value="false")},
        STATIC_ERROR + 'CPU Manager Policy Alpha-level Options not enabled, but option "align-by-socket" provided',
    ),
    (
        {
            "cpu_manager_policy_options": options("distribute-cpus-across-numa"),
            "feature_gates": (("CPUManagerPolicyBetaOptions", False),),
        },
        STATIC_ERROR
        + 'CPU Manager Policy Beta-level Options not enabled, but option "distribute-cpus-across-numa" provided',
    ),
    (
        {"cpu_manager_policy_options": options("full-pcpus-only", value="yes")},
        STATIC_ERROR + 'bad value for option "full-pcpus-only": strconv.ParseBool: parsing "yes": invalid syntax',
    ),
    (
        {
            "cpu_manager_policy_options": options("full-pcpus-only", "distribute-cpus-across-cores"),
            "feature_gates": ALPHA,
        },
        STATIC_ERROR
        + "static policy options full-pcpus-only and distribute-cpus-across-cores can not be used at the same time",
    ),
    (
        {"cpu_manager_policy_options": options("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa")},
        STATIC_ERROR
        + "static policy options prefer-align-cpus-by-uncorecache and distribute-cpus-across-numa can not be used at the same time",
    ),
    (
        {
            "cpu_manager_policy_options": options("align-by-socket"),
            "feature_gates": ALPHA,
            "topology_manager_policy": "single-numa-node",
        },
        STATIC_ERROR
        + "Topolgy manager single-numa-node policy is incompatible with CPUManager align-by-socket policy option",
    ),
    ({"reserved_cpu_milli": None}, "[cpumanager] unable to determine reserved CPU resources for static policy"),
    (
        {"reserved_cpu_milli": 0},
        "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero",
    ),
    (
        {"reserved_cpu_milli": 17000},
        STATIC_ERROR + "[cpumanager] unable to reserve the required amount of CPUs (size of  did not equal 17)",
    ),
    (
        {"reserved_system_cpus": CpuSet.parse("0,16")},
        "reserved-cpus: 0,16 is not a subset of online-cpus: 0-15",
    ),
    ({"topology_manager_policy": "X"}, 'unknown policy: "X"'),
    ({"topology_manager_policy": "restricted", "topology_manager_scope": "X"}, 'unknown scope: "X"'),
    ({"topology_manager_policy": "X", "topology_manager_scope": "Y"}, 'unknown policy: "X"'),
    (
        {
            "topology_manager_policy": "X",
            "topology_manager_policy_options": options("prefer-closest-numa-nodes", value="yes"),
        },
        'bad value for option "prefer-closest-numa-nodes": strconv.ParseBool: parsing "yes": invalid syntax',
    ),
    (
        {"topology_manager_policy": "restricted", "topology_manager_policy_options": options("x")},
        'unknown Topology Manager Policy option: "x"',
    ),
    (
        {
            "topology_manager_policy": "restricted",
            "topology_manager_policy_options": options("max-allowable-numa-nodes", value="x"),
        },
        'unable to convert policy option to integer "max-allowable-numa-nodes": strconv.Atoi: parsing "x": invalid syntax',
    ),
    (
        {
            "topology_manager_policy": "restricted",
            "topology_manager_policy_options": options("max-allowable-numa-nodes", value="7"),
        },
        'the minimum value of "max-allowable-numa-nodes" should not be less than 8',
    ),
    (
        {"topology_manager_policy": "restricted", "topology": machine(nodes=9, cores=1)},
        "unsupported on machines with more than 8 NUMA Nodes",
    ),
    (
        {
            "topology_manager_policy": "single-numa-node",
            "topology_manager_policy_options": options("prefer-most-allocated-numa-node"),
        },
        'Topology Manager Policy Alpha-level Options not enabled, but option "prefer-most-allocated-numa-node" provided',
    ),
    ({"memory_manager_policy": "X"}, 'unknown policy: "X"'),
    (
        {"memory_manager_policy": "Static"},
        "[memorymanager] you should specify the system reserved memory",
    ),
    (
        {"memory_manager_policy": "Static", "memory_reservation": Resources.of({"memory": Quantity.parse("1Gi")})},
        'the total amount "0" of type "memory" is not equal to the value "1Gi" determined by Node Allocatable feature',
    ),
]


@pytest.mark.parametrize(
    ("fields", "message"), [c for c in START_REFUSALS if c[1]], ids=[c[1][:60] for c in START_REFUSALS if c[1]]
)
def test_impossible_configurations(fields: dict[str, Any], message: str) -> None:
    assert refusal(**fields) == message


def test_none_gives_nobody_anything() -> None:
    node = core.build(MACHINE_A, Placement())
    assert isinstance(node, Managers)
    decision = core.admit(node, core.initial(node), pod("p", app("a", "2")))
    assert isinstance(decision, Admitted)
    assert decision.promises == core.initial(node)
    assert decision.report.containers[0].why_shared is WhyShared.POLICY_NONE


def test_reserving_by_amount() -> None:
    node = core.build(MACHINE_A, Placement(cpu_manager_policy="static", reserved_cpu_milli=2500))
    assert isinstance(node, Managers)
    assert str(node.reserved) == "0-1,8"
    assert str(CpuSet(node.providers.of(CpuResource).manager.reserved_cores)) == "0-1,8-9"
