# ruff: noqa: E501 (tables: one case, one line)
"""What can be found wrong with documents, promises and cgroups, each for real: it names file and line, pod or cgroup, and values."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.core.admission import managers as core
from nodeagent.core.admission.managers import Managers
from nodeagent.core.admission.state_invariants import violations
from nodeagent.core.cgroups.exec_preconditions import Obstacle, find_obstacle
from nodeagent.core.cgroups.write_order import diff
from nodeagent.core.model.cgroup import Attribute, ObservedCgroup
from nodeagent.core.model.claims import AllocatedDevice, ClaimAllocation
from nodeagent.core.model.config import Placement
from nodeagent.core.model.held_device import HeldDevice
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.promises import NOTHING, PodPromises, Promises, with_pod
from nodeagent.core.model.state import NodeState, Phase
from nodeagent.core.model.violations import Invariant, Violation
from nodeagent.core.model.waiting import Waiting
from nodeagent.core.resources.claims.holdings import ClaimHoldings
from nodeagent.core.resources.cpu.holdings import CpuBooks, CpuHoldings, own_set_of, with_default_set
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.resources.memory.holdings import Block, MemoryHoldings, memory_accounts, with_memory_accounts
from nodeagent.formats.config.config_yaml import parse_config
from nodeagent.formats.manifest.pod_manifest import RefusedPod, parse_manifest
from nodeagent.formats.syntax import yaml_tree
from nodeagent.formats.syntax.findings import DocumentError
from nodeagent.views.inspect.differences import Difference, find_differences
from tests.formats.config import test_config_yaml
from tests.formats.manifest import test_pod_manifest
from tests.project.test_every_error import STEP
from tests.support.builders import GIB, PLRM, admitted, managers
from tests.support.inspected_nodes import NOW_MS, World, changed, ended, running
from tests.support.pods import app, exclusive, pod

# Documents

POD = test_pod_manifest.HEAD
MORE_MANIFESTS: list[tuple[str | bytes, str]] = [
    ("", "is empty, perhaps because the disk was full"),
    ("apiVersion: v1\nkind: List\nitems: {}\n", "items: must be a list of pods"),
    (f"{POD}  containers: [{{name: a, resources: {{limits: {{{', '.join(f'r{n}: 1' for n in range(65))}}}}}}}]\n", "limits: has more than 64 entries"),
    (f"{POD}  containers: [{{name: a, command: [sh, {'x' * 131_072}]}}]\n", "exceed 131072 bytes of JSON"),
    (b"#" * (yaml_tree.MAX_BYTES + 1), "is larger than 1048576 bytes"),
    (b"a: \xff", "is not UTF-8 here"),
    ("a: \x01", "U+0001: control characters are not allowed"),
    ("%TAG !a! b\n" * 5_000, "is more than 8 lines that start with %"),
    ('{"a":' * 100, "is nested deeper than 64 levels"),
    ('{"a":[' + "1," * (yaml_tree.MAX_NODES + 1), "has more than 100000 values"),
    ('{"a" 1}', """: is expected after a field's name, not "1\""""),
    ("{a: 1}", "as which a text in braces is read: a field's name in double quotes is expected"),
    ('{"a": "x', "a string has no end"),
    (r'{"a": "\u0000"}', "NUL characters and unpaired surrogates are not allowed"),
    (r'{"a": "\x"}', "Invalid \\escape in a string"),
    ('{"a": }', "a value is expected"),
    ('{"a": 1e999}', '"1e999": is not a finite number'),
]  # fmt: skip


def refused(manifest: str | bytes) -> Iterator[str]:
    for result in parse_manifest(manifest if isinstance(manifest, bytes) else manifest.encode(), "f"):
        if isinstance(result, RefusedPod):
            yield from (str(finding) for finding in result.findings)


@pytest.mark.parametrize(("manifest", "named"), MORE_MANIFESTS, ids=[row[1] for row in MORE_MANIFESTS])
def test_a_manifest_that_cannot_be_read_is_refused_with_why(manifest: str | bytes, named: str) -> None:
    assert any(named in text for text in refused(manifest))


def said_of_configurations() -> Iterator[str]:
    for text in [*(row[0] for row in test_config_yaml.FINDINGS)]:
        try:
            parse_config(text.encode(), "f")
        except DocumentError as err:
            yield from (str(finding) for finding in err.findings)


def said_of_manifests() -> Iterator[str]:
    tables = test_pod_manifest
    head = tables.HEAD
    manifests = [row[0] for row in (*tables.POD_RULES, *MORE_MANIFESTS)]
    manifests += [f"{head}  {row[0]}\n" for row in tables.SPEC_RULES]
    manifests += [
        f"apiVersion: v1\nkind: Pod\nmetadata: {{{row[0]}}}\nspec: {{containers: [{{name: a}}]}}\n"
        for row in tables.METADATA
    ]
    for rule in tables.CONTAINER_RULES:
        item = rule[0] if rule[0] in {"{}", "x"} else f"{{{rule[0]}}}"
        manifests.append(f"{head}  containers: [{item}]\n")
    for text in manifests:
        yield from refused(text)


