"""Containers of a real containerd, which asks over NRI: what is answered is what the kernel has."""

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from integration.containerd import (
    NRI_SOCKET,
    Containerd,
    CriPod,
    burstable,
    guaranteed,
    kubelet_saying,
    plugged_in,
)
from integration.guest.guest import Guest
from integration.guest.next_containerd import next_containerd
from integration.node import Document, Node, container, pod
from nodeagent.core.model.idset import CpuSet
from tests.support.figures import Recorder, report
from tests.support.pods import app as app_of, pod as pod_of

NEXT = "next"
EVERYTHING = CpuSet.parse("0-15")
PLUGIN = """
import json, sys
from pathlib import Path
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.nri import Answer, Event, NriResources
from nodeagent.daemon.domains.runtime.runtime_link import RuntimeLink

class Plugin:
    name, index = "test", 10
    events = frozenset({Event.CREATE_CONTAINER, Event.START_CONTAINER, Event.STOP_CONTAINER, Event.REMOVE_CONTAINER})

    def configure(self, runtime):
        self.tell("configured", runtime.version, list(runtime.nri_version))

    def synchronize(self, known, until):
        self.tell("synchronized", sorted(c.name for c in known.containers), [])
        return ()

    def handle(self, call, until):
        self.tell(call.event.name, call.container.name, call.sandbox.cgroup_parent)
        return Answer(NriResources(cpus=CpuSet.parse("6-7"))) if call.event is Event.CREATE_CONTAINER else Answer()

    def tell(self, *what):
        print(json.dumps(what), flush=True)

    def shut_down(self): ...
    def note(self, answered): ...

RuntimeLink(Path(sys.argv[1]), Plugin(), lambda err, seconds: print(json.dumps(["lost", str(err), []]), flush=True)).run()
"""


@pytest.fixture
def node(four_nodes: Guest) -> Node:
    return Node(four_nodes)


@pytest.fixture
def containerd(node: Node, request: pytest.FixtureRequest) -> Iterator[Containerd]:
    """Debian 13's, or that of Debian's next release where a test asks for it."""
    programs = next_containerd() if getattr(request, "param", "") == NEXT else None
    with Containerd(node, programs) as containerd:
        yield containerd


def test_a_plugin_is_called_for_everything_and_what_it_answers_is_what_the_kernel_has(
    node: Node, containerd: Containerd
) -> None:
    node.guest.put("/root/plugin.py", PLUGIN)
    plugin = node.guest.start(["/opt/nodeagent/bin/python", "/root/plugin.py", NRI_SOCKET])

    def told() -> list[list[Any]]:
        plugin.wait(0.05)
        return [json.loads(line) for line in bytes(plugin.stdout).decode().splitlines()]

    def wait_told(what: str, count: int = 1) -> None:
        node.until(
            lambda: [row for row in told() if row[0] == what][count - 1 :] or None,
            lambda: f"no {what} in {told()}, {bytes(plugin.stderr).decode()}",
        )

    wait_told("synchronized")
    assert told()[0][0] == "configured"
    assert told()[0][2] == [0, 6, 0]
    web = CriPod("web")
    sandbox = containerd.run_pod(web)
    app = containerd.run(web, sandbox, "app", guaranteed(2000))
    assert node.value(web.container_cgroup(app), "cpuset.cpus.effective") == "6-7"
    wait_told("START_CONTAINER")
    containerd.restart()
    wait_told("synchronized", 2)
    containerd.stop(app)
    containerd.remove(app)
    wait_told("REMOVE_CONTAINER")
    events = [row for row in told() if row[0].isupper()]
    names = ["CREATE_CONTAINER", "START_CONTAINER", "STOP_CONTAINER", "REMOVE_CONTAINER"]
    assert events == [[name, "app", web.parent] for name in names]
    assert [row[1] for row in told() if row[0] == "synchronized"] == [[], ["app"]]
    plugin.signal(9)


@pytest.fixture
def linked(node: Node, containerd: Containerd) -> Iterator[Containerd]:
    """The agent is containerd's plugin."""
    with plugged_in(node, containerd):
        yield containerd


def promised(state: Document, cri: CriPod) -> dict[str, str]:
    """The exclusive CPUs of a pod's containers."""
    found: dict[str, str] = state["promises"]["pods"].get(cri.uid, {}).get("cpus", {})
    return found


