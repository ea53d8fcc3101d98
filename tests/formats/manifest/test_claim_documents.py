"""ResourceClaims, their templates and DeviceClasses: read, told what is wrong with them, joined with pods, and kept in the state."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given, strategies as st

from nodeagent.core.model.claims import ClaimRequest, ClaimSpec, ContainerClaim, DeviceRequest, MatchAttribute, PodClaim
from nodeagent.formats.manifest.claim_documents import (
    ClaimDocument,
    ClaimDocuments,
    devices_document,
    find_missing_documents,
    read_devices,
)
from nodeagent.formats.manifest.pod_manifest import (
    ManifestPod,
    RefusedPod,
    parse_manifest,
    pod_from_document,
    pod_to_document,
)
from nodeagent.formats.syntax.fields import fields_of
from nodeagent.formats.syntax.findings import Findings

CLAIM = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: near-nic, namespace: lab}
spec:
  spec:
    devices:
      requests:
        - name: cpus
          exactly:
            deviceClassName: dra.cpu
            count: 4
            selectors:
              - cel: {expression: 'device.attributes["dra.cpu"].smtEnabled'}
        - name: nic
          firstAvailable:
            - {name: fast, deviceClassName: fast-nic}
            - {name: any, deviceClassName: nodeagent.io, allocationMode: All}
        - name: zone
          exactly:
            deviceClassName: dra.memory
            capacity: {requests: {dra.memory/size: 2Gi}}
      constraints:
        - {matchAttribute: resource.kubernetes.io/numaNode, requests: [cpus, nic]}
        - {distinctAttribute: dra.cpu/cpuID, requests: [cpus]}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: fast-nic}
spec:
  selectors:
    - cel: {expression: 'device.driver == "nodeagent.io" && device.attributes["nodeagent.io"].driver == "mlx5_core"'}
"""
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: fwd, namespace: lab}
spec:
  resourceClaims:
    - {name: own, resourceClaimTemplateName: near-nic}
  containers:
    - name: app
      command: [sleep, infinity]
      resources:
        limits: {cpu: "4", memory: 2Gi}
        claims: [{name: own, request: cpus}, {name: own, request: nic}, {name: own, request: zone}]
