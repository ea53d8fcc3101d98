"""What is said of classes of cores on a node that has several: by an inspection, and by a drawing."""

from nodeagent.core.model.config import Placement
from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.node_view import ViewReader, view_document
from nodeagent.formats.syntax.json_values import JsonValue
from nodeagent.tools.export.svg import render_svg
from nodeagent.views.inspect.document import inspect_node
from nodeagent.views.inspect.text import render, render_in_full
from nodeagent.views.topology.cpu_owners import label_cpus
from nodeagent.views.topology.text import render_topology
from tests.support import json_schema
from tests.support.builders import hybrid
from tests.support.inspected_nodes import World, idle
from tests.support.pods import app, pod


def hybrid_node(shared: str = "efficiency") -> World:
    placement = Placement("static", reserved_system_cpus=CpuSet.of(8), shared_core_class=shared)
    return (
        World(hybrid(), placement)
        .add(pod("fast", app(cpu="2", memory="64Mi"), core_class="performance"))
        .add(pod("both", app(cpu="7", memory="64Mi"), preferred_core_class="performance"))
        .add(pod("web", app(cpu="100m", memory="64Mi")))
    )


def test_an_inspection_has_the_classes_of_the_machine_and_of_each_pods_cpus() -> None:
    document = inspect_node(hybrid_node().view())
    json_schema.check(document, "inspection")
    assert document["node"]["coreClasses"] == {"performance": "0-7", "efficiency": "8-11"}
    assert document["node"]["policies"]["sharedCoreClass"] == "efficiency"
    asked = {p["name"]: (p["coreClass"], p["preferredCoreClass"]) for p in document["pods"]}
    assert asked == {"fast": ("performance", None), "both": (None, "performance"), "web": (None, None)}
    has = {p["name"]: c["coreClasses"] for p in document["pods"] for c in p["containers"]}
    assert has == {"fast": ["performance"], "both": ["performance", "efficiency"], "web": []}


def test_its_text_has_them_too() -> None:
    node = hybrid_node()
    text = " ".join(render(inspect_node(node.view())).split())
    assert "cores performance 0-7, efficiency 8-11" in text
    assert "shared 8 (1 CPU, 1000m; can be allocated exclusively: 6-7)" in text
    assert "(whole), performance cores" in text
    full = " ".join(render_in_full(inspect_node(node.view(), frozenset({"uid-fast"}))).split())
    assert "requires performance cores" in full
    assert "allocated CPUs 0-1 on performance cores" in full
    wishing = " ".join(render_in_full(inspect_node(node.view(), frozenset({"uid-both"}))).split())
    assert "prefers performance cores" in wishing
    assert "on performance and efficiency cores" in wishing


def test_where_all_cores_are_alike_there_is_no_word_of_it() -> None:
    document = inspect_node(idle().view())
    assert document["node"]["coreClasses"] == {}
    assert "performance" not in render(document)


def test_what_the_agent_publishes_keeps_it() -> None:
    view = hybrid_node().view()
    again = ViewReader()(JsonValue(view_document(view)))
    assert again.node.config.placement.shared_core_class == "efficiency"
    assert [(p.pod.core_class, p.pod.preferred_core_class) for p in again.state.entries] == [
        ("performance", None),
        (None, "performance"),
        (None, None),
    ]


def test_a_drawing_shows_who_may_be_where() -> None:
    node = World(hybrid(), Placement("static", reserved_system_cpus=CpuSet.of(8), shared_core_class="efficiency"))
    labels = label_cpus(node.managers, node.state.promises, ())
    assert [labels[cpu] for cpu in (0, 7, 8, 9, 11)] == ["free", "free", "reserved", "shared", "shared"]
    text = render_topology(node.managers.topology, labels)
    assert "performance cores 0-7, efficiency cores 8-11" in " ".join(text.split())
    assert "[ 0-  1-]" in text
    assert "-  free" in text
    assert "<title>CPU 0: free</title>" in render_svg(node.managers.topology, labels)
    plain = label_cpus(hybrid_node("any").managers, node.state.promises, ())
    assert set(plain.values()) == {"reserved", "shared"}
