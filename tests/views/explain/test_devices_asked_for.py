"""What an explanation says of a pod that asks to be near devices, and what admits it where that can't be."""

from typing import Any

import pytest

from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.model.config import Config
from nodeagent.core.model.devices import Device, DeviceKind, PlacedDevices
from nodeagent.core.model.pod import Pod
from nodeagent.views.explain.text import render_explanation
from tests.support.builders import admitted, managers
from tests.support.explained_pods import explained_pod
from tests.support.pods import app, pod

DEVICES = (
    Device("0000:3b:00.0", DeviceKind.NETWORK, 0x020000, names=("eth0",), numa_node=1),
    Device("0000:40:00.0", DeviceKind.NVME, 0x010802, names=("nvme0",)),
    Device("0000:41:00.0", DeviceKind.NVME, 0x010802, names=("nvme1",), numa_node=0),
)
BEST, RESTRICTED = {"topology_manager_policy": "best-effort"}, {"topology_manager_policy": "restricted"}
CPUS_FIRST = RESTRICTED | {"prefer_cpus_numa_node": True}


def explained(of: Pod, *, is_known: bool = True, **placement: Any) -> dict[str, Any]:
    """On a node where 2 of 8 CPUs are left near eth0, and 7 elsewhere."""
    node = managers(reserved="0", **placement)
    devices = PlacedDevices.of(DEVICES, node.topology)
    node = node.knowing(devices if is_known else None)
    there = pod("there", app(cpu="6", memory="1Gi"), numa_node=1)
    return explained_pod(WhatIf.of(node, admitted(node, there), (there,)), of, Config(node.placement))


def said_of(of: Pod, **more: Any) -> str:
    return " ".join(render_explanation(explained(of, **more)).split())


def near(cpu: str, *names: str) -> Pod:
    return pod("new", app(cpu=cpu, memory="1Gi", near=names))


@pytest.mark.parametrize(
    ("of", "placement", "said"),
    [
        (near("2", "eth0"), BEST, "it prefers to be near eth0 (NUMA 1) app exclusive 7,15 NUMA 1"),
        (near("2", "nvme", "eth0"), BEST, "it prefers to be near nvme (NUMA 0), eth0 (NUMA 1)"),
        (near("2", "nvme0"), BEST, "it prefers to be near nvme0 (its NUMA node is unknown, so nothing is near it)"),
        (near("2", "eth0"), {}, "it prefers to be near eth0 (NUMA 1); without effect, because topologyManagerPolicy is none"),
        (near("2", "eth9"), {}, "it prefers to be near eth9 (no such device)"),
        (near("2", "eth9"), {}, "DeviceUnavailable: it asks to be near eth9, but this machine has only eth0 (network), nvme0"),
        (near("2", "eth9"), {}, "What is missing see the message"),
        (near("2", "eth9"), {}, "* remove its preference to be near eth9"),
        (near("4", "eth0"), RESTRICTED, "no set of NUMA nodes suits all resources: eth0 would be on 1; cpu would be on 0"),
        (near("4", "eth0"), RESTRICTED, "* remove its preference to be near eth0"),
        (near("4", "eth0"), RESTRICTED, "* let container app request cpu 2 instead of 4"),
        (near("4", "eth0"), RESTRICTED, "* set preferCPUsNumaNode: true (now false)"),
        (near("4", "eth0"), CPUS_FIRST, "topology restricted per container, preferCPUsNumaNode"),
        (near("4", "eth0"), CPUS_FIRST, "NUMA 0, which its CPUs prefer; preferCPUsNumaNode puts them before eth0"),
        (near("4", "eth0"), CPUS_FIRST, "any wins 1 preferred no any loses: not enough cpu 0-1 possible"),
        (near("2", "eth0"), CPUS_FIRST, "NUMA 1, preferred by all"),
        (near("2", "eth8", "eth9"), RESTRICTED, "* remove its preference to be near eth8 and eth9"),
    ],
)  # fmt: skip
def test_what_is_said(of: Pod, placement: dict[str, Any], said: str) -> None:
    assert said in said_of(of, **placement)


def test_programs_are_told_the_devices() -> None:
    (told,) = explained(near("2", "nvme", "eth9"))["pods"]
    assert told["near"] == [
        {"name": "nvme", "devices": ["0000:40:00.0", "0000:41:00.0"], "numaNodes": "0"},
        {"name": "eth9", "devices": [], "numaNodes": ""},
    ]
    (told,) = explained(near("4", "eth0"), **CPUS_FIRST)["pods"]
    assert [step["overruled"] for step in told["steps"] if step["step"] == "merge"] == [["eth0"]]
    (unseen,) = explained(near("2", "eth0"), is_known=False)["pods"]
    assert unseen["near"] == [{"name": "eth0", "devices": None, "numaNodes": ""}]


def test_of_who_asks_for_none_there_is_no_word_of_it() -> None:
    (told,) = explained(near("2"), **BEST)["pods"]
    assert told["near"] == []
    text = said_of(near("2"), **BEST)
    assert "near" not in text
    assert "eth0" not in text
