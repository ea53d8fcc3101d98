"""Resource claims on a real kernel: what was allocated is what processes run on, and a lost state loses none of it."""

import json

import pytest

from integration.guest.guest import Guest
from integration.node import MANIFESTS, STATE, Document, Node, container, pod
from nodeagent.core.model.idset import CpuSet, NumaSet

SLEEP = ["sleep", "infinity"]
RULES = """
cpuManagerPolicy: static
reservedSystemCPUs: "0"
topologyManagerPolicy: restricted
memoryManagerPolicy: Static
systemReserved: {memory: 256Mi}
evictionHard: {memory.available: 0Mi}
reservedMemory:
  - {numaNode: 0, limits: {memory: 256Mi}}
"""
NUMA = "resource.kubernetes.io/numaNode"


def request(name: str, device_class: str, *selectors: str, **more: object) -> Document:
    cel = [{"cel": {"expression": selector}} for selector in selectors]
    return {"name": name, "exactly": {"deviceClassName": device_class, "selectors": cel, **more}}


def template(name: str, *requests: Document, match: str | None = None) -> Document:
    devices: Document = {"requests": list(requests)}
    if match is not None:
        devices["constraints"] = [{"matchAttribute": match}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": devices}},
    }


def claiming(name: str, of: str, cpu: str, memory: str = "64Mi") -> Document:
    made = pod(name, container("app", SLEEP, cpu=cpu, memory=memory))
    made["spec"]["resourceClaims"] = [{"name": "own", "resourceClaimTemplateName": of}]
    made["spec"]["containers"][0]["resources"]["claims"] = [{"name": "own"}]
    return made


def put(node: Node, document: Document) -> None:
    node.put_manifest(f"claim-{document['metadata']['name']}.json", json.dumps(document))


def status_of(node: Node, name: str) -> Document:
    text = node.guest.get(f"/run/nodeagent/claims/default/{name}-own.json")
    found: Document = json.loads(text)["status"]
    return found


def placed(node: Node, name: str) -> tuple[CpuSet, NumaSet]:
    """CPUs and memory nodes that the kernel lets a pod's process have."""
    (pid,) = node.pids(node.cgroup(name, "app"))
    cpus, mems = node.allowed(pid)
    return CpuSet.parse(cpus), NumaSet.parse(mems)


@pytest.mark.configures
def test_cpus_and_memory_that_were_claimed(four_nodes: Guest) -> None:
    node = Node(four_nodes)
    node.configure(RULES)
    node.apply(pod("shares", container("app", SLEEP, cpu="500m")))
    node.wait_running("shares")
    # It isn't decided on yet, so no wait can name it.
    node.put_manifest("first.json", json.dumps(claiming("first", "zone", "2", "128Mi")))
    waits = "pod default/first waits for ResourceClaimTemplate default/zone"

    def is_told() -> bool | None:
        told = json.loads(node.run("nodeagent inspect -o json --no-host-processes", check=False).stdout)["node"][
            "problems"
        ]
        return any(waits in problem for problem in told) or None

    node.until(is_told, lambda: "the agent doesn't say what the pod waits for")
    on_node_1 = 'device.attributes["dra.cpu"].numaNodeID == 1'
    zone = request("zone", "dra.memory", capacity={"requests": {"dra.memory/size": "128Mi"}})
    put(node, template("zone", request("cpus", "dra.cpu", on_node_1, count=2), zone, match=NUMA))
    node.wait_running("first", "shares")
    before = placed(node, "first")
    cpus, mems = before
    assert (len(cpus), mems) == (2, NumaSet.of(1))
    results = status_of(node, "first")["allocation"]["devices"]["results"]
    assert {one["device"] for one in results} == {*(f"cpudev{cpu:03}" for cpu in cpus), "memory-1"}
    shared = CpuSet.parse(node.value(node.cgroup("shares", "app"), "cpuset.cpus.effective"))
    assert not shared & cpus
    # An agent that has lost everything but what is in memory and cgroups.
    node.run("systemctl kill -s KILL nodeagent; systemctl stop nodeagent")
    node.run(f"rm {STATE}/*_state; systemctl start nodeagent")
    node.wait_running("first", "shares")
    assert placed(node, "first") == before
    assert node.inspect()["differences"] == []
    assert status_of(node, "first")["allocation"]["devices"]["results"] == results
    whole = node.run("nodeagent inspect first --no-host-processes").stdout
    assert f"default/first-own: cpus CPUs {cpus}, zone memory-1 128Mi" in " ".join(whole.split())
    node.apply(claiming("second", "absent", "2"))
    put(node, template("absent", request("cpus", "dra.cpu", 'device.attributes["dra.cpu"].cpuID > 98', count=2)))
    refused = node.wait_running("first", "shares", refused=["second"])
    (why,) = (one["refusal"] for one in refused["entries"] if "refusal" in one)
    assert why[0] == "ResourceClaimUnavailable"
    assert "2 wanted, 0 devices meet its selectors" in why[1]
    node.delete("first", "second", "shares", "claim-zone", "claim-absent")
    node.wait(
        lambda state: not state["entries"],
        "all pods to go",
        of=("first", "second", "shares", "claim-zone", "claim-absent"),
    )
    node.until(
        lambda: (
            node.run(f"ls /run/nodeagent/claims {MANIFESTS}/*.json", check=False).stdout.count(".json") == 0 or None
        ),
        lambda: "a claim is left that no pod has",
    )


@pytest.mark.configures
@pytest.mark.long
@pytest.mark.parametrize("attribute", [NUMA, "resource.kubernetes.io/pcieRoot"])
def test_a_card_and_cpus_of_its_node(two_cards: Guest, attribute: str) -> None:
    node = Node(two_cards)
    node.configure(RULES)
    placed_cards = 'has(device.attributes["resource.kubernetes.io"].numaNode)'
    nic = request("nic", "nodeagent.io", 'device.attributes["nodeagent.io"].kind == "network"', placed_cards)
    put(node, template("near-nic", request("cpus", "dra.cpu", count=2), nic, match=attribute))
    node.apply(*(claiming(name, "near-nic", "2") for name in ("alpha", "beta", "gamma")))
    state = node.wait_running("alpha", "beta", refused=["gamma"])
    cards = {
        one["address"]: one for one in json.loads(node.run("nodeagent topology --devices -o json").stdout)["devices"]
    }
    had = set()
    for name in ("alpha", "beta"):
        (card,) = state["promises"]["pods"][f"uid-{name}"]["devices"]["app"]
        cpus, _ = placed(node, name)
        assert {cpu // 8 for cpu in cpus} == {int(card["nodes"])}, "each node of the guest has eight CPUs"
        assert cards[card["id"]]["owners"][0]["pod"] == f"default/{name}"
        (pid,) = node.pids(node.cgroup(name, "app"))
        assert f"NODEAGENT_DEVICES={card['id']}\n" in node.run(f"tr '\\0' '\\n' </proc/{pid}/environ").stdout
        had.add(card["id"])
    assert len(had) == 2
    node.run("systemctl restart nodeagent")
    after = node.wait_running("alpha", "beta", refused=["gamma"])
    assert after["promises"] == state["promises"]
    node.delete("alpha")
    node.wait_gone("alpha")
    node.run("nodeagent retry default/gamma")
    node.wait_running("beta", "gamma")
    node.delete("beta", "gamma", "claim-near-nic")
    node.wait_gone("beta", "gamma", "claim-near-nic")