def cpus_of(node: Node, cri: CriPod, name: str) -> CpuSet:
    return CpuSet.parse(promised(node.state(), cri)[name])


def effective(node: Node, cri: CriPod, container_id: str) -> CpuSet:
    return CpuSet.parse(node.value(cri.container_cgroup(container_id), "cpuset.cpus.effective"))


@pytest.mark.parametrize(
    "containerd", ["", pytest.param(NEXT, marks=pytest.mark.long)], indirect=True, ids=["1.7", "2.1"]
)
@pytest.mark.configures
def test_containers_have_what_is_promised_beside_manifests_pods(
    node: Node, linked: Containerd, record_property: Recorder
) -> None:
    shared = CriPod("shared", "burstable")
    sharing = linked.run(shared, linked.run_pod(shared), "app", burstable(500))
    node.until(
        lambda: effective(node, shared, sharing) == EVERYTHING or None,
        lambda: f"it has begun on {effective(node, shared, sharing)} and does not get the pool",
    )
    web = CriPod("web")
    box = linked.run_pod(web)
    app = linked.run(web, box, "app", guaranteed(2000))
    own = cpus_of(node, web, "app")
    assert len(own) == 2
    assert effective(node, web, app) == own
    assert node.value(web.container_cgroup(app), "cpu.max").startswith("max "), "no quota beside exclusive CPUs"
    assert effective(node, shared, sharing) == EVERYTHING - own

    node.apply(pod("local", container("app", ["sleep", "infinity"], cpu="2")))
    node.wait_running("local")
    local = CpuSet.parse(node.state()["promises"]["pods"]["uid-local"]["cpus"]["app"])
    assert CpuSet.parse(node.value(node.cgroup("local", "app"), "cpuset.cpus.effective")) == local
    node.until(
        lambda: effective(node, shared, sharing) == EVERYTHING - own - local or None,
        lambda: f"{effective(node, shared, sharing)} are not without {own} and {local}",
    )
    side = linked.run(web, box, "side", guaranteed(1000))
    assert cpus_of(node, web, "app") == own, "what was there stays"
    assert effective(node, web, side) == cpus_of(node, web, "side")
    shown = node.inspect()
    assert shown["differences"] == []
    (found,) = (one for one in shown["pods"] if one["name"] == "web")
    assert found["source"] == "containerd"
    assert [one["cgroup"] for one in found["containers"]] == [web.container_cgroup(app), web.container_cgroup(side)]
    assert {one["state"]["name"] for one in found["containers"]} == {"Running"}
    large = CriPod("large")
    with pytest.raises(grpc.RpcError, match="OutOfcpu"):
        linked.run(large, linked.run_pod(large), "app", guaranteed(14_000))

    seen = node.metrics()
    name = "nodeagent_runtime_answer_duration_seconds"
    mean_ms = 1000 * seen[f"{name}_sum"] / seen[f"{name}_count"]
    slowest = min(
        float(series.split('"')[1])
        for series, count in seen.items()
        if series.startswith(f"{name}_bucket") and count == seen[f"{name}_count"]
    )
    report(
        record_property,
        f"{seen[f'{name}_count']:.0f} answers to containerd: {mean_ms:.0f} ms each, none over {slowest} s",
    )
    assert seen["nodeagent_runtime_late_answers_total"] == 0
    node.kill_agent()
    assert cpus_of(node, web, "app") == own
    linked.restart()
    cursor = node.cursor()
    linked.stop(app)
    linked.remove(app)
    node.wait(lambda state: "app" not in promised(state, web), "the container to be given back")
    node.until(
        lambda: effective(node, shared, sharing) >= own or None, lambda: f"{own} do not come back: {node.log(cursor)}"
    )
    node.delete("local")
    node.wait_gone("local")


