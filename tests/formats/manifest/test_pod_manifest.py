# ruff: noqa: E501 (tables: one case, one line)
"""Manifests: what is read, what is refused, with which words."""

import json
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from nodeagent.core.model.pod import (
    Container,
    ContainerKind,
    Pod,
    QosClass,
    ResourceRequirements,
    Resources,
    RestartPolicy,
    qos_class,
)
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.quiet import ProcessSettings, Profile, QuietRequest, QuietSettings
from nodeagent.formats.manifest.pod_manifest import (
    ManifestPod,
    RefusedPod,
    parse_manifest,
    pod_from_document,
    pod_to_document,
)
from nodeagent.formats.syntax.findings import DocumentError

EXAMPLES = Path(__file__).parents[3] / "examples"

HEAD = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n"


def accepted(text: str) -> ManifestPod:
    [result] = parse_manifest(text.encode(), "f")
    assert isinstance(result, ManifestPod), result
    return result


def refused(text: str) -> list[str]:
    [result] = parse_manifest(text.encode(), "f")
    assert isinstance(result, RefusedPod), result
    return [str(finding).removeprefix("f:") for finding in result.findings]


def amounts(**given: str) -> Resources:
    return Resources.of({name.replace("_", "-"): Quantity.parse(text) for name, text in given.items()})


def test_reads_everything_that_is_used() -> None:
    result = accepted("""
apiVersion: v1
kind: Pod
metadata: {name: web.1, namespace: prod, uid: 0c5d7a52-1111-2222-3333-444455556666, labels: {app: x}}
spec:
  restartPolicy: OnFailure
  terminationGracePeriodSeconds: 0
  securityContext: {runAsUser: 1000, runAsGroup: 1000, fsGroup: 3}
  overhead: {cpu: 250m}
  hostNetwork: true
  resources: {limits: {cpu: 4}}
  initContainers:
    - {name: i, command: [true-ish], resources: {limits: {cpu: 500m}}}
    - {name: s, restartPolicy: Always, image: busybox}
  containers:
    - name: a
      command: [sh, -c]
      args: ["sleep 1"]
      env: [{name: A, value: "1"}, {name: B}, {name: A, value: "2"}]
      workingDir: /srv
      securityContext: {runAsUser: 0, runAsNonRoot: false, privileged: true}
      resources: {requests: {cpu: 1}, limits: {cpu: 2, memory: 1Gi, ephemeral-storage: 1Gi}}
""")
    half = ResourceRequirements(amounts(cpu="500m"), amounts(cpu="500m"))
    own = ResourceRequirements(amounts(cpu="1", memory="1Gi"), amounts(cpu="2", memory="1Gi"))
    assert result.pod == Pod(
        uid="0c5d7a52-1111-2222-3333-444455556666",
        namespace="prod",
        name="web.1",
        containers=(
            Container("i", ContainerKind.INIT, half, command=("true-ish",), run_as_user=1000, run_as_group=1000),
            Container(
                "s", ContainerKind.SIDECAR, run_as_user=1000, run_as_group=1000, restart_policy=RestartPolicy.ALWAYS
            ),
            Container(
                "a",
                resources=own,
                command=("sh", "-c"),
                args=("sleep 1",),
                env=(("A", "1"), ("B", ""), ("A", "2")),
                working_dir="/srv",
                run_as_user=0,
                run_as_group=1000,
            ),
        ),
        # The pod's request is what its containers need; memory has no limit of the pod's own, its request counts all the same.
        resources=ResourceRequirements(amounts(cpu="1", memory="1Gi"), amounts(cpu="4")),
        overhead=amounts(cpu="250m"),
        restart_policy=RestartPolicy.ON_FAILURE,
        termination_grace_seconds=0,
    )
    assert result.unused_fields == (
        "spec.securityContext.fsGroup",
        "spec.initContainers[1].image",
        "spec.containers[0].securityContext.privileged",
        "spec.containers[0].resources.limits[ephemeral-storage]",
        "spec.hostNetwork",
    )
    assert result.line == 2


def test_defaults_are_the_api_servers() -> None:
    pod = accepted(HEAD + "  containers: [{name: a}]\n").pod
    assert (pod.namespace, pod.restart_policy, pod.termination_grace_seconds) == ("default", RestartPolicy.ALWAYS, 30)
    assert pod.given_qos is None
    assert len(pod.uid) == 32


@pytest.mark.parametrize(
    ("pod", "containers", "requests", "limits"),
    [
        # SetDefaults_Pod: only where the pod has limits at all; cpu and memory from the containers, the rest from the limits.
        ("requests: {cpu: 2}", "limits: {cpu: 1}", {"cpu": "2"}, {}),
        ("limits: {cpu: 4}", "limits: {cpu: 1}", {"cpu": "1"}, {"cpu": "4"}),
        ("limits: {cpu: 4, memory: 1Gi}", "requests: {cpu: 1}", {"cpu": "1", "memory": "1Gi"}, {"cpu": "4", "memory": "1Gi"}),
        ("limits: {memory: 1Gi}", "limits: {cpu: 1, hugepages-2Mi: 4Mi}", {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "4Mi"},
         {"memory": "1Gi", "hugepages-2Mi": "4Mi"}),
        ("requests: {cpu: 3}, limits: {cpu: 4}", "limits: {cpu: 1}", {"cpu": "3"}, {"cpu": "4"}),
    ],
)  # fmt: skip
def test_the_pods_own_resources_are_completed(
    pod: str, containers: str, requests: Mapping[str, str], limits: Mapping[str, str]
) -> None:
    text = f"  resources: {{{pod}}}\n  containers: [{{name: a, resources: {{{containers}}}}}]\n"
    own = accepted(HEAD + text).pod.resources
    assert own is not None
    assert {name: str(amount) for name, amount in own.requests} == requests
    assert {name: str(amount) for name, amount in own.limits} == limits


@pytest.mark.parametrize(
    ("amount", "stored"),
    [("1.5Gi", "1536Mi"), ("0.5", "500m"), (".5", "500m"), ("1e3", "1k"), ("'1e3'", "1e3"), ("2", "2"), ("'2.0'", "2"), ("0.0001", "1m"), ("1_000", "1k"), ("0x10", "16")],
)  # fmt: skip
def test_amounts_are_rewritten_as_the_api_server_does(amount: str, stored: str) -> None:
    pod = accepted(HEAD + f"  containers: [{{name: a, resources: {{limits: {{memory: {amount}}}}}}}]\n").pod
    memory = pod.containers[0].resources.requests.get("memory")
    assert memory is not None
    assert str(memory) == stored
    assert memory == Quantity.parse(stored)


