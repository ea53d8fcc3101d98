"""spreadHugePages: huge pages on the NUMA nodes of the CPUs, in proportion to them."""

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace

from nodeagent.core.admission.managers import Admitted, Managers, admit, build, initial, remove_pod, violations
from nodeagent.core.model.promises import Promises
from nodeagent.core.resources.cpu.holdings import CpuHoldings
from nodeagent.core.resources.memory.accounting import breaks_group, free_of, page_size
from nodeagent.core.resources.memory.holdings import MemoryHoldings, memory_accounts
from tests.support.builders import GIB, admitted, machine, managers, pod
from tests.support.invariants import memory_errors, pool_errors, settled, shared_cpus
from tests.support.pods import app
from tests.support.shares import share_of

MIB = 2**20
PAGES = "hugepages-2Mi"


def node(*, on: bool = True, nodes: int = 2, **more: Any) -> Managers:
    given: dict[str, Any] = {"reserved_memory": {0: "1Gi"}, "spread_huge_pages": on, "reserved": "0"}
    return managers(machine(nodes=nodes, hugepages={PAGES: 2 * GIB}), **(given | more))


def taken(before: Promises, after: Promises, resource: str = PAGES) -> dict[int, int]:
    """Bytes by NUMA node that the books have given away."""
    pairs = zip(memory_accounts(before), memory_accounts(after), strict=True)
    return {
        now.id: old.free - new.free
        for then, now in pairs
        if (old := then.table(resource)) is not None and (new := now.table(resource)) is not None
    }


@pytest.mark.parametrize(
    ("options", "policy", "on", "pages"),
    [
        (("distribute-cpus-across-numa",), "none", False, {0: 1024, 1: 0}),  # all on node 0, as in kubelet
        (("distribute-cpus-across-numa",), "none", True, {0: 512, 1: 512}),
        (("distribute-cpus-across-numa",), "best-effort", True, {0: 512, 1: 512}),
        ((), "none", True, {0: 204, 1: 820}),  # 2 CPUs on node 0, and all 8 of node 1
    ],
)
def test_10_cpus_over_two_nodes_and_1024_pages(
    options: tuple[str, ...], policy: str, on: bool, pages: dict[int, int]
) -> None:
    of = node(on=on, options=options, topology_manager_policy=policy)
    promises = admitted(of, pod("a", app(cpu="10", memory="1Gi", hugepages_2Mi="2Gi")))
    assert taken(initial(of), promises) == {numa: count * 2 * MIB for numa, count in pages.items()}
    (own,) = (cpus for _, cpus in promises.of_pod("a").of(CpuHoldings).cpus)
    assert len(own) == 10


def test_without_huge_pages_or_with_cpus_of_one_node_nothing_changes() -> None:
    wanted = (pod("a", app(cpu="10", memory="1Gi")), pod("b", app(cpu="2", memory="1Gi", hugepages_2Mi="64Mi")))
    assert admitted(node(), *wanted) == admitted(node(on=False), *wanted)


some_pods = st.lists(
    st.tuples(
        st.integers(1, 14), st.sampled_from(["256Mi", "2Gi", "7Gi"]), st.sampled_from(["2Mi", "66Mi", "1Gi", "3Gi"])
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=share_of(400))
@given(
    st.integers(1, 3),
    st.sampled_from([(), ("full-pcpus-only",), ("distribute-cpus-across-numa",)]),
    st.sampled_from(["none", "none", "best-effort", "restricted"]),
    some_pods,
    st.data(),
)
def test_pages_are_where_the_cpus_are_and_nobody_is_refused_for_it(
    count: int, options: tuple[str, ...], policy: str, asked: list[tuple[int, str, str]], data: st.DataObject
) -> None:
    of = node(nodes=count, options=options, topology_manager_policy=policy)
    plain = build(of.topology, replace(of.placement, spread_huge_pages=False))
    assert isinstance(plain, Managers)
    promises, there = initial(of), []
    for number, (cpus, memory, pages) in enumerate(asked):
        new = pod(f"p{number}", app(cpu=str(cpus), memory=memory, hugepages_2Mi=pages))
        decision = admit(of, promises, new)
        assert isinstance(decision, Admitted) or not isinstance(admit(plain, promises, new), Admitted)
        if isinstance(decision, Admitted):
            held = decision.promises.of_pod(new.uid)
            own = held.of(CpuHoldings).own_set("app")
            assert own is not None
            of_node = {each: len(own & ids) for each, ids in of.topology.nodes.items() if own & ids}
            blocks = held.of(MemoryHoldings).blocks("app") or ()
            books = memory_accounts(promises)
            nodes = type(blocks[0].nodes).from_ids(of_node)
            sizes = {block.resource: block.size_bytes for block in blocks}
            if (
                len(of_node) > 1
                and not breaks_group(books, nodes)
                and all(free_of(books, nodes, resource) >= size for resource, size in sizes.items())
                and policy != "restricted"
            ):
                assert {block.nodes for block in blocks} == {nodes}
                for resource, size in sizes.items():
                    exact = {each: size * share / len(own) for each, share in of_node.items()}
                    free = {each: free_of(books, type(nodes).of(each), resource) for each in of_node}
                    if all(exact[each] + page_size(resource) <= free[each] for each in exact):
                        found = taken(promises, decision.promises, resource)
                        assert all(abs(found[each] - exact[each]) < page_size(resource) for each in exact)
            promises, there = decision.promises, [*there, new]
            assert violations(of, promises, tuple(there)) == ()
            assert (*shared_cpus(of, promises, there), *pool_errors(of, promises), *memory_errors(of, promises)) == ()
        if there and data.draw(st.integers(0, 3)) == 0:
            promises, _ = remove_pod(of, promises, there.pop(data.draw(st.integers(0, len(there) - 1))).uid)
    for gone in there:
        promises, _ = remove_pod(of, promises, gone.uid)
    assert settled(promises) == settled(initial(of)), "everything is given back"
