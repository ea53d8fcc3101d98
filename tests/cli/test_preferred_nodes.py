"""What the settings that prefer NUMA nodes would change on a captured node, and how a decision under them is explained."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodeagent.core.model.config import Placement
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Pod
from nodeagent.daemon.start.startup import STATE_FILE
from nodeagent.edge.kernel.sysfs import read_machine
from nodeagent.formats.checkpoint.node_state import encode_state, policies_of
from nodeagent.formats.kernel.sysfs import topology_of
from tests.support import json_schema
from tests.support.described_nodes import RunCommand, golden, run
from tests.support.inspected_nodes import World, running
from tests.support.machine_tree import NODES, Machine
from tests.support.pods import app, pod

__all__ = ["run"]
WITHOUT: dict[str, Any] = {
    "cpuManagerPolicy": "static",
    "reservedSystemCPUs": "0",
    "topologyManagerPolicy": "best-effort",
    "memoryManagerPolicy": "Static",
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "100Mi"}}],
    "checkAllocatable": False,
}
MACHINE = Machine(
    ("0,8", "1,9", "2,10", "3,11", "4,12", "5,13", "6,14", "7,15"),
    ("0-3,8-11", "4-7,12-15"),
    ((0, "0-3,8-11"), (1, "4-7,12-15")),
    extra=tuple((f"{NODES}/node{node}/hugepages/hugepages-2048kB/nr_hugepages", "1024\n") for node in (0, 1)),
)


def compared(
    run: RunCommand, name: str, setting: dict[str, Any], *pods: Pod, **more: Any
) -> tuple[dict[str, Any], str]:
    """Capture a node that runs these pods, and compare its decisions without and with the setting.

    Returns:
        The document, and the explanation of the first pod under the setting. The text of the comparison is golden.
    """
    without = WITHOUT | more
    root = MACHINE.grow(Path("root"))
    (root / "etc/nodeagent").mkdir(parents=True)
    (root / "etc/nodeagent/config.yaml").write_text(yaml.safe_dump(without))
    world = World(topology_of(read_machine(str(root))), Placement("static", reserved_system_cpus=CpuSet.of(0)))
    for one in pods:
        world.add(one, running(*(container.name for container in one.containers)))
    state = root / "var/lib/nodeagent" / STATE_FILE
    state.parent.mkdir(parents=True)
    state.write_bytes(encode_state(world.state, policies_of(world.config.placement)))
    assert run("capture", "--root", str(root), "--out", "node.json")[0] == 0
    Path("without.yaml").write_text(yaml.safe_dump(without))
    Path("with.yaml").write_text(yaml.safe_dump(without | setting))
    words = ("simulate", "--compare", "without.yaml", "with.yaml", "--machine", "node.json")
    status, out, err = run(*words)
    assert (status, err) == (2, "")
    golden(f"simulate-compare-{name}.txt", out)
    document: dict[str, Any] = json.loads(run(*words, "-o", "json")[1])
    json_schema.check(document, "comparison")
    return document, run("explain", pods[0].name, "--machine", "node.json", "--config", "with.yaml")[1]


def test_same_numa_nodes(run: RunCommand) -> None:
    both = (pod("db", app("app", cpu="4", memory="10Gi")), pod("web", app("app", cpu="2", memory="64Mi")))
    document, text = compared(run, "same-nodes", {"sameNumaNodes": True}, *both)
    assert document["differing"] == ["default/db", "default/web"]
    (with_it,) = (pod["containers"][0] for pod in document["sides"][1]["pods"] if pod["name"] == "db")
    assert (with_it["cpus"], with_it["memoryNodes"]) == ("1,4,9,12", "0-1")
    assert "because the memory is there, too (sameNumaNodes)" in " ".join(text.split())


def test_spread_huge_pages(run: RunCommand) -> None:
    wide = pod("fast", app("app", cpu="10", memory="1Gi", hugepages_2Mi="1Gi"))
    options = {"cpuManagerPolicyOptions": {"distribute-cpus-across-numa": "true"}, "topologyManagerPolicy": "none"}
    document, text = compared(run, "huge-pages", {"spreadHugePages": True}, wide, **options)
    assert document["differing"] == ["default/fast"]
    sides = [side["pods"][0]["containers"][0] for side in document["sides"]]
    assert [(each["numaNodes"], each["memoryNodes"]) for each in sides] == [("0-1", "0"), ("0-1", "0-1")]
    assert "on the NUMA nodes of its CPUs, in proportion to them (spreadHugePages)" in text
    assert "NUMA 0 gives 512Mi of hugepages-2Mi" in text
    assert "NUMA 1 gives 512Mi of hugepages-2Mi" in text


def test_balance_over_numa_nodes(run: RunCommand) -> None:
    balance = {
        "topologyManagerPolicyOptions": {"numa-allocation-strategy": "least-allocated"},
        "featureGates": {"TopologyManagerPolicyAlphaOptions": True},
    }
    calls = [pod(f"call-{number}", app("app", cpu="2", memory="64Mi")) for number in range(5)]
    document, _ = compared(run, "balance", balance, *calls)
    numa = [[each["containers"][0]["numaNodes"] for each in side["pods"]] for side in document["sides"]]
    assert numa == [["0", "0", "0", "1", "1"], ["0", "1", "1", "0", "1"]]


@pytest.mark.parametrize("key", ["sameNumaNodes", "spreadHugePages"])
def test_where_kubelet_is_reproduced_it_is_refused_with_the_next_step(key: str, run: RunCommand) -> None:
    Path("with.yaml").write_text(yaml.safe_dump(WITHOUT | {key: True}))
    words = ("--capacity", "-f", "p.yaml", "--topology", "2s.4c.2t,memory=8Gi", "--config", "with.yaml")
    Path("p.yaml").write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}\n")
    for errata in ("kubelet-1.36", "kubelet-1.37"):
        status, out, err = run("simulate", *words, "--errata", errata)
        assert (status, out) == (1, "")
        assert err.startswith(f"nodeagent: with.yaml: {key}: no kubelet has this setting, so errata: {errata}")
        assert f"hint: {key}: must be false, or removed, unless errata is fixed" in err