CONTAINER_RULES = [
    ("name: A", '5: spec.containers[0].name: "A": must be a lowercase RFC 1123 label: at most 63 of a-z, 0-9 and \'-\', starting and ending with a letter or digit'),
    ("name: a/b", "spec.containers[0].name"),
    ("name: ..", "spec.containers[0].name"),
    (f"name: {'a' * 64}", "spec.containers[0].name"),
    ("name: ''", "5: spec.containers[0].name: is required"),
    ("name: 1", "5: spec.containers[0].name: 1: must be a string (quote it), not a number"),
    ("name: yes", "5: spec.containers[0].name: true: must be a string (quote it), not a boolean"),
    ("{}", "5: spec.containers[0].name: is required"),
    ("x", '5: spec.containers[0]: "x": must be an object, not a string'),
    ("name: a, command: sleep", "5: spec.containers[0].command: must be a list of strings, not a string"),
    ("name: a, command: [sleep, 1]", "5: spec.containers[0].command[1]: must be a string (quote it), not a number"),
    ("name: a, command: ['']", "5: spec.containers[0].command[0]: must name a program"),
    ("name: a, command: [$(A)], env: [{name: A}]", "5: spec.containers[0].command[0]: must name a program"),
    ("name: a, args: [x]", "5: spec.containers[0].args: needs a command: there is no image with an entry point that could take them"),
    ("name: a, workingDir: tmp", '5: spec.containers[0].workingDir: "tmp": must be an absolute path'),
    ("name: a, env: [{name: 'A=B'}]", "5: spec.containers[0].env[0].name: must consist of printable ASCII characters other than '='"),
    ("name: a, env: [{name: NODEAGENT_SHARED_CPUS, value: x}]", "5: spec.containers[0].env[0].name: must not begin with NODEAGENT_: the agent sets these variables itself"),
    ("name: a, env: [{name: A, vlue: x}]", "5: spec.containers[0].env[0]: has an unknown field; known are name, value, valueFrom"),
    ("name: a, env: [{value: x}]", "5: spec.containers[0].env[0].name: is required"),
    ("name: a, env: [{name: A, valueFrom: {fieldRef: {fieldPath: x}}}]", "5: spec.containers[0].env[0].valueFrom: valueFrom is not supported"),
    ("name: a, envFrom: [{configMapRef: {name: x}}]", "5: spec.containers[0].envFrom: envFrom is not supported"),
    ("name: a, volumeMounts: [{name: x}]", "5: spec.containers[0].volumeMounts: volumes are not supported"),
    ("name: a, restartPolicyRules: [{action: Restart}]", "5: spec.containers[0].restartPolicyRules: restart rules are not supported"),
    ("name: a, restartPolicy: Always", "5: spec.containers[0].restartPolicy: Always: is for init containers only"),
    ("name: a, restartPolicy: Sometimes", '5: spec.containers[0].restartPolicy: "Sometimes": must be one of Always, OnFailure, Never'),
    ("name: a, comand: [x]", "5: spec.containers[0].comand: unknown field, did you mean command?"),
    ("name: a, Command: [x]", "5: spec.containers[0].Command: unknown field, did you mean command?"),
    ("name: a, xyzzy: 1", "5: spec.containers[0].xyzzy: unknown field"),
    ("name: a, command: [x], securityContext: {runAsNonRoot: true}", "5: spec.containers[0].securityContext: runAsNonRoot needs a runAsUser other than 0"),
    ("name: a, command: [x], securityContext: {runAsNonRoot: true, runAsUser: 0}", "runAsNonRoot needs"),
    ("name: a, securityContext: {runAsUser: -1}", "5: spec.containers[0].securityContext.runAsUser: -1: must be between 0 and 2147483647"),
    ("name: a, securityContext: {runAsUser: 4294967296}", "must be between 0 and 2147483647"),
    ("name: a, resources: {claims: [{name: gpu}]}", '5: spec.containers[0].resources.claims[0].name: "gpu": must be one of spec.resourceClaims'),
    ("name: a, resources: {limits: {nvidia: 1}}", "5: spec.containers[0].resources.limits[nvidia]: is not a resource of this node"),
    ("name: a, resources: {limits: {nvidia.com/gpu: -1}}", "limits[nvidia.com/gpu]: -1: must be greater than or equal to 0"),
    ("name: a, resources: {limits: {nvidia.com/gpu: 500m}}", "limits[nvidia.com/gpu]: 500m: must be an integer: devices are whole"),
    ("name: a, resources: {limits: {nvidia.com/gpu: 1M}}", "limits[nvidia.com/gpu]: 1M: must be at most 65536"),
    ("name: a, resources: {limits: {x.kubernetes.io/gpu: 1}}", "must be DOMAIN/NAME, like Kubernetes' extended resources (not kubernetes.io)"),
    ("name: a, resources: {limits: {requests.nvidia.com/gpu: 1}}", "must be DOMAIN/NAME, like Kubernetes' extended resources"),
    ("name: a, resources: {limits: {/gpu: 1}}", "must be DOMAIN/NAME, like Kubernetes' extended resources"),
    ("name: a, resources: {requests: {nvidia.com/gpu: 1}}", "resources.limits: must have nvidia.com/gpu: devices can't be overcommitted"),
    ("name: a, resources: {requests: {nvidia.com/gpu: 1}, limits: {nvidia.com/gpu: 2}}", "must be equal to nvidia.com/gpu limit of 2"),
    ("name: a, resources: {limits: {cpu: x}}", '5: spec.containers[0].resources.limits[cpu]: "x": must be a quantity such as 2, 500m or 1Gi'),
    ("name: a, resources: {limits: {cpu: [1]}}", "5: spec.containers[0].resources.limits[cpu]: must be a quantity such as 2, 500m or 1Gi, not a list"),
    ("name: a, resources: {limits: {cpu: -1}}", "5: spec.containers[0].resources.limits[cpu]: -1: must be greater than or equal to 0"),
    ("name: a, resources: {requests: {cpu: -1m}}", "5: spec.containers[0].resources.requests[cpu]: -1m: must be greater than or equal to 0"),
    ("name: a, resources: {limits: {cpu: 1e9}}", "limits[cpu]: 1000000000: must be at most 1M"),
    ("name: a, resources: {limits: {memory: 8Ei}}", "limits[memory]: 8Ei: must be at most"),
    ("name: a, resources: {limits: {memory: 16Ei}}", "limits[memory]: 16Ei: must be at most"),
    ("name: a, resources: {limits: {memory: 9999999999999999999999}}", "must be at most"),
    ("name: a, resources: {requests: {cpu: 2}, limits: {cpu: 1}}", "5: spec.containers[0].resources.requests[cpu]: 2: must be less than or equal to cpu limit of 1"),
    ("name: a, resources: {requests: {cpu: 1001m}, limits: {cpu: 1}}", "must be less than or equal to cpu limit of 1"),
    ("name: a, resources: {requests: {cpu: 1, hugepages-2Mi: 2Mi}}", "5: spec.containers[0].resources.limits: must have hugepages-2Mi: huge pages can't be overcommitted"),
    ("name: a, resources: {requests: {hugepages-2Mi: 2Mi}, limits: {cpu: 1, hugepages-2Mi: 4Mi}}", "requests[hugepages-2Mi]: 2Mi: must be equal to hugepages-2Mi limit of 4Mi"),
    ("name: a, resources: {limits: {cpu: 1, hugepages-2Mi: 3Mi}}", "5: spec.containers[0].resources.limits[hugepages-2Mi]: 3Mi: must be a multiple of the page size 2Mi"),
    ("name: a, resources: {limits: {cpu: 1, hugepages-2048Ki: 2Mi}}", "must name a page size in canonical form, such as hugepages-2Mi or hugepages-1Gi"),
    ("name: a, resources: {limits: {cpu: 1, hugepages-../x: 2Mi}}", "must name a page size"),
    ("name: a, resources: {limits: {cpu: 1, hugepages-0: 0}}", "must name a page size"),
    ("name: a, resources: {limits: {hugepages-2Mi: 2Mi}}", "5: spec.containers[0].resources: huge pages require cpu or memory"),
]  # fmt: skip