"""


def parts(text: str) -> tuple[list[ManifestPod], list[ClaimDocument]]:
    found = parse_manifest(text.encode(), "x.yaml")
    refused = [str(finding) for one in found if isinstance(one, RefusedPod) for finding in one.findings]
    assert not refused
    return (
        [one for one in found if isinstance(one, ManifestPod)],
        [one for one in found if isinstance(one, ClaimDocument)],
    )


def test_a_pod_has_what_its_documents_say_and_its_classes() -> None:
    (found,), documents = parts(f"{POD}---\n{CLAIM}")
    assert [(one.kind, one.name) for one in documents] == [
        ("ResourceClaimTemplate", "lab/near-nic"),
        ("DeviceClass", "fast-nic"),
    ]
    assert found.pod.claims == (PodClaim("own", template="near-nic"),)
    assert found.pod.container("app").claims[1] == ContainerClaim("own", "nic")
    pod = ClaimDocuments(documents).resolved(found.pod)
    (claim,) = pod.claims
    assert claim.claim_name(pod.name) == "fwd-own"
    assert claim.spec == ClaimSpec(
        (
            ClaimRequest(
                "cpus",
                (
                    DeviceRequest(
                        "", "dra.cpu", ('device.driver == "dra.cpu"', 'device.attributes["dra.cpu"].smtEnabled'), 4
                    ),
                ),
            ),
            ClaimRequest(
                "nic",
                (
                    DeviceRequest("fast", "fast-nic", (documents[1].selectors[0],), 1),
                    DeviceRequest("any", "nodeagent.io", ('device.driver == "nodeagent.io"',), None),
                ),
            ),
            ClaimRequest(
                "zone",
                (
                    DeviceRequest(
                        "", "dra.memory", ('device.driver == "dra.memory"',), 1, (("dra.memory/size", 2**31),)
                    ),
                ),
            ),
        ),
        (
            MatchAttribute("resource.kubernetes.io/numaNode", ("cpus", "nic")),
            MatchAttribute("dra.cpu/cpuID", ("cpus",), is_distinct=True),
        ),
    )
    assert pod.uid == found.pod.uid, "who it is does not depend on other documents"
    assert pod_from_document(pod_to_document(pod)) == pod, "the state has all of it"
    findings = Findings("x")
    assert read_devices(fields_of(devices_document(claim.spec), findings)) == claim.spec
    assert not findings


def test_what_is_missing_is_named() -> None:
    (found,), documents = parts(f"{POD}---\n{CLAIM}")
    assert find_missing_documents(ClaimDocuments().resolved(found.pod)) == ("ResourceClaimTemplate lab/near-nic",)
    assert find_missing_documents(ClaimDocuments(documents[:1]).resolved(found.pod)) == ("DeviceClass fast-nic",)
    twice = ClaimDocuments((*documents, *documents))
    assert twice.doubled == documents
    assert find_missing_documents(twice.resolved(found.pod)) == ()


def changed(text: str, old: str, new: str) -> list[str]:
    assert old in text
    found = parse_manifest(text.replace(old, new, 1).encode(), "x.yaml")
    return [str(finding) for one in found if isinstance(one, RefusedPod) for finding in one.findings]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "resource.k8s.io/v1",
            "resource.k8s.io/v1beta1",
            "x.yaml:1: apiVersion: resource.k8s.io/v1beta1: must be one of",
        ),
        ("name: near-nic,", "name: Near_NIC,", "metadata.name: Near_NIC: must be a lowercase RFC 1123 subdomain"),
        ("count: 4", "count: 0", "exactly.count: 0: must be"),
        ("count: 4", "cout: 4", "requests[0].exactly.cout"),
        ("deviceClassName: dra.cpu", "deviceClassName: ''", "deviceClassName: : is required"),
        ("allocationMode: All", "allocationMode: Some", "allocationMode: Some: must be one of ExactCount, All"),
        (
            "allocationMode: All",
            "allocationMode: All, count: 2",
            "count: 2: must be absent where allocationMode is All",
        ),
        ("smtEnabled'", "smtEnabled =='", "must be a CEL expression that is true or false for a device: "),
        ("smtEnabled'", "smtEnabled && node == 1'", "node is unknown: an expression can use only `device`"),
        ("{name: fast, ", "{", "firstAvailable[0].name"),
        (
            "numaNode, requests: [cpus, nic]",
            "numaNode, requests: [cpu]",
            "cpu: must be requests of this claim: cpus, nic",
        ),
        ("resource.kubernetes.io/numaNode", "numaNode", "matchAttribute: numaNode: must be a qualified name"),
        ("dra.cpu/cpuID", "dra.cpu/", "distinctAttribute: dra.cpu/: must be a qualified name"),
        ("dra.cpu/cpuID", "dra.cpu/größe", "must be a qualified name"),
        ("distinctAttribute: dra.cpu/cpuID, ", "", "constraints[1].matchAttribute"),
        (
            "distinctAttribute: ",
            "matchAttribute: x.y/z, distinctAttribute: ",
            "exactly one of this field and distinctAttribute is required",
        ),
        ("count: 4", "count: 4\n            adminAccess: true", "adminAccess is not supported"),
        ("name: nic\n", "name: cpus\n", "cpus: two requests have the same name"),
        ("{name: fast-nic}", "{name: fast-nic, namespace: lab}", "a DeviceClass has no namespace"),
        ("dra.memory/size: 2Gi", "dra.memory/size: many", "many"),
        (
            "dra.memory/size: 2Gi",
            "dra.memory/size: -2Gi",
            "capacity.requests: -2147483648: dra.memory/size must be more",
        ),
        ("name: any", "name: fast", "requests[1].firstAvailable: fast: two requests have the same name"),
    ],
)
def test_what_is_wrong_with_a_document_is_told_with_its_place(old: str, new: str, said: str) -> None:
    (first, *_) = changed(CLAIM, old, new)
    assert said in first.replace('"', "")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "name: own, request: cpus}",
            "name: owm, request: cpus}",
            "claims[0].name: owm: must be one of spec.resourceClaims",
        ),
        ("resourceClaimTemplateName: near-nic", "resourceClaimName: a, resourceClaimTemplateName: b", "but not both"),
        (", resourceClaimTemplateName: near-nic", "", "needs resourceClaimName or resourceClaimTemplateName"),
        (
            "- {name: own, r",
            "- {name: unused, resourceClaimName: x}\n    - {name: own, r",
            "must be used by a container",
        ),
        (
            "- {name: own, resourceClaimTemplateName: near-nic}",
            "- {name: own, resourceClaimName: x}\n    - {name: other, resourceClaimName: x}",
            "resourceClaims[1].resourceClaimName: x: is also the name of another claim of this pod",
        ),
        (
            "- {name: own, r",
            "- {name: other, resourceClaimName: fwd-own}\n    - {name: own, r",
            "resourceClaims[1].name: fwd-own: is also the name of another claim of this pod (a claim from a template is named POD-NAME)",
        ),
        ("request: nic}", "request: cpus}", "is listed twice"),
        ("request: nic}", "request: nic/fast}", "claims[1].request: nic/fast: must be a lowercase RFC 1123 label"),
        (
            "{name: own, request: nic}",
            ", ".join(["{name: own, request: nic}"] * 256),
            "resources.claims: 258: at most 256 are allowed",
        ),
        ("  containers:", "  resources: {claims: [{name: own}]}\n  containers:", "only containers have claims"),
    ],
)
def test_what_is_wrong_with_a_pods_claims_is_told(old: str, new: str, said: str) -> None:
    assert any(said in finding.replace('"', "") for finding in changed(POD, old, new))


def test_what_an_api_server_would_add_is_read() -> None:
    """As `kubectl get -o yaml` prints one."""
    document = next(yaml.safe_load_all(CLAIM))
    document["metadata"] |= {
        "uid": "7ad0b8a4",
        "resourceVersion": "12",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "managedFields": [{"manager": "kubectl"}],
    }
    document["spec"]["metadata"] = {"labels": {"a": "b"}}
    document["spec"]["spec"]["devices"]["requests"][0]["exactly"]["tolerations"] = [{"operator": "Exists"}]
    document["spec"]["spec"]["devices"]["requests"][0]["exactly"]["adminAccess"] = False
    assert len(parts(yaml.safe_dump(document))[1]) == 1


def test_examples_are_read() -> None:
    for path in sorted(Path("examples").glob("*claim*.yaml")):
        pods, documents = parts(path.read_text())
        assert [find_missing_documents(ClaimDocuments(documents).resolved(one.pod)) for one in pods] == [()] * len(pods)


TREES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-3, 99), st.sampled_from(["a", "", "All", "dra.cpu", "x/y", "1Gi", "("])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                [
                    "name",
                    "namespace",
                    "spec",
                    "devices",
                    "requests",
                    "exactly",
                    "firstAvailable",
                    "deviceClassName",
                    "count",
                    "allocationMode",
                    "selectors",
                    "cel",
                    "expression",
                    "constraints",
                    "matchAttribute",
                    "capacity",
                    "metadata",
                    "adminAccess",
                    "x",
                ]
            ),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=25,
)


@given(TREES, st.sampled_from(["ResourceClaim", "ResourceClaimTemplate", "DeviceClass"]))
def test_whatever_a_document_holds_it_is_read_or_told_what_is_wrong(tree: object, kind: str) -> None:
    given_document = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": "a"}}
    found = parse_manifest(yaml.safe_dump({**given_document, "spec": tree}).encode(), "x.yaml")
    for one in found:
        assert isinstance(one, ClaimDocument) or (isinstance(one, RefusedPod) and one.findings)
