"""What a manifest's writer is told of what will not be as it looks."""

import pytest

from nodeagent.formats.manifest.pod_manifest import ManifestPod, parse_manifest
from nodeagent.formats.manifest.pod_schema import IMAGE_ALONE, MISLEADING
from tests.formats.manifest.test_pod_manifest import HEAD


def notes(spec: str) -> tuple[str, ...]:
    (found,) = parse_manifest(f"{HEAD}{spec}".encode(), "web.yaml")
    assert isinstance(found, ManifestPod), found
    return found.notes


def test_what_a_manifest_that_is_meant_for_here_gets_no_note_about() -> None:
    assert notes("  containers: [{name: a, image: nginx, command: [x], resources: {limits: {memory: 1Mi}}}]\n") == ()
    assert notes("  tolerations: []\n  dnsPolicy: Default\n  containers: [{name: a, imagePullPolicy: Never}]\n") == ()


def test_an_image_without_a_command_is_no_program() -> None:
    spec = "  containers: [{name: a, image: x, command: [x]}, {name: b, image: x}, {name: c}, {name: d, image: x}]\n"
    assert notes(spec) == (f"spec.containers[1].image, spec.containers[3].image: no effect here: {IMAGE_ALONE}",)
    sidecar = "{name: s, image: x, command: [x], restartPolicy: Always}"
    assert notes(f"  initContainers: [{sidecar}]\n  containers: [{{name: a, command: [x]}}]\n") == ()


@pytest.mark.parametrize(
    ("given", "path", "name"),
    [
        ("  nodeSelector: {disk: ssd}\n  containers: [{name: a}]\n", "spec.nodeSelector", "nodeSelector"),
        (
            "  containers: [{name: a, livenessProbe: {periodSeconds: 1}}]\n",
            "spec.containers[0].livenessProbe",
            "livenessProbe",
        ),
        (
            "  containers: [{name: a, securityContext: {readOnlyRootFilesystem: true}}]\n",
            "spec.containers[0].securityContext.readOnlyRootFilesystem",
            "readOnlyRootFilesystem",
        ),
        (
            "  containers: [{name: a, resources: {limits: {ephemeral-storage: 1Gi}}}]\n",
            "spec.containers[0].resources.limits[ephemeral-storage]",
            "ephemeral-storage",
        ),
    ],
)
def test_a_field_that_promises_something_is_named_with_what_is_so_instead(given: str, path: str, name: str) -> None:
    assert notes(given) == (f"{path}: no effect here: {MISLEADING[name]}",)


def test_of_many_containers_three_are_named() -> None:
    containers = ", ".join(f"{{name: c{number}, startupProbe: {{periodSeconds: 1}}}}" for number in range(9))
    (note,) = notes(f"  containers: [{containers}]\n")
    assert note.startswith("spec.containers[0].startupProbe, spec.containers[1].startupProbe, ")
    assert "spec.containers[2].startupProbe and 6 more: no effect here: " in note


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ("memory: 64", "64 is 64 bytes: is 64Mi meant?"),
        ("memory: 1", "1 is 1 byte: is 1Mi meant?"),
        ("memory: 64m", "64m is 1 byte: is 64Mi meant?"),
        ("memory: 2.5Ki", "2.5Ki is 2560 bytes: is 2.5Mi meant?"),
        ("memory: '1e3'", "1e3 is 1000 bytes"),
        ("memory: 64k", "64k is 64000 bytes: is 64Mi meant?"),
    ],
)
def test_memory_that_is_too_little_for_any_process_is_named_once(limits: str, said: str) -> None:
    spec = f"  containers: [{{name: a, command: [x], resources: {{limits: {{{limits}}}}}}}]\n"
    assert notes(spec) == (f"spec.containers[0].resources.limits[memory]: {said}",)


def test_memory_of_a_pod_and_requests_are_looked_at_and_none_at_all_is_none() -> None:
    spec = (
        "  resources: {limits: {memory: 512}}\n  initContainers: [{name: i, command: [x], resources: {limits: {memory: 0}}}]\n"
        "  containers: [{name: a, resources: {requests: {memory: 9}, limits: {memory: 99}}},"
        " {name: b, resources: {requests: {memory: 1}}}]\n"
    )
    assert [note.partition(":")[0] for note in notes(spec)] == [
        "spec.resources.limits[memory]",
        "spec.containers[0].resources.limits[memory]",
        "spec.containers[1].resources.requests[memory]",
    ]


@pytest.mark.parametrize(
    ("amount", "bytes_"),
    [("0.1Gi", 107374183), ("1073741824.5", 1073741825), ("1.1Mi", 1153434), ("2000000001500m", 2000000002)],
)
def test_memory_of_a_broken_byte_is_named_for_limits_and_requests(amount: str, bytes_: int) -> None:
    said = f"{amount} is not a whole number of bytes: it counts as {bytes_} bytes, as in kubelet"
    limits = f"  containers: [{{name: a, command: [x], resources: {{limits: {{memory: {amount}}}}}}}]\n"
    assert notes(limits) == (f"spec.containers[0].resources.limits[memory]: {said}",)
    requests = f"  containers: [{{name: a, command: [x], resources: {{requests: {{memory: {amount}}}, limits: {{memory: 1Ti}}}}}}]\n"
    assert notes(requests) == (f"spec.containers[0].resources.requests[memory]: {said}",)
    of_pod = f"  resources: {{limits: {{memory: {amount}}}}}\n  containers: [{{name: a, command: [x]}}]\n"
    assert notes(of_pod)[0] == f"spec.resources.limits[memory]: {said}"


@pytest.mark.parametrize("amount", ["0.5Gi", "1.5Mi", "1048576000m", "1e9"])
def test_whole_bytes_in_any_notation_are_not_noted(amount: str) -> None:
    assert notes(f"  containers: [{{name: a, command: [x], resources: {{requests: {{memory: {amount}}}}}}}]\n") == ()


def test_less_than_a_thousandth_of_a_cpu_is_named() -> None:
    amounts = "{requests: {cpu: 0.0001}, limits: {cpu: 1500100u}}"
    said = "spec.containers[0].resources.{}[cpu]: {} is not a whole number of thousandths of a CPU: it counts as {}, as in kubelet"
    assert notes(f"  containers: [{{name: a, command: [x], resources: {amounts}}}]\n") == (
        said.format("limits", "1500100u", "1501m"),
        said.format("requests", "0.0001", "1m"),
    )