def test_every_finding_names_file_and_line() -> None:
    assert all(text.startswith("f:") for text in [*said_of_configurations(), *said_of_manifests()])


# Promises

WEB = pod("web", app("app", cpu="2", memory="1Gi"))
DB = pod("db", app("app", cpu="2", memory="1Gi"))
WITH_MEMORY = managers(reserved_memory={0: "1Gi", 1: "1Gi"}, topology_manager_policy="best-effort")
BY_POD = managers(gates=PLRM, topology_manager_policy="best-effort", topology_manager_scope="pod")
APART = pod(
    "web",
    app("a", cpu="2", memory="1Gi"),
    app("b", cpu="2", memory="1Gi"),
    app("c"),
    resources=exclusive(cpu="6", memory="4Gi"),
)


def damaged(node: Managers, pods: tuple[Any, ...], damage: Callable[[Promises], Promises]) -> tuple[Violation, ...]:
    """What is wrong with promises that were right before."""
    promises = admitted(node, *pods)
    assert core.violations(node, promises, pods) == ()
    return core.violations(node, damage(promises), pods)


def holding(promises: Promises, uid: str, **held: Any) -> Promises:
    before = promises.of_pod(uid)
    kinds: dict[str, Any] = {"cpus": CpuHoldings, "devices": DeviceHoldings, "claims": ClaimHoldings}
    parts = (replace(before.of(kinds[field]), **{field: value}) for field, value in held.items())
    return with_pod(promises, uid, before.having(*parts))


def overbooked(promises: Promises) -> Promises:
    """One node's books say that more is free than there is."""
    first, *others = memory_accounts(promises)
    tables = tuple((name, replace(table, free=table.free + 1)) for name, table in first.tables)
    return with_memory_accounts(promises, (replace(first, tables=tables), *others))


def block(nodes: NumaSet, size_bytes: int) -> PodPromises:
    return NOTHING.having(MemoryHoldings(memory=(("app", (Block(nodes, "memory", size_bytes),)),)))


def short(promised: PodPromises, *books: CpuBooks) -> tuple[str, ...]:
    """What a start finds that the machine can't keep."""
    fresh = core.initial(WITH_MEMORY)
    before = with_pod(fresh, "u1", promised).having(*books)
    resumed = core.resume(WITH_MEMORY, before)
    assert isinstance(resumed, Promises), resumed
    return tuple(short.text for short in core.shortfalls(WITH_MEMORY, resumed))


def entries_of(change: Callable[[NodeState], NodeState]) -> tuple[Violation, ...]:
    world = World().add(WEB)
    return violations(world.managers, change(world.state))