@pytest.mark.parametrize(("container", "finding"), CONTAINER_RULES)
def test_containers_are_judged_as_the_api_server_does(container: str, finding: str) -> None:
    item = container if container in {"{}", "x"} else f"{{{container}}}"
    assert any(finding in found for found in refused(f"{HEAD}  containers: [{item}]\n"))
    # The rule is about the container, not about apps: it holds for sidecars too, where it can.
    if "restartPolicy" not in container:
        assert refused(f"{HEAD}  containers: [{{name: ok}}]\n  initContainers: [{item}]\n")


POD_RULES = [
    ("{}", ["1: apiVersion: is required: v1", "1: kind: is required: Pod", "1: metadata: is required, with a name", "1: spec: is required, with containers"]),
    ("kind: Service", ["1: kind: Service: must be Pod, List, PodList, ResourceClaim, ResourceClaimTemplate or DeviceClass"]),
    ("[1]", ["1: must be an object of kind Pod, not a list"]),
    ("hello", ["1: must be an object of kind Pod, not a string"]),
    ("apiVersion: v2\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a}]}", ['1: apiVersion: "v2": must be one of v1']),
    ("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: []}", ["4: spec.containers: needs at least one container"]),
    ("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: {}}", ["4: spec.containers: must be a list of objects, not an object"]),
    ("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspc: {}\nspec: {containers: [{name: a}]}", ["4: spc: unknown field, did you mean spec?"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "findings"), POD_RULES)
def test_documents_that_are_no_pod(text: str, findings: list[str]) -> None:
    assert refused(text) == findings


METADATA = [
    ("name: Web", "metadata.name"),
    ("name: ../x", "metadata.name"),
    ("name: a..b", "metadata.name"),
    ("name: -a", "metadata.name"),
    (f"name: {'a' * 254}", "metadata.name"),
    ('name: "a\\nb"', "metadata.name"),
    ("name: 5", "metadata.name"),
    ("namespace: x", "metadata.name: is required"),
    ("name: a, namespace: a.b", "metadata.namespace"),
    ("name: a, namespace: '..'", "metadata.namespace"),
    ("name: a, uid: ../../etc", "metadata.uid"),
    ("name: a, uid: .hidden", "metadata.uid"),
    ("name: a, uid: a/b", "metadata.uid"),
    (f"name: a, uid: {'a' * 129}", "metadata.uid"),
    ("name: a, uid: 'a b'", "metadata.uid"),
    ("name: a, uid: 7", "metadata.uid"),
    ("name: a, lables: {}", "metadata.lables: unknown field, did you mean labels?"),
]


@pytest.mark.parametrize(("metadata", "finding"), METADATA)
def test_names_that_become_directories_are_judged(metadata: str, finding: str) -> None:
    text = f"apiVersion: v1\nkind: Pod\nmetadata: {{{metadata}}}\nspec: {{containers: [{{name: a}}]}}\n"
    found = refused(text)
    assert len(found) == 1
    assert found[0].startswith(f"3: {finding}")


SPEC_RULES = [
    ("containers: [{name: a}, {name: a}]", '5: spec.containers[1].name: "a": is the name of another container in this pod'),
    ("containers: [{name: a}]\n  initContainers: [{name: a, command: [x]}]", '5: spec.containers[0].name: "a": is the name of another container in this pod'),
    ("containers: [{name: a}]\n  initContainers: [{name: i}]", "6: spec.initContainers[0].command: is required: an init container has to run to completion"),
    ("containers: [{name: a}]\n  initContainers: [{name: i, command: [x], restartPolicy: Never}]", "6: spec.initContainers[0].restartPolicy: Never: must be Always"),
    ("containers: [{name: a}]\n  volumes: [{name: v, emptyDir: {}}]", "6: spec.volumes: volumes are not supported"),
    ("containers: [{name: a}]\n  resourceClaims: [{name: c}]", "6: spec.resourceClaims[0].name: c: must be used by a container"),
    ("containers: [{name: a}]\n  restartPolicy: always", '6: spec.restartPolicy: "always": must be one of Always, OnFailure, Never'),
    ("containers: [{name: a}]\n  terminationGracePeriodSeconds: -1", "6: spec.terminationGracePeriodSeconds: -1: must be between 0 and 604800"),
    ("containers: [{name: a}]\n  terminationGracePeriodSeconds: 1.5", '6: spec.terminationGracePeriodSeconds: "1.5": must be a whole number, not a number'),
    ("containers: [{name: a}]\n  terminationGracePeriodSeconds: 9999999999999999999999", "must be between 0 and 604800"),
    ("containers: [{name: a}]\n  overhead: {gpu: 1}", "6: spec.overhead[gpu]: is not a resource of this node"),
    ("containers: [{name: a}]\n  resources: {limits: {gpu: 1}}", "6: spec.resources.limits[gpu]: is not a resource of this node"),
    ("containers: [{name: a}]\n  resources: {requests: {cpu: 2}, limits: {cpu: 1}}", "6: spec.resources.requests[cpu]: 2: must be less than or equal to cpu limit of 1"),
    ("containers: [{name: a, resources: {requests: {cpu: 3}}}]\n  resources: {requests: {cpu: 2}}", "6: spec.resources.requests[cpu]: 2: must be greater than or equal to aggregate container requests of 3"),
    ("containers: [{name: a, resources: {requests: {cpu: 1}}}, {name: b, resources: {requests: {cpu: 1500m}}}]\n  resources: {requests: {cpu: 2}}", "must be greater than or equal to aggregate container requests of 2500m"),
    ("containers: [{name: a, resources: {requests: {cpu: 1}, limits: {cpu: 3}}}]\n  resources: {limits: {cpu: 2}}", "5: spec.containers[0].resources.limits[cpu]: 3: must be less than or equal to pod limits of 2"),
    ("containers: [{name: a}]\n  resources: {limits: {hugepages-2Mi: 2Mi}}", "6: spec.resources: huge pages require cpu or memory"),
    ("containers: [" + ", ".join(f"{{name: a{i}, resources: {{limits: {{memory: 4Ei}}}}}}" for i in range(3)) + "]", "the total memory of the pod must be below 2^63"),
    ("containers: [" + ", ".join(f"{{name: a{i}}}" for i in range(257)) + "]", "5: spec.containers: 257: at most 256 containers are allowed"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "finding"), SPEC_RULES)
def test_pods_are_judged_as_the_api_server_does(spec: str, finding: str) -> None:
    assert any(finding in found for found in refused(f"{HEAD}  {spec}\n"))


ALLOWED = [
    "containers: [{name: a, resources: {limits: {cpu: 1, hugepages-2Mi: 4Mi, hugepages-1Gi: 2Gi}}}]",
    "containers: [{name: a, resources: {limits: {cpu: 0}}}]",
    "containers: [{name: a, resources: {limits: {hugepages-2Mi: 2Mi}}}]\n  resources: {limits: {cpu: 1}}",
    "containers: [{name: a, command: [x], securityContext: {runAsNonRoot: true, runAsUser: 1}}]",
    "containers: [{name: a, securityContext: {runAsNonRoot: true}}]",
    "containers: [{name: a, command: [x]}]\n  securityContext: {runAsNonRoot: true, runAsUser: 1}",
    "containers: [{name: a, env: [{name: 'a b.c-d'}]}]",
    "containers: [{name: a, volumeMounts: [], envFrom: null}]\n  volumes: []\n  resourceClaims:\n  overhead: {}",
    "containers: [{name: a, restartPolicy: null}]\n  initContainers:\n  hostPID: true\n  os: {name: linux}",
    f"containers: [{{name: {'a' * 63}}}]",
    "containers: [" + ", ".join(f"{{name: a{i}}}" for i in range(256)) + "]",
]


@pytest.mark.parametrize("spec", ALLOWED)
def test_what_is_allowed(spec: str) -> None:
    accepted(f"{HEAD}  {spec}\n")


def test_everything_wrong_is_reported_at_once_and_in_order_of_lines() -> None:
    found = refused("""apiVersion: v1
kind: Pod
metadata: {name: Web}
spec:
  hostNetwrk: true
  containers:
    - name: a
      command: [1]
      resources:
        limits: {cpu: -2}
  volumes: [{name: x}]
""")
    assert [line.split(":")[0] for line in found] == ["3", "5", "8", "10", "11"]


@pytest.mark.parametrize(
    "container",
    [
        "command: [x], env: [{name: 'A=', value: s3cret}]",
        "command: [x], env: [{name: A, value: {s3cret: 1}}]",
        "command: [x], env: [{name: A, value: [s3cret]}]",
        "command: [x, 3333], args: [3333], env: [{name: A, value: 3333}]",
        f"command: [x], env: [{{name: A, value: s3cret{'x' * 140_000}}}]",
        f"command: [x, s3cret{'x' * 140_000}]",
    ],
)
def test_a_finding_never_shows_what_may_be_secret(container: str) -> None:
    found = "\n".join(refused(f"{HEAD}  containers: [{{name: a, {container}}}]\n"))
    assert found
    assert "s3cret" not in found
    assert "3333" not in found


@pytest.mark.parametrize(
    "strings",
    [
        f"command: [sh, {'x' * 131_072}]",
        f"command: [sh], args: [{', '.join(['xxxxxxxxx'] * 12_000)}]",
        f"env: [{{name: A, value: {'x' * 131_072}}}]",
        f"command: [sh, {'ä' * 30_000}]",
        "command: [sh, $(K)], env: [{name: A, value: xxxx}, "
        + ", ".join(
            f"{{name: {name}, value: $({before})$({before})$({before})$({before})}}"
            for before, name in pairwise("ABCDEFGHIJK")
        )
        + "]",
    ],
    ids=["a string", "many strings", "a variable", "escaped on the way", "references to references"],
)
def test_strings_too_long_for_the_launcher_are_refused(strings: str) -> None:
    [found] = refused(f"{HEAD}  containers: [{{name: a, {strings}}}]\n")
    assert found == (
        "5: spec.containers[0].command: command, args and env, with $(…) replaced, exceed 131072 bytes of JSON: "
        "put large values into a file"
    )


def test_several_documents_give_one_result_each() -> None:
    text = f"""{HEAD}  containers: [{{name: a}}]
---
kind: Service
---
# nothing
---
apiVersion: v1
kind: Pod
metadata: {{name: second, namespace: other}}
spec: {{containers: [{{name: a}}], volumes: [1]}}
"""
    first, second, third = parse_manifest(text.encode(), "f")
    assert isinstance(first, ManifestPod)
    assert isinstance(second, RefusedPod)
    assert isinstance(third, RefusedPod)
    assert (second.name, third.name) == (None, "other/second")
    assert [finding.line for finding in (*second.findings, *third.findings)] == [7, 14]


@pytest.mark.parametrize(("kind", "typed"), [("List", "apiVersion: v1, kind: Pod, "), ("PodList", "")])
def test_a_list_of_pods_is_its_pods(kind: str, typed: str) -> None:
    items = ", ".join(
        f"{{{typed}metadata: {{name: p{i}}}, spec: {{containers: [{{name: a{'_' * i}}}]}}}}" for i in range(2)
    )
    first, second = parse_manifest(f"apiVersion: v1\nkind: {kind}\nitems: [{items}]\n".encode(), "f")
    assert isinstance(first, ManifestPod)
    assert isinstance(second, RefusedPod)
    assert second.findings[0].field == "items[1].spec.containers[0].name"
    assert second.findings[0].line == 3


@pytest.mark.parametrize("items", ["", "items: 1", "items: [], itemz: []"])
def test_a_list_without_items_is_refused(items: str) -> None:
    [result] = parse_manifest(f"{{apiVersion: v1, kind: List, {items}}}".replace("{", " {", 1).encode(), "f")
    assert isinstance(result, RefusedPod)


def test_text_that_cannot_be_read_is_one_refusal() -> None:
    [result] = parse_manifest(b"a: [", "web.yaml")
    assert isinstance(result, RefusedPod)
    assert result.name is None
    assert str(result.findings[0]).startswith("web.yaml:1: is not valid YAML")


@pytest.mark.parametrize(
    "text", ["", " \n", "# nothing yet\n", "null", "~\n", "---\n---\n", "--- null\n# cut off\n", "\ufeff"]
)
def test_a_text_without_a_document_is_one_refusal_and_names_no_pod(text: str) -> None:
    [result] = parse_manifest(text.encode(), "web.yaml")
    assert isinstance(result, RefusedPod)
    assert result.name is None
    [finding] = result.findings
    what = "contains no pod" if text.strip() else "is empty, perhaps because the disk was full (see `df`)"
    assert str(finding) == f"web.yaml:1: {what}: write a pod, or remove the file to end the pods it had"


@pytest.mark.parametrize("kind", ["List", "PodList"])
def test_an_empty_list_says_that_there_are_no_pods(kind: str) -> None:
    assert parse_manifest(f"apiVersion: v1\nkind: {kind}\nitems: []\n".encode(), "f") == ()


def test_an_empty_document_beside_a_pod_says_nothing() -> None:
    [result] = parse_manifest(f"---\n# about it\n---\n{HEAD}  containers: [{{name: a}}]\n---\n".encode(), "f")
    assert isinstance(result, ManifestPod)


def test_the_uid_is_a_hash_of_what_is_acted_on() -> None:
    base = accepted(HEAD + "  containers: [{name: a, resources: {limits: {memory: 1Gi}}}]\n").pod
    same = accepted("# a comment\n" + HEAD + "  hostNetwork: true\n  containers: [{image: x, name: a, resources: {requests: {memory: 1024Mi}, limits: {memory: 1Gi}}}]\n").pod  # fmt: skip
    resized = accepted(HEAD + "  containers: [{name: a, resources: {limits: {memory: 2Gi}}}]\n").pod
    other = accepted(
        HEAD + "  containers: [{name: a, args: [b], command: [c], resources: {limits: {memory: 1Gi}}}]\n"
    ).pod
    assert base.uid == same.uid == resized.uid != other.uid
    assert accepted(json.dumps(pod_to_document(replace(base, uid="x")))).pod == replace(base, uid="x")


def annotated(annotations: str, spec: str = "containers: [{name: web, resources: {requests: {cpu: 2500m}}}]") -> str:
    return f"apiVersion: v1\nkind: Pod\nmetadata: {{name: a, annotations: {{{annotations}}}}}\nspec: {{{spec}}}\n"


def test_an_annotation_says_how_many_cpus_of_a_request_are_exclusive() -> None:
    plain = accepted(annotated("example.org/x: 7")).pod
    assert plain.container("web").exclusive_cpus is None
    pods = [accepted(annotated(f'exclusive-cpus.nodeagent.io/web: "{count}"')).pod for count in (1, 2)]
    assert [p.container("web").exclusive_cpus for p in pods] == [1, 2]
    assert len({p.uid for p in (plain, *pods)}) == 3, "it is part of what the pod is"


ANNOTATIONS = [
    ("web: 2", "must be a string (quote it), not a number"),
    ('web: ""', "must be a whole number of CPUs"),
    ('web: "0"', "must be a whole number of CPUs"),
    ('web: "1500m"', "must be a whole number of CPUs"),
    ('web: "3"', "is more than the container requests (cpu: 2500m)"),
    ('wbe: "2"', "must name a container of this pod after the slash, did you mean web?"),
]


@pytest.mark.parametrize(("annotation", "finding"), ANNOTATIONS)
def test_wrong_amounts_of_exclusive_cpus_are_refused(annotation: str, finding: str) -> None:
    (found,) = refused(annotated(f"exclusive-cpus.nodeagent.io/{annotation}"))
    name = annotation.partition(":")[0]
    assert found.startswith(f"3: metadata.annotations[exclusive-cpus.nodeagent.io/{name}]: ")
    assert finding in found


def test_exclusive_cpus_need_a_request_and_no_resources_of_the_pod_as_a_whole() -> None:
    (found,) = refused(annotated('exclusive-cpus.nodeagent.io/web: "1"', "containers: [{name: web}]"))
    assert "is more than the container requests (no CPU): request at least this number" in found
    whole = "resources: {limits: {cpu: 4, memory: 1Gi}}, containers: [{name: web, resources: {requests: {cpu: 2}}}]"
    (found,) = refused(annotated('exclusive-cpus.nodeagent.io/web: "1"', whole))
    assert "can't be combined with pod-level resources (spec.resources): remove one of them" in found
    (found,) = refused(annotated('exclusive-cpu.nodeagent.io/web: "1"'))
    assert "is not an annotation of this agent: use exclusive-cpus.nodeagent.io/<container>, " in found
    assert (
        "interrupts.nodeagent.io/<container>, near.nodeagent.io/<container>, unit.nodeagent.io/<container>, nodeagent.io/partition, "
        "nodeagent.io/numa-node, nodeagent.io/core-class, nodeagent.io/preferred-core-class, nodeagent.io/near, "
        "nodeagent.io/quiet or nodeagent.io/while-inactive, or remove it"
    ) in found


names = st.from_regex(r"[a-z]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
sizes = st.builds("{}{}".format, st.integers(0, 4000), st.sampled_from(["", "m", "k", "Ki", "Mi", "Gi", "e2"])).map(
    lambda text: Quantity.parse(str(Quantity.parse(text)))
)
resource_lists = st.dictionaries(st.sampled_from(["cpu", "memory", "hugepages-2Mi"]), sizes).map(Resources.of)
requirements = st.builds(ResourceRequirements, resource_lists, resource_lists)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def test_a_container_claims_the_interrupts_of_devices() -> None:
    found = accepted(annotated('interrupts.nodeagent.io/web: "eth0, 0000:3b:00.0,eth0"')).pod
    assert found.containers[0].interrupts == ("eth0", "0000:3b:00.0")
    assert pod_from_document(pod_to_document(found)) == found


@pytest.mark.parametrize(("kind", "isolated"), [("root", False), ("isolated", True)])
def test_a_pod_names_the_kind_of_its_partition(kind: str, *, isolated: bool) -> None:
    found = accepted(annotated(f"nodeagent.io/partition: {kind}")).pod
    assert found.is_isolated is isolated
    assert pod_from_document(pod_to_document(found)) == found
    (refusal,) = refused(annotated("nodeagent.io/partition: isolate"))
    assert "metadata.annotations[nodeagent.io/partition]" in refusal
    assert "isolated" in refusal


@pytest.mark.parametrize("node", [0, 12])
def test_a_pod_asks_for_a_numa_node(node: int) -> None:
    found = accepted(annotated(f'nodeagent.io/numa-node: "{node}"')).pod
    assert found.numa_node == node
    assert pod_from_document(pod_to_document(found)) == found


@pytest.mark.parametrize("node", ['""', "'-1'", "'01'", "'0-1'", "any", "'10000'"])
def test_what_is_no_numa_node_is_refused(node: str) -> None:
    (refusal,) = refused(annotated(f"nodeagent.io/numa-node: {node}"))
    assert "metadata.annotations[nodeagent.io/numa-node]" in refusal
    assert 'must be the number of a NUMA node, such as "0"' in refusal


def test_a_pod_asks_to_be_near_devices_and_a_container_to_be_near_others() -> None:
    two = "containers: [{name: web}, {name: log}]"
    pod = accepted(annotated('nodeagent.io/near: "eth0, 0000:3b:00.0,eth0"', two)).pod
    assert [container.near for container in pod.containers] == [("eth0", "0000:3b:00.0")] * 2
    assert pod.near == ("eth0", "0000:3b:00.0")
    assert pod_from_document(pod_to_document(pod)) == pod
    pod = accepted(annotated("nodeagent.io/near: eth0, near.nodeagent.io/log: nvme1n1", two)).pod
    assert [container.near for container in pod.containers] == [("eth0",), ("nvme1n1",)]
    assert pod_from_document(pod_to_document(pod)) == pod


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("none", None),
        ("quiet", QuietRequest("quiet")),
        ("fast, idleLatency=2us, boost=false", QuietRequest("fast", QuietSettings(idle_latency_us=2, boost=False))),
        (
            "governor=schedutil,minFrequency=800MHz, maxFrequency=2.4GHz",
            QuietRequest("", QuietSettings(governor="schedutil", min_frequency_mhz=800, max_frequency_mhz=2400)),
        ),
    ],
)
def test_a_pod_asks_for_quiet_cores(value: str, expected: QuietRequest | None) -> None:
    pod = accepted(annotated(f'nodeagent.io/quiet: "{value}"')).pod
    assert (pod.quiet, pod.process) == (expected, ProcessSettings())
    assert pod_from_document(pod_to_document(pod)) == pod


