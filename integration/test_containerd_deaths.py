"""Agent or containerd die at each message between them, or a hundred containers are told of at once: all come to where they belong."""

from collections.abc import Iterator

import pytest

from integration.containerd import Containerd, CriPod, burstable, guaranteed, plugged_in
from integration.guest.guest import Guest
from integration.node import Node
from integration.other_agent import other_agent
from integration.overlap.dying_agent import AFTER, AGENT, BEFORE, CONTAINERD, SYNCHRONIZE, WHEN
from integration.persistent_cri import DISTURBED_SECONDS, PersistentCri
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.nri import Event
from nodeagent.daemon.domains.runtime.exchange import RuntimeExchange
from tests.support.figures import Recorder, report

EVERYTHING = CpuSet.parse("0-15")
PODS, OF_EACH = 4, 25
APP = "app"


@pytest.fixture
def node(four_nodes: Guest) -> Node:
    return Node(four_nodes)


@pytest.fixture
def containerd(node: Node) -> Iterator[Containerd]:
    with Containerd(node) as containerd:
        yield containerd


def effective(node: Node, pod: CriPod, container: str) -> CpuSet:
    return CpuSet.parse(node.value(pod.container_cgroup(container), "cpuset.cpus.effective"))


def own(node: Node, pod: CriPod) -> CpuSet:
    return CpuSet.parse(node.state()["promises"]["pods"].get(pod.uid, {}).get("cpus", {}).get(APP, ""))


def wait_placed(node: Node, pod: CriPod, container: str, after: str) -> None:
    """Wait until a container has the CPUs that are promised to it."""
    node.until(
        lambda: (effective(node, pod, container) == own(node, pod) != CpuSet()) or None,
        lambda: f"{after}: {pod.name} is on {effective(node, pod, container)}, promised are {own(node, pod)}",
        DISTURBED_SECONDS,
    )


def wait_for(node: Node, pod: CriPod, container: str, cpus: CpuSet, after: str) -> None:
    node.until(
        lambda: effective(node, pod, container) == cpus or None,
        lambda: f"{after}: {pod.name} is on {effective(node, pod, container)}, and not on {cpus}",
        DISTURBED_SECONDS,
    )


def wait_without_differences(node: Node, after: str) -> None:
    node.until(
        lambda: node.inspect()["differences"] == [] or None,
        lambda: f"{after}: {node.inspect()['differences']}",
        DISTURBED_SECONDS,
    )


@pytest.mark.long
@pytest.mark.configures
@pytest.mark.parametrize("who", [AGENT, CONTAINERD])
def test_whoever_dies_at_whatever_message_everybody_is_where_they_belong_in_the_end(
    node: Node, containerd: Containerd, who: str
) -> None:
    messages = (*sorted(event.name for event in RuntimeExchange.events), SYNCHRONIZE)
    shared = CriPod("shared", "burstable")
    with other_agent(node, "dying_agent"), plugged_in(node, containerd):
        cri = PersistentCri(containerd, node)
        sharing = cri.run(shared, APP, burstable(500))
        for number, (message, when) in enumerate((one, when) for one in messages for when in (BEFORE, AFTER)):
            said = f"{who} dies {when} {message}"
            cursor = node.cursor()
            node.guest.put(str(WHEN), f"{message} {who} {when}\n")
            if message == SYNCHRONIZE:
                containerd.restart()
            web = CriPod(f"web{number}")
            app = cri.run(web, APP, guaranteed(2000))
            if message == Event.UPDATE_CONTAINER.name:
                cri.update(app, guaranteed(2000))
            wait_placed(node, web, app, said)
            wait_for(node, shared, sharing, EVERYTHING - own(node, web), said)
            wait_without_differences(node, said)
            cri.remove(web)
            assert node.run(f"test ! -e {WHEN}", check=False).returncode == 0, f"{said}: nobody has died"
            node.wait_log(cursor, "runtime_linked")


@pytest.mark.long
@pytest.mark.configures
def test_a_hundred_containers_that_were_there_before_the_agent_get_their_places(
    node: Node, containerd: Containerd, record_property: Recorder
) -> None:
    """Their list is told in several parts, and what is changed about them fills more than a frame."""
    shared = tuple(CriPod(f"shared{number}", "burstable") for number in range(PODS))
    there = []
    for pod in shared:
        sandbox = containerd.run_pod(pod)
        there += [(pod, containerd.run(pod, sandbox, f"app{number}", burstable(10))) for number in range(OF_EACH)]
    web = CriPod("web")
    app = containerd.run(web, containerd.run_pod(web), APP, guaranteed(2000))
    assert effective(node, web, app) == EVERYTHING, "nobody has been asked"
    with plugged_in(node, containerd):
        wait_placed(node, web, app, "the agent has come")
        left = EVERYTHING - own(node, web)
        files = " ".join(f"{pod.container_cgroup(one)}/cpuset.cpus.effective" for pod, one in there)
        node.until(
            lambda: (node.run(f"sort {files} | uniq -c").stdout.split() == [str(len(there)), str(left)]) or None,
            lambda: node.run(f"sort {files} | uniq -c").stdout,
            DISTURBED_SECONDS,
        )
        assert node.inspect()["differences"] == []
        seen = node.wait_metric("nodeagent_runtime_unasked_containers_total", above=len(there))
        assert seen == len(there) + 1
        report(record_property, f"{len(there) + 1} containers taken over")
