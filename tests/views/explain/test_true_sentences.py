"""Every sentence about a refusal is true: odd machines and odd amounts, against what the decision compared."""

import re
from collections.abc import Callable
from fractions import Fraction
from itertools import combinations
from typing import Any

from hypothesis import assume, example, given, settings, strategies as st
from msgspec import Struct

from nodeagent.core.admission.managers import Admitted, Managers, build, initial
from nodeagent.core.admission.node_capacity import Insufficient, allocatable_of
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.explain.remedies import remedies
from nodeagent.core.explain.trace import Trace, trace
from nodeagent.core.model.config import Config, Placement, ReservedMemory
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Pod, Resources
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.resources.cpu.holdings import free_cpus
from nodeagent.core.resources.cpu.resource import CpuResource
from nodeagent.core.resources.memory.holdings import memory_accounts
from nodeagent.formats.manifest.pod_manifest import pod_from_document
from nodeagent.formats.topology.topology_spec import topology_from_spec
from nodeagent.views.explain.words import explain_refusal
from tests.core.explain.test_trace import carried_out

SHAPES = (
    "1s.4c.2t",
    "2s.2c.2t",
    "2c.2t.4e",
    "2s.1c.2t.2e",
    "1s.2n.3c.1t",
    "2s.2n.1c.2t",
    "3c.4t",
    "1c",
    "8s.1c.2t",
    "1c.4t.1e",
    "1s.1n.1c.2t.3e",
)
CPUS = (
    "1",
    "2",
    "3",
    "4",
    "5",
    "6",
    "7",
    "9",
    "40",
    "1500m",
    "2000m",
    "500m",
    "1e0",
    "0",
    "1.0001",
    "9223372036854775807",
    "16Ei",
    "2k",
)
MEMORY = (
    "64Mi",
    "1Gi",
    "3Gi",
    "1.5Gi",
    "0.1Gi",
    "500m",
    "1500m",
    "1073741824.5",
    "1e9",
    "100Gi",
    "2147483648",
    "2.5Ki",
    "16Ei",
    "9223372036854775807",
    "1E",
    "0.0000001",
    "1e-3",
)
RESERVED = Quantity.parse("512Mi")


class Refusal(Struct, frozen=True):
    before: WhatIf
    known: Trace

    @property
    def manager(self) -> Any:
        return self.before.managers.providers.of(CpuResource).manager

    @property
    def free(self) -> CpuSet:
        """The CPUs that were free for the container on which the decision ended."""
        return free_cpus(self.promises, self.manager.grantable)

    @property
    def promises(self) -> Any:
        decision = self.known.decision
        return self.before.promises if isinstance(decision, Insufficient) else decision.attempted

    @property
    def asked(self) -> Any:
        """What the decision asked for last: a container's CPUs, or those of the pod as a whole."""
        name = getattr(self.known.steps[-1], "container", None)
        return self.requests("the pod as a whole" if name is None else f"container {name}")

    def requests(self, name: str) -> Any:
        if name == "the pod as a whole":
            return self.known.demand
        return next(one for one in self.known.demand.containers if f"container {one.name}" == name)

    def whole_sums(self, cpus: int) -> set[int]:
        """All numbers of CPUs that whole cores have of which all CPUs are in the set."""
        cores = [core.size for core in self.manager.layout.cores if core.cpus & cpus == core.cpus]
        return {sum(some) for count in range(len(cores) + 1) for some in combinations(cores, count)}

    def memory_free(self, node: int) -> int:
        (found,) = [one for one in memory_accounts(self.promises) if one.id == node]
        return max(0, dict(found.tables)["memory"].free)


def size(text: str) -> int:
    return Quantity.parse(text).value()


def exact(text: str) -> Fraction:
    """Return an amount as it is written, however large it is."""
    found = re.fullmatch(r"([\d.]+)(m|[kMGTPE]|[KMGTPE]i)?", text)
    assert found is not None, text
    scales = {"m": Fraction(1, 1000), None: Fraction(1)}
    scales |= {f"{s}i": Fraction(1024 ** (n + 1)) for n, s in enumerate("KMGTPE")}
    scales |= {s: Fraction(1000 ** (n + 1)) for n, s in enumerate("kMGTPE")}
    return Fraction(found[1]) * scales[found[2]]


AMOUNT = r"(\d+(?:[KMGTPE]i|[MGTPE])?)"
ROUNDED = rf"({AMOUNT[1:-1]}|\d+\.\d[KMGTPE]i)"
COUNT = r"(\d+) CPUs?"
Check = Callable[[Refusal, re.Match[str]], bool]


def wants(it: Refusal, found: re.Match[str]) -> bool:
    return bool(it.requests(found[1]).cpus == int(found[2]))