@pytest.mark.parametrize(
    ("value", "cores", "process"),
    [
        ("aslr=false, nice=-5", None, ProcessSettings(aslr=False, nice=-5)),
        ("fast, scheduler=fifo:10", QuietRequest("fast"), ProcessSettings(scheduler="fifo:10")),
        (
            "boost=false, transparentHugePages=false",
            QuietRequest("", QuietSettings(boost=False)),
            ProcessSettings(transparent_huge_pages=False),
        ),
    ],
)
def test_a_pod_asks_for_settings_of_its_processes(
    value: str, cores: QuietRequest | None, process: ProcessSettings
) -> None:
    launched = "containers: [{name: web, command: [run]}, {name: entered}]"
    pod = accepted(annotated(f'nodeagent.io/quiet: "{value}"', launched)).pod
    assert (pod.quiet, pod.process) == (cores, process)
    assert pod_from_document(pod_to_document(pod)) == pod
    (found,) = refused(annotated(f'nodeagent.io/quiet: "{value}"'))
    assert "must not have settings of the process: no container of this pod has a command" in found


def test_settings_of_a_profile_are_for_its_processes_where_the_pod_says_nothing_else() -> None:
    profiles = (("fast", Profile(process=ProcessSettings(aslr=False, nice=5))),)
    launched = "containers: [{name: web, command: [run]}]"
    asked = {
        "fast": ProcessSettings(aslr=False, nice=5),
        "fast, nice=-1, aslr=true": ProcessSettings(aslr=True, nice=-1),
        "slow": ProcessSettings(),
        "none": ProcessSettings(),
    }
    for value, expected in asked.items():
        pod = accepted(annotated(f'nodeagent.io/quiet: "{value}"', launched)).pod
        assert pod.resolve_process(profiles) == expected


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("Very", "the profile must be a name of at most 32 lower-case letters"),
        ("quiet, fast", '"fast": must be a profile, and settings such as idleLatency=5us, each once'),
        ("quiet, quiet", '"quiet": must be a profile, and settings such as idleLatency=5us, each once'),
        ("boost=false, boost=false", "each once"),
        ("boost=off", "boost must be true or false"),
        ("idleLatency=5", "idleLatency must be a time in whole microseconds"),
        ("idleLatency=2s", "from 1us to 1s"),
        ("governor=/etc", "governor must be the name of a governor"),
        ("maxFrequency=2.4MHz", "maxFrequency must be a frequency in whole MHz"),
        (
            "quiet, minFrequency=3GHz, maxFrequency=2GHz",
            '"minFrequency=3GHz": minFrequency must not be above maxFrequency, 2000MHz',
        ),
        ("governer=powersave", "governer unknown field, did you mean governor?"),
        ("quiet" * 300, "must be a name"),
        ("scheduler=fifo:50", "scheduler must be batch, or fifo or rr with a priority from 1 to 49"),
        ("nice=20", "nice must be"),
        ("nice=fast", "nice must be"),
        ("aslr=1", "aslr must be true or false"),
    ],
)
def test_nothing_else_is_quiet(value: str, why: str) -> None:
    (found,) = refused(annotated(f'nodeagent.io/quiet: "{value}"', "containers: [{name: web, command: [run]}]"))
    assert "nodeagent.io/quiet" in found
    assert why in found


