"""Commands that try a decision know the devices of the node that they are about: a copied one, a captured one, none of a described one."""

import json
from pathlib import Path

import pytest

from nodeagent.cli.main import main
from tests.cli.test_start_up import loaded
from tests.support import json_schema
from tests.support.machine_tree import Machine, put_device

CONFIG = "cpuManagerPolicy: static\nreservedSystemCPUs: '0'\ntopologyManagerPolicy: restricted\n"
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: forwarder%s}
spec:
  containers:
    - name: app
      resources: {limits: {cpu: "1", memory: 64Mi}}
"""
CLAIMING = """\
apiVersion: v1
kind: Pod
metadata: {name: %s, uid: uid-%s}
spec:
  resourceClaims: [{name: card, resourceClaimTemplateName: card}]
  containers:
    - name: app
      resources: {limits: {cpu: "1", memory: 64Mi}, claims: [{name: card}]}
---
"""
CLAIM = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: card}
spec: {spec: {devices: {requests: [{name: card, exactly: {deviceClassName: nodeagent.io}}]}}}
"""
OF_DEVICES = {"nodeagent.core.model.devices", "nodeagent.core.admission.near", "nodeagent.formats.kernel.pci_devices"}


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A directory with a copied node, whose card is on the second NUMA node, its configuration, and two manifests."""
    machine = Machine(cores=("0-1", "2-3"), packages=("0-1", "2-3"), nodes=((0, "0-1"), (1, "2-3")))
    root = machine.grow(tmp_path / "root")
    put_device(root, "0000:3b:00.0", **{"class": "0x020000"}, numa_node="1", net__eth0__="")
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "near.yaml").write_text(POD % ", annotations: {nodeagent.io/near: eth0}")
    (tmp_path / "plain.yaml").write_text(POD % "")
    return tmp_path


def words(node: Path, command: str, *machine: str, manifest: str = "near.yaml") -> list[str]:
    return [command, "-f", str(node / manifest), "--config", str(node / "config.yaml"), "--empty", *machine]


def placed(node: Path, capsys: pytest.CaptureFixture[str], *machine: str) -> tuple[int, str]:
    status = main(words(node, "explain", *machine, "-o", "json"))
    out, err = capsys.readouterr()
    if not out:
        return status, err
    (pod,) = json.loads(out)["pods"]
    return status, pod["message"] or pod["containers"][0]["numaNodes"]


def test_a_copied_node_and_a_captured_one(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert placed(node, capsys, "--root", str(node / "root")) == (0, "1")
    assert main(["capture", "--root", str(node / "root"), "--out", str(node / "node.json")]) == 0
    capsys.readouterr()
    assert placed(node, capsys, "--machine", str(node / "node.json")) == (0, "1")
    assert main(words(node, "simulate", "--machine", str(node / "node.json"))) == 0
    assert "exclusive 2  NUMA 1" in capsys.readouterr().out


def test_a_simulation_says_which_devices_pods_would_have(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a captured machine: by number, and by a claim, which leaves none for another."""
    assert main(["capture", "--root", str(node / "root"), "--out", str(node / "node.json")]) == 0
    capsys.readouterr()
    (node / "config.yaml").write_text(
        f"{CONFIG}devices: [{{resource: example.com/nic, select: [{{kind: network}}]}}]\n"
    )
    (node / "near.yaml").write_text((POD % "").replace("memory: 64Mi", 'memory: 64Mi, "example.com/nic": 1'))
    assert main(words(node, "simulate", "--machine", str(node / "node.json"))) == 0
    out = capsys.readouterr().out
    of_nic = "default/forwarder, container app: 0000:3b:00.0 eth0 (example.com/nic, NUMA 1)"
    assert f"Devices and claims\n  {of_nic}\n" in out.replace("\n  (", " (")
    (node / "near.yaml").write_text(CLAIMING % ("one", "one") + CLAIMING % ("two", "two") + CLAIM)
    assert main(words(node, "simulate", "--machine", str(node / "node.json"))) == 4
    out = capsys.readouterr().out
    assert "default/one, claim default/one-card: card pci-0000-3b-00-0" in out
    assert "ResourceClaimUnavailable: claim default/two-card, request card: 1 wanted" in " ".join(out.split())
    assert main(words(node, "simulate", "--machine", str(node / "node.json"), "-o", "json")) == 4
    document = json.loads(capsys.readouterr().out)
    json_schema.check(document, "simulation")
    one, two = document["pods"]
    assert [device["id"] for device in one["devices"]] == ["0000:3b:00.0"]
    assert ("devices" in two, "claims" in two) == (False, False)


def test_configurations_are_compared_on_its_devices(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (node / "none.yaml").write_text(CONFIG.replace("restricted", "none"))
    compared = ["--compare", str(node / "config.yaml"), str(node / "none.yaml")]
    root = ["--root", str(node / "root"), "--empty"]
    assert main(["simulate", "-f", str(node / "near.yaml"), *compared, *root, "-o", "json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert "exclusive" not in found  # a document, not a text
    assert {run["pods"][0]["containers"][0]["numaNodes"] for run in found["sides"]} == {"0", "1"}


def test_a_machine_of_which_the_devices_are_not_known(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    why = "it asks to be near eth0, but the devices of this machine are unknown: a described machine has no devices"
    assert placed(node, capsys, "--topology", "2s.1c.2t") == (4, why)
    assert main(["topology", "--root", str(node / "root"), "-o", "json"]) == 0
    (node / "machine.json").write_text(capsys.readouterr().out)
    status, err = placed(node, capsys, "--machine", str(node / "machine.json"))
    assert status == 1
    assert "contains no devices\nhint: use this version of nodeagent to take a new capture" in err


def test_they_are_loaded_for_who_asks(node: Path) -> None:
    root = ("--root", str(node / "root"))
    assert not OF_DEVICES & set(loaded(*words(node, "simulate", *root, manifest="plain.yaml")))
    assert set(loaded(*words(node, "simulate", *root))) >= OF_DEVICES
