"""What an inspection says of `hostIsolation`: whose CPUs are closed to the host, and why others' are not."""

from msgspec.structs import replace

from nodeagent.core.cgroups.partitions import PARTITION_ATTRIBUTES
from nodeagent.core.model.cgroup import Attribute, ObservedCgroup, Partition, PartitionKind
from nodeagent.core.model.cgroup_layout import is_above
from nodeagent.views.inspect.document import inspect_node
from nodeagent.views.inspect.text import render, render_in_full
from tests.support.inspected_nodes import World
from tests.support.pods import app, burstable, init, mixed, pod

PARTITION = Attribute.CPUSET_CPUS_PARTITION


def isolating() -> World:
    return World(host_isolation="partition")


def with_partition(there: ObservedCgroup, value: Partition) -> ObservedCgroup:
    attributes = tuple((name, value if name is PARTITION else old) for name, old in there.attributes)
    return replace(there, attributes=attributes)


def test_exclusive_cpus_are_closed_to_the_host() -> None:
    view = (
        isolating()
        .add(pod("web", app("own", cpu="1"), app("beside", cpu="100m")))
        .add(pod("db", app("app", cpu="2")))
        .view()
    )
    document = inspect_node(view)
    shown = {c["name"]: c["partition"] for p in document["pods"] for c in p["containers"]}
    assert shown == {"own": "root", "beside": None, "app": "root"}, "its own, none, its pod's"
    assert document["differences"] == []
    assert "exclusive, closed to the host: socket 0" in render(document)
    assert "host (partition root)" in render_in_full(inspect_node(view, frozenset({"uid-db"})))


def test_on_an_older_kernel_they_are_by_systemd() -> None:
    world = isolating().add(pod("web", app("own", cpu="1"), app("beside", cpu="100m")))
    observed = {
        path: replace(there, attributes=tuple(each for each in there.attributes if each[0] not in PARTITION_ATTRIBUTES))
        for path, there in world.observed().items()
        if not is_above(path)
    }
    document = inspect_node(world.view(cgroups=observed))
    shown = {c["name"]: c["closedToHost"] for p in document["pods"] for c in p["containers"]}
    assert shown == {"own": "systemd", "beside": None}
    assert document["differences"] == []
    assert "exclusive, closed to the host: socket 0" in render(document)
    assert "host (systemd's AllowedCPUs)" in render_in_full(
        inspect_node(world.view(cgroups=observed), frozenset({"uid-web"}))
    )


def test_one_that_the_kernel_has_ended_is_a_difference_with_its_reason() -> None:
    world = isolating().add(pod("web", app("app", cpu="2")))
    observed = world.observed()
    ended = Partition(PartitionKind.ROOT, "Cpu list in cpuset.cpus.exclusive not exclusive")
    observed["poduid-web"] = with_partition(observed["poduid-web"], ended)
    document = inspect_node(world.view(cgroups=observed))
    (difference,) = document["differences"]
    assert (difference["file"], difference["promised"]) == ("cpuset.cpus.partition", "root")
    assert difference["found"] == "root invalid (Cpu list in cpuset.cpus.exclusive not exclusive)"
    assert "closed to the host" not in render(document)


def test_why_one_cannot_have_a_partition_is_said() -> None:
    world = isolating().add(pod("web", init("first", cpu="1"), app("app", cpu="1"), app("beside", cpu="100m")))
    (shown,) = inspect_node(world.view())["pods"]
    notes = {c["name"]: " ".join(c["notes"]) for c in shown["containers"]}
    assert "an init container has the same CPUs" in notes["app"]
    assert "the host" not in notes["beside"]


def test_why_a_mixed_container_and_one_of_a_burstable_pod_have_none_is_said() -> None:
    alone = mixed(cpu="2", resources=burstable("2"))
    (first, second) = inspect_node(isolating().add(pod("web", mixed())).add(pod("db", alone)).view())["pods"]
    assert "the container also uses the shared pool" in " ".join(first["containers"][0]["notes"])
    assert "the pod is not Guaranteed" in " ".join(second["containers"][0]["notes"])


def test_without_the_setting_nothing_is_said() -> None:
    document = inspect_node(World().add(pod("web", app("app", cpu="2"))).view())
    assert [c["partition"] for p in document["pods"] for c in p["containers"]] == [None]
    assert "host:" not in render(document)


def test_an_annotation_that_has_no_effect_is_said() -> None:
    asking = pod("web", app("app", cpu="2", interrupts=("eth0",)), is_isolated=True)
    (shown,) = inspect_node(World().add(asking).view())["pods"]
    off, interrupts = shown["containers"][0]["notes"]
    assert off == "no isolated partition, although its annotation requests one: hostIsolation is none"
    assert "the interrupts of eth0 aren't moved to its CPUs" in interrupts
    world = isolating().add(asking)
    older = {
        path: replace(there, attributes=tuple(one for one in there.attributes if one[0] not in PARTITION_ATTRIBUTES))
        for path, there in world.observed().items()
    }
    (shown,) = inspect_node(world.view(cgroups=older))["pods"]
    assert "this needs kernel 6.7 or later" in shown["containers"][0]["notes"][0]
