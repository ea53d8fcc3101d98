"""Pods of manifests as they are for clusters: templates of every kind of workload, and what the agent can't run."""
# ruff: noqa: E501 (tables: one case, one line)

import json

import pytest

from nodeagent.formats.manifest.pod_manifest import (
    ManifestPod,
    OtherDocument,
    RefusedPod,
    UnknownFields,
    parse_manifest,
    parse_workloads,
)

CONTAINER = "{name: app, image: nginx, args: [--fast], resources: {limits: {cpu: 2, memory: 1Gi}}}"
TEMPLATE = f"{{metadata: {{labels: {{a: b}}}}, spec: {{containers: [{CONTAINER}]}}}}"
NAMED = "metadata: {name: web, namespace: shop}"
WORKLOADS = {
    "Deployment": (f"apiVersion: apps/v1\nkind: Deployment\n{NAMED}\nspec: {{replicas: 3, template: {TEMPLATE}}}", ["Deployment web (3 pods)"]),
    "StatefulSet": (f"apiVersion: apps/v1\nkind: StatefulSet\n{NAMED}\nspec: {{serviceName: w, template: {TEMPLATE}}}", ["StatefulSet web"]),
    "DaemonSet": (f"apiVersion: apps/v1\nkind: DaemonSet\n{NAMED}\nspec: {{template: {TEMPLATE}}}", ["DaemonSet web"]),
    "Job": (f"apiVersion: batch/v1\nkind: Job\n{NAMED}\nspec: {{parallelism: 4, completions: 8, template: {TEMPLATE}}}", ["Job web (4 pods)"]),
    "CronJob": (f"apiVersion: batch/v1\nkind: CronJob\n{NAMED}\nspec: {{schedule: '@daily', jobTemplate: {{spec: {{template: {TEMPLATE}}}}}}}", ["CronJob web"]),
    "PodTemplate": (f"apiVersion: v1\nkind: PodTemplate\n{NAMED}\ntemplate: {TEMPLATE}", ["PodTemplate web (asks for no pod)"]),
    "of no pods": (f"apiVersion: apps/v1\nkind: ReplicaSet\n{NAMED}\nspec: {{replicas: 0, template: {TEMPLATE}}}", ["ReplicaSet web (asks for no pod)"]),
    "another project's": (f"apiVersion: argoproj.io/v1alpha1\nkind: Rollout\n{NAMED}\nspec: {{template: {TEMPLATE}}}", ["Rollout web"]),
    "with two templates": (
        f"kind: JobSet\n{NAMED}\nspec: {{replicatedJobs: [{{name: a, replicas: 2, template: {{spec: {{template: {TEMPLATE}}}}}}}, {{name: b, template: {{spec: {{template: {TEMPLATE}}}}}}}]}}",
        ["JobSet web (2 pods)", "JobSet web"],
    ),
    "a list": (f"apiVersion: v1\nkind: List\nitems: [{{kind: Deployment, {NAMED}, spec: {{template: {TEMPLATE}}}}}]", ["Deployment web"]),
    "a typed list": (f"kind: DeploymentList\nitems: [{{{NAMED}, spec: {{template: {TEMPLATE}}}}}]", ["DeploymentList web"]),
    "generated": (f"kind: Job\nmetadata: {{generateName: web-, namespace: shop}}\nspec: {{template: {TEMPLATE}}}", ["Job web"]),
}  # fmt: skip


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_template_is_one_pod_with_the_name_of_its_workload(name: str) -> None:
    text, workloads = WORKLOADS[name]
    found = parse_workloads(text.encode(), "f")
    assert [one.workload for one in found if isinstance(one, ManifestPod)] == workloads
    for one in found:
        assert isinstance(one, ManifestPod), one
        assert one.pod.full_name == "shop/web"
        (container,) = one.pod.containers
        assert str(container.resources.requests.get("cpu")) == "2"
        assert (one.notes, one.not_run) == ((), ())
    refused = parse_manifest(text.encode(), "f")
    assert all(isinstance(one, RefusedPod) for one in refused), "the agent runs pods only"


POD = f"apiVersion: v1\nkind: Pod\n{NAMED}\nspec: {{containers: [{CONTAINER}]}}"
OF_EACH_KIND = {name: text for name, (text, _) in WORKLOADS.items()} | {
    "Pod": POD,
    "a list of pods": f"apiVersion: v1\nkind: PodList\nitems: [{{{NAMED}, spec: {{containers: [{CONTAINER}]}}}}]",
}


@pytest.mark.parametrize("name", OF_EACH_KIND)
def test_an_unknown_field_is_listed_and_changes_nothing_unless_it_is_probably_mistyped(name: str) -> None:
    text = OF_EACH_KIND[name]
    unknown = text.replace("args: [", "future: {cpu: 9}, args: [").replace("containers:", "podFuture: 1, containers:")
    *pods, listed = parse_workloads(unknown.encode(), "f")
    assert pods == list(parse_workloads(text.encode(), "f"))
    assert isinstance(listed, UnknownFields)
    assert {one.field.rpartition(".")[2] for one in listed.findings} == {"podFuture", "future"}
    assert all(isinstance(one, RefusedPod) for one in parse_manifest(unknown.encode(), "f")), (
        "not where a pod is to run"
    )
    for known, mistyped in (("resources:", "resorces:"), ("limits:", "limit:"), ("args:", "arg:")):
        found = parse_workloads(text.replace(known, mistyped).encode(), "f")
        assert found, mistyped
        for one in found:
            assert isinstance(one, RefusedPod), mistyped
            assert any(f"did you mean {known[:-1]}?" in finding.message for finding in one.findings), mistyped


