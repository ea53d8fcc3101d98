"""Every manifest in examples/ on the configuration beside it: the kernel lets its processes have what its comment promises."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.examples import EXAMPLES, Example, Share, configurations
from integration.guest.guest import Guest
from integration.node import ROOT, WAIT_SECONDS, Document, Node
from integration.test_policies import members

pytestmark = pytest.mark.configures

ALL = {config.parent: examples for config, examples in configurations().items()}
POD_SCOPE = EXAMPLES / "pod-level-resources" / "pod-scope"
CONTAINER_SCOPE = EXAMPLES / "pod-level-resources" / "container-scope"
STRICT = EXAMPLES / "strict-reservation"
FOLLOWING = EXAMPLES / "most-allocated-numa-node"
LIMITS = {
    ("burstable", "batch"): "150000 100000",
    ("qos-below-its-limits", "nginx"): "200000 100000",
    ("qos-part-of-a-cpu", "nginx"): "150000 100000",
}
"""The quotas of containers that share the node's CPUs; the others there ask for no limit."""
UNLIMITED = "max 100000"
WHOLE_POD = "400000 100000"
"""What each pod of pod-level-resources/ that is admitted may use."""


@dataclass(frozen=True, slots=True)
class Had:
    """What a process may use."""

    cpus: frozenset[int]
    mems: frozenset[int]


