"""Containers of a real containerd, which asks over NRI: what is answered is what the kernel has."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from integration.containerd import NRI_SOCKET, Containerd, CriPod, guaranteed
from integration.guest.guest import Guest
from integration.node import Node

PLUGIN = """
import json, sys
from pathlib import Path
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.nri import Answer, Event, NriResources
from nodeagent.daemon.runtime_link import RuntimeLink

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
def containerd(node: Node) -> Iterator[Containerd]:
    with Containerd(node) as containerd:
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
    pod = CriPod("web")
    sandbox = containerd.run_pod(pod)
    container = containerd.run(pod, sandbox, "app", guaranteed(2000))
    assert node.value(pod.container_cgroup(container), "cpuset.cpus.effective") == "6-7"
    wait_told("START_CONTAINER")
    containerd.restart()
    wait_told("synchronized", 2)
    containerd.stop(container)
    containerd.remove(container)
    wait_told("REMOVE_CONTAINER")
    events = [row for row in told() if row[0].isupper()]
    names = ["CREATE_CONTAINER", "START_CONTAINER", "STOP_CONTAINER", "REMOVE_CONTAINER"]
    assert events == [[name, "app", pod.parent] for name in names]
    assert [row[1] for row in told() if row[0] == "synchronized"] == [[], ["app"]]
    plugin.signal(9)