def test_an_unknown_field_of_a_list_or_a_claim_is_listed() -> None:
    claim = "{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: c}, spec: {devices: {requests: [REQUEST], future: 1}}}"
    claim = claim.replace("REQUEST", "{name: r, exactly: {deviceClassName: example.com}}")
    text = f"apiVersion: v1\nkind: List\nlistFuture: 1\nitems: [{claim}]"
    _, listed = parse_workloads(text.encode(), "f")
    assert isinstance(listed, UnknownFields)
    assert [str(one) for one in listed.findings] == [
        "f:3: listFuture: unknown field",
        "f:4: items[0].spec.devices.future: unknown field",
    ]


def test_what_the_agent_cannot_run_is_listed_and_changes_nothing() -> None:
    fields = {
        "initContainers": [{"name": "init", "image": "busybox", "restartPolicy": "OnFailure"}],
        "containers": [
            {
                "name": "app",
                "image": "nginx",
                "args": ["--fast"],
                "workingDir": "here",
                "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                "envFrom": [{"configMapRef": {"name": "c"}}],
                "volumeMounts": [{"name": "v", "mountPath": "/data"}],
                "volumeDevices": [{"name": "d", "devicePath": "/dev/x"}],
                "securityContext": {"runAsNonRoot": True},
                "command": ["x"],
                "resources": {"limits": {"cpu": "2", "memory": "1Gi"}},
            }
        ],
        "terminationGracePeriodSeconds": 10**7,
        "volumes": [{"name": "v", "emptyDir": {}}],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": fields}
    (found,) = parse_workloads(json.dumps(pod).encode(), "f")
    assert isinstance(found, ManifestPod)
    assert found.not_run == (
        "spec.containers[0].env[0].valueFrom",
        "spec.containers[0].envFrom",
        "spec.containers[0].volumeMounts",
        "spec.containers[0].volumeDevices",
        "spec.volumes",
    )
    (refused,) = parse_manifest(json.dumps(pod).encode(), "f")
    assert isinstance(refused, RefusedPod)
    assert len(refused.findings) == 10


def test_documents_without_pods_are_named_and_pods_with_mistakes_are_refused() -> None:
    text = f"""---
# Source: chart/templates/service.yaml
kind: Service
metadata: {{name: web}}
spec: {{ports: [{{port: 80}}]}}
---
# Source: chart/templates/empty.yaml
---
kind: CustomResourceDefinition
spec: {{versions: [{{schema: {{openAPIV3Schema: {{properties: {{spec: {{properties: {{containers: {{type: array}}}}}}}}}}}}}}]}}
---
kind: Deployment
metadata: {{name: web}}
spec:
  template:
    spec:
      containers:
      - {CONTAINER.replace("limits", "limts")}
"""
    service, definition, web = parse_workloads(text.encode(), "f")
    assert [service, definition] == [OtherDocument("Service"), OtherDocument("CustomResourceDefinition")]
    assert isinstance(web, RefusedPod)
    assert [str(found) for found in web.findings] == [
        "f:18: spec.template.spec.containers[0].resources.limts: unknown field, did you mean limits?"
    ]


NAMELESS = "{image: nginx, resources: {limits: {cpu: 2, memory: 1Gi}}}"


def test_only_another_projects_containers_need_no_names() -> None:
    text = f"kind: KIND\n{NAMED}\nspec: {{template: {{spec: {{containers: [{NAMELESS}, {CONTAINER}, {NAMELESS}]}}}}}}"
    service = text.replace("KIND", "Service\napiVersion: serving.knative.dev/v1")
    (found,) = parse_workloads(service.encode(), "f")
    assert isinstance(found, ManifestPod), found
    assert [one.name for one in found.pod.containers] == ["container-1", "app", "container-3"]
    assert found.workload == "Service web"
    (refused,) = parse_workloads(text.replace("KIND", "Deployment\napiVersion: apps/v1").encode(), "f")
    assert isinstance(refused, RefusedPod)
    assert {one.field for one in refused.findings} == {
        f"spec.template.spec.containers[{number}].name" for number in (0, 2)
    }


def test_a_pod_without_a_name_has_the_one_that_is_generated() -> None:
    text = f"apiVersion: v1\nkind: Pod\nmetadata: {{generateName: web-}}\nspec: {{containers: [{CONTAINER}]}}"
    (found,) = parse_workloads(text.encode(), "f")
    assert isinstance(found, ManifestPod)
    assert (found.pod.full_name, found.workload) == ("default/web", "")
    (refused,) = parse_workloads(text.replace("generateName: web-", "labels: {}").encode(), "f")
    assert isinstance(refused, RefusedPod)