@pytest.mark.parametrize("key", ["nodeagent.io/near", "near.nodeagent.io/web"])
@pytest.mark.parametrize("text", ['""', "'eth0,'", "'eth0 eth1'", "'.'", "'../eth0'", "x" * 33])
def test_what_is_no_name_of_a_device_is_refused(key: str, text: str) -> None:
    (refusal,) = refused(annotated(f"{key}: {text}", "containers: [{name: web}]"))
    assert f"metadata.annotations[{key}]" in refusal
    assert "must list devices or kinds of devices, such as eth0, 0000:3b:00.0, nvme0 or network" in refusal


@pytest.mark.parametrize("name", ["performance", "efficiency"])
def test_a_pod_asks_for_a_class_of_cores_or_prefers_one(name: str) -> None:
    required = accepted(annotated(f"nodeagent.io/core-class: {name}")).pod
    assert (required.core_class, required.preferred_core_class) == (name, None)
    assert pod_from_document(pod_to_document(required)) == required
    for wish in (name, "any"):
        preferring = accepted(annotated(f"nodeagent.io/preferred-core-class: {wish}")).pod
        assert (preferring.core_class, preferring.preferred_core_class) == (None, wish)
        assert pod_from_document(pod_to_document(preferring)) == preferring


@pytest.mark.parametrize(
    ("key", "text", "finding"),
    [
        ("core-class", "any", '"any": must be one of performance, efficiency'),
        ("core-class", "fast", '"fast": must be one of performance, efficiency'),
        ("preferred-core-class", '""', '"": must be one of any, performance, efficiency'),
        (
            "preferred-core-class",
            "any, nodeagent.io/core-class: efficiency",
            "has no effect together with nodeagent.io/core-class: remove one of the two",
        ),
    ],
)
def test_what_is_no_class_of_cores_is_refused(key: str, text: str, finding: str) -> None:
    (refusal,) = refused(annotated(f"nodeagent.io/{key}: {text}"))
    assert f"metadata.annotations[nodeagent.io/{key}]" in refusal
    assert finding in refusal


