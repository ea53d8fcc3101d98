"""Claims in commands: their documents are installed, compared and found, and decisions that are tried know them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodeagent.cli.main import main
from tests.cli.test_apply import AWAY, Node, document, node, text, written
from tests.cli.test_cli_inspect import host, live, run
from tests.cli.test_start_up import loaded
from tests.support import json_schema
from tests.support.described_nodes import container, pod
from tests.support.machine_tree import Machine, put_device

__all__ = ["host", "live", "node", "run"]
OF_CLAIMS = {
    "cel",
    "nodeagent.core.resources.claims.placing",
    "nodeagent.core.resources.claims.matching",
    "nodeagent.formats.manifest.claim_documents",
    "nodeagent.formats.manifest.claim_status",
}
SELECTOR = 'device.attributes["dra.cpu"].coreID > 1'


def template(count: int = 2, **more: Any) -> dict[str, Any]:
    exactly = {
        "deviceClassName": "dra.cpu",
        "count": count,
        "selectors": [{"cel": {"expression": SELECTOR}}],
    }
    devices = {"requests": [{"name": "cpus", "exactly": exactly}]} | more
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "cpus"},
        "spec": {"spec": {"devices": devices}},
    }


def claiming(name: str = "web") -> dict[str, Any]:
    found = pod(name, container("app", "2", "1Gi"))
    found["spec"]["resourceClaims"] = [{"name": "own", "resourceClaimTemplateName": "cpus"}]
    found["spec"]["containers"][0]["resources"]["claims"] = [{"name": "own"}]
    return found


def test_documents_are_put_in_place_and_pods_decided_by_them(node: Node) -> None:
    file = written("cpus.yaml", template())
    path = node.manifests / file
    assert node("apply", file) == (0, f"ResourceClaimTemplate default/cpus created ({path})\n{AWAY}", "")
    assert node("apply", file) == (0, f"ResourceClaimTemplate default/cpus unchanged ({path})\n{AWAY}", "")
    web = written("web.yaml", claiming())
    assert node("diff", web)[0] == 2
    status, out, err = node("apply", web)
    assert (status, err) == (0, "")
    assert out == f"pod default/web created ({node.manifests / web}): app exclusive 2,6, NUMA 1\n{AWAY}"
    other = written("other.yaml", template(3))
    status, out, _ = node("diff", other)
    assert (status, out) == (2, f"ResourceClaimTemplate default/cpus changes ({path})\n")
    found = document(node("apply", other, "-o", "json"), "apply")
    assert found["documents"] == [
        {"change": "changed", "file": str(path), "kind": "ResourceClaimTemplate", "name": "default/cpus"}
    ]
    assert node.files() == ["cpus.yaml", "web.yaml"], "a document is replaced in its own file, whatever that is called"


def test_a_pod_without_its_document_is_not_put_in_place(node: Node) -> None:
    web = written("web.yaml", claiming())
    status, out, err = node("apply", web)
    assert status != 0
    said = "there is no ResourceClaimTemplate default/cpus: put its document into the manifest directory"
    assert said in " ".join(out.split())
    assert "nothing was installed" in err
    assert node.files() == []
    both = written("both.yaml", claiming(), template())
    assert node("apply", both)[0] == 0
    assert node("delete", "web")[0] == 0
    assert node.files() == []


def test_a_document_that_is_wrong_is_told_with_its_line(node: Node) -> None:
    file = written("cpus.yaml", template(constraints=[{"matchAttribute": "numaNode"}]))
    status, out, err = node("apply", file)
    assert (status != 0, out) == (True, "")
    assert 'matchAttribute: "numaNode": must be a qualified name' in err


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copied node, whose card is on the second NUMA node, and its configuration."""
    machine = Machine(cores=("0-1", "2-3"), packages=("0-1", "2-3"), nodes=((0, "0-1"), (1, "2-3")))
    root = machine.grow(tmp_path / "root")
    put_device(root, "0000:3b:00.0", **{"class": "0x020000"}, numa_node="1", net__eth0__="")
    (tmp_path / "config.yaml").write_text("cpuManagerPolicy: static\nreservedSystemCPUs: '0'\n")
    return tmp_path


def explained(copied: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    options = ["--config", str(copied / "config.yaml"), "--empty", "--root", str(copied / "root")]
    status = main(["explain", "-f", str(copied / "pod.yaml"), *options, *words])
    return status, capsys.readouterr().out


def test_a_decision_is_explained_with_what_claims_get(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cards = template()
    cards["spec"]["spec"]["devices"] = {
        "requests": [
            {"name": "cpus", "exactly": {"deviceClassName": "dra.cpu", "count": 2}},
            {"name": "nic", "exactly": {"deviceClassName": "nodeagent.io"}},
        ],
        "constraints": [{"matchAttribute": "resource.kubernetes.io/numaNode"}],
    }
    (copied / "pod.yaml").write_text(text(claiming(), cards))
    status, out = explained(copied, capsys)
    assert status == 0
    assert "claim default/web-own: cpus CPUs 2-3, nic pci-0000-3b-00-0\n" in out
    status, out = explained(copied, capsys, "-o", "json")
    found = json.loads(out)
    json_schema.check(found, "explanation")
    (claim,) = found["pods"][0]["claims"]
    assert claim["devices"][-1] == {"device": "pci-0000-3b-00-0", "driver": "nodeagent.io", "request": "nic"}
    (copied / "pod.yaml").write_text(text(claiming()))
    status, out = explained(copied, capsys)
    assert "there is no ResourceClaimTemplate default/cpus" in " ".join(out.split())


def test_nothing_of_it_is_loaded_where_no_pod_has_claims(copied: Path) -> None:
    options = ["--config", str(copied / "config.yaml"), "--empty", "--root", str(copied / "root")]
    (copied / "pod.yaml").write_text(yaml.safe_dump(pod("web", container("app", "2", "1Gi"))))
    assert not set(loaded("explain", "-f", str(copied / "pod.yaml"), *options)) & OF_CLAIMS
    (copied / "pod.yaml").write_text(text(claiming(), template(1)))
    assert set(loaded("explain", "-f", str(copied / "pod.yaml"), *options)) & OF_CLAIMS == OF_CLAIMS - {
        "nodeagent.formats.manifest.claim_status"
    }