@pytest.mark.parametrize("directory", ALL, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_every_configuration_has_a_guest(directory: Path) -> None:
    assert directory in {EXAMPLES, STRICT, CONTAINER_SCOPE, POD_SCOPE, FOLLOWING}


def test_pods_of_every_kind(two_sockets: Guest) -> None:
    node = Node(two_sockets)
    inspected = installed(node, EXAMPLES)
    had = checked(node, EXAMPLES, inspected)
    text = node.run("journalctl -b -o cat -q | grep -F 'prepared on CPUs' | tail -n 1").stdout
    prepared = re.search(r"Cpus_allowed_list:\s+(\S+)", text)
    assert prepared is not None, text
    assert members(prepared[1]) == had["init-and-sidecar", "app"].cpus, "the app reuses what it had"


@pytest.mark.long
def test_strictly_reserved_cpus_are_for_the_system_alone(two_sockets: Guest) -> None:
    node = Node(two_sockets)
    inspected = installed(node, STRICT)
    had = checked(node, STRICT, inspected)
    assert frozenset.union(*(h.cpus for h in had.values())) == frozenset(range(2, 16))


@pytest.mark.long
def test_resources_of_pods_limit_their_containers_in_container_scope(two_sockets: Guest) -> None:
    node = Node(two_sockets)
    inspected = installed(node, CONTAINER_SCOPE)
    checked(node, CONTAINER_SCOPE, inspected)
    assert {pod["podCpus"] for pod in inspected["pods"]} == {None}
    assert quotas_of_pods(node, inspected) == {example.name: WHOLE_POD for example in ALL[CONTAINER_SCOPE]}


def test_resources_of_pods_are_divided_in_pod_scope(two_sockets: Guest) -> None:
    node = Node(two_sockets)
    inspected = installed(node, POD_SCOPE)
    had = checked(node, POD_SCOPE, inspected)
    admitted = [pod for pod in inspected["pods"] if pod["refusal"] is None]
    assert {pod["name"] for pod in admitted} == {"pod-scope-mixed", "pod-scope-shared", "pod-scope-sidecars"}
    for pod in admitted:
        mine = [had[pod["name"], one["name"]] for one in pod["containers"]]
        together = frozenset.union(*(h.cpus for h in mine))
        assert together == members(pod["podCpus"]), "nothing of the pod's lies idle, nothing is another's"
        assert {frozenset(cpu // 8 for cpu in together)} == {h.mems for h in mine}, "CPUs and memory: one node"
        assert len(mine[0].mems) == 1
    assert set(quotas_of_pods(node, inspected).values()) == {WHOLE_POD}


@pytest.mark.long
def test_a_pod_joins_the_one_before_it(four_nodes: Guest) -> None:
    node = Node(four_nodes)
    inspected = installed(node, FOLLOWING)
    had = checked(node, FOLLOWING, inspected)
    assert [{cpu // 4 for cpu in had[name, "app"].cpus} for name in ("first", "follower")] == [{1}, {1}]
    assert {h.mems for h in had.values()} == {frozenset({1})}


def installed(node: Node, directory: Path) -> Document:
    """Run the agent on a directory's configuration with all of its manifests, and return its report once everything is settled."""
    node.configure((directory / "config.yaml").read_text())
    refused = {example.name for example in ALL[directory] if example.refused is not None}
    names = {example.name for example in ALL[directory]}
    for path in dict.fromkeys(example.path for example in ALL[directory]):
        here = (example.name for example in ALL[directory] if example.path == path)
        node.put_manifest(path.name, path.read_bytes(), *here)
    node.wait_running(*(names - refused), refused=refused, seconds=2 * WAIT_SECONDS)
    return node.inspect()


def checked(node: Node, directory: Path, inspected: Document) -> dict[tuple[str, str], Had]:
    """Compare comments, the output of `inspect` and the kernel's values; return the latter for each process, by pod and container."""
    assert inspected["differences"] == []
    pods = {pod["name"]: pod for pod in inspected["pods"]}
    assert pods.keys() == {example.name for example in ALL[directory]}
    had: dict[tuple[str, str], Had] = {}
    exclusive: dict[tuple[str, str], frozenset[int]] = {}
    for example in ALL[directory]:
        pod = pods[example.name]
        if example.refused is not None:
            assert pod["refusal"]["reason"] == example.refused
            assert node.run(f"find {ROOT} -name 'pod{pod['uid']}'").stdout == ""
            continue
        assert pod["refusal"] is None, pod
        containers = {one["name"]: one for one in pod["containers"]}
        assert containers.keys() == dict(example.gets).keys()
        for name, share in example.gets:
            told = containers[name]
            assert told["isolation"] == share.level
            if told["state"]["name"] == "Exited":
                continue
            one = had[example.name, name] = allowed(node, example, told)
            assert one == Had(members_of(told["effective"]["cpus"]), members_of(told["effective"]["mems"]))
            assert told["promised"]["mems"] is None or one.mems == members_of(told["promised"]["mems"])
            if share.level == "host":
                assert told["promised"]["cpus"] is None
                assert one.cpus == members_of(inspected["node"]["cpus"]["shared"])
            else:
                assert len(one.cpus) == share.cpus
                assert one.cpus == members_of(told["promised"]["cpus"])
            if share.level == "container":
                exclusive[example.name, name] = one.cpus
            assert node.value(f"{ROOT}/{told['cgroup']}", "cpu.max") == quota(directory, example, name, share)
    for owner, cpus in exclusive.items():
        assert not [other for other, h in had.items() if other != owner and h.cpus & cpus], f"{owner} is not alone"
    return had


def allowed(node: Node, example: Example, told: Document) -> Had:
    """What a container's process may use; without one, what a process that enters it may use."""
    if told["state"]["name"] == "Open":
        entered = "sh -c 'grep -E ^.*s_allowed_list: /proc/self/status'"
        text = node.run(f"nodeagent exec {example.name} {told['name']} -- {entered}").stdout
        cpus, mems = (line.split()[1] for line in text.splitlines())
    else:
        assert told["state"]["name"] == "Running", told
        cpus, mems = node.allowed(told["pid"])
    return Had(members_of(cpus), members_of(mems))


def quota(directory: Path, example: Example, name: str, share: Share) -> str:
    if share.level == "container":
        return UNLIMITED
    if share.level == "pod":
        assert share.cpus is not None
        return f"{share.cpus * 100_000} 100000"
    # without its own limit a container has its pod's
    return WHOLE_POD if directory == CONTAINER_SCOPE else LIMITS.get((example.name, name), UNLIMITED)


def quotas_of_pods(node: Node, inspected: Document) -> dict[str, str]:
    return {
        pod["name"]: node.value(f"{ROOT}/{pod['cgroup']}", "cpu.max")
        for pod in inspected["pods"]
        if pod["refusal"] is None
    }


def members_of(text: str) -> frozenset[int]:
    return frozenset(members(text))