@pytest.mark.parametrize("devices", ['""', '"eth0,"', '"../eth0"', '".."', '"a/b"', '"an interface"', "'0000:3b:00'"])
def test_what_is_no_device_is_refused(devices: str) -> None:
    (found,) = refused(annotated(f"interrupts.nodeagent.io/web: {devices}"))
    assert "must list network interfaces or PCI addresses, such as eth0, 0000:3b:00.0" in found


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    early = draw(st.lists(st.sampled_from([ContainerKind.INIT, ContainerKind.SIDECAR]), max_size=2))
    containers = [
        Container(
            name=draw(names),
            kind=kind,
            resources=draw(requirements),
            command=tuple(draw(st.lists(texts, max_size=2))),
            args=tuple(draw(st.lists(texts, max_size=2))),
            env=tuple(draw(st.lists(st.tuples(texts, texts), max_size=2))),
            working_dir=draw(st.none() | texts.filter(bool)),
            run_as_user=draw(st.none() | st.integers(0, 9)),
            run_as_group=draw(st.none() | st.integers(0, 9)),
            restart_policy=RestartPolicy.ALWAYS if kind is ContainerKind.SIDECAR else None,
            exclusive_cpus=draw(st.none() | st.integers(1, 9)),
            near=draw(st.sampled_from([(), (), ("eth0",), ("0000:3b:00.0", "nvme")])),
        )
        for kind in (*early, ContainerKind.APP)
    ]
    pod = Pod(
        uid=draw(names),
        namespace=draw(names),
        name=draw(names),
        containers=tuple(containers),
        resources=draw(st.none() | requirements),
        overhead=draw(resource_lists),
        restart_policy=draw(st.sampled_from(RestartPolicy)),
        termination_grace_seconds=draw(st.integers(0, 100)),
        given_qos=draw(st.none() | st.sampled_from(QosClass)),
        numa_node=draw(st.none() | st.integers(0, 9999)),
        quiet=draw(st.sampled_from([None, QuietRequest("quiet"), QuietRequest("", QuietSettings(3, boost=False))])),
        gives_back=draw(st.booleans()),
        core_class=(core_class := draw(st.sampled_from([None, "performance", "efficiency"]))),
        preferred_core_class=draw(st.sampled_from([None, "any", "performance"])) if core_class is None else None,
    )
    # Our own documents come from pods with defaults applied.
    return pod_from_document(pod_to_document(pod))