STATIC = managers()
CARD = (("app", (HeldDevice("x.com/nic", "0000:3b:00.0", kind="network"),)),)
BROKEN: list[tuple[Invariant, str, Callable[[], tuple[Violation, ...]]]] = [
    (Invariant.HOLDER_IS_ACTIVE, "pod uid-web is not active, but holds CPUs, memory or devices", lambda: core.violations(STATIC, admitted(STATIC, WEB), ())),
    (Invariant.HOLDER_IS_IN_ITS_POD, "pod uid-web holds CPUs, memory or devices for container gone, which it doesn't have", lambda: damaged(STATIC, (WEB,), lambda p: holding(p, "uid-web", cpus=(*p.of_pod("uid-web").of(CpuHoldings).cpus, ("gone", CpuSet.of(5)))))),
    (Invariant.PODS_SHARE_NO_CPUS, "pod uid-web holds CPUs 1,9 that another pod holds too", lambda: damaged(STATIC, (WEB, DB), lambda p: holding(p, "uid-web", cpus=p.of_pod("uid-db").of(CpuHoldings).cpus) if str(own_set_of(p, "uid-db", "app")) == "1,9" else holding(p, "uid-db", cpus=p.of_pod("uid-web").of(CpuHoldings).cpus))),
    (Invariant.SHARED_POOL_HAS_THE_REST, "the shared pool has CPUs 0,8, but no pod holds 0,2-8,10-15", lambda: damaged(STATIC, (WEB,), lambda p: with_default_set(p, CpuSet.of(0, 8)))),
    (Invariant.RESERVED_CPUS_ARE_FREE, "reserved CPUs 8 are held by a pod", lambda: damaged(STATIC, (WEB,), lambda p: holding(p, "uid-web", cpus=(("app", CpuSet.of(1, 8)),)))),
    (Invariant.CPUS_ARE_OF_THE_POD, "pod uid-web, container a: CPUs 15 are not all among the pod's 1-3,9-11", lambda: damaged(BY_POD, (APART,), lambda p: holding(p, "uid-web", cpus=(("a", CpuSet.of(15)),)))),
    (Invariant.CONTAINERS_SHARE_NO_CPUS, "pod uid-web, container b: CPUs 1,9 are also held by container a", lambda: damaged(BY_POD, (APART,), lambda p: holding(p, "uid-web", cpus=tuple((name, p.of_pod("uid-web").of(CpuHoldings).cpus[0][1]) for name in ("a", "b"))))),
    (Invariant.MEMORY_ADDS_UP, "NUMA node 0: 1073741824 + 6442450945 bytes of memory reserved and free, 7516192768 allocatable", lambda: damaged(WITH_MEMORY, (WEB,), overbooked)),
    (Invariant.MEMORY_IS_OF_THE_PROMISES, "[memorymanager] the expected machine state is different from the real one", lambda: damaged(WITH_MEMORY, (WEB,), overbooked)),
    (Invariant.CLAIMS_ARE_HELD, "pod uid-web: claim default/nic has pci-0000-3b-00-0, which none of its containers holds", lambda: damaged(STATIC, (WEB,), lambda p: holding(p, "uid-web", claims=(ClaimAllocation("default/nic", "nic", (AllocatedDevice("nic", "nodeagent.io", "pci-0000-3b-00-0"),)),)))),
    (Invariant.DEVICES_HAVE_ONE_OWNER, "pod uid-db, container app: device 0000:3b:00.0 is also held by pod uid-web, container app", lambda: damaged(STATIC, (WEB, DB), lambda p: holding(holding(p, "uid-web", devices=CARD), "uid-db", devices=CARD))),
    (Invariant.ONE_ENTRY_PER_UID, "pod uid-web has two entries", lambda: entries_of(lambda s: replace(s, entries=s.entries * 2))),
    (Invariant.ONE_ENTRY_PER_NAME, "pod default/web has two entries", lambda: entries_of(lambda s: replace(s, entries=s.entries * 2))),
    (Invariant.ONE_STATUS_PER_CONTAINER, "pod uid-web: statuses of containers [], expected ['app']", lambda: entries_of(lambda s: replace(s, entries=(replace(s.entries[0], containers=()),)))),
]  # fmt: skip
SHORT: list[tuple[str, Callable[[], tuple[str, ...]]]] = [
    ("CPUs 99 of 1,99 are offline", lambda: short(NOTHING.having(CpuHoldings(cpus=(("app", CpuSet.of(1, 99)),))), CpuBooks(CpuSet.parse("0,2-15")))),
    ("memory is allocated on NUMA nodes 7, which are gone", lambda: short(block(NumaSet.of(0, 7), GIB))),
    ("NUMA node 0: 1073741824 more bytes of memory are allocated", lambda: short(block(NumaSet.of(0), 8 * GIB))),
]  # fmt: skip


@pytest.mark.parametrize(("invariant", "text", "provoke"), BROKEN, ids=[row[0] for row in BROKEN])
def test_a_broken_promise_is_named_with_its_pod_or_node(
    invariant: Invariant, text: str, provoke: Callable[[], tuple[Violation, ...]]
) -> None:
    assert text in [violation.text for violation in provoke() if violation.invariant is invariant]


def test_every_invariant_is_broken_once() -> None:
    assert {row[0] for row in BROKEN} == set(Invariant)


@pytest.mark.parametrize(("named", "provoke"), SHORT, ids=[row[0] for row in SHORT])
def test_what_the_machine_cannot_keep_is_named_with_its_pod_or_node(
    named: str, provoke: Callable[[], tuple[str, ...]]
) -> None:
    assert any(named in text for text in provoke()), provoke()


# What keeps a command from entering a container


def kept_out(
    world: World, *, observed: dict[str, ObservedCgroup] | None = None, below: tuple[str, ...] = ()
) -> Obstacle:
    entry = world.state.entries[0]
    found = find_obstacle(
        entry,
        "slot",
        desired=world.desired_cgroups(),
        observed=world.observed() if observed is None else observed,
        used_below=below,
    )
    assert found is not None
    return found


def one(*statuses: Any, command: bool = False, **more: Any) -> World:
    fields_of_it: dict[str, Any] = {} if command else {"command": ()}
    return World().add(pod("web", app("slot", cpu="2", memory="64Mi", **fields_of_it)), *statuses, **more)


def with_cgroup(change: Callable[[ObservedCgroup], ObservedCgroup]) -> Obstacle:
    world = one()
    observed = world.observed()
    return kept_out(world, observed={**observed, "poduid-web/slot": change(observed["poduid-web/slot"])})