def unread(it: Refusal, found: re.Match[str]) -> bool:
    return it.requests(found[1]).memory is None and size(found[3]) > 0


SENTENCES: list[tuple[str, Check]] = [
    (rf"(.*) wants {COUNT}, and full-pcpus-only allocates only whole cores(?: of {COUNT}|: .+)", wants),
    (r"(\d+) is not a multiple of (\d+)(, nor is .*)?", lambda _, m: int(m[1]) % int(m[2]) != 0),
    (rf"all cores together have {COUNT}", lambda it, m: int(m[1]) == len(it.before.managers.topology.online)),
    (r"(\d+) is not a sum of these(, nor is .*)?", lambda it, m: int(m[1]) not in it.whole_sums(it.manager.layout.online)),
    (
        rf"completely free: (.+), of {COUNT.replace('CPU', 'free CPU')} in total",
        lambda it, m: int(m[2]) == len(it.free) and it.asked.cpus not in it.whole_sums(it.free.bits),
    ),
    (
        rf"(\d+) cores? (?:is|are) completely free, {COUNT} in total(; [\d,-]+ are in partly used cores)?",
        lambda it, m: max(it.whole_sums(it.free.bits)) == int(m[1]) * it.manager.layout.per_core,
    ),
    (
        rf"(.*) wants {COUNT} exclusively, and (\d+) can still be allocated: (\d+) short",
        lambda it, m: wants(it, m) and int(m[3]) == len(it.free) and int(m[4]) == int(m[2]) - int(m[3]) > 0,
    ),
    (
        r"NUMA (\d+): (\d+) of (\d+) free.*",
        lambda it, m: int(m[2]) == len(it.free & it.before.managers.topology.nodes[int(m[1])]),
    ),
    (
        r"(.*) requests ([^ ]+|.+ bytes\)?) of memory, which is not a whole number of bytes",
        lambda it, m: it.requests(m[1]).memory is None,
    ),
    (
        rf"(.*) requests (memory) with a decimal point, an m or too many digits, which is not read as whole bytes: write {AMOUNT}",
        unread,
    ),
    (
        rf"(.*) wants {AMOUNT} of memory(?:: first on NUMA [\d,-]+ of the hint, or also on other nodes)?",
        lambda it, m: dict(it.requests(m[1]).memory)["memory"] == size(m[2]),
    ),
    (rf"NUMA (\d+): {AMOUNT} of memory free(.*)", lambda it, m: it.memory_free(int(m[1])) == size(m[2])),
    (
        rf"{AMOUNT} of memory can still be allocated in total: {ROUNDED} short",
        lambda it, m: size(m[2]) > 0 and size(m[1]) == sum(it.memory_free(n.id) for n in memory_accounts(it.promises)),
    ),
    (r"no (\d+) NUMA nodes together have more than (.*) free: (.+) short", lambda _, m: int(m[1]) > 1),
    (
        r"there is enough in total, but a NUMA node whose memory is already in use alone or in a group can't join another group",
        lambda it, _: len(memory_accounts(it.promises)) > 1,
    ),
    (
        r"(.*) wants (.+) (on .*NUMA node.*|each on .*) \(topologyManagerPolicy (.*)\)",
        lambda it, m: m[4] == it.before.managers.placement.topology_manager_policy and m[2] != "nothing of its own",
    ),
    (
        r"(?:no NUMA node is large enough: the largest|the node is not large enough: it) has (\d+) CPUs?",
        lambda it, m: it.known.demand.cpus > int(m[1]) or any(c.cpus > int(m[1]) for c in it.known.demand.containers),
    ),
    (
        rf"(?:no NUMA node is large enough: the largest|the node is not large enough: it) has {AMOUNT} of memory",
        lambda it, m: any(size(m[1]) < dict(c.memory or ()).get("memory", 0) for c in it.known.demand.containers)
        or size(m[1]) < dict(it.known.demand.memory or ()).get("memory", 0),
    ),
    (rf"{COUNT}(?: in whole cores)? can still be allocated in total: (\d+) short", lambda _, m: int(m[2]) > 0),
    (r"NUMA (\d+): (.*)", lambda _, m: not re.search(r"\b0 short|(?<!\d)-\d", m[2])),
    (r"and \d+ NUMA nodes? that ha(?:s|ve) less", lambda *_: True),
    (r"no set of NUMA nodes suits all resources: (.*)", lambda _, m: "cpu would be on" in m[1] and "memory" in m[1]),
    (
        r"the pod requests (\S+) (cpu|memory); of (\S+) for pods, (\S+) left: (\S+) short",
        lambda _, m: 0 < (missing := exact(m[1]) - exact(m[4])) <= exact(m[5]) <= missing * (1 if "." not in m[5] else Fraction(11, 10)),
    ),
    (r"the (\d+) pods? on the node requests? (\S+) of it", lambda it, m: int(m[1]) == len(it.before.pods)),
    (r"this is checked for the whole node \(checkAllocatable\), before single CPUs and NUMA nodes", lambda *_: True),
    (
        r"container (.*) has no exclusive CPUs: (.*)",
        lambda it, m: next(c for c in it.known.demand.containers if c.name == m[1]).cpus == 0,
    ),
]  # fmt: skip