@given(pods())
def test_a_pod_reads_back_from_its_own_document(pod: Pod) -> None:
    document = pod_to_document(pod)
    assert pod_from_document(document) == pod
    assert pod_from_document(json.loads(json.dumps(document))) == pod
    assert pod_to_document(pod_from_document(document)) == document


def test_a_document_is_read_without_being_judged() -> None:
    pod = pod_from_document(
        {
            "metadata": {"uid": "u", "name": "BAD NAME", "unknown": 1},
            "spec": {
                "volumes": [1],
                "containers": [{"name": "a", "image": "x", "resources": {"limits": {"cpu": 2, "memory": "1.5Gi"}}}],
                "resources": {"limits": {"memory": "1Gi"}},
            },
            "status": {"qosClass": "Burstable", "phase": "Running"},
        }
    )
    assert pod.name == "BAD NAME"
    assert qos_class(pod, pod_level_resources=True) is QosClass.BURSTABLE
    request = pod.containers[0].resources.requests.get("memory")
    assert request is not None
    assert request.as_int64() is None  # kept as written, as kubelet's static pods are
    # The reference's pods come without the API server's defaults for the pod's own resources.
    assert pod.resources == ResourceRequirements(limits=amounts(memory="1Gi"))


@pytest.mark.parametrize(
    ("document", "finding"),
    [
        ({"metadata": {"name": 1}, "spec": {}}, "metadata.name: 1: must be a string"),
        (
            {"metadata": {"name": "a"}, "spec": {"containers": {}}},
            "spec.containers: must be a list of objects, not an object",
        ),
        ({"metadata": {"name": "a"}, "spec": {"containers": [{"resources": {"limits": {"cpu": "x"}}}]}}, "limits[cpu]"),
        ({"metadata": {"name": "a"}, "spec": {"containers": [object()]}}, "has no JSON form"),
        ({"metadata": {"name": "a"}}, "spec: is required"),
    ],
)
def test_a_document_of_wrong_types_is_an_error(document: dict[str, object], finding: str) -> None:
    with pytest.raises(DocumentError, match="pod: ") as caught:
        pod_from_document(document)
    assert finding in str(caught.value)