def refused_pod() -> Obstacle:
    world = one()
    entry = replace(world.state.entries[0], refusal=Waiting("OutOfcpu", "too little", NOW_MS), containers=())
    world.state = replace(world.state, entries=(entry,))
    return kept_out(world, observed={})


def starved() -> Obstacle:
    strict = Placement("static", (("strict-cpu-reservation", "true"),), CpuSet.of(0))
    world = World(placement=strict).add(pod("web", app("slot", command=())))
    return kept_out(world.add(pod("greedy", app("app", cpu="7", memory="64Mi"))))


def with_an_orphan() -> Obstacle:
    world = one()
    observed = world.observed()
    there = replace(observed["poduid-web/slot"], path="podgone", is_populated=True, cpus_effective=CpuSet.of(5))
    return kept_out(world, observed={**observed, "podgone": there})


OBSTACLES: list[tuple[str, Callable[[], Obstacle]]] = [
    ("pod default/web was refused: OutOfcpu", refused_pod),
    ("pod default/web is being ended", lambda: kept_out(one(deleting_since_ms=NOW_MS))),
    ("pod default/web has finished (Failed)", lambda: kept_out(one(ended("slot"), command=True, outcome=Phase.FAILED))),
    ("container slot of pod default/web is not running", lambda: kept_out(one(ended("slot", 1), command=True))),
    ("container slot of pod default/web is being stopped", lambda: kept_out(one(running("slot", stop_by_ms=NOW_MS), command=True))),
    ("there is no cgroup poduid-web/slot yet", lambda: kept_out(one(), observed={})),
    ("Starved", starved),
    ("frozen", lambda: with_cgroup(lambda s: changed(s, Attribute.FREEZE, value=True))),
    ("parent of other cgroups (ctr)", lambda: kept_out(one(), below=("ctr",))),
    ("cpuset.mems of poduid-web/slot is '1'", lambda: with_cgroup(lambda s: changed(s, Attribute.CPUSET_MEMS, NumaSet.of(1)))),
    ("cpuset.cpus.effective of poduid-web/slot is '1'", lambda: with_cgroup(lambda s: replace(s, cpus_effective=CpuSet.of(1)))),
    ("another cgroup (podgone) may run on its exclusive CPUs 5", with_an_orphan),
]  # fmt: skip


@pytest.mark.parametrize(("named", "provoke"), OBSTACLES, ids=[row[0] for row in OBSTACLES])
def test_an_obstacle_names_its_value_and_the_next_step(named: str, provoke: Callable[[], Obstacle]) -> None:
    found = provoke()
    assert named in found.why
    assert STEP.search(found.next_step), found.next_step


# Differences


SLOT = "poduid-web/slot"
DIFFERENCES: list[tuple[Difference, Callable[[dict[str, ObservedCgroup]], dict[str, ObservedCgroup]]]] = [
    (Difference(SLOT, None, "a cgroup", "none"), lambda s: {path: there for path, there in s.items() if path != SLOT}),
    (
        Difference("podgone", None, "no cgroup", "an empty cgroup without a pod"),
        lambda s: s | {"podgone": replace(s["poduid-web"], path="podgone")},
    ),
    (
        Difference("poduid-web", "cgroup.subtree_control", "cpu cpuset memory", "without them"),
        lambda s: s | {"poduid-web": replace(s["poduid-web"], subtree_control=frozenset())},
    ),
    (Difference(SLOT, "cpu.weight", "174", "7"), lambda s: s | {SLOT: changed(s[SLOT], Attribute.CPU_WEIGHT, 7)}),
    (
        Difference(SLOT, "cpuset.cpus.effective", "1,5", "1"),
        lambda s: s | {SLOT: replace(s[SLOT], cpus_effective=CpuSet.of(1))},
    ),
    (
        Difference(SLOT, "cpuset.mems.effective", "0-1", "1"),
        lambda s: s | {SLOT: replace(s[SLOT], mems_effective=NumaSet.of(1))},
    ),
    (
        Difference(SLOT, "cgroup.events", "frozen 0", "frozen 1: a parent cgroup is frozen"),
        lambda s: s | {SLOT: replace(s[SLOT], is_frozen=True)},
    ),
]


@pytest.mark.parametrize(("expected", "meddle"), DIFFERENCES, ids=[f"{d.path} {d.file}" for d, _ in DIFFERENCES])
def test_a_difference_names_file_promise_and_what_is_there(
    expected: Difference, meddle: Callable[[dict[str, ObservedCgroup]], dict[str, ObservedCgroup]]
) -> None:
    world = one()
    observed = meddle(world.observed())
    assert expected in find_differences(diff(world.desired_cgroups(), observed), world.desired_cgroups(), observed)