@pytest.mark.configures
def test_a_container_is_resized_as_kubelet_asks_and_others_have_left_before(node: Node, linked: Containerd) -> None:
    shared, web = CriPod("shared", "burstable"), CriPod("web")
    sharing = linked.run(shared, linked.run_pod(shared), "app", burstable(500))
    app = linked.run(web, linked.run_pod(web), "app", guaranteed(2000))
    first = cpus_of(node, web, "app")

    linked.update(app, guaranteed(4000))
    grown = cpus_of(node, web, "app")
    assert (len(grown), grown >= first) == (4, True)
    node.until(
        lambda: effective(node, web, app) == grown or None, lambda: f"{effective(node, web, app)} are not {grown}"
    )
    assert effective(node, shared, sharing) == EVERYTHING - grown

    with pytest.raises(grpc.RpcError, match="ResizeInfeasible"):
        linked.update(app, guaranteed(500))
    assert cpus_of(node, web, "app") == grown, "what can't be had changes nothing"
    linked.update(app, guaranteed(2000))
    assert cpus_of(node, web, "app") == first
    node.until(
        lambda: (effective(node, web, app), effective(node, shared, sharing)) == (first, EVERYTHING - first) or None,
        lambda: f"{effective(node, web, app)} and {effective(node, shared, sharing)}, not {first} and the rest",
    )
    assert node.inspect()["differences"] == []


@pytest.mark.long
@pytest.mark.configures
def test_what_starts_while_the_agent_stands_still_is_found_and_put_where_it_belongs(
    node: Node, linked: Containerd
) -> None:
    web, late = CriPod("web"), CriPod("late")
    app = linked.run(web, linked.run_pod(web), "app", guaranteed(2000))
    own = cpus_of(node, web, "app")
    pid = node.main_pid()
    node.run(f"kill -STOP {pid}")
    started = linked.run(late, linked.run_pod(late), "app", guaranteed(3000))
    assert effective(node, late, started) == EVERYTHING, "containerd has gone on without an answer"
    node.run(f"kill -CONT {pid}")
    found = node.wait(lambda state: "app" in promised(state, late), "what has started unasked to be found")
    placed = CpuSet.parse(promised(found, late)["app"])
    node.until(
        lambda: effective(node, late, started) == placed or None,
        lambda: f"{effective(node, late, started)} are not {placed}",
    )
    assert placed.isdisjoint(own)
    assert effective(node, web, app) == own
    assert node.wait_metric("nodeagent_runtime_unasked_containers_total", above=0) == 1
    assert node.inspect()["differences"] == []


@pytest.mark.long
@pytest.mark.configures
def test_a_container_that_has_left_its_cpus_unasked_is_put_back(node: Node, linked: Containerd) -> None:
    web = CriPod("web")
    app = linked.run(web, linked.run_pod(web), "app", guaranteed(2000))
    own = cpus_of(node, web, "app")
    node.run(f"systemctl set-property --runtime {web.container_cgroup(app).rpartition('/')[2]} AllowedCPUs=0-15")
    assert effective(node, web, app) == EVERYTHING
    node.until(lambda: effective(node, web, app) == own or None, lambda: f"{effective(node, web, app)} are not {own}")
    linked.update(app, guaranteed(2000))
    assert effective(node, web, app) == own, "an update of kubelet's leaves them"


@pytest.mark.long
@pytest.mark.configures
def test_what_kubelet_says_of_a_pod_is_known_and_stays_known(node: Node, linked: Containerd) -> None:
    """An update has kubelet asked again: in an emulated guest its answer may be late."""
    of = pod_of("web", app_of("app", "2", "32Mi"), app_of("side", "1", "32Mi"))
    web = CriPod("web")

    def estimates() -> list[str]:
        (found,) = (one for one in node.inspect()["pods"] if one["name"] == "web")
        return [one["what"] for one in found["estimates"]]

    with kubelet_saying(node, of):
        box = linked.run_pod(web)
        app = linked.run(web, box, "app", guaranteed(2000))

        def is_said() -> bool | None:
            linked.update(app, guaranteed(2000))
            return bool(node.state()["runtime"].get("pods")) or None

        node.until(is_said, lambda: f"kubelet was not asked, or has not answered: {node.inspect_pod('web')}")
        assert estimates() == []
    node.kill_agent()
    assert estimates() == [], "it is saved, and nobody can be asked any more"
    own = cpus_of(node, web, "app")
    side = linked.run(web, box, "side", guaranteed(1000))
    assert effective(node, web, side) == cpus_of(node, web, "side")
    assert cpus_of(node, web, "app") == own