def make_pod(name: str, amounts: tuple[tuple[str, str], ...]) -> Pod:
    containers = [
        {"name": f"c{number}", "resources": {part: {"cpu": cpu, "memory": memory} for part in ("requests", "limits")}}
        for number, (cpu, memory) in enumerate(amounts)
    ]
    return pod_from_document({"metadata": {"name": name, "uid": name}, "spec": {"containers": containers}})


def empty_node(shape: str, *options: str) -> WhatIf:
    placement = Placement("static", tuple((name, "true") for name in options), CpuSet.of(0))
    managers = build(topology_from_spec(f"{shape},memory=4Gi"), placement)
    assert isinstance(managers, Managers)
    return WhatIf.of(managers, initial(managers))


@st.composite
def nodes(draw: st.DrawFn) -> WhatIf:
    topology = topology_from_spec(f"{draw(st.sampled_from(SHAPES))},memory=4Gi")
    every = sorted(topology.online)
    offline = draw(st.sets(st.sampled_from(every), max_size=2)) if len(every) > 3 else set[int]()
    topology = topology.without(CpuSet.from_ids(offline))
    left = sorted(topology.online)
    reserved = CpuSet.from_ids(draw(st.sets(st.sampled_from(left), min_size=1, max_size=max(1, len(left) // 2))))
    options = draw(
        st.sets(st.sampled_from(["full-pcpus-only", "strict-cpu-reservation", "distribute-cpus-across-numa"]))
    )
    static_memory = draw(st.booleans())
    placement = Placement(
        "static",
        tuple((name, "true") for name in sorted(options)),
        reserved,
        topology_manager_policy=draw(st.sampled_from(["none", "best-effort", "restricted", "single-numa-node"])),
        topology_manager_scope=draw(st.sampled_from(["container", "pod"])),
        memory_manager_policy="Static" if static_memory else "None",
        reserved_memory=(ReservedMemory(0, Resources.of({"memory": RESERVED})),) if static_memory else (),
        memory_reservation=Resources.of({"memory": RESERVED}) if static_memory else Resources(),
    )
    managers = build(topology, placement)
    assume(isinstance(managers, Managers))
    assert isinstance(managers, Managers)
    allocatable = allocatable_of(
        Config(placement), cpu_count=len(left), memory_bytes=topology.memory_bytes, hugepages=()
    )
    checks_capacity = draw(st.booleans())
    what_if = WhatIf.of(managers, initial(managers), (), allocatable if checks_capacity else None)
    amount = st.tuples(st.sampled_from(("1", "2", "3", "500m")), st.sampled_from(("64Mi", "1Gi", "3Gi")))
    for number, amounts in enumerate(draw(st.lists(st.lists(amount, min_size=1, max_size=2), max_size=3))):
        other = make_pod(f"other{number}", tuple(amounts))
        what_if = what_if.after(other, what_if.judge(other))
    return what_if


@settings(max_examples=300, deadline=None)
@example(empty_node("1s.2n.3c.1t"), [("1", "1E")])
@example(empty_node("1s.2n.3c.1t", "full-pcpus-only"), [("7", "64Mi")])
@example(empty_node("2c.2t.4e", "full-pcpus-only"), [("9", "64Mi")])
@given(nodes(), st.lists(st.tuples(st.sampled_from(CPUS), st.sampled_from(MEMORY)), min_size=1, max_size=2))
def test_each_sentence_about_a_refusal_is_true(before: WhatIf, amounts: list[tuple[str, str]]) -> None:
    of = make_pod("p", tuple(amounts))
    known = trace(before, of)
    if isinstance(known.decision, Admitted):
        return
    it = Refusal(before, known)
    said = explain_refusal(before, known)
    reasons = 0
    for sentence in said:
        found = next(((check, m) for form, check in SENTENCES if (m := re.fullmatch(form, sentence))), None)
        assert found is not None, f"{sentence!r} is of no known form (in {said}, {known.decision})"
        check, match = found
        assert check(it, match), f"{sentence!r} is not true (in {said}, {known.decision})"
        reasons += " wants " not in sentence
    assert reasons, f"nothing in {said} says why: {known.decision}"
    for remedy in remedies(before, of).found:
        assert not any(amount.after == amount.before for amount in remedy.amounts)
        assert isinstance(carried_out(remedy, before, of), Admitted), remedy