HOSTILE = [
    ("many names in a resource list", "containers: [{name: a, resources: {limits: {" + ", ".join(f"r{i}: 1" for i in range(20_000)) + "}}}]", "has more than 64 entries"),
    ("many unknown fields", "containers: [{name: a}]\n" + "".join(f"  containerz{i}: 1\n" for i in range(20_000)), "more findings"),
    ("many containers", "containers: [" + ", ".join(f"{{name: a{i}}}" for i in range(20_000)) + "]", "at most 256 containers"),
    ("many variables", "containers: [{name: a, env: [" + "{name: =}, " * 20_000 + "]}]", "more findings"),
    ("one long name", f"containers: [{{name: {'a' * 900_000}}}]", "must be a lowercase"),
    ("one long number", f"containers: [{{name: a, resources: {{limits: {{cpu: '{'9' * 900_000}'}}}}}}]", "must be a quantity such as"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "finding"), [row[1:] for row in HOSTILE], ids=[row[0] for row in HOSTILE])
def test_hostile_manifests_get_a_short_refusal_in_bounded_time(spec: str, finding: str) -> None:
    began = time.process_time()
    found = refused(f"{HEAD}  {spec}\n")
    assert time.process_time() - began < 20
    assert len(found) <= 101
    assert all(len(line) < 1000 for line in found)
    assert any(finding in line for line in found)


KEYS = "name uid containers initContainers resources limits requests cpu memory env command args restartPolicy securityContext runAsUser"
leaves = st.none() | st.booleans() | st.integers() | st.sampled_from(["", "a", "1", "-1", "1Gi", "Always", "/", "A.b"])
junk = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS.split()), inner, max_size=5),
    max_leaves=30,
)


@given(
    st.fixed_dictionaries({"metadata": junk, "spec": st.dictionaries(st.sampled_from(KEYS.split()), junk, max_size=6)})
)
def test_any_document_is_read_or_refused(document: dict[str, object]) -> None:
    text = json.dumps({"apiVersion": "v1", "kind": "Pod", **document})
    for result in parse_manifest(text.encode(), "f"):
        if isinstance(result, RefusedPod):
            assert result.findings
            assert all(finding.line == 1 for finding in result.findings)
        else:
            assert pod_from_document(pod_to_document(result.pod)) == result.pod


@pytest.mark.parametrize(
    ("file", "qos"),
    [
        ("guaranteed.yaml", QosClass.GUARANTEED),
        ("burstable.yaml", QosClass.BURSTABLE),
        ("best-effort.yaml", QosClass.BEST_EFFORT),
        ("init-and-sidecar.yaml", QosClass.GUARANTEED),
        ("cgroup-only.yaml", QosClass.GUARANTEED),
    ],
)
def test_the_examples_are_pods(file: str, qos: QosClass) -> None:
    result = accepted((EXAMPLES / file).read_text())
    assert result.unused_fields == ()
    assert result.pod.name == file.removesuffix(".yaml")
    assert qos_class(result.pod, pod_level_resources=True) is qos


def test_a_field_given_twice_hides_nothing_else_that_is_wrong() -> None:
    text = b"apiVersion: v1\nkind: Pod\nmetadata: {name: Bad}\nspec:\n  hostNetwork: 7\n  hostNetwork: true\n---\nkind: Pod\n"
    (refused,) = parse_manifest(text, "a.yaml")
    assert isinstance(refused, RefusedPod)
    assert {(f.line, f.field) for f in refused.findings} >= {(3, "metadata.name"), (6, ""), (8, "apiVersion")}


def resizing(policy: str, more: str = "") -> str:
    return HEAD + f"  {more}\n  containers: [{{name: a, resizePolicy: {policy}}}]\n"


def test_for_what_a_container_restarts_is_read_and_kept() -> None:
    policy = (
        "[{resourceName: memory, restartPolicy: RestartContainer}, {resourceName: cpu, restartPolicy: NotRequired}]"
    )
    found = accepted(resizing(policy)).pod
    assert found.containers[0].restarts_for == ("memory",)
    assert accepted(json.dumps(pod_to_document(found))).pod == found


@pytest.mark.parametrize(
    ("policy", "more", "problem"),
    [
        ("[{resourceName: cpu, restartPolicy: Sometimes}]", "", "must be one of NotRequired, RestartContainer"),
        ("[{resourceName: disk, restartPolicy: NotRequired}]", "", "must be one of cpu, memory"),
        (
            "[{resourceName: cpu, restartPolicy: RestartContainer}]",
            "restartPolicy: Never",
            "can't be RestartContainer in a pod with restartPolicy: Never",
        ),
    ],
)
def test_a_resize_policy_that_cannot_be_is_refused(policy: str, more: str, problem: str) -> None:
    assert problem in "\n".join(refused(resizing(policy, more)))
